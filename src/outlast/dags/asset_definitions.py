"""What a DAG file says of assets: names, references, watchers, conditions on several, inlets and outlets."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import msgspec

from ..errors import DagError
from ..values import AssetScope, check_asset, check_id

if TYPE_CHECKING:
    from .triggers import BaseEventTrigger

__all__ = [
    "Asset",
    "AssetAlias",
    "AssetAll",
    "AssetAny",
    "AssetNameRef",
    "AssetUriRef",
    "AssetWatcher",
    "BaseAsset",
    "Known",
    "OneAsset",
    "agree",
    "condition_of",
    "distinct",
    "listed_assets",
    "scope_of",
]


#: The name and URI of an asset, as far as they are known.
Updated: TypeAlias = tuple[str | None, str | None]


class BaseAsset:
    """What a DAG can wait for: an asset, or several joined by `&` (all of them) and `|` (any of them)."""

    __slots__ = ()

    @property
    def assets(self) -> tuple[Known, ...]:
        """The assets and references it is made of, each once."""
        raise NotImplementedError

    def concerns(self, name: str | None, uri: str | None) -> bool:
        """Say whether one of them has this name or URI."""
        return any(asset.matches(name, uri) for asset in self.assets)

    def satisfied(self, updated: Collection[Updated]) -> bool:
        """Say whether it is fulfilled when assets of these names and URIs have been updated."""
        raise NotImplementedError

    def __and__(self, other: BaseAsset) -> AssetAll:
        return AssetAll(self, other) if isinstance(other, BaseAsset) else NotImplemented

    def __or__(self, other: BaseAsset) -> AssetAny:
        return AssetAny(self, other) if isinstance(other, BaseAsset) else NotImplemented


class OneAsset(BaseAsset):
    """A single asset, known by a name, a URI or both."""

    __slots__ = ()

    name: str | None
    uri: str | None

    @property
    def assets(self) -> tuple[Known, ...]:
        return (self,)  # type: ignore[return-value]

    def satisfied(self, updated: Collection[Updated]) -> bool:
        return any(self.matches(name, uri) for name, uri in updated)

    def matches(self, name: str | None, uri: str | None) -> bool:
        """Say whether this is the asset of a name or URI."""
        return (name is not None and name == self.name) or (uri is not None and uri == self.uri)


class Asset(OneAsset):
    """A piece of data that tasks read (`inlets=[asset]`) and write (`outlets=[asset]`), and that DAGs wait for.

    >>> orders = Asset("orders", "s3://bucket/orders")

    Given only one of name and URI, the other one is the same. Two assets of the same name and URI are equal.
    `extra` is for people, a dict of JSON values; `watchers` are triggers that say when it has been updated.
    """

    __slots__ = ("__weakref__", "extra", "group", "name", "uri", "watchers")

    name: str
    uri: str

    def __init__(
        self,
        name: str | None = None,
        uri: str | os.PathLike[str] | None = None,
        *,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        watchers: Iterable[AssetWatcher] = (),
    ) -> None:
        """Name an asset; DagError without name and URI, InvalidKey where they break a naming rule."""
        if name is None and uri is None:
            raise DagError('an Asset needs a name or a URI: Asset("orders"), Asset(uri="s3://bucket/orders"), or both')
        place = None if uri is None else os.fspath(uri)
        self.name = check_asset(place if name is None else name)
        self.uri = check_asset(self.name if place is None else place, "asset URI")
        self.group, self.extra, self.watchers = group, dict(extra or {}), _watchers(watchers)

    @overload
    @staticmethod
    def ref(*, name: str) -> AssetNameRef: ...

    @overload
    @staticmethod
    def ref(*, uri: str) -> AssetUriRef: ...

    @staticmethod
    def ref(*, name: str | None = None, uri: str | None = None) -> AssetNameRef | AssetUriRef:
        """Return a reference to an asset defined elsewhere, by its name or by its URI."""
        if (name is None) == (uri is None):
            raise DagError("Asset.ref takes either name= or uri=; with both it is an Asset(name, uri)")
        return AssetUriRef(uri) if name is None else AssetNameRef(name)  # type: ignore[arg-type]

    def __fspath__(self) -> str:
        return self.uri

    def __eq__(self, other: object) -> bool:
        return (self.name, self.uri) == (other.name, other.uri) if isinstance(other, Asset) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.name, self.uri))

    def __repr__(self) -> str:
        return f"Asset({self.name!r})" if self.uri == self.name else f"Asset({self.name!r}, {self.uri!r})"


class AssetNameRef(OneAsset, msgspec.Struct, frozen=True):
    """An asset defined elsewhere, by its name; `Asset.ref(name=…)`."""

    name: str

    def __post_init__(self) -> None:
        check_asset(self.name)

    @property
    def uri(self) -> None:  # type: ignore[override]
        """Not known here."""


class AssetUriRef(OneAsset, msgspec.Struct, frozen=True):
    """An asset defined elsewhere, by its URI; `Asset.ref(uri=…)`."""

    uri: str

    def __post_init__(self) -> None:
        check_asset(self.uri, "asset URI")

    @property
    def name(self) -> None:  # type: ignore[override]
        """Not known here."""


Known: TypeAlias = Asset | AssetNameRef | AssetUriRef


class AssetAlias(msgspec.Struct, frozen=True):
    """A name for assets known only in a run, without state of its own: `outlet_events[alias].add(asset)` says which."""

    name: str
    group: str = "asset"

    def __post_init__(self) -> None:
        check_asset(self.name, "asset alias")


class AssetWatcher(msgspec.Struct, frozen=True):
    """A trigger that says when an asset is updated: `Asset("inbox", watchers=[AssetWatcher("files", trigger)])`."""

    name: str
    trigger: BaseEventTrigger

    def __post_init__(self) -> None:
        from .triggers import BaseEventTrigger

        check_id(self.name, "watcher name")
        if not isinstance(self.trigger, BaseEventTrigger):
            raise DagError(f"AssetWatcher {self.name!r} has {self.trigger!r}; derive its trigger from BaseEventTrigger")


def _watchers(given: object) -> tuple[AssetWatcher, ...]:
    listed = given if isinstance(given, list | tuple) else [given]
    for watcher in listed:
        if not isinstance(watcher, AssetWatcher):
            raise DagError(f"watchers has {watcher!r}; write watchers=[AssetWatcher(name, trigger)]")
    return tuple(listed)


# --- Schedules ---------------------------------------------------------------------------------------------


class _Joined(BaseAsset):
    """Several assets, or conditions on them."""

    __slots__ = ("parts",)

    word = ""

    def __init__(self, *parts: BaseAsset) -> None:
        for part in parts:
            _refuse_no_condition(part)
        self.parts = parts

    @property
    def assets(self) -> tuple[Known, ...]:
        return tuple(dict.fromkeys(asset for part in self.parts for asset in part.assets))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash((type(self), self.parts))

    def __repr__(self) -> str:
        return f"({f' {self.word} '.join(map(repr, self.parts))})"


class AssetAll(_Joined):
    """Wait until each has been updated: `AssetAll(a, b)`, `a & b`, or a list."""

    __slots__ = ()

    word = "&"

    def satisfied(self, updated: Collection[Updated]) -> bool:
        return all(part.satisfied(updated) for part in self.parts)


class AssetAny(_Joined):
    """Wait until one of them has been updated: `AssetAny(a, b)` or `a | b`."""

    __slots__ = ()

    word = "|"

    def satisfied(self, updated: Collection[Updated]) -> bool:
        return any(part.satisfied(updated) for part in self.parts)


def condition_of(schedule: object) -> BaseAsset | None:
    """Return which assets a DAG's schedule waits for; None for a schedule that names none."""
    match schedule:
        case BaseAsset():
            return schedule
        case list() | tuple() | set() | frozenset() if schedule:
            parts = list(schedule) if isinstance(schedule, list | tuple) else sorted(schedule, key=repr)
            joined = AssetAll(*parts)
            return parts[0] if len(parts) == 1 else joined
        case AssetAlias():
            _refuse_no_condition(schedule)
    return None


