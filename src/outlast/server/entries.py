"""Entries of one scope as both public doors read and write them: pages, one entry, preconditions, writes.

No write here makes a scope: what does not exist yet is 404 (contract 5.2). Every write is a person's, and so audited.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from ..errors import Conflict, InvalidValue, NotFound
from ..requests import (
    Check,
    CheckPrefix,
    Commit,
    Count,
    Counted,
    Found,
    ListScopes,
    Operation,
    Part,
    Put,
    Read,
    Receipt,
    Remove,
    RemoveAll,
    Row,
    ScopePage,
)
from ..values import AssetScope, Scope, ScopeInfo, TaskScope, Writer, check_key, item_scope, moment, task_scope
from .bodies import shown, size
from .masking import is_secret, may_reveal
from .operations import Call, Parameter, Precondition

__all__ = [
    "LIST_PRECONDITION",
    "MAP_INDEX",
    "PRECONDITIONS",
    "EntryShape",
    "Index",
    "Item",
    "Page",
    "PageSize",
    "Seconds",
    "Whole",
    "WriterShape",
    "asset_info",
    "asset_of",
    "change",
    "clear",
    "entry_shape",
    "etag",
    "find_page",
    "hides",
    "known",
    "put",
    "read_entry",
    "remove",
    "require",
    "scope_id_of",
    "task_of",
    "writer_shape",
]

Index = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Item = Annotated[str, msgspec.Meta(min_length=1, max_length=512, pattern=r"^[^\u0000-\u001f\u007f]+$")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e10)]

MAP_INDEX = Parameter(
    "map_index",
    Index,
    "Position of the item of a mapped task, whatever item is there now; -1: not mapped.",
    -1,
)
PRECONDITIONS = (
    Parameter("If-Match", str, "Write only over the entry with this ETag; `*`: only if there is one.", place="header"),
    Parameter("If-None-Match", Literal["*"], "`*`: write only if there is no entry.", place="header"),
)
#: What clearing a list takes.
LIST_PRECONDITION = Parameter(
    "If-Match", str, "Clear only the list with this ETag; `*`: any, if the scope exists.", place="header"
)
#: Tries of a change that others keep coming before.
_ROUNDS = 20


class WriterShape(msgspec.Struct):
    """Who wrote: a task's attempt, a trigger, a person, or a program using the library.

    `scope` is the address of the task that wrote, null where it is the task the entry belongs to.
    """

    kind: str
    attempt: int | None
    name: str | None
    scope: str | None


class EntryShape(msgspec.Struct):
    """One entry. `revision` is its scope's at its last write, and `etag` what `If-Match` takes, in quotes or without.

    Of a masked entry value and `bytes` (of its JSON) are null, and `masked` is true.
    """

    key: str
    value: Any
    masked: bool
    bytes: int | None
    revision: int
    etag: str | None
    updated_at: datetime
    expires_at: datetime | None
    writer: WriterShape


class Page(msgspec.Struct):
    """A page of a scope's live rows, and how many there are in all."""

    scope_id: int
    revision: int
    rows: tuple[Row, ...]
    total: int


# --- Which scope is meant ------------------------------------------------------------------------------------


def task_of(call: Call) -> TaskScope:
    """Return the task scope a path and its query name, checked."""
    places = call.places
    run_id = places["dag_run_id"] if "dag_run_id" in places else places["run_id"]
    scope = task_scope(places["dag_id"], run_id, places["task_id"], call.query.get("map_index", -1))
    return item_scope(scope, call.query.get("item"))


async def asset_of(call: Call) -> AssetScope:
    """Return the asset whose id is in the path; NotFound if there is none."""
    scope = (await asset_info(call)).scope
    assert isinstance(scope, AssetScope)
    return scope


async def asset_info(call: Call, absent: str = "Asset with id {} not found") -> ScopeInfo:
    """Return what is known of the asset whose id is in the path, its entries not counted; NotFound if there is none."""
    text = call.places["asset_id"]
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidValue(f"the asset id is {text[:40]!r}; it is a whole number, which the list of assets tells")
    asset_id = int(text)
    page: ScopePage = await call.ask(ListScopes(assets=True, after=asset_id - 1, limit=1, counts=False))
    if not page.scopes or page.scopes[0].id != asset_id:
        raise NotFound(absent.format(asset_id))
    return page.scopes[0]


def known(found: Found, scope: Scope) -> None:
    """Raise NotFound if what was read is of a scope that does not exist."""
    if not found.scope_id:
        raise _unknown(scope)


