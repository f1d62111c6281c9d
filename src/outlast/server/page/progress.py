"""How far a task is, from the entry `checkpoint` keeps: done, total, rate, time left, and whether it stands still."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec

from .shapes import Entry

__all__ = ["KEY", "Progress", "progress_of"]

#: The key `checkpoint` writes, unless told otherwise.
KEY: Final = "progress"
#: Seconds without a write after which a task that runs may stand still, if its items are not slower than that anyway.
_QUIET: Final = 15.0
#: A slow task is one whose items take their time; a stalled one has let so many of them pass.
_MISSED: Final = 5

_Whole = Annotated[int, msgspec.Meta(ge=0)]


class _Stored(msgspec.Struct):
    done: _Whole
    total: _Whole | None = None
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None


class Progress(msgspec.Struct, frozen=True):
    """Items done (of how many, if that is known), items a second, and when that was written."""

    done: int
    total: int | None
    rate: float | None
    at: datetime

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
        return max(self.total - self.done, 0) / self.rate

    @property
    def patience(self) -> float:
        """Seconds after which it counts as standing still."""
        return max(_QUIET, _MISSED / self.rate if self.rate else 0.0)

    def is_stalled(self, now: datetime) -> bool:
        """Say whether nothing was done for so long that it is not just slow."""
        unfinished = self.total is None or self.done < self.total
        return unfinished and (now - self.at).total_seconds() > self.patience


def progress_of(entry: Entry) -> Progress | None:
    """Return what an entry says of progress, None if it says something else."""
    if entry.masked:
        return None
    try:
        stored = msgspec.json.decode(entry.value, type=_Stored)
    except msgspec.MsgspecError:
        return None
    return Progress(stored.done, stored.total, stored.rate, entry.updated_at)
