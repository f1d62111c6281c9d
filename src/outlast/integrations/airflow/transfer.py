"""State from an outlast store into an Airflow 3.3, and from there into a store: resumable, and the same done twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from ... import codec
from ...errors import BackendError, InvalidKey, InvalidValue
from ...plans import run
from ...requests import Put
from ...state import AssetState, TaskState
from ...store import Store
from ...values import AssetScope, Entry, JsonValue, Scope, TaskScope, Writer, check_key, moment, to_micros
from .airflow_rest import AirflowApi, AssetPlace, Place, Refused, Stored
from .export_journal import Journal, Noted
from .packing import Packer, as_bytes
from .references import References
from .rows import packed_text, reference_in

__all__ = ["Outcome", "Overwrite", "Skipped", "Unpacking", "export_state", "import_state"]

#: Told after each entry what has become of all so far.
Progress = Callable[["Outcome"], None]
#: What is replaced where both sides have a key with different values: what was written before the value that would
#: replace it, or all.
Overwrite = Literal["nothing", "older", "all"]
#: Two moments less apart are the same: some databases keep no microseconds.
CLOSE = timedelta(seconds=1)
_TOO_LONG = "it has an integer of more than 64 bits, which Airflow cannot hand to a task; store it as a str"
_ANOTHER = "has another value; --overwrite replaces it"
_NEWER = "has another value, written later; --overwrite-newer replaces it"
_GONE = "it was exported before and is gone from Airflow since; --overwrite-newer writes it again"


class Skipped(msgspec.Struct, frozen=True):
    """What was not taken over, and why."""

    what: str
    why: str


class Outcome(msgspec.Struct):
    """How many entries were written and were there already, and those that were not taken over.

    `replaced` names those of `written` that had another value; `left` what has changed in Airflow since its export.
    """

    written: int = 0
    same: int = 0
    skipped: list[Skipped] = []
    replaced: list[str] = []
    left: list[str] = []


def export_state(
    store: Store,
    api: AirflowApi,
    journal: Journal,
    *,
    dag_id: str | None = None,
    overwrite: Overwrite = "nothing",
    progress: Progress = lambda outcome: None,
) -> Outcome:
    """Write what a store holds into an Airflow, expiry kept; `dag_id` takes one dag's tasks and no assets.

    What the journal says was exported is left as Airflow has it now, unless the store's entry has been written since.
    Any other key that has another value there is left alone but for `overwrite`.
    Raises BackendError when Airflow stops answering; the next export goes on from there.
    """
    outcome = Outcome()
    assets = [] if dag_id else api.assets()
    for scope, entries in _scopes(store, dag_id):
        place = _place_in_airflow(scope, assets)
        if isinstance(place, str):
            outcome.skipped += [Skipped(f"{scope} {entry.key}", place) for entry in entries]
        else:
            there = {key: held for key, held in api.stored(place).items() if not _is_over(held, store)}
            _export_scope(place, entries, there, api, journal, overwrite, outcome, progress)
        progress(outcome)
    return outcome


def _scopes(store: Store, dag_id: str | None) -> Iterator[tuple[Scope, list[Entry]]]:
    for assets in (False,) if dag_id else (False, True):
        for info in store.scopes(dag_id=dag_id, assets=assets):
            if info.entries and (entries := _state(store, info.scope).entries()):
                yield info.scope, entries


def _place_in_airflow(scope: Scope, assets: list[AssetPlace]) -> Place | str:
    """Return where Airflow keeps a scope's state, or why it cannot."""
    if isinstance(scope, TaskScope):
        if scope.item is not None:
            return "it belongs to an item by its key (map_key), and Airflow knows items by their position only"
        return scope
    uris = {scope.uri, f"{scope.uri}/", (scope.uri or "").rstrip("/")}  # Airflow 2 added a slash to some
    by_name = [asset for asset in assets if asset.name == scope.name]
    found = by_name or [asset for asset in assets if scope.uri is not None and asset.uri in uris]
    return found[0] if found else "Airflow knows no such asset; it does once a DAG that names it has been parsed"


