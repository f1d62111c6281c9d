"""Events of assets as tasks see them: those a run was started for, and those a task makes when it succeeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import DagError, InvalidValue
from ..values import TaskScope, moment
from .asset_definitions import Asset, AssetAlias, BaseAsset, Known, distinct
from .asset_states import accessors

if TYPE_CHECKING:
    from ..state import TaskState
    from .context import Context
    from .operators import BaseOperator

__all__ = [
    "AssetEvent",
    "Metadata",
    "OutletEvent",
    "OutletEvents",
    "TriggeringEvents",
    "collected",
    "events_of",
    "provide",
    "triggering",
]


def provide(context: Context, task_state: TaskState, events: Iterable[Any] = ()) -> None:
    """Add to a context what it has of assets; `events` are those the run was started for, as a backend gives them."""
    context["outlet_events"] = OutletEvents(context["outlets"])
    context["triggering_asset_events"] = triggering(events)
    states = accessors(task_state, context["inlets"], context["outlets"])
    if states is not None:
        context["asset_state_store"] = states


# --- Events a run was started for --------------------------------------------------------------------------


class AssetEvent(msgspec.Struct, frozen=True):
    """One update of an asset: when, with which extra, and by which task (None: by a trigger or a person)."""

    id: int
    asset: Asset
    timestamp: datetime
    extra: dict[str, Any]
    source: TaskScope | None = None

    @property
    def name(self) -> str:
        """The asset's name."""
        return self.asset.name

    @property
    def uri(self) -> str:
        """The asset's URI."""
        return self.asset.uri

    @property
    def source_dag_id(self) -> str | None:
        """The DAG of the task that updated the asset."""
        return None if self.source is None else self.source.dag_id

    @property
    def source_run_id(self) -> str | None:
        """Its run."""
        return None if self.source is None else self.source.run_id

    @property
    def source_task_id(self) -> str | None:
        """The task itself."""
        return None if self.source is None else self.source.task_id

    @property
    def source_map_index(self) -> int:
        """Its map index, -1 unless it is mapped."""
        return -1 if self.source is None else self.source.map_index


class TriggeringEvents(Mapping[Any, list[AssetEvent]]):
    """The events a run was started for, by asset, oldest first; an asset may be named by a reference."""

    def __init__(self, events: Iterable[AssetEvent]) -> None:
        self._events: list[tuple[Asset, list[AssetEvent]]] = []
        for event in events:
            there = next((found for asset, found in self._events if asset == event.asset), None)
            if there is None:
                self._events.append((event.asset, [event]))
            else:
                there.append(event)

    def __getitem__(self, asset: Known) -> list[AssetEvent]:
        if isinstance(asset, BaseAsset):
            for known, events in self._events:
                if known.matches(asset.name, asset.uri):
                    return events
        raise KeyError(asset)

    def __iter__(self) -> Iterator[Asset]:
        return iter([asset for asset, _ in self._events])

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<triggering_asset_events of {', '.join(map(repr, self)) or 'no asset'}>"


def triggering(rows: Iterable[Any]) -> TriggeringEvents:
    """Return events as a backend gives them (`EventRow`) for the context."""
    return TriggeringEvents(_event(row) for row in rows)


def _event(row: Any) -> AssetEvent:
    import json

    return AssetEvent(row.id, Asset(row.name, row.uri), moment(row.at), json.loads(row.extra), row.source)


# --- Events a task makes -----------------------------------------------------------------------------------


class Metadata(msgspec.Struct, frozen=True):
    """What a task yields about an outlet it has updated: `yield Metadata(orders, {"rows": 7})`.

    With `alias` the asset is one of those that an outlet AssetAlias stands for.
    """

    asset: Asset
    extra: dict[str, Any] = {}
    alias: AssetAlias | None = None


class OutletEvent:
    """The event that one outlet will have when the task succeeds: put what others should know into `extra`."""

    __slots__ = ("added", "extra", "key")

    def __init__(self, key: Known | AssetAlias) -> None:
        self.key, self.extra = key, dict[str, Any]()
        self.added: list[tuple[Asset, dict[str, Any]]] = []

    def add(self, asset: Asset, extra: Mapping[str, Any] | None = None) -> None:
        """Say, of an AssetAlias, which asset has been updated."""
        if not isinstance(self.key, AssetAlias):
            raise DagError(f"{self.key!r} is an asset itself; `add` is for an outlet that is an AssetAlias")
        if not isinstance(asset, Asset):
            raise DagError(f"{asset!r} is no asset; add(Asset(...))")
        self.added.append((asset, dict(extra or {})))


class OutletEvents:
    """A task's outlets in the making: `outlet_events[asset].extra = {"rows": 7}`."""

    def __init__(self, outlets: Iterable[Any]) -> None:
        items = list(outlets)
        keys = [asset for asset, _ in distinct(items)] + [item for item in items if isinstance(item, AssetAlias)]
        self._events = [OutletEvent(key) for key in dict.fromkeys(keys)]

    def __getitem__(self, key: Known | AssetAlias) -> OutletEvent:
        for event in self._events:
            if event.key == key or (_is_asset(event.key) and _is_asset(key) and event.key.matches(key.name, key.uri)):  # type: ignore[union-attr]
                return event
        raise KeyError(f"{key!r} is no outlet of this task; it has {', '.join(repr(e.key) for e in self._events)}")

    def __iter__(self) -> Iterator[Known | AssetAlias]:
        return iter([event.key for event in self._events])

    def __len__(self) -> int:
        return len(self._events)

    def made(self) -> Iterator[tuple[Known, dict[str, Any]]]:
        """Yield each asset that has been updated, with its extra."""
        for event in self._events:
            yield from event.added if isinstance(event.key, AssetAlias) else [(event.key, event.extra)]


def _is_asset(key: object) -> bool:
    return isinstance(key, BaseAsset)


def collected(answer: Any, context: Context) -> Any:
    """Return what a function returned; one that yields is run to its end, and its Metadata taken note of."""
    if type(answer) is not GeneratorType:
        return answer
    while True:
        try:
            item = next(answer)
        except StopIteration as end:
            return end.value
        _note(item, context)


def _note(item: object, context: Context) -> None:
    if not isinstance(item, Metadata):
        context["task"].log.warning("yielded %s, which is no Metadata, and is ignored", type(item).__name__)
        return
    events: OutletEvents = context["outlet_events"]
    if item.alias is None:
        events[item.asset].extra.update(item.extra)
    else:
        events[item.alias].add(item.asset, item.extra)


def events_of(operator: BaseOperator, context: Context) -> list[tuple[str | None, str | None, str]]:
    """Return the events of a task that has succeeded, as (name, URI, extra as JSON text).

    Raises InvalidValue for an extra that is not JSON.
    """
    events: OutletEvents = context.get("outlet_events") or OutletEvents(operator.outlets)
    return [(asset.name, asset.uri, _text(asset, extra)) for asset, extra in events.made()]


def _text(asset: Known, extra: object) -> str:
    """Return an extra as JSON text from which exactly the same can be read again."""
    import json

    try:
        text = json.dumps(extra, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        text.encode()
        exact = isinstance(extra, dict) and json.loads(text) == extra
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"the extra of {asset!r} is not JSON: {error}") from None
    if not exact:
        raise InvalidValue(f"the extra of {asset!r} is {extra!r}; use a dict of JSON values with text keys, no tuples")
    return text
