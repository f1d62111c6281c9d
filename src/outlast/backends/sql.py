"""State as portable SQL over an `execute(sql, parameters) -> rows`: opening, fencing and reading.

Every statement stands next to the function that runs it, inside a transaction the caller holds. What changes
entries is in `commits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from .. import rules
from ..errors import OutlastError
from ..requests import Count, Counted, Fence, Found, Open, Opened, Origin, Read, Row
from ..values import Scope, TaskScope, address
from .audit import Audit
from .execute import Dialect, Execute
from .paging import MOST_ROWS, Stepwise, page_of, read_large, sized, sized_rows
from .ring import Ring
from .rows import ALIVE, COLUMNS, marks, padded, read_row
from .scopes import ScopeRow, ScopesSQL

__all__ = ["StateSQL"]

_HOUR = 3600 * 1_000_000
_ENTRY = ", ".join(f"entry.{column}" for column in COLUMNS.split(", "))
_MAX_NAME = "\U0010ffff"


class StateSQL(ScopesSQL):
    """Answers what opens and reads state through one connection."""

    def __init__(
        self,
        execute: Execute,
        dialect: Dialect,
        *,
        history_versions: int,
        feed_hours: float,
        secret_keys: Sequence[str] = (),
    ) -> None:
        super().__init__(execute, dialect)
        self.stepwise: Stepwise | None = None  # where the database can
        self.audit, self.ring = Audit(execute, secret_keys), Ring(execute, history_versions)
        self.feed_span = int(feed_hours * _HOUR)

    # --- opening and fencing ---------------------------------------------------------------------------

    def open(self, request: Open, now: int) -> Opened:
        """Raise a scope's fence to an attempt's number; one that is already older is stale."""
        scope = self.lock_scope(request.scope, now)
        anew = request.origin is not None and self._is_left_over(request, scope)
        if anew:
            self.drop_scopes([scope.id], now)
            scope = self.lock_scope(request.scope, now)
        attempt = scope.fence + 1 if request.attempt is None else request.attempt
        if attempt < scope.fence:
            rules.check_fence(Fence(request.scope, attempt, scope.id), scope.id, scope.fence)
        if attempt > scope.fence:
            raised = "update scope set fence = ?, fenced_at = coalesce(?, fenced_at), changed_at = ? where id = ?"
            unsaid = None if request.attempt is None else now if request.origin is None else 0
            self.execute(raised, (attempt, unsaid, now, scope.id))
        if request.origin is not None:
            noted = "update scope set origin = ?, started_at = ? where id = ? and origin is null"
            self.execute(noted, (request.origin, request.started, scope.id))
        return Opened(attempt, scope.id, anew)

    def _is_left_over(self, request: Open, scope: ScopeRow) -> bool:
        """Say whether what is there is an earlier run's of that name; a run of outlast's own is never that."""
        if scope.made or self._is_of_own_run(request.scope):
            return False
        recorded = self.execute("select origin, started_at, fenced_at from scope where id = ?", (scope.id,))[0]
        return rules.is_new_run(request, scope.fence, Origin(*recorded))

    def _is_of_own_run(self, scope: TaskScope) -> bool:
        """Say whether a run of outlast's own has that name; of an item it no longer has, the scope is still its."""
        return bool(self.execute("select 1 from run where dag_id = ? and run_id = ?", (scope.dag_id, scope.run_id)))

    def fenced(self, fence: Fence) -> ScopeRow:
        """Return the scope of an attempt, locked; StaleAttempt unless it is the newest of it."""
        found = self.find_id(fence.scope_id)
        rules.check_fence(fence, found.id if found else None, found.fence if found else 0)
        assert found is not None
        return found

    def require_attempt(self, fence: Fence) -> None:
        """Raise StaleAttempt unless an attempt is the newest of its scope."""
        self.fenced(fence)

    def seen(self, scope: Scope, fence: Fence | None) -> ScopeRow | None:
        """Return a scope as an attempt (None: anybody) that is not superseded may see it."""
        if fence is None:
            return self.find_scope(scope)
        fenced = self.fenced(fence)
        return fenced if fence.scope == scope else self.find_scope(scope)

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, request: Read, now: int) -> Found:
        """Return the live rows asked for."""
        if self.dialect.joined and self.is_joined(request):
            return self._read_joined(request, now)
        scope = self.seen(request.scope, request.fence)
        if scope is None:
            return Found(0, 0, ())
        if request.names is None and request.limit is not None and request.texts:
            return self._read_page(scope, request, request.limit, now)
        rows = self._rows(scope.id, request, now)
        return Found(scope.id, scope.revision, tuple([row for row in rows if rules.alive(row, now)]))

    def _read_page(self, scope: ScopeRow, request: Read, limit: int, now: int) -> Found:
        """Return a page of as many rows as were asked for, or of `PAGE_BYTES` of values and more to come."""
        where, values = _named(scope.id, request.prefix, request.after)
        limit = min(limit, MOST_ROWS)
        sql = f"select {sized(COLUMNS)} from entry where {where} and {ALIVE} order by name limit ? offset ?"
        asked = (*values, now, limit, request.offset)
        found, more = page_of(sized_rows(self.execute, self.stepwise, sql, asked, limit))
        page = [read_row(columns[:-1]) for columns in found]
        large = read_large(self.execute, [(scope.id, row.name) for row in page if row.text is None])
        whole = [row if row.text is not None else large.get((scope.id, row.name), row) for row in page]
        return Found(scope.id, scope.revision, tuple([row for row in whole if rules.alive(row, now)]), more)

    def is_joined(self, request: Read) -> bool:
        """Say whether a request for named entries can be answered by one statement that joins them to their scope."""
        own = request.fence is not None and request.fence.scope == request.scope
        scope = request.scope
        plain = isinstance(scope, TaskScope) and (scope.map_index < 0 or scope.item is not None)
        return request.names is not None and len(request.names) <= 512 and (own or (plain and request.fence is None))

    def _read_joined(self, request: Read, now: int) -> Found:
        fence, names = request.fence, next(padded(sorted(set(request.names or ()))), [""])
        where, which = ("digest = ?", address(request.scope)) if fence is None else ("id = ?", fence.scope_id)
        found = self.execute(
            f"select id, scope.revision, fence, {_ENTRY} from scope left join entry on scope_id = id"
            f" and name in ({marks(names)}) where {where} order by name",
            (*names, which),
        )
        return _found(request, found, now)

    def read_together(self, requests: Sequence[Read], now: int) -> list[Found | OutlastError]:
        """Answer requests that can be joined, each by its rows or its error; those for as many names by one statement.

        Together they may have 512 names.
        """
        found: list[list[Any]] = [[] for _ in requests]
        for fenced, column, kind in ((True, "id", "bigint"), (False, "digest", "bytea")):
            asked = [
                (number, name)
                for number, request in enumerate(requests)
                if (request.fence is not None) is fenced
                for name in sorted(set(request.names or ("",)))  # an entry's name is not empty
            ]
            if asked:
                wanted = [(_place(requests[number]), name) for number, name in asked]
                for place, *row in self._joined(wanted, column, kind):
                    if place < len(asked):  # not what fills up the statement
                        found[asked[place][0]].append(row)
        return [_outcome(request, rows, now) for request, rows in zip(requests, found, strict=True)]

    def _joined(self, asked: Sequence[tuple[Any, str]], column: str, kind: str) -> list[Any]:
        """Return scopes with an entry each, by the place of what was asked."""
        [part] = padded(asked)
        first, *others = (f"({place}, ?, ?)" for place in range(len(part)))
        first = f"(0, cast(? as {kind}), cast(? as text))"
        return self.execute(
            f"with asked (place, which, key) as (values {', '.join([first, *others])})"
            f" select place, id, scope.revision, fence, {_ENTRY} from asked join scope on {column} = which"
            " left join entry on scope_id = id and name = key order by place",
            list(chain.from_iterable(part)),
        )

    def _rows(self, scope_id: int, request: Read, now: int) -> Iterable[Row]:
        if request.names is not None:
            return self.load(scope_id, request.names, None)
        value = "value" if request.texts else "case when value is not null then 'null' end"
        return self._load_prefix(scope_id, request.prefix, request.after, request.limit, value, now, request.offset)

    def load(self, scope_id: int, names: Iterable[str], prefix: str | None = None) -> list[Row]:
        """Return stored rows by name and by prefix, tombstones and expired ones included."""
        wanted = sorted(set(names))
        if len(wanted) == 1 and prefix is None:
            return self._load_one(scope_id, wanted[0])
        rows: dict[str, Row] = {}
        for part in padded(wanted):
            found = self.execute(
                f"select {COLUMNS} from entry where scope_id = ? and name in ({marks(part)})", (scope_id, *part)
            )
            rows.update((row[0], read_row(row)) for row in found)
        if prefix is not None:
            rows.update((row.name, row) for row in self._load_prefix(scope_id, prefix))
        return list(rows.values()) if len(rows) < 2 else [rows[name] for name in sorted(rows)]

    def _load_one(self, scope_id: int, name: str) -> list[Row]:
        rows = self.execute(f"select {COLUMNS} from entry where scope_id = ? and name = ?", (scope_id, name))
        return [read_row(row) for row in rows]

    def _load_prefix(
        self,
        scope_id: int,
        prefix: str,
        after: str | None = None,
        limit: int | None = None,
        value: str = "value",
        alive_at: int | None = None,
        offset: int = 0,
    ) -> list[Row]:
        where, values = _named(scope_id, prefix, after)
        if alive_at is not None:
            where, values = where + f" and {ALIVE}", [*values, alive_at]
        tail = "" if limit is None else " limit ? offset ?"
        columns = COLUMNS.replace("value", value, 1)
        found = self.execute(
            f"select {columns} from entry where {where} order by name{tail}",
            values if limit is None else [*values, limit, offset],
        )
        return [read_row(row) for row in found]

    def count(self, request: Count, now: int) -> Counted:
        """Return how many live keys there are."""
        scope = self.seen(request.scope, request.fence)
        if scope is None:
            return Counted(0, 0, 0)
        low, high = _range(request.prefix)
        where, values = ("", []) if high is None else (" and name < ?", [high])
        sql = f"select count(*) from entry where scope_id = ? and name >= ?{where} and {ALIVE}"
        return Counted(scope.id, scope.revision, self.execute(sql, (scope.id, low, *values, now))[0][0])


