"""How far a task is, from the entry `checkpoint` keeps: done, total, rate, time left, and whether it stands still."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from ..run_progress import KEY, ProgressShape, stored
from .shapes import Entry, Version

__all__ = ["KEY", "Progress", "progress_of", "progress_told"]

#: Seconds without a write after which a task that runs may stand still, if its items are not slower than that anyway.
_QUIET: Final = 15.0
#: A slow task is one whose items take their time; a stalled one has let so many of them pass.
_MISSED: Final = 5
#: Seconds that are no forecast any more: a task may have stored any numbers.
_FOR_EVER: Final = 1e10


class Progress(msgspec.Struct, frozen=True):
    """Items done (of how many, if that is known), items a second, when that was written, done when it began."""

    done: int
    total: int | None
    rate: float | None
    at: datetime
    begun_with: int | None = None

    @property
    def percent(self) -> int | None:
        """Whole percents, 100 only when all is done; None where there is no total."""
        if not self.total:
            return None
        return min(100, self.done * 100 // self.total)

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None where that is not known."""
        if self.total is None or not self.rate:
            return None
        return _quotient(max(self.total - self.done, 0), self.rate)

    @property
    def patience(self) -> float:
        """Seconds after which it counts as standing still."""
        return max(_QUIET, (_quotient(_MISSED, self.rate) or _FOR_EVER) if self.rate else 0.0)

    def is_stalled(self, now: datetime) -> bool:
        """Say whether nothing was done for so long that it is not just slow."""
        unfinished = self.total is None or self.done < self.total
        return unfinished and (now - self.at).total_seconds() > self.patience


def _quotient(items: int, rate: float) -> float | None:
    """Return how many seconds items take, None where that is as good as for ever."""
    return items / rate if items < _FOR_EVER and items < rate * _FOR_EVER else None


def progress_of(told: Entry | Version) -> Progress | None:
    """Return what an entry, or a version of it, says of progress, None if it says something else."""
    found = None if told.masked else stored(told.value)
    at = told.at if isinstance(told, Version) else told.updated_at
    return None if found is None else Progress(found.done, found.total, found.rate, at, found.begun_with)


def progress_told(shape: ProgressShape) -> Progress:
    """Return what the API says of a task instance's progress."""
    return Progress(shape.done, shape.total, shape.rate, shape.updated_at, shape.begun_with)
