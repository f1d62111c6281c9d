"""The attempt ribbon: attempts as bars on one time axis, each write a tick in its attempt's lane; pure geometry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from ..outlast_shapes import AttemptShape
from .shapes import Version

__all__ = ["WIDTH", "Lane", "Ribbon", "Tick", "Write", "ribbon"]

#: Units of the axis; the drawing is stretched to whatever room there is.
WIDTH: Final = 1000.0
#: Attempts and writes drawn at most, the newest.
MOST_LANES, MOST_TICKS = 40, 600


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


class Ribbon(msgspec.Struct, frozen=True):
    """All lanes, oldest attempt first, and what the axis spans."""

    lanes: list[Lane]
    begin: datetime
    end: datetime
    left_out: int


def ribbon(attempts: Sequence[AttemptShape], writes: Sequence[Write], now: datetime) -> Ribbon | None:
    """Return the drawing, None where nothing has happened. `writes` are newest first."""
    shown, drawn = attempts[-MOST_LANES:], writes[:MOST_TICKS]
    moments = [write.version.at for write in drawn]
    for attempt in shown:
        moments += [attempt.started_at, attempt.ended_at or now]
    if not moments:
        return None
    begin, end = min(moments), max(moments)
    span = (end - begin).total_seconds() or 1.0

    def place(moment: datetime) -> float:
        return round((moment - begin).total_seconds() / span * WIDTH, 2)

    by_attempt: dict[int | None, list[Tick]] = {}
    numbers = {attempt.number for attempt in shown}
    for write in drawn:
        number = write.version.writer.attempt if write.version.writer.scope is None else None
        lane = number if number in numbers else None
        by_attempt.setdefault(lane, []).append(Tick(place(write.version.at), write))
    lanes = [_lane(attempt, place(attempt.started_at), place(attempt.ended_at or now), by_attempt) for attempt in shown]
    if None in by_attempt:
        lanes.append(Lane(None, 0, 0, by_attempt[None]))
    return Ribbon(lanes, begin, end, len(attempts) - len(shown))


def _lane(attempt: AttemptShape, start: float, end: float, ticks: dict[int | None, list[Tick]]) -> Lane:
    return Lane(attempt, start, max(round(end - start, 2), 3.0), ticks.get(attempt.number, []))