def _place(request: Read) -> str | bytes:
    """Return what the scope of a request is found by: as text, an id is of one type however large it is."""
    return address(request.scope) if request.fence is None else str(request.fence.scope_id)


def _found(request: Read, found: Sequence[Sequence[Any]], now: int) -> Found:
    """Make of a scope, joined to each of its entries, the answer to a request."""
    scope_id, revision, newest = found[0][:3] if found else (None, 0, 0)
    if request.fence is not None:
        rules.check_fence(request.fence, scope_id, newest)
    rows = [read_row(row[3:]) for row in found if row[3] is not None]
    return Found(scope_id or 0, revision, tuple([row for row in rows if rules.alive(row, now)]))


def _outcome(request: Read, found: Sequence[Sequence[Any]], now: int) -> Found | OutlastError:
    try:
        return _found(request, found, now)
    except OutlastError as error:
        return error


def _named(scope_id: int, prefix: str, after: str | None = None) -> tuple[str, list[Any]]:
    """Return what chooses the entries of a scope that begin with a prefix and come after a name, and its values."""
    low, high = _range(prefix)
    where, values = "scope_id = ? and name >= ?", [scope_id, low]
    if high is not None:
        where, values = where + " and name < ?", [*values, high]
    if after is not None:
        where, values = where + " and name > ?", [*values, after]
    return where, values


def _range(prefix: str) -> tuple[str, str | None]:
    """Return the half-open range of names that begin with a prefix; None: no upper end."""
    stem = prefix.rstrip(_MAX_NAME)
    if not stem:
        return prefix, None
    following = ord(stem[-1]) + 1
    return prefix, stem[:-1] + chr(0xE000 if following == 0xD800 else following)
