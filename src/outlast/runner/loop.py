"""Bring a held run on, step by step: ask the planner, obey it, and watch the workers.

Every change is in the store before it is acted on; a runner itself keeps only what it has started.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from ..dags.job_cancelling import may_have_job
from ..deferral_requests import Fire
from ..errors import DagError, NotFound, OutlastError, StaleAttempt
from ..event_requests import EventRow
from ..requests import Fence
from ..run_requests import (
    ENDED,
    Expanded,
    ExpandTask,
    GetRun,
    Held,
    HoldRun,
    Item,
    ProcessRef,
    ReleaseRun,
    Report,
    Resolve,
    RunDetail,
    RunRow,
    TaskRow,
)
from ..store import Store
from ..values import TaskScope
from . import processes
from .aftermath import job_of
from .afterwards import Afterwards
from .attempt import pull_results
from .job import AT_TIMEOUT, Job, LocalWorker
from .planner import Node, graph_of, next_actions
from .starting import Starter

if TYPE_CHECKING:
    from ..dags.graph import DAG

__all__ = ["Observer", "RunEnd", "Runner"]

RunEnd: TypeAlias = Literal["success", "failed", "paused", "cancelled"]
#: Told of the run as it is, whenever it may have changed and at least twice a second.
Observer: TypeAlias = Callable[[RunDetail], None]

#: Seconds a supervisor whose attempt was taken away has to notice.
NOTICE = 1.0
#: Times a supervisor may fail to claim an attempt before the run is paused.
LAUNCHES = 3
#: Seconds before the next worker is started after one could not be: doubled each time, at most.
SOON, LATE = 1.0, 60.0


class _Active(msgspec.Struct):
    """A worker this loop has started, for the attempt after `after`."""

    worker: LocalWorker
    after: int
    taken_at: float | None = None


class Runner:
    """Runs one run, a step at a time; `say` is told what a person should know."""

    def __init__(
        self,
        store: Store,
        dag: DAG,
        run: RunRow,
        observer: Observer,
        say: Callable[[str], None],
        events: tuple[EventRow, ...] = (),
    ) -> None:
        self.store, self.dag, self.row, self.observer, self.say = store, dag, run, observer, say
        self.events = events
        self.settings = store.config.runner
        self.graph: dict[str, Node] = graph_of(dag)
        self.me, self.starter = processes.me(), Starter(store)
        self.active: dict[TaskScope, _Active] = {}
        self.past: list[LocalWorker] = []
        self.orphans: list[ProcessRef | None] = []
        self.afterwards = Afterwards(store, dag, run, say, events)
        self.are_killed = False
        self.failed_launches: dict[TaskScope, int] = {}
        self.launch_at, self.launch_pause = 0.0, SOON
        self.problem: str | None = None
        self.grace_until = 0
        self.renew_at = 0.0
        self.changed = False
        self.wake_at: int | None = None
        self.has_deferred = self.has_news = False

    def step(self, slots: int) -> RunEnd | None:
        """Do what is to be done now, with at most so many workers; return how the run has ended once it has."""
        if not self._renew():
            return "paused"
        try:
            detail = self._look()
        except NotFound:
            self.problem = f"run {self.row.dag_id}/{self.row.run_id} was removed while it ran"
            return "cancelled"
        if detail.run.state == "cancelled":
            return "cancelled"
        self.afterwards.look(row for row in detail.tasks if row.scope not in self.active)
        now = self.store.clock()
        seen = [self._as_started(task, now) for task in detail.tasks]
        most = min(slots, self.dag.max_active_tasks or slots)
        plan = next_actions(self.graph, seen, now, slots=most)
        for task in plan.lost:
            self._lose(task)
        for task, state in plan.resolve:
            self._send(Resolve(task.scope, state))
        for task in plan.expired:
            self._send(Fire(task.scope_id, task.attempt, '{"timeout": true}', dag_id=task.scope.dag_id))
        for task in plan.expand:
            self._expand(task)
        for task in plan.start:
            if time.monotonic() >= self.launch_at:
                self._launch(task)
        self.changed = bool(plan.lost or plan.resolve or plan.expired or plan.expand)
        self.wake_at = plan.wake_at
        self.has_deferred = any(task.state == "deferred" for task in detail.tasks)
        if self.problem:
            return "paused"
        return None if self.active or self.changed or self.afterwards.is_busy else plan.ended

    def _look(self) -> RunDetail:
        detail: RunDetail = self._send(GetRun(self.row.dag_id, self.row.run_id))
        self.has_news = False
        if detail.run.id != self.row.id:
            raise NotFound("another run has taken its name")
        if self._collect(detail):
            self.has_news = True
            detail = self._send(GetRun(self.row.dag_id, self.row.run_id))
        self.observer(detail)
        return detail

    def _as_started(self, task: TaskRow, now: int) -> TaskRow:
        """Return a task instance as running from the moment its worker was started, until that has exited."""
        if task.state == "running":
            return msgspec.structs.replace(task, lease_until=max(task.lease_until, self.grace_until))
        held = task.state == "up_for_retry" and self.afterwards.is_due(task)  # its job is cancelled first
        if task.scope not in self.active and not held:
            return task
        return msgspec.structs.replace(task, state="running", lease_until=now + 60_000_000)

    def allow_for_sleep(self) -> None:
        """Give every worker another lease, because this process was late itself: the machine slept, or was too busy."""
        self.grace_until = self.store.clock() + int(self.settings.lease_seconds * 1_000_000)

    def _expand(self, task: TaskRow) -> None:
        """Put instances in the place of a mapped row; where that cannot be worked out, the task has failed."""
        from ..dags import mapping

        scope = task.scope
        try:
            pull = partial(pull_results, self.store, scope.dag_id, scope.run_id)
            items = mapping.items(self.dag.tasks[scope.task_id], pull, msgspec.json.decode(self.row.params))
            request = ExpandTask(
                scope.dag_id, scope.run_id, scope.task_id, tuple(Item(item.digest, item.key) for item in items)
            )
            expanded: Expanded = self._send(request)
        except (DagError, NotFound) as error:
            self._send(Resolve(scope, "failed", error.message))
            return
        if expanded.changed:
            places = ", ".join(map(str, expanded.changed))
            self.say(f"{scope.task_id}: other items than before at {places}; these begin afresh, without their state")

    def _launch(self, task: TaskRow) -> None:
        operator = self.dag.tasks[task.scope.task_id]
        clear = operator.clear_state_on_success
        job = msgspec.structs.replace(
            job_of(self.store, self.row, task, self.events),
            retries=operator.retries,
            retry_delay=operator.retry_delay.total_seconds(),
            exponential=operator.retry_exponential_backoff,
            max_retry_delay=_seconds(operator.max_retry_delay),
            timeout=_seconds(operator.execution_timeout),
            clear_state=self.store.config.state_store.clear_on_success if clear is None else clear,
            cancellable=may_have_job(operator),
            callbacks=tuple(name for name in AT_TIMEOUT if getattr(operator, name)),
        )
        try:
            worker = self.starter.begin(job, operator)
        except OSError as error:
            self._put_off(error)
            return
        self.launch_pause = SOON
        if worker is not None:
            self.active[task.scope] = _Active(worker, task.attempt)

    def _put_off(self, error: OSError) -> None:
        """Start workers later: a system without room for one has it again when others have ended."""
        if not processes.is_for_want_of_room(error):
            raise error
        self.launch_at = time.monotonic() + self.launch_pause
        self.say(f"no worker can be started ({error.strerror}); trying again in {self.launch_pause:g} s")
        self.launch_pause = min(2 * self.launch_pause, LATE)

    # --- workers -----------------------------------------------------------------------------------------------

    def _collect(self, detail: RunDetail) -> bool:
        """Deal with workers that have exited or lost their attempt; say whether anything changed."""
        rows = {task.scope: task for task in detail.tasks}
        changed = False
        for scope, active in list(self.active.items()):
            row = rows.get(scope)
            if active.worker.ended:
                del self.active[scope]
                self._after_exit(active, scope)
                changed = True
            elif row is None or (row.attempt > active.after and row.state != "running"):
                self._notice(active)
        return changed

    def _notice(self, active: _Active) -> None:
        """Stop a worker whose attempt is over but that has not noticed for a while."""
        now = time.monotonic()
        if active.taken_at is None:
            active.taken_at = now
        elif now - active.taken_at > NOTICE:
            active.worker.stop()

    def _after_exit(self, active: _Active, scope: TaskScope) -> None:
        """See to it that the attempt of a worker that exited is recorded as over."""
        detail: RunDetail = self._send(GetRun(scope.dag_id, scope.run_id, scope.task_id))
        task = next((row for row in detail.tasks if row.scope == scope), None)
        worker = active.worker
        claimed = task is not None and task.supervisor is not None and task.supervisor.pid == worker.process.pid
        if task is not None and task.state == "running" and claimed:
            self.starter.kill_groups([task.child])
            self._report_crash(task, _why_ended(worker))
        elif task is not None and task.attempt == active.after and worker.process.returncode not in (0, 3):
            self._count_failed_launch(scope, worker)
        self._tell(worker)
        worker.close()

    def _tell(self, worker: LocalWorker) -> None:
        """Tell what a worker has said for a person to know."""
        for line in worker.said():
            self.say(line)

    def _count_failed_launch(self, scope: TaskScope, worker: LocalWorker) -> None:
        self.failed_launches[scope] = self.failed_launches.get(scope, 0) + 1
        if self.failed_launches[scope] >= LAUNCHES:
            self.problem = f"{scope}: the worker could not start: {_last_line(worker) or 'it does not say why'}"

    def _lose(self, task: TaskRow) -> None:
        """Give up on an attempt whose lease has lapsed; it is fenced when the next one begins.

        What still works for it on this host is killed before that; what is stopped does nothing until it is fenced.
        """
        active = self.active.pop(task.scope, None)
        if active is not None:
            self.past.append(active.worker)
        if task.child is not None and not processes.is_stopped(task.child):
            self.starter.kill_groups([task.child])
        self.orphans += [task.child, task.supervisor]
        self._report_crash(task, f"no sign of life within its lease of {self.settings.lease_seconds:g} s")

    def _report_crash(self, task: TaskRow, why: str) -> None:
        fence = Fence(task.scope, task.attempt, task.scope_id)
        operator = self.dag.tasks[task.scope.task_id]
        delay = Job.crash_delay(task.crashes + 1)
        with suppress(StaleAttempt):
            self._send(
                Report(
                    fence,
                    "crashed",
                    error=why,
                    retries=operator.retries,
                    crash_retries=self.settings.crash_retries,
                    retry_at=self.store.clock() + int(delay * 1_000_000),
                )
            )

    # --- the hold, and tidying up ----------------------------------------------------------------------------

    def _renew(self) -> bool:
        """Keep the run; False when somebody else has it."""
        if time.monotonic() < self.renew_at:
            return True
        request = HoldRun(self.row.dag_id, self.row.run_id, self.me, self.settings.lease_seconds)
        held: Held = self._send(request)
        self.renew_at = time.monotonic() + self.settings.lease_seconds / 3
        if held.run.id != self.row.id:
            self.problem = f"run {self.row.dag_id}/{self.row.run_id} was removed while it ran"
            return False
        if not held.ok and held.run.state not in ENDED:
            self.problem = "another runner has taken this run over"
            return False
        return True

    def _send(self, request: Any) -> Any:
        return self.store.backend.send(request)

    # --- stopping ----------------------------------------------------------------------------------------------

    def stop_workers(self, *, for_good: bool) -> None:
        """Ask every worker to stop its child, and to give its attempt back unless that is over for good."""
        for active in self.active.values():
            if for_good:
                active.worker.stop()
            else:
                active.worker.pause()

    @property
    def is_idle(self) -> bool:
        """Say whether no worker is left; and keep the run meanwhile."""
        with suppress(OutlastError):
            self._renew()
        return all(active.worker.ended for active in self.active.values())

    def settles(self, end: RunEnd) -> bool:
        """Kill what is left of the workers, and say whether the run may be let go: its jobs are cancelled first."""
        self._kill_rest()
        try:
            return end != "cancelled" or not self._see_to_cancelled()
        except NotFound:
            return True

    def _see_to_cancelled(self) -> bool:
        """Have done what is due after the attempts of a cancelled run, and say whether that is under way."""
        detail: RunDetail = self._send(GetRun(self.row.dag_id, self.row.run_id))
        if detail.run.state == "cancelled":
            self.afterwards.look(detail.tasks)
        return self.afterwards.is_busy and detail.run.state == "cancelled"

    def end(self, end: RunEnd) -> RunEnd:
        """Leave no process of an attempt behind and let the run go; return how it has ended in the store."""
        self._kill_rest()
        try:
            self._see_to_cancelled()
            released: RunRow = self._send(ReleaseRun(self.row.dag_id, self.row.run_id, self.me, end))
            self.observer(self._send(GetRun(self.row.dag_id, self.row.run_id)))
        except NotFound:
            return end
        finally:
            self.afterwards.leave()
        if released.state == "cancelled":
            return "cancelled"
        return "paused" if released.state == "paused" else end

    def _kill_rest(self) -> None:
        """Kill what is left, stopped workers of lost attempts included, and give open attempts back."""
        if self.are_killed:
            return
        self.are_killed = True
        workers = [active.worker for active in self.active.values()] + self.past
        ours = {worker.process.pid for worker in workers}
        for worker in workers:
            if not worker.ended:
                worker.kill()
            self._tell(worker)
            worker.close()
        self.active.clear()
        self.starter.kill_groups(self.orphans)
        with suppress(OutlastError):
            detail: RunDetail = self._send(GetRun(self.row.dag_id, self.row.run_id))
            for task in detail.tasks:
                if task.state == "running" and task.supervisor and task.supervisor.pid in ours:
                    self.starter.kill_groups([task.child])
                    with suppress(StaleAttempt):
                        self._send(Report(Fence(task.scope, task.attempt, task.scope_id), "paused"))


def _why_ended(worker: LocalWorker) -> str:
    """Say why a supervisor has exited without recording the end of its attempt."""
    status = worker.process.returncode
    if status == 0:
        return "somebody else has opened the task's state as a newer attempt"
    last = _last_line(worker)
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"died (exit status {status})"
    return f"its supervisor {how}" + (f": {last}" if last else "")


def _last_line(worker: LocalWorker) -> str:
    return worker.errors().rpartition("\n")[2][-500:]


def _seconds(duration: Any) -> float | None:
    return None if duration is None else float(duration.total_seconds())
