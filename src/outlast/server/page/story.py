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

    None is what the kept versions do not tell. `wrote` says whether any kept version is its own.
    """

    attempt: AttemptShape
    begun_with: int | None
    reached: int | None
    total: int | None
    wrote: bool

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
    told = [write for write in writes if write.key in (KEY, MARK) and write.version.writer.scope is None]
    chapters: list[Chapter] = []
    following: int | None = None
    for attempt in reversed(attempts):
        own = [write for write in told if write.version.writer.attempt == attempt.number]
        found, is_recorded = _found(attempt, told, own)
        progress = [each for write in own if (each := _progress(write)) is not None]
        begun_with = _first(each.begun_with for each in progress)
        begun_with = found if begun_with is None else begun_with
        known = [done for done in (*(each.done for each in progress), following) if done is not None]
        if not own and begun_with is not None:  # its writes would be kept longer than what it found: it made none
            known.append(begun_with)
        total = _first(each.total for write in told if _is_by(write, attempt.number) and (each := _progress(write)))
        wrote = any(write.version.writer.attempt == attempt.number for write in writes)
        chapters.append(Chapter(attempt, begun_with, max(known, default=None), total, wrote))
        following = begun_with if is_recorded else None  # what the next attempt found is what this one recorded
    return chapters[::-1]


def _found(attempt: AttemptShape, told: Sequence[Write], own: Sequence[Write]) -> tuple[int | None, bool]:
    """Return how many items were done as an attempt began, and whether an attempt left it so, not somebody else."""
    first = min((write.version.revision for write in own), default=None)
    earlier = [write for write in told if _is_earlier(write, attempt, first)]
    newest = {write.key: write for write in reversed(earlier)}
    write = newest.get(MARK) or newest.get(KEY)
    if write is None:
        return None, True
    is_recorded = write.version.writer.attempt is not None and not write.version.deleted
    if write.version.deleted:
        return 0, is_recorded
    progress = _progress(write)
    return None if progress is None else progress.done, is_recorded


def _is_earlier(write: Write, attempt: AttemptShape, first: int | None) -> bool:
    """Compare by revisions where the attempt has some: clocks of different machines do not agree."""
    if first is not None:
        return write.version.revision < first
    number = write.version.writer.attempt
    return number < attempt.number if number is not None else write.version.at <= attempt.started_at


def _is_by(write: Write, number: int) -> bool:
    """Say whether an attempt, or one before it, made a write."""
    by = write.version.writer.attempt
    return by is not None and by <= number


def _progress(write: Write) -> Progress | None:
    return None if write.version.deleted else progress_of(write.version)


def _first(numbers: Iterable[int | None]) -> int | None:
    return next((number for number in numbers if number is not None), None)
