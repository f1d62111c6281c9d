"""`outlast logs`: what attempts have written, byte for byte, and following them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import outlast
from outlast.log_files import log_folder
from outlast.run_requests import ProcessRef, TaskSpec
from outlast.runner import processes
from outlast.runner.logs import log_path
from support.runs import RUNNER, Desk

from .conftest import PROGRAM, Told

Call = Callable[..., Told]


@pytest.fixture
def desk(store: outlast.Store) -> Desk:
    """Who speaks for a runner and its workers."""
    return Desk(store.backend)


def path_of(store: outlast.Store, desk: Desk, task_id: str, attempt: int, index: int = -1) -> Path:
    return Path(log_path(log_folder(store.config, store.url), desk.scope(task_id, index), attempt))


def write(store: outlast.Store, desk: Desk, task_id: str, attempt: int, data: bytes, index: int = -1) -> Path:
    path = path_of(store, desk, task_id, attempt, index)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def retried(store: outlast.Store, desk: Desk) -> Desk:
    """A task that failed once and succeeded then, with a log of each attempt."""
    desk.start("extract")
    desk.ran("extract", "failed", retries=1)
    desk.ran("extract")
    write(store, desk, "extract", 1, b"first\n")
    write(store, desk, "extract", 2, "second ✓\n".encode())
    return desk


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "second ✓\n"),
        (["--attempt", "1"], "first\n"),
        (["--attempt", "2"], "second ✓\n"),
        (["--all"], "--- attempt 1 (failed) ---\nfirst\n--- attempt 2 (success) ---\nsecond ✓\n"),
        (["--follow"], "second ✓\n"),
        (["-f", "--attempt", "1"], "first\n"),
        (["-f", "--all"], "--- attempt 1 (failed) ---\nfirst\n--- attempt 2 (success) ---\nsecond ✓\n"),
    ],
)
def test_logs_are_printed(call: Call, retried: Desk, options: list[str], expected: str) -> None:
    assert call("logs", "nightly/r1/extract", *options) == Told(0, expected, "")


def test_a_log_is_printed_byte_for_byte(store: outlast.Store, desk: Desk) -> None:
    desk.start(TaskSpec("each", 3))
    desk.ran("each", index=3)
    data = bytes(range(256)) * 300
    write(store, desk, "each", 1, data, index=3)
    done = subprocess.run([*PROGRAM, "logs", "nightly/r1/each/3"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")


def test_the_setting_says_where_logs_are(
    call: Call, store: outlast.Store, retried: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST__RUNNER__LOGS_DIR", str(tmp_path / "elsewhere"))
    told = call("logs", "nightly/r1/extract")
    assert (told.status, told.out) == (4, "")
    assert f"attempt 2 has no log at {tmp_path}/elsewhere/nightly/r1/extract/attempt-2.log" in told.err


def test_a_missing_log_is_named_with_the_host_it_is_on(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", "load")
    desk.ran("extract")
    desk.begin("load", supervisor=processes.me())
    desk.report(desk.fence("load"), "success")
    told = call("logs", "nightly/r1/extract")
    assert told.status == 4
    assert f"no log at {path_of(store, desk, 'extract', 1)}; it ran on here.test, so look there" in told.err
    told = call("logs", "nightly/r1/load")
    assert told.status == 4
    assert "so look there" not in told.err


def test_a_missing_log_among_others_does_not_hide_them(call: Call, store: outlast.Store, retried: Desk) -> None:
    path_of(store, retried, "extract", 1).unlink()
    told = call("logs", "nightly/r1/extract", "--all")
    assert (told.status, told.out) == (0, "--- attempt 1 (failed) ---\n--- attempt 2 (success) ---\nsecond ✓\n")
    assert "attempt 1 has no log at" in told.err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nightly/r1/extract", "--attempt", "3"], 4, "has no attempt 3: its attempts are 1, 2"),
        (["nightly/r1/extract", "--attempt", "0"], 2, "0 is not in the range"),
        (["nightly/r1/extract", "--attempt", "1", "--all"], 2, "exclude one another"),
        (["nightly/r1/waits"], 4, "nightly/r1/waits has no log: it has not begun (waiting)"),
        (["nightly/r1/waits", "--all"], 4, "nightly/r1/waits has no log: it has not begun (waiting)"),
        (["nightly/r1/waits", "--attempt", "1"], 4, "has no attempt 1: it has not begun (waiting)"),
        (["nightly/r1/extrct"], 4, "did you mean extract?"),
        (["nightly/r2/extract"], 4, "there is no run nightly/r2"),
        (["nightly/r1"], 65, "is a run; name a task of it"),
    ],
)
def test_what_cannot_be_printed_is_explained(
    call: Call, store: outlast.Store, desk: Desk, arguments: list[str], status: int, said: str
) -> None:
    desk.start("extract", "waits")
    desk.ran("extract", "failed", retries=1)
    desk.ran("extract")
    told = call("logs", *arguments)
    assert (told.status, told.out) == (status, "")
    assert said in told.err


# --- following -----------------------------------------------------------------------------------------------------


class Follower:
    """`outlast logs` as a program whose output is read as it comes."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "logs", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def end(self) -> Told:
        out, err = self.process.communicate(timeout=20)
        return Told(self.process.returncode, out.decode(), err.decode())


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    """Start to follow; whatever still runs is killed."""
    started: list[Follower] = []

    def start(*arguments: str) -> Follower:
        started.append(Follower(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


LONG = 10.0**9  # seconds: a lease that holds although the store's clock stands still


def test_a_log_is_followed_until_its_attempt_ends(follow, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", holder=RUNNER, lease=LONG)
    desk.begin("extract", lease=LONG)
    follower = follow("nightly/r1/extract", "-f")
    path = write(store, desk, "extract", 1, b"one\n")
    assert follower.line() == "one\n"
    with path.open("ab", buffering=0) as log:
        log.write(b"two\n")
        assert follower.line() == "two\n"
        log.write(b"last")
        desk.report(desk.fence("extract"), "failed", retries=1)
    assert follower.end() == Told(0, "last", "")


def test_all_attempts_are_followed_until_the_task_ends(follow, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", holder=RUNNER, lease=LONG)
    desk.begin("extract", lease=LONG)
    follower = follow("nightly/r1/extract", "-f", "--all")
    write(store, desk, "extract", 1, b"one\n")
    assert [follower.line(), follower.line()] == ["--- attempt 1 ---\n", "one\n"]
    desk.report(desk.fence("extract"), "failed", retries=1)
    write(store, desk, "extract", 2, b"two\n")
    desk.begin("extract", lease=LONG)
    assert [follower.line(), follower.line()] == ["--- attempt 2 ---\n", "two\n"]
    desk.report(desk.fence("extract"), "success")
    assert follower.end() == Told(0, "", "")


def test_a_task_that_has_not_begun_is_waited_for(follow, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", holder=RUNNER, lease=LONG)
    write(store, desk, "extract", 1, b"one\n")
    follower = follow("nightly/r1/extract", "-f")
    assert follower.process.stderr.readline() == b"nightly/r1/extract has not begun; waiting for it\n"
    desk.begin("extract", supervisor=RUNNER, lease=LONG)  # what is looked at in between is alive, too
    desk.report(desk.fence("extract"), "success")
    assert follower.end() == Told(0, "one\n", "")


@pytest.mark.parametrize(
    ("supervisor", "lease"),
    [(RUNNER, 30.0), (ProcessRef(os.uname().nodename, 2**22 + 1, "never"), LONG)],
    ids=["lapsed elsewhere", "dead here"],
)
def test_following_ends_when_nobody_is_left_to_write(
    follow, store: outlast.Store, desk: Desk, supervisor: ProcessRef, lease: float
) -> None:
    desk.start("extract", holder=supervisor, lease=lease)
    desk.begin("extract", supervisor=supervisor, lease=lease)
    write(store, desk, "extract", 1, b"one\n")
    for arguments in (["-f"], ["-f", "--all"]):
        told = follow("nightly/r1/extract", *arguments).end()
        assert (told.status, told.lines[-1]) == (0, "one")
        assert "attempt 1 of nightly/r1/extract has shown no sign of life" in told.err


def test_ctrl_c_ends_following(follow, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", holder=RUNNER, lease=LONG)
    desk.begin("extract", lease=LONG)
    write(store, desk, "extract", 1, b"one\n")
    follower = follow("nightly/r1/extract", "-f")
    assert follower.line() == "one\n"
    follower.process.send_signal(signal.SIGINT)
    told = follower.end()
    assert (told.status, told.err) == (130, "outlast: interrupted\n")


def test_a_reader_that_goes_away_is_no_error(store: outlast.Store, desk: Desk) -> None:
    desk.start("extract")
    desk.ran("extract")
    write(store, desk, "extract", 1, b"line\n" * 200_000)
    follower = Follower("nightly/r1/extract")
    follower.line()
    follower.process.stdout.close()
    assert follower.process.wait(20) == 141
    assert follower.process.stderr.read() == b""
    follower.process.stderr.close()


DAG_FILE = """
import time
from outlast import DAG, task

with DAG("talk"):
    @task(retries=1)
    def speak(ti=None):
        for number in range(10):
            print("attempt", ti.try_number, "says", number, flush=True)
            time.sleep(0.05)
        if ti.try_number == 1:
            raise ValueError("again")

    speak()
"""


def test_a_real_task_is_followed_to_its_end(follow, program: Call, place: str, tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(DAG_FILE)
    runner = subprocess.Popen([*PROGRAM, "run", "talk.py", "--run-id", "r1"], stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 30
        while not os.path.exists(place) or program("tasks", "show", "talk/r1/speak").status:
            assert time.monotonic() < end
            time.sleep(0.05)
        told = follow("talk/r1/speak", "-f", "--all").end()
        assert runner.wait(20) == 0
    finally:
        runner.kill()
        runner.communicate()
    assert [line for line in told.lines if "says" in line] == [
        f"attempt {attempt} says {number}" for attempt in (1, 2) for number in range(10)
    ]
    assert "ValueError: again" in told.out
    assert program("logs", "talk/r1/speak", "--attempt", "2").lines[0] == "attempt 2 says 0"