def _refuse_no_condition(part: object) -> None:
    if isinstance(part, AssetAlias):
        raise DagError(f"a DAG cannot wait for the alias {part.name!r}; name the assets it stands for")
    if not isinstance(part, BaseAsset):
        raise DagError(f"a DAG cannot wait for {part!r}; write schedule=[Asset({str(part)!r})]")


# --- Inlets and outlets ------------------------------------------------------------------------------------


def listed_assets(what: str, value: object) -> tuple[Any, ...]:
    """Return a task's inlets or outlets, given as one asset or as several, as a tuple; DagError for anything else."""
    several = isinstance(value, list | tuple | set | frozenset)
    items: Any = sorted(value, key=repr) if isinstance(value, set | frozenset) else value if several else (value,)
    found: dict[Any, None] = {}
    for item in items:
        match item:
            case BaseAsset():
                found.update(dict.fromkeys(item.assets))
            case AssetAlias():
                found[item] = None
            case str():
                raise DagError(f"{what} has the text {item!r}; write {what}=[Asset({item!r})]")
            case _:
                raise DagError(f"{what} has {item!r}; it takes assets: {what}=[Asset(...)]")
    return tuple(found)


def scope_of(asset: Known) -> AssetScope:
    """Return the scope in which an asset's state is kept.

    One known by a single text is addressed by it, as its URI if that has a scheme: the other name may be given later.
    """
    match asset:
        case AssetUriRef(uri=uri):
            return AssetScope(None, uri)
        case Asset(name=name, uri=uri) if name != uri:
            return AssetScope(name, uri)
    name = asset.name
    return AssetScope(None, name) if "://" in name else AssetScope(name)


def distinct(items: Iterable[Any]) -> list[tuple[Known, AssetScope]]:
    """Return the assets among inlets and outlets, each once, with the fullest scope anything said of it."""
    found: list[tuple[Known, AssetScope]] = []
    for item in items:
        if isinstance(item, OneAsset):
            _put_in(found, item)  # type: ignore[arg-type]
    return found


def _put_in(found: list[tuple[Known, AssetScope]], asset: Known) -> None:
    scope = scope_of(asset)
    for place, (known, there) in enumerate(found):
        if known.matches(asset.name, asset.uri) and agree(there, scope):
            fuller = asset if isinstance(asset, Asset) and not isinstance(known, Asset) else known
            found[place] = fuller, AssetScope(there.name or scope.name, there.uri or scope.uri)
            return
    found.append((asset, scope))


def agree(one: AssetScope, other: AssetScope) -> bool:
    """Say whether two scopes can be one: neither has a name or URI that the other contradicts."""
    names, uris = {one.name, other.name} - {None}, {one.uri, other.uri} - {None}
    return len(names) < 2 and len(uris) < 2