def _export_scope(
    place: Place,
    entries: list[Entry],
    there: dict[str, Stored],
    api: AirflowApi,
    journal: Journal,
    overwrite: Overwrite,
    outcome: Outcome,
    progress: Progress,
) -> None:
    for entry in entries:
        wanted = Stored(entry.value, _iso(entry.expires_at) if isinstance(place, TaskScope) else None)
        held, noted = there.get(entry.key), journal.noted(place, entry.key)
        is_done = _is_done(entry, noted, _digest(wanted), overwrite)
        is_own = held is None or (noted is not None and noted.digest == _digest(held))
        if held is not None and _same(held, wanted):
            outcome.same += 1
        elif is_done and held is not None:
            outcome.left.append(f"{place} {entry.key}")
        elif is_done:  # a task has deleted it, or this Airflow was set up anew
            outcome.skipped.append(Skipped(f"{place} {entry.key}", _GONE))
        elif _is_too_long(entry.value):
            outcome.skipped.append(Skipped(f"{place} {entry.key}", _TOO_LONG))
        elif held is not None and not is_own and (why := _refused(held.updated_at, entry.updated_at, overwrite)):
            outcome.skipped.append(Skipped(f"{place} {entry.key}", f"Airflow {why}"))
        elif _put(place, entry, wanted, api, journal, outcome) and not is_own:
            outcome.replaced.append(f"{place} {entry.key}")
        progress(outcome)


def _is_done(entry: Entry, noted: Noted | None, digest: str, overwrite: Overwrite) -> bool:
    """Say whether an entry was exported as it is, and is thus Airflow's to change; one written since is not."""
    if noted is None or noted.digest != digest or overwrite == "all":
        return False
    return overwrite == "nothing" or noted.at in (None, _iso(entry.updated_at))


def _refused(held: datetime | str | None, wanted: datetime | str | None, overwrite: Overwrite) -> str | None:
    """Return why a value last written at `held` stays, where the other one was at `wanted`; None to replace it."""
    if overwrite == "all":
        return None
    if held is None or wanted is None or _moment(held) > _moment(wanted):
        return _NEWER
    return None if overwrite == "older" else _ANOTHER


def _moment(when: datetime | str) -> datetime:
    return datetime.fromisoformat(when) if isinstance(when, str) else when


def _is_too_long(value: JsonValue) -> bool:
    """Say whether Airflow's supervisor, which speaks MessagePack with a task, would fail over a value."""
    match value:
        case bool():
            return False
        case int():
            return not -(2**63) <= value < 2**64
        case list():
            return any(map(_is_too_long, value))
        case dict():
            return any(map(_is_too_long, value.values()))
    return False


def _put(place: Place, entry: Entry, wanted: Stored, api: AirflowApi, journal: Journal, outcome: Outcome) -> bool:
    try:
        api.put(place, entry.key, wanted)
    except Refused as refused:
        outcome.skipped.append(Skipped(f"{place} {entry.key}", f"Airflow refuses it ({refused.status}): {refused.why}"))
        return False
    journal.note(place, entry.key, Noted(_digest(wanted), _iso(entry.updated_at)))
    outcome.written += 1
    return True


# --- The other way -------------------------------------------------------------------------------------------


class Unpacking(msgspec.Struct, frozen=True):
    """What reads values that a backend of outlast's has packed; without, they are not taken over."""

    packer: Packer | None = None
    references: References | None = None

    def value(self, document: Any) -> JsonValue:
        """Return the value of what Airflow holds; ValueError saying why there is none."""
        if (text := packed_text(document)) is not None:
            if self.packer is None:
                raise ValueError("it is packed; run this where Airflow and its [outlast] settings are")
            document = _loaded(self.packer.unpack(as_bytes(text)))
        reference = reference_in(document)
        if reference is None:
            return document  # type: ignore[no-any-return]
        if self.references is None:
            raise ValueError("a worker's backend keeps it; run this where Airflow and its [outlast] settings are")
        value = self.references.resolve(reference)
        if value is None:
            raise ValueError("its payload is lost")
        return value


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it passes for packed, and what it unpacks to is not JSON") from None


