"""What else a process does to the files of its store, and what interrupts a call, loses nothing and blocks nobody."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outlast import BackendError, ConfigError, Store, TaskState, connect
from support import sqlite_file
from support.homes import settings

path, store, FORKS = sqlite_file.path, sqlite_file.store, sqlite_file.FORKS


@pytest.fixture
def state(store: Store) -> TaskState:
    state = store.task("dag/run/task")
    state.set("key", "before")
    state.get("key")
    return state


def elsewhere(path: Path, code: str, *more: str) -> str:
    """Run code in another process, where `path` and `connect` are known; return what it prints."""
    begin = f"import os, sys\nfrom outlast import connect\npath = {str(path)!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code, *more], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WRITE = "with connect(path) as store: store.task('dag/run/other').set('key', 1)"
READ = "with connect(path) as store: print(store.task('dag/run/task').get('key'))"


# --- Other users of the files in this process ----------------------------------------------------------------


def look(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("select count(*) from entry").fetchall()
    connection.close()


def copy(path: Path) -> None:
    for file in (path, Path(f"{path}-shm")):
        file.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open file descriptions")
@pytest.mark.parametrize("use", [look, copy])
def test_another_user_in_the_same_process_costs_no_write(
    state: TaskState, path: Path, use: Callable[[Path], None]
) -> None:
    use(path)
    elsewhere(path, WRITE)
    assert Path(f"{path}-wal").exists()
    state.set("key", "after")
    assert elsewhere(path, READ) == "after"


def test_closing_still_empties_the_log(path: Path) -> None:
    with connect(path, config=settings()) as store, connect(path, config=settings()) as second:
        store.task("dag/run/task").set("key", 1)
        second.task("dag/run/task").get("key")
    assert not Path(f"{path}-wal").exists()


def test_a_store_that_is_let_go_unclosed_closes_its_files(path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    connect(path, config=settings()).task("dag/run/task").set("key", 1)
    assert (len(os.listdir("/dev/fd")), Path(f"{path}-wal").exists()) == (before, False)


# --- Files removed, replaced, closed -------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", ".lock", ".turn"])
def test_nothing_is_written_to_a_removed_store_and_none_begun(path: Path, ending: str) -> None:
    with connect(path, config=settings()) as store:
        state = store.task("dag/run/task")
        state.set("key", 1)
        for name in {"", ending}:
            os.unlink(f"{path}{name}")
        for call in (lambda: state.set("key", 2), lambda: state.get("key")):
            with pytest.raises(BackendError, match="removed or replaced while in use"):
                call()
        assert not path.exists()


def test_a_store_moved_away_and_back_goes_on(state: TaskState, path: Path) -> None:
    os.rename(path, f"{path}.old")
    with pytest.raises(BackendError, match="put the file back"):
        state.set("key", "after")
    os.rename(f"{path}.old", path)
    state.set("key", "after")
    assert state.get("key") == "after"


def test_a_file_with_several_names_is_refused(path: Path) -> None:
    connect(path, config=settings()).close()
    os.link(path, f"{path}.link")
    with pytest.raises(ConfigError, match="hard links"):
        connect(path, config=settings())


CLOSED = """
state = connect(path).task('dag/run/task')
state.set('key', 'before')
state.get('key')
os.closerange(3, 256)
files = [open(f'{path}.other{number}', 'w+b') for number in range(20)]
for call in (lambda: state.set('key', 'after'), lambda: state.get('key'), lambda: connect(path)):
    try: call()
    except Exception as error: print(type(error).__name__, 'closed the files' in str(error))
"""


def test_closed_descriptors_are_noticed_and_no_other_file_is_written(path: Path) -> None:
    assert elsewhere(path, CLOSED).split() == ["BackendError", "True"] * 3
    assert {file.stat().st_size for file in path.parent.glob("*.other*")} == {0}
    assert elsewhere(path, READ) == "before"


TOO_MANY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
states = []
try:
    for number in range(60): states.append(connect(f'{path}{number}'))
except Exception as error: print(type(error).__name__, 'too many files are open' in str(error))
"""


def test_too_many_open_files_are_said(path: Path) -> None:
    assert elsewhere(path, TOO_MANY) == "BackendError True"


