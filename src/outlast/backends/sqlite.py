"""Answers requests from one SQLite file, shared fairly and durably by threads and processes of one machine.

Writers take a thread lock, then `flock` on a side file, each in turn, then BEGIN IMMEDIATE: SQLite's
own busy handler starves (four durable writers: one of them got 1 commit in 1.2 s). Before a fork
every connection is closed, since SQLite's locks do not survive one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import apsw

from ..config import DEFAULT_BATCH, Config
from ..errors import BackendError, OutlastError
from ..requests import Inspect, Inspected, Sweep
from ..values import Clock
from . import Backend, path_of, sqlite_file
from .answers import READS, WRITES, Answers
from .locks import FileLock
from .sweep import oldest_due, sweep

__all__ = ["SQLiteBackend"]

logger = logging.getLogger("outlast")

#: Seconds a writer waits for the others before it gives up.
WAIT_SECONDS = 30.0
#: A library writer sweeps one batch when something has been due for this long, in microseconds …
SWEEP_AFTER = 3600 * 1_000_000
#: … and asks at most this often, in microseconds.
SWEEP_EVERY = 60 * 1_000_000


class Session(Answers):
    """One connection and the statements prepared on it."""

    def __init__(self, connection: apsw.Connection, config: Config) -> None:
        super().__init__(self._execute, config)
        self.connection = connection

    def _execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        return self.connection.execute(sql, parameters).fetchall()


class SQLiteBackend(Backend):
    """A store in one file; see the module's charter."""

    def __init__(self, url: str, config: Config, clock: Clock) -> None:
        self.path = path_of(url)
        self.config, self.clock = config, clock
        self._write_lock = threading.Lock()
        self._waiting: list[None] = []
        self._gate = threading.Condition()
        self._idle: list[Session] = []
        self._busy = 0
        self._writer: Session | None = None
        self._file: FileLock | None = None
        self._closed = self._forking = False
        self._swept_at = 0
        _all.add(self)
        try:
            sqlite_file.prepare(self.path)
            with self._writing():
                pass
        except (apsw.Error, OSError) as error:
            raise self._explained(error) from error

    # --- answering ---------------------------------------------------------------------------------------

    def send(self, request: Any) -> Any:
        kind = type(request)
        try:
            if kind in READS:
                with self._reading() as session:
                    return _in_transaction(session, "begin", session.answer, request, self.clock)
            if kind in WRITES:
                return self._write(request)
            if kind is Sweep:
                with self._writing() as session:
                    return self._sweep(session, request)
            if kind is Inspect:
                return self._inspect(request)
        except (apsw.Error, OSError) as error:
            raise self._explained(error) from error
        raise TypeError(f"{kind.__name__} is not a request this backend answers")

    def _write(self, request: Any) -> Any:
        with self._writing() as session:
            reply = _in_transaction(session, "begin immediate", session.answer, request, self.clock)
            now = self.clock()
            if now - self._swept_at > SWEEP_EVERY:
                try:
                    self._sweep_overdue(session, now)
                except (apsw.Error, OutlastError) as error:  # the commit has succeeded, whatever this did
                    logger.warning("outlast: could not sweep %s: %s", self.path, error)
            return reply

    def _sweep_overdue(self, session: Session, now: int) -> None:
        """Free one batch if nobody has for an hour; the commit before it has already succeeded."""
        self._swept_at = now
        due = oldest_due(session.state)
        if due is not None and due <= now - SWEEP_AFTER:
            limit = self.config.state_store.state_cleanup_batch_size or DEFAULT_BATCH
            self._sweep(session, Sweep(limit, SWEEP_AFTER))

    def _sweep(self, session: Session, request: Sweep) -> Any:
        return _in_transaction(session, "begin immediate", partial(sweep, session.state), request, self.clock)

    def _inspect(self, request: Inspect) -> Inspected:
        with self._reading() as session:
            return sqlite_file.inspect(session.connection, self.path, request.deep, self.clock())

    def close(self) -> None:
        with self._write_lock, self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._busy == 0)
            self._disconnect()
        _all.discard(self)

    # --- connections -------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        if self.path is None:  # a store in memory has one connection
            with self._writing() as writer:
                yield writer
            return
        with self._gate:
            self._gate.wait_for(lambda: not self._forking)
            self._refuse_closed()
            self._busy += 1
            session: Session | None = self._idle.pop() if self._idle else None
        try:
            if session is None:
                session = self._connect()
            yield session
        finally:
            with self._gate:
                self._busy -= 1
                if session is not None:
                    self._idle.append(session)
                self._gate.notify_all()

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        if not self._write_lock.acquire(blocking=False):
            self._wait()
        try:
            self._refuse_closed()
            if self.path is None:
                self._writer = self._writer or self._connect()
                yield self._writer
                return
            file = self._file = self._file or FileLock(self.path)
            file.acquire(WAIT_SECONDS)
            try:
                self._writer = self._writer or self._connect()
                yield self._writer
            finally:
                file.release()
        finally:
            self._write_lock.release()
        if self._waiting:
            time.sleep(1e-6)  # let another thread have the lock next; sleep(0) is no sleep on every Python

    def _wait(self) -> None:
        """Wait for the write lock, and let those who hold it know."""
        self._waiting.append(None)
        try:
            got = self._write_lock.acquire(timeout=WAIT_SECONDS)
        finally:
            self._waiting.pop()
        if not got:
            raise BackendError(f"another thread has been writing to {self.path} for {WAIT_SECONDS:.0f} s; try again")

    def _connect(self) -> Session:
        return Session(sqlite_file.connect(self.path, self.config.state_store.durability), self.config)

    def _disconnect(self) -> None:
        for session in [*self._idle, self._writer]:
            if session is not None:
                session.connection.close()
        self._idle, self._writer = [], None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BackendError(f"the store {self.path or ':memory:'} was closed; connect again")

    def _explained(self, error: apsw.Error | OSError) -> OutlastError:
        """Return what SQLite or the system raised as one of this project's errors."""
        if isinstance(error, apsw.Error):
            return sqlite_file.explain(error, self.path)
        return BackendError(f"cannot use {self.path}: {error}")

    # --- around a fork -----------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._write_lock.acquire()
        self._gate.acquire()
        self._forking = True  # or readers that keep coming would keep it from ever being idle
        self._gate.wait_for(lambda: self._busy == 0)
        if self.path is not None:
            self._disconnect()

    def _after_fork(self, child: bool) -> None:
        self._forking = False
        if child:  # the threads that waited are not in the child
            self._waiting.clear()
            self._gate = threading.Condition()
        else:
            self._gate.notify_all()
            self._gate.release()
        self._write_lock.release()


_all: weakref.WeakSet[SQLiteBackend] = weakref.WeakSet()
_forking: list[SQLiteBackend] = []


def _before_fork() -> None:
    for backend in sorted(_all, key=id):
        backend._before_fork()
        _forking.append(backend)


def _after_fork(child: bool = False) -> None:
    held = _forking[::-1]
    _forking.clear()  # before the first is let go: another thread may be about to fork
    for backend in held:
        backend._after_fork(child)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=partial(_after_fork, child=True))


def _in_transaction(session: Session, begin: str, answer: Callable[[Any, int], Any], request: Any, clock: Clock) -> Any:
    """Answer a request in a transaction; whatever is raised meanwhile, an interrupt too, rolls it back."""
    connection = session.connection
    try:
        connection.execute(begin)
        reply = answer(request, clock())
        try:
            connection.execute("commit")
        except apsw.Error as error:
            raise sqlite_file.explain(error, None, outcome="unknown") from error
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return reply
