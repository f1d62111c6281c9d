"""Frees what is gone: expired entries with their history, old tombstones, and scopes nobody needs any more.

Scopes carry `sweep_at`, a moment not later than their first work for the sweeper, so that writers
need no index over all entries; a visit recomputes it.
"""

from __future__ import annotations

from typing import Any

from ..errors import InvalidValue
from ..requests import FoundRow, Sweep, Swept, inner
from .receipts import KEPT, ReceiptsSQL
from .rows import FOUND_COLUMNS, read_found
from .scopes import SCOPE_GRACE
from .sql import StateSQL

__all__ = ["SWEEP_EVERY", "SweepSQL", "is_sweep", "oldest_due", "overdue"]

#: A library writer sweeps one batch when something has been due for this long, in microseconds …
SWEEP_AFTER = 3600 * 1_000_000
#: … and asks at most this often, in microseconds.
SWEEP_EVERY = 60 * 1_000_000


def oldest_due(sql: StateSQL) -> int | None:
    """Return the earliest moment there may be something to sweep, None when there never will."""
    found = sql.execute("select min(sweep_at) from scope where sweep_at is not null", ())
    written, kept = sql.feed.oldest(), ReceiptsSQL(sql.execute).oldest()
    moments = [
        found[0][0] if found else None,
        None if written is None else written + sql.feed_span,
        None if kept is None else kept + KEPT,
    ]
    return min((moment for moment in moments if moment is not None), default=None)


def overdue(sql: StateSQL, limit: int, now: int) -> Sweep | None:
    """Return what a writer has to sweep because nobody has for long; None: nothing."""
    due = oldest_due(sql)
    return None if due is None or due > now - SWEEP_AFTER else Sweep(limit, SWEEP_AFTER)


def is_sweep(request: Any) -> bool:
    """Say whether a request asks to sweep, so that whoever carries it out need not do so besides."""
    return type(inner(request)) is Sweep


class SweepSQL:
    """Answers requests to sweep, inside a transaction the caller holds."""

    def __init__(self, state: StateSQL) -> None:
        self._state = state

    def sweep(self, request: Sweep, now: int) -> Swept:
        """Free at most one batch, oldest first; `more` says that another batch would find something."""
        if request.older_than < 0 or request.limit < 0:
            raise InvalidValue("older_than and limit of a sweep are 0 or more: what has not expired is not swept")
        sql = self._state
        cutoff = now - request.older_than
        if request.dry_run:
            return _would_sweep(sql, request, cutoff)
        logged = _prune(sql, request.limit, now)
        skip = sql.dialect.skip
        due = sql.execute(
            f"select id, changed_at, dag_id is null from scope where sweep_at <= ? order by sweep_at, id limit ?{skip}",
            (cutoff, request.limit + 1),
        )
        entries = scopes = 0
        for visited, (scope_id, changed_at, is_asset) in enumerate(due):
            room = request.limit - entries - scopes
            if room <= 0:
                return Swept(entries, scopes, more=True)
            entries += _free_entries(sql, scope_id, room, cutoff)
            scopes += _settle(sql, scope_id, SCOPE_GRACE + changed_at, bool(is_asset), cutoff)
            if visited == request.limit - 1:
                break
        more = len(due) > request.limit or entries + scopes >= request.limit
        return Swept(entries, scopes, more=more or logged)


def _prune(sql: StateSQL, limit: int, now: int) -> bool:
    """Remove one batch of what is too old from the feed and of receipts; say whether there may be more."""
    sql.stand_alone("sweep")  # two of them would wait for each other's rows
    written = sql.feed.prune(now - sql.feed_span, limit)
    return max(written, ReceiptsSQL(sql.execute).prune(now, limit, sql.dialect.skip)) >= limit


def _free_entries(sql: StateSQL, scope_id: int, room: int, cutoff: int) -> int:
    """Delete expired rows and old tombstones of one scope, at most `room`; return how many."""
    gone = sql.execute(
        "select name, revision from entry where scope_id = ? and (expires_at <= ? or value is null and updated_at <= ?"
        " and not exists (select 1 from history where history.scope_id = entry.scope_id and history.name = entry.name))"
        " order by name limit ?",
        (scope_id, cutoff, cutoff - sql.feed_span, room),
    )
    for name, _ in gone:
        sql.execute("delete from entry where scope_id = ? and name = ?", (scope_id, name))
        sql.execute("delete from history where scope_id = ? and name = ?", (scope_id, name))
    if gone:
        floor = max(revision for _, revision in gone)
        sql.execute("update scope set floor = ? where id = ? and floor < ?", (floor, scope_id, floor))
    return len(gone)


def _settle(sql: StateSQL, scope_id: int, drop_at: int, is_asset: bool, cutoff: int) -> int:
    """Work out when a visited scope is due again, or drop it; return 1 if it was dropped."""
    count, expires_at, deleted_at = sql.execute(
        "select count(*), min(expires_at), min(case when value is null and updated_at > ? then updated_at end)"
        " from entry where scope_id = ?",
        (cutoff - sql.feed_span, scope_id),
    )[0]
    kept = is_asset or sql.in_use(scope_id)
    if count == 0 and not kept and drop_at <= cutoff:
        sql.erase_scope(scope_id)
        return 1
    due = [expires_at, None if deleted_at is None else deleted_at + sql.feed_span]
    if count == 0 and not kept:
        due.append(drop_at)
    sweep_at = min((moment for moment in due if moment is not None), default=None)
    sql.execute("update scope set sweep_at = ? where id = ?", (sweep_at, scope_id))
    return 0


def _would_sweep(sql: StateSQL, request: Sweep, cutoff: int) -> Swept:
    scope_id, name = request.after or (0, "")
    found = sql.execute(
        f"select {FOUND_COLUMNS} from entry join scope on scope.id = scope_id where (scope_id, name) > (?, ?)"
        " and sweep_at <= ? and value is not null and expires_at <= ? order by scope_id, name limit ?",
        (scope_id, name, cutoff, cutoff, request.limit),
    )
    rows: tuple[FoundRow, ...] = tuple(read_found(row) for row in found)
    last = (rows[-1].scope_id, rows[-1].row.name) if rows and len(rows) == request.limit else None
    return Swept(len(rows), 0, more=last is not None, rows=rows, after=last)
