"""Run requests as portable SQL: runs, task instances and their attempts, beside the state in the same transactions.

Lock order: run, task, then scopes. A task instance's state changes only here, and only by a request that
names the attempt it speaks of, or by a person, who fences the attempt first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..errors import Conflict, NotFound, StaleAttempt
from ..requests import Commit, Fence, Part, RemoveAll
from ..rules import check_fence
from ..run_requests import (
    ENDED,
    AttemptRow,
    Attempts,
    Begin,
    GetRun,
    Held,
    HoldRun,
    ListAttempts,
    ListRuns,
    ProcessRef,
    PullResults,
    PushResult,
    ReleaseRun,
    Renew,
    Report,
    Resolve,
    Results,
    RunDetail,
    RunPage,
    RunRow,
    StartRun,
    TaskRow,
)
from ..values import TaskScope, Writer
from .sql import StateSQL

__all__ = ["RunsSQL"]

_encode = msgspec.json.Encoder().encode
_process = msgspec.json.Decoder(ProcessRef).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode

_RUN = (
    "id, dag_id, run_id, state, params, file, digest, logical_date, created_at, started_at, ended_at, holder,"
    " lease_until"
)
_TASK = (
    "dag_id, run_id, task_id, map_index, item, scope.id, task.state, attempt, failures, crashes, due_at, lease_until,"
    " task.started_at, task.ended_at, error, supervisor, child, upstream"
)


class RunsSQL:
    """Answers run requests through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL) -> None:
        self.state, self.execute, self.lock = state, state.execute, state.lock

    # --- runs ----------------------------------------------------------------------------------------------

    def start(self, request: StartRun, now: int) -> RunDetail:
        """Create a run with its task instances and their scopes."""
        if self.find_run(request.dag_id, request.run_id) is not None:
            raise Conflict(f"run {request.dag_id}/{request.run_id} exists already; choose another run id, or resume it")
        self.execute(
            "insert into run (dag_id, run_id, state, params, file, digest, logical_date, created_at, started_at,"
            " holder, lease_until) values (?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                request.dag_id,
                request.run_id,
                request.params,
                request.file,
                request.digest,
                request.logical_date,
                now,
                now,
                _text(request.holder),
                now + _micros(request.lease),
            ),
        )
        run = self.run(request.dag_id, request.run_id)
        for spec in request.tasks:
            scope = TaskScope(request.dag_id, request.run_id, spec.task_id, spec.map_index)
            self.add_task(run.id, scope, spec.upstream, now)
        return self.get(GetRun(request.dag_id, request.run_id), now)

    def add_task(self, run: int, scope: TaskScope, upstream: Sequence[str], now: int) -> None:
        """Add a waiting task instance; its scope may exist already, and then keeps its entries."""
        scope_id = self.state.lock_scope(scope, now).id
        self.execute(
            "insert into task (scope_id, run, state, upstream) values (?, ?, 'waiting', ?)",
            (scope_id, run, _encode(upstream).decode()),
        )

    def hold(self, request: HoldRun, now: int) -> Held:
        """Take or renew a run unless somebody else holds it or it has ended."""
        run = self.run(request.dag_id, request.run_id)
        free = run.holder in (None, request.holder, request.instead_of) or run.lease_until <= now
        if not free or run.state in ENDED:
            return Held(False, run)
        self.execute(
            "update run set state = 'running', holder = ?, lease_until = ?, file = coalesce(?, file),"
            " digest = coalesce(?, digest) where id = ?",
            (_text(request.holder), now + _micros(request.lease), request.file, request.digest, run.id),
        )
        return Held(True, self.run(request.dag_id, request.run_id))

    def release(self, request: ReleaseRun, now: int) -> RunRow:
        """End a hold; nothing happens when it has been taken away meanwhile.

        A run that has something to run again, because somebody cleared it at the last moment, is paused instead.
        """
        run = self.run(request.dag_id, request.run_id)
        if run.holder == request.holder:
            state = run.state if run.state in ENDED else request.state
            if state in ENDED and self._has_open(run.id):
                state = "paused"
            ended_at = run.ended_at or now if state in ENDED else None
            self.execute(
                "update run set state = ?, holder = null, lease_until = 0, ended_at = ? where id = ?",
                (state, ended_at, run.id),
            )
        return self.run(request.dag_id, request.run_id)

    def _has_open(self, run: int) -> bool:
        marks, ended = ", ".join("?" * len(ENDED)), sorted(ENDED)
        return bool(self.execute(f"select 1 from task where run = ? and state not in ({marks}) limit 1", (run, *ended)))

    def get(self, request: GetRun, now: int) -> RunDetail:
        """Return a run with its task instances, in the order they were created."""
        run = self.run(request.dag_id, request.run_id)
        only = "" if request.task_id is None else " and task_id = ?"
        values: list[Any] = [run.id] if request.task_id is None else [run.id, request.task_id]
        return RunDetail(run, tuple(self.tasks(f"run = ?{only} order by scope.id", values)))

    def list_runs(self, request: ListRuns, now: int) -> RunPage:
        """Return one page of runs, newest first, with counts of their task instances by state."""
        where = "id < ?"
        values: list[Any] = [request.before if request.before is not None else 2**62]
        if request.dag_id is not None:
            where, values = where + " and dag_id = ?", [*values, request.dag_id]
        if request.states:
            where += f" and state in ({', '.join('?' * len(request.states))})"
            values += request.states
        rows = self.execute(f"select {_RUN} from run where {where} order by id desc limit ?", (*values, request.limit))
        runs = [_run(row) for row in rows]
        counted = tuple((run, self._counts(run.id)) for run in runs)
        return RunPage(counted, runs[-1].id if len(runs) == request.limit else None)

    def _counts(self, run: int) -> dict[str, int]:
        rows = self.execute("select state, count(*) from task where run = ? group by state order by state", (run,))
        return dict(rows)

    def find_run(self, dag_id: str, run_id: str) -> RunRow | None:
        rows = self.execute(f"select {_RUN} from run where dag_id = ? and run_id = ?{self.lock}", (dag_id, run_id))
        return _run(rows[0]) if rows else None

    def run(self, dag_id: str, run_id: str) -> RunRow:
        """Return a run, locked; NotFound if there is none."""
        found = self.find_run(dag_id, run_id)
        if found is None:
            raise NotFound(f"there is no run {dag_id}/{run_id}; `outlast runs ls` lists those there are")
        return found

    def tasks(self, where: str, values: Sequence[Any]) -> list[TaskRow]:
        rows = self.execute(
            f"select {_TASK} from task join scope on scope.id = scope_id where {where}{self.lock}", values
        )
        return [_task(row) for row in rows]

    def task(self, scope: TaskScope) -> TaskRow:
        """Return a task instance, locked; NotFound if no run knows it."""
        found = self.state.find_scope(scope)
        rows: list[TaskRow] = self.tasks("scope_id = ?", (found.id,)) if found else []
        if not rows:
            raise NotFound(f"no run has the task instance {scope}; `outlast tasks ls DAG/RUN` lists those there are")
        return rows[0]

    # --- attempts ------------------------------------------------------------------------------------------

    def begin(self, request: Begin, now: int) -> TaskRow:
        """Claim the next attempt: raise the fence, forget earlier results, start the lease."""
        task = self.task(request.scope)
        ready = task.state == "waiting" or (task.state == "up_for_retry" and (task.due_at or 0) <= now)
        if not ready or task.attempt != request.after:
            raise Conflict(f"{request.scope} is {task.state} at attempt {task.attempt}; somebody else has begun it")
        number = self._raise_fence(task.scope_id, now)
        until = now + _micros(request.lease)
        self.execute("delete from result where scope_id = ?", (task.scope_id,))
        self.execute(
            "update task set state = 'running', attempt = ?, reserved = 0, due_at = null, lease_until = ?,"
            " started_at = ?, ended_at = null, error = null, supervisor = ?, child = null where scope_id = ?",
            (number, until, now, _text(request.supervisor), task.scope_id),
        )
        self.execute(
            "insert into attempt (scope_id, number, state, started_at, supervisor) values (?, ?, 'running', ?, ?)",
            (task.scope_id, number, now, _text(request.supervisor)),
        )
        return self.task(request.scope)

    def _raise_fence(self, scope_id: int, now: int) -> int:
        """Return the next attempt's number: the one a clear has reserved, else one above the fence."""
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
            "update task set lease_until = ?, child = coalesce(?, child) where scope_id = ?",
            (now + _micros(request.lease), _text(request.child), task.scope_id),
        )
        return task

    def running(self, fence: Fence) -> TaskRow:
        """Return the task instance of an attempt that is still the one running."""
        task = self._attempted(fence)
        if task.state != "running" or task.attempt != fence.attempt:
            raise StaleAttempt(f"attempt {fence.attempt} of {fence.scope} is over ({task.state}); it must stop")
        return task

    def _attempted(self, fence: Fence) -> TaskRow:
        scope = self.state.find_scope(fence.scope)
        check_fence(fence, scope.id if scope else None, scope.fence if scope else 0)
        return self.task(fence.scope)

    def report(self, request: Report, now: int) -> TaskRow:
        """Record an attempt's end and what follows from it, together with its result and the clearing of its state."""
        task = self._reported(request)
        if self._ended(request.fence):
            return task
        if task.state != "running" or task.attempt != request.fence.attempt:
            raise StaleAttempt(f"attempt {request.fence.attempt} of {task.scope} is over ({task.state})")
        failures = task.failures + (request.outcome == "failed")
        crashes = task.crashes + (request.outcome == "crashed")
        again = _again(request, failures, crashes)
        state = {"paused": "waiting", "crashed": "failed"}.get(request.outcome, request.outcome)
        state = "up_for_retry" if again else state
        self.execute(
            "update task set state = ?, failures = ?, crashes = ?, due_at = ?, lease_until = 0, ended_at = ?, error = ?"
            " where scope_id = ?",
            (
                state,
                failures,
                crashes,
                request.retry_at if again else None,
                now if state in ENDED else None,
                request.error,
                task.scope_id,
            ),
        )
        self.end_attempt(task.scope_id, task.attempt, request.outcome, request.error, now)
        if request.outcome == "success":
            self._succeed(request, now)
        return self.task(request.fence.scope)

    def _reported(self, request: Report) -> TaskRow:
        """Return the task instance a report is about.

        Whoever opens the scope from outside fences the attempt, which then cannot succeed; but that it has ended
        must be said all the same, or its task would count as running for ever.
        """
        fence = request.fence
        scope = self.state.find_scope(fence.scope)
        check_fence(fence, scope.id if scope else None, fence.attempt)
        task = self.task(fence.scope)
        superseded = task.state == "running" and task.attempt == fence.attempt
        if request.outcome == "success" or not superseded:
            return self._attempted(fence)
        return task

    def _succeed(self, request: Report, now: int) -> None:
        if request.result is not None:
            self._save_result(request.fence.scope_id, "return_value", request.result)
        if request.clear_state:
            self.clear_state(request.fence.scope, Writer("task", request.fence.attempt, None, request.fence.scope), now)

    def clear_state(self, scope: TaskScope, writer: Writer, now: int, history: bool = True) -> None:
        """Remove a scope's entries as one commit; with `history` no past value is left either."""
        self.state.commit(Commit((Part(scope, (RemoveAll(history),)),), None, writer), now)

    def _ended(self, fence: Fence) -> bool:
        rows = self.execute(
            "select state from attempt where scope_id = ? and number = ?", (fence.scope_id, fence.attempt)
        )
        return bool(rows) and rows[0][0] != "running"

    def end_attempt(self, scope_id: int, number: int, state: str, error: str | None, now: int) -> None:
        self.execute(
            "update attempt set state = ?, error = ?, ended_at = ?"
            " where scope_id = ? and number = ? and ended_at is null",
            (state, error, now, scope_id, number),
        )

    def resolve(self, request: Resolve, now: int) -> TaskRow:
        """Give a waiting task instance its end without running it."""
        task = self.task(request.scope)
        if task.state in ("waiting", "up_for_retry"):
            self.execute(
                "update task set state = ?, ended_at = ? where scope_id = ?", (request.state, now, task.scope_id)
            )
        return self.task(request.scope)

    def attempts(self, request: ListAttempts, now: int) -> Attempts:
        """Return a task instance with every attempt of it, oldest first."""
        task = self.task(request.scope)
        rows = self.execute(
            "select number, state, started_at, ended_at, supervisor, error from attempt"
            " where scope_id = ? order by number",
            (task.scope_id,),
        )
        return Attempts(task, tuple(_attempt(*row) for row in rows))

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


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _text(process: ProcessRef | None) -> str | None:
    return None if process is None else _encode(process).decode()


def _ref(text: str | None) -> ProcessRef | None:
    return None if text is None else _process(text)


def _run(row: Sequence[Any]) -> RunRow:
    facts: tuple[Any, ...] = (*row[:11], _ref(row[11]), row[12])
    return RunRow(*facts)


def _task(row: Sequence[Any]) -> TaskRow:
    facts: tuple[Any, ...] = (TaskScope(*row[:5]), *row[5:15], _ref(row[15]), _ref(row[16]), _names(row[17]))
    return TaskRow(*facts)


def _attempt(
    number: int, state: str, began: int, ended: int | None, supervisor: str | None, error: str | None
) -> AttemptRow:
    return AttemptRow(number, state, began, ended, _ref(supervisor), error)


def below(tasks: Iterable[TaskRow], task_ids: Iterable[str]) -> set[str]:
    """Return the ids of all tasks downstream of some, at any distance."""
    direct: dict[str, set[str]] = {}
    for task in tasks:
        for upstream in task.upstream:
            direct.setdefault(upstream, set()).add(task.scope.task_id)
    found: set[str] = set()
    waiting = list(task_ids)
    while waiting:
        fresh = direct.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found
