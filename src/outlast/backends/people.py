"""What people do to runs and task instances, as portable SQL: clear, mark, cancel, delete, prune; all audited.

Each raises the fence first, so that an attempt still running can write nothing more (contract 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import Conflict, NotFound
from ..run_requests import (
    ENDED,
    CancelRun,
    ClearTasks,
    DeleteRun,
    GetRun,
    MarkTask,
    Pruned,
    PruneRuns,
    RunRow,
    TaskRow,
    Touched,
)
from ..values import Writer
from .runs import RunsSQL, below

__all__ = ["PeopleSQL"]


class PeopleSQL:
    """Answers people's requests through the connection of a `RunsSQL`."""

    def __init__(self, runs: RunsSQL) -> None:
        self.runs, self.execute, self.audit = runs, runs.execute, runs.state.audit

    # --- clear ---------------------------------------------------------------------------------------------

    def clear(self, request: ClearTasks, now: int) -> Touched:
        """Have task instances run again, and those below them that could not run because of them."""
        detail = self.runs.get(GetRun(request.dag_id, request.run_id), now)
        chosen = [task for task in detail.tasks if task.scope.task_id in request.task_ids]
        missing = set(request.task_ids) - {task.scope.task_id for task in chosen}
        if missing:
            raise NotFound(f"run {request.dag_id}/{request.run_id} has no task {', '.join(sorted(missing))}")
        if request.map_indexes is not None:
            chosen = [task for task in chosen if task.scope.map_index in request.map_indexes]
        self._refuse_running(chosen, request)
        beneath = below(detail.tasks, request.task_ids)
        for task in detail.tasks:
            stuck = request.downstream or task.state in ("upstream_failed", "skipped")
            if task.scope.task_id in beneath and stuck and task not in chosen:
                chosen.append(task)
        if not request.dry_run:
            self._clear(chosen, request, now)
            self._reopen(detail.run)
        return self._touched(detail.run, chosen, now)

    def _refuse_running(self, chosen: list[TaskRow], request: ClearTasks) -> None:
        """Clearing every index of a mapped task is refused while one runs (contract 6.6)."""
        running = [task for task in chosen if task.state == "running" and task.scope.map_index >= 0]
        if running and request.map_indexes is None and not (request.force or request.dry_run):
            raise Conflict(
                f"{len(running)} of {len(chosen)} mapped instances are running, for instance {running[0].scope}; "
                "wait for them, name one index, or use force to fence and stop them first"
            )

    def _clear(self, chosen: Iterable[TaskRow], request: ClearTasks, now: int) -> None:
        for task in chosen:
            self._fence_out(task, "cleared", now)
            self.execute("delete from result where scope_id = ?", (task.scope_id,))
            self.execute(
                "update task set state = 'waiting', failures = 0, crashes = 0, due_at = null, ended_at = null, error = null"
                " where scope_id = ?",
                (task.scope_id,),
            )
            if request.discard:
                self.runs.clear_state(task.scope, request.writer, now, history=False)
            self._record(request.writer, "clear and discard" if request.discard else "clear", task, now)

    def _fence_out(self, task: TaskRow, why: str, now: int) -> None:
        """Raise the fence above every attempt there was, reserving that number for the next one."""
        scope_id = task.scope_id
        fence, reserved = self.execute(
            "select fence, reserved from scope join task on scope_id = scope.id where scope.id = ?", (scope_id,)
        )[0]
        if not (reserved and reserved == fence):
            self.execute("update scope set fence = fence + 1, changed_at = ? where id = ?", (now, scope_id))
            self.execute("update task set reserved = ? where scope_id = ?", (fence + 1, scope_id))
        self.execute("update task set lease_until = 0 where scope_id = ?", (scope_id,))
        self.runs.end_attempt(scope_id, task.attempt, why, None, now)

    def _reopen(self, run: RunRow) -> None:
        """A run that has ended goes on when somebody resumes it."""
        if run.state in ENDED:
            self.execute("update run set state = 'paused', ended_at = null where id = ?", (run.id,))

    # --- mark and cancel -----------------------------------------------------------------------------------

    def mark(self, request: MarkTask, now: int) -> Touched:
        """Set a task instance's state by hand; those below that had given up on it wait again."""
        task = self.runs.task(request.scope)
        run = self.runs.run(task.scope.dag_id, task.scope.run_id)
        self._fence_out(task, f"marked {request.state}", now)
        self._end_as(task, request.state, now)
        if request.clear_state and request.state == "success":
            self.runs.clear_state(task.scope, request.writer, now)
        self._record(request.writer, f"mark {request.state}", task, now)
        if request.state == "success" and self._free_below(run, task):
            self._reopen(run)
        return self._touched(run, [task], now)

    def _end_as(self, task: TaskRow, state: str, now: int) -> None:
        self.execute(
            "update task set state = ?, due_at = null, ended_at = ? where scope_id = ?", (state, now, task.scope_id)
        )

    def _free_below(self, run: RunRow, task: TaskRow) -> int:
        """Let tasks wait again that ended as upstream_failed because of one; return how many."""
        tasks = self.runs.tasks("run = ?", (run.id,))
        beneath = below(tasks, [task.scope.task_id])
        stuck = [row for row in tasks if row.scope.task_id in beneath and row.state == "upstream_failed"]
        for row in stuck:
            self.execute("update task set state = 'waiting', ended_at = null where scope_id = ?", (row.scope_id,))
        return len(stuck)

    def cancel(self, request: CancelRun, now: int) -> Touched:
        """Cancel what has not ended, and the run."""
        run = self.runs.run(request.dag_id, request.run_id)
        if run.state in ENDED:
            raise Conflict(f"run {run.dag_id}/{run.run_id} has already ended ({run.state}); there is nothing to cancel")
        open_tasks = [task for task in self.runs.tasks("run = ?", (run.id,)) if task.state not in ENDED]
        for task in open_tasks:
            self._fence_out(task, "cancelled", now)
            self._end_as(task, "cancelled", now)
        self.execute("update run set state = 'cancelled', ended_at = ? where id = ?", (now, run.id))
        place = f"{run.dag_id}/{run.run_id}"
        self.audit.record(now, _who(request.writer), "cancel run", place, dag_id=run.dag_id)
        return self._touched(run, open_tasks, now)

    # --- delete --------------------------------------------------------------------------------------------

    def delete(self, request: DeleteRun, now: int) -> Pruned:
        """Remove a run with everything its tasks stored."""
        run = self.runs.run(request.dag_id, request.run_id)
        if run.holder is not None and run.lease_until > now and not request.force:
            raise Conflict(
                f"run {run.dag_id}/{run.run_id} is being run by process {run.holder.pid} on {run.holder.host}; "
                "stop it or cancel the run first, or use force"
            )
        self._drop(run)
        place = f"{run.dag_id}/{run.run_id}"
        self.audit.record(now, _who(request.writer), "delete run", place, dag_id=run.dag_id)
        return Pruned(((run.dag_id, run.run_id),), False)

    def _drop(self, run: RunRow) -> None:
        for table in ("result", "attempt"):
            self.execute(f"delete from {table} where scope_id in (select scope_id from task where run = ?)", (run.id,))
        self.execute("delete from task where run = ?", (run.id,))
        scopes = self.execute("select id from scope where dag_id = ? and run_id = ?", (run.dag_id, run.run_id))
        for (scope_id,) in scopes:
            self.runs.state.drop_scope(scope_id)
        self.execute("delete from run where id = ?", (run.id,))

    def prune(self, request: PruneRuns, now: int) -> Pruned:
        """Remove runs that ended long ago, oldest first, at most one batch."""
        rows = self.execute(
            "select dag_id, run_id from run where ended_at <= ? and (holder is null or lease_until <= ?)"
            " order by ended_at, id limit ?",
            (request.ended_before, now, request.limit),
        )
        if not request.dry_run:
            for dag_id, run_id in rows:
                self._drop(self.runs.run(dag_id, run_id))
        return Pruned(tuple(tuple(row) for row in rows), len(rows) == request.limit and not request.dry_run)

    # --- afterwards ----------------------------------------------------------------------------------------

    def _touched(self, run: RunRow, tasks: Iterable[TaskRow], now: int) -> Touched:
        return Touched(tuple(self.runs.task(task.scope) for task in tasks), self.runs.run(run.dag_id, run.run_id))

    def _record(self, writer: Writer, action: str, task: TaskRow, now: int) -> None:
        before = f'"{task.state}"'
        place = str(task.scope)
        self.audit.record(now, _who(writer), action, place, dag_id=task.scope.dag_id, before=before)


def _who(writer: Writer) -> str:
    return writer.name or writer.kind
