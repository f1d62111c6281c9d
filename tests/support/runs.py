"""Runs made by hand: requests sent as a runner and its workers would, so that a test says what happened to a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlast import StaleAttempt
from outlast.requests import Fence
from outlast.run_requests import (
    Begin,
    GetRun,
    HoldRun,
    ListAttempts,
    ProcessRef,
    ReleaseRun,
    Renew,
    Report,
    RunDetail,
    RunRow,
    StartRun,
    TaskRow,
    TaskSpec,
)
from outlast.state import TaskState
from outlast.values import TaskScope, Writer

from .verbs import Verbs

#: Processes on hosts that do not exist.
RUNNER = ProcessRef("here.test", 11, "monday")
OTHER = ProcessRef("there.test", 12, "tuesday")
SUPERVISOR = ProcessRef("here.test", 21, "monday")
CHILD = ProcessRef("here.test", 31, "monday")

ANN = Writer("person", name="ann@desk")


class Desk:
    """Speaks to a backend (or its `Verbs`) for the runner of one run and for the workers of its tasks."""

    def __init__(self, backend: Any, dag_id: str = "nightly", run_id: str = "r1") -> None:
        self.backend, self.dag_id, self.run_id = backend, dag_id, run_id

    def send(self, request: Any) -> Any:
        return self.backend.send(request)

    # --- the run -------------------------------------------------------------------------------------------

    def start(
        self,
        *tasks: str | tuple[str, ...] | TaskSpec,
        holder: ProcessRef = RUNNER,
        lease: float = 30.0,
        params: str = "{}",
        file: str = "/dags/nightly.py",
    ) -> RunDetail:
        """Create the run; a task is an id, or an id with those it waits for, or a spec."""
        specs = tuple(_spec(task) for task in tasks)
        request = StartRun(self.dag_id, self.run_id, specs, params, file, "digest", 0, holder, lease)
        detail: RunDetail = self.send(request)
        return detail

    def hold(self, holder: ProcessRef = RUNNER, lease: float = 30.0, **more: Any) -> Any:
        return self.send(HoldRun(self.dag_id, self.run_id, holder, lease, **more))

    def release(self, state: Any, holder: ProcessRef = RUNNER) -> RunRow:
        row: RunRow = self.send(ReleaseRun(self.dag_id, self.run_id, holder, state))
        return row

    def detail(self) -> RunDetail:
        detail: RunDetail = self.send(GetRun(self.dag_id, self.run_id))
        return detail

    @property
    def run(self) -> RunRow:
        return self.detail().run

    def states(self) -> dict[str, str]:
        """Return the state of each task instance, by its place in the run."""
        return {str(task.scope).split("/", 2)[2]: task.state for task in self.detail().tasks}

    # --- its task instances --------------------------------------------------------------------------------

    def scope(self, task_id: str, index: int = -1) -> TaskScope:
        return TaskScope(self.dag_id, self.run_id, task_id, index)

    def task(self, task_id: str, index: int = -1) -> TaskRow:
        """Return a task instance as it is stored now."""
        return next(task for task in self.detail().tasks if task.scope == self.scope(task_id, index))

    def fence(self, task_id: str, index: int = -1, attempt: int | None = None) -> Fence:
        """Return what the newest attempt (or that one) carries in its calls."""
        task = self.task(task_id, index)
        return Fence(task.scope, task.attempt if attempt is None else attempt, task.scope_id)

    def begin(
        self,
        task_id: str,
        index: int = -1,
        *,
        after: int | None = None,
        supervisor: ProcessRef = SUPERVISOR,
        lease: float = 30.0,
    ) -> TaskRow:
        newest = self.task(task_id, index).attempt if after is None else after
        row: TaskRow = self.send(Begin(self.scope(task_id, index), newest, supervisor, lease))
        return row

    def renew(self, fence: Fence, lease: float = 30.0, child: ProcessRef | None = None) -> TaskRow:
        row: TaskRow = self.send(Renew(fence, lease, child))
        return row

    def report(self, fence: Fence, outcome: Any, **more: Any) -> TaskRow:
        row: TaskRow = self.send(Report(fence, outcome, **more))
        return row

    def ran(self, task_id: str, outcome: Any = "success", index: int = -1, **more: Any) -> TaskRow:
        """Let one attempt begin and end."""
        self.begin(task_id, index)
        return self.report(self.fence(task_id, index), outcome, **more)

    def attempts(self, task_id: str, index: int = -1) -> dict[int, str]:
        """Return how each attempt ended, by its number."""
        found = self.send(ListAttempts(self.scope(task_id, index)))
        return {attempt.number: attempt.state for attempt in found.attempts}


def _spec(task: str | tuple[str, ...] | TaskSpec) -> TaskSpec:
    match task:
        case str():
            return TaskSpec(task)
        case tuple():
            return TaskSpec(task[0], upstream=task[1:])
    return task


def state_of(store: Verbs, fence: Fence) -> Verbs:
    """Return the state of a task as its attempt sees it, without opening another."""
    real = store.real
    writer = Writer("task", fence.attempt, None, fence.scope)
    return Verbs(TaskState(real.backend, fence.scope, real.config, real.clock, writer, fence), store.runner)


def fails(*calls: Callable[[], Any]) -> None:
    """Make calls that must all be refused because their attempt is over."""
    for call in calls:
        with pytest.raises(StaleAttempt):
            call()
