"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from outlast.values import moment, to_micros

START = to_micros(datetime.fromisoformat("2026-11-29T12:00:00+00:00"))
MICROSECOND = timedelta(microseconds=1)


class Clock:
    """Tells microseconds since the epoch, as `connect(clock=…)` wants it."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def move(self, **span: Any) -> None:
        """Go on (or back) by a timedelta's arguments: `clock.move(days=1)`."""
        self.now += timedelta(**span) // MICROSECOND

    def shows(self) -> datetime:
        """Return the time as people see it."""
        return moment(self.now)
