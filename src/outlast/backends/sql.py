"""State requests as portable SQL over an `execute(sql, parameters) -> rows`, inside a transaction the caller holds.

Every statement stands next to the function that runs it. The order of locks is: scopes by address
digest (missing ones inserted in that order), then entries by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

import msgspec

from .. import rules
from ..errors import InvalidKey, NotFound
from ..requests import (
    LIBRARY,
    Changed,
    Changes,
    Commit,
    Fence,
    Find,
    FindPage,
    Found,
    FoundRow,
    History,
    ListScopes,
    Open,
    Opened,
    Part,
    Read,
    Receipt,
    Row,
    ScopePage,
    Versions,
)
from ..values import AssetScope, Cursor, Scope, ScopeInfo, TaskScope, Writer, address, moment
from .audit import Audit
from .execute import Execute

__all__ = ["HISTORY_BYTES", "SCOPE_GRACE", "ScopeRow", "StateSQL", "read_found"]

#: Bytes of past values kept for one key, at most.
HISTORY_BYTES = 1024 * 1024
#: Microseconds an empty scope without a run is kept, so that its fence still holds for a slow script.
SCOPE_GRACE = 30 * 24 * 3600 * 1_000_000

_HOUR = 3600 * 1_000_000
_MAX_NAME = "\U0010ffff"

_COLUMNS = "name, value, revision, updated_at, expires_at, writer, version, kept"
_ENTRY_COLUMNS = "name, value, entry.revision, updated_at, expires_at, writer, version, kept"
_SCOPE_COLUMNS = "scope.id, dag_id, run_id, task_id, map_index, item, asset_name, asset_uri"
_ALIVE = "value is not null and (expires_at is null or expires_at > ?)"

_read_writer = lru_cache(maxsize=1024)(msgspec.json.Decoder(Writer).decode)


class ScopeRow(msgspec.Struct, gc=False):
    """The numbers of a scope as loaded and locked."""

    id: int
    revision: int
    fence: int
    floor: int
    sweep_at: int | None


class StateSQL:
    """Answers state requests through one connection.

    `lock` is what a dialect appends to lock the rows it selects, `skip` the same but passing over locked ones.
    """

    FOUND_COLUMNS = f"{_SCOPE_COLUMNS}, {_ENTRY_COLUMNS}"
    lock = ""
    skip = ""

    def __init__(
        self, execute: Execute, *, history_versions: int, feed_hours: float, secret_keys: Sequence[str] = ()
    ) -> None:
        self.execute, self.audit = execute, Audit(execute, secret_keys)
        self.past_versions = max(history_versions - 1, 0)
        self.feed_span = int(feed_hours * _HOUR)

    # --- opening and fencing ---------------------------------------------------------------------------

    def open(self, request: Open, now: int) -> Opened:
        """Raise a scope's fence to an attempt's number; one that is already older is stale."""
        scope = self.lock_scope(request.scope, now)
        attempt = scope.fence + 1 if request.attempt is None else request.attempt
        if attempt < scope.fence:
            rules.check_fence(Fence(request.scope, attempt, scope.id), scope.id, scope.fence)
        if attempt > scope.fence:
            self.execute("update scope set fence = ?, changed_at = ? where id = ?", (attempt, now, scope.id))
        return Opened(attempt, scope.id)

    def _fenced(self, fence: Fence | None) -> ScopeRow | None:
        """Refuse a superseded attempt; return the scope of one that is not."""
        if fence is None:
            return None
        rows = self.execute(  # by id, which is never used again, so that a large store's index need not be searched
            f"select id, revision, fence, floor, sweep_at from scope where id = ?{self.lock}", (fence.scope_id,)
        )
        found = ScopeRow(*rows[0]) if rows else None
        rules.check_fence(fence, found.id if found else None, found.fence if found else 0)
        return found

    def _seen(self, scope: Scope, fence: Fence | None) -> ScopeRow | None:
        """Return a scope as an attempt (None: anybody) that is not superseded may see it."""
        fenced = self._fenced(fence)
        return fenced if fence is not None and fence.scope == scope else self.find_scope(scope)

    # --- scopes ------------------------------------------------------------------------------------------

    def find_scope(self, scope: Scope) -> ScopeRow | None:
        if isinstance(scope, AssetScope):
            return self._find_asset(scope)
        rows = self.execute(
            f"select id, revision, fence, floor, sweep_at from scope where digest = ?{self.lock}", (address(scope),)
        )
        return ScopeRow(*rows[0]) if rows else None

    def _find_asset(self, scope: AssetScope) -> ScopeRow | None:
        rows = self.execute(
            "select id, revision, fence, floor, sweep_at, asset_name, asset_uri from scope"
            f" where asset_name = ? or asset_uri = ?{self.lock}",
            (scope.name, scope.uri),
        )
        if len(rows) > 1:
            raise InvalidKey(
                f"asset name {scope.name!r} and URI {scope.uri!r} have been used for two different assets; "
                "address one of them by its name alone"
            )
        return ScopeRow(*rows[0][:5]) if rows else None

    def lock_scope(self, scope: Scope, now: int, create: bool = True) -> ScopeRow:
        found = self.find_scope(scope)
        if found is None and not create:
            raise NotFound(f"there is no {scope}; check the ids, or let a run create it first")
        if found is None:
            self._insert(scope, now)
            found = self.find_scope(scope)
            assert found is not None
        elif isinstance(scope, AssetScope) and scope.name is not None and scope.uri is not None:
            self._name_asset(scope, found.id)
        return found

    def _insert(self, scope: Scope, now: int) -> None:
        task = scope if isinstance(scope, TaskScope) else None
        asset = scope if isinstance(scope, AssetScope) else AssetScope()
        place = (task.dag_id, task.run_id, task.task_id, task.map_index, task.item) if task else (None,) * 5
        self.execute(
            "insert into scope (digest, dag_id, run_id, task_id, map_index, item, asset_name, asset_uri,"
            " changed_at, sweep_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
            (address(scope), *place, asset.name, asset.uri, now, now + SCOPE_GRACE if task else None),
        )

    def _name_asset(self, scope: AssetScope, scope_id: int) -> None:
        """Remember the other name of an asset known so far by one of its two."""
        self.execute(
            "update scope set asset_name = coalesce(asset_name, ?), asset_uri = coalesce(asset_uri, ?)"
            " where id = ? and (asset_name is null or asset_uri is null)",
            (scope.name, scope.uri, scope_id),
        )

    def in_use(self, scope_id: int) -> bool:
        """Say whether a run still knows this scope."""
        return bool(self.execute("select 1 from task where scope_id = ?", (scope_id,)))

    def drop_scope(self, scope_id: int) -> None:
        """Remove a scope with everything in it; its id is never used again."""
        for table in ("history", "entry"):
            self.execute(f"delete from {table} where scope_id = ?", (scope_id,))
        self.execute("delete from scope where id = ?", (scope_id,))

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, request: Read, now: int) -> Found:
        """Return the live rows asked for."""
        scope = self._seen(request.scope, request.fence)
        if scope is None:
            return Found(0, 0, ())
        rows = self._rows(scope.id, request, now)
        return Found(scope.id, scope.revision, tuple([row for row in rows if rules.alive(row, now)]))

    def _rows(self, scope_id: int, request: Read, now: int) -> Iterable[Row]:
        if request.names is not None:
            return self._load(scope_id, request.names, None)
        value = "value" if request.texts else "case when value is not null then 'null' end"
        return self._load_prefix(scope_id, request.prefix, request.after, request.limit, value, now)

    def _load(self, scope_id: int, names: Iterable[str], prefix: str | None) -> list[Row]:
        """Return stored rows by name and by prefix, tombstones and expired ones included."""
        wanted = sorted(set(names))
        if len(wanted) == 1 and prefix is None:
            return self._load_one(scope_id, wanted[0])
        rows: dict[str, Row] = {}
        for start in range(0, len(wanted), 512):
            part = _padded(wanted[start : start + 512])
            marks = ", ".join("?" * len(part))
            found = self.execute(
                f"select {_COLUMNS} from entry where scope_id = ? and name in ({marks}){self.lock}", (scope_id, *part)
            )
            rows.update((row[0], _row(row)) for row in found)
        if prefix is not None:
            rows.update((row.name, row) for row in self._load_prefix(scope_id, prefix))
        return list(rows.values()) if len(rows) < 2 else [rows[name] for name in sorted(rows)]

    def _load_one(self, scope_id: int, name: str) -> list[Row]:
        rows = self.execute(
            f"select {_COLUMNS} from entry where scope_id = ? and name = ?{self.lock}", (scope_id, name)
        )
        return [_row(row) for row in rows]

    def _load_prefix(
        self,
        scope_id: int,
        prefix: str,
        after: str | None = None,
        limit: int | None = None,
        value: str = "value",
        alive_at: int | None = None,
    ) -> list[Row]:
        low, high = _range(prefix)
        where, values = "scope_id = ? and name >= ?", [scope_id, low]
        if high is not None:
            where, values = where + " and name < ?", [*values, high]
        if after is not None:
            where, values = where + " and name > ?", [*values, after]
        if alive_at is not None:
            where, values = where + f" and {_ALIVE}", [*values, alive_at]
        tail = "" if limit is None else " limit ?"
        columns = _COLUMNS.replace("value", value, 1)
        found = self.execute(
            f"select {columns} from entry where {where} order by name{tail}",
            values if limit is None else [*values, limit],
        )
        return [_row(row) for row in found]

    # --- committing --------------------------------------------------------------------------------------

    def commit(self, request: Commit, now: int) -> Receipt:
        """Carry out one commit: lock, fence, load, decide, save; raises and changes nothing if any part fails."""
        scopes = self._lock_all(request, now)
        decided = [self._decide(part, scopes[part.scope], request, now) for part in request.parts]
        for part, decision in zip(request.parts, decided, strict=True):
            self._save(scopes[part.scope], decision, now)
            if request.writer.kind == "person":
                self._audit(part.scope, decision, request.writer, now)
        return Receipt(tuple([d.revision for d in decided]), tuple([d.results for d in decided]))

    def _lock_all(self, request: Commit, now: int) -> dict[Scope, ScopeRow]:
        fence = request.fence
        if fence is not None and len(request.parts) == 1 and request.parts[0].scope == fence.scope:
            found = self._fenced(fence)
            return {fence.scope: found} if found else {}
        scopes: dict[Scope, ScopeRow] = {}
        wanted = {part.scope for part in request.parts} | ({fence.scope} if fence else set())
        for scope in sorted(wanted, key=address):
            if fence is not None and scope == fence.scope:
                self._fenced(fence)
            scopes[scope] = self.lock_scope(scope, now, request.create)
        return scopes

    def _decide(self, part: Part, scope: ScopeRow, request: Commit, now: int) -> rules.Decision:
        names, prefix = rules.touches(part.operations)
        current = {row.name: row for row in self._load(scope.id, names, prefix)}
        writer = rules.local(request.writer, part.scope)
        return rules.decide(part.operations, current, scope.revision, now, writer)

    def _save(self, scope: ScopeRow, decision: rules.Decision, now: int) -> None:
        for name in decision.forget:
            self.execute("delete from history where scope_id = ? and name = ?", (scope.id, name))
        if not decision.rows:
            return
        self._remember(scope.id, decision.past)
        rows = [decision.rows[name] for name in sorted(decision.rows)]
        self._put(scope.id, [self._trim(scope.id, row) if row.kept > HISTORY_BYTES else row for row in rows])
        self._touch(scope, decision, now)

    def _audit(self, scope: Scope, decision: rules.Decision, writer: Writer, now: int) -> None:
        before = {row.name: row.text for row in decision.past}
        dag_id = scope.dag_id if isinstance(scope, TaskScope) else None
        for name, row in decision.rows.items():
            action = "delete" if row.text is None else "set"
            who, old = writer.name or writer.kind, before.get(name)
            self.audit.record(now, who, action, str(scope), dag_id=dag_id, name=name, before=old, after=row.text)

    def _put(self, scope_id: int, rows: Sequence[Row]) -> None:
        self._upsert(
            "entry",
            "scope_id, name",
            "value, revision, updated_at, expires_at, writer, version, kept",
            [
                (
                    scope_id,
                    row.name,
                    row.text,
                    row.revision,
                    row.updated_at,
                    row.expires_at,
                    _writer_text(row.writer),
                    row.version,
                    row.kept if self.past_versions else 0,
                )
                for row in rows
            ],
        )

    def _remember(self, scope_id: int, rows: Sequence[Row]) -> None:
        """Put past rows into their keys' rings; one write a row, never a delete."""
        if not self.past_versions:
            return
        self._upsert(
            "history",
            "scope_id, name, slot",
            "value, revision, updated_at, writer, version",
            [
                (
                    scope_id,
                    row.name,
                    row.version % self.past_versions,
                    row.text,
                    row.revision,
                    row.updated_at,
                    _writer_text(row.writer),
                    row.version,
                )
                for row in rows
                if rules.size_of(row.text) <= HISTORY_BYTES
            ],
        )

    def _upsert(self, table: str, key: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows, up to sixteen in one statement: that takes half the time of one each."""
        if len(rows) == 1:
            self.execute(_upsert_sql(table, key, columns, 1), rows[0])
            return
        start = 0
        for size in (16, 8, 4, 2, 1):
            while len(rows) - start >= size:
                values = list(itertools.chain.from_iterable(rows[start : start + size]))
                self.execute(_upsert_sql(table, key, columns, size), values)
                start += size

    def _trim(self, scope_id: int, row: Row) -> Row:
        """Drop the oldest past values above HISTORY_BYTES; return the row with the exact sum."""
        if not self.past_versions:
            return row
        kept = 0
        for slot, size in self.execute(
            "select slot, coalesce(octet_length(value), 0) from history where scope_id = ? and name = ?"
            " order by revision desc",
            (scope_id, row.name),
        ):
            if kept + size > HISTORY_BYTES:
                self.execute(
                    "delete from history where scope_id = ? and name = ? and slot = ?", (scope_id, row.name, slot)
                )
            else:
                kept += size
        return msgspec.structs.replace(row, kept=kept)

    def _touch(self, scope: ScopeRow, decision: rules.Decision, now: int) -> None:
        earliest = scope.sweep_at
        for row in decision.rows.values():
            due = self._due(row)
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        if earliest != scope.sweep_at:
            scope.sweep_at = earliest
            self.execute("update scope set sweep_at = ? where id = ?", (earliest, scope.id))
        scope.revision = decision.revision
        self.execute(  # without sweep_at, whose index would be written as well
            "update scope set revision = ?, changed_at = ? where id = ?", (scope.revision, now, scope.id)
        )

    def _due(self, row: Row) -> int | None:
        """Return when the sweeper may have something to do for a row."""
        if row.text is not None or self.past_versions:
            return row.expires_at
        return min(row.updated_at + self.feed_span, row.expires_at or row.updated_at + self.feed_span)

    # --- history, changes, lists -------------------------------------------------------------------------

    def history(self, request: History, now: int) -> Versions:
        """Return a key's versions, newest first; none at all once the entry has expired."""
        scope = self._seen(request.scope, request.fence)
        current = self._load(scope.id, (request.name,), None) if scope else []
        if scope is None or not current or rules.expired(current[0], now):
            return Versions(())
        past = self.execute(
            "select name, value, revision, updated_at, null, writer, version, 0 from history"
            " where scope_id = ? and name = ? and revision < ? order by revision desc limit ?",
            (scope.id, request.name, current[0].revision, self.past_versions),
        )
        return Versions((current[0], *(_row(row) for row in past)))

    def changes(self, request: Changes, now: int) -> Changed:
        """Return what changed since a cursor, by revision; everything when the cursor is too old."""
        scope = self._seen(request.scope, request.fence)
        if scope is None:
            return Changed(Cursor(0, 0), request.cursor is not None and request.cursor.scope_id != 0, ())
        here = Cursor(scope.id, scope.revision)
        since = request.cursor
        known = since is not None and since.scope_id in (0, scope.id) and scope.floor <= since.revision <= scope.revision
        if since is None or not known:
            rows = tuple(self._load_prefix(scope.id, "", alive_at=now))
            return Changed(here, True, rows)
        if since == here:
            return Changed(here, False, ())
        found = self.execute(
            f"select {_COLUMNS} from entry where scope_id = ? and revision > ? order by revision, name",
            (scope.id, since.revision),
        )
        return Changed(here, False, tuple(_as_seen(_row(row), now) for row in found))

    def find(self, request: Find, now: int) -> FindPage:
        """Return one page of live rows across scopes."""
        where, values = _place_filter(request)
        scope_id, name = request.after or (0, "")
        found = self.execute(
            f"select {self.FOUND_COLUMNS} from entry join scope on scope.id = scope_id"
            f" where (scope_id, name) > (?, ?) and {_ALIVE}{where} order by scope_id, name limit ?",
            (scope_id, name, now, *values, request.limit),
        )
        rows = tuple(read_found(row) for row in found)
        last = (rows[-1].scope_id, rows[-1].row.name) if len(rows) == request.limit else None
        return FindPage(rows, last)

    def scopes(self, request: ListScopes, now: int) -> ScopePage:
        """Return one page of scopes with their counts."""
        where, values = _place_filter(request)
        found = self.execute(
            f"select {_SCOPE_COLUMNS}, scope.revision, fence, changed_at,"
            f" (select count(*) from entry where scope_id = scope.id and {_ALIVE}),"
            f" (select coalesce(sum(octet_length(value)), 0) from entry where scope_id = scope.id and {_ALIVE})"
            f" from scope where id > ?{where} order by id limit ?",
            (now, now, request.after, *values, request.limit),
        )
        infos = tuple(
            ScopeInfo(_scope(row), revision=row[8], attempt=row[9], entries=row[11], bytes=row[12], updated_at=moment(row[10]))
            for row in found
        )
        return ScopePage(infos, found[-1][0] if len(found) == request.limit else None)


# --- Rows and statements ---------------------------------------------------------------------------------


def read_found(columns: Sequence[Any]) -> FoundRow:
    """Make a row of `StateSQL.FOUND_COLUMNS` a found row."""
    return FoundRow(columns[0], _scope(columns), _row(columns[8:]))


def _row(columns: Sequence[Any]) -> Row:
    name, text, revision, updated_at, expires_at, writer, version, kept = columns
    return Row(
        name, text, revision, updated_at, expires_at, LIBRARY if writer is None else _read_writer(writer), version, kept
    )


@lru_cache(maxsize=1024)
def _writer_text(writer: Writer) -> str | None:
    return None if writer == LIBRARY else msgspec.json.encode(writer).decode()


@cache
def _upsert_sql(table: str, key: str, columns: str, rows: int) -> str:
    names = f"{key}, {columns}"
    marks = "(" + ", ".join("?" for _ in names.split(", ")) + ")"
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", "))
    places = ", ".join([marks] * rows)
    return f"insert into {table} ({names}) values {places} on conflict ({key}) do update set {changes}"


