"""A store in PostgreSQL: how it is named, made, shared, and what it says when something is wrong."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from outlast import connect
from outlast.backends import Backend, idle, open_backend
from outlast.backends.postgres_schema import Place
from outlast.cli import main
from outlast.config import Config
from outlast.errors import ConfigError
from outlast.requests import Commit, Fence, Inspect, Once, Open, Part, Put, Read
from outlast.values import AssetScope, TaskScope, system_clock
from support.clock import Clock
from support.postgres import server

pytestmark = pytest.mark.postgres

SOURCE = Path(__file__).parents[1] / "src"
SCOPE = TaskScope("dag", "run", "task")
WRITE = Commit((Part(SCOPE, (Put("x", "1", None),)),))


@pytest.fixture
def place() -> Iterator[str]:
    """The URL of a schema that is not there."""
    yield f"{server().url}?schema=own%20schema"
    sql('drop schema if exists "own schema" cascade')


def sql(statement: str) -> None:
    with psycopg.connect(server().url, autocommit=True) as connection:
        connection.execute(statement.encode())


def opened(url: str) -> Backend:
    return open_backend(url, Config(), system_clock)


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg"])
def test_urls_of_other_libraries_mean_the_same(scheme: str) -> None:
    found = Place.of(f"{scheme}://me:secret@db/app?sslmode=require&schema=a%22b")
    assert found == Place("postgresql://me:secret@db/app?sslmode=require", 'a"b')
    assert (found.quoted_schema, str(found)) == ('"a""b"', 'postgresql://me:***@db/app?sslmode=require (schema a"b)')


def test_a_schema_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="schema="):
        Place.of("postgresql://db/app?schema=")


def test_a_database_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="check the user, the password and the database's name"):
        opened(server().url.replace("/postgres", "/nowhere"))


def test_long_names_fit(place: str) -> None:
    long = TaskScope("\U0001f600" * 250, "\U0001f601" * 250, "\U0001f602" * 250)
    asset = AssetScope("\U0001f603" * 1500, "\U0001f604" * 1500)
    parts = tuple(Part(scope, (Put("\U0001f605" * 512, "1", None),)) for scope in (long, asset))
    backend = opened(place)
    for _ in range(2):
        backend.send(Commit(parts))
    found = [backend.send(Read(scope, ("\U0001f605" * 512,))) for scope in (long, asset)]
    backend.close()
    assert [(reply.revision, reply.rows[0].text) for reply in found] == [(2, "1"), (2, "1")]


# --- the schema --------------------------------------------------------------------------------------------


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


OPEN_AND_WRITE = """
import sys, outlast
with outlast.connect(sys.argv[1]) as store:
    print(store.task("dag/run/task").increment("n"))
"""
UPGRADE = "import sys; from outlast.cli import main; sys.exit(main(['db', 'upgrade', '--store', sys.argv[1]]))"


def test_ten_processes_that_find_nothing_make_one_store(place: str) -> None:
    started = [python(OPEN_AND_WRITE, place) for _ in range(10)]
    ended = [process.communicate(timeout=60) for process in started]
    assert sorted(int(out or 0) for out, _ in ended) == list(range(1, 11)), ended


def test_ten_upgrades_at_once_do_it_once(place: str) -> None:
    started = [python(UPGRADE, place) for _ in range(10)]
    ended = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 10
    assert sorted("already" in out for out in ended) == [False] + [True] * 9


def test_a_role_that_may_not_make_tables_says_who_has_to(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql("drop role if exists modest; create role modest login")
    modest = place.replace("outlast@", "modest@")
    try:
        with pytest.raises(ConfigError, match="run `outlast db upgrade`"):
            opened(modest)
        assert main(["db", "check", "--store", modest]) == 78
        assert main(["db", "upgrade", "--store", place]) == 0
        with pytest.raises(ConfigError, match="grant"):
            opened(modest)
        sql('grant usage on schema "own schema" to modest')
        sql('grant select, insert, update, delete on all tables in schema "own schema" to modest')
        backend = opened(modest)
        assert backend.send(WRITE).revisions == (1,)
        assert dict(backend.send(Inspect()).facts)["schema"] == "own schema"
        backend.close()
        assert main(["db", "check", "--store", modest]) == 0
    finally:
        sql("drop owned by modest; drop role modest")
    assert capsys.readouterr().out.count("schema version 1") == 2


@pytest.mark.parametrize(("fact", "said"), [("schema", "newer outlast"), ("schema_checksum", "changed by hand")])
def test_a_schema_that_is_not_ours_is_refused(place: str, fact: str, said: str) -> None:
    opened(place).close()
    sql(f"""update "own schema".meta set content = '99' where name = '{fact}'""")
    with pytest.raises(ConfigError, match=said):
        opened(place)


# --- several at once ---------------------------------------------------------------------------------------


def test_a_commit_sent_twice_at_once_happens_once(place: str) -> None:
    backends = [opened(place), opened(place)]
    for number in range(10):
        with ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(to.send, Commit(WRITE.parts, commit_id=f"call {number}")) for to in backends * 2]
        assert [each.result() for each in sent] == [sent[0].result()] * 4
    assert backends[0].send(Read(SCOPE, ("x",))).revision == 10
    for backend in backends:
        backend.close()


def test_a_call_sent_twice_at_once_happens_once(place: str) -> None:
    """Over two connections, neither of which finds the other's receipt before both have begun."""
    backends = [opened(place), opened(place)]
    for number in range(1, 11):
        calls = [Once(f"call {number}", Open(SCOPE, None)), Once(f"other {number}", Open(SCOPE, number))]
        with ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(to.send, calls[0]) for to in backends * 2]
        assert [each.result().attempt for each in sent] == [number] * 4
        assert backends[0].send(calls[1]).attempt == number
    for backend in backends:
        backend.close()


