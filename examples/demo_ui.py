"""Show the page with something on it: a server, DAGs that run, and workers that are killed while you look.

    make demo-ui

Prints a link to open in a browser and stays until Ctrl-C; Enter begins another night. Everything it makes is in a
temporary folder, which is removed at the end. With --once it ends when the night's run has, and exits with 1 if that
is not as it must be.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import outlast

T = TypeVar("T")

FLOWS = Path(__file__).resolve().with_name("ui_night.py")
OUTLAST = [sys.executable, "-P", "-m", "outlast.cli"]
#: What the demo's processes get in the place of your own settings.
SETTINGS = {
    "STATE_STORE__SECRET_KEYS": "*token*",
    "STATE_STORE__HISTORY_VERSIONS": "100",  # so that the first attempts' writes are still to be seen
    "RUNNER__PARALLELISM": "6",
    "RUNNER__LEASE_SECONDS": "10",
}
CRAWLS = ("monday", "tuesday", "wednesday", "thursday")
NIGHT = "night/tonight"
#: Seconds for what takes a few when the machine has nothing else to do.
PATIENCE = 120.0
#: Seconds each has to end when the demo does.
_GRACE = 20.0

#: Set when it is to stop.
stopping = threading.Event()


def main() -> int:
    """Show it; return the exit status."""
    given = arguments()
    for name in [name for name in os.environ if name.startswith("OUTLAST_")]:
        del os.environ[name]  # your own store and token are left alone
    for number in (signal.SIGINT, signal.SIGTERM):  # only noted: nothing is interrupted half begun
        signal.signal(number, lambda number, frame: stopping.set())
    with temporary() as folder, Place(folder, given.port) as place, outlast.connect(place.url) as store:
        say(*greeting(place))
        return 0 if shown(place, store, given) else 1


@contextmanager
def temporary() -> Iterator[Path]:
    """Make a folder for everything, and remove it."""
    with tempfile.TemporaryDirectory(prefix="outlast-ui-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Show the page with something on it.")
    parser.add_argument("--once", action="store_true", help="end when the night's run has, and check what became of it")
    parser.add_argument("--pace", type=float, default=1.0, metavar="SECONDS", help="how long a page of the task takes")
    parser.add_argument("--port", type=int, default=0, help="the port of the server; by default a free one")
    return parser.parse_args()


def greeting(place: Place) -> list[str]:
    return [
        "",
        f"  Open in a browser, once, within ten minutes:  {place.link}",
        "",
        f"  The night's run is at {place.url}/runs/{NIGHT}; its task `index` is killed at pages 10, 20 and 30.",
        f"  Files are in {place.folder}. Ctrl-C ends it and removes them.",
        "",
    ]


def shown(place: Place, store: outlast.Store, given: argparse.Namespace) -> bool:
    """Run everything; say whether the night's run ended as it must. Without --once stay until Ctrl-C."""
    for run_id in CRAWLS:
        place.run("crawl", run_id)
    place.run("crawl", "wrong-batch", batch=0)
    problems = the_night(place, store, given)
    say(*problems, "" if problems else "The night's run is as it must be; the page told why each attempt ended.")
    if given.once:
        return not problems
    say("What you clear on the page is run at once. To have `index` go on at an earlier page, restore an older version")
    say("of its key last_done, then run it again. Enter begins another night; Ctrl-C ends the demo.")
    nights = 1
    for number in range(1, sys.maxsize):
        if asked(30):
            nights += 1
            say(*the_night(place, store, given, f"tonight-{nights}"), "That night is over, too.")
        place.run("crawl", f"again-{number}")
    return True


