"""Pages that are bounded in bytes as well as in rows, read so that no more than that is in memory.

A database that gives rows one by one is stopped when a page is full. Where all rows of a statement come at once, large
values are read by another, once it is known which of them fit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, Final, TypeAlias

from ..requests import Row
from .execute import Execute
from .rows import COLUMNS, marks, padded, read_row

__all__ = ["MOST_ROWS", "PAGE_BYTES", "Stepwise", "page_of", "read_large", "sized", "sized_rows"]

#: As `Execute`, but giving rows one by one.
Stepwise: TypeAlias = Callable[[str, Sequence[Any]], Generator[Any, None, None]]

#: Bytes of values on a page at most, unless its first value alone is larger.
PAGE_BYTES: Final = 4 * 1024 * 1024
#: Rows of a page at most, whatever is asked for.
MOST_ROWS: Final = 10_000
#: More than a value has.
_ANY: Final = 2**40


def sized(columns: str) -> str:
    """Return columns without large values, and a value's bytes as the last; the first mark says what is not large."""
    return columns.replace("value", "case when octet_length(value) <= ? then value end", 1) + ", octet_length(value)"


def sized_rows(
    execute: Execute, stepwise: Stepwise | None, sql: str, values: Sequence[Any], limit: int
) -> Generator[Any, None, None]:
    """Yield the rows of a statement with `sized` columns, one by one or all at once but without large values."""
    if stepwise is None:
        yield from execute(sql, (PAGE_BYTES // max(1, limit), *values))
    else:
        with closing(stepwise(sql, (_ANY, *values))) as rows:
            yield from rows


def page_of(rows: Generator[Any, None, None]) -> tuple[list[Any], bool]:
    """Return as many rows, of `sized` columns, as make a page (at least one), and whether there were more."""
    page: list[Any] = []
    room = PAGE_BYTES
    with closing(rows):
        for columns in rows:
            room -= columns[-1] or 0
            if page and room < 0:
                return page, True
            page.append(columns)
    return page, False


def read_large(execute: Execute, rows: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Row]:
    """Return rows by their scope's id and name, as they are now: what was removed meanwhile is not among them."""
    by_scope: dict[int, list[str]] = {}
    for scope_id, name in rows:
        by_scope.setdefault(scope_id, []).append(name)
    found: dict[tuple[int, str], Row] = {}
    for scope_id, names in by_scope.items():
        for part in padded(names):
            asked: tuple[Any, ...] = (scope_id, *part)
            read = execute(f"select {COLUMNS} from entry where scope_id = ? and name in ({marks(part)})", asked)
            found.update(((scope_id, columns[0]), read_row(columns)) for columns in read)
    return found