# --- Signals and finalisers ----------------------------------------------------------------------------------


def interrupted(store: Store, handler: Callable[[], Any]) -> Any:
    """Call something in the middle of a write, as a signal handler or a finaliser would."""
    answers: list[Any] = []

    def clock() -> int:
        if not answers:
            answers.append(None)
            try:
                answers[0] = handler()
            except BackendError as error:
                answers[0] = error
        return before()

    before, store.backend.clock = store.backend.clock, clock  # type: ignore[attr-defined]
    began = time.monotonic()
    try:
        store.task("dag/run/task").set("key", "interrupted")
    finally:
        store.backend.clock = before  # type: ignore[attr-defined]
    assert time.monotonic() - began < 3
    return answers[0]


def test_a_write_inside_a_write_is_refused_at_once(store: Store, state: TaskState) -> None:
    error = interrupted(store, lambda: state.set("key", "inside"))
    assert "signal handler or a finaliser while this thread was writing" in str(error)
    assert state.get("key") == "interrupted"


def test_closing_inside_a_write_closes_after_it(store: Store, state: TaskState, path: Path) -> None:
    assert interrupted(store, store.close) is None
    with pytest.raises(BackendError, match="closed"):
        state.get("key")
    assert not Path(f"{path}-wal").exists()
    assert elsewhere(path, READ) == "interrupted"


@FORKS
def test_a_fork_inside_a_write_waits_for_nobody(store: Store, state: TaskState) -> None:
    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            try:
                state.get("key")
                with pytest.raises(BackendError, match="forked in the middle of a write"):
                    state.set("key", "child")
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    assert os.waitpid(interrupted(store, fork), 0)[1] == 0
    state.set("key", "after")
    assert state.get("key") == "after"


class Interrupt(BaseException):
    """What a signal handler raises."""


def at_opcode(number: int, call: Callable[[], Any]) -> bool:
    """Raise at the n-th bytecode of the backend during a call; tell whether there is one."""
    count, raised = 0, False

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count, raised
        if not frame.f_code.co_filename.endswith(("backends/sqlite.py", "backends/turns.py", "backends/locks.py")):
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        if count == number and not raised:
            raised = True
            sys.settrace(None)
            raise Interrupt
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # or the bytecode may be one of a finaliser, of another store
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
        gc.enable()
    return raised


@pytest.mark.parametrize("name", ["set", "get"])
def test_an_interrupt_at_any_bytecode_leaves_the_store_usable(path: Path, name: str) -> None:
    number, going = 1, True
    while going:
        store = connect(path, config=settings())
        state = store.task("dag/run/task")
        state.set("key", 0)
        state.get("key")
        going = at_opcode(number, partial(state.set, "key", 1) if name == "set" else partial(state.get, "key"))
        began = time.monotonic()
        state.set("key", number)
        assert state.get("key") == number
        store.close()
        assert time.monotonic() - began < 3, number
        number += 7


def test_closing_does_not_wait_for_ever_for_a_reader(
    store: Store, state: TaskState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.backends.turns.READERS_SECONDS", 0.05)
    go, inside = threading.Event(), threading.Event()
    before = store.backend.clock  # type: ignore[attr-defined]

    def clock() -> int:
        inside.set()
        go.wait(10)
        return int(before())

    store.backend.clock = clock  # type: ignore[attr-defined]
    thread = threading.Thread(target=state.get, args=("key",))
    thread.start()
    inside.wait(10)
    store.close()
    go.set()
    thread.join(10)
    assert store.backend._guard is None  # type: ignore[attr-defined]


# --- Opening and closing beside a writer ---------------------------------------------------------------------

OPENING = "for _ in range(150): connect(path).close()"
WRITING = """
for number in range(150):
    with connect(path) as store: store.task('dag/run/other').set('key', number)
"""


def test_one_opens_and_closes_while_another_opens_writes_and_closes(path: Path) -> None:
    connect(path, config=settings()).close()
    threads, failed = [], []

    def do(code: str) -> None:
        try:
            elsewhere(path, code)
        except AssertionError as error:
            failed.append(error)

    for code in (OPENING, WRITING):
        threads.append(threading.Thread(target=do, args=(code,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert failed == []
