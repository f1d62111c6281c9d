"""What is written through this server lately: how much a second, and under which keys, in bounded memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from heapq import nlargest
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from ..requests import Commit, Increment, Put, PutDefault, Receipt, Remove
from ..values import Scope
from .submissions import is_found_uncertain

__all__ = ["KEPT", "Hot", "Traffic"]

Key: TypeAlias = tuple[Scope, str]

#: Seconds the rate is of.
MINUTE: Final = 60
#: Seconds after which counting keys begins anew; what was counted in the ones before is told with it.
SPAN: Final = 300.0
#: Keys counted between two cuts, and how many of them a cut leaves.
ROOM, KEPT = 1000, 100
#: Operations of one commit that are looked at.
LOOKED_AT: Final = 1000


class Hot(msgspec.Struct, frozen=True):
    """A key and how often it was written, at least; `per_second` is that over the time it was counted for."""

    scope: Scope
    key: str
    writes: int
    per_second: float


class Traffic:
    """Counts the commits that went well; one a server process, which no other server's commits pass."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self.ticks = ticks
        self.writes = self.uncertain = 0
        self._rate, self._began = _Rate(ticks), ticks()
        self._now, self._before = _Counts(), _Counts()
        self._turned = self._before_began = self._began

    def note(self, commit: Commit, receipt: Receipt) -> None:
        """Count what a commit has written."""
        written = list(islice(_written(commit, receipt), LOOKED_AT))
        self._turn()
        for scope, operation in written:
            self._now.add((scope, operation.name))
            self.uncertain += type(operation) is Put and is_found_uncertain(operation.name, operation.text)
        self.writes += len(written)
        self._rate.add(len(written))

    def per_second(self) -> float:
        """Return how many entries were written a second, over the last minute (or since there is a server)."""
        return self._rate.sum() / min(max(self.ticks() - self._began, 1.0), float(MINUTE))

    def hottest(self, most: int) -> list[Hot]:
        """Return the keys most often written in the last minutes, the hottest first."""
        self._turn()
        seconds = max(self.ticks() - self._before_began, 1.0)
        keys = self._now.of.keys() | self._before.of.keys()
        counted = ((self._now.certain(key) + self._before.certain(key), key) for key in keys)
        found = nlargest(most, counted, key=lambda each: (each[0], each[1][1]))
        return [Hot(*key, writes, writes / seconds) for writes, key in found]

    def _turn(self) -> None:
        now = self.ticks()
        if now - self._turned >= SPAN:
            lately = now - self._turned < 2 * SPAN
            self._before, self._now = (self._now if lately else _Counts()), _Counts()
            self._before_began, self._turned = (self._turned if lately else now), now


def _written(commit: Commit, receipt: Receipt) -> Iterator[tuple[Scope, Any]]:
    """Return the operations that have written a key."""
    for part, revision, rows in zip(commit.parts, receipt.revisions, receipt.rows, strict=False):
        for operation, row in zip(part.operations, rows, strict=False):
            match operation:
                case Put() | Increment():
                    yield part.scope, operation
                case Remove() if row is not None:  # it was there
                    yield part.scope, operation
                case PutDefault() if row is not None and row.revision == revision:  # it was not
                    yield part.scope, operation


class _Rate:
    """Counts by second, for a minute."""

    def __init__(self, ticks: Callable[[], float]) -> None:
        self.ticks = ticks
        self._counts = [0] * MINUTE
        self._at = int(ticks())

    def add(self, number: int) -> None:
        self._go_on()
        self._counts[self._at % MINUTE] += number

    def sum(self) -> int:
        self._go_on()
        return sum(self._counts)

    def _go_on(self) -> None:
        now = int(self.ticks())
        for second in range(max(self._at, now - MINUTE) + 1, now + 1):
            self._counts[second % MINUTE] = 0
        self._at = max(self._at, now)


class _Counts:
    """Counts keys of which there may be no end.

    When there are too many, the least of them go. A key that comes (back) is taken to have as many as the largest that
    went, so that it can last; what it certainly has is counted beside that, and alone is told.
    """

    def __init__(self) -> None:
        self.of: dict[Key, list[int]] = {}
        self._gone = 0

    def add(self, key: Key) -> None:
        count = self.of.get(key)
        if count is None:
            if len(self.of) >= ROOM:
                self._cut()
            count = self.of[key] = [self._gone, 0]
        count[1] += 1

    def certain(self, key: Key) -> int:
        count = self.of.get(key)
        return 0 if count is None else count[1]

    def _cut(self) -> None:
        ranked = nlargest(KEPT + 1, self.of.items(), key=lambda item: sum(item[1]))
        self._gone = sum(ranked[-1][1])
        self.of = dict(ranked[:-1])
