"""The commands of `outlast state` that only read: ls, get, history, watch, find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from .. import codec
from ..errors import NotFound
from ..finding import Match, is_pattern, matches
from ..state import AssetState, TaskState
from ..store import Store
from ..values import Change, Cursor, Entry, Reset, Scope, ScopeInfo, TaskScope, Version
from . import show
from .addresses import by_position, parse_run
from .meant import has_instance, meant, run_of
from .opening import is_there, opened, state_of
from .options import Command, Place, as_json, as_mistake, at_place, at_scope, cursor_text, duration, reveal, words
from .run_views import command_line
from .show import Column

__all__ = ["find", "get", "history", "ls", "watch"]


# --- ls ------------------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="List scopes, or the keys of one.")
@words("[ADDRESS]")
@at_scope
@click.option("--prefix", default="", help="Only keys that begin so.")
@click.option("--all", "every", is_flag=True, help="Also scopes in which nothing is stored now.")
@click.option("--dag", help="Only scopes of this dag; a name, or a pattern with * and ?.")
@click.option("--run", help="Only scopes of this run, likewise.")
@click.option("--task", help="Only scopes of this task, likewise.")
@click.option("--assets", is_flag=True, help="Only assets.")
@reveal
@as_json
def ls(
    place: Place, given: tuple[str, ...], prefix: str, every: bool, as_json: bool, reveal: bool, **chosen: Any
) -> None:
    """List scopes, or the keys of one.

    Without ADDRESS: every task instance and asset with its live entries, their bytes, its newest attempt (0: none
    has begun) and its last change. With DAG/RUN: those of that run. With the address of a scope: its keys, in order.

    \b
    outlast state ls
    outlast state ls --dag 'night*' --run 2026-11-29
    outlast state ls nightly/2026-11-29
    outlast state ls nightly/2026-11-29/ingest
    outlast state ls nightly/2026-11-29/ingest --prefix page/
    outlast state ls --asset orders --json
    """
    if len(given) == 1 and given[0].count("/") == 1 and not (place.of_asset or any(chosen.values())):
        (address,), given = given, ()
        chosen["dag"], chosen["run"] = map(_exactly, parse_run(address))
    if not given and not place.of_asset:
        if prefix or place.item is not None:
            option, what = ("--prefix", "the keys of one scope") if prefix else ("--item", "one item of a task")
            raise click.UsageError(f"{option} is for {what}; give its ADDRESS")
        with opened(place.url, create=False) as store:
            _show_scopes(list(_scopes(store, every=every, **chosen)), as_json)
        return
    if every or any(chosen.values()):
        raise click.UsageError(
            "--dag, --run, --task, --assets and --all choose scopes; with one scope given they say nothing"
        )
    scope, _ = place.scope_and(given)
    with opened(place.url, create=False) as store:
        state = state_of(store, scope)
        entries = state.entries(prefix)
        if not entries and (not is_there(state) or _instead_of(state)):
            raise _nothing_at(state)
        _show_entries(state, entries, as_json, reveal)


def _exactly(name: str) -> str:
    """Return a pattern that means one name, whatever stands in it."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _scopes(
    store: Store, dag: str | None, run: str | None, task: str | None, assets: bool, every: bool
) -> Iterator[ScopeInfo]:
    """Yield what is asked for, without scopes in which nothing is stored now unless `every` one is."""
    for info in _all_scopes(store, dag, run, task, assets):
        if every or info.entries:
            yield info


def _all_scopes(store: Store, dag: str | None, run: str | None, task: str | None, assets: bool) -> Iterator[ScopeInfo]:
    patterns = {"dag_id": dag, "run_id": run, "task_id": task}
    asked = {name: pattern for name, pattern in patterns.items() if pattern is not None}
    if assets and asked:
        raise click.UsageError("assets belong to no dag, run or task; give either --assets or those")
    if not assets:
        exact = [None if pattern is None or is_pattern(pattern) else pattern for pattern in patterns.values()]
        for info in store.scopes(dag_id=exact[0], run_id=exact[1], task_id=exact[2]):
            if all(matches(getattr(info.scope, name), pattern) for name, pattern in asked.items()):
                yield info
    if not asked:
        yield from store.scopes(assets=True)


