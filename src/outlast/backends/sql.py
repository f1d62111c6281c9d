"""State as portable SQL over an `execute(sql, parameters) -> rows`: opening, fencing and reading.

Every statement stands next to the function that runs it, inside a transaction the caller holds. What changes
entries is in `commits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import rules
from ..requests import Count, Counted, Fence, Found, Open, Opened, Read, Row
from ..values import Scope, TaskScope, address
from .audit import Audit
from .execute import Dialect, Execute
from .feed import FeedSQL
from .ring import Ring
from .rows import ALIVE, COLUMNS, marks, padded, read_row
from .scopes import ScopeRow, ScopesSQL

__all__ = ["StateSQL"]

_HOUR = 3600 * 1_000_000
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
        self.audit, self.ring = Audit(execute, secret_keys), Ring(execute, history_versions)
        self.feed, self.feed_span = FeedSQL(execute, dialect), int(feed_hours * _HOUR)

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
        rows = self._rows(scope.id, request, now)
        return Found(scope.id, scope.revision, tuple([row for row in rows if rules.alive(row, now)]))

    def is_joined(self, request: Read) -> bool:
        """Say whether a request for named entries can be answered by one statement that joins them to their scope."""
        own = request.fence is not None and request.fence.scope == request.scope
        scope = request.scope
        plain = isinstance(scope, TaskScope) and (scope.map_index < 0 or scope.item is not None)
        return request.names is not None and len(request.names) <= 512 and (own or (plain and request.fence is None))

    def _read_joined(self, request: Read, now: int) -> Found:
        fence, names = request.fence, next(padded(sorted(set(request.names or ()))), [""])
        where, which = ("digest = ?", address(request.scope)) if fence is None else ("id = ?", fence.scope_id)
        columns = ", ".join(f"entry.{column}" for column in COLUMNS.split(", "))
        found = self.execute(
            f"select id, scope.revision, fence, {columns} from scope left join entry on scope_id = id"
            f" and name in ({marks(names)}) where {where} order by name",
            (*names, which),
        )
        scope_id, revision, newest = found[0][:3] if found else (None, 0, 0)
        if fence is not None:
            rules.check_fence(fence, scope_id, newest)
        rows = [read_row(row[3:]) for row in found if row[3] is not None]
        return Found(scope_id or 0, revision, tuple([row for row in rows if rules.alive(row, now)]))

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
        low, high = _range(prefix)
        where, values = "scope_id = ? and name >= ?", [scope_id, low]
        if high is not None:
            where, values = where + " and name < ?", [*values, high]
        if after is not None:
            where, values = where + " and name > ?", [*values, after]
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


def _range(prefix: str) -> tuple[str, str | None]:
    """Return the half-open range of names that begin with a prefix; None: no upper end."""
    stem = prefix.rstrip(_MAX_NAME)
    if not stem:
        return prefix, None
    following = ord(stem[-1]) + 1
    return prefix, stem[:-1] + chr(0xE000 if following == 0xD800 else following)
