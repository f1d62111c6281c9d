"""The two sides of a comparison: a store of outlast's, and apsw alone writing rows of the same columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

import outlast
from outlast.config import Config, StateStoreSettings

_TABLE = """
create table entry (
    scope_id integer not null, name text not null, value text, revision integer not null,
    updated_at integer not null, expires_at integer, writer text, version integer not null, kept integer not null,
    primary key (scope_id, name)
) without rowid
"""
_UPSERT = (
    "insert into entry (scope_id, name, value, revision, updated_at, expires_at, writer, version, kept)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (scope_id, name) do update set value = excluded.value,"
    " revision = excluded.revision, updated_at = excluded.updated_at, expires_at = excluded.expires_at,"
    " writer = excluded.writer, version = excluded.version, kept = excluded.kept"
)

#: Numbers that never come twice: an unchanged row is not written to the disk.
numbers: Iterator[int] = itertools.count(1)


def value(number: int) -> dict[str, Any]:
    """Return what a task might keep, another one for each number."""
    return {"page": number, "rows": number * 100, "cursor": f"c{number:08}"}


def text(number: int) -> str:
    """Return the same value as it is stored."""
    return f'{{"page":{number},"rows":{number * 100},"cursor":"c{number:08}"}}'


def connect(path: Path, clock: Callable[[], int] | None = None, **settings: Any) -> outlast.Store:
    """Open a store with some settings of `[state_store]` and defaults for the rest, whatever this machine's say."""
    config = Config(state_store=StateStoreSettings(**settings))
    if clock is None:
        return outlast.connect(path, config=config)
    return outlast.connect(path, config=config, clock=clock)


class Raw:
    """apsw alone: one durable transaction an upsert, ready-made text, one scope, nothing checked or remembered."""

    def __init__(self, path: Path) -> None:
        self.connection = apsw.Connection(str(path))
        self.connection.execute("pragma journal_mode = wal")
        self.connection.execute("pragma synchronous = full")
        self.connection.execute("pragma cache_size = -8000")
        self.connection.execute(_TABLE)

    def set(self, name: str, number: int) -> None:
        """Write one row in a transaction of its own."""
        self.connection.execute("begin immediate")
        self.connection.execute(_UPSERT, _row(name, number))
        self.connection.execute("commit")

    def set_many(self, names: Sequence[str], number: int) -> None:
        """Write some rows in one transaction."""
        self.connection.execute("begin immediate")
        self.connection.executemany(_UPSERT, [_row(name, number) for name in names])
        self.connection.execute("commit")

    def get(self, name: str) -> str:
        """Read one row's text."""
        found = self.connection.execute("select value from entry where scope_id = 1 and name = ?", (name,))
        return str(found.get)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


def _row(name: str, number: int) -> tuple[Any, ...]:
    return (1, name, text(number), number, number, number, None, number, number)
