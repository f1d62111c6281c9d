"""Get hold of a run: create it, or take up one that was paused or whose runner is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from .. import codec
from ..backends import path_of
from ..dags import template_texts
from ..errors import ConfigError, Conflict, DagError, NotFound, StaleAttempt
from ..requests import Fence
from ..run_requests import (
    ENDED,
    GetRun,
    Held,
    HoldRun,
    ListRuns,
    ProcessRef,
    Report,
    RunDetail,
    RunPage,
    RunRow,
    StartRun,
    TaskSpec,
)
from ..store import Store
from ..values import check_id, moment, to_micros
from . import processes
from .starting import Starter

if TYPE_CHECKING:
    from ..dags.graph import DAG
    from ..dags.loading import LoadedFile

__all__ = ["Opening", "new_run_id", "newest_unfinished", "unfinished"]


def new_run_id(now: int) -> str:
    """Return a run id as Airflow gives to runs a person starts: `manual__` and the moment."""
    return f"manual__{moment(now).isoformat()}"


def newest_unfinished(store: Store, dag_id: str) -> str | None:
    """Return the id of the newest run of a DAG that has not ended."""
    page: RunPage = store.backend.send(ListRuns(dag_id, ("running", "paused"), limit=1))
    return page.runs[0][0].run_id if page.runs else None


def unfinished(store: Store, dag_id: str) -> list[str]:
    """Return the ids of all runs of a DAG that have not ended, oldest first."""
    page: RunPage = store.backend.send(ListRuns(dag_id, ("running", "paused"), limit=1000))
    return [run.run_id for run, _ in reversed(page.runs)]


class Opening:
    """What it takes to hold a run; `say` is told what a person should know, `wait` of the seconds still to wait."""

    def __init__(
        self, store: Store, loaded: LoadedFile, dag: DAG, say: Callable[[str], None], wait: Callable[[float], None]
    ) -> None:
        self.store, self.loaded, self.dag, self.say, self.wait = store, loaded, dag, say, wait
        self.me, self.lease = processes.me(), store.config.runner.lease_seconds
        for line in template_texts.notes(dag):
            say(line)

    def start(
        self,
        run_id: str,
        params: Mapping[str, Any],
        logical_date: datetime | None = None,
        *,
        events: tuple[int, ...] = (),
        unless_unfinished: bool = False,
    ) -> RunRow:
        """Create a run; Conflict if the id exists, DagError for a wrong parameter."""
        if self.store.config.state_store.backend is None and path_of(self.store.url) is None:
            raise ConfigError("the workers of a run are processes of their own, which a store in memory cannot reach")
        now = self.store.clock()
        tasks = tuple(
            TaskSpec(
                task.task_id,
                upstream=tuple(sorted(task.upstream_task_ids)),
                mapped=task.mapped,
                clear_on_success=task.clear_state_on_success,
                discard_on_clear=task.discard_state_on_clear,
            )
            for task in (self.dag.tasks[task_id] for task_id in self.dag.topological())
        )
        request = StartRun(
            self.dag.dag_id,
            check_id(run_id, "run_id"),
            tasks,
            codec.dump(self.dag.merged_params(dict(params))).decode(),
            self.loaded.path,
            self.loaded.digest,
            now if logical_date is None else to_micros(logical_date),
            self.me,
            self.lease,
            events,
            unless_unfinished,
        )
        detail: RunDetail = self.store.backend.send(request)
        return detail.run

    def exists(self, run_id: str) -> bool:
        """Say whether the DAG has a run of that id."""
        try:
            self.store.backend.send(GetRun(self.dag.dag_id, run_id))
        except NotFound:
            return False
        return True

    def resume(self, run_id: str, params: Mapping[str, Any]) -> RunRow:
        """Take up a run; Conflict when a live runner holds it, DagError when it had other parameters or tasks."""
        detail: RunDetail = self.store.backend.send(GetRun(self.dag.dag_id, run_id))
        self._check(detail, params)
        if detail.run.state in ENDED:
            raise Conflict(
                f"run {self.dag.dag_id}/{run_id} has ended ({detail.run.state}); to run tasks of it again, clear them: "
                f"outlast tasks clear {self.dag.dag_id}/{run_id}/TASK"
            )
        held = self._hold(detail.run)
        self._give_back(held)
        return held

    def _check(self, detail: RunDetail, params: Mapping[str, Any]) -> None:
        run = detail.run
        stored = msgspec.json.decode(run.params)
        changed = {key: value for key, value in params.items() if stored.get(key) != value or key not in stored}
        if changed:
            raise DagError(
                f"run {run.dag_id}/{run.run_id} was started with parameters {run.params}, not with {changed}; "
                "leave them out, or start another run with --run-id"
            )
        known = {task.scope.task_id for task in detail.tasks}
        missing = known - set(self.dag.tasks)
        if missing:
            raise DagError(
                f"{self.loaded.path} no longer has the tasks {', '.join(sorted(missing))} of this run; put them back, "
                f"or give the run up: outlast runs cancel {run.dag_id}/{run.run_id}"
            )
        if set(self.dag.tasks) - known:
            raise DagError(
                f"{self.loaded.path} has new tasks {', '.join(sorted(set(self.dag.tasks) - known))}; start a new run"
            )
        if run.digest != self.loaded.digest:
            self.say(f"{self.loaded.path} has changed since this run began; going on with the file as it is now")

    def _hold(self, run: RunRow) -> RunRow:
        """Take the run: at once from a dead runner of this host, after its lease from one elsewhere."""
        while True:
            instead_of = run.holder if run.holder is not None and _is_dead(run.holder) else None
            request = HoldRun(
                run.dag_id, run.run_id, self.me, self.lease, instead_of, self.loaded.path, self.loaded.digest
            )
            held: Held = self.store.backend.send(request)
            if held.ok:
                if instead_of is not None:
                    self.say(f"the runner before (process {instead_of.pid}) is gone; taking its run over")
                return held.run
            run = held.run
            self._refuse_live(run)
            self._wait_for(run)

    def _refuse_live(self, run: RunRow) -> None:
        holder = run.holder
        if holder is not None and processes.is_alive(holder):
            raise Conflict(
                f"run {run.dag_id}/{run.run_id} is being run by process {holder.pid}; "
                "wait for it, stop it, or start another run with --run-id"
            )

    def _wait_for(self, run: RunRow) -> None:
        seconds = (run.lease_until - self.store.clock()) / 1e6
        self.wait(max(seconds, 0.0))
        time.sleep(min(max(seconds, 0.05), 1.0))

    def _give_back(self, run: RunRow) -> None:
        """End what the runner before has left running on this host, and give its attempts back uncounted."""
        detail: RunDetail = self.store.backend.send(GetRun(run.dag_id, run.run_id))
        found = [process for task in detail.tasks for process in (task.supervisor, task.child)]
        Starter(self.store).kill_groups(found)
        left = [
            task
            for task in detail.tasks
            if task.state == "running" and task.supervisor is not None and processes.is_here(task.supervisor)
        ]
        for task in left:
            fence = Fence(task.scope, task.attempt, task.scope_id)
            try:
                self.store.backend.send(Report(fence, "paused", error="its runner was gone"))
            except StaleAttempt:
                continue


def _is_dead(holder: ProcessRef) -> bool:
    return processes.is_here(holder) and not processes.is_alive(holder)
