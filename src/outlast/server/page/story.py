"""What became of each attempt, in words: where it went on, how far it came, and why it ended; from stored facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ..outlast_shapes import AttemptShape
from .progress import KEY, Progress, progress_of
from .ribbon import Write

__all__ = ["MARK", "Chapter", "story"]

#: The key of a checkpoint's mark, unless told otherwise; it tells how many items are done, as progress does.
MARK: Final = "last_done"


class Chapter(msgspec.Struct, frozen=True):
    """One attempt: items that were done when it began, items done at its end (of `total`), and why it ended.

    None is what the kept versions do not tell.
    """

    attempt: AttemptShape
    begun_with: int | None
    reached: int | None
    total: int | None

    @property
    def how(self) -> str:
        """How it ended, as a verb."""
        return _HOW.get(self.attempt.state, f"ended as {self.attempt.state.replace('_', ' ')}")

    @property
    def why(self) -> str:
        """Why it ended, as far as that is known; empty while it runs."""
        return self.attempt.error or _WHY.get(self.attempt.state, "")


_HOW: Final = {
    "running": "runs",
    "success": "succeeded",
    "failed": "failed",
    "crashed": "died",
    "paused": "was paused",
    "deferred": "waits for its trigger",
    "cleared": "was cleared",
    "cancelled": "was cancelled",
}
_WHY: Final = {
    "lost": "nobody renewed its claim",
    "fenced": "a newer attempt began",
    "cleared": "somebody had it run again",
    "paused": "its runner was stopped; no retry is used",
}


def story(attempts: Sequence[AttemptShape], writes: Sequence[Write]) -> list[Chapter]:
    """Return a chapter an attempt, oldest first; `writes` are newest first."""
    told = [(write.version.writer.attempt, found) for write in writes if (found := _progress(write)) is not None]
    chapters: list[Chapter] = []
    following: int | None = None
    for attempt in reversed(attempts):
        own = [progress for number, progress in told if number == attempt.number]
        earlier = [progress for number, progress in told if number is not None and number < attempt.number]
        begun_with = _first(progress.begun_with for progress in own)
        done = max((progress.done for progress in own), default=None)
        if not own and earlier:  # its own writes are newer than these, and so would be kept: it has made none
            begun_with = done = max(progress.done for progress in earlier)
        reached = done if following is None else following  # what the next one found is what was recorded
        total = _first(progress.total for progress in (*own, *earlier))
        chapters.append(Chapter(attempt, begun_with, reached, total))
        following = begun_with
    return chapters[::-1]


def _progress(write: Write) -> Progress | None:
    is_told = write.key in (KEY, MARK) and not write.version.deleted and write.version.writer.scope is None
    return progress_of(write.version) if is_told else None


def _first(numbers: Iterable[int | None]) -> int | None:
    return next((number for number in numbers if number is not None), None)
