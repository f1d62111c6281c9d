"""`outlast tasks explain`: what the next attempt of a task instance would do, and why; acts on nothing."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import OutlastError
from ..run_requests import ENDED, Attempts, RunDetail
from ..store import Store
from ..values import Entry, TaskScope
from . import show
from .addresses import by_position, task_argument
from .opening import opened, state_of
from .options import Command, Place, as_json, at_place
from .run_views import command_line, facts, is_gone, is_held, resume_line, time_text

if TYPE_CHECKING:
    from ..dags.operators import BaseOperator
    from ..dags.resumable import ResumableJobMixin, ResumeDecision

__all__ = ["explain"]

#: Keys listed, at most; the others are counted.
_KEYS = 10


@click.command(cls=Command, short_help="Say what the next attempt of a task instance would do, and why.")
@task_argument
@at_place
@click.option("--file", "file", metavar="FILE", help="The DAG file; default: the one the run was started with.")
@as_json
def explain(place: Place, scope: TaskScope, file: str | None, as_json: bool) -> None:
    """Say what the next attempt of a task instance would do, and why. It starts nothing and writes nothing.

    Of a task that submits a job elsewhere, that system is asked: its code runs here, as the DAG file has it.

    \b
    outlast tasks explain nightly/2026-11-29/train
    """
    from .tasks import attempts_of

    with opened(place.url, create=False, reveal=True) as store:
        found, detail = attempts_of(store, scope)
        told = _Explanation(store, found, detail, place)
        with redirect_stdout(sys.stderr):  # what the task's code prints is not the answer
            told.look(file)
    if as_json:
        show.document(told.document())
    else:
        told.show()


class _Explanation:
    """What is known about one task instance and its next attempt."""

    def __init__(self, store: Store, found: Attempts, detail: RunDetail, place: Place) -> None:
        self.store, self.task, self.detail, self.place = store, found.task, detail, place
        self.now = store.clock()
        self.gone = is_gone(detail.run, self.now)
        self.held = is_held(detail.run, self.now)
        self.entries = state_of(store, found.task.scope).entries()
        self.operator: BaseOperator | None = None
        self.decision: ResumeDecision | None = None
        self.job: str | None = None
        self.problem: str | None = None

    def look(self, file: str | None) -> None:
        """Load the task's code and, if it has a job elsewhere, ask that system."""
        from ..dags.resumable import ResumableJobMixin
        from ..runner.aftermath import Ended, job_of

        run = self.detail.run if file is None else msgspec.structs.replace(self.detail.run, file=file)
        ended = Ended(self.store, job_of(self.store, run, self.task), self.task.attempt)
        try:
            # What the code writes meanwhile is noted in a transaction that is never committed.
            self.operator = ended.restore(self.store.task(self.task.scope).transaction().__enter__())
        except OutlastError as error:
            self.problem = error.message
            return
        if isinstance(self.operator, ResumableJobMixin):
            self._ask(self.operator, ended.context)

    def _ask(self, operator: ResumableJobMixin, context: dict[str, Any]) -> None:
        from ..dags.context import entered

        operator.status_retry_for = 0  # a person is waiting
        try:
            with entered(context):
                self.decision = operator.resume_decision(context)
        except Exception as error:
            self.problem = f"the job's system cannot be asked: {error!r}"
            self.job = "fails unless the job's system can be asked by then; it submits nothing"
            return
        hidden = show.is_secret(self.store.config, operator.external_id_key, reveal=False)
        if hidden and self.decision.external_id is not None:
            self.decision = msgspec.structs.replace(self.decision, external_id=show.MASK, reason="its id is masked")
        self.job = _of_job(self.decision, operator.on_uncertain)

    # --- in words --------------------------------------------------------------------------------------------

    def would(self) -> str:
        """Return what the next attempt would do."""
        if self.job is not None:
            return self.job
        done = next((_done(entry.value) for entry in self.entries if _done(entry.value) is not None), None)
        if done is not None:
            return f"goes on after item {done:,}, if it uses the checkpoint"
        if self.entries:
            return f"finds {show.count(len(self.entries), 'key')} and does with them what its code says"
        return "begins from the start: nothing is stored"

    def when(self) -> str:
        """Return what there has to be first."""
        task = self.task
        match task.state:
            case "waiting":
                have = "has" if len(task.upstream) == 1 else "have"
                above = (
                    f"once {', '.join(task.upstream)} {have} ended as its rule wants" if task.upstream else "at once"
                )
                return f"attempt {task.attempt + 1} begins {above}"
            case "running" if not self.gone:
                return f"attempt {task.attempt} is running; the next one begins if it fails or dies"
            case "running":
                return f"attempt {task.attempt} is given back by whoever goes on with the run"
            case "deferred":
                until = f", until {time_text(task.deadline)}" if task.deadline is not None else ""
                return f"attempt {task.attempt} waits for its trigger{until}, and goes on with {task.next_method}()"
            case "scheduled":
                return f"attempt {task.attempt} goes on with {task.next_method}(): its trigger has fired"
            case "up_for_reschedule":
                return f"attempt {task.attempt} goes on at {time_text(task.due_at)}"
            case "up_for_retry":
                return f"attempt {task.attempt + 1} begins at {time_text(task.due_at)}"
        ended = {"success": "has succeeded", "failed": "has failed for good"}.get(
            task.state, f"has ended as {task.state}"
        )
        return f"none: it {ended}, and runs again only when it is cleared"

    def retries_left(self) -> int | None:
        """Return how many failures more are forgiven; None where its code is not known."""
        return None if self.operator is None else max(self.operator.retries - self.task.failures, 0)

    def crashes_left(self) -> int:
        return max(self.store.config.runner.crash_retries - self.task.crashes, 0)

    def show(self) -> None:
        left, over = self.retries_left(), self.task.state in ENDED
        facts(
            [
                ("task", by_position(self.task.scope)),
                ("item", self.task.scope.item or ""),
                ("state", self.task.state + (" (runner gone)" if self.gone and self.task.state == "running" else "")),
                ("next", self.when()),
                ("once cleared" if over else "it would", self.would()),
                ("because", self.decision.reason if self.decision is not None else ""),
                ("retries left", "" if left is None or over else str(left)),
                ("restarts left", "" if over else f"{self.crashes_left()} after a death of its process"),
                ("has stored", _keys(self.entries)),
                ("error", self.task.error or ""),
            ]
        )
        if self.problem is not None:
            show.note(f"outlast: {self.problem}")
        for line in self.commands():
            show.note(line)

    def commands(self) -> list[str]:
        """Return what to type to bring the next attempt about."""
        run, task = self.detail.run, self.task
        lines: list[str] = []
        if task.state in ENDED:
            lines.append(
                f"to run it again: {command_line('tasks', 'clear', by_position(task.scope), url=self.place.url)}"
            )
        elif not self.held and run.state not in ENDED:
            lines.append(f"no runner has the run; to go on: {resume_line(run, self.place.url)}")
        return lines

    def document(self) -> dict[str, Any]:
        decision = None
        if self.decision is not None:
            decision = {name: getattr(self.decision, name) for name in self.decision.__struct_fields__}
            decision["status"] = None if decision["status"] is None else str(decision["status"])
        return {
            "address": by_position(self.task.scope),
            "state": self.task.state,
            "attempt": self.task.attempt,
            "next": self.when(),
            "would": self.would(),
            "decision": decision,
            "retries_left": self.retries_left(),
            "restarts_left": self.crashes_left(),
            "keys": [entry.key for entry in self.entries],
            "problem": self.problem,
        }


def _of_job(decision: ResumeDecision, on_uncertain: str) -> str:
    """Say what a decision about a job leads to."""
    job = f"job {decision.external_id!r}"
    match decision.kind:
        case "fresh_submit":
            return "submits a job"
        case "reconnect":
            return f"waits for {job}, which is {decision.status}"
        case "already_succeeded":
            return f"returns the result of {job} at once"
        case "terminal_resubmit":
            gone = "is gone" if decision.status is None else f"is {decision.status}"
            return f"submits another job: {job} {gone}"
        case "find_then_submit":
            return f"looks for its job once more, and then submits it again with the same token {decision.token}"
    if on_uncertain == "fail":
        return "fails for good: nobody can tell whether its job was started"
    return f"submits its job again with the same token {decision.token}; it may be a second one"


def _done(value: Any) -> int | None:
    """Return how many items a checkpoint's mark, or a progress, says are done."""
    match value:
        case {"done": int(done)}:
            return done
    return None


def _keys(entries: list[Entry]) -> str:
    names = ", ".join(entry.key for entry in entries[:_KEYS])
    return f"{names} and {len(entries) - _KEYS} more" if len(entries) > _KEYS else names