def _show_scopes(scopes: list[ScopeInfo], as_json: bool) -> None:
    if as_json:
        show.document([_scope_document(info) for info in scopes])
    elif not scopes:
        show.note("nothing is stored here")
    else:
        columns = [Column("SCOPE"), Column("ENTRIES", True), Column("BYTES", True), Column("ATTEMPT", True)]
        show.table([*columns, Column("CHANGED", narrow="keep")], [_scope_row(info) for info in scopes])


def _scope_row(info: ScopeInfo) -> list[str]:
    attempt = str(info.attempt) if isinstance(info.scope, TaskScope) else "-"
    return [str(info.scope), str(info.entries), str(info.bytes), attempt, show.age(info.updated_at)]


def _scope_document(info: ScopeInfo) -> dict[str, Any]:
    return {
        "scope": show.scope_document(info.scope),
        "entries": info.entries,
        "bytes": info.bytes,
        "attempt": info.attempt,
        "revision": info.revision,
        "updated_at": info.updated_at,
    }


def _show_entries(state: TaskState | AssetState, entries: list[Entry], as_json: bool, reveal: bool) -> None:
    hidden = [show.hides(state, entry.key, entry.value, reveal) for entry in entries]
    pairs = list(zip(entries, hidden, strict=True))
    if as_json:
        show.document([show.entry_document(*pair) for pair in pairs])
    elif not entries:
        show.note(f"{state.scope} has no such entries")
    else:
        columns = [Column("KEY"), Column("VALUE", narrow="cut"), Column("BYTES", True), Column("REVISION", True)]
        columns += [Column("CHANGED", narrow="keep"), Column("EXPIRES", narrow="keep"), Column("BY")]
        show.table(columns, [_entry_row(*pair) for pair in pairs])


def _entry_row(entry: Entry, hidden: bool) -> list[str]:
    text = codec.dump(entry.value)
    times = [show.age(entry.updated_at), show.age(entry.expires_at, "never")]
    value = show.cut(show.value_text(entry.value, hidden))
    return [entry.key, value, str(len(text)), str(entry.revision), *times, str(entry.writer)]


