"""State in outlast's own API: entries, compare-and-set, history, restore, commits across scopes, find."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from .. import codec
from ..errors import Conflict, InvalidValue, NotFound
from ..requests import (
    Check,
    Commit,
    Found,
    History,
    Increment,
    Operation,
    Part,
    Put,
    PutDefault,
    Read,
    Receipt,
    Remove,
    RemoveAll,
    Row,
    Versions,
)
from ..values import (
    AssetScope,
    Scope,
    TaskScope,
    asset_scope,
    check_key,
    check_prefix,
    item_scope,
    moment,
    task_scope,
)
from . import entries
from .bodies import canonical, expiry, in_thread, read, shown, size, stored
from .entries import (
    LIST_PRECONDITION,
    PRECONDITIONS,
    EntryShape,
    asset_of,
    entry_shape,
    etag,
    hides,
    known,
    task_of,
    writer_shape,
)
from .operations import Call, Operations, Parameter, answer, nothing
from .outlast_shapes import (
    CheckOperation,
    ClearOperation,
    CommitBody,
    CommitPart,
    CommitShape,
    DeleteOperation,
    EntriesPage,
    ErrorShape,
    HistoryShape,
    IncrementOperation,
    PartShape,
    PreconditionShape,
    PutBody,
    RestoreBody,
    ScopeShape,
    SetDefaultOperation,
    SetOperation,
    TaskPlace,
    VersionShape,
)

__all__ = ["LIMIT", "OPERATIONS", "REFUSALS", "REVEAL", "WHICH", "scope_shape"]

OPERATIONS = Operations("/api/outlast/v1", "outlast")

LIMIT = Parameter("limit", entries.PageSize, "Entries of a page, 1 to 1000.", 100)
REVEAL = Parameter("reveal", bool, "Show values of secret keys; for admins, and programs that act on them.", False)
WHICH = (
    entries.MAP_INDEX,
    Parameter(
        "item", entries.Item, "Key of the item of a mapped task whose state follows its items, not its index.", None
    ),
)
REFUSALS = {401: ErrorShape, 404: ErrorShape, 422: ErrorShape, 503: ErrorShape}
_WRITES = {**REFUSALS, 409: ErrorShape, 412: PreconditionShape, 413: ErrorShape}

_PAGING = (
    Parameter("prefix", str, "Only keys that begin with this.", ""),
    Parameter("after", str, "Begin after this key: `after` of the page before.", None),
    LIMIT,
    REVEAL,
)
_TASK = "/runs/{dag_id}/{run_id}/tasks/{task_id}"
_ASSET = "/assets/{asset_id}"


async def _scope_of(call: Call) -> Scope:
    return await asset_of(call) if "asset_id" in call.places else task_of(call)


def _expires(call: Call, scope: Scope, asked: str | None) -> int | None:
    """Return when an entry written now expires; one of an asset never does."""
    if isinstance(scope, TaskScope):
        return expiry(asked, call)
    if asked not in (None, "default"):
        raise InvalidValue("an asset's entries do not expire; leave expires_at out")
    return None


# --- Entries -------------------------------------------------------------------------------------------------


async def list_entries(call: Call) -> Response:
    """List the entries of a scope, by key. The `ETag` is the scope's: it changes with every write."""
    scope, limit = await _scope_of(call), call.query["limit"]
    prefix, after = check_prefix(call.query["prefix"]), call.query["after"]
    found: Found = await call.ask(Read(scope, None, prefix, after=after, limit=limit))
    known(found, scope)
    return await in_thread(sum(map(size, found.rows)), _entries_page, call, found, limit)


def _entries_page(call: Call, found: Found, limit: int) -> Response:
    shapes = [entry_shape(call, row, found.scope_id) for row in found.rows]
    following = None
    if found.more or len(found.rows) == limit:
        following = found.rows[-1].name if found.rows else call.query["after"]
    return answer(EntriesPage(shapes, found.revision, following), etag=etag(found.scope_id, found.revision))