def asked(seconds: float) -> bool:
    """Wait, until somebody presses Enter or time is up; say whether it was pressed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        wait(0.2)
        ready = sys.stdin.isatty() and select.select([sys.stdin], [], [], 0)[0]
        if ready and os.read(sys.stdin.fileno(), 1024):
            return True
    return False


# --- The night, and what is done to it -----------------------------------------------------------------------------


def the_night(place: Place, store: outlast.Store, given: argparse.Namespace, run_id: str = "tonight") -> list[str]:
    """Run the night's DAG, kill its workers, its job's worker and its runner; return what is not as it must be."""
    at = Watched(store, f"night/{run_id}")
    quick = given.pace < 0.3
    params = {"pace": given.pace, "output": place.folder / "jobs", "slow": given.pace * (2 if quick else 12)}
    params |= {"hang": 10 * given.pace if quick else 45, "job": 8 if quick else 80 * given.pace}
    runner = place.begin("night", run_id, **params)
    until(lambda: at.job() is not None, "the job is submitted")
    at.kill("archive", "while its job runs elsewhere")
    until(lambda: at.page() >= 10, "page 10")
    first = at.kill("index", "half way through a page")
    until(lambda: at.page() >= 20, "page 20")
    second = at.kill("index", "its supervisor with it", "supervisor")
    until(lambda: at.page() >= 30, "page 30")
    log(f"kill -9 of the runner itself, process {runner.pid}; another one goes on with the run")
    runner.kill()
    runner.wait()
    place.begin("night", run_id, "--keep", **params)
    until(lambda: at.state() == "success", "the night's run ends", 10 * PATIENCE)
    return [*at.problems("index", [first, second]), *at.job_problems()]


class Watched:
    """A night's run, as the server tells it."""

    def __init__(self, store: outlast.Store, night: str = NIGHT) -> None:
        self.store, self.night, self.runs = store, night, store.runs_as(outlast.Writer())

    def state(self) -> str:
        return self.runs.get(*self.night.split("/")).run.state

    def page(self) -> int:
        return self.store.task(f"{self.night}/index").get("pages_read", 0)

    def job(self) -> dict | None:
        return self.store.task(f"{self.night}/archive").get("remote_job_id")

    def kill(self, task_id: str, when: str, which: str = "child") -> int:
        """Send SIGKILL to what executes a task, once it is there; return the page it had come to."""
        task = until(lambda: self._running(task_id), f"{task_id} runs")
        found = [process for process in (task.child, getattr(task, which)) if process is not None]
        log(f"kill -9 of {task_id}, attempt {task.attempt}, process {found[-1].pid}: {when}")
        for process in reversed(found):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        until(lambda: self._attempt(task_id) > task.attempt, f"another attempt of {task_id}")
        return self.page()

    def _running(self, task_id: str):
        task = self.runs.attempts(self.store.task(f"{self.night}/{task_id}").scope).task
        return task if task.state == "running" and task.child is not None else None

    def _attempt(self, task_id: str) -> int:
        return self.runs.attempts(self.store.task(f"{self.night}/{task_id}").scope).task.attempt

    def problems(self, task_id: str, killed_at: list[int]) -> list[str]:
        """Return what is wrong with the attempts of a task that was killed, and with the pages it has read."""
        attempts = self.runs.attempts(self.store.task(f"{self.night}/{task_id}").scope).attempts
        for attempt in attempts:
            log(f"{task_id}, attempt {attempt.number}: {attempt.state}; {attempt.error or 'done'}")
        progress = self.store.task(f"{self.night}/{task_id}").get("progress")
        crashed = [attempt for attempt in attempts if attempt.state == "crashed"]
        found = [] if len(crashed) >= len(killed_at) else [f"{len(crashed)} attempts of {task_id} crashed"]
        found += [] if progress["done"] == progress["total"] else [f"{task_id} has come to {progress}"]
        return found + ([] if sorted(killed_at) == killed_at else [f"{task_id} went back: {killed_at}"])

    def job_problems(self) -> list[str]:
        attempts = self.runs.attempts(self.store.task(f"{self.night}/archive").scope).attempts
        history = self.store.task(f"{self.night}/archive").history("remote_job_id")
        log(f"archive: {len(attempts)} attempts, {len(history)} job submitted")
        return [] if len(attempts) >= 2 and len(history) == 1 else [f"archive: {len(attempts)}, {len(history)} jobs"]


