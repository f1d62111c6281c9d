"""Answers requests from a PostgreSQL database, by psycopg 3.

Writers lock rows in one order (see `scopes`), so that they never wait for each other in a circle; readers lock
nothing. A connection that breaks is replaced: what was not committed is done again, and of a COMMIT whose answer
was lost the server is asked what became of it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

try:
    import psycopg
except ImportError as error:
    from ..errors import ConfigError

    raise ConfigError("PostgreSQL needs a driver; install it with: pip install 'outlast[postgres]'") from error

from psycopg import errors as sqlstates

from ..config import Config, without_password
from ..errors import BackendError, OutlastError
from ..requests import Commit, Inspect, Inspected, Read
from ..tables import Tables
from ..values import Clock
from . import Backend, postgres_schema
from .answers import READS, WRITES
from .dumping import PostgresTables
from .execute import Overtaken
from .idle import Idle, after_fork, before_fork
from .postgres_session import CommitLost, Lost, Session
from .sweep import SWEEP_EVERY, is_sweep, overdue

__all__ = ["PostgresBackend"]

logger = logging.getLogger("outlast")

T = TypeVar("T")

#: Connections of one store that are in use at the same time.
MOST = 20
#: Seconds a caller waits for one of them.
WAIT_SECONDS = 30.0
#: Times a write is done again because another was in its way.
AGAIN = 20
_BUSY = (
    sqlstates.SerializationFailure,
    sqlstates.DeadlockDetected,
    sqlstates.UniqueViolation,
    sqlstates.ExclusionViolation,
    sqlstates.LockNotAvailable,
    Overtaken,
)


class PostgresBackend(Backend):
    """A store in a schema of a PostgreSQL database; see the module's charter."""

    keeps_replies = True

    def __init__(self, url: str, config: Config, clock: Clock) -> None:
        self.place = postgres_schema.Place.of(url)
        self.config, self.clock = config, clock
        self.deadlocks = self._swept_at = 0
        self._closed = False
        self._begin_anew()
        _all.add(self)
        try:
            self._retrying(lambda: self._with(lambda session: postgres_schema.prepare(session.connection, self.place)))
        except BaseException:
            self.close()
            raise

    def _begin_anew(self) -> None:
        """Forget connections: in a forked child they are the parent's."""
        self._idle: Idle[Session] = Idle()
        self._free = threading.BoundedSemaphore(MOST)

    # --- answering ---------------------------------------------------------------------------------------

    def send(self, request: Any) -> Any:
        kind = type(request)
        if kind in READS:
            at_once = kind is Read and request.names is not None
            return self._retrying(lambda: self._with(lambda session: _read(session, request, at_once)))
        if kind in WRITES:
            return self._write(request, lambda session: session.writing.answer)
        if kind is Inspect:
            return self._retrying(lambda: self._with(lambda session: self._inspect(session, request)))
        raise TypeError(f"{kind.__name__} is not a request this backend answers")

    def send_batch(self, requests: Sequence[Any]) -> list[Any]:
        """Carry commits out in one transaction, read in one journey; where that fails as a whole, one by one."""
        if all(type(request) is Read for request in requests):
            return self._read_together(requests)
        if not all(type(request) is Commit for request in requests):
            return super().send_batch(requests)
        return self._together(
            lambda: self._write(requests, lambda session: session.writing.commits.commit_all), requests
        )

    def _read_together(self, requests: Sequence[Read]) -> list[Any]:
        try:
            found = self._retrying(lambda: self._with(lambda session: _together(session, requests)))
        except BackendError as error:  # nobody fares better alone
            return [error] * len(requests)
        return super().send_batch(requests) if found is None else found

    def _write(self, request: Any, answer: Callable[[Session], Callable[[Any, int], Any]]) -> Any:
        reply = self._retrying(lambda: self._written(request, answer))
        now = self.clock()
        if now - self._swept_at > SWEEP_EVERY and not is_sweep(request):
            self._swept_at = now
            self._sweep_overdue()
        return reply

    def _written(self, request: Any, answer: Callable[[Session], Callable[[Any, int], Any]]) -> Any:
        replies: list[Any] = []

        def kept(session: Session) -> Any:
            def answered(asked: Any, now: int) -> Any:
                replies.append(answer(session)(asked, now))
                return replies[-1]

            return session.write(answered, request)

        try:
            return self._with(kept)
        except CommitLost as lost:
            if self._was_committed(lost):
                return replies[-1]
            raise Lost from lost

    def _was_committed(self, lost: CommitLost) -> bool:
        """Ask the server, again and again while it does not know, what became of a transaction.

        A server that has crashed gives the numbers of transactions it knows nothing of again. What ours has left in
        the feed, or among the receipts, tells it from another.
        """
        until = time.monotonic() + max(self.config.client.retry_for, 1.0)
        asked = (
            "select pg_xact_status(?::text::xid8), exists (select from feed where xid = ?::text::xid8 and at = ?)"
            " or exists (select from receipt where id = ? and at = ?)"
        )
        values = (lost.xid, lost.xid, lost.at, lost.receipt, lost.at)
        leaves_trace = lost.has_noted or lost.receipt is not None
        while time.monotonic() < until:
            with suppress(Lost, psycopg.OperationalError):
                try:
                    status, found = self._with(lambda session: session.ask(asked, values))
                except sqlstates.InvalidParameterValue:  # it is yet to come
                    return False
                if status in ("committed", "aborted"):
                    return status == "committed" and (found or not leaves_trace)
            time.sleep(0.05)
        raise BackendError(
            f"the connection to {self} was lost while a transaction was being committed, and what became of it cannot "
            "be found out; read what is stored before trying again",
            "unknown",
        )

    def _sweep_overdue(self) -> None:
        """Free one batch if nobody has for an hour; the commit before it has already succeeded."""
        limit = self.config.state_store.batch_size
        try:
            request = self._with(
                lambda session: session.read(lambda _, now: overdue(session.reading.state, limit, now), None, False)
            )
            if request is not None:
                self.send(request)
        except (OutlastError, Lost, psycopg.Error) as error:
            logger.warning("outlast: could not sweep %s: %s", self, error)

    def _inspect(self, session: Session, request: Inspect) -> Inspected:
        return session.read(  # type: ignore[no-any-return]
            lambda _, now: postgres_schema.inspect(session.connection, self.place, session.is_pooled), request, False
        )

    # --- as a whole -----------------------------------------------------------------------------------------

    def dump(self, take: Callable[[Tables], T]) -> T:
        def read(session: Session) -> Any:
            tables = PostgresTables(session.reading.state, session.connection)
            return session.read(lambda _, now: take(tables), None, False)

        return self._unrepeated(lambda: self._with(read))  # type: ignore[no-any-return]

    def load(self, fill: Callable[[Tables, int], T]) -> T:
        def answer(session: Session) -> Callable[[Any, int], Any]:
            tables = PostgresTables(session.writing.state, session.connection)
            return lambda _, now: fill(tables, now)

        return self._unrepeated(lambda: self._written(None, answer))  # type: ignore[no-any-return]

    def _unrepeated(self, attempt: Callable[[], T]) -> T:
        """Do once what uses up a file: it cannot begin again; so a connection that works is found before."""
        self._retrying(lambda: self._with(lambda session: session.ask("select 1", ())))
        try:
            return attempt()
        except Lost as lost:
            cause = lost.__cause__
            raise BackendError(f"lost {self} in the middle, and nothing was done: {_said(cause)}; try again") from cause
        except psycopg.Error as error:
            raise postgres_schema.explained(error, self.place) from error

    # --- connections and faults ----------------------------------------------------------------------------

    def _retrying(self, attempt: Callable[[], Any]) -> Any:
        """Try until it works, while the fault is one that passes, for a bounded time."""
        until, pause, left = time.monotonic() + self.config.client.retry_for, 0.02, AGAIN
        while True:
            try:
                return attempt()
            except (Lost, psycopg.OperationalError, psycopg.InterfaceError) as error:
                cause = error.__cause__ if isinstance(error, Lost) else error
                if isinstance(error, _BUSY):
                    left = self._count(error, left)
                elif isinstance(error, psycopg.Error) and not _passes(error):
                    raise postgres_schema.explained(error, self.place) from error
                elif time.monotonic() + pause > until:
                    raise BackendError(f"cannot reach {self}: {_said(cause)}") from cause
            except _BUSY as error:
                left = self._count(error, left)
            except psycopg.Error as error:
                raise postgres_schema.explained(error, self.place) from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    def _count(self, error: Exception, left: int) -> int:
        self.deadlocks += isinstance(error, sqlstates.DeadlockDetected)
        if not left:
            raise BackendError(f"{self} is too busy: {_said(error)}; try again") from error
        return left - 1

    def _with(self, work: Callable[[Session], Any]) -> Any:
        """Work with a connection nobody else uses meanwhile."""
        if self._closed:
            raise BackendError("this store was closed; connect again")
        free = self._free
        if not free.acquire(timeout=WAIT_SECONDS):
            raise BackendError(f"all {MOST} connections to {self} have been in use for {WAIT_SECONDS:g} s; try again")
        session: Session | None = None
        try:
            session = self._idle.take() or Session(self.place, self.config, self.clock)
            return work(session)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if session is not None and session.connection.closed:
                raise Lost from error
            raise
        finally:
            if session is not None:
                self._put_back(session)
            free.release()

    def _put_back(self, session: Session) -> None:
        with suppress(psycopg.Error):
            session.rollback()
        if session.connection.closed or session.connection.info.transaction_status:
            session.close()
            self._idle.clear()  # the others broke with it, most likely: a server that restarts
        elif self._closed or session.is_spoilt:
            session.close()
        else:
            self._idle.put(session)

    def close(self) -> None:
        self._closed = True
        self._idle.clear()
        _all.discard(self)

    def __str__(self) -> str:
        return without_password(self.place.url)


def _read(session: Session, request: Any, at_once: bool) -> Any:
    return session.read(session.reading.answer, request, at_once and session.reading.state.is_joined(request))


def _together(session: Session, requests: Sequence[Read]) -> list[Any] | None:
    """Answer requests by one statement or two; None where they do not fit into them, or one of them spoils it."""
    state = session.reading.state
    names = sum(len(request.names or ("",)) for request in requests)
    if names > 512 or not all(map(state.is_joined, requests)):
        return None
    try:
        found: list[Any] = session.read(state.read_together, requests, True)
    except psycopg.DataError:
        return None
    return found


def _passes(error: psycopg.Error) -> bool:
    """Say whether a fault may be over soon: the network's, or that of a server that restarts or is full."""
    state = error.sqlstate
    return state is None or state[:2] == "08" or state in ("57P01", "57P02", "57P03", "53300")


def _said(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


_all: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


def _in_child() -> None:
    for backend in list(_all):
        backend._begin_anew()


os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=_in_child)
