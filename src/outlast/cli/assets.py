"""`outlast assets`: what is known of assets, their state and their events; and making one of two."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import click
import msgspec

from .. import codec
from ..config import Config
from ..dags.asset_definitions import Asset, AssetNameRef, AssetUriRef, agree, scope_of
from ..errors import NotFound
from ..plans import run
from ..requests import MergeAssets, Merged
from ..run_requests import EventRow, Events, ListEvents
from ..store import Store
from ..values import AssetScope, Entry, Writer, asset_scope, moment
from . import show
from .opening import opened
from .options import Commands, Place, as_json, at_place, reveal
from .person import person
from .show import Column

__all__ = ["assets"]

#: Events asked for at a time.
PAGE = 1000


@click.group(cls=Commands)
def assets() -> None:
    """Look at assets: their state, who wrote it, and when they were updated.

    To change an asset's state use `outlast state … --asset NAME`.

    \b
    outlast assets ls                         every asset
    outlast assets show orders                its keys, who wrote them, and its newest events
    outlast assets show s3://b/orders --uri   the same by its URI
    outlast assets merge orders s3://b/orders   make one asset of two
    """


# --- ls ------------------------------------------------------------------------------------------------------


class _Known(msgspec.Struct):
    """What is known of one asset: its keys, who changed one last and when, and its newest event."""

    scope: AssetScope
    keys: int = 0
    changed_at: datetime | None = None
    writer: Writer | None = None
    event: EventRow | None = None


@assets.command(short_help="List assets.")
@at_place
@as_json
def ls(place: Place, as_json: bool) -> None:
    """List assets: their keys, when one of these was last changed and by whom, and when a task last updated the asset.

    \b
    outlast assets ls
    """
    with opened(place.url, create=False) as store:
        found = _known(store)
    if as_json:
        show.document([_known_document(known) for known in found])
    elif not found:
        show.note("there are no assets yet")
    else:
        columns = [Column("NAME"), Column("URI"), Column("KEYS", True), Column("CHANGED", narrow="keep"), Column("BY")]
        show.table([*columns, Column("UPDATED", narrow="keep")], [_known_cells(known) for known in found])


def _known(store: Store) -> list[_Known]:
    """Return what has state or an event, by name."""
    found = [
        _with_writer(store, info.scope) for info in store.scopes(assets=True) if isinstance(info.scope, AssetScope)
    ]
    for event in {(event.name, event.uri): event for event in _events(store)}.values():  # the newest of each
        scope = _scope_of(event)
        there = next((known for known in found if _is_same(known.scope, scope)), None)
        if there is None:
            found.append(_Known(scope, event=event))
        elif there.event is None or there.event.id < event.id:
            there.event = event
    return sorted(found, key=lambda known: (known.scope.name or known.scope.uri or "", known.scope.uri or ""))


def _with_writer(store: Store, scope: AssetScope) -> _Known:
    state = store.asset(scope.name, uri=scope.uri)
    rows = run(state._find(None, texts=False), state.backend).rows
    last = max(rows, key=lambda row: row.revision, default=None)
    if last is None:
        return _Known(scope)
    return _Known(scope, len(rows), moment(last.updated_at), last.writer)


def _known_cells(known: _Known) -> list[str]:
    by = "" if known.writer is None else str(known.writer)
    updated = None if known.event is None else moment(known.event.at)
    names = [known.scope.name or "", known.scope.uri or ""]
    return [*names, str(known.keys), show.age(known.changed_at), by, show.age(updated)]


def _known_document(known: _Known) -> dict[str, Any]:
    return {
        "name": known.scope.name,
        "uri": known.scope.uri,
        "keys": known.keys,
        "changed_at": known.changed_at,
        "writer": None if known.writer is None else show.writer_document(known.writer),
        "updated_at": None if known.event is None else moment(known.event.at),
    }


# --- show ----------------------------------------------------------------------------------------------------


@assets.command("show", short_help="Show one asset: its keys, who wrote them, its newest events.")
@click.argument("name")
@at_place
@click.option("--uri", is_flag=True, help="NAME is the asset's URI.")
@click.option("--limit", type=click.IntRange(min=0), default=10, show_default=True, help="Show so many events.")
@reveal
@as_json
def show_asset(place: Place, name: str, uri: bool, limit: int, as_json: bool, reveal: bool) -> None:
    """Show one asset: its keys with their values and who wrote them, and its newest events, newest first.

    A task that wrote is shown by its address, which `outlast tasks show` takes. Exit 4: there is no such asset.

    \b
    outlast assets show orders
    outlast assets show s3://bucket/orders --uri --json
    """
    asked = asset_scope(None, name) if uri else asset_scope(name)
    with opened(place.url, create=False) as store:
        scope, entries = _found(store, asked)
        events = _newest_events(store, scope, limit)
        if not entries and not events and scope is asked:
            raise NotFound(f"there is no {asked}; `outlast assets ls` lists those there are")
        pairs = [(entry, show.is_secret(store.config, entry.key, reveal)) for entry in entries]
        told = [(event, _extra(event, store.config, reveal)) for event in events]
    if as_json:
        documents = [show.entry_document(*pair) for pair in pairs], [_event_document(*pair) for pair in told]
        show.document({"name": scope.name, "uri": scope.uri, "entries": documents[0], "events": documents[1]})
    else:
        _show(scope, pairs, told)


def _show(scope: AssetScope, entries: list[tuple[Entry, bool]], events: list[tuple[EventRow, Any]]) -> None:
    for title, text in (("name:", scope.name), ("URI:", scope.uri)):
        if text:
            show.line(f"{title:<7}{text}")
    if entries:
        columns = [Column("KEY"), Column("VALUE", narrow="cut"), Column("REVISION", True)]
        columns += [Column("CHANGED", narrow="keep"), Column("BY")]
        show.table(columns, [_entry_cells(*pair) for pair in entries])
    else:
        show.note("it has no state")
    if events:
        columns = [Column("UPDATED", narrow="keep"), Column("BY"), Column("EXTRA", narrow="cut")]
        show.table(columns, [_event_cells(*pair) for pair in events])


def _found(store: Store, asked: AssetScope) -> tuple[AssetScope, list[Entry]]:
    """Return an asset as it is known, with its name and its URI, and its entries."""
    for info in store.scopes(assets=True):
        if isinstance(info.scope, AssetScope) and _is_same(info.scope, asked):
            return info.scope, store.asset(info.scope.name, uri=info.scope.uri).entries()
    return asked, []


def _entry_cells(entry: Entry, hidden: bool) -> list[str]:
    value = show.cut(show.value_text(entry.value, hidden))
    return [entry.key, value, str(entry.revision), show.age(entry.updated_at), str(entry.writer)]


# --- Events --------------------------------------------------------------------------------------------------


def _events(store: Store, after: int = 0, until: int | None = None) -> Iterator[EventRow]:
    """Yield events after an id, up to another one, oldest first."""
    while until is None or after < until:
        page: Events = store.backend.send(ListEvents(after, PAGE))
        yield from (row for row in page.rows if until is None or row.id <= until)
        if not page.rows:
            return
        after = page.rows[-1].id


def _newest_events(store: Store, scope: AssetScope, limit: int) -> list[EventRow]:
    """Return the newest events of one asset, newest first."""
    found: list[EventRow] = []
    newest: Events = store.backend.send(ListEvents(limit=0))
    until = newest.newest
    while until > 0 and len(found) < limit:
        rows = [row for row in _events(store, max(until - PAGE, 0), until) if _is_same(_scope_of(row), scope)]
        found, until = [*found, *reversed(rows)], until - PAGE
    return found[:limit]


def _scope_of(event: EventRow) -> AssetScope:
    if event.name is not None and event.uri is not None:
        return scope_of(Asset(event.name, event.uri))
    return scope_of(AssetUriRef(event.uri or "") if event.name is None else AssetNameRef(event.name))


def _is_same(one: AssetScope, other: AssetScope) -> bool:
    shared = {one.name, one.uri} & {other.name, other.uri} - {None}
    return bool(shared) and agree(one, other)


def _event_cells(event: EventRow, extra: Any) -> list[str]:
    by = "" if event.source is None else str(event.source)
    return [show.age(moment(event.at)), by, show.cut(show.value_text(extra))]


def _event_document(event: EventRow, extra: Any) -> dict[str, Any]:
    source = None if event.source is None else str(event.source)
    return {"id": event.id, "at": moment(event.at), "source": source, "extra": extra}


def _extra(event: EventRow, config: Config, reveal: bool) -> Any:
    """Return an event's extra, with what `secret_keys` names in it masked."""
    extra: Any = codec.load(event.extra)
    return {key: show.MASK if show.is_secret(config, key, reveal) else value for key, value in extra.items()}