# --- The server and the runners ------------------------------------------------------------------------------------


class Place:
    """A folder with a store, the server of it, and the runners that work behind that."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.programs = folder, port, list[subprocess.Popen]()
        self.url = self.link = ""

    def __enter__(self) -> Place:
        place = ["--store", str(self.folder / "outlast.db"), "--port", str(self.port)]
        server = self._start("server", "serve", *place)
        found = until(lambda: self._told(server), "the server answers")
        self.url, self.link = found[1], found[2]
        return self

    def _told(self, server: subprocess.Popen) -> re.Match | None:
        said = self._said("server")
        if server.poll() is not None:
            sys.exit(f"The server did not start:\n{said}")
        return re.search(r"Serving at (\S+) [\s\S]*?(http\S+once=\S+)\n", said)

    def begin(self, dag_id: str, run_id: str, *options: str, **params: object) -> subprocess.Popen:
        """Start a runner."""
        words = [word for name, value in params.items() for word in ("--param", f"{name}={value}")]
        command = ["run", str(FLOWS), "--dag", dag_id, "--run-id", run_id, *options, *words, "--server", self.url]
        log(f"outlast {shlex.join(['run', os.path.relpath(FLOWS), *command[2:6], *options])}")
        return self._start(f"{dag_id}-{run_id}", *command)

    def run(self, dag_id: str, run_id: str, **params: object) -> int:
        """Run something to its end."""
        runner = self.begin(dag_id, run_id, **params)
        until(lambda: runner.poll() is not None, f"{dag_id}/{run_id} ends")
        return runner.returncode

    def _start(self, name: str, *words: str) -> subprocess.Popen:
        env = os.environ | {f"OUTLAST__{key}": value for key, value in SETTINGS.items()}
        env["OUTLAST__RUNNER__LOGS_DIR"] = str(self.folder / "logs")
        with open(self.folder / f"{name}.txt", "ab") as said:
            started = subprocess.Popen(
                [*OUTLAST, *words],
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the demo, which ends them in their order
            )
        self.programs.append(started)
        return started

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def __exit__(self, *_: object) -> None:
        server, *runners = self.programs
        for runner in runners:
            runner.terminate()
        for runner in runners:
            _ended(runner)
        if self.url and server.poll() is None:
            with suppress(outlast.OutlastError):
                self._wait_for_workers()
        server.terminate()
        _ended(server)

    def _wait_for_workers(self) -> None:
        """Wait, for a while, until the workers of runners that are gone have told the server how they ended."""
        deadline = time.monotonic() + _GRACE
        with outlast.connect(self.url) as store:
            runs = store.runs_as(outlast.Writer())
            while time.monotonic() < deadline and any("running" in counts for _, counts in runs.list()):
                time.sleep(0.1)


def _ended(program: subprocess.Popen) -> None:
    try:
        program.wait(_GRACE)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


# --- Waiting and telling -------------------------------------------------------------------------------------------


def until(condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(outlast.NotFound):
            if found := condition():
                return found
        if time.monotonic() > deadline:
            sys.exit(f"This did not happen within {seconds:.0f} s: {what}.")
        wait(0.05)


def wait(seconds: float) -> None:
    """Let time pass; KeyboardInterrupt where it is to stop."""
    if stopping.wait(seconds):
        raise KeyboardInterrupt


def log(text: str) -> None:
    say(f"  {datetime.now():%H:%M:%S}  {text}")


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


@contextmanager
def quietly() -> Iterator[None]:
    """Let Ctrl-C end it without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        say("", "Stopped; everything it made is removed.")


if __name__ == "__main__":
    with quietly():
        sys.exit(main())
