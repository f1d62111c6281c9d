"""What people do to runs and task instances, as portable SQL: clear, mark, cancel, delete, prune; all audited.

Each raises the fence first, so that an attempt still running can write nothing more (contract 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import Conflict, NotFound
from ..lineage import below
from ..people_requests import CancelRun, ClearTasks, MarkTask, Touched, refuse_running
from ..run_requests import ENDED, DeleteRun, GetRun, Pruned, PruneRuns, RunRow, TaskRow
from ..values import TaskScope, Writer
from .events import EventsSQL
from .expansion import ExpansionSQL, mapped_below
from .runs import RunsSQL

__all__ = ["PeopleSQL"]


class PeopleSQL:
    """Answers people's requests through the connection of a `RunsSQL`."""

    def __init__(self, runs: RunsSQL) -> None:
        self.runs, self.execute, self.audit = runs, runs.execute, runs.state.audit
        self.expansion, self.events = ExpansionSQL(runs), EventsSQL(runs.state)

    # --- clear ---------------------------------------------------------------------------------------------

    def clear(self, request: ClearTasks, now: int) -> Touched:
        """Have task instances run again, and those below them that could not run because of them."""
        detail = self.runs.get(GetRun(request.dag_id, request.run_id), now)
        run = detail.run
        self._refuse_unknown(detail.tasks, request)
        beneath = below(detail.tasks, [task_id for task_id, _ in request.tasks])
        chosen = [task for task in detail.tasks if _is_meant(task, request) or _follows(task, beneath, request)]
        if not (request.force or request.dry_run):
            refuse_running(chosen, request.tasks)  # contract 6.6
        if not request.dry_run:
            collapsing = mapped_below(detail.tasks, chosen)
            self._clear(chosen, request, now, [TaskScope(run.dag_id, run.run_id, task_id) for task_id in collapsing])
            for task_id in collapsing:
                self.expansion.collapse(run, task_id, now)
                chosen = [task for task in chosen if task.scope.task_id != task_id]
            self._reopen(run)
        return self._touched(run, chosen, now)

    def _refuse_unknown(self, tasks: Sequence[TaskRow], request: ClearTasks) -> None:
        known: set[tuple[str, int | None]] = {(task.scope.task_id, task.scope.map_index) for task in tasks}
        known |= {(task.scope.task_id, None) for task in tasks}
        missing = [
            task_id if index is None else f"{task_id}/{index}"
            for task_id, index in request.tasks
            if (task_id, index) not in known
        ]
        if missing or not request.tasks:
            run = f"{request.dag_id}/{request.run_id}"
            raise NotFound(f"run {run} has no task {', '.join(missing)}; `outlast tasks ls {run}` lists those it has")

    def _clear(self, chosen: Sequence[TaskRow], request: ClearTasks, now: int, make: Sequence[TaskScope]) -> None:
        whole = {TaskScope(request.dag_id, request.run_id, task.scope.task_id) for task in chosen}
        self.runs.state.lock_scopes(whole | {task.scope for task in chosen}, make, now)
        for task in chosen:
            self._fence_out(task, "cleared", now)
            self.execute("delete from result where scope_id = ?", (task.scope_id,))
            self.execute(
                "update task set state = 'waiting', failures = 0, crashes = 0, due_at = null, ended_at = null,"
                " error = null, next_method = null, deadline = null, aftermath = null, cancel_due = 0"
                " where scope_id = ?",
                (task.scope_id,),
            )
            discard = request.discard
            if discard is None:
                own = self.runs.flags(task.scope_id)[1]
                discard = request.default_discard if own is None else own
            if discard:
                self.runs.clear_state(task.scope, request.writer, now, history=False)
            elif request.forget and _is_meant(task, request):
                self.runs.forget(task.scope, request.forget, request.writer, now)
            self._record(request.writer, "clear and discard" if discard else "clear", task, "waiting", now)

    def _fence_out(self, task: TaskRow, why: str, now: int) -> None:
        """Raise the fence above every attempt there was, reserving that number for the next one."""
        scope_id = task.scope_id
        self.runs.state.find_id(scope_id)  # locked
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
        """Set a task instance's state by hand; those below that had given up on it wait again.

        One taken for done without having returned anything counts as having returned None. One that is in that state
        already stays exactly as it is, and so does one that has ended whose job is still due to be cancelled.
        """
        run = self.runs.run(request.scope.dag_id, request.scope.run_id)
        self.runs.tasks(f"run = ? order by {self.runs.order}", (run.id,))  # locked, before any scope is
        task = self.runs.task(request.scope)
        if request.state == "cancelled" and task.state in ENDED and not _is_cancel_due(task, run, now):
            raise Conflict(
                f"{task.scope} has already ended ({task.state}), so there is nothing to cancel; "
                "it can be marked failed, or cleared to run again"
            )
        if task.state == request.state or (request.state == "cancelled" and task.state in ENDED):
            return self._touched(run, [task], now)
        self._fence_out(task, f"marked {request.state}", now)
        self._end_as(task, request.state, now)
        if request.state == "success":
            self.execute(
                "insert into result (scope_id, name, value) values (?, 'return_value', 'null') on conflict do nothing",
                (task.scope_id,),
            )
        own = self.runs.flags(task.scope_id)[0]
        if request.state == "success" and (request.clear_state if own is None else own):
            self.runs.clear_state(task.scope, request.writer, now)
        action = "cancel" if request.state == "cancelled" else f"mark {request.state}"
        self._record(request.writer, action, task, request.state, now)
        freed = self._free_below(run, task) if request.state == "success" else 0
        if freed or (run.state in ("success", "failed") and run.state != request.state):
            self._reopen(run)
        return self._touched(run, [task], now)

    def _end_as(self, task: TaskRow, state: str, now: int) -> None:
        due: int | None = 0 if task.attempt and state != "success" else None  # its job may have to be cancelled
        if task.state in ENDED and state != "success":
            due = task.aftermath  # what was due after its end is done already, or due as it was
        cancel_due = 0 if due is None or task.state not in ENDED else int(task.cancel_due or task.state == "cancelled")
        self.execute(
            "update task set state = ?, due_at = null, ended_at = ?, error = null, aftermath = ?, cancel_due = ?"
            " where scope_id = ?",
            (state, now, due, cancel_due, task.scope_id),
        )

    def _free_below(self, run: RunRow, task: TaskRow) -> int:
        """Let tasks wait again that were given their end because of one, without running; return how many."""
        tasks = self.runs.tasks(f"run = ? order by {self.runs.order}", (run.id,))
        beneath = below(tasks, [task.scope.task_id])
        stuck = [row for row in tasks if row.scope.task_id in beneath and self._was_resolved(row)]
        for row in stuck:
            self.execute("update task set state = 'waiting', ended_at = null where scope_id = ?", (row.scope_id,))
        return len(stuck)

    def _was_resolved(self, task: TaskRow) -> bool:
        """Say whether a task instance ended unrun; one that skipped itself had an attempt that says so."""
        ran = self.execute(
            "select 1 from attempt where scope_id = ? and number = ? and state = 'skipped'",
            (task.scope_id, task.attempt),
        )
        return task.state == "upstream_failed" or (task.state == "skipped" and not ran)

    def cancel(self, request: CancelRun, now: int) -> Touched:
        """Cancel what has not ended, and the run; of one that has ended, return what still has a job to cancel."""
        run = self.runs.run(request.dag_id, request.run_id)
        if run.state in ENDED:
            every = self.runs.tasks(f"run = ? order by {self.runs.order}", (run.id,))
            if due := [task for task in every if _is_cancel_due(task, run, now)]:
                return self._touched(run, due, now)
            raise Conflict(f"run {run.dag_id}/{run.run_id} has already ended ({run.state}); there is nothing to cancel")
        open_tasks = [
            task
            for task in self.runs.tasks(f"run = ? order by {self.runs.order}", (run.id,))
            if task.state not in ENDED
        ]
        self.runs.state.lock_ids([task.scope_id for task in open_tasks])
        for task in open_tasks:
            self._fence_out(task, "cancelled", now)
            self._end_as(task, "cancelled", now)
        self.execute("update run set state = 'cancelled', ended_at = ? where id = ?", (now, run.id))
        place = f"{run.dag_id}/{run.run_id}"
        before, after = f'"{run.state}"', '"cancelled"'
        self.audit.record(now, _who(request.writer), "cancel run", place, dag_id=run.dag_id, before=before, after=after)
        return self._touched(run, open_tasks, now)

    # --- delete --------------------------------------------------------------------------------------------

    def delete(self, request: DeleteRun, now: int) -> Pruned:
        """Remove a run with everything its tasks stored."""
        run = self.runs.run(request.dag_id, request.run_id)
        held = run.holder not in (None, request.instead_of) and run.lease_until > now
        if run.holder is not None and held and not request.force:
            raise Conflict(
                f"run {run.dag_id}/{run.run_id} is being run by process {run.holder.pid} on {run.holder.host}; "
                "stop it or cancel the run first, or use force"
            )
        self._drop([run], now)
        self._record_drop(request.writer, "delete run", run, now)
        return Pruned(((run.dag_id, run.run_id),), False)

    def _drop(self, runs: Sequence[RunRow], now: int) -> None:
        """Remove runs; their scopes, also those of items that are in the list no more, are locked in one order."""
        scopes: list[int] = []
        for run in runs:
            self.runs.tasks(f"run = ? order by {self.runs.order}", (run.id,))  # locked
            found = self.execute("select id from scope where dag_id = ? and run_id = ?", (run.dag_id, run.run_id))
            scopes += [scope_id for (scope_id,) in found]
        self.runs.state.lock_ids(scopes)
        for scope_id in scopes:
            for table in ("result", "attempt", "task"):
                self.execute(f"delete from {table} where scope_id = ?", (scope_id,))
        self.runs.state.drop_scopes(scopes, now)
        for run in runs:
            self.execute("delete from run where id = ?", (run.id,))

    def _record_drop(self, writer: Writer | None, action: str, run: RunRow, now: int) -> None:
        place, before = f"{run.dag_id}/{run.run_id}", f'"{run.state}"'
        if writer is not None:
            self.audit.record(now, _who(writer), action, place, dag_id=run.dag_id, before=before)

    def prune(self, request: PruneRuns, now: int) -> Pruned:
        """Remove runs that ended long ago, and events of assets that nothing needs, oldest first, at most one batch."""
        rows = self.execute(
            "select dag_id, run_id from run where ended_at <= ? and (holder is null or lease_until <= ?)"
            " order by ended_at, id limit ?",
            (request.ended_before, now, request.limit),
        )
        if request.dry_run:
            return Pruned(tuple(tuple(row) for row in rows), False)
        found = (self.runs.find_run(*row) for row in sorted(rows))
        runs = [run for run in found if run is not None and _is_over(run, request.ended_before)]
        self._drop(runs, now)
        for run in runs:
            self._record_drop(request.writer, "prune run", run, now)
            self.runs.state.feed.run_changed(run.dag_id, run.run_id, now)
        more = self.events.prune(request.ended_before, request.limit)
        gone = {(run.dag_id, run.run_id) for run in runs}  # without those that somebody has reopened meanwhile
        return Pruned(tuple(tuple(row) for row in rows if tuple(row) in gone), more or len(rows) == request.limit)

    # --- afterwards ----------------------------------------------------------------------------------------

    def _touched(self, run: RunRow, tasks: Iterable[TaskRow], now: int) -> Touched:
        return Touched(tuple(self.runs.task(task.scope) for task in tasks), self.runs.run(run.dag_id, run.run_id))

    def _record(self, writer: Writer, action: str, task: TaskRow, state: str, now: int) -> None:
        before, after, dag_id = f'"{task.state}"', f'"{state}"', task.scope.dag_id
        self.audit.record(now, _who(writer), action, str(task.scope), dag_id=dag_id, before=before, after=after)


def _is_over(run: RunRow, before: int) -> bool:
    """Say whether a run, locked by now, still is one that ended before a moment: somebody may have reopened it."""
    return run.ended_at is not None and run.ended_at <= before


def _who(writer: Writer) -> str:
    return writer.name or writer.kind


def _is_cancel_due(task: TaskRow, run: RunRow, now: int) -> bool:
    """Say whether the job of a task instance that has ended was to be cancelled and was not, and nobody is to."""
    if task.aftermath is None:
        return False
    is_held = run.holder is not None and run.lease_until > now
    return task.aftermath > 0 or (not is_held and (task.state == "cancelled" or task.cancel_due))


def _is_meant(task: TaskRow, request: ClearTasks) -> bool:
    place = task.scope
    return (place.task_id, None) in request.tasks or (place.task_id, place.map_index) in request.tasks


def _follows(task: TaskRow, beneath: set[str], request: ClearTasks) -> bool:
    """Say whether a task instance is cleared because of those above it."""
    stuck = task.state in ("upstream_failed", "skipped")
    return task.scope.task_id in beneath and (request.downstream or stuck)
