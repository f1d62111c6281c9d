"""Calling the command line: in this process, as a program of its own, or on a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import outlast
from outlast.cli import main
from outlast.config import Config, StateStoreSettings
from outlast.log_files import log_folder
from outlast.run_requests import Resolve
from outlast.runner.logs import log_path
from support.runs import Desk

PROGRAM = [sys.executable, "-W", "error", "-m", "outlast.cli"]

#: Makes standard input the terminal whose Ctrl-C the program gets, then becomes the program.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)

#: 2026-01-02T03:04:05Z, for stores whose times stand in a test.
THEN = 1_767_323_045_000_000
SHOWN_THEN = "2026-01-02T03:04:05Z"
LONG = 10.0**9  # seconds: a lease that holds although the store's clock stands at THEN
INGEST = "nightly/2026-11-29/ingest"


class Told(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str = ""

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that OUTLAST_URL names, with no store in it yet, in an empty current folder."""
    path = str(tmp_path / "work.db")
    monkeypatch.setenv("OUTLAST_URL", path)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def store(place: str) -> Iterator[outlast.Store]:
    """The store there, whose writes are of 2026-01-02 03:04:05 UTC and do not expire unless they say so."""
    config = Config(state_store=StateStoreSettings(default_retention_days=0))
    with outlast.connect(place, config=config, clock=lambda: THEN) as store:
        yield store


@pytest.fixture
def ingest(store: outlast.Store) -> outlast.TaskState:
    """A task instance with two keys, written by its first attempt."""
    state = store.task(INGEST, attempt=1)
    state.set("page", 41)
    state.set("phase", "load")
    return state


def now_of(store: outlast.Store, address: str = INGEST) -> dict[str, Any]:
    """Return what a task instance has stored now."""
    return dict(store.task(address).items())


@pytest.fixture
def desk(store: outlast.Store) -> Desk:
    """Who speaks for a runner and its workers."""
    return Desk(store.backend)


@pytest.fixture
def failed(desk: Desk) -> Desk:
    """A run that ended because its first task failed."""
    desk.start("extract", ("load", "extract"), "other")
    desk.ran("extract", "failed", error="ValueError: bad page")
    desk.ran("other")
    desk.send(Resolve(desk.scope("load"), "upstream_failed"))
    desk.release("failed")
    return desk


def ended(store: outlast.Store, run_id: str, end: str = "success") -> Desk:
    """Make a run that has ended."""
    desk = Desk(store.backend, run_id=run_id)
    desk.start("extract")
    desk.ran("extract", "success" if end == "success" else "failed", error="ValueError: bad page\nof many")
    desk.release(end)
    return desk


def log_of(store: outlast.Store, desk: Desk, task_id: str, text: str = "said\n") -> Path:
    """Write the log of a first attempt and return its path."""
    path = Path(log_path(log_folder(store.config, store.url), desk.scope(task_id), 1))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.fixture
def call(place: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """Call the command line in this process."""

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        status = main(list(arguments))
        return Told(status, *capsys.readouterr())

    return run


@pytest.fixture
def program(place: str) -> Callable[..., Told]:
    """Call the command line as a program of its own; `text` goes to its standard input."""

    def run(*arguments: str, text: str | bytes = b"", **variables: str) -> Told:
        given = text.encode() if isinstance(text, str) else text
        done = subprocess.run(
            [*PROGRAM, *arguments], input=given, capture_output=True, timeout=60, env=os.environ | variables
        )
        return Told(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


class Terminal:
    """A program on a terminal of its own: everything it prints there, and typing at it."""

    def __init__(self, arguments: tuple[str, ...], variables: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        plain = {"TERM": "dumb", "COLUMNS": "80", "LINES": "25", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *PROGRAM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | plain | variables,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def expect(self, text: str, seconds: float = 20) -> None:
        """Wait until a text has been printed."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} was not printed: {self.seen!r}"
            assert self._read(), f"it ended without {text!r}: {self.seen!r}"

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def press_ctrl_c(self) -> None:
        """Press Ctrl-C until it ends: one that comes just before the program waits for a key is seen at the next."""
        while self.process.poll() is None:
            self.type("\x03")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.3)

    def end(self, seconds: float = 20) -> Told:
        """Wait for the end; everything printed is `out`, with plain line ends."""
        while self._read():
            pass
        return Told(self.process.wait(seconds), self.seen)

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 20)
        assert ready, f"nothing more was printed: {self.seen!r}"
        with suppress(OSError):  # Linux says EIO once the program has closed its end
            if data := os.read(self.master, 65536):
                self.seen += data.decode().replace("\r\n", "\n")
                return True
        return False

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(place: str) -> Iterator[Callable[..., Terminal]]:
    """Call the command line on a terminal."""
    opened: list[Terminal] = []

    def run(*arguments: str, **variables: str) -> Terminal:
        opened.append(Terminal(arguments, variables))
        return opened[-1]

    yield run
    for one in opened:
        one.close()


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
