"""Whoever writes to PostgreSQL locks in one order, so that nobody waits in a circle; what is sent together is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outlast.backends import open_backend
from outlast.backends.postgres import PostgresBackend
from outlast.backends.postgres_session import Session, merged
from outlast.config import Config
from outlast.errors import NotFound
from outlast.requests import Commit, Increment, Part
from outlast.run_requests import Pruned, PruneRuns
from outlast.values import TaskScope, system_clock
from support.postgres import server
from support.runs import Desk
from support.traffic import TYPES, Traffic

pytestmark = pytest.mark.postgres


@pytest.fixture
def place() -> Iterator[str]:
    """The URL of an empty schema."""
    yield f"{server().url}?schema=locks"
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute("drop schema if exists locks cascade")


def opened(place: str) -> PostgresBackend:
    backend = open_backend(place, Config(), system_clock)
    assert isinstance(backend, PostgresBackend)
    return backend


def deadlocks() -> int:
    """Return how many deadlocks the server itself has broken."""
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute("select pg_stat_clear_snapshot()")
        found = connection.execute("select deadlocks from pg_stat_database where datname = current_database()")
        return int((found.fetchone() or (0,))[0])


def test_requests_of_every_type_at_the_same_time_never_deadlock(place: str, soak: bool) -> None:
    before = deadlocks()
    backends = [opened(place), opened(place)]
    senders = [Traffic(backends[number % 2], number) for number in range(8)]
    failed: list[BaseException] = []

    def work(sender: Traffic) -> None:
        try:
            sender.send(4000 if soak else 150)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for backend in backends:
        backend.close()
    assert failed == []
    assert [backend.deadlocks for backend in backends] == [0, 0]
    assert deadlocks() == before
    assert {kind for sender in senders for kind in sender.sent} == TYPES


def test_a_run_reopened_while_it_is_pruned_is_not_among_those_removed(place: str) -> None:
    """Whoever is told that it was removed would remove its logs as well."""
    backend = opened(place)
    desks = [Desk(backend, run_id=name) for name in ("old", "kept")]
    for desk in desks:
        desk.start("extract")
        desk.ran("extract")
        desk.release("success")
    with psycopg.connect(server().url, options="-c search_path=locks") as person, ThreadPoolExecutor(1) as pool:
        person.execute("update run set state = 'paused', ended_at = null where run_id = 'kept'")
        pruned = pool.submit(backend.send, PruneRuns(system_clock(), 10))
        while not is_anybody_waiting():
            time.sleep(0.01)
        person.commit()
        assert pruned.result() == Pruned((("nightly", "old"),), False)
    assert desks[1].run.state == "paused"
    with pytest.raises(NotFound):
        desks[0].detail()
    backend.close()


def is_anybody_waiting() -> bool:
    """Say whether a transaction waits for a lock that another holds."""
    with psycopg.connect(server().url, autocommit=True) as connection:
        return connection.execute("select from pg_locks where not granted").fetchone() is not None


def test_statements_sent_together_fail_as_one(place: str) -> None:
    """What was held back and then failed is told before the reply, nothing of it stays, and the next call works."""
    backend = opened(place)
    write = Commit((Part(TaskScope("d", "r", "t"), (Increment("n", 1, None),)),))
    for _ in range(8):  # often enough for the driver to prepare what it sends
        backend.send(write)

    def torn(session: Session) -> Any:
        def answer(request: Any, now: int) -> Any:
            session.execute("insert into result (scope_id, name, value) values (?, ?, ?)", (1, "r", "1"))
            session.execute("insert into result (scope_id, name, value) values (?, ?, ?)", (1, "r", None))
            return session.writing.answer(request, now)

        return session.write(answer, write)

    for _ in range(8):
        with pytest.raises(psycopg.errors.NotNullViolation):
            backend._with(torn)
    assert backend.send(write).revisions == (9,)
    assert backend._with(lambda session: session.ask("select count(*) from result", ())) == (0,)
    backend.close()


def test_free_statements_become_one_a_table_and_others_stay_in_order() -> None:
    entry, feed = "insert into entry (name) values (%s)", "insert into feed (at) values (%s)"
    scope, other = "update scope set revision = %s where id = %s", "delete from history where name = %s"
    held = [(entry, ("a",)), (entry, ("b",)), (scope, (1, 2)), (feed, (3,)), (other, ("c",)), (entry, ("d",))]
    assert merged(held) == [
        (f"with part0 as ({entry}), part1 as ({scope}) {feed}", ["a", 1, 2, 3]),
        (entry, ("b",)),
        (other, ("c",)),
        (entry, ("d",)),
    ]
