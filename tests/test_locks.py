"""The lock writers queue at: nobody passes one that waits, nobody waits for ever, and no death leaves it held."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from outlast.backends.locks import FileLock
from outlast.errors import BackendError

HOLDER = """
import sys, time
from outlast.backends.locks import FileLock
print("asking", flush=True)
FileLock(sys.argv[1]).acquire(20)
print("holding", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def interrupted_soon() -> Iterator[None]:
    """Let Ctrl-C come a moment after the test has begun to wait."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    yield
    timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_process_waits_for_a_bounded_time_and_is_told_who_holds_the_file(path: str) -> None:
    with held(FileLock(path), 1):
        began = time.monotonic()
        with (
            pytest.raises(BackendError, match=r"another process has held .*store\.db\.lock"),
            held(FileLock(path), 0.05),
        ):
            pass
        assert time.monotonic() - began < 5


def test_one_that_gave_up_holds_nothing_and_may_ask_again(path: str) -> None:
    first, second = FileLock(path), FileLock(path)
    with held(first, 1), pytest.raises(BackendError), held(second, 0.05):
        pass
    for lock in (second, first, second):
        with held(lock, 5):
            pass


def test_one_that_was_interrupted_holds_nothing(path: str, interrupted_soon: None) -> None:
    first, second = FileLock(path), FileLock(path)
    with held(first, 1), pytest.raises(KeyboardInterrupt), held(second, 20):
        pass
    for lock in (first, second, first):
        with held(lock, 5):
            pass


def test_giving_up_leaves_no_thread_and_no_descriptor_behind(path: str) -> None:
    first, second = FileLock(path), FileLock(path)
    threads, descriptors = threading.active_count(), _descriptors()
    for _ in range(5):
        with held(first, 1), pytest.raises(BackendError), held(second, 0.02):
            pass
    _until(lambda: (threading.active_count(), _descriptors()) == (threads, descriptors))


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_killed_processes_leave_nothing_locked(path: str, waiting: int) -> None:
    processes = [_hold(path, until="holding")] + [_hold(path, until="asking") for _ in range(waiting)]
    time.sleep(0.1 * waiting)
    for process in reversed(processes):
        process.kill()
        process.communicate()
    with held(FileLock(path), 0.5):
        pass


def test_a_process_that_has_released_the_lock_comes_after_one_that_waits(path: str) -> None:
    lock = FileLock(path)
    with held(lock, 1):
        other = _hold(path, until="asking")
        _until(lambda: _stands_in_turnstile(path))
    with pytest.raises(BackendError), held(lock, 0.05):
        pass
    other.kill()
    other.communicate()


@contextmanager
def held(lock: FileLock, seconds: float) -> Iterator[None]:
    lock.acquire(seconds)
    try:
        yield
    finally:
        lock.release()


def _hold(path: str, until: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline().strip() != until:
        assert process.poll() is None
    return process


def _stands_in_turnstile(path: str) -> bool:
    with open(path + ".turn", "rb") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it did not come about within 10 s"
        time.sleep(0.001)


def test_where_no_thread_can_be_started_the_caller_waits(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter, for instance."""
    first, second = FileLock(path), FileLock(path)
    first.acquire(1)
    timer = threading.Timer(0.1, first.release)
    timer.start()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with held(second, 10), pytest.raises(BackendError, match="another process has held"), held(first, 0.02):
        pass
    timer.join()
    with held(first, 1):
        pass
