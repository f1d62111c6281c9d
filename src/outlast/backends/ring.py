"""What a key held before: a ring of past rows, one write each and never a delete while the setting stays.

A past row's place is its version modulo the size of the ring. The entry remembers the size its ring was
filled with; where the setting has changed since, the key's past rows are laid out anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .. import rules
from ..requests import Row
from .execute import Execute
from .rows import read_row, upsert, writer_text

__all__ = ["HISTORY_BYTES", "Ring"]

#: Bytes of past values kept for one key, at most.
HISTORY_BYTES = 1024 * 1024

_PAST = "value, revision, updated_at, writer, version"


class Ring:
    """The past rows of keys. `versions` counts the present one too: 1 keeps no past, 0 shows no history at all."""

    def __init__(self, execute: Execute, versions: int) -> None:
        self.execute, self.is_on, self.size = execute, versions > 0, max(versions - 1, 0)

    def forget(self, scope_id: int, names: Iterable[str]) -> None:
        """Remove every past row of some keys."""
        for name in names:
            self.execute("delete from history where scope_id = ? and name = ?", (scope_id, name))

    def keep(self, past: Sequence[tuple[int, Row]]) -> None:
        """Put past rows, each with its scope's id, into their keys' rings."""
        if self.size:
            fitting = {
                (scope_id, row.name, row.version % self.size): self._columns(scope_id, row)
                for scope_id, row in past
                if rules.size_of(row.text) <= HISTORY_BYTES
            }
            upsert(self.execute, "history", "scope_id, name, slot", _PAST, list(fitting.values()))

    def following(self, scope_id: int, row: Row) -> Row:
        """Return a row that follows what is kept of its past, as it is to be stored."""
        if not self.size:
            return msgspec.structs.replace(row, kept=0, ring=0) if row.kept or row.ring else row
        kept = self._trim(scope_id, row) if row.kept > HISTORY_BYTES else row.kept
        if kept == row.kept and row.ring == self.size:
            return row
        return msgspec.structs.replace(row, kept=kept, ring=self.size)

    def _columns(self, scope_id: int, row: Row) -> tuple[Any, ...]:
        by = writer_text(row.writer)
        return scope_id, row.name, row.version % self.size, row.text, row.revision, row.updated_at, by, row.version

    def _trim(self, scope_id: int, row: Row) -> int:
        """Drop past values above HISTORY_BYTES, the oldest first and without a gap; return the bytes that stay."""
        kept, expected, dropping = 0, row.version - 1, False
        for slot, version, size in self.execute(
            "select slot, version, coalesce(octet_length(value), 0) from history where scope_id = ? and name = ?"
            " order by version desc",
            (scope_id, row.name),
        ):
            dropping = dropping or version != expected or kept + size > HISTORY_BYTES
            if dropping:
                self.execute(
                    "delete from history where scope_id = ? and name = ? and slot = ?", (scope_id, row.name, slot)
                )
            else:
                kept, expected = kept + size, expected - 1
        return kept

    def lay_out(self, scope_id: int, row: Row) -> None:
        """Place a key's newest past rows anew after the size of the ring has changed."""
        rows = self._past(scope_id, row, self.size) if self.size else []
        self.forget(scope_id, [row.name])
        self.keep([(scope_id, past) for past in rows])

    def _past(self, scope_id: int, row: Row, most: int) -> list[Row]:
        found = self.execute(
            "select name, value, revision, updated_at, null, writer, version, 0, 0 from history"
            " where scope_id = ? and name = ? and version < ? order by version desc limit ?",
            (scope_id, row.name, row.version, most),
        )
        return [read_row(columns) for columns in found]

    def versions(self, scope_id: int, row: Row) -> tuple[Row, ...]:
        """Return a key's versions, its present row first."""
        return (row, *self._past(scope_id, row, self.size)) if self.is_on else ()
