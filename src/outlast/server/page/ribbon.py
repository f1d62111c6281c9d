"""The attempt ribbon: attempts as bars on one time axis, each write a tick in its attempt's lane; pure geometry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from ..outlast_shapes import AttemptShape
from .shapes import Version

__all__ = ["WIDTH", "Lane", "Pause", "Ribbon", "Tick", "Write", "ribbon"]

#: Units of the axis; the drawing is stretched to whatever room there is.
WIDTH: Final = 1000.0
#: Attempts and writes drawn at most, the newest.
MOST_LANES, MOST_TICKS = 40, 600
#: A pause is cut short to so many units where it is so many times as long as all attempts together, and not of a few
#: seconds only; the longest are.
_CUT, _LONG, _SECONDS, _MOST_CUTS = 30.0, 2, 10, 8


class Write(msgspec.Struct, frozen=True):
    """One step of one key's history."""

    key: str
    version: Version


class Tick(msgspec.Struct, frozen=True):
    """A write, and where on the axis."""

    x: float
    write: Write


class Lane(msgspec.Struct, frozen=True):
    """One attempt's bar and the writes in it; without an attempt, writes of people and programs."""

    attempt: AttemptShape | None
    x: float
    width: float
    ticks: list[Tick]


class Pause(msgspec.Struct, frozen=True):
    """A long time in which nothing ran and nothing was written, cut short on the axis."""

    begin: datetime
    end: datetime
    x: float = 0
    width: float = _CUT

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.end - self.begin).total_seconds()


class Ribbon(msgspec.Struct, frozen=True):
    """All lanes, oldest attempt first, and what the axis spans."""

    lanes: list[Lane]
    begin: datetime
    end: datetime
    left_out: int
    pauses: list[Pause]


def ribbon(attempts: Sequence[AttemptShape], writes: Sequence[Write], now: datetime) -> Ribbon | None:
    """Return the drawing, None where nothing has happened. `writes` are newest first."""
    shown, drawn = attempts[-MOST_LANES:], writes[:MOST_TICKS]
    busy = [(attempt.started_at, attempt.ended_at or now) for attempt in shown]
    stretches = sorted([*busy, *((write.version.at, write.version.at) for write in drawn)])
    if not stretches:
        return None
    begin, end = stretches[0][0], max(last for _, last in stretches)
    pauses = _pauses(stretches, sum((last - first).total_seconds() for first, last in busy))
    span = (end - begin).total_seconds() - sum(pause.seconds for pause in pauses) or 1.0

    def place(moment: datetime) -> float:
        passed = [pause for pause in pauses if pause.end <= moment]
        seconds = (moment - begin).total_seconds() - sum(pause.seconds for pause in passed)
        return round(seconds / span * (WIDTH - _CUT * len(pauses)) + _CUT * len(passed), 2)

    by_attempt: dict[int | None, list[Tick]] = {}
    numbers = {attempt.number for attempt in shown}
    for write in drawn:
        number = write.version.writer.attempt if write.version.writer.scope is None else None
        lane = number if number in numbers else None
        by_attempt.setdefault(lane, []).append(Tick(place(write.version.at), write))
    lanes = [_lane(attempt, place(attempt.started_at), place(attempt.ended_at or now), by_attempt) for attempt in shown]
    if None in by_attempt:
        lanes.append(Lane(None, 0, 0, by_attempt[None]))
    placed = [msgspec.structs.replace(pause, x=place(pause.begin)) for pause in pauses]
    return Ribbon(lanes, begin, end, len(attempts) - len(shown), placed)


def _pauses(stretches: Sequence[tuple[datetime, datetime]], busy: float) -> list[Pause]:
    """Return the pauses between stretches (by their beginning) that are cut short, none where no attempt took time."""
    found: list[Pause] = []
    end = stretches[0][1]
    for first, last in stretches:
        if busy and (first - end).total_seconds() > max(_LONG * busy, _SECONDS):
            found.append(Pause(end, first))
        end = max(end, last)
    longest = sorted(found, key=lambda pause: pause.seconds, reverse=True)[:_MOST_CUTS]
    return sorted(longest, key=lambda pause: pause.begin)


def _lane(attempt: AttemptShape, start: float, end: float, ticks: dict[int | None, list[Tick]]) -> Lane:
    return Lane(attempt, start, max(round(end - start, 2), 3.0), ticks.get(attempt.number, []))
