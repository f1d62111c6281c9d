"""Every table of a store, read as of one moment or filled while empty: what a backup is made of, as SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..tables import NUMBERED, TABLES, StoredRow, Table
from .sql import StateSQL

__all__ = ["PostgresTables", "SQLiteTables"]

#: Ids of scopes that a restored store leaves out: those given after the backup was made may be known to somebody.
LEFT_OUT = 1_000_000


class SQLiteTables:
    """The tables of one SQLite file; see `outlast.tables`."""

    backend = "sqlite"

    def __init__(self, state: StateSQL, connection: Any) -> None:
        self.state, self.execute, self.connection = state, state.execute, connection

    # --- reading -------------------------------------------------------------------------------------------

    def schema(self) -> int:
        return int(self.execute("select content from meta where name = 'schema'", ())[0][0])

    def rows(self, table: Table, columns: Sequence[str]) -> Iterator[StoredRow]:
        found = self._stream(f"select {', '.join(columns)} from {table.name} order by {self._order(table)}")
        changed = self._changed(columns, {**dict.fromkeys(table.binary, bytes.hex), **dict.fromkeys(table.flags, int)})
        return map(changed, found) if changed is not None else found

    def counts(self) -> dict[str, int]:
        counts = {name: self.execute(f"select count(*) from {name}", ())[0][0] for name in TABLES}
        return {name: count for name, count in counts.items() if count}

    def newest(self) -> dict[str, int]:
        given = dict(self.execute("select name, seq from sqlite_sequence", ()))
        return {name: given.get(name, 0) for name in NUMBERED}

    def _stream(self, sql: str) -> Iterator[Sequence[Any]]:
        return iter(self.connection.execute(sql))

    def _order(self, table: Table) -> str:
        return "coalesce(place, scope_id)" if table.name == "task" else table.order

    # --- filling -------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Do nothing: who writes is alone."""

    def fill(self, table: Table, columns: Sequence[str], rows: Iterable[StoredRow]) -> None:
        back = dict.fromkeys(table.binary, bytes.fromhex) | self._flags(table)
        changed = self._changed(columns, back)
        filling = map(changed, rows) if changed is not None else rows
        if table.name == "task":  # in the order in which they come
            columns, filling = [*columns, "place"], ([*row, place] for place, row in enumerate(filling, 1))
        self._insert(table.name, columns, filling)

    def stored(self, row: StoredRow) -> StoredRow:
        return row

    def begin_anew(self, newest: dict[str, int], who: str, about: str, now: int) -> None:
        for name, number in newest.items():
            if name in NUMBERED and number:  # scopes, by which attempts are told apart, leave some out besides
                self._set_newest(name, number + LEFT_OUT if name == "scope" else number)
        self.state.feed.begin()
        self.state.audit.record(now, who, "restore", "store", after=about)

    def _insert(self, into: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(columns))
        self.connection.executemany(f"insert into {into} ({', '.join(columns)}) values ({marks})", rows)

    def _flags(self, table: Table) -> dict[str, Callable[[Any], Any]]:
        return {}

    def _set_newest(self, name: str, number: int) -> None:
        self.execute("delete from sqlite_sequence where name = ?", (name,))
        self.execute("insert into sqlite_sequence (name, seq) values (?, ?)", (name, number))

    def _changed(
        self, columns: Sequence[str], how: dict[str, Callable[[Any], Any]]
    ) -> Callable[[Sequence[Any]], StoredRow] | None:
        """Return what changes a row's values in these columns; None where there is nothing to change."""
        places = [(place, how[name]) for place, name in enumerate(columns) if name in how]
        if not places:
            return None

        def change(row: Sequence[Any]) -> StoredRow:
            values = list(row)
            for place, made in places:
                if values[place] is not None:
                    values[place] = made(values[place])
            return values

        return change


class PostgresTables(SQLiteTables):
    """The tables of a PostgreSQL schema: the same, but for what numbers rows and keeps others out."""

    backend = "postgres"

    def rows(self, table: Table, columns: Sequence[str]) -> Iterator[StoredRow]:
        self._without_limits()
        return super().rows(table, columns)

    def newest(self) -> dict[str, int]:
        asked = ", ".join(f"coalesce(pg_sequence_last_value({_sequence(name)}), 0)" for name in NUMBERED)
        return dict(zip(NUMBERED, self.execute(f"select {asked}", ())[0], strict=True))

    def lock(self) -> None:
        self._without_limits()
        self.execute(f"lock table run, task, scope, {', '.join(TABLES)} in share row exclusive mode", ())

    def stored(self, row: StoredRow) -> StoredRow:
        """Return a row without the character U+0000, which PostgreSQL's texts cannot hold."""
        if not any(type(value) is str and "\x00" in value for value in row):
            return row
        return [value.replace("\x00", "\ufffd") if isinstance(value, str) else value for value in row]

    def _stream(self, sql: str) -> Iterator[Sequence[Any]]:
        with self.connection.cursor() as cursor:
            yield from cursor.stream(sql)

    def _order(self, table: Table) -> str:
        return "place" if table.name == "task" else table.order

    def _insert(self, into: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"copy {into} ({', '.join(columns)}) from stdin") as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def _flags(self, table: Table) -> dict[str, Callable[[Any], Any]]:
        return dict.fromkeys(table.flags, bool)

    def _set_newest(self, name: str, number: int) -> None:
        self.execute(f"select setval({_sequence(name)}, ?)", (number,))

    def _without_limits(self) -> None:
        """Let this transaction take as long as it takes, whatever the role's settings are for others."""
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            self.execute(f"set local {name} = 0", ())


def _sequence(name: str) -> str:
    return f"pg_get_serial_sequence('{name}', 'id')::regclass"
