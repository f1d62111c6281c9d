"""The commands of `outlast state` that write: set, rm, clear, restore."""

from __future__ import annotations

import shlex
import sys
from datetime import timedelta

import click

from .. import codec
from ..errors import InvalidValue, NotFound
from ..state import AssetState, TaskState
from ..values import AssetScope, Entry, JsonValue, Scope, TaskScope
from . import options, person, show
from .meant import has_instance, meant, run_of
from .opening import is_there, opened, state_of
from .options import Command, Mistake, NobodyToAsk, Place, as_json, at_scope, revision_number, revision_or_absent, words

__all__ = ["clear", "restore", "rm", "set_value"]

_RETENTION = click.option(
    "--retention",
    metavar="SPAN",
    callback=options.retention,
    help="How long to keep it, such as 7d, or never; default: `[state_store] default_retention_days`.",
)


# --- set -----------------------------------------------------------------------------------------------------


@click.command("set", cls=Command, short_help="Write one value.", context_settings={"ignore_unknown_options": True})
@words("[ADDRESS] KEY JSON")
@at_scope
@click.option("--string", is_flag=True, help="Take JSON for a text and store it as it is.")
@_RETENTION
@click.option(
    "--if-revision",
    metavar="REVISION",
    callback=revision_or_absent,
    help="Only if the key is at this revision, or `absent`; else exit 9.",
)
@click.option("--create", is_flag=True, help="Also where the run is there and has no such task instance.")
@as_json
def set_value(
    place: Place,
    given: tuple[str, ...],
    string: bool,
    retention: timedelta | None,
    if_revision: int | str | None,
    create: bool,
    as_json: bool,
) -> None:
    """Write one value. It is JSON, so a text needs double quotes, or --string; - reads it from standard input.

    Where no run of that name is known, as with a script, the address is made by its first write. Where one is, it has
    to have that task instance, or something stored there, unless --create is given.

    \b
    outlast state set nightly/2026-11-29/ingest page 41
    outlast state set nightly/2026-11-29/ingest phase '"load"'
    outlast state set nightly/2026-11-29/ingest phase load --string
    outlast state set nightly/2026-11-29/ingest page 42 --if-revision 7 --retention 7d
    outlast state set --asset orders watermark - < watermark.json
    """
    scope, (key, text) = place.scope_and(given, "KEY", "JSON")
    _refuse_retention(scope, retention)
    value = _value(text, string)
    with opened(place.url, create=True) as store:
        state = state_of(store, scope)
        is_new = isinstance(scope, TaskScope) and not is_there(state)
        if not create and isinstance(scope, TaskScope) and not state.keys():
            _refuse_unknown(state)
        entry = person.put(state, key, value, retention=retention, revision=_expected(if_revision))
        if is_new:
            show.note(f"outlast: created {scope}")
        _show_written(state, entry, as_json)


def _refuse_unknown(state: TaskState | AssetState) -> None:
    """Refuse a task instance that its run, which is there, does not have."""
    scope = state.scope
    detail = run_of(state.backend, scope) if isinstance(scope, TaskScope) else None
    if detail is None or not isinstance(scope, TaskScope) or has_instance(detail, scope):
        return
    told = meant(scope, detail) or NotFound(f"there is no {scope}")
    stop = "" if told.message.endswith("?") else "."
    raise NotFound(f"{told.message}{stop} To store it there all the same add --create")


def _expected(given: int | str | None) -> int | None:
    """Return the revision to insist on, None for an absent key, ANY where nothing was asked."""
    if given is None:
        return person.ANY
    return None if given == "absent" else int(given)


def _value(text: str, string: bool) -> JsonValue:
    given: str | bytes = sys.stdin.buffer.read() if text == "-" else text
    if string:
        return _text(given)
    try:
        value = codec.parse(given, allow_none=True)
    except InvalidValue as error:
        raise InvalidValue(f"{error.message}{_how_to_quote(given)}") from None
    if value is None:
        raise InvalidValue("null cannot be stored; to remove the key use `outlast state rm`")
    return value


def _text(given: str | bytes) -> str:
    try:
        return given if isinstance(given, str) else given.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"what was read is not UTF-8 text: {error}") from None


def _how_to_quote(given: str | bytes) -> str:
    """Say how to store a text, where that is what was probably meant."""
    if not isinstance(given, str) or len(given) > 60 or not given.isprintable() or given[:1] in ("{", "[", '"'):
        return ""
    quoted = shlex.quote(codec.dump(given).decode())
    return f". To store this text write {quoted}, or add --string"