def _unknown(scope: Scope) -> NotFound:
    if isinstance(scope, AssetScope):
        return NotFound(f"There is no {scope}")
    return NotFound(
        f"Task instance not found for dag_id={scope.dag_id!r}, run_id={scope.run_id!r}, "
        f"task_id={scope.task_id!r}, map_index={scope.map_index!r}"
    )


# --- Reading -------------------------------------------------------------------------------------------------


async def read_entry(call: Call, scope: Scope, name: str) -> tuple[Found, Row | None]:
    """Return what there is under a key, with the scope's numbers; None where there is nothing."""
    found: Found = await call.ask(Read(scope, (check_key(name),)))
    return found, found.rows[0] if found.rows else None


async def require(call: Call, scope: Scope, name: str, absent: str) -> tuple[Found, Row]:
    """Return the entry under a key, or raise NotFound with this text."""
    found, row = await read_entry(call, scope, name)
    if row is None:
        raise NotFound(absent)
    return found, row


async def find_page(call: Call, scope: Scope, limit: int, offset: int) -> Page:
    """Return a page of a scope by offset, keys in code-point order; NotFound if there is no such scope."""
    found: Found = await call.ask(Read(scope, None, limit=limit, offset=offset))
    known(found, scope)
    rows, more = found.rows, found.more
    while more and rows:  # a page that is asked for by offset has to be whole
        rest: Found = await call.ask(Read(scope, None, after=rows[-1].name, limit=limit - len(rows)))
        rows, more = rows + rest.rows, rest.more
    whole = not offset and len(rows) < limit
    total = len(rows) if whole else (await _count(call, scope)).keys
    return Page(found.scope_id, found.revision, rows, total)


async def _count(call: Call, scope: Scope) -> Counted:
    counted: Counted = await call.ask(Count(scope))
    return counted


def hides(call: Call, name: str) -> bool:
    """Say whether a key's value is masked for who asks: an admin or a program may ask for it."""
    if call.query.get("reveal") and may_reveal(call.who):
        return False
    return is_secret(name, call.config.state_store.secret_keys)


def etag(scope_id: int, revision: int) -> str:
    """Return an entry's or a list's ETag, without its quotes."""
    return f"{scope_id}.{revision}"


async def scope_id_of(call: Call, parts: tuple[Part, ...], row: Row) -> int | None:
    """Return the id of the scope of an entry that was in the way; None if it has changed since."""
    for part in parts:
        if any(getattr(operation, "name", None) == row.name for operation in part.operations):
            found: Found = await call.ask(Read(part.scope, (row.name,)))
            if any((there.revision, there.writer) == (row.revision, row.writer) for there in found.rows):
                return found.scope_id
    return None


def entry_shape(call: Call, row: Row, scope_id: int | None) -> EntryShape:
    """Return a row as the API shows it; without its scope's id it has no ETag."""
    hidden = hides(call, row.name)
    return EntryShape(
        row.name,
        None if hidden else shown(row),
        hidden,
        None if hidden else size(row),
        row.revision,
        None if scope_id is None else etag(scope_id, row.revision),
        moment(row.updated_at),
        None if row.expires_at is None else moment(row.expires_at),
        writer_shape(row.writer),
    )


def writer_shape(writer: Writer) -> WriterShape:
    """Return who wrote as the API shows it."""
    return WriterShape(writer.kind, writer.attempt, writer.name, None if writer.scope is None else str(writer.scope))


# --- Writing -------------------------------------------------------------------------------------------------


async def put(call: Call, scope: Scope, name: str, text: str, expires_at: int | None) -> tuple[Row, str]:
    """Write a value, if the request's preconditions hold; return the row written and its ETag."""
    checks = await _checks(call, scope, check_key(name))
    receipt = await _commit(call, scope, *checks, Put(name, text, expires_at))
    return await _written(call, scope, receipt)


async def change(call: Call, scope: Scope, name: str, text: str, absent: str) -> tuple[Row, str]:
    """Write a value over the one there is, keeping its expiry; NotFound with this text if there is none."""
    for _ in range(_ROUNDS):
        checks = await _checks(call, scope, check_key(name))
        _, row = await require(call, scope, name, absent)
        there = checks or (Check(name, row.revision),)
        try:
            receipt = await _commit(call, scope, *there, Put(name, text, None, keep_expiry=True))
        except Conflict:
            continue
        return await _written(call, scope, receipt)
    raise Conflict(f"{name!r} kept changing during {_ROUNDS} tries to change it; try again later")