# --- get and history -----------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Print one value.")
@words("[ADDRESS] KEY")
@at_scope
@click.option("--raw", is_flag=True, help="Print a text as it is, without JSON's quotes and escapes.")
@reveal
@as_json
def get(place: Place, given: tuple[str, ...], raw: bool, as_json: bool, reveal: bool) -> None:
    """Print one value, as JSON; with --json also its revision, times and writer. Exit 4: there is none.

    \b
    outlast state get nightly/2026-11-29/ingest page
    outlast state get nightly/2026-11-29/ingest phase --raw
    outlast state get --asset orders watermark --json
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude one another")
    scope, (key,) = place.scope_and(given, "KEY")
    with opened(place.url, create=False) as store:
        state = state_of(store, scope)
        entry = state.entry(key)
        if entry is None:
            raise _no_key(state, key)
        hidden = show.hides(state, key, entry.value, reveal)
    if as_json:
        show.document(show.entry_document(entry, hidden))
    else:
        show.value(entry.value, hidden, raw)
        if hidden:
            show.note(f"the value of {key!r} is masked ([state_store] secret_keys); --reveal shows it")


@click.command(cls=Command, short_help="List what a key has held.")
@words("[ADDRESS] KEY")
@at_scope
@reveal
@as_json
def history(place: Place, given: tuple[str, ...], as_json: bool, reveal: bool) -> None:
    """List the kept versions of a key, newest first: values and deletions, when and by whom.

    `[state_store] history_versions` says how many are kept. `outlast state restore` writes one of them again.

    \b
    outlast state history nightly/2026-11-29/ingest page
    """
    scope, (key,) = place.scope_and(given, "KEY")
    with opened(place.url, create=False) as store:
        state = state_of(store, scope)
        versions = state.history(key)
        if not versions:
            raise _no_key(state, key)
        pairs = [(version, show.hides(state, key, version.value, reveal)) for version in versions]
    if as_json:
        show.document([show.version_document(*pair) for pair in pairs])
    else:
        columns = [
            Column("REVISION", True),
            Column("VALUE", narrow="cut"),
            Column("WRITTEN", narrow="keep"),
            Column("BY"),
        ]
        show.table(columns, [_version_row(*pair) for pair in pairs])


def _version_row(version: Version, hidden: bool) -> list[str]:
    value = "(deleted)" if version.deleted else show.cut(show.value_text(version.value, hidden))
    return [str(version.revision), value, show.age(version.at), str(version.writer)]


def _nothing_at(state: TaskState | AssetState) -> NotFound:
    """Return the error for a scope that is not there, saying what its run has instead."""
    return _instead_of(state) or NotFound(f"there is no {state.scope}; `outlast state ls` lists what there is")


def _instead_of(state: TaskState | AssetState) -> NotFound | None:
    """Return the error for a task instance its run does not have, None for one it has, or that has no run."""
    scope = state.scope
    detail = run_of(state.backend, scope) if isinstance(scope, TaskScope) else None
    if detail is None or not isinstance(scope, TaskScope) or has_instance(detail, scope):
        return None
    return meant(scope, detail)


def _no_key(state: TaskState | AssetState, key: str) -> NotFound:
    """Return the error for a key that is not there, with those that look like it."""
    if not is_there(state):
        return _nothing_at(state)
    import difflib

    keys = state.keys()
    if not keys and (instead := _instead_of(state)):
        return instead
    near = difflib.get_close_matches(key, keys, n=3)
    which = command_line("state", "ls", *_which(state.scope), url=None)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; `{which}` lists its keys"
    return NotFound(f"{state.scope} has no {key!r}{hint}")


def _which(scope: Scope) -> list[str]:
    """Return the words by which a command is told of a scope."""
    if isinstance(scope, TaskScope):
        return [by_position(scope)]
    return ["--asset", scope.name] if scope.name is not None else ["--asset-uri", str(scope.uri)]


# --- watch ---------------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Print what changes, as it changes.")
@words("[ADDRESS]")
@at_scope
@click.option("--cursor", metavar="CURSOR", callback=cursor_text, help="Go on from here; an earlier watch printed it.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="End after so long without a change.")
@reveal
@as_json
def watch(
    place: Place, given: tuple[str, ...], cursor: Cursor | None, timeout: float | None, as_json: bool, reveal: bool
) -> None:
    """Print what is there now, then every key's newest value as it changes; Ctrl-C ends it.

    With --json one line an event: {"event": "reset", …} with all entries, then {"event": "change", …} each.
    Every event carries the cursor to go on from.

    \b
    outlast state watch nightly/2026-11-29/ingest
    outlast state watch nightly/2026-11-29/ingest --cursor 7.42 --timeout 10 --json
    """
    scope, _ = place.scope_and(given)
    with opened(place.url, create=False) as store:
        state = state_of(store, scope)
        if not is_there(state):
            show.note(f"there is no {scope} yet; waiting for it")
        watching = state.watch(cursor, timeout=timeout)
        try:
            for event in watching:
                _show_event(state, event, as_json, reveal)
        finally:
            if watching.cursor is not None and not as_json:
                show.note(f"to go on from here: --cursor {watching.cursor}")


def _show_event(state: TaskState | AssetState, event: Change | Reset, as_json: bool, reveal: bool) -> None:
    def hidden(entry: Entry) -> bool:
        return show.hides(state, entry.key, entry.value, reveal)

    match event:
        case Reset() if as_json:
            entries = [show.entry_document(entry, hidden(entry)) for entry in event.entries]
            show.document({"event": "reset", "cursor": str(event.cursor), "entries": entries})
        case Change() if as_json:
            shown = None if event.entry is None else show.entry_document(event.entry, hidden(event.entry))
            place = {"event": "change", "cursor": str(event.cursor), "revision": event.revision}
            show.document({**place, "key": event.key, "entry": shown})
        case Reset():
            show.line(f"now: {show.count(len(event.entries), 'entry', 'entries')}")
            for entry in event.entries:
                show.line(_entry_line(entry, hidden(entry)))
        case Change(entry=None):
            show.line(f"{event.key} deleted (revision {event.revision})")
        case Change(entry=Entry() as entry):
            show.line(_entry_line(entry, hidden(entry)))


def _entry_line(entry: Entry, hidden: bool) -> str:
    value = show.value_text(entry.value, hidden)
    return f"{entry.key} = {value} (revision {entry.revision}, {show.when(entry.updated_at)}, {entry.writer})"


# --- find ----------------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Search entries across scopes.")
@at_place
@click.option("--dag", help="Only in this dag; a name, or a pattern with * and ? (case counts).")
@click.option("--run", help="Only in this run, likewise.")
@click.option("--task", help="Only in this task, likewise.")
@click.option("--key", help="Only this key, likewise.")
@click.option("--where", metavar="EXPR", help="Only values for which this holds: a path, or a path compared with JSON.")
@click.option("--older-than", metavar="SPAN", callback=duration, help="Only what has not changed for so long.")
@click.option("--newer-than", metavar="SPAN", callback=duration, help="Only what was last changed since.")
@click.option("--min-bytes", type=click.IntRange(min=0), help="Only values of at least so many bytes of JSON.")
@click.option("--max-bytes", type=click.IntRange(min=0), help="Only values of at most so many bytes of JSON.")
@click.option("--expiring-within", metavar="SPAN", callback=duration, help="Only what expires in this span.")
@click.option("--assets", is_flag=True, help="Search assets instead of tasks.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many.")
@reveal
@as_json
def find(place: Place, as_json: bool, reveal: bool, **criteria: Any) -> None:
    """Search entries across scopes; those for which everything asked holds are listed.

    EXPR is a path into the value, $.rows or $.items[0].id or $["a b"], which must be there, or such a path compared
    with JSON by == != < <= > >=. Numbers compare with numbers and text with text.

    \b
    outlast state find --dag nightly --key progress
    outlast state find --where '$.done < 100' --older-than 2h
    outlast state find --key remote_job_id --where '$ == "job-17"'
    outlast state find --expiring-within 1d --json
    outlast state find --assets --min-bytes 10000
    """
    with opened(place.url, create=False) as store:
        with as_mistake():
            found = store.find(**criteria)
        if criteria.get("where"):  # or comparisons would tell bit by bit what is masked
            found = [match for match in found if not show.is_secret(store.config, match.entry.key, reveal)]
        hidden = [show.hides(store, match.entry.key, match.entry.value, reveal) for match in found]
    pairs = list(zip(found, hidden, strict=True))
    if as_json:
        show.document([_match_document(*pair) for pair in pairs])
    elif not found:
        show.note("nothing found")
    else:
        columns = [Column("SCOPE"), Column("KEY"), Column("VALUE", narrow="cut"), Column("BYTES", True)]
        show.table(
            [*columns, Column("CHANGED", narrow="keep"), Column("EXPIRES", narrow="keep")],
            [_match_row(*pair) for pair in pairs],
        )


def _match_row(match: Match, hidden: bool) -> list[str]:
    key, value, size, _, changed, expires, _ = _entry_row(match.entry, hidden)
    return [str(match.scope), key, value, size, changed, expires]


def _match_document(match: Match, hidden: bool) -> dict[str, Any]:
    return {"scope": show.scope_document(match.scope), **show.entry_document(match.entry, hidden)}
