"""Answers requests from one SQLite file, shared fairly and durably by threads and processes of one machine.

Writers take a thread lock, then `flock` on a side file, each in turn, then BEGIN IMMEDIATE: SQLite's
own busy handler starves (four durable writers: one of them got 1 commit in 1.2 s). Before a fork
every connection is closed, since SQLite's locks do not survive one.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from ..config import Config
from ..errors import BackendError, OutlastError
from ..requests import Commit, Inspect, Inspected
from ..tables import Tables
from ..values import Clock
from . import Backend, guard, path_of, sqlite_file
from .answers import READS, WRITES
from .dumping import SQLiteTables
from .locks import FileLock
from .sqlite_session import Session, in_transaction
from .sweep import SWEEP_EVERY, is_sweep, overdue
from .turns import Turns

__all__ = ["SQLiteBackend"]

logger = logging.getLogger("outlast")

T = TypeVar("T")

#: Seconds a writer waits for the others before it gives up.
WAIT_SECONDS = 30.0


class SQLiteBackend(Turns, Backend):
    """A store in one file; see the module's charter."""

    keeps_replies = True

    def __init__(self, url: str, config: Config, clock: Clock) -> None:
        self.path = path_of(url)
        self.config, self.clock = config, clock
        self._new_locks()
        self._sessions: list[Session] = []
        self._idle: list[Session] = []
        self._writer: Session | None = None
        self._guard: guard.Guard | None = None
        self._identity: tuple[int, int] | None = None
        self._closed = self._orphan = False
        self._swept_at = 0
        _all.add(self)
        try:
            sqlite_file.prepare(self.path)
            self._exclusively(lambda session, request: None, None)
        except BaseException as error:
            self.close()
            if isinstance(error, apsw.Error | OSError):
                raise self._explained(error) from error
            raise

    # --- answering ---------------------------------------------------------------------------------------

    def send(self, request: Any) -> Any:
        kind = type(request)
        reading = self._shared if self.path is not None else self._exclusively  # in memory there is one connection
        if kind in READS:
            return self._explaining(reading, self._read, request)
        if kind in WRITES:
            return self._explaining(self._exclusively, self._write, request)
        if kind is Inspect:
            return self._explaining(reading, self._inspect, request)
        raise TypeError(f"{kind.__name__} is not a request this backend answers")

    def _read(self, session: Session, request: Any) -> Any:
        return in_transaction(session, "begin", session.answer, request, self.clock)

    def _write(self, session: Session, request: Any) -> Any:
        reply = in_transaction(session, "begin immediate", session.answer, request, self.clock)
        now = self.clock()
        if now - self._swept_at > SWEEP_EVERY and not is_sweep(request):
            try:
                self._sweep_overdue(session, now)
            except (apsw.Error, OutlastError) as error:  # the commit has succeeded, whatever this did
                logger.warning("outlast: could not sweep %s: %s", self.path, error)
        return reply

    def _sweep_overdue(self, session: Session, now: int) -> None:
        """Free one batch if nobody has for an hour; the commit before it has already succeeded."""
        self._swept_at = now
        request = overdue(session.state, self.config.state_store.batch_size, now)
        if request is not None:
            in_transaction(session, "begin immediate", session.answer, request, self.clock)

    def _inspect(self, session: Session, request: Inspect) -> Inspected:
        return sqlite_file.inspect(session.connection, self.path, request.deep, self.clock())

    def dump(self, take: Callable[[Tables], T]) -> T:
        reading = self._shared if self.path is not None else self._exclusively
        return self._carried(reading, "begin", lambda tables, _: take(tables))

    def load(self, fill: Callable[[Tables, int], T]) -> T:
        return self._carried(self._exclusively, "begin immediate", fill)

    def _carried(self, turn: Callable[..., Any], begin: str, work: Callable[[Tables, int], T]) -> T:
        def carry(session: Session, clock: Clock) -> Any:
            tables = SQLiteTables(session.state, session.connection)
            return in_transaction(session, begin, work, tables, clock)

        try:
            return turn(carry, self.clock)  # type: ignore[no-any-return]
        except apsw.Error as error:  # not OSError: that of the file a backup is written to is its own
            raise self._explained(error) from error

    def close(self) -> None:
        self._closed = True
        if self._held_here() and self._inside():
            return  # the write that was interrupted closes when it ends
        self._take_turn(WAIT_SECONDS)
        try:
            with self._gate:
                self._await_readers()
        finally:
            self._write_lock.release()
            self._settle()
        _all.discard(self)

    def _settle(self) -> None:
        """Close what a closed store had open, once nobody in this process is inside; who leaves last does it."""
        with self._gate:
            if self._closed and not self._readers and self._write_lock.acquire(blocking=False):
                try:
                    self._disconnect()
                finally:
                    self._write_lock.release()

    def __del__(self) -> None:
        try:
            self._disconnect()
        except Exception:  # at the interpreter's end its own names may be gone, those of contextlib included
            pass

    def send_batch(self, requests: Sequence[Any]) -> list[Any]:
        """Carry commits out in one transaction; where that fails as a whole, one by one."""
        if not all(type(request) is Commit for request in requests):
            return super().send_batch(requests)
        return self._together(lambda: self._explaining(self._exclusively, self._write_all, requests), requests)

    def _write_all(self, session: Session, commits: Sequence[Commit]) -> list[Any]:
        replies: list[Any]
        replies = in_transaction(session, "begin immediate", session.commits.commit_all, commits, self.clock)
        return replies

    # --- taking turns ------------------------------------------------------------------------------------

    def _shared(self, work: Callable[[Session, Any], Any], request: Any) -> Any:
        """Read with a connection that no other thread uses meanwhile."""
        session, here, gate = None, threading.get_ident(), self._gate
        try:
            with gate:
                self._admit(here)
                self._readers.append(here)
                session = self._idle.pop() if self._idle else None
            self._refuse_lost()
            if session is None:
                session = self._connect()
                self._sessions.append(session)
            return work(session, request)
        finally:
            with gate:
                if here in self._readers:
                    self._readers.remove(here)
                if session is not None and session in self._sessions:
                    self._idle.append(session)
                if self._forking or self._closed:
                    self._changed.notify_all()
            if self._closed:
                self._settle()

    def _exclusively(self, work: Callable[[Session, Any], Any], request: Any) -> Any:
        """Write, when it is this thread's and this process's turn."""
        lock, file = self._write_lock, None
        if self._held_here():
            self._recover()
        try:
            if not lock.acquire(blocking=False):
                self._wait(WAIT_SECONDS)
            self._refuse_closed()
            if self.path is None:
                self._writer = self._writer or self._connect()
                return work(self._writer, request)
            self._refuse_lost()
            file = self._file = self._file or FileLock(self.path)
            file.acquire(WAIT_SECONDS)
            if self._writer is None:
                self._refuse_orphan()
                self._writer = self._connect()
            self._refuse_replaced()
            return work(self._writer, request)
        finally:
            try:
                if file is not None:
                    file.release()
            finally:
                if lock._is_owned():  # type: ignore[attr-defined]
                    lock.release()
                if self._closed:
                    self._settle()
                elif self._waiting:
                    time.sleep(1e-6)  # let another thread have the lock next; sleep(0) is no sleep on every Python

    # --- connections -------------------------------------------------------------------------------------

    def _connect(self) -> Session:
        durability = self.config.state_store.durability
        if self.path is None:
            return Session(sqlite_file.connect(None, durability, create=True), self.config)
        with guard.opening:
            guard.refuse_lost(self.path)
            self._refuse_replaced()
            connection = sqlite_file.connect(self.path, durability, create=self._identity is None)
            try:
                self._guard = self._guard or guard.Guard.hold(self.path)
                self._identity = self._identity or self._guard.identity
                self._refuse_replaced()
            except BaseException:
                connection.close()
                raise
        return Session(connection, self.config)

    def _disconnect(self) -> None:
        held, self._guard = self._guard, None
        if held is not None and held.lost():
            self._guard = held
            self._abandon()
            return
        if held is None:
            self._close_connections()
        else:
            held.leave(self._close_connections)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _close_connections(self) -> None:
        for session in [*self._sessions, self._writer]:
            if session is not None:
                session.connection.close()
        self._sessions, self._idle, self._writer = [], [], None

    def _abandon(self) -> None:
        """Let go of connections and files without closing any."""
        for session in [*self._sessions, self._writer]:
            if session is not None:
                session.abandon()
        self._sessions, self._idle, self._writer = [], [], None
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def _refuse_lost(self) -> None:
        if self._guard is not None and self._guard.lost() and self.path is not None:
            raise BackendError(guard.lost_text(self.path))

    def _refuse_orphan(self) -> None:
        if self._orphan:
            raise BackendError(
                f"this process was forked in the middle of a write to {self.path}, by a signal handler or a finaliser, "
                "and can only read it; fork elsewhere, or let the child start a new program"
            )

    def _refuse_replaced(self) -> None:
        if self._identity is not None and self.path and guard.identity_of(self.path) != self._identity:
            raise BackendError(
                f"{self.path} was removed or replaced while in use, and nothing is written to what is not there; "
                "put the file back, or connect again to use what is there now"
            )

    def _explaining(self, turn: Callable[..., Any], work: Callable[[Session, Any], Any], request: Any) -> Any:
        try:
            return turn(work, request)
        except (apsw.Error, OSError) as error:
            raise self._explained(error) from error

    def _explained(self, error: apsw.Error | OSError) -> OutlastError:
        """Return what SQLite or the system raised as one of this project's errors."""
        if isinstance(error, apsw.Error):
            return sqlite_file.explain(error, self.path)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return BackendError(sqlite_file.too_many_open(self.path or ":memory:"))
        return BackendError(f"cannot use {self.path}: {error}")

    # --- around a fork -----------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._torn = True
        try:
            self._take_turn(WAIT_SECONDS)
        except BackendError:  # this thread is inside, or another does not end: the child begins anew
            return
        self._gate.acquire()
        self._forking = threading.get_ident()  # or readers that keep coming would keep it from ever being idle
        self._torn = not self._await_readers()
        if self.path is not None and not self._torn:
            self._disconnect()

    def _after_fork(self, child: bool) -> None:
        if child:  # the threads that waited are not in the child
            self._new_locks()
            if self._torn and self.path is not None:
                self._begin_anew()
        elif self._forking:
            self._forking = 0
            self._changed.notify_all()
            self._gate.release()
            self._write_lock.release()

    def _begin_anew(self) -> None:
        """Drop, in the child, connections and a lock that are the parent's."""
        self._guard = None
        #: SQLite holds its write lock in the child for ever; a rollback would reach into the parent's write.
        self._orphan = self._writer is not None and self._writer.connection.in_transaction
        file = self._file
        self._abandon()
        if file is not None:
            file.close()  # does not unlock: the parent has it open


SQLiteBackend._calls = {
    getattr(SQLiteBackend, name).__code__ for name in ("_shared", "_exclusively", "close", "_before_fork")
}


_all: weakref.WeakSet[SQLiteBackend] = weakref.WeakSet()
_forking: list[SQLiteBackend] = []


def _before_fork() -> None:
    for backend in sorted(_all, key=id):
        backend._before_fork()
        _forking.append(backend)


def _after_fork(child: bool = False) -> None:
    held = _forking[::-1]
    if child:
        guard.forget_all()
    _forking.clear()  # before the first is let go: another thread may be about to fork
    for backend in held:
        backend._after_fork(child)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=partial(_after_fork, child=True))
