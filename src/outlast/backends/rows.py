"""Rows of the tables as values, and the statements that read and write them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import msgspec

from ..requests import LIBRARY, FoundRow, Row
from ..values import AssetScope, Scope, TaskScope, Writer
from .execute import Execute

__all__ = [
    "ALIVE",
    "COLUMNS",
    "FOUND_COLUMNS",
    "SCOPE_COLUMNS",
    "marks",
    "padded",
    "read_found",
    "read_row",
    "read_scope",
    "upsert",
    "writer_text",
]

COLUMNS = "name, value, revision, updated_at, expires_at, writer, version, kept, ring"
SCOPE_COLUMNS = "scope.id, dag_id, run_id, task_id, map_index, item, asset_name, asset_uri"
FOUND_COLUMNS = SCOPE_COLUMNS + ", name, value, entry.revision, updated_at, expires_at, writer, version, kept, ring"
#: What holds of an entry a reader may see at a moment.
ALIVE = "value is not null and (expires_at is null or expires_at > ?)"

_read_writer = lru_cache(maxsize=1024)(msgspec.json.Decoder(Writer).decode)


def read_row(columns: Sequence[Any]) -> Row:
    """Make a row of `COLUMNS` an entry's row."""
    name, text, revision, updated_at, expires_at, writer, version, kept, ring = columns
    by = LIBRARY if writer is None else _read_writer(writer)
    return Row(name, text, revision, updated_at, expires_at, by, version, kept, ring)


def read_found(columns: Sequence[Any]) -> FoundRow:
    """Make a row of `FOUND_COLUMNS` a found row."""
    return FoundRow(columns[0], read_scope(columns), read_row(columns[8:]))


def read_scope(columns: Sequence[Any]) -> Scope:
    """Make a row that begins with `SCOPE_COLUMNS` a scope."""
    _, dag_id, run_id, task_id, map_index, item, asset_name, asset_uri = columns[:8]
    if dag_id is None:
        return AssetScope(asset_name, asset_uri)
    return TaskScope(dag_id, run_id, task_id, -1 if map_index is None else map_index, item)


@lru_cache(maxsize=1024)
def writer_text(writer: Writer) -> str | None:
    """Return a writer as stored; None is a program using the library."""
    return None if writer == LIBRARY else msgspec.json.encode(writer).decode()


def upsert(execute: Execute, table: str, key: str, columns: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows with different keys, up to sixteen in one statement: that takes half the time of one each."""
    if len(rows) == 1:
        execute(_upsert_sql(table, key, columns, 1), rows[0])
        return
    start = 0
    for size in (16, 8, 4, 2, 1):
        while len(rows) - start >= size:
            values = list(itertools.chain.from_iterable(rows[start : start + size]))
            execute(_upsert_sql(table, key, columns, size), values)
            start += size


_T = TypeVar("_T")


def padded(values: Sequence[_T]) -> Iterator[list[_T]]:
    """Yield values in parts of one of a few lengths, the last value repeated, so that few statements need preparing."""
    for start in range(0, len(values), 512):
        part = list(values[start : start + 512])
        length = next(size for size in (1, 2, 8, 32, 128, 512) if size >= len(part))
        yield part + part[-1:] * (length - len(part))


def marks(values: Sequence[Any]) -> str:
    """Return a mark for each value."""
    return ", ".join("?" * len(values))


@cache
def _upsert_sql(table: str, key: str, columns: str, rows: int) -> str:
    names = f"{key}, {columns}"
    marks = "(" + ", ".join("?" for _ in names.split(", ")) + ")"
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", "))
    places = ", ".join([marks] * rows)
    return f"insert into {table} ({names}) values {places} on conflict ({key}) do update set {changes}"
