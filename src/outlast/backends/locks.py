"""The lock that writers of several processes get in turn, after a bounded wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
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
        try:
            self._lock = os.open(self.path + ".lock", os.O_CREAT | os.O_RDWR, 0o666)
        except BaseException:
            os.close(self._turn)
            raise
        #: Let go; does nothing where nothing is held. Made so, no interrupt comes between the call and its effect.
        self.release: Callable[[], object] = partial(fcntl.flock, self._lock, fcntl.LOCK_UN)

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

        try:
            threading.Thread(target=wait, name="outlast-lock", daemon=True).start()
        except RuntimeError:  # at the end of the interpreter, or when there are too many
            self._poll(seconds)
            return
        try:
            got.wait(seconds)
        finally:
            with settled:
                given_up = not got.is_set()
            if given_up:
                self._open()  # the old ones are the thread's now
        if given_up:
            raise self._held_too_long(seconds)

    def _poll(self, seconds: float) -> None:
        """Wait in the calling thread; once it stands in the turnstile nobody passes it."""
        end = time.monotonic() + seconds
        try:
            for descriptor in (self._turn, self._lock):
                while not _taken(descriptor):
                    if time.monotonic() > end:
                        raise self._held_too_long(seconds)
                    time.sleep(0.0005)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _held_too_long(self, seconds: float) -> BackendError:
        return BackendError(
            f"another process has held {self.path}.lock for {seconds:.0f} s; is one stopped, or in a debugger? "
            "see `outlast doctor`"
        )

    def close(self) -> None:
        """Close the side files."""
        self.abandon()
        os.close(self._lock)
        os.close(self._turn)

    def abandon(self) -> None:
        """Never again touch the descriptors: they are not ours any more, or were left to somebody else."""
        self.release = _nothing


def _nothing() -> None:
    """Release what is held no more."""


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take(turn: int, lock: int, how: int = 0) -> None:
    """Take the lock by way of the turnstile."""
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | how)
        fcntl.flock(lock, fcntl.LOCK_EX | how)
    finally:
        fcntl.flock(turn, fcntl.LOCK_UN)
