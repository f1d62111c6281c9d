"""Says once that a server is away while calls wait for it, and once that it is back."""

from __future__ import annotations

import logging
import threading
import time

__all__ = ["Outage"]

logger = logging.getLogger("outlast")

#: Seconds after which somebody who waits is told why.
TOLD_AFTER = 3.0


class Outage:
    """What is known of one server's absence, by the calls of every thread that wait for it."""

    def __init__(self, place: str, patience: float) -> None:
        self.place, self.patience = place, patience
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told = False

    def goes_on(self) -> None:
        """Note that a try has failed and another is to come; say so if that has lasted."""
        now = time.monotonic()
        with self._lock:
            if self._since is None or (not self._told and now - self._since > self.patience + TOLD_AFTER):
                self._since = now  # or the one before ended with calls that were given up
            tell = not self._told and now - self._since >= TOLD_AFTER
            self._told = self._told or tell
        if tell:
            logger.warning("%s cannot be reached; trying for up to %g s", self.place, self.patience)

    def over(self) -> None:
        """Note that a call was answered."""
        if self._since is None:
            return
        with self._lock:
            since, told = self._since, self._told
            self._since, self._told = None, False
        if told and since is not None:
            logger.warning("%s is back after %.0f s", self.place, time.monotonic() - since)
