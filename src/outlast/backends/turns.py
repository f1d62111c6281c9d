"""How threads, what interrupts them (signal handlers, finalisers) and a fork take turns at a store."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import ClassVar, cast

from ..errors import BackendError
from .locks import FileLock

__all__ = ["Turns"]

#: Seconds closing and forking wait for readers.
READERS_SECONDS = 5.0


class Turns:
    """One writer at a time, readers beside it, and nobody when a store is closed or its process forks."""

    #: Where a thread is inside a store.
    _calls: ClassVar[set[CodeType]] = set()

    path: str | None
    _closed = False
    _file: FileLock | None = None

    def _new_locks(self) -> None:
        self._waiting: list[None] = []
        self._write_lock, self._gate = threading.RLock(), threading.RLock()
        self._held_here: Callable[[], bool] = self._write_lock._is_owned  # type: ignore[attr-defined]
        self._changed = threading.Condition(self._gate)
        self._readers: list[int] = []
        self._forking = 0

    def _wait(self, seconds: float) -> None:
        """Wait for the write lock, and let those who hold it know."""
        self._waiting.append(None)
        try:
            got = self._write_lock.acquire(timeout=seconds)
        finally:
            self._waiting.pop()
        if not got:
            raise BackendError(f"another thread has been writing to {self.path} for {seconds:.0f} s; try again")

    def _take_turn(self, seconds: float) -> None:
        """Get the write lock before closing or forking."""
        if self._held_here():
            self._recover()
        if not self._write_lock.acquire(blocking=False):
            self._wait(seconds)

    def _recover(self) -> None:
        """Refuse to wait for oneself; but a lock that an exception of a signal handler left behind is given back."""
        if self._forking or self._inside():
            raise BackendError(
                "called from a signal handler or a finaliser while this thread was writing; "
                "note it there, and write when the interrupted call has returned"
            )
        if self._file is not None:
            self._file.release()
        while self._held_here():
            self._write_lock.release()

    def _inside(self) -> bool:
        """Tell whether this thread is, further up, in the middle of a call of this store."""
        found, frame = 0, cast("FrameType | None", sys._getframe(1))
        while frame is not None:
            found += frame.f_code in self._calls and frame.f_locals.get("self") is self
            frame = frame.f_back
        return found > 1  # the first one is the call that asks

    def _admit(self, here: int) -> None:
        if self._forking == here:
            raise BackendError("called from a signal handler or a finaliser while this thread was forking")
        while self._forking:
            self._changed.wait()
        self._refuse_closed()

    def _await_readers(self) -> bool:
        """Wait, the gate held, until no other thread reads; tell whether nobody at all does."""
        here = threading.get_ident()
        if here in self._readers and not self._inside():  # left behind
            self._readers = [reader for reader in self._readers if reader != here]
        self._changed.wait_for(lambda: all(reader == here for reader in self._readers), READERS_SECONDS)
        return not self._readers

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BackendError(f"the store {self.path or ':memory:'} was closed; connect again")
