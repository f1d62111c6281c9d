"""State requests as portable SQL over an `execute(sql, parameters) -> rows`, inside a transaction the caller holds.

Every statement stands next to the function that runs it. The order of locks is: scopes by address
digest (missing ones inserted in that order), then entries by name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import msgspec

from .. import rules
from ..errors import InvalidKey, NotFound
from ..requests import (
    Commit,
    Fence,
    Found,
    Open,
    Opened,
    Part,
    Read,
    Receipt,
    Row,
)
from ..values import AssetScope, Scope, TaskScope, Writer, address
from .audit import Audit
from .execute import Execute
from .ring import Ring
from .rows import ALIVE, COLUMNS, read_row, upsert, writer_text

__all__ = ["SCOPE_GRACE", "ScopeRow", "StateSQL"]

#: Microseconds an empty scope without a run is kept, so that its fence still holds for a slow script.
SCOPE_GRACE = 30 * 24 * 3600 * 1_000_000

_HOUR = 3600 * 1_000_000
_MAX_NAME = "\U0010ffff"


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

    lock = ""
    skip = ""

    def __init__(
        self, execute: Execute, *, history_versions: int, feed_hours: float, secret_keys: Sequence[str] = ()
    ) -> None:
        self.execute, self.audit = execute, Audit(execute, secret_keys)
        self.ring = Ring(execute, history_versions)
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

    def require_attempt(self, fence: Fence) -> None:
        """Raise StaleAttempt unless an attempt is the newest of its scope."""
        self._fenced(fence)

    def seen(self, scope: Scope, fence: Fence | None) -> ScopeRow | None:
        """Return a scope as an attempt (None: anybody) that is not superseded may see it."""
        fenced = self._fenced(fence)
        return fenced if fence is not None and fence.scope == scope else self.find_scope(scope)

    # --- scopes ------------------------------------------------------------------------------------------

    def find_scope(self, scope: Scope) -> ScopeRow | None:
        """Return a scope, locked, or None."""
        if isinstance(scope, AssetScope):
            return self._find_asset(scope)
        placed = self._find_placed(scope) if scope.map_index >= 0 and scope.item is None else None
        if placed is not None:  # also where there is state of that position, from before the task had keys
            return placed
        rows = self.execute(
            f"select id, revision, fence, floor, sweep_at from scope where digest = ?{self.lock}", (address(scope),)
        )
        return ScopeRow(*rows[0]) if rows else None

    def _find_placed(self, scope: TaskScope) -> ScopeRow | None:
        """Return the scope of the item that is at a position now, where state follows the item."""
        rows = self.execute(
            "select id, revision, fence, floor, sweep_at from scope where dag_id = ? and run_id = ? and task_id = ?"
            f" and map_index = ? and item is not null{self.lock}",
            (scope.dag_id, scope.run_id, scope.task_id, scope.map_index),
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
                f"asset name {scope.name!r} and URI {scope.uri!r} have been used as two assets; "
                f"if they are one, make them one: outlast assets merge {shlex.quote(scope.name or '')} "
                f"{shlex.quote(scope.uri or '')}; else address one of them by its name alone"
            )
        if rows:
            _refuse_other_asset(scope, *rows[0][5:])
        return ScopeRow(*rows[0][:5]) if rows else None

    def lock_scope(self, scope: Scope, now: int) -> ScopeRow:
        """Return a scope, made if it does not exist; an asset's other name is remembered."""
        found = self.find_scope(scope)
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
        scope = self.seen(request.scope, request.fence)
        if scope is None:
            return Found(0, 0, ())
        rows = self._rows(scope.id, request, now)
        return Found(scope.id, scope.revision, tuple([row for row in rows if rules.alive(row, now)]))

    def _rows(self, scope_id: int, request: Read, now: int) -> Iterable[Row]:
        if request.names is not None:
            return self.load(scope_id, request.names, None)
        value = "value" if request.texts else "case when value is not null then 'null' end"
        return self._load_prefix(scope_id, request.prefix, request.after, request.limit, value, now)

    def load(self, scope_id: int, names: Iterable[str], prefix: str | None = None) -> list[Row]:
        """Return stored rows by name and by prefix, tombstones and expired ones included."""
        wanted = sorted(set(names))
        if len(wanted) == 1 and prefix is None:
            return self._load_one(scope_id, wanted[0])
        rows: dict[str, Row] = {}
        for start in range(0, len(wanted), 512):
            part = _padded(wanted[start : start + 512])
            marks = ", ".join("?" * len(part))
            found = self.execute(
                f"select {COLUMNS} from entry where scope_id = ? and name in ({marks}){self.lock}", (scope_id, *part)
            )
            rows.update((row[0], read_row(row)) for row in found)
        if prefix is not None:
            rows.update((row.name, row) for row in self._load_prefix(scope_id, prefix))
        return list(rows.values()) if len(rows) < 2 else [rows[name] for name in sorted(rows)]

    def _load_one(self, scope_id: int, name: str) -> list[Row]:
        rows = self.execute(f"select {COLUMNS} from entry where scope_id = ? and name = ?{self.lock}", (scope_id, name))
        return [read_row(row) for row in rows]

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
            where, values = where + f" and {ALIVE}", [*values, alive_at]
        tail = "" if limit is None else " limit ?"
        columns = COLUMNS.replace("value", value, 1)
        found = self.execute(
            f"select {columns} from entry where {where} order by name{tail}",
            values if limit is None else [*values, limit],
        )
        return [read_row(row) for row in found]

    # --- committing --------------------------------------------------------------------------------------

    def commit(self, request: Commit, now: int) -> Receipt:
        """Carry out one commit: lock, fence, load, decide, save; raises and changes nothing if any part fails."""
        scopes = self._lock_all(request)
        decided = [self._decide(part, scopes[part.scope], request, now) for part in request.parts]
        for part, decision in zip(request.parts, decided, strict=True):
            self._save(part.scope, scopes[part.scope], decision, now)
            if request.writer.kind == "person":
                self._audit(part.scope, decision, request.writer, now)
        return Receipt(tuple([d.revision for d in decided]), tuple([d.results for d in decided]))

    def _lock_all(self, request: Commit) -> dict[Scope, ScopeRow]:
        """Return each part's scope, locked; one that does not exist yet is made only if there is something to save."""
        fence, fenced = request.fence, self._fenced(request.fence)
        if fence is not None and fenced is not None and [part.scope for part in request.parts] == [fence.scope]:
            return {fence.scope: fenced}
        scopes: dict[Scope, ScopeRow] = {}
        for scope in sorted({part.scope for part in request.parts}, key=address):
            found = self.find_scope(scope)
            if found is None and not request.create:
                raise _no_scope(scope)
            scopes[scope] = found or ScopeRow(0, 0, 0, 0, None)
        _refuse_twins(request, scopes)
        return scopes

    def _decide(self, part: Part, scope: ScopeRow, request: Commit, now: int) -> rules.Decision:
        names, prefix = rules.touches(part.operations)
        current = {row.name: row for row in self.load(scope.id, names, prefix)}
        writer = rules.local(request.writer, part.scope)
        return rules.decide(part.operations, current, scope.revision, now, writer)

    def _save(self, place: Scope, scope: ScopeRow, decision: rules.Decision, now: int) -> None:
        if decision.rows and (not scope.id or isinstance(place, AssetScope)):
            made = self.lock_scope(place, now)
            scope.id, scope.sweep_at = made.id, made.sweep_at
        self.ring.forget(scope.id, decision.forget)
        if decision.rows:
            rows = [decision.rows[name] for name in sorted(decision.rows)]
            self._put(scope.id, self.ring.remember(scope.id, decision.past, rows))
            self._touch(scope, decision, now)

    def _audit(self, scope: Scope, decision: rules.Decision, writer: Writer, now: int) -> None:
        before = {row.name: row.text for row in decision.past}
        dag_id = scope.dag_id if isinstance(scope, TaskScope) else None
        for name, row in decision.rows.items():
            action = "delete" if row.text is None else "set"
            who, old = writer.name or writer.kind, before.get(name)
            self.audit.record(now, who, action, str(scope), dag_id=dag_id, name=name, before=old, after=row.text)

    def _put(self, scope_id: int, rows: Sequence[Row]) -> None:
        upsert(
            self.execute,
            "entry",
            "scope_id, name",
            "value, revision, updated_at, expires_at, writer, version, kept, ring",
            [
                (
                    scope_id,
                    row.name,
                    row.text,
                    row.revision,
                    row.updated_at,
                    row.expires_at,
                    writer_text(row.writer),
                    row.version,
                    row.kept,
                    row.ring,
                )
                for row in rows
            ],
        )

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
        if row.text is not None or (self.ring.size and row.version > 1):
            return row.expires_at
        return min(row.updated_at + self.feed_span, row.expires_at or row.updated_at + self.feed_span)


def _no_scope(scope: Scope) -> NotFound:
    return NotFound(f"there is no {scope}; check the ids, or let a run create it first")


def _refuse_other_asset(scope: AssetScope, name: str | None, uri: str | None) -> None:
    """Refuse a name with a URI that belongs to another name, or the other way round."""
    for what, given, known in (("name", scope.name, name), ("URI", scope.uri, uri)):
        if given is not None and known is not None and given != known:
            raise InvalidKey(f"{scope.name!r} with URI {scope.uri!r}: this asset's {what} is {known!r}, not {given!r}")


def _refuse_twins(request: Commit, scopes: dict[Scope, ScopeRow]) -> None:
    """Refuse two parts on one scope, which would be decided without knowing of each other."""
    ids = [scopes[part.scope].id or address(part.scope) for part in request.parts]
    if len(set(ids)) < len(ids):
        raise InvalidKey("two parts of one commit mean the same task instance or asset; put their operations together")


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
