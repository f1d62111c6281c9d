"""The tables of a store as a backup keeps them, and what a database has to do for one.

Rows are lists of numbers, texts and null, the same from every database: bytes are hexadecimal text, flags 0 or 1. What
is not here begins anew in a restored store: the feed, and receipts of calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

__all__ = ["NUMBERED", "TABLES", "StoredRow", "Table", "Tables"]

StoredRow: TypeAlias = "Sequence[int | str | None]"


class Table(msgspec.Struct, frozen=True):
    """A table: its columns, the order of its rows, which columns hold bytes or flags, whether it lets somebody in."""

    name: str
    columns: tuple[str, ...]
    order: str
    binary: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    access: bool = False


def _table(name: str, columns: str, order: str, **more: Any) -> Table:
    return Table(name, tuple(columns.split()), order, **more)


#: What is kept, in the order it is written. The task instances of a run stay in the order they were made.
TABLES: Final = {
    table.name: table
    for table in (
        _table(
            "scope",
            "id digest dag_id run_id task_id map_index item asset_name asset_uri revision fence floor changed_at"
            " sweep_at item_digest reserved_attempt done origin started_at fenced_at",
            "id",
            binary=frozenset({"digest"}),
        ),
        _table(
            "entry", "scope_id name value revision updated_at expires_at writer version kept ring", "scope_id, name"
        ),
        _table("history", "scope_id name slot value revision updated_at writer version", "scope_id, name, slot"),
        _table(
            "run",
            "id dag_id run_id state params file digest logical_date created_at started_at ended_at holder lease_until"
            " events",
            "id",
        ),
        _table(
            "task",
            "scope_id run state attempt reserved failures crashes due_at lease_until started_at ended_at error"
            " supervisor child upstream mapped next_method next_kwargs trigger_path trigger_kwargs deferrals deadline"
            " event clear_on_success discard_on_clear aftermath cancel_due",
            "scope_id",
            flags=frozenset({"clear_on_success", "discard_on_clear"}),
        ),
        _table("attempt", "scope_id number state started_at ended_at supervisor error", "scope_id, number"),
        _table("result", "scope_id name value", "scope_id, name"),
        _table("audit", "id at who action place dag_id name old new", "id"),
        _table("asset_event", "id asset_name asset_uri at dag_id run_id task_id map_index extra", "id"),
        _table("consumer", "dag_id seen", "dag_id"),
        _table("watcher", "digest holder lease_until", "digest"),
        _table(
            "token",
            "id digest role name dags created_at expires_at revoked_at used_at",
            "id",
            binary=frozenset({"digest"}),
            access=True,
        ),
        _table("secret", "id content created_at", "id", binary=frozenset({"content"}), access=True),
    )
}

#: Tables whose ids are never given twice.
NUMBERED: Final = ("scope", "run", "audit", "asset_event", "token")


class Tables(Protocol):
    """The tables of one database, inside a transaction the caller holds."""

    backend: str

    def schema(self) -> int:
        """Return the version of the schema."""
        ...

    def rows(self, table: Table, columns: Sequence[str]) -> Iterator[StoredRow]:
        """Yield the rows of a table, one in memory at a time."""
        ...

    def counts(self) -> dict[str, int]:
        """Return how many rows there are in each table that has any."""
        ...

    def newest(self) -> dict[str, int]:
        """Return for each numbered table the newest id it has ever given, also to what is gone."""
        ...

    def lock(self) -> None:
        """Keep everybody else from writing until the transaction ends."""
        ...

    def fill(self, table: Table, columns: Sequence[str], rows: Iterable[StoredRow]) -> None:
        """Add rows as `stored` has returned them."""
        ...

    def stored(self, row: StoredRow) -> StoredRow:
        """Return a row as this database can keep it."""
        ...

    def begin_anew(self, newest: dict[str, int], who: str, about: str, now: int) -> None:
        """Give no id again and begin a new feed, in which no position of another one means anything; audit it."""
        ...