async def get_entry(call: Call) -> Response:
    """Return one entry, with its revision, times and writer. Its `ETag` is what `If-Match` takes."""
    key = call.places["key"]
    found, row = await entries.require(call, await _scope_of(call), key, f"there is no entry {key!r}")
    return answer(entry_shape(call, row, found.scope_id), etag=etag(found.scope_id, row.revision))


async def put_entry(call: Call) -> Response:
    """Write an entry; with `If-Match` only over the one meant, with `If-None-Match: *` only where there is none.

    Otherwise it is 412, and the body has the entry as it is now.
    """
    scope, key = await _scope_of(call), check_key(call.places["key"])
    body = await read(call, PutBody)
    text = await stored(body.value, call.config)
    row, tag = await entries.put(call, scope, key, text, _expires(call, scope, body.expires_at))
    return answer(entry_shape(call, row, int(tag.partition(".")[0])), etag=tag)


async def delete_entry(call: Call) -> Response:
    """Delete an entry; one that is absent is no error. Its history stays, so that it can be restored."""
    await entries.remove(call, await _scope_of(call), call.places["key"])
    return nothing()


async def clear_entries(call: Call) -> Response:
    """Delete every entry of a scope, and of no other; with `If-Match` only if its list is still the one meant.

    History stays.
    """
    await entries.clear(call, await _scope_of(call))
    return nothing()


async def get_history(call: Call) -> Response:
    """Return the kept versions of a key, newest first: values and deletions, when and by whom."""
    key, scope = check_key(call.places["key"]), await _scope_of(call)
    known(await call.ask(Read(scope, ())), scope)
    reply: Versions = await call.ask(History(scope, key))
    hidden = hides(call, key)
    return answer(HistoryShape(key, [_version(row, hidden) for row in reply.rows]))


def _version(row: Row, hidden: bool) -> VersionShape:
    masked = hidden and row.text is not None
    value = None if masked else shown(row)
    return VersionShape(value, masked, row.text is None, row.revision, moment(row.updated_at), writer_shape(row.writer))


async def restore_entry(call: Call) -> Response:
    """Write an earlier version of a key again, as a new write; 404 when it is not kept (any more), or is a deletion."""
    key, scope = check_key(call.places["key"]), await _scope_of(call)
    body = await read(call, RestoreBody)
    reply: Versions = await call.ask(History(scope, key), reveal=True)
    row = next((row for row in reply.rows if row.revision == body.revision), None)
    if row is None:
        raise NotFound(f"{key!r} has no kept version at revision {body.revision}; its history lists those there are")
    if row.text is None:
        raise NotFound(f"revision {body.revision} of {key!r} is a deletion; to delete it again use DELETE")
    written, tag = await entries.put(call, scope, key, row.text, _expires(call, scope, body.expires_at))
    return answer(entry_shape(call, written, int(tag.partition(".")[0])), etag=tag)


def _declare(place: str, tag: str, which: tuple[Parameter, ...], kind: str) -> None:
    """Declare the routes of one kind of scope."""

    def add(method: str, path: str, run: Any, answers: dict[int, Any], *more: Parameter, **body: Any) -> None:
        name, parameters = f"{run.__name__}_of_{kind}", (*which, *more)
        declared = OPERATIONS.declare(
            method, place + path, tag=tag, parameters=parameters, answers=answers, name=name, **body
        )
        declared(run)

    put = {"body": PutBody, "example": {"value": {"rows": 1200, "page": 41}}}
    back = {"body": RestoreBody, "example": {"revision": 7}}
    writes = {200: EntryShape, **_WRITES}
    add("GET", "/state", list_entries, {200: EntriesPage, **REFUSALS}, *_PAGING)
    cleared = {204: None, **REFUSALS, 409: ErrorShape, 412: PreconditionShape}
    add("DELETE", "/state", clear_entries, cleared, LIST_PRECONDITION)
    add("GET", "/state/{key:path}", get_entry, {200: EntryShape, **REFUSALS}, REVEAL)
    add("PUT", "/state/{key:path}", put_entry, writes, *PRECONDITIONS, **put)
    add("DELETE", "/state/{key:path}", delete_entry, {204: None, **_WRITES}, *PRECONDITIONS)
    add("GET", "/history/{key:path}", get_history, {200: HistoryShape, **REFUSALS}, REVEAL)
    add("POST", "/restore/{key:path}", restore_entry, writes, *PRECONDITIONS, **back)


