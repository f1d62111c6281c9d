"""The SQLite store among forks, interrupts and failures of the disk."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from outlast import BackendError, Store, TaskState, backends, connect
from outlast.backends import sqlite
from outlast.requests import Commit, Increment, Part
from outlast.values import TaskScope
from support import sqlite_file
from support.clock import Clock
from support.homes import settings

FORKING = Path(__file__).parent / "support" / "forking.py"
path, store, FORKS = sqlite_file.path, sqlite_file.store, sqlite_file.FORKS


@pytest.fixture
def state(store: Store) -> TaskState:
    return store.task("dag/run/task")


# --- Forks -------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> Any:
    """Do something in a fork of this process; return its answer."""
    answer, question = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(question, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as stream:
        text = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(text)


def work_on(state: TaskState) -> list[Any]:
    """Use every kind of call."""
    state.increment("n")
    with state.transaction() as tx:
        tx.increment("n")
    return [state.get("n"), state.keys(), len(state.history("n"))]


@FORKS
def test_parent_and_child_both_go_on_after_a_fork(state: TaskState) -> None:
    state.set("n", 0)
    assert in_child(lambda: work_on(state)) == [2, ["n"], 3]
    assert work_on(state) == [4, ["n"], 5]
    assert in_child(lambda: [work_on(state), in_child(lambda: work_on(state))]) == [[6, ["n"], 7], [8, ["n"], 9]]
    assert state.get("n") == 8


@FORKS
def test_a_fork_before_the_first_use(state: TaskState) -> None:
    assert in_child(lambda: work_on(state))[0] == 2
    assert work_on(state)[0] == 4


@FORKS
def test_both_at_the_same_time(store: Store, state: TaskState) -> None:
    state.set("n", 0)
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                for _ in range(15):
                    state.increment("n")
                os._exit(0)
            os._exit(1)
        children.append(pid)
    for _ in range(15):
        state.increment("n")
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    assert state.get("n") == 60
    assert store.inspect(deep=True).problems == ()


def increment_in_child(state: TaskState) -> None:
    state.increment("n")


@FORKS
def test_multiprocessing_by_fork(state: TaskState) -> None:
    state.set("n", 1)
    processes = [
        multiprocessing.get_context("fork").Process(target=increment_in_child, args=(state,)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert state.get("n") == 4


def test_a_fork_while_threads_read_and_write(path: Path) -> None:
    """It comes through although some thread is always reading, and both sides go on."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(FORKING), str(path)],
        timeout=15,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


@FORKS
def test_the_lock_is_not_shared_with_a_child(state: TaskState, path: Path) -> None:
    """A child that was forked and lives on does not hold the parent's lock."""
    state.set("key", 1)
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        state.set("key", 2)
        with connect(path, config=settings()) as other:
            other.task("dag/run/task").set("key", 3)
        assert state.get("key") == 3
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@FORKS
def test_a_closed_store_stays_closed_in_a_child(store: Store, state: TaskState) -> None:
    state.set("key", 1)
    store.close()

    def work() -> str:
        try:
            return str(state.get("key"))
        except BackendError as error:
            return str(error)

    assert "closed" in in_child(work)


# --- Interrupts ----------------------------------------------------------------------------------------------------


def interrupt_after(seconds: float, then: Callable[[], Any]) -> threading.Thread:
    """Send this thread what Ctrl-C sends, and do something a little later."""
    target = threading.get_ident()

    def send() -> None:
        time.sleep(seconds)
        signal.pthread_kill(target, signal.SIGINT)
        time.sleep(seconds)
        then()

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_ctrl_c_while_another_program_writes_leaves_the_store_usable(state: TaskState, path: Path) -> None:
    """The interrupt comes the moment our own transaction has begun: it is rolled back, not left open."""
    state.set("key", 1)
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    thread = interrupt_after(0.1, lambda: other.execute("commit"))
    with suppress(KeyboardInterrupt):
        state.set("key", 2)
        time.sleep(1)
    thread.join()
    state.set("key", 3)
    assert state.get("key") == 3
    other.execute("begin immediate")
    other.execute("rollback")
    other.close()