def test_parent_and_child_both_go_on_after_a_fork(place: str) -> None:
    with connect(place) as store:
        state = store.task("dag/run/task")
        state.set("n", 0)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(20):
                    state.increment("n")
            finally:
                os._exit(0)
        for _ in range(20):
            state.increment("n")
        assert os.waitpid(child, 0)[1] == 0
        assert state.get("n") == 40


def connections() -> int:
    with psycopg.connect(server().url) as connection:
        asked = "select count(*) from pg_stat_activity where application_name = 'outlast' and datname is not null"
        return int((connection.execute(asked).fetchone() or (0,))[0])


def test_connections_nobody_uses_are_closed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.3)
    with connect(place) as store:
        state = store.task("dag/run/task")
        threads = [threading.Thread(target=state.increment, args=("n",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert connections() > 0
        until = time.monotonic() + 10
        while connections() and time.monotonic() < until:
            time.sleep(0.05)
        assert connections() == 0
        assert [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)] == []
        assert state.increment("n") == 5


# --- time --------------------------------------------------------------------------------------------------


def test_the_database_says_what_has_expired(place: str) -> None:
    """Contract 3.2: a process whose clock is a day ahead, or behind, sees the same."""
    backend = opened(place)
    now = system_clock()
    hour, day = 3600 * 1_000_000, 24 * 3600 * 1_000_000
    backend.send(Commit((Part(SCOPE, (Put("gone", "1", now - hour), Put("here", "1", now + hour))),)))
    assert [row.name for row in backend.send(Read(SCOPE, None)).rows] == ["here"]
    backend.close()
    ahead = open_backend(place, Config(), Clock(now + day))  # a clock that was given goes before the database's
    assert ahead.send(Read(SCOPE, None)).rows == ()
    ahead.close()


WRONG_CLOCK = """
import sys, time
real = time.time_ns
time.time_ns = lambda: real() + int(sys.argv[2]) * 10**9
import outlast
with outlast.connect(sys.argv[1]) as store:
    print(sorted(store.task("dag/run/task").keys()))
"""


@pytest.mark.parametrize("wrong_by", [-86400, 86400])
def test_a_process_with_a_wrong_clock_sees_what_others_see(place: str, wrong_by: int) -> None:
    backend = opened(place)
    now = system_clock()
    ends = {"gone": now - 1_000_000, "here": now + 3600 * 1_000_000}
    backend.send(Commit((Part(SCOPE, tuple(Put(name, "1", end) for name, end in ends.items())),)))
    backend.close()
    out, errors = python(WRONG_CLOCK, place, str(wrong_by)).communicate(timeout=60)
    assert out.strip() == "['here']", errors


def test_a_new_store_is_announced_once(place: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "outlast"):
        for _ in range(2):
            opened(place).close()
    assert [record.message.startswith("outlast: created a new store in") for record in caplog.records] == [True]


def test_a_transaction_whose_client_stopped_is_given_up(place: str) -> None:
    """Or it would hold up everybody else for hours."""
    backend = opened(place)
    backend.send(WRITE)
    session = backend._idle.take()  # type: ignore[attr-defined]
    shown = session.execute("show idle_in_transaction_session_timeout", ())
    session.close()
    backend.close()
    assert shown == [("30s",)]


# --- reading together --------------------------------------------------------------------------------------


def test_reads_sent_together_are_answered_as_alone(place: str) -> None:
    backend = opened(place)
    fences, reads = [], []
    for number in range(5):
        scope = TaskScope("dag", "run", f"task{number}", number, f"item{number}")
        opened_as = backend.send(Open(scope, None))
        fences.append(Fence(scope, opened_as.attempt, opened_as.scope_id))
        backend.send(Commit((Part(scope, tuple(Put(f"k{key}", f"{number}{key}", None) for key in range(4))),)))
    for number, fence in enumerate(fences):
        names = tuple(f"k{key}" for key in range(number))
        reads += [Read(fence.scope, names, fence=fence), Read(fence.scope, (*names, *names, "absent"))]
        reads.append(Read(fence.scope, names, fence=Fence(fence.scope, 9, fence.scope_id)))
    reads += [Read(TaskScope("dag", "run", "nothing"), ("k0",)), Read(SCOPE, ("x\0y",)), Read(SCOPE, ())]
    together = backend.send_batch(reads)
    alone = [backend._outcome(read) for read in reads]
    assert [(type(one), str(one)) for one in together] == [(type(one), str(one)) for one in alone]
    assert {type(one).__name__ for one in together} == {"Found", "StaleAttempt"}
    backend.close()


@pytest.mark.parametrize(
    "odd",
    [
        Read(SCOPE, ("k",), fence=Fence(SCOPE, 1, 2**70)),  # a number no column holds
        Read(AssetScope("asset"), ("k",)),  # takes more than a lookup
        Read(SCOPE, tuple(f"k{number}" for number in range(600))),
        Read(SCOPE, None),
    ],
)
def test_a_read_that_does_not_go_with_the_others_spoils_none_of_them(place: str, odd: Read) -> None:
    backend = opened(place)
    backend.send(Commit((Part(SCOPE, (Put("k", "1", None),)),)))
    first, between, last = backend.send_batch([Read(SCOPE, ("k",)), odd, Read(SCOPE, ("k",))])
    assert first == last == backend.send(Read(SCOPE, ("k",)))
    assert str(between) == str(backend._outcome(odd))
    backend.close()