def _refuse_retention(scope: Scope, retention: timedelta | None) -> None:
    if isinstance(scope, AssetScope) and retention is not None:
        raise click.UsageError("an asset's entries do not expire; --retention is for tasks")
    if retention == timedelta(0):
        raise Mistake("a retention of nothing would remove the key at once; use `outlast state rm`")


def _show_written(state: TaskState | AssetState, entry: Entry, as_json: bool) -> None:
    hidden = show.hides(state, entry.key, entry.value, reveal=False)
    if as_json:
        show.document(show.entry_document(entry, hidden))
    else:
        value = show.cut(show.value_text(entry.value, hidden))
        expires = f"expires {show.when(entry.expires_at)}" if entry.expires_at else "never expires"
        show.line(f"{entry.key} = {value} (revision {entry.revision}, {expires})")


# --- restore -------------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Write an earlier version again.")
@words("[ADDRESS] KEY REVISION")
@at_scope
@_RETENTION
@as_json
def restore(place: Place, given: tuple[str, ...], retention: timedelta | None, as_json: bool) -> None:
    """Write a version that `outlast state history` lists again, as a new write; so it can be undone too.

    \b
    outlast state restore nightly/2026-11-29/ingest page 7
    """
    scope, (key, text) = place.scope_and(given, "KEY", "REVISION")
    _refuse_retention(scope, retention)
    revision = revision_number(text)
    with opened(place.url, create=False, reveal=True) as store:
        state = state_of(store, scope)
        written = person.restore(state, key, revision, retention)
        if getattr(store.backend, "reveals", False):  # what was written anew is what was there; it is shown masked
            store.backend.reveals = False  # type: ignore[attr-defined]
            written = state.entry(key) or written
        _show_written(state, written, as_json)


# --- rm and clear --------------------------------------------------------------------------------------------


@click.command(cls=Command, short_help="Remove keys.")
@words("[ADDRESS] KEY…")
@at_scope
@as_json
def rm(place: Place, given: tuple[str, ...], as_json: bool) -> None:
    """Remove keys, all in one commit. A key that is not there is no error. `restore` brings one back.

    \b
    outlast state rm nightly/2026-11-29/ingest page
    outlast state rm --asset orders watermark draft
    """
    scope, keys = place.scope_and(given, "KEY", more=True)
    with opened(place.url, create=False) as store:
        state = state_of(store, scope)
        known = is_there(state)  # a delete must not make a scope of a mistyped address
        removed = person.remove(state, tuple(keys)) if known else dict.fromkeys(keys, False)
    if as_json:
        show.document({"removed": [key for key, was in removed.items() if was], "absent": _absent(removed)})
        return
    for key, was_there in removed.items():
        show.line(f"removed {key}" if was_there else f"{key} is not there")


def _absent(removed: dict[str, bool]) -> list[str]:
    return [key for key, was_there in removed.items() if not was_there]


@click.command(cls=Command, short_help="Remove every key of a scope.")
@words("[ADDRESS]")
@at_scope
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def clear(place: Place, given: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove every key of one scope, and of no other. Asks first, on a terminal. `restore` brings a key back.

    \b
    outlast state clear nightly/2026-11-29/ingest
    outlast state clear --asset orders --yes
    """
    scope, _ = place.scope_and(given)
    with opened(place.url, create=False) as store:
        state = state_of(store, scope)
        keys = state.keys()
        if keys and not yes:
            _ask(state, keys)
        cleared = person.clear(state) if keys else 0
    if as_json:
        show.document({"cleared": cleared})
    else:
        show.line(f"cleared {show.count(cleared, 'key')} of {scope}")


def _ask(state: TaskState | AssetState, keys: list[str]) -> None:
    """Ask whether to go on, saying what that means; anything but a yes ends the command."""
    question = f"{state.scope} has {show.count(len(keys), 'key')}. {_consequence(state, keys)}"
    if not sys.stdin.isatty():
        raise NobodyToAsk(f"{question} Nobody is there to be asked: add --yes.")
    show.note(question)
    if not click.confirm("Remove them?", err=True):
        show.note("nothing was removed")
        raise click.exceptions.Exit(1)


def _consequence(state: TaskState | AssetState, keys: list[str]) -> str:
    if isinstance(state, AssetState):
        return "Without them the next run that uses this asset begins where it would have without any earlier run."
    jobs = [key for key in keys if key == "remote_job_id"]
    if jobs:
        return "Without them the next attempt submits its external job anew, even if the old one is still running."
    return "Without them the next attempt begins from the start, as if none had run before."
