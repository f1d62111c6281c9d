"""What changed anywhere in a store, in the order it was committed: a log of commits, read into the newest rows.

A commit leaves one row a scope; what it wrote is read from the entries, so that several writes of one key arrive
as one. Positions are text: the feed's epoch, a number, and a key's name where a reader has stopped inside a commit.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from ..requests import Feed, FeedPage, Happened
from .execute import Dialect, Execute
from .rows import COLUMNS, SCOPE_COLUMNS, read_row, read_scope

__all__ = ["FeedSQL"]

#: A number in the feed; its meaning is the dialect's.
_Number = tuple[int, ...]

#: What fits into 64 bits.
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})*")

_encode = msgspec.json.Encoder().encode
_run = msgspec.json.Decoder(tuple[str, str]).decode


class FeedSQL:
    """Writes and reads the feed through one connection."""

    def __init__(self, execute: Execute, dialect: Dialect) -> None:
        self.execute, self.settled, self.selected = execute, dialect.settled, dialect.selected
        self.number, self.marks = dialect.number, dialect.number_marks

    # --- writing -----------------------------------------------------------------------------------------

    def record(self, commits: Sequence[tuple[int, int]], now: int) -> None:
        """Note commits, each as its scope's id with the revision it brought that to."""
        if len(commits) == 1:
            self.execute("insert into feed (at, scope_id, revision) values (?, ?, ?)", (now, *commits[0]))
            return
        for start in range(0, len(commits), 64):
            part = commits[start : start + 64]
            places = ", ".join(["(?, ?, ?)"] * len(part))
            values = list(chain.from_iterable((now, *commit) for commit in part))
            self.execute(f"insert into feed (at, scope_id, revision) values {places}", values)

    def run_changed(self, dag_id: str, run_id: str, now: int) -> None:
        """Note that a run or one of its task instances is not as it was, or is no more."""
        self.execute("insert into feed (at, run) values (?, ?)", (now, _encode((dag_id, run_id)).decode()))

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, request: Feed, now: int) -> FeedPage:
        """Return what has happened after a position; `reset` when that is not known any more."""
        epoch, floor = self._fact("feed_epoch"), _number(self._fact("feed_floor"))
        after = _position(request.after, epoch)
        newest = self._newest(floor)
        if after is None or len(after[0]) != len(floor) or not floor <= after[0] <= newest:
            return FeedPage((), _text(epoch, newest), request.after is not None, False)
        number, name = after
        rows = self._after(number, name, request.limit)
        happened = tuple(self._happened(rows, epoch, after))
        end = rows[-1][0] if rows else number
        position = _text(epoch, end) if rows or name is None else _text(epoch, number, name)
        return FeedPage(happened, position, False, len(rows) == request.limit)

    def _after(self, number: _Number, name: str | None, limit: int) -> list[tuple[_Number, Any, Any, Any]]:
        columns, compared = ", ".join(self.number), ">" if name is None else ">="
        found = self.execute(
            f"select {self.selected}, scope_id, revision, run from feed where ({columns}) {compared} ({self.marks})"
            f"{self.settled} order by {columns} limit ?",
            (*number, limit),
        )
        width = len(self.number)
        return [(tuple(row[:width]), *row[width:]) for row in found]

    def _happened(
        self, rows: Iterable[tuple[_Number, Any, Any, Any]], epoch: str, after: tuple[_Number, str | None]
    ) -> Iterable[Happened]:
        written: dict[int, dict[int, _Number]] = {}
        runs: dict[str, _Number] = {}
        for number, scope_id, revision, run in rows:
            if scope_id is not None:
                written.setdefault(scope_id, {})[revision] = number
            elif number > after[0]:
                runs[run] = number
        found = [(number, "", self._of_run(run, epoch, number)) for run, number in runs.items()]
        for scope_id, numbers in written.items():
            for place, row in self._rows(scope_id, min(numbers)):
                at = numbers.get(row.revision)
                if at is not None and (at > after[0] or row.name > (after[1] or "")):
                    found.append((at, row.name, Happened(_text(epoch, at, row.name), scope_id, place, row)))
        found.sort(key=lambda item: item[:2])
        return [happened for _, _, happened in found]

    def _of_run(self, run: str, epoch: str, number: _Number) -> Happened:
        return Happened(_text(epoch, number), run=_run(run))

    def _rows(self, scope_id: int, revision: int) -> Iterable[tuple[Any, Any]]:
        places = self.execute(f"select {SCOPE_COLUMNS} from scope where id = ?", (scope_id,))
        if not places:
            return []
        place = read_scope(places[0])
        found = self.execute(f"select {COLUMNS} from entry where scope_id = ? and revision >= ?", (scope_id, revision))
        return [(place, read_row(columns)) for columns in found]

    # --- pruning, and where it begins ------------------------------------------------------------------------

    def oldest(self) -> int | None:
        """Return when the oldest row was written."""
        rows = self.execute(f"select at from feed order by {', '.join(self.number)} limit 1", ())
        return rows[0][0] if rows else None

    def prune(self, before: int, limit: int) -> int:
        """Remove at most so many rows that are older; the newest stays, so that no number is used again."""
        columns, width = ", ".join(self.number), len(self.number)
        rows = self.execute(f"select {self.selected}, at from feed order by {columns} limit ?", (limit + 1,))
        old = [tuple(row[:width]) for row in rows[:-1] if row[width] <= before]
        if old:
            self.execute(f"delete from feed where ({columns}) <= ({self.marks})", old[-1])
            self._note("feed_floor", ".".join(map(str, old[-1])))
        return len(old)

    def _newest(self, floor: _Number) -> _Number:
        columns = ", ".join(f"{column} desc" for column in self.number)
        rows = self.execute(f"select {self.selected} from feed where true{self.settled} order by {columns} limit 1", ())
        return tuple(rows[0]) if rows else floor

    def begin(self) -> None:
        """Give the feed of a new or a restored store its epoch: positions from before mean nothing in it."""
        self._note("feed_epoch", secrets.token_hex(4))
        self._note("feed_floor", ".".join(["0"] * len(self.number)))

    def _fact(self, name: str) -> str:
        return self.execute("select content from meta where name = ?", (name,))[0][0]  # type: ignore[no-any-return]

    def _note(self, name: str, content: str) -> None:
        self.execute(
            "insert into meta (name, content) values (?, ?)"
            " on conflict (name) do update set content = excluded.content",
            (name, content),
        )


def _number(text: str) -> _Number:
    return tuple(map(int, text.split(".")))


def _text(epoch: str, number: _Number, name: str | None = None) -> str:
    place = f"{epoch}:{'.'.join(map(str, number))}"
    return place if name is None else f"{place}:{name}"


def _position(text: str | None, epoch: str) -> tuple[_Number, str | None] | None:
    """Read a position; None if it is not one of this feed."""
    given, _, rest = (text or "").partition(":")
    number, separator, name = rest.partition(":")
    if given != epoch or not _NUMBER.fullmatch(number):
        return None
    return _number(number), name if separator else None
