"""A place to run DAG files with `outlast run` as people do, to look at what became of them and at what is left over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import support
from outlast import Store, connect
from outlast.config import Config, StateStoreSettings
from outlast.run_requests import AttemptRow, GetRun, ListAttempts, RunDetail, TaskRow
from outlast.values import TaskScope

T = TypeVar("T")

PROGRAM = [sys.executable, "-P", "-W", "error", "-m", "outlast.cli"]
#: Names a run's processes, the detached ones included.
MARK = "GROUND"
#: Seconds for what takes less than one when the machine has nothing else to do.
PATIENCE = 30.0

#: What every DAG file of a test begins with.
PRELUDE = '''
import os, signal, subprocess, sys, time
from pathlib import Path
from outlast import DAG, StaleAttempt, task

HERE = Path(__file__).parent

def mark(text):
    """Append a line to a file, in one write."""
    with open(HERE / "marks", "a") as file:
        file.write(f"{text}\\n")

def first(name):
    """Say whether nobody has asked that before."""
    try:
        (HERE / name).open("x").close()
    except FileExistsError:
        return False
    return True

def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.01)

def forever():
    while True:
        time.sleep(0.01)

def pid(name, number=None):
    """Write a process id where the test finds it, all at once."""
    (HERE / f"{name}.new").write_text(str(os.getpid() if number is None else number))
    (HERE / f"{name}.new").rename(HERE / name)
'''

#: A DAG whose first task waits, the first time, until there is a file `go`.
WAITS = """
with DAG("d"):
    @task
    def t(task_state_store=None, ti=None):
        mark(f"try {ti.try_number}")
        if first("once"):
            pid("child")
            wait_for("go")
        mark("end")

    @task(trigger_rule="all_done")
    def after():
        mark("after")

    t() >> after()
"""


class Told(NamedTuple):
    """How `outlast run` ended and what it said."""

    status: int
    err: str


class Program:
    """An `outlast run` in progress."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self.said = process, said

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self, seconds: float = PATIENCE) -> Told:
        """Wait for its end."""
        status = self.process.wait(seconds)
        return Told(status, self.err)

    @property
    def err(self) -> str:
        return self.said.read_text()


