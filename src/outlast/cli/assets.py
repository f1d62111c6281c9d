"""`outlast assets`: what is known of assets, their state and their events; and making one of two."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import click
import msgspec

from .. import codec
from ..config import Config
from ..dags.asset_definitions import Asset, AssetNameRef, AssetUriRef, agree, scope_of
from ..errors import Conflict, NotFound, Unauthorized
from ..event_requests import EventRow, Events, ListEvents
from ..plans import run
from ..requests import ForgetAsset, Forgotten, MergeAssets, Merged
from ..store import Store
from ..values import AssetScope, Entry, Writer, asset_scope, moment
from . import show
from .asking import confirm
from .opening import opened, state_of
from .options import Commands, Place, as_json, at_place, reveal
from .person import clear, person
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
    outlast assets unname s3://b/oders --uri  take a wrong URI off the asset that has it
    outlast assets rm oders                   remove one with its state
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
        pairs = [(entry, show.hides(store, entry.key, entry.value, reveal)) for entry in entries]
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


def _events(store: Store) -> Iterator[EventRow]:
    """Yield every event, oldest first."""
    after = 0
    while True:
        page: Events = store.backend.send(ListEvents(after, PAGE))
        yield from page.rows
        if not page.rows:
            return
        after = page.rows[-1].id


def _newest_events(store: Store, scope: AssetScope, limit: int) -> list[EventRow]:
    """Return the newest events of one asset, newest first."""
    found: list[EventRow] = []
    before = 2**62
    while len(found) < limit:
        page: Events = store.backend.send(
            ListEvents(limit=min(PAGE, limit), before=before, name=scope.name, uri=scope.uri)
        )
        found += [row for row in page.rows if _is_same(_scope_of(row), scope)]
        if len(page.rows) < min(PAGE, limit):
            break
        before = page.rows[-1].id
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
@click.option("--new", is_flag=True, help="One of the two is not known yet: the other one gets it as its second name.")
@as_json
def merge(place: Place, name: str, uri: str, prefer: Literal["name", "uri"] | None, new: bool, as_json: bool) -> None:
    """Make one asset of the one known by NAME and the one known by URI: from then on both mean the same.

    Needed where one DAG file has used the name alone and another the URI alone before some `Asset(NAME, URI)` ties
    them. Keys move with their history; where both have one with different values, --prefer says which stays (exit 9
    without it, and nothing is changed), and the other value is in `outlast audit`. Both have to be known already,
    unless --new is given. `outlast assets unname` takes a wrong name or URI off again.

    \b
    outlast assets merge orders s3://bucket/orders
    outlast assets merge orders s3://bucket/orders --new
    """
    whole = asset_scope(name, uri)
    with opened(place.url, create=False) as store:
        _refuse_unknown(whole, [known.scope for known in _known(store)], new)
        merged: Merged = store.backend.send(MergeAssets(name, uri, person(), prefer))
    if as_json:
        show.document({"name": name, "uri": uri, "moved": merged.moved, "dropped": merged.dropped})
    else:
        show.line(f"{name} and {uri} are one asset; {show.count(len(merged.moved), 'key')} moved to it")
        for key in merged.dropped:
            show.line(f"{key}: the value of {uri if prefer == 'name' else name} is gone; `outlast audit` has it")


def _refuse_unknown(whole: AssetScope, known: list[AssetScope], new: bool) -> None:
    """Refuse a merge in which a name or a URI is not known, which is most likely mistyped; all if neither is."""
    names = [scope.name for scope in known if scope.name is not None]
    uris = [scope.uri for scope in known if scope.uri is not None]
    missing = [
        _unknown(what, str(given), there, others)
        for what, given, there, others in (("name", whole.name, names, uris), ("URI", whole.uri, uris, names))
        if given not in there
    ]
    if len(missing) == 2 or (missing and not new):
        new_one = "" if len(missing) == 2 else "If it is meant to be new: --new. "
        raise NotFound(f"{'; and '.join(missing)}. {new_one}`outlast assets ls` lists those there are")


def _unknown(what: str, given: str, there: list[str], others: list[str]) -> str:
    """Say that no asset has a name (or URI), with those like it."""
    said = f"there is no asset with the {what} {given!r}"
    if given in others:
        other = "a URI" if what == "name" else "the name of another asset"
        return f"{said}: that is {other}, and merge takes a NAME and a URI; two assets that both have a name stay two"
    near = difflib.get_close_matches(given, there, n=3)
    return f"{said} (like it: {', '.join(map(repr, near))})" if near else said


# --- rm and unname -------------------------------------------------------------------------------------------

_URI = click.option("--uri", is_flag=True, help="ASSET is a URI.")


@assets.command(short_help="Remove an asset with its state.")
@click.argument("asset")
@at_place
@_URI
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def rm(place: Place, asset: str, uri: bool, yes: bool, as_json: bool) -> None:
    """Remove an asset with its state, its history, and what is known of its name and URI. Asks first, on a terminal.

    The values removed are in `outlast audit`. Its events stay until the runs that made them go.

    \b
    outlast assets rm oders
    outlast assets rm s3://bucket/oders --uri --yes
    """
    asked = asset_scope(None, asset) if uri else asset_scope(asset)
    with opened(place.url, create=False) as store:
        scope, entries = _found(store, asked)
        if scope is asked:
            _refuse_stateless(store, asked)
        if not yes:
            told = f"{asked} has {show.count(len(entries), 'key')}. They go with their history, for good."
            confirm(told, "Remove it?", "nothing was removed")
        cleared = clear(state_of(store, scope)) if entries else 0
        try:
            had: Forgotten = store.backend.send(ForgetAsset(asked.name, asked.uri, person(), whole=True))
        except Unauthorized as error:
            kept = f"{asked} keeps its name and its history, only its {show.count(cleared, 'key')} went"
            raise Unauthorized(f"{error.message}; {kept}: `outlast state restore` brings one back") from error
    if as_json:
        show.document({"name": had.name, "uri": had.uri, "keys": cleared})
    else:
        show.line(f"removed {asked}: {show.count(cleared, 'key')}")


def _refuse_stateless(store: Store, asked: AssetScope) -> None:
    """Raise the error for an asset of which nothing is stored."""
    if _newest_events(store, asked, 1):
        raise Conflict(f"{asked} has no state to remove, only events; these go with the runs that made them")
    raise NotFound(f"there is no {asked}; `outlast assets ls` lists those there are")


@assets.command(short_help="Forget one of an asset's two names.")
@click.argument("asset")
@at_place
@_URI
@as_json
def unname(place: Place, asset: str, uri: bool, as_json: bool) -> None:
    """Forget a name, or with --uri a URI, of the asset that has it; its state stays with the other one of the two.

    For a merge with a wrong URI, say. What uses ASSET from then on uses another asset.

    \b
    outlast assets unname s3://bucket/oders --uri
    """
    asked = asset_scope(None, asset) if uri else asset_scope(asset)
    with opened(place.url, create=False) as store:
        had: Forgotten = store.backend.send(ForgetAsset(asked.name, asked.uri, person()))
    left = had.name if uri else had.uri
    if as_json:
        show.document({"name": had.name if uri else None, "uri": None if uri else had.uri})
    else:
        show.line(f"{asset} means this asset no more; its state stays with {left}")
