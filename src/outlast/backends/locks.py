"""The lock that writers of several processes get in turn, after a bounded wait."""

from __future__ import annotations

import os
import threading
from functools import partial

try:
    import fcntl
except ImportError:  # Windows, which the SQLite backend refuses
    fcntl = None  # type: ignore[assignment]

from ..errors import BackendError

__all__ = ["FileLock"]


class FileLock:
    """A lock between processes: an exclusive `flock` on a side file.

    A second side file is the turnstile before it. Who waits for the lock stands in the turnstile, so
    that a process which has just released the lock comes after one that waits.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self._turn = os.open(self.path + ".turn", os.O_CREAT | os.O_RDWR, 0o666)
        self._lock = os.open(self.path + ".lock", os.O_CREAT | os.O_RDWR, 0o666)
        #: Let go. Made so, no interrupt comes between the call and its effect.
        self.release = partial(fcntl.flock, self._lock, fcntl.LOCK_UN)

    def acquire(self, seconds: float) -> None:
        """Take the lock; raises BackendError when it was not to be had within `seconds`."""
        try:
            try:
                _take(self._turn, self._lock, fcntl.LOCK_NB)
            except BlockingIOError:
                self._wait(seconds)
        except BaseException:
            self.release()
            raise

    def _wait(self, seconds: float) -> None:
        """Wait in the kernel's queue, in a thread: a blocking flock has no time limit of its own."""
        turn, lock, got, settled = self._turn, self._lock, threading.Event(), threading.Lock()
        given_up = False

        def wait() -> None:
            _take(turn, lock)
            with settled:
                if not given_up:
                    got.set()
                    return
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing would not do while a forked child has it open as well
            os.close(lock)
            os.close(turn)

        threading.Thread(target=wait, name="outlast-lock", daemon=True).start()
        try:
            got.wait(seconds)
        finally:
            with settled:
                given_up = not got.is_set()
            if given_up:
                self._open()  # the old ones are the thread's now
        if given_up:
            raise BackendError(
                f"another process has held {self.path}.lock for {seconds:.0f} s; is one stopped, or in a debugger? "
                "see `outlast doctor`"
            )

    def close(self) -> None:
        """Close the side files."""
        os.close(self._lock)
        os.close(self._turn)


def _take(turn: int, lock: int, how: int = 0) -> None:
    """Take the lock by way of the turnstile."""
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | how)
        fcntl.flock(lock, fcntl.LOCK_EX | how)
    finally:
        fcntl.flock(turn, fcntl.LOCK_UN)