_declare(_TASK, "Task state", WHICH, "task")
_declare(_ASSET, "Asset state", (), "asset")


# --- Commits -------------------------------------------------------------------------------------------------

_EXAMPLE = {
    "parts": [
        {
            "scope": {"kind": "task", "dag_id": "nightly", "run_id": "2026-11-29", "task_id": "ingest"},
            "operations": [{"op": "check", "key": "page", "revision": 7}, {"op": "set", "key": "page", "value": 42}],
        },
        {
            "scope": {"kind": "asset", "name": "orders"},
            "operations": [{"op": "set", "key": "watermark", "value": "2026-11-29"}],
        },
    ],
    "commit_id": "7f9c2ba4e88f827d",
}


@OPERATIONS.declare(
    "POST",
    "/commit",
    tag="Across scopes",
    body=CommitBody,
    example=_EXAMPLE,
    answers={200: CommitShape, **REFUSALS, 409: ErrorShape, 413: ErrorShape},
)
async def commit(call: Call) -> Response:
    """Change several keys, of one scope or of several, all or nothing; no scope is made by it.

    When a check fails it is 409, and `current` is the entry that was in the way, as it is now.
    """
    body = await read(call, CommitBody)
    parts = await asyncio.to_thread(lambda: tuple(_part(call, part) for part in body.parts))
    request = Commit(parts, None, call.writer, call.now(), create=False)
    try:
        receipt: Receipt = await call.ask(request, call_id=body.commit_id)
    except Conflict as conflict:
        row: Any = conflict.current
        current: Any = None if row is None else entry_shape(call, row, await entries.scope_id_of(call, parts, row))
        raise Conflict(conflict.message, current) from None
    return answer(CommitShape([await _part_shape(call, part.scope, *done) for part, *done in _done(parts, receipt)]))


def _done(parts: tuple[Part, ...], receipt: Receipt) -> Any:
    return zip(parts, receipt.revisions, receipt.rows, strict=True)


async def _part_shape(call: Call, scope: Scope, revision: int, rows: tuple[Row | None, ...]) -> PartShape:
    found: Found = await call.ask(Read(scope, ()))
    shapes = [None if row is None or row.text is None else entry_shape(call, row, found.scope_id) for row in rows]
    return PartShape(scope_shape(scope), revision, shapes)


def _part(call: Call, part: CommitPart) -> Part:
    place = part.scope
    scope: Scope
    if isinstance(place, TaskPlace):
        scope = item_scope(task_scope(place.dag_id, place.run_id, place.task_id, place.map_index), place.item)
    else:
        scope = asset_scope(place.name, place.uri)
    return Part(scope, tuple(_operation(call, scope, operation) for operation in part.operations))


def _operation(call: Call, scope: Scope, asked: Any) -> Operation:
    match asked:
        case SetOperation():
            text = canonical(asked.value, call.config)
            return Put(check_key(asked.key), text, _expires(call, scope, asked.expires_at), asked.keep_expiry)
        case SetDefaultOperation():
            text = canonical(asked.value, call.config)
            return PutDefault(check_key(asked.key), text, _expires(call, scope, asked.expires_at))
        case IncrementOperation():
            return Increment(check_key(asked.key), _whole(asked.by), _expires(call, scope, asked.expires_at))
        case DeleteOperation():
            return Remove(check_key(asked.key))
        case ClearOperation():
            return RemoveAll()
        case CheckOperation():
            return Check(check_key(asked.key), asked.revision)
    raise AssertionError(asked)


def _whole(number: int) -> int:
    codec.dump(number)  # not more digits than are stored
    return number


# --- Scopes --------------------------------------------------------------------------------------------------


def scope_shape(scope: Scope) -> ScopeShape:
    """Return a scope as the API shows it."""
    if isinstance(scope, AssetScope):
        return ScopeShape("asset", str(scope), name=scope.name, uri=scope.uri)
    return ScopeShape("task", str(scope), scope.dag_id, scope.run_id, scope.task_id, scope.map_index, scope.item)
