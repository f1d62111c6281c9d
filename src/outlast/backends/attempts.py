"""The life of an attempt as portable SQL: claimed, renewed, deferred, resumed, reported; and its results."""

from __future__ import annotations

from typing import Any

import msgspec

from ..deferral_requests import Deferral, DeferredRow, DeferredRows, Fire, GetDeferral, ListDeferred, Resumption
from ..errors import Conflict, StaleAttempt
from ..requests import Fence
from ..rules import check_fence
from ..run_requests import (
    ENDED,
    AttemptRow,
    Attempts,
    Begin,
    ListAttempts,
    NoteAftermath,
    PullResults,
    PushResult,
    Renew,
    Report,
    Resolve,
    Results,
    TaskRow,
)
from ..values import TaskScope, Writer
from .events import EventsSQL
from .runs import RunsSQL, micros, process_text, read_process

__all__ = ["AttemptsSQL"]

_DEFERRAL = "trigger_path, trigger_kwargs, next_method, next_kwargs"


class AttemptsSQL:
    """Answers requests about attempts through the connection of a `RunsSQL`."""

    def __init__(self, runs: RunsSQL, events: EventsSQL) -> None:
        self.runs, self.execute, self.events = runs, runs.execute, events

    def begin(self, request: Begin, now: int) -> TaskRow:
        """Claim the next attempt and raise the fence, or go on with one that was deferred or rescheduled."""
        task = self.runs.task(request.scope)
        due = task.state in ("up_for_retry", "up_for_reschedule") and (task.due_at or 0) <= now
        if not (due or task.state in ("waiting", "scheduled")) or task.mapped or task.attempt != request.after:
            raise Conflict(f"{request.scope} is {task.state} at attempt {task.attempt}; somebody else has begun it")
        if task.state in ("scheduled", "up_for_reschedule"):
            return self._go_on(task, request, now)
        number = self._raise_fence(task.scope_id, now)
        until = now + micros(request.lease)
        self.execute("delete from result where scope_id = ?", (task.scope_id,))
        self.execute(
            "update task set state = 'running', attempt = ?, reserved = 0, due_at = null, lease_until = ?,"
            " started_at = ?, ended_at = null, error = null, supervisor = ?, child = null, next_method = null,"
            " deadline = null, aftermath = null, cancel_due = 0 where scope_id = ?",
            (number, until, now, process_text(request.supervisor), task.scope_id),
        )
        self.execute(
            "insert into attempt (scope_id, number, state, started_at, supervisor) values (?, ?, 'running', ?, ?)",
            (task.scope_id, number, now, process_text(request.supervisor)),
        )
        return self.runs.task(request.scope)

    def _go_on(self, task: TaskRow, request: Begin, now: int) -> TaskRow:
        """Start a process again for an attempt that was deferred or rescheduled; its number stays."""
        self.runs.state.require_attempt(Fence(task.scope, task.attempt, task.scope_id))
        self.execute(
            "update task set state = 'running', due_at = null, deadline = null, lease_until = ?, supervisor = ?,"
            " child = null where scope_id = ?",
            (now + micros(request.lease), process_text(request.supervisor), task.scope_id),
        )
        return self.runs.task(request.scope)

    def _raise_fence(self, scope_id: int, now: int) -> int:
        """Return the next attempt's number: the one a clear has reserved, else one above the fence."""
        self.runs.state.find_id(scope_id)  # locked
        fence, reserved = self.execute(
            "select fence, reserved from scope join task on scope_id = scope.id where scope.id = ?", (scope_id,)
        )[0]
        number: int = fence if reserved and reserved == fence else fence + 1
        self.execute("update scope set fence = ?, changed_at = ? where id = ?", (number, now, scope_id))
        return number

    def renew(self, request: Renew, now: int) -> TaskRow:
        """Extend a running attempt's lease, also one that has lapsed; StaleAttempt when it must stop."""
        task = self.running(request.fence)
        self.execute(
            "update task set lease_until = ?, child = coalesce(child, ?) where scope_id = ?",
            (now + micros(request.lease), process_text(request.child), task.scope_id),
        )
        return task

    def running(self, fence: Fence) -> TaskRow:
        """Return the task instance of an attempt that is still the one running."""
        task = self._attempted(fence)
        if task.state != "running" or task.attempt != fence.attempt:
            raise StaleAttempt(f"attempt {fence.attempt} of {fence.scope} is over ({task.state}); it must stop")
        return task

    def _attempted(self, fence: Fence) -> TaskRow:
        task = self.runs.find_task(fence.scope)
        scope = self.runs.state.find_id(fence.scope_id)
        check_fence(fence, scope.id if scope else None, scope.fence if scope else 0)
        if task is None or task.scope_id != fence.scope_id:
            here = self.runs.state.find_scope(fence.scope, lock="")
            check_fence(fence, here.id if here else None, fence.attempt)
        return task or self.runs.task(fence.scope)

    def report(self, request: Report, now: int) -> TaskRow:
        """Record an attempt's end and what follows from it, together with its result and the clearing of its state."""
        task = self._reported(request)
        if self._ended(request.fence):
            return task
        if request.outcome in ("deferred", "rescheduled") and task.state == "running":
            return self._put_off(request, now)
        if task.state != "running" or task.attempt != request.fence.attempt:
            raise StaleAttempt(f"attempt {request.fence.attempt} of {task.scope} is over ({task.state})")
        failures = task.failures + (request.outcome == "failed")
        crashes = task.crashes + (request.outcome == "crashed")
        again = _again(request, failures, crashes)
        state = {"paused": "waiting", "crashed": "failed"}.get(request.outcome, request.outcome)
        state = "up_for_retry" if again else state
        self.execute(
            "update task set state = ?, failures = ?, crashes = ?, due_at = ?, lease_until = 0, ended_at = ?,"
            " error = ?, aftermath = ?, cancel_due = ? where scope_id = ?",
            (
                state,
                failures,
                crashes,
                request.retry_at if again else None,
                now if state in ENDED else None,
                request.error,
                0 if state == "failed" or request.cancel_due else None,
                int(request.cancel_due),
                task.scope_id,
            ),
        )
        self.runs.end_attempt(task.scope_id, task.attempt, request.outcome, request.error, now)
        if request.outcome == "success":
            self._succeed(request, now)
        return self.runs.task(request.fence.scope)

    def _put_off(self, request: Report, now: int) -> TaskRow:
        """Let an attempt wait for a trigger or a moment, without ending it."""
        self.running(request.fence)
        deferral, deadline = request.deferral, None
        if deferral is not None and deferral.timeout is not None:
            deadline = now + micros(deferral.timeout)
        facts = (None,) * 4 if deferral is None else msgspec.structs.astuple(deferral)[:4]
        self.execute(
            f"update task set state = ?, due_at = ?, lease_until = 0, deadline = ?, event = null, child = null,"
            " deferrals = deferrals + 1,"
            f" ({_DEFERRAL}) = (?, ?, ?, ?) where scope_id = ?",
            (
                "up_for_reschedule" if deferral is None else "deferred",
                request.retry_at or None,
                deadline,
                *facts,
                request.fence.scope_id,
            ),
        )
        return self.runs.task(request.fence.scope)

    def _reported(self, request: Report) -> TaskRow:
        """Return the task instance a report is about.

        Whoever opens the scope from outside fences the attempt, which then cannot succeed; but that it has ended
        must be said all the same, or its task would count as running for ever.
        """
        fence = request.fence
        scope = self.runs.state.find_scope(fence.scope, lock="")
        check_fence(fence, scope.id if scope else None, fence.attempt)
        if scope is not None and not self.runs.state.in_use(scope.id):  # cleared, and to be expanded again
            check_fence(fence, scope.id, scope.fence)
        task = self.runs.task(fence.scope)
        superseded = task.state == "running" and task.attempt == fence.attempt
        if request.outcome == "success" or not superseded:
            return self._attempted(fence)
        return task

    def _succeed(self, request: Report, now: int) -> None:
        fence = request.fence
        self.execute("update scope set done = ? where id = ?", (fence.attempt, fence.scope_id))
        if request.result is not None:
            self._save_result(request.fence.scope_id, "return_value", request.result)
        self.events.add(request.events, request.fence.scope, now)
        if request.clear_state:
            self.runs.clear_state(
                request.fence.scope, Writer("task", request.fence.attempt, None, request.fence.scope), now
            )

    def _ended(self, fence: Fence) -> bool:
        rows = self.execute(
            "select state from attempt where scope_id = ? and number = ?", (fence.scope_id, fence.attempt)
        )
        return bool(rows) and rows[0][0] != "running"

    def resolve(self, request: Resolve, now: int) -> TaskRow:
        """Give a waiting task instance its end without running it."""
        task = self.runs.task(request.scope)
        if task.state in ("waiting", "up_for_retry"):  # a retry too: what it waits for may be run again and fail
            self.execute(
                "update task set state = ?, ended_at = ?, error = ? where scope_id = ?",
                (request.state, now, request.error, task.scope_id),
            )
        return self.runs.task(request.scope)

    def note_aftermath(self, request: NoteAftermath, now: int) -> TaskRow:
        """Count one more try of what is due after an attempt, or note that nothing is due any more."""
        task = self.runs.task(request.scope)
        change = "aftermath = null, cancel_due = 0" if request.done else "aftermath = aftermath + 1"
        self.execute(
            f"update task set {change} where scope_id = ? and attempt = ? and aftermath is not null",
            (task.scope_id, request.attempt),
        )
        return self.runs.task(request.scope)

    def attempts(self, request: ListAttempts, now: int) -> Attempts:
        """Return a task instance with every attempt of it, oldest first."""
        task = self.runs.task(request.scope)
        rows = self.execute(
            "select number, state, started_at, ended_at, supervisor, error from attempt"
            " where scope_id = ? order by number",
            (task.scope_id,),
        )
        return Attempts(task, tuple(_attempt(*row) for row in rows))

    # --- deferral ------------------------------------------------------------------------------------------

    def deferral(self, request: GetDeferral, now: int) -> Resumption:
        """Return what the attempt that goes on was deferred for, and what came of it."""
        task = self.running(request.fence)
        row = self.execute(f"select {_DEFERRAL}, event from task where scope_id = ?", (task.scope_id,))[0]
        return Resumption(None if row[2] is None else Deferral(*row[:4]), row[4])

    def deferred(self, request: ListDeferred, now: int) -> DeferredRows:
        """Return the deferred task instances of some runs."""
        found: list[DeferredRow] = []
        for run in request.runs:
            rows = self.execute(
                f"select dag_id, run_id, task_id, map_index, item, scope.id, attempt, deadline, deferrals, {_DEFERRAL}"
                " from task join scope on scope.id = scope_id where run = ? and task.state = 'deferred'"
                " order by scope.id",
                (run,),
            )
            found += [_deferred(row) for row in rows]
        return DeferredRows(tuple(found))

    def fire(self, request: Fire, now: int) -> DeferredRows:
        """Let a deferred attempt go on; nothing happens when it waits no more."""
        places = self.execute(
            "select dag_id, run_id from scope where id = ? and dag_id = coalesce(?, dag_id)",
            (request.scope_id, request.dag_id),
        )
        if places:
            self.execute(
                "update task set state = 'scheduled', event = ?, deadline = null where scope_id = ? and attempt = ?"
                " and state = 'deferred' and deferrals = coalesce(?, deferrals)",
                (request.event, request.scope_id, request.attempt, request.number),
            )
            [(dag_id, run_id)] = places
            self.runs.state.feed.run_changed(dag_id, run_id, now)
        return DeferredRows(())

    # --- results -------------------------------------------------------------------------------------------

    def push(self, request: PushResult, now: int) -> TaskRow:
        """Keep a named result of the running attempt."""
        task = self.running(request.fence)
        self._save_result(task.scope_id, request.name, request.text)
        return task

    def _save_result(self, scope_id: int, name: str, text: str) -> None:
        self.execute(
            "insert into result (scope_id, name, value) values (?, ?, ?)"
            " on conflict (scope_id, name) do update set value = excluded.value",
            (scope_id, name, text),
        )

    def pull(self, request: PullResults, now: int) -> Results:
        """Return results of task instances of one run, ordered by task id and map index."""
        rows: list[Any] = []
        for task_id in request.task_ids:
            rows += self.execute(
                "select task_id, map_index, value from result join scope on scope.id = scope_id"
                " where dag_id = ? and run_id = ? and task_id = ? and name = ? order by map_index",
                (request.dag_id, request.run_id, task_id, request.name),
            )
        wanted = request.map_indexes
        return Results(tuple(tuple(row) for row in rows if wanted is None or row[1] in wanted))


def _again(request: Report, failures: int, crashes: int) -> bool:
    """Say whether the task instance gets another attempt."""
    match request.outcome:
        case "failed":
            return failures <= request.retries
        case "crashed":
            return crashes <= request.crash_retries
    return False


def _deferred(row: Any) -> DeferredRow:
    return DeferredRow(TaskScope(*row[:5]), row[5], row[6], Deferral(*row[9:]), row[7], row[8])


def _attempt(
    number: int, state: str, began: int, ended: int | None, supervisor: str | None, error: str | None
) -> AttemptRow:
    return AttemptRow(number, state, began, ended, read_process(supervisor), error)