class Ground:
    """A folder with a store and DAG files."""

    def __init__(self, folder: Path, lease: float = 10.0) -> None:
        self.folder, self.place, self.mark = folder, folder / "s.db", uuid.uuid4().hex
        folder.mkdir(exist_ok=True)
        here = str(Path(support.__file__).parent)
        self.env = os.environ | {
            MARK: self.mark,
            "OUTLAST_URL": str(self.place),
            "OUTLAST__STATE_STORE__DURABILITY": "process",
            "OUTLAST__RUNNER__PARALLELISM": "4",
            "OUTLAST__RUNNER__LEASE_SECONDS": str(lease),
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here])),
        }
        self.programs: list[Program] = []
        self._store: Store | None = None

    # --- running -------------------------------------------------------------------------------------------

    def dag(self, source: str, name: str = "d.py") -> Path:
        """Write a DAG file."""
        (self.folder / name).write_text(PRELUDE + source)
        return self.folder / name

    def start(self, *arguments: str, env: dict[str, str] | None = None, before: list[str] | None = None) -> Program:
        """Begin `outlast run`, of d.py unless said otherwise; `before` is a command that becomes it."""
        given = arguments if any(argument.endswith(".py") for argument in arguments) else ("d.py", *arguments)
        return self._begin([*(before or []), *PROGRAM, "run", *given], self.env | (env or {}))

    def command(self, *words: str) -> Told:
        """Call another command, to its end."""
        return self._begin([*PROGRAM, *words], self.env).ends()

    def _begin(self, command: list[str], env: dict[str, str]) -> Program:
        said = self.folder / f"said-{len(self.programs)}"
        with open(said, "wb") as err:
            process = subprocess.Popen(
                command, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=err, stderr=err
            )
        self.programs.append(Program(process, said))
        return self.programs[-1]

    def run(self, *arguments: str, env: dict[str, str] | None = None, seconds: float = PATIENCE) -> Told:
        """Run to the end."""
        return self.start(*arguments, env=env).ends(seconds)

    # --- looking -------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = connect(self.place, config=Config(state_store=StateStoreSettings(durability="process")))
        return self._store

    def send(self, request: Any) -> Any:
        return self.store.backend.send(request)

    def detail(self, run_id: str = "r", dag_id: str = "d") -> RunDetail:
        detail: RunDetail = self.send(GetRun(dag_id, run_id))
        return detail

    def task(self, task_id: str, run_id: str = "r", dag_id: str = "d") -> TaskRow:
        scope = TaskScope(dag_id, run_id, task_id)
        return next(task for task in self.detail(run_id, dag_id).tasks if task.scope == scope)

    def attempts(self, task_id: str, run_id: str = "r", dag_id: str = "d") -> list[AttemptRow]:
        return list(self.send(ListAttempts(TaskScope(dag_id, run_id, task_id))).attempts)

    def outcomes(self, task_id: str, run_id: str = "r") -> list[str]:
        """Return how each attempt ended, having checked that the numbers have no gap and the counts are right."""
        attempts = self.attempts(task_id, run_id)
        assert [attempt.number for attempt in attempts] == list(range(1, len(attempts) + 1))
        states, row = [attempt.state for attempt in attempts], self.task(task_id, run_id)
        assert (row.failures, row.crashes) == (states.count("failed"), states.count("crashed"))
        assert all((attempt.ended_at is None) == (attempt.state == "running") for attempt in attempts)
        return states

    def state(self, task_id: str, run_id: str = "r") -> dict[str, Any]:
        return dict(self.store.task(f"d/{run_id}/{task_id}").items())

    @property
    def marks(self) -> list[str]:
        """Return the lines the tasks have written."""
        path = self.folder / "marks"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.marks)

    def pid(self, name: str) -> int:
        """Return a process id a task has written down, waiting for it."""
        return int(self.appears(name).read_text())

    def appears(self, name: str) -> Path:
        """Wait for a file."""
        path = self.folder / name
        self.until(path.exists, f"{name} appears")
        return path

    def until(self, condition: Callable[[], T], what: str = "", seconds: float = PATIENCE) -> T:
        """Wait until something holds, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self._said()}"
            time.sleep(0.01)
        return found

    def until_state(self, task_id: str, state: str, attempt: int = 1) -> TaskRow:
        """Wait until a task instance is in that state at that attempt."""

        def found() -> TaskRow | None:
            with suppress(LookupError, StopIteration):
                row = self.task(task_id)
                return row if (row.state, row.attempt) == (state, attempt) else None
            return None

        return self.until(found, f"{task_id} {state} at attempt {attempt}")  # type: ignore[return-value]

    def _said(self) -> str:
        return "\n".join(program.err for program in self.programs)

    # --- processes -----------------------------------------------------------------------------------------

    def left(self) -> list[int]:
        """Return the processes started from here that still exist."""
        return processes_with(f"{MARK}={self.mark}")

    def left_soon(self, seconds: float = 1.0) -> list[int]:
        """Return what is left when what is dying has had a moment."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def close(self) -> None:
        """End what is left, stopped processes too."""
        for program in self.programs:
            with suppress(ProcessLookupError):
                program.process.kill()
            program.process.wait()
        for number in self.left():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if self._store is not None:
            self._store.close()


def processes_with(text: str) -> list[int]:
    """Return the processes that have a text in their environment."""
    return [number for number in _processes() if text.encode() in _environ(number)]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environ(number: int) -> bytes:
    with suppress(OSError), open(f"/proc/{number}/environ", "rb") as file:
        return file.read()
    return b""


def exists(number: int) -> bool:
    """Say whether a process is there and more than a zombie."""
    return state_of(number) not in (None, "Z", "X")


def state_of(number: int) -> str | None:
    """Return the letter of a process's state; None if there is no such process."""
    with suppress(OSError), open(f"/proc/{number}/stat") as file:
        found = re.search(r"\) (\w)", file.read())
        return found[1] if found else None
    return None
