"""A clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import MutableSequence
from datetime import datetime, timedelta
from typing import Any

from outlast.values import moment, to_micros

START = to_micros(datetime.fromisoformat("2026-11-29T12:00:00+00:00"))
MICROSECOND = timedelta(microseconds=1)


class Clock:
    """Tells microseconds since the epoch, as `connect(clock=…)` wants it."""

    def __init__(self, now: int = START) -> None:
        self._shown: MutableSequence[int] = [now]

    @property
    def now(self) -> int:
        """Microseconds since the epoch."""
        return self._shown[0]

    @now.setter
    def now(self, now: int) -> None:
        self._shown[0] = now

    def __call__(self) -> int:
        return self._shown[0]

    def share(self, place: MutableSequence[int]) -> None:
        """Keep the time in the first number of a place that other processes see, too."""
        place[0], self._shown = self._shown[0], place

    def move(self, **span: Any) -> None:
        """Go on (or back) by a timedelta's arguments: `clock.move(days=1)`."""
        self.now += timedelta(**span) // MICROSECOND

    def shows(self) -> datetime:
        """Return the time as people see it."""
        return moment(self.now)


class Ticks:
    """A monotonic clock, in seconds, that goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