def test_ctrl_c_while_waiting_for_the_lock_gives_up_the_place(state: TaskState, path: Path) -> None:
    """Who was interrupted while waiting does not take the lock later and keep it from everybody."""
    state.set("key", 1)
    with open(f"{path}.lock", "rb") as side:
        fcntl.flock(side, fcntl.LOCK_EX)
        thread = interrupt_after(0.1, lambda: fcntl.flock(side, fcntl.LOCK_UN))
        with pytest.raises(KeyboardInterrupt):
            state.set("key", 2)
        thread.join()
        time.sleep(0.1)
        try:
            fcntl.flock(side, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail("the lock is held by nobody's write")
        fcntl.flock(side, fcntl.LOCK_UN)
    state.set("key", 3)
    assert state.get("key") == 3


def test_giving_up_the_wait_leaves_no_file_open(state: TaskState, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.set("key", 1)
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.02)
    before, threads = len(os.listdir("/dev/fd")), threading.active_count()
    with open(f"{path}.lock", "rb") as side:
        fcntl.flock(side, fcntl.LOCK_EX)
        for _ in range(5):
            with pytest.raises(BackendError, match="another process has held"):
                state.set("key", 2)
    deadline = time.monotonic() + 2
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (threading.active_count(), len(os.listdir("/dev/fd"))) == (threads, before)


def test_a_batch_waits_for_a_lock_once_not_once_a_commit(
    store: Store, state: TaskState, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.set("key", 1)
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(backends, "SHORT", 0.04)
    batch = [Commit((Part(TaskScope("dag", "run", "batch"), (Increment("n", 1, None),)),))] * 5
    with open(f"{path}.lock", "rb") as side:
        fcntl.flock(side, fcntl.LOCK_EX)
        outcomes = store.backend.send_batch(batch)
    assert [type(outcome) for outcome in outcomes] == [BackendError] * 5
    assert len({id(outcome) for outcome in outcomes}) == 1, "each has waited by itself"
    assert [reply.rows[0][0].text for reply in store.backend.send_batch(batch)] == ["1", "2", "3", "4", "5"]


# --- Failures of the disk ----------------------------------------------------------------------------------------


def connection_of(store: Store) -> apsw.Connection:
    """Return the connection that writes, to let SQLite itself fail."""
    return store.backend._writer.connection  # type: ignore[attr-defined, no-any-return]


def test_a_full_disk_is_said_and_nothing_is_written(store: Store, state: TaskState) -> None:
    """Contract 4.6."""
    state.set("key", "before")
    connection = connection_of(store)
    connection.pragma("max_page_count", connection.pragma("page_count") + 2)
    with pytest.raises(BackendError, match=r"disk that holds .* is full") as caught:
        state.set_many({"key": "after", "large": "x" * 100_000})
    assert caught.value.outcome == "failed"
    assert (state.items(), state.entry("key").revision) == ([("key", "before")], 1)  # type: ignore[union-attr]
    connection.pragma("max_page_count", 2**30)
    state.set("key", "after")
    assert state.entry("key").revision == 2  # type: ignore[union-attr]


def test_a_commit_that_fails_has_an_unknown_outcome(store: Store, state: TaskState) -> None:
    """Contract 4.6: it never returns as if written; the store goes on."""
    state.set("key", "before")
    connection_of(store).set_commit_hook(lambda: True)
    with pytest.raises(BackendError) as caught:
        state.set("key", "after")
    assert caught.value.outcome == "unknown"
    assert isinstance(caught.value.__cause__, apsw.Error)
    assert state.get("key") == "before"
    connection_of(store).set_commit_hook(None)
    state.set("key", "after")
    assert state.get("key") == "after"


def fail_at(store: Store, beginning: str) -> None:
    """Let SQLite refuse the statements that begin so."""
    connection_of(store).exec_trace = lambda cursor, sql, bindings: not sql.startswith(beginning)


@pytest.mark.parametrize("statement", ["select", "insert into history", "insert into entry", "update scope", "commit"])
def test_a_failing_statement_writes_nothing(store: Store, state: TaskState, statement: str) -> None:
    """Contract 4.4, 4.6."""
    state.set_many({"a": 1, "b": 1})
    fail_at(store, statement)
    with pytest.raises(BackendError):
        state.set_many({"a": 2, "b": 2})
    connection_of(store).exec_trace = None
    assert state.items() == [("a", 1), ("b", 1)]
    state.set_many({"a": 3, "b": 3})
    assert [entry.revision for entry in state.entries()] == [2, 2]


def test_a_sweep_that_fails_is_not_the_writers_failure(path: Path) -> None:
    """Contract 3.5, 4.6: the commit before it has succeeded, and its caller is told so."""
    clock = Clock()
    with connect(path, config=settings(), clock=clock) as store:
        state = store.task("dag/run/task")
        state.set("key", 1)
        clock.move(hours=1)
        fail_at(store, "select min(sweep_at)")
        state.set("key", 2)
        assert state.get("key") == 2


def test_a_clock_that_raises_leaves_the_store_usable(path: Path) -> None:
    """What is raised in the middle of a commit, whatever it is, rolls back."""
    clock, broken = Clock(), {"now": False}

    def time_of_day() -> int:
        if broken["now"]:
            raise ZeroDivisionError
        return clock()

    with connect(path, config=settings(), clock=time_of_day) as store:
        state = store.task("dag/run/task")
        state.set("key", 1)
        for call in (lambda: store.sweep(), lambda: state.get("key"), lambda: state.set("key", 2)):
            broken["now"] = True
            with pytest.raises(ZeroDivisionError):
                call()
            broken["now"] = False
            assert state.get("key") == 1
        state.set("key", 3)


def test_readers_are_not_held_up_by_a_writer(state: TaskState, path: Path) -> None:
    """Contract 4.4: while somebody holds the lock, reading goes on."""
    state.set("key", 1)
    with open(f"{path}.lock", "rb") as side:
        fcntl.flock(side, fcntl.LOCK_EX)
        began = time.monotonic()
        assert (state.get("key"), state.keys(), len(state.history("key"))) == (1, ["key"], 1)
        assert time.monotonic() - began < 1