def import_state(
    api: AirflowApi,
    store: Store,
    *,
    writer: Writer,
    unpacking: Unpacking = Unpacking(),  # noqa: B008 (frozen)
    dag_id: str | None = None,
    overwrite: Overwrite = "nothing",
    progress: Progress = lambda outcome: None,
) -> Outcome:
    """Write what an Airflow holds into a store, expiry kept; `dag_id` takes one dag's tasks and no assets.

    A key that has another value in the store is left alone but for `overwrite`. Done again, it goes on where it ended.
    """
    outcome = Outcome()
    places: Iterator[Place] = api.task_instances(dag_id)
    for place in places:
        _import_place(place, place, api, store, writer, unpacking, overwrite, outcome)
        progress(outcome)
    for asset in [] if dag_id else api.assets():
        _import_place(asset, AssetScope(asset.name, asset.uri), api, store, writer, unpacking, overwrite, outcome)
        progress(outcome)
    return outcome


def _import_place(
    place: Place,
    scope: Any,
    api: AirflowApi,
    store: Store,
    writer: Writer,
    unpacking: Unpacking,
    overwrite: Overwrite,
    outcome: Outcome,
) -> None:
    there = {key: held for key, held in api.stored(place).items() if not _is_over(held, store)}
    if not there:
        return
    try:
        state = _state(store, scope, writer)
        held = {entry.key: entry for entry in state.entries()}
    except InvalidKey as error:  # an id that no store of outlast's takes
        outcome.skipped += [Skipped(f"{place} {key}", error.message) for key in there]
        return
    for key, stored in there.items():
        try:
            wanted = Stored(unpacking.value(stored.value), stored.expires_at, stored.updated_at)
            codec.dump(wanted.value)  # over REST anything can be written, and can pass for packed
        except (ValueError, BackendError) as error:
            outcome.skipped.append(Skipped(f"{place} {key}", str(error)))
            continue
        try:
            _take_over(state, check_key(key), wanted, held.get(key), overwrite, outcome)
        except (InvalidKey, InvalidValue) as error:
            outcome.skipped.append(Skipped(f"{place} {key}", error.message))


def _take_over(
    state: Any, key: str, wanted: Stored, held: Entry | None, overwrite: Overwrite, outcome: Outcome
) -> None:
    if held is not None and _same(Stored(held.value, _iso(held.expires_at)), wanted):
        outcome.same += 1
    elif held is not None and (why := _refused(held.updated_at, wanted.updated_at, overwrite)):
        outcome.skipped.append(Skipped(f"{state.scope} {key}", f"the store {why}"))
    else:
        expires_at = None if wanted.expires_at is None else to_micros(datetime.fromisoformat(wanted.expires_at))
        run(state._apply(Put(key, codec.dump(wanted.value).decode(), expires_at)), state.backend)
        outcome.written += 1
        outcome.replaced += [] if held is None else [f"{state.scope} {key}"]


# --- What both need ------------------------------------------------------------------------------------------


def _state(store: Store, scope: Scope, writer: Writer | None = None) -> TaskState | AssetState:
    if isinstance(scope, TaskScope):
        return store.task(scope, writer=writer)
    return store.asset(scope.name, uri=scope.uri, writer=writer)


def _iso(when: datetime | None) -> str | None:
    return None if when is None else when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _same(one: Stored, other: Stored) -> bool:
    return json.dumps(one.value) == json.dumps(other.value) and _is_same_time(one.expires_at, other.expires_at)


def _is_over(stored: Stored, store: Store) -> bool:
    """Say whether a row is past its time; Airflow keeps it until somebody cleans up."""
    return stored.expires_at is not None and datetime.fromisoformat(stored.expires_at) <= moment(store.clock())


def _is_same_time(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(datetime.fromisoformat(one) - datetime.fromisoformat(other)) < CLOSE


def _digest(stored: Stored) -> str:
    """Return a digest of a value and of its expiry to the second."""
    second = None if stored.expires_at is None else datetime.fromisoformat(stored.expires_at).replace(microsecond=0)
    return hashlib.sha256(json.dumps([stored.value, str(second)]).encode()).hexdigest()[:32]
