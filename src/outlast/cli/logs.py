"""`outlast logs`: print what an attempt of a task instance has written, or follow it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import BinaryIO

import click

from ..errors import NotFound
from ..log_files import log_folder
from ..run_requests import ENDED, AttemptRow, Attempts, TaskRow
from ..runner import processes
from ..runner.logs import log_path
from ..store import Store
from ..values import TaskScope
from . import show
from .addresses import by_position, task_argument
from .opening import opened
from .options import Command, Place, at_place
from .person import person
from .tasks import attempts_of

__all__ = ["logs"]

#: Seconds between looks at a log that is followed …
LOOK_EVERY = 0.1
#: … and between looks at the store, whether its attempt has ended.
ASK_EVERY = 0.5


@click.command(cls=Command, short_help="Print what an attempt has written, or follow it.")
@task_argument
@at_place
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="That attempt's log. Default: the newest.")
@click.option("--all", "every", is_flag=True, help="Every attempt's log, oldest first, each under a heading.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the attempt ends; with --all, the task.")
def logs(place: Place, scope: TaskScope, attempt: int | None, every: bool, follow: bool) -> None:
    """Print the log of a task instance's newest attempt: what its code wrote to standard output and standard error.

    Logs are files on the host where the attempt ran, in `[runner] logs_dir`, or else beside the store.

    \b
    outlast logs nightly/2026-11-29/ingest
    outlast logs nightly/2026-11-29/load/3 --attempt 1
    outlast logs nightly/2026-11-29/ingest -f
    """
    if attempt is not None and every:
        raise click.UsageError("--attempt and --all exclude one another")
    with opened(place.url, create=False) as store:
        found, _ = attempts_of(store, scope)
        reader = _Reader(store, found.task.scope)
        if every:
            reader.print_all(found, follow)
        else:
            reader.print_one(_pick(found, attempt, follow), follow)


def _pick(found: Attempts, wanted: int | None, follow: bool) -> int | None:
    """Return the number of the attempt meant; None for the first one, where that is to be waited for."""
    numbers = [attempt.number for attempt in found.attempts]
    if wanted is None and (numbers or follow):
        return numbers[-1] if numbers else None
    if wanted not in numbers:
        has = (
            f"its attempts are {', '.join(map(str, numbers))}" if numbers else f"it has not begun ({found.task.state})"
        )
        which = "log" if wanted is None else f"attempt {wanted}"
        raise NotFound(f"{by_position(found.task.scope)} has no {which}: {has}")
    return wanted


class _Reader:
    """Prints the logs of one task instance to standard output, byte for byte."""

    def __init__(self, store: Store, scope: TaskScope) -> None:
        self.store, self.scope = store, scope
        self.folder = log_folder(store.config, store.url)
        self.out: BinaryIO = sys.stdout.buffer

    def print_all(self, found: Attempts, follow: bool) -> None:
        """Print every attempt's log; following, also of those still to come, until the task instance has ended."""
        printed = 0
        while True:
            for attempt in found.attempts:
                if attempt.number > printed:
                    printed = attempt.number
                    self._head(attempt)
                    self._print(attempt, follow, found.task, among=True)
            found = self._look()
            newer = found.attempts and found.attempts[-1].number > printed
            if not newer and (not follow or found.task.state in ENDED or not self._goes_on(found.task)):
                break
            time.sleep(0 if newer else ASK_EVERY)
        if not printed:
            _pick(found, None, False)

    def print_one(self, number: int | None, follow: bool) -> None:
        """Print one attempt's log; None waits for the first attempt."""
        if number is None:
            show.note(f"{self.scope} has not begun; waiting for it")
        while number is None:
            found = self._look()
            if found.attempts:
                number = found.attempts[-1].number
            elif found.task.state in ENDED:
                _pick(found, None, False)
            else:
                time.sleep(ASK_EVERY)
        found = self._look()
        attempt = next(attempt for attempt in found.attempts if attempt.number == number)
        self._print(attempt, follow, found.task, among=False)

    def _head(self, attempt: AttemptRow) -> None:
        state = "" if attempt.state == "running" else f" ({attempt.state})"
        self._write(f"--- attempt {attempt.number}{state} ---\n".encode())

    def _print(self, attempt: AttemptRow, follow: bool, task: TaskRow, among: bool) -> None:
        path = log_path(self.folder, self.scope, attempt.number)
        if follow and attempt.state == "running":
            self._follow(path, attempt.number)
            return
        try:
            with open(path, "rb") as file:
                self._copy(file)
        except FileNotFoundError:
            missing = _missing(path, attempt)
            if not among:
                raise missing from None
            show.note(missing.message)

    def _follow(self, path: str, number: int) -> None:
        """Print a log as it grows, and what is left of it once its attempt has ended."""
        file: BinaryIO | None = None
        asked = 0.0
        running = True
        try:
            while True:
                if file is None and os.path.exists(path):
                    file = open(path, "rb")  # noqa: SIM115
                if file is not None:
                    self._copy(file)
                if not running:
                    return
                if time.monotonic() - asked >= ASK_EVERY:
                    running, asked = self._runs(number), time.monotonic()
                    continue
                time.sleep(LOOK_EVERY)
        finally:
            if file is not None:
                file.close()

    def _runs(self, number: int) -> bool:
        """Say whether an attempt may write more; tell when it will not although nobody has said how it ended."""
        found = self._look()
        task = found.task
        if task.state != "running" or task.attempt != number:
            return False
        if self._goes_on(task):
            return True
        show.note(f"attempt {number} of {self.scope} has shown no sign of life; `outlast run` goes on with its run")
        return False

    def _goes_on(self, task: TaskRow) -> bool:
        """Say whether somebody sees to it that a task instance goes on."""
        if task.state != "running":
            return self._is_held()
        if task.supervisor is not None and processes.is_here(task.supervisor):
            return processes.is_alive(task.supervisor)
        return task.lease_until > self.store.clock()

    def _is_held(self) -> bool:
        from .run_views import is_held

        run = self.store.runs_as(person()).get(self.scope.dag_id, self.scope.run_id).run
        return is_held(run, self.store.clock())

    def _look(self) -> Attempts:
        return self.store.runs_as(person()).attempts(self.scope)

    def _copy(self, file: BinaryIO) -> None:
        shutil.copyfileobj(file, self.out)
        self.out.flush()

    def _write(self, data: bytes) -> None:
        self.out.write(data)
        self.out.flush()


def _missing(path: str, attempt: AttemptRow) -> NotFound:
    where = attempt.supervisor
    elsewhere = where is not None and not processes.is_here(where)
    host = f"; it ran on {where.host}, so look there" if elsewhere and where is not None else ""
    return NotFound(f"attempt {attempt.number} has no log at {path}{host}; `[runner] logs_dir` says where logs are")
