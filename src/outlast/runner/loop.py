"""Run a held run to its end, or to a pause: ask the planner, obey it, and watch the workers.

Every change is in the store before it is acted on; the loop itself keeps only what it has started.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from ..errors import BackendError, OutlastError, StaleAttempt
from ..requests import Fence, Sweep
from ..run_requests import (
    ENDED,
    GetRun,
    Held,
    HoldRun,
    ProcessRef,
    Pruned,
    PruneRuns,
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
from .job import Job, LocalWorker
from .logs import log_folder, remove_run_logs
from .planner import Node, graph_of, next_actions

if TYPE_CHECKING:
    from ..dags.graph import DAG

__all__ = ["Observer", "RunEnd", "Runner"]

RunEnd: TypeAlias = Literal["success", "failed", "paused", "cancelled"]
#: Told of the run as it is, whenever it may have changed and at least twice a second.
Observer: TypeAlias = Callable[[RunDetail], None]

#: Seconds between looks at the store when nothing has happened.
LOOK_EVERY = 0.5
#: Seconds a supervisor whose attempt was taken away has to notice.
NOTICE = 1.0
#: Times a supervisor may fail to claim an attempt before the run is paused.
LAUNCHES = 3

_DAY = 24 * 3600 * 1_000_000


class _Active(msgspec.Struct):
    """A worker this loop has started, for the attempt after `after`."""

    worker: LocalWorker
    after: int
    taken_at: float | None = None


class Runner:
    """Runs one run in this process's foreground; `run()` returns how it ended."""

    def __init__(self, store: Store, dag: DAG, run: RunRow, observer: Observer) -> None:
        self.store, self.dag, self.row, self.observer = store, dag, run, observer
        self.settings = store.config.runner
        self.graph: dict[str, Node] = graph_of(dag)
        self.logs = log_folder(store.config, store.url)
        self.me = processes.me()
        self.active: dict[TaskScope, _Active] = {}
        self.past: list[LocalWorker] = []
        self.orphans: list[ProcessRef | None] = []
        self.failed_launches: dict[TaskScope, int] = {}
        self.stopping: str | None = None
        self.hurry = False
        self.problem: str | None = None
        self.wake_by = store.clock()
        self.grace_until = 0
        self.renew_at = 0.0
        self.tidy_at = 0.0

    def run(self) -> RunEnd:
        """Run until every task instance has ended, or somebody asks for a pause."""
        end: RunEnd = "paused"
        with _signals(self) as wake:
            try:
                while (step := self._step()) is None:
                    self._wait(wake)
                end = step
            finally:
                self._stop_all(wake)
                end = self._release(end)
        return end

    # --- one step --------------------------------------------------------------------------------------------

    def _step(self) -> RunEnd | None:
        if self.stopping or not self._renew():
            return "paused"
        detail: RunDetail = self._send(GetRun(self.row.dag_id, self.row.run_id))
        if self._collect(detail):
            detail = self._send(GetRun(self.row.dag_id, self.row.run_id))
        self.observer(detail)
        if detail.run.state == "cancelled":
            return "cancelled"
        now = self.store.clock()
        self._allow_for_sleep(now)
        seen = [self._as_started(task, now) for task in detail.tasks]
        slots = min(self.settings.parallelism, self.dag.max_active_tasks or self.settings.parallelism)
        plan = next_actions(self.graph, seen, now, slots=slots)
        for task in plan.lost:
            self._lose(task)
        for task, state in plan.resolve:
            self._send(Resolve(task.scope, state))
        for task in plan.start:
            self._launch(task)
        self.changed = bool(plan.lost or plan.resolve)
        self.wake_at = plan.wake_at
        self._tidy()
        return plan.ended if not self.active and not self.changed else None

    def _as_started(self, task: TaskRow, now: int) -> TaskRow:
        """Return a task instance as running from the moment its worker was started, until that has exited."""
        if task.state == "running":
            return msgspec.structs.replace(task, lease_until=max(task.lease_until, self.grace_until))
        if task.scope not in self.active:
            return task
        return msgspec.structs.replace(task, state="running", lease_until=now + 60_000_000)

    def _allow_for_sleep(self, now: int) -> None:
        """Give every worker another lease when this process was late itself: the machine slept, or was too busy."""
        lease = int(self.settings.lease_seconds * 1_000_000)
        if now - self.wake_by > lease // 3:
            self.grace_until = now + lease

    def _launch(self, task: TaskRow) -> None:
        operator = self.dag.tasks[task.scope.task_id]
        clear = operator.clear_state_on_success
        job = Job(
            url=self.store.url,
            scope=task.scope,
            after=task.attempt,
            file=self.row.file,
            params=self.row.params,
            logical_date=self.row.logical_date,
            logs=self.logs,
            lease=self.settings.lease_seconds,
            crash_retries=self.settings.crash_retries,
            retries=operator.retries,
            retry_delay=operator.retry_delay.total_seconds(),
            exponential=operator.retry_exponential_backoff,
            max_retry_delay=_seconds(operator.max_retry_delay),
            timeout=_seconds(operator.execution_timeout),
            clear_state=self.store.config.state_store.clear_on_success if clear is None else clear,
        )
        self.active[task.scope] = _Active(LocalWorker(job), task.attempt)

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
            elif row is not None and row.attempt > active.after and row.state != "running":
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
        if task is not None and task.state == "running" and _is_of(task, worker):
            processes.kill_groups([task.child])
            self._report_crash(task, _why_ended(worker))
        elif task is not None and task.attempt == active.after and worker.process.returncode not in (0, 3):
            self._count_failed_launch(scope, worker)
        worker.close()

    def _count_failed_launch(self, scope: TaskScope, worker: LocalWorker) -> None:
        self.failed_launches[scope] = self.failed_launches.get(scope, 0) + 1
        if self.failed_launches[scope] >= LAUNCHES:
            self.stopping = "failure"
            self.problem = f"{scope}: the worker could not start: {_last_line(worker) or 'it does not say why'}"

    def _lose(self, task: TaskRow) -> None:
        """Give up on an attempt whose lease has lapsed; it is fenced when the next one begins."""
        active = self.active.pop(task.scope, None)
        if active is not None:
            self.past.append(active.worker)
        self.orphans += [task.child, task.supervisor]
        self._report_crash(task, f"no sign of life within its lease of {self.settings.lease_seconds:g} s")

    def _report_crash(self, task: TaskRow, why: str) -> None:
        fence = Fence(task.scope, task.attempt, task.scope_id)
        operator = self.dag.tasks[task.scope.task_id]
        delay = 0.0 if task.crashes == 0 else min(2.0 ** (task.crashes - 1), 30.0)
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
        if not held.ok and held.run.state not in ENDED:
            self.problem = "another runner has taken this run over"
            return False
        return True

    def _tidy(self) -> None:
        """Sweep and prune one batch now and then, while there is nothing better to do."""
        if time.monotonic() < self.tidy_at or self.changed:
            return
        self.tidy_at = time.monotonic() + 60.0
        with suppress(BackendError):
            swept = self.store.backend.send(Sweep(self.store.config.state_store.state_cleanup_batch_size or 1000))
            pruned = self._prune()
            if swept.more or pruned:
                self.tidy_at = time.monotonic() + LOOK_EVERY

    def _prune(self) -> bool:
        days = self.settings.keep_runs_days
        if not days:
            return False
        pruned: Pruned = self.store.backend.send(PruneRuns(self.store.clock() - days * _DAY, 10))
        for dag_id, run_id in pruned.runs:
            remove_run_logs(self.logs, dag_id, run_id)
        return pruned.more

    def _send(self, request: Any) -> Any:
        return self.store.backend.send(request)

    def _wait(self, wake: int) -> None:
        """Sleep until a worker exits, a signal comes, something is due, or it is time for a look."""
        seconds = 0.0 if self.changed else LOOK_EVERY
        if self.wake_at is not None:
            seconds = min(seconds, max(0.0, (self.wake_at - self.store.clock()) / 1e6))
        self.wake_by = self.store.clock() + int(seconds * 1_000_000)
        ready, _, _ = select.select([wake], [], [], seconds)
        if ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)

    # --- stopping ----------------------------------------------------------------------------------------------

    def _stop_all(self, wake: int) -> None:
        """Have every worker give its attempt back, and leave no process behind."""
        for active in self.active.values():
            active.worker.pause()
        deadline = time.monotonic() + 12.0
        while any(not active.worker.ended for active in self.active.values()):
            if self.hurry or time.monotonic() > deadline:
                break
            select.select([wake], [], [], 0.1)
            with suppress(BlockingIOError):
                os.read(wake, 4096)
            with suppress(OutlastError):
                self._renew()
        self._kill_rest()

    def _kill_rest(self) -> None:
        """Kill what is left, stopped workers of lost attempts included, and give open attempts back."""
        workers = [active.worker for active in self.active.values()] + self.past
        ours = {worker.process.pid for worker in workers}
        for worker in workers:
            if not worker.ended:
                worker.kill()
            worker.close()
        processes.kill_groups(self.orphans)
        with suppress(OutlastError):
            detail: RunDetail = self._send(GetRun(self.row.dag_id, self.row.run_id))
            for task in detail.tasks:
                if task.state == "running" and task.supervisor and task.supervisor.pid in ours:
                    processes.kill_groups([task.child])
                    with suppress(StaleAttempt):
                        self._send(Report(Fence(task.scope, task.attempt, task.scope_id), "paused"))

    def _release(self, end: RunEnd) -> RunEnd:
        released: RunRow = self._send(ReleaseRun(self.row.dag_id, self.row.run_id, self.me, end))
        with suppress(OutlastError):
            self.observer(self._send(GetRun(self.row.dag_id, self.row.run_id)))
        return "cancelled" if released.state == "cancelled" else end


