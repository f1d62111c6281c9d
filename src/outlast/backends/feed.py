"""What changed anywhere in a store, in the order it was committed: a log of commits, read into the newest rows.

A commit leaves one row a scope; what it wrote is read from the entries, so that several writes of one key arrive
as one. What a scope that was removed had leaves a row of its own, which names it. Positions are text: the feed's epoch,
a number, and a key's name where a reader has stopped inside a commit.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

import msgspec

from ..requests import LIBRARY, Feed, FeedPage, Happened, Row
from ..values import Scope
from .execute import Dialect, Execute
from .paging import page_of, read_large, sized
from .rows import ALIVE, COLUMNS, SCOPE_COLUMNS, marks, padded, read_row, read_scope

__all__ = ["FeedSQL"]

#: A number in the feed; its meaning is the dialect's.
_Number = tuple[int, ...]

#: Bytes of a value that is read before it is known what the page has room for.
_SMALL = 1024
#: Keys of a removed scope that one row of the feed names.
_TOGETHER = 64

#: What fits into 64 bits.
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})*")

_encode = msgspec.json.Encoder().encode
_run = msgspec.json.Decoder(tuple[str, str]).decode


class _Gone(msgspec.Struct, frozen=True):
    """Keys of a scope that are there no more because it is not, as it was called, and since when."""

    scope: Scope
    at: int
    names: tuple[str, ...]


_gone = msgspec.json.Decoder(_Gone).decode


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

    def announce(self, scope_id: int, now: int) -> None:
        """Note every entry of a scope again, because it has another name than those who follow it know."""
        found = self.execute(
            f"select distinct revision from entry where scope_id = ? and {ALIVE} order by revision", (scope_id, now)
        )
        if found:
            self.record([(scope_id, revision) for (revision,) in found], now)

    def gone(self, scope_ids: Sequence[int], now: int, place: Scope | None = None) -> None:
        """Note that the entries of scopes are there no more, or (`place`) not under that one of a scope's names."""
        for part in padded(scope_ids):
            rows = self.execute(
                f"select {SCOPE_COLUMNS}, scope.revision, name from scope join entry on entry.scope_id = scope.id"
                f" where scope.id in ({marks(part)}) and {ALIVE} order by scope.id, name",
                (*part, now),
            )
            for scope, found in groupby(rows, lambda row: row[:-1]):
                names = [row[-1] for row in found]
                for start in range(0, len(names), _TOGETHER):
                    gone = _Gone(place or read_scope(scope), now, tuple(names[start : start + _TOGETHER]))
                    self.execute(
                        "insert into feed (at, scope_id, revision, run) values (?, ?, ?, ?)",
                        (now, scope[0], scope[-1] + 1, _encode(gone).decode()),
                    )

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, request: Feed, now: int) -> FeedPage:
        """Return what has happened after a position; `reset` when that is not known any more."""
        epoch, floor = self._fact("feed_epoch"), _number(self._fact("feed_floor"))
        after = _position(request.after, epoch)
        newest = self._newest(floor, self.settled)
        if request.after is None:
            latest = self._newest(floor) if self.settled else newest
            return FeedPage((), _text(epoch, newest), latest=_text(epoch, latest))
        if after is None or len(after[0]) != len(floor) or not floor <= after[0] <= newest:
            return FeedPage((), _text(epoch, newest), True, False)
        number, name = after
        rows = self._after(number, name, request.limit)
        found = self._happened(rows, epoch, after)
        page, _ = page_of(each for each in found)
        happened = tuple(self._whole(page))
        if len(page) < len(found):
            return FeedPage(happened, page[-1][2].position, False, True)
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
    ) -> list[tuple[_Number, str, Happened, int]]:
        """Return what has happened, in order, each with its number, its key, and the bytes of its value."""
        written: dict[int, dict[int, _Number]] = {}
        runs: dict[str, _Number] = {}
        found: list[tuple[_Number, str, Happened, int]] = []
        for number, scope_id, revision, run in rows:
            if scope_id is not None and run is not None:
                found += self._of_gone(_gone(run), scope_id, revision, epoch, number)
            elif scope_id is not None:
                written.setdefault(scope_id, {})[revision] = number
            elif number > after[0]:
                runs[run] = number
        found = [each for each in found if each[0] > after[0] or each[1] > (after[1] or "")]
        found += [(number, "", self._of_run(run, epoch, number), 0) for run, number in runs.items()]
        for scope_id, numbers in written.items():
            for place, row, size in self._rows(scope_id, min(numbers)):
                at = numbers.get(row.revision)
                if at is not None and (at > after[0] or row.name > (after[1] or "")):
                    found.append((at, row.name, Happened(_text(epoch, at, row.name), scope_id, place, row), size))
        found.sort(key=lambda item: item[:2])
        return found

    def _whole(self, page: Sequence[tuple[_Number, str, Happened, int]]) -> Iterator[Happened]:
        """Yield what happened with large values, too; what was written again meanwhile comes with that later commit."""
        lacking = [(each.scope_id, row.name) for _, _, each, size in page if (row := _lacking(each, size))]
        large = read_large(self.execute, lacking)
        for _, _, each, size in page:
            row = _lacking(each, size)
            if row is None:
                yield each
                continue
            whole = large.get((each.scope_id, row.name))
            if whole is not None and whole.revision == row.revision:
                yield msgspec.structs.replace(each, row=whole)

    def _of_gone(
        self, gone: _Gone, scope_id: int, revision: int, epoch: str, number: _Number
    ) -> Iterator[tuple[_Number, str, Happened, int]]:
        for name in gone.names:
            row = Row(name, None, revision, gone.at, None, LIBRARY)
            yield number, name, Happened(_text(epoch, number, name), scope_id, gone.scope, row), 0

    def _of_run(self, run: str, epoch: str, number: _Number) -> Happened:
        return Happened(_text(epoch, number), run=_run(run))

    def _rows(self, scope_id: int, revision: int) -> Iterable[tuple[Any, Row, int]]:
        places = self.execute(f"select {SCOPE_COLUMNS} from scope where id = ?", (scope_id,))
        if not places:
            return []
        place = read_scope(places[0])
        found = self.execute(
            f"select {sized(COLUMNS)} from entry where scope_id = ? and revision >= ?", (_SMALL, scope_id, revision)
        )
        return [(place, read_row(columns[:-1]), columns[-1] or 0) for columns in found]

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

    def _newest(self, floor: _Number, settled: str = "") -> _Number:
        columns = ", ".join(f"{column} desc" for column in self.number)
        rows = self.execute(f"select {self.selected} from feed where true{settled} order by {columns} limit 1", ())
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


def _lacking(happened: Happened, size: int) -> Row | None:
    """Return the row of what happened if its value was too large to be read at once."""
    return happened.row if size and happened.row is not None and happened.row.text is None else None


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