async def remove(call: Call, scope: Scope, name: str) -> None:
    """Delete a key, if the request's preconditions hold; nothing happens when it is absent."""
    checks = await _checks(call, scope, check_key(name))
    await _commit(call, scope, *checks, Remove(name))


async def clear(call: Call, *scopes: Scope) -> None:
    """Delete every key of these scopes, all in one commit, if the request's precondition holds: of one list only."""
    checks = await _list_checks(call, *scopes)
    parts = tuple(Part(scope, (*checks, RemoveAll())) for scope in scopes)
    try:
        await call.ask(Commit(parts, None, call.writer, call.now(), create=False))
    except NotFound:
        raise _unknown(scopes[0]) from None
    except Conflict:
        if checks:
            raise _changed(call) from None
        raise


async def _commit(call: Call, scope: Scope, *operations: Operation) -> Receipt:
    try:
        commit = Commit((Part(scope, operations),), None, call.writer, call.now(), create=False)
        receipt: Receipt = await call.ask(commit)
    except NotFound:
        raise _unknown(scope) from None
    except Conflict as conflict:
        if "if-match" in call.request.headers or "if-none-match" in call.request.headers:
            found, row = await read_entry(call, scope, operations[-1].name)  # type: ignore[union-attr]
            raise _failed(call, conflict.message, found, row) from None
        raise
    return receipt


async def _written(call: Call, scope: Scope, receipt: Receipt) -> tuple[Row, str]:
    row = receipt.rows[0][-1]
    assert row is not None
    found: Found = await call.ask(Read(scope, ()))
    return row, etag(found.scope_id, row.revision)


# --- Preconditions -------------------------------------------------------------------------------------------


async def _checks(call: Call, scope: Scope, name: str) -> tuple[Operation, ...]:
    """Return what a commit has to check so that the request's preconditions hold; Precondition if they do not now."""
    wanted, absent = _given(call, "if-match"), _given(call, "if-none-match")
    if wanted is None and absent is None:
        return ()
    found, row = await read_entry(call, scope, name)
    known(found, scope)
    if absent is not None and absent.strip() != "*":
        raise InvalidValue(f"If-None-Match is {absent[:80]!r}; here it is `*`: write only where there is no entry")
    if absent is not None and row is not None:
        raise _failed(call, f"{name!r} was expected absent but is at revision {row.revision}", found, row)
    if wanted is not None and not _holds(wanted, found, row):
        is_now = f"at revision {row.revision}" if row else "absent"
        raise _failed(call, f"{name!r} is not the entry that {wanted[:80]} names; it is {is_now}", found, row)
    return (Check(name, row.revision if row else None),)


def _given(call: Call, name: str) -> str | None:
    """Return a header that may come in several lines, which are one list."""
    lines = call.request.headers.getlist(name)
    return ", ".join(lines) if lines else None


async def _list_checks(call: Call, *scopes: Scope) -> tuple[Operation, ...]:
    """Return what a commit has to check so that a whole list is as it was; Precondition if it is not now."""
    wanted = _given(call, "if-match")
    if wanted is None:
        return ()
    if len(scopes) != 1:
        raise InvalidValue(f"If-Match is the ETag of one list, but {len(scopes)} are to be cleared; clear one by one")
    found: Found = await call.ask(Read(scopes[0], None, texts=False))
    known(found, scopes[0])
    if wanted.strip() == "*":
        return ()
    if not _names(wanted, found.scope_id, found.revision):
        raise _changed(call)
    return (CheckPrefix("", tuple((row.name, row.revision) for row in found.rows)),)


def _changed(call: Call) -> Precondition:
    wanted = (_given(call, "if-match") or "")[:80]
    return Precondition(f"the list is not the one that {wanted} names: it has changed; read it again and decide anew")


def _holds(wanted: str, found: Found, row: Row | None) -> bool:
    return row is not None and _names(wanted, found.scope_id, row.revision)


def _names(wanted: str, scope_id: int, revision: int) -> bool:
    tag = etag(scope_id, revision)
    return any(given.strip() in ("*", tag, f'"{tag}"') for given in wanted.split(","))


def _failed(call: Call, message: str, found: Found, row: Row | None) -> Precondition:
    current = None if row is None else entry_shape(call, row, found.scope_id)
    return Precondition(f"{message}; read it again and decide anew", current)