def _scope(columns: Sequence[Any]) -> Scope:
    _, dag_id, run_id, task_id, map_index, item, asset_name, asset_uri = columns[:8]
    return AssetScope(asset_name, asset_uri) if dag_id is None else TaskScope(dag_id, run_id, task_id, map_index, item)


def _as_seen(row: Row, now: int) -> Row:
    """Return a changed row as a watcher sees it: what has expired since is gone."""
    return msgspec.structs.replace(row, text=None) if rules.expired(row, now) else row


def _padded(names: list[str]) -> list[str]:
    """Repeat the last name up to one of a few lengths, so that few statements need preparing."""
    length = next(size for size in (1, 2, 8, 32, 128, 512) if size >= len(names))
    return names + names[-1:] * (length - len(names))


def _range(prefix: str) -> tuple[str, str | None]:
    """Return the half-open range of names that begin with a prefix; None: no upper end."""
    stem = prefix.rstrip(_MAX_NAME)
    if not stem:
        return prefix, None
    following = ord(stem[-1]) + 1
    return prefix, stem[:-1] + chr(0xE000 if following == 0xD800 else following)


def _place_filter(request: Find | ListScopes) -> tuple[str, list[str]]:
    where = " and dag_id is null" if request.assets else " and dag_id is not null"
    values: list[str] = []
    for column in ("dag_id", "run_id", "task_id"):
        wanted = getattr(request, column)
        if wanted is not None:
            where, values = where + f" and {column} = ?", [*values, wanted]
    return where, values
