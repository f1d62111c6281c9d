"""One connection to PostgreSQL and its transactions; statements whose answers nobody waits for travel together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, groupby, zip_longest
from typing import Any, TypeAlias

import psycopg

from ..config import Config
from ..values import Clock, system_clock
from . import postgres_schema
from .answers import Answers
from .execute import Dialect

__all__ = ["CommitLost", "Lost", "Session", "merged"]

#: SQL and its values.
_Statement: TypeAlias = "tuple[str, Sequence[Any]]"

READING = Dialect(
    joined=True,
    order="task.place",
    number=("xid", "number"),
    selected="xid::text::bigint, number",
    number_marks="?::text::xid8, ?",
    settled=" and xid < pg_snapshot_xmin(pg_current_snapshot())",
)
WRITING = Dialect(
    order=READING.order,
    lock=" for update",
    skip=" for update skip locked",
    alone="select pg_advisory_xact_lock(hashtextextended(?, 7305))",
    alone_now="select pg_try_advisory_xact_lock(hashtextextended(?, 7305))",
    number=READING.number,
    selected=READING.selected,
    number_marks=READING.number_marks,
    settled=READING.settled,
)

#: Seconds after which the server gives up a transaction whose client is gone, or stopped, and frees what it locks.
LIMBO_SECONDS = 30
#: Nanoseconds for which this process goes on counting from the server's time by itself.
_TRUSTED = 10_000_000_000
_NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"


class Lost(Exception):
    """The connection broke where nothing can have been committed."""


class CommitLost(Exception):
    """The connection broke while a transaction was being committed: its number, and the traces it leaves.

    That is a row in the feed, or a receipt with this id, as of that moment; neither where it has written nothing.
    """

    def __init__(self, xid: int, at: int, has_noted: bool, receipt: str | None = None) -> None:
        self.xid, self.at, self.has_noted, self.receipt = xid, at, has_noted, receipt


class Session:
    """One connection, and the SQL that goes through it."""

    def __init__(self, place: postgres_schema.Place, config: Config, clock: Clock) -> None:
        self.connection = postgres_schema.connect(place, config.client.retry_for)
        try:
            self._prepare(place, config, clock)
        except BaseException:
            self.connection.close()
            raise

    def _prepare(self, place: postgres_schema.Place, config: Config, clock: Clock) -> None:
        self.is_pooled = postgres_schema.is_pooled(self.connection)
        if self.is_pooled:  # a statement prepared on one server process is not known to the next
            self.connection.prepare_threshold = None
        self.cursor = psycopg.RawCursor(self.connection)  # the server's own marks: nothing to parse each time
        self.held: list[_Statement] | None = None
        self.is_spoilt = False
        self._begin_traces()
        self.reading = Answers(self.execute, config, READING)
        self.writing = Answers(self.execute, config, WRITING)
        self.clock = None if clock is system_clock else clock
        self._told: int | None = None
        self._asked_at = 0
        how = "set local" if self.is_pooled else "set"
        settings = [f"{how} idle_in_transaction_session_timeout to '{LIMBO_SECONDS}s'"]
        settings += [f"{how} search_path to {place.quoted_schema}"] if place.schema else []
        self.path = "; ".join([*settings, ""]) if self.is_pooled else ""
        if not self.is_pooled:
            self.connection.execute("; ".join(settings))

    def execute(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Run one statement in the open transaction; one without an answer goes with the next that has one."""
        values = _without_nul(values)
        if self.held is None:
            return self._send(sql, values)
        self._keep_traces(sql, values)
        if _is_silent(sql):
            self.held.append((sql, values))
            return []
        return self._send(sql, values)

    def _begin_traces(self) -> None:
        self.has_noted = self.has_written = False
        self.receipt: str | None = None

    def _keep_traces(self, sql: str, values: Sequence[Any]) -> None:
        if sql.startswith(_WRITING):
            self.has_written = True
            self.has_noted = self.has_noted or sql.startswith("insert into feed ")
            if sql.startswith("insert into receipt "):
                self.receipt = values[0]

    def _leave_trace(self, now: int) -> None:
        """See to it that what was written can be told from what another transaction has, that was given its number."""
        if self.has_written and not self.has_noted and self.receipt is None:
            id = f"commit {os.urandom(16).hex()}"
            self.execute("insert into receipt (id, asked, reply, at) values (?, '', '', ?)", (id, now))

    def _send(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Send a statement, after what was held back, in one journey; return its rows."""
        if self.held:
            held, self.held = self.held, []
            self._send_together([*merged(held), (sql, values)])
        else:
            self.cursor.execute(_numbered(sql), values)
        return self.cursor.fetchall() if self.cursor.description is not None else []

    def _send_together(self, statements: Sequence[_Statement]) -> None:
        """Send statements without waiting between them; the first that fails is raised, those after it do nothing."""
        failed: psycopg.Error | None = None
        try:
            with self.connection.pipeline():
                try:
                    for sql, values in statements:
                        self.cursor.execute(_numbered(sql), values)
                except psycopg.Error as error:
                    failed = error
        except psycopg.Error as error:  # where that is all there is, or says that the rest was passed over
            failed = failed or error
        if failed is not None:
            self.is_spoilt = True  # what the driver takes for prepared may not be
            raise failed

    def read(self, answer: Callable[[Any, int], Any], request: Any, at_once: bool) -> Any:
        """Answer a request from one snapshot; one that takes a single statement needs no transaction for that."""
        if at_once and not self.path:
            return answer(request, self.clock() if self.clock else self._time())
        now = self._begin("isolation level repeatable read read only")[1]
        reply = answer(request, now)
        self.connection.execute("commit")
        return reply

    def write(self, answer: Callable[[Any, int], Any], request: Any) -> Any:
        """Answer a request in a transaction; `CommitLost` when its end is not known."""
        xid, now = self._begin("isolation level read committed", "pg_current_xact_id()::text::bigint")
        self.held = []
        self._begin_traces()
        reply = answer(request, now)
        self._leave_trace(now)
        try:
            self._send("commit")
        except psycopg.OperationalError as error:
            if self.connection.closed:
                raise CommitLost(xid, now, self.has_noted, self.receipt) from error
            raise
        finally:
            self.held = None
        return reply

    def _begin(self, how: str, xid: str = "0") -> tuple[int, int]:
        self.cursor.execute(f"begin {how}; {self.path}select {xid}, {_NOW}")
        while self.cursor.nextset():
            pass
        found = self.cursor.fetchone()
        assert found is not None
        return found[0], self.clock() if self.clock else found[1]

    def ask(self, sql: str, values: Sequence[Any]) -> Any:
        """Return the one row of a statement outside a transaction."""
        return self.read(lambda _, now: self.execute(sql, values), None, False)[0]

    def _time(self) -> int:
        """Return the server's time, as of when it was last asked and what has passed here since."""
        elapsed = time.monotonic_ns() - self._asked_at
        if self._told is None or elapsed > _TRUSTED:
            self._asked_at = time.monotonic_ns()
            self._told = self.execute(f"select {_NOW}", ())[0][0]
            elapsed = 0
        return self._told + elapsed // 1000

    def close(self) -> None:
        """Give the connection back to the server."""
        self.connection.close()

    def rollback(self) -> None:
        """Leave whatever transaction is open, with what was not sent yet."""
        self.held = None
        if not self.connection.closed and self.connection.info.transaction_status:
            self.connection.execute("rollback")


#: How statements begin that write …
_WRITING = ("insert ", "update ", "delete ")
#: … those whose answer nobody waits for …
_SILENT = (*_WRITING, "select pg_advisory_xact_lock(")
#: … and those that may be carried out in any order, where each writes to another table: who commits has locked
#: the scopes before, so that they wait for nobody, and none reads what another writes.
_FREE = tuple(f"insert into {table} (" for table in ("history", "entry", "feed", "audit", "receipt"))
_FREE += ("update scope set revision = ",)


def merged(statements: Iterable[_Statement]) -> list[_Statement]:
    """Return statements as fewer ones: of the free ones between two others, one for each table becomes one."""
    merged: list[_Statement] = []
    for is_free, found in groupby(statements, lambda statement: statement[0].startswith(_FREE)):
        if is_free:
            tables: dict[str, list[_Statement]] = {}
            for statement in found:
                tables.setdefault(_start(statement[0]), []).append(statement)
            merged += [_one([each for each in row if each]) for row in zip_longest(*tables.values())]
        else:
            merged += found
    return merged


def _start(sql: str) -> str:
    return next(start for start in _FREE if sql.startswith(start))


def _one(statements: Sequence[_Statement]) -> _Statement:
    sql = _together(tuple(sql for sql, _ in statements))
    return sql, statements[0][1] if len(statements) == 1 else [*chain.from_iterable(values for _, values in statements)]


@lru_cache(maxsize=1024)
def _together(statements: tuple[str, ...]) -> str:
    *others, last = statements
    parts = ", ".join(f"part{number} as ({sql})" for number, sql in enumerate(others))
    return f"with {parts} {last}" if others else last


@lru_cache(maxsize=1024)
def _is_silent(sql: str) -> bool:
    """Say whether nobody waits for what a statement answers."""
    return sql.startswith(_SILENT) and " returning " not in sql


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> str:
    """Return a statement with the server's marks."""
    first, *others = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))


def _without_nul(values: Sequence[Any]) -> Sequence[Any]:
    """Return values without the character U+0000, which PostgreSQL's texts cannot hold."""
    for value in values:
        if type(value) is str and "\x00" in value:
            return [text.replace("\x00", "\ufffd") if type(text) is str else text for text in values]
    return values