def _is_of(task: TaskRow, worker: LocalWorker) -> bool:
    """Say whether a running attempt is the one this worker claimed."""
    return task.supervisor is not None and task.supervisor.pid == worker.process.pid


def _why_ended(worker: LocalWorker) -> str:
    """Say why a supervisor has exited without recording the end of its attempt."""
    status = worker.process.returncode
    if status == 0:
        return "somebody else has opened the task's state as a newer attempt"
    last = _last_line(worker)
    return f"its supervisor died (exit status {status})" + (f": {last}" if last else "")


def _last_line(worker: LocalWorker) -> str:
    return worker.errors().rpartition("\n")[2][-500:]


def _seconds(duration: Any) -> float | None:
    return None if duration is None else float(duration.total_seconds())


@contextmanager
def _signals(runner: Runner) -> Iterator[int]:
    """Make SIGINT, SIGTERM and SIGHUP a pause (a second one: at once), and give a pipe that wakes a wait."""
    wake, write = os.pipe()
    for end in (wake, write):
        os.set_blocking(end, False)

    def stop(number: int, frame: Any) -> None:
        runner.hurry = runner.stopping is not None
        runner.stopping = signal.Signals(number).name

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # less what nohup or a shell has had ignored
    before = {name: signal.signal(name, stop) for name in wanted if signal.getsignal(name) != signal.SIG_IGN}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield wake
    finally:
        signal.set_wakeup_fd(previous)
        for name, handler in before.items():
            signal.signal(name, handler)
        os.close(wake)
        os.close(write)