# --- merge ---------------------------------------------------------------------------------------------------


@assets.command(short_help="Make one asset of two, known by a name and by a URI.")
@click.argument("name")
@click.argument("uri")
@at_place
@click.option(
    "--prefer", type=click.Choice(["name", "uri"]), help="Whose value stays where both have a key with different ones."
)
@as_json
def merge(place: Place, name: str, uri: str, prefer: Literal["name", "uri"] | None, as_json: bool) -> None:
    """Make one asset of the one known by NAME and the one known by URI: from then on both mean the same.

    Needed where one DAG file has used the name alone and another the URI alone before some `Asset(NAME, URI)` ties
    them. Keys move with their history; where both have one with different values, --prefer says which stays (exit 9
    without it, and nothing is changed), and the other value is in `outlast audit`.

    \b
    outlast assets merge orders s3://bucket/orders
    """
    with opened(place.url, create=False) as store:
        merged: Merged = store.backend.send(MergeAssets(name, uri, person(), prefer))
    if as_json:
        show.document({"name": name, "uri": uri, "moved": merged.moved, "dropped": merged.dropped})
    else:
        show.line(f"{name} and {uri} are one asset; {show.count(len(merged.moved), 'key')} moved to it")
        for key in merged.dropped:
            show.line(f"{key}: the value of {uri if prefer == 'name' else name} is gone; `outlast audit` has it")
