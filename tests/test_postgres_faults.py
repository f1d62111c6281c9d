"""A connection to PostgreSQL that breaks at any moment, and a server that restarts: nothing is lost or done twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outlast.backends import open_backend
from outlast.backends.postgres import PostgresBackend
from outlast.backends.postgres_session import CommitLost
from outlast.config import ClientSettings, Config
from outlast.errors import BackendError, OutlastError
from outlast.requests import Commit, Increment, Part, Read, Receipt
from outlast.values import TaskScope, system_clock
from support.cutting import PostgresCutter
from support.postgres import Server, made, server

pytestmark = pytest.mark.postgres

SCOPE = TaskScope("dag", "run", "task")
ADD = (Increment("n", 1, None),)


@pytest.fixture
def cutter() -> Iterator[PostgresCutter]:
    cutter = PostgresCutter(server().port, 1)
    yield cutter
    cutter.close()
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute("drop schema if exists cut cascade")


def test_commits_around_which_the_connection_is_cut_happen_once(cutter: PostgresCutter, soak: bool) -> None:
    wanted = 1000 if soak else 100
    backend = open_backend(cutter.url, Config(), system_clock)
    cutter.chance = 0.4
    sums: list[int] = []

    def work() -> None:
        while cutter.cuts < wanted:
            receipt = backend.send(Commit((Part(SCOPE, ADD),)))
            sums.append(int(receipt.rows[0][0].text))
            batch = backend.send_batch([Commit((Part(SCOPE, ADD),))] * 2)
            sums.extend(int(reply.rows[0][0].text) for reply in batch)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cutter.chance = 0.0
    stored = backend.send(Read(SCOPE, ("n",)))
    backend.close()
    assert (cutter.cuts >= wanted, cutter.swallowed > wanted / 4) == (True, True)
    assert sorted(sums) == list(range(1, len(sums) + 1))
    assert (stored.rows[0].text, stored.revision) == (str(len(sums)), len(sums))


def test_commits_with_ids_answer_their_receipt_whatever_was_cut(cutter: PostgresCutter, soak: bool) -> None:
    """Each is sent twice, as by a client that has heard nothing; the second changes nothing."""
    wanted = 1000 if soak else 100
    backend = open_backend(cutter.url, Config(), system_clock)
    cutter.chance = 0.4
    receipts: list[Receipt] = []

    def work(sender: int) -> None:
        number = 0
        while cutter.cuts < wanted:
            number += 1
            request = Commit((Part(SCOPE, ADD),), commit_id=f"{sender}.{number}")
            first, again = backend.send(request), backend.send_batch([request])[0]
            assert again == first
            receipts.append(first)

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work, sender) for sender in range(4)]
    cutter.chance = 0.0
    stored = backend.send(Read(SCOPE, ("n",)))
    backend.close()
    assert [each.result() for each in done] == [None] * 4
    assert sorted(int(receipt.rows[0][0].text) for receipt in receipts) == list(range(1, len(receipts) + 1))
    assert (stored.rows[0].text, stored.revision) == (str(len(receipts)), len(receipts))


def test_a_lost_commit_is_not_taken_for_another_with_its_number(cutter: PostgresCutter) -> None:
    """A server that crashed gives the numbers of transactions again that it has no trace of."""
    backend = open_backend(cutter.url, Config(), system_clock)
    assert isinstance(backend, PostgresBackend)
    backend.send(Commit((Part(SCOPE, ADD),)))
    (xid, at) = backend._with(lambda session: session.ask("select xid::text::bigint, at from feed", ()))
    ours, others = CommitLost(xid, at, True), CommitLost(xid, at - 1, True)
    unknown, yet_to_come = CommitLost(xid, at - 1, False), CommitLost(xid + 1000, at, True)
    found = [backend._was_committed(lost) for lost in (ours, others, unknown, yet_to_come)]
    backend.close()
    assert found == [True, False, True, False]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of the test's own, which may be restarted."""
    own = made()
    yield own
    own.remove()


def test_writers_go_on_when_the_server_was_restarted(own_server: Server) -> None:
    backend = open_backend(own_server.url, Config(), system_clock)
    done, sums = threading.Event(), list[int]()

    def work() -> None:
        while not done.is_set():
            receipt = backend.send(Commit((Part(SCOPE, ADD),)))
            sums.append(int(receipt.rows[0][0].text))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    counts = []
    for _ in range(3):
        before = len(sums)
        while len(sums) < before + 20:
            time.sleep(0.01)
        own_server.restart("immediate")
        counts.append(len(sums))
    time.sleep(0.3)
    done.set()
    for thread in threads:
        thread.join()
    stored = backend.send(Read(SCOPE, ("n",)))
    backend.close()
    assert sorted(sums) == list(range(1, len(sums) + 1))
    assert stored.rows[0].text == str(len(sums))
    assert counts[-1] < len(sums)


def test_a_server_that_stays_away_is_an_error_in_time(own_server: Server) -> None:
    backend = open_backend(own_server.url, Config(client=ClientSettings(retry_for=1.0)), system_clock)
    backend.send(Commit((Part(SCOPE, ADD),)))
    own_server.stop("immediate")
    began = time.monotonic()
    with pytest.raises(OutlastError, match="cannot reach") as caught:
        backend.send(Commit((Part(SCOPE, ADD),)))
    assert time.monotonic() - began < 5
    assert caught.value.fields() == {"outcome": "failed"}
    outcomes = backend.send_batch([Commit((Part(SCOPE, ADD),))] * 20)
    assert [type(outcome) for outcome in outcomes] == [BackendError] * 20
    assert len({id(outcome) for outcome in outcomes}) == 1, "each has waited by itself"
    own_server.start()
    reply = backend.send(Commit((Part(SCOPE, ADD),)))
    backend.close()
    assert isinstance(reply, Receipt)
    assert [row.text for row in reply.rows[0] if row] == ["2"]
