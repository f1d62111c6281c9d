"""The jobs that task instances have submitted elsewhere: which are stored, which can be cancelled, cancelling them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import OutlastError
from ..run_requests import RunRow, TaskRow
from ..runner.aftermath import Aftermath, job_of, launch
from ..store import Store
from ..values import Entry
from . import show
from .addresses import by_position

if TYPE_CHECKING:
    from ..dags.operators import BaseOperator

__all__ = ["Job", "Jobs", "NotCancelled", "not_cancelled_document", "not_cancelled_line"]

#: Where a job's id is when the task's code does not say otherwise, or cannot be read.
DEFAULT_KEY = "remote_job_id"
#: Jobs told of one by one; the others are counted.
_SHOWN = 5


class Job(msgspec.Struct, frozen=True):
    """A job a task instance has stored, in words; of one whose id was not stored yet, the token it was submitted with.

    `entry` is what says so.
    """

    task: TaskRow
    entry: Entry
    name: str

    @property
    def address(self) -> str:
        return by_position(self.task.scope)


class NotCancelled(msgspec.Struct, frozen=True):
    """A job that was to be cancelled and was not; `name` is None where it is not known whether there is one."""

    address: str
    name: str | None
    reason: str
    log: str


class Jobs:
    """What is known of the jobs of a run's task instances. Its DAG file is loaded when its code is first asked."""

    def __init__(self, store: Store, run: RunRow) -> None:
        self.store, self.run = store, run

    # --- what is stored --------------------------------------------------------------------------------------

    def of(self, task: TaskRow, entries: Iterable[Entry]) -> Job | None:
        """Return the job a task instance has stored that may still be running; None after a success, which ends it."""
        found = {entry.key: entry for entry in entries}
        if not found or task.state == "success":
            return None
        key = self._key(task)
        entry = found.get(key) or found.get(f"{key}.intent")
        return None if entry is None else Job(task, entry, self._name(key, entry))

    def among(self, tasks: Iterable[TaskRow]) -> list[Job]:
        """Return the jobs that task instances have stored as they are now."""
        found = [self.of(task, self.store.task(task.scope).entries()) for task in tasks if task.attempt]
        return [job for job in found if job is not None]

    def is_forgotten(self, job: Job) -> bool:
        """Say whether nothing stored leads to a job any more."""
        now = self.store.task(job.task.scope).entry(job.entry.key)
        return now is None or now.value != job.entry.value

    def _key(self, task: TaskRow) -> str:
        operator: Any = self.operators.get(task.scope.task_id)
        kind = getattr(operator, "operator_class", operator)
        key = getattr(kind, "external_id_key", DEFAULT_KEY)
        return key if isinstance(key, str) else DEFAULT_KEY

    def _name(self, key: str, entry: Entry) -> str:
        hidden = show.is_secret(self.store.config, key, reveal=False)
        if entry.key == key:
            return f"job {show.cut(show.value_text(entry.value, hidden))}"
        token = entry.value.get("token") if isinstance(entry.value, dict) and not hidden else None
        return f"the job with token {token or show.MASK} (if it was started)"

    # --- what the code says ----------------------------------------------------------------------------------

    @cached_property
    def _loaded(self) -> tuple[dict[str, BaseOperator], str | None]:
        """Return the operators by task id, or none with the reason why the file cannot be loaded."""
        from ..dags.loading import load_file, pick_dag

        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # what it prints is not about this command
                return dict(pick_dag(load_file(self.run.file), self.run.dag_id).tasks), None
        except OutlastError as error:
            return {}, error.message

    @property
    def operators(self) -> dict[str, BaseOperator]:
        return self._loaded[0]

    @property
    def problem(self) -> str | None:
        """Why the code is not known; None where it is."""
        return self._loaded[1]

    def can_cancel(self, task: TaskRow) -> bool | None:
        """Say whether a task's job can be cancelled; None where that is not known."""
        from ..dags.job_cancelling import is_cancellable

        operator = self.operators.get(task.scope.task_id)
        return None if operator is None else is_cancellable(operator)

    def prospect(self, tasks: Iterable[TaskRow]) -> str:
        """Say in sentences what a cancel would do about the jobs of task instances; nothing where there are none."""
        begun = [task for task in tasks if task.attempt]
        known = [task for task in begun if self.can_cancel(task) is not None]
        ending = list(dict.fromkeys(task.scope.task_id for task in known if self.can_cancel(task)))
        said = []
        if ending:
            named = "A job it has submitted is cancelled with it." if len(begun) == 1 else None
            said.append(named or f"Jobs of {', '.join(ending)} are cancelled.")
        stuck = [job for job in self.among(known) if not self.can_cancel(job.task)]
        said += [f"{_capital(job.name)} of {job.address} goes on: {self._why_not(job.task)}." for job in stuck[:_SHOWN]]
        if len(stuck) > _SHOWN:
            said.append(f"So do {len(stuck) - _SHOWN} more.")
        if len(known) < len(begun):
            why = self.problem or f"{self.run.file} no longer has its code"
            said.append(f"Whether a job can be cancelled is not known: {why}.")
        return " ".join(said)

    def _why_not(self, task: TaskRow) -> str:
        from ..dags.resumable import ResumableJobMixin

        operator: Any = self.operators[task.scope.task_id]
        kind: type = getattr(operator, "operator_class", type(operator))
        if issubclass(kind, ResumableJobMixin):
            return f"{kind.__name__} has no cancel_job"
        return f"{task.scope.task_id} is no resumable job, so outlast cannot cancel what it has started"

    # --- cancelling ------------------------------------------------------------------------------------------

    def cancel(self, tasks: Sequence[TaskRow]) -> list[NotCancelled]:
        """Cancel, in a fresh process each, the jobs of task instances whose attempts are over; return those left."""
        found = {job.task.scope: job for job in self.among(tasks)}
        begun = [task for task in tasks if task.attempt and self.store.task(task.scope).keys()]
        launched = [(task, launch(self._aftermath(task))) for task in begun]
        left = []
        for task, process in launched:
            status, job = process.wait(), found.get(task.scope)
            if process.left is not None:
                reason: str | None = process.left[1]
            elif status:
                reason = "the process that was to do it has failed"
            else:
                reason = self._why_not(task) if job is not None and self.can_cancel(task) is False else None
            process.close()
            if reason is not None:
                left.append(
                    NotCancelled(by_position(task.scope), None if job is None else job.name, reason, process.log)
                )
        return left

    def _aftermath(self, task: TaskRow) -> Aftermath:
        job = job_of(self.store, self.run, task)
        return Aftermath(job, task.attempt, "cancelled by a person", cancel=True, asked=True)


def not_cancelled_line(left: NotCancelled) -> str:
    """Return what a person should know of a job that goes on."""
    what = f"the job of {left.address}, if it has one," if left.name is None else f"{left.name} of {left.address}"
    return f"{what} was NOT cancelled: {left.reason}; see {left.log}"


def not_cancelled_document(left: NotCancelled) -> dict[str, Any]:
    """Return the same for a program."""
    return {"address": left.address, "job": left.name, "reason": left.reason, "log": left.log}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
