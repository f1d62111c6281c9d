"""Connections nobody uses right now: kept for the next caller for a few seconds, then closed."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["IDLE_SECONDS", "Idle"]

#: Seconds a connection is kept that nobody uses: a database has few of them, and processes are many.
IDLE_SECONDS = 5.0


class Closable(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=Closable)


class Idle(Generic[_C]):
    """What is idle, the newest on top; a timer runs only while there is any, and never across a fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: list[tuple[float, _C]] = []
        self._timer: threading.Timer | None = None
        _all.add(self)

    def __len__(self) -> int:
        return len(self._kept)

    def take(self) -> _C | None:
        """Return the one used last, or None."""
        with self._lock:
            return self._kept.pop()[1] if self._kept else None

    def put(self, connection: _C) -> None:
        """Keep a connection until somebody wants it or its time is up."""
        with self._lock:
            self._kept.append((time.monotonic(), connection))
            self.wait()

    def clear(self) -> None:
        """Close what is kept."""
        with self._lock:
            kept, self._kept = self._kept, []
            self.stop_waiting()
        for _, connection in kept:
            connection.close()

    def wait(self) -> None:
        """See to it that what is kept is closed in time."""
        with self._lock:
            if self._timer is None and self._kept:
                self._timer = threading.Timer(self._kept[0][0] + IDLE_SECONDS - time.monotonic(), self._close_old)
                self._timer.daemon = True
                self._timer.start()

    def stop_waiting(self) -> threading.Timer | None:
        """End the timer and return it, if there is one."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer

    def _close_old(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._timer = None
            since = time.monotonic() - IDLE_SECONDS
            old = [connection for used, connection in self._kept if used <= since]
            self._kept = [kept for kept in self._kept if kept[0] > since]
            self.wait()
        for connection in old:
            connection.close()


_all: weakref.WeakSet[Idle[Any]] = weakref.WeakSet()


def before_fork() -> None:
    """Leave no thread running: a child would have its locks, and newer Pythons warn of it."""
    timers = [idle.stop_waiting() for idle in list(_all)]
    for timer in timers:
        if timer is not None and timer is not threading.current_thread():
            timer.join()


def after_fork() -> None:
    """Go on waiting, in the parent."""
    for idle in list(_all):
        idle.wait()
