"""Requests that read along a key's history, a scope's changes, or across scopes, as portable SQL."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import msgspec

from .. import rules
from ..requests import (
    Changed,
    Changes,
    Find,
    FindPage,
    FoundRow,
    History,
    ListScopes,
    Row,
    ScopePage,
    Versions,
)
from ..values import Cursor, ScopeInfo, moment
from .paging import MOST_ROWS, page_of, read_large, sized, sized_rows
from .rows import ALIVE, COLUMNS, FOUND_COLUMNS, SCOPE_COLUMNS, read_found, read_row, read_scope
from .scopes import ScopeRow
from .sql import StateSQL

__all__ = ["ListsSQL"]

_COUNTS = (
    f"(select count(*) from entry where scope_id = scope.id and {ALIVE}),"
    f" (select coalesce(sum(octet_length(value)), 0) from entry where scope_id = scope.id and {ALIVE})"
)


class ListsSQL:
    """Answers through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL) -> None:
        self.state, self.execute = state, state.execute

    def history(self, request: History, now: int) -> Versions:
        """Return a key's versions, newest first; none at all once the entry has expired."""
        scope = self.state.seen(request.scope, request.fence)
        current = self.state.load(scope.id, (request.name,)) if scope else []
        if scope is None or not current or rules.expired(current[0], now):
            return Versions(())
        return Versions(self.state.ring.versions(scope.id, current[0]))

    def changes(self, request: Changes, now: int) -> Changed:
        """Return what changed since a cursor, by revision and name; everything when the cursor is too old."""
        scope, since = self.state.seen(request.scope, request.fence), request.cursor
        if scope is None:
            return Changed(Cursor(0, 0), since is None or since.scope_id != 0, ())
        here = Cursor(scope.id, scope.revision)
        if since is None or not _is_known(since, scope):
            rows = self.state.load(scope.id, (), "")
            return Changed(here, True, tuple(row for row in rows if rules.alive(row, now)))
        if since == here:
            return Changed(here, False, ())
        return Changed(here, False, tuple(_as_seen(row, now) for row in self._since(scope.id, since)))

    def _since(self, scope_id: int, since: Cursor) -> list[Row]:
        later = "revision > ?" if since.name is None else "(revision, name) > (?, ?)"
        values = (scope_id, since.revision) if since.name is None else (scope_id, since.revision, since.name)
        found = self.execute(
            f"select {COLUMNS} from entry where scope_id = ? and {later} order by revision, name", values
        )
        return [read_row(row) for row in found]

    def find(self, request: Find, now: int) -> FindPage:
        """Return one page of live rows across scopes: of as many as were asked for, or of `PAGE_BYTES` of values."""
        limit = max(1, min(request.limit, MOST_ROWS))
        page, more = page_of(self._found(request, limit, now))
        more = more or len(page) == limit
        return FindPage(tuple(self._whole(page, now)), (page[-1][0], page[-1][8]) if more else None)

    def _found(self, request: Find, limit: int, now: int) -> Generator[Any, None, None]:
        """Yield rows in their order; those of chosen scopes one scope after the other, so that none need be sorted."""
        scope_id, name = request.after or (0, "")
        (where, values), (named, names) = _place_filter(request), _name_filter(request)
        if self.state.stepwise is None or not (request.dag_id or request.run_id or request.task_id):
            sql = (
                f"select {sized(FOUND_COLUMNS)} from entry join scope on scope.id = scope_id"
                f" where (scope_id, name) > (?, ?) and {ALIVE}{where}{named} order by scope_id, name limit ?"
            )
            yield from self._sized(sql, (scope_id, name, now, *values, *names, limit), limit)
            return
        left = limit
        rest_of_scope = (
            f"select {sized(FOUND_COLUMNS)} from entry join scope on scope.id = scope_id"
            f" where scope_id = ? and name > ? and {ALIVE}{where}{named} order by name limit ?"
        )
        for columns in self._sized(rest_of_scope, (scope_id, name, now, *values, *names, limit), limit):
            left -= 1
            yield columns
        later_scopes = (
            f"select {sized(FOUND_COLUMNS)} from"
            f" (select * from scope where id > ?{where} order by id limit -1) as scope"
            f" cross join entry on scope_id = scope.id where {ALIVE}{named} limit ?"
        )
        yield from self._sized(later_scopes, (scope_id, *values, now, *names, left), limit)

    def _sized(self, sql: str, values: Sequence[Any], limit: int) -> Generator[Any, None, None]:
        return sized_rows(self.execute, self.state.stepwise, sql, values, limit)

    def _whole(self, page: list[Any], now: int) -> Iterator[FoundRow]:
        """Yield the rows of a page with all their values; one that is not alive any more is left out."""
        rows = [read_found(columns[:-1]) for columns in page]
        large = read_large(self.execute, [(found.scope_id, found.row.name) for found in rows if found.row.text is None])
        for found in rows:
            row = large.get((found.scope_id, found.row.name)) if found.row.text is None else found.row
            if row is not None and rules.alive(row, now):
                yield found if row is found.row else msgspec.structs.replace(found, row=row)

    def scopes(self, request: ListScopes, now: int) -> ScopePage:
        """Return one page of scopes with their counts."""
        where, values = _place_filter(request)
        numbers, moments = (_COUNTS, (now, now)) if request.counts else ("0, 0", ())
        found = self.execute(
            f"select {SCOPE_COLUMNS}, scope.revision, fence, {numbers}, changed_at"
            f" from scope where id > ?{where} order by id limit ?",
            (*moments, request.after, *values, request.limit),
        )
        infos = tuple(_info(row) for row in found)
        return ScopePage(infos, found[-1][0] if len(found) == request.limit else None)


def _info(columns: Sequence[Any]) -> ScopeInfo:
    revision, attempt, entries, size, changed_at = columns[8:]
    return ScopeInfo(read_scope(columns), revision, attempt, entries, size, moment(changed_at), columns[0])


def _is_known(cursor: Cursor, scope: ScopeRow) -> bool:
    """Say whether all that has changed since a cursor is still known."""
    return cursor.scope_id in (0, scope.id) and scope.floor <= cursor.revision <= scope.revision


def _as_seen(row: Row, now: int) -> Row:
    """Return a changed row as a watcher sees it: what has expired since is gone."""
    return msgspec.structs.replace(row, text=None) if rules.expired(row, now) else row


def _name_filter(request: Find) -> tuple[str, list[Any]]:
    where, values = "", list[Any]()
    if request.ending:
        where, values = " and substr(name, length(name) - ? + 1) = ?", [len(request.ending), request.ending]
    if request.name is not None:
        where, values = where + " and name = ?", [*values, request.name]
    return where, values


def _place_filter(request: Find | ListScopes) -> tuple[str, list[Any]]:
    where = " and dag_id is null" if request.assets else " and dag_id is not null"
    values: list[Any] = []
    for column in ("dag_id", "run_id", "task_id"):
        wanted = getattr(request, column)
        if wanted is not None:
            where, values = where + f" and {column} = ?", [*values, wanted]
    return where, values
