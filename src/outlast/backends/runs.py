"""Runs and the rows of their task instances as portable SQL, beside the state in the same transactions.

Lock order: run, task, then scopes. A task instance's state changes only by a request that names the attempt
it speaks of (`attempts`), or by a person, who fences the attempt first (`people`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import Conflict, NotFound
from ..requests import Commit, Part, Remove, RemoveAll
from ..run_requests import (
    ENDED,
    DagPage,
    DagRow,
    GetRun,
    Held,
    HoldRun,
    ListDags,
    ListRuns,
    ProcessRef,
    ReleaseRun,
    RunDetail,
    RunPage,
    RunRow,
    StartRun,
    TaskRow,
    TaskSpec,
)
from ..values import TaskScope, Writer
from .commits import CommitsSQL
from .rows import marks, padded
from .sql import StateSQL

__all__ = ["RunsSQL", "micros", "process_text", "read_process"]

_encode = msgspec.json.Encoder().encode
_process = msgspec.json.Decoder(ProcessRef).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode
_ids = msgspec.json.Decoder(tuple[int, ...]).decode

_RUN = (
    "id, dag_id, run_id, state, params, file, digest, logical_date, created_at, started_at, ended_at, holder,"
    " lease_until, events"
)
_TASK = (
    "dag_id, run_id, task_id, map_index, item, scope.id, task.state, attempt, failures, crashes, due_at, lease_until,"
    " task.started_at, task.ended_at, error, supervisor, child, upstream,"
    " mapped, next_method, deadline, item_digest, aftermath, cancel_due"
)


class RunsSQL:
    """Answers run requests through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL, commits: CommitsSQL) -> None:
        self.state, self.commits, self.execute, self.lock = state, commits, state.execute, state.lock
        self.order = state.dialect.order
        self.only = f"{self.lock} of task" if self.lock else ""

    # --- runs ----------------------------------------------------------------------------------------------

    def start(self, request: StartRun, now: int) -> RunDetail:
        """Create a run with its task instances and their scopes."""
        if self.find_run(request.dag_id, request.run_id) is not None:
            raise Conflict(f"run {request.dag_id}/{request.run_id} exists already; choose another run id, or resume it")
        if request.unless_unfinished:
            self._refuse_unfinished(request.dag_id)
        self._consume(request)
        self.execute(
            "insert into run (dag_id, run_id, state, params, file, digest, logical_date, created_at, started_at,"
            " holder, lease_until, events) values (?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                request.dag_id,
                request.run_id,
                request.params,
                request.file,
                request.digest,
                request.logical_date,
                now,
                now,
                process_text(request.holder),
                now + micros(request.lease),
                _encode(request.events).decode(),
            ),
        )
        run = self.run(request.dag_id, request.run_id)
        specs = {TaskScope(run.dag_id, run.run_id, spec.task_id, spec.map_index): spec for spec in request.tasks}
        self.state.lock_scopes(specs, specs, now)
        for scope, spec in specs.items():
            self.add_task(run.id, scope, spec, now)
        return self.get(GetRun(request.dag_id, request.run_id), now)

    def _consume(self, request: StartRun) -> None:
        """Note up to which asset event a DAG has been started; Conflict if that was done for one of these already."""
        if not request.events:
            return
        first, last = min(request.events), max(request.events)
        if self.execute("select 1 from consumer where dag_id = ? and seen >= ?", (request.dag_id, first)):
            raise Conflict(f"another run of {request.dag_id} has been started for these asset events already")
        self.execute(
            "insert into consumer (dag_id, seen) values (?, ?) on conflict (dag_id) do update set seen = excluded.seen",
            (request.dag_id, last),
        )

    def _refuse_unfinished(self, dag_id: str) -> None:
        self.state.stand_alone(f"a run of {dag_id}")
        rows = self.execute(
            "select run_id from run where dag_id = ? and state in ('running', 'paused') limit 1", (dag_id,)
        )
        if rows:
            raise Conflict(f"{dag_id} has a run that has not ended, {rows[0][0]}; resume it, or cancel it")

    def add_task(self, run: int, scope: TaskScope, spec: TaskSpec, now: int) -> int:
        """Add a waiting task instance and return its scope's id; a scope that exists already keeps its entries."""
        scope_id = self.state.lock_scope(scope, now).id
        attempts = self.execute("select coalesce(max(number), 0) from attempt where scope_id = ?", (scope_id,))
        self.execute(
            "insert into task (scope_id, run, state, reserved, attempt, upstream, mapped, clear_on_success,"
            " discard_on_clear)"
            " values (?, ?, 'waiting', (select reserved_attempt from scope where id = ?), ?, ?, ?, ?, ?)",
            (
                scope_id,
                run,
                scope_id,
                attempts[0][0],
                _encode(spec.upstream).decode(),
                int(spec.mapped),
                spec.clear_on_success,
                spec.discard_on_clear,
            ),
        )
        return scope_id

    def flags(self, scope_id: int) -> tuple[bool | None, bool | None]:
        """Return whether a task instance's state goes on success and on a clear; None: as the setting says."""
        clear, discard = self.execute(
            "select clear_on_success, discard_on_clear from task where scope_id = ?", (scope_id,)
        )[0]
        return None if clear is None else bool(clear), None if discard is None else bool(discard)

    def hold(self, request: HoldRun, now: int) -> Held:
        """Take or renew a run unless somebody else holds it or it has ended."""
        run = self.run(request.dag_id, request.run_id)
        free = run.holder in (None, request.holder, request.instead_of) or run.lease_until <= now
        if not free or run.state in ENDED:
            return Held(False, run)
        if run.state != "running" or run.holder != request.holder:
            self.state.feed.run_changed(run.dag_id, run.run_id, now)
        self.execute(
            "update run set state = 'running', holder = ?, lease_until = ?, file = coalesce(?, file),"
            " digest = coalesce(?, digest) where id = ?",
            (process_text(request.holder), now + micros(request.lease), request.file, request.digest, run.id),
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
        return RunDetail(run, tuple(self.tasks(f"run = ?{only} order by {self.order}", values)))

    def list_runs(self, request: ListRuns, now: int) -> RunPage:
        """Return one page of runs, newest first, with counts of their task instances by state."""
        where, values = _which_runs(request)
        before = 2**62 if request.before is None else request.before
        rows = self.execute(
            f"select {_RUN} from run where {where} and id < ? order by id desc limit ? offset ?",
            (*values, before, request.limit, request.offset),
        )
        runs = [_run(row) for row in rows]
        counts = self._counts([run.id for run in runs])
        total = self.execute(f"select count(*) from run where {where}", values)[0][0] if request.total else None
        last = runs[-1].id if runs and len(runs) == request.limit else None
        return RunPage(tuple((run, counts[run.id]) for run in runs), last, total)

    def dags(self, request: ListDags, now: int) -> DagPage:
        """Return one page of DAGs that have runs or state; each costs a step in an index, not a look at its rows."""
        rows = self.execute(
            "with recursive found (dag_id) as (select min(dag_id) from scope where dag_id > ?"
            " union all select (select min(dag_id) from scope where dag_id > found.dag_id) from found"
            " where found.dag_id is not null)"
            " select dag_id from found where dag_id is not null limit ?",
            (request.after, request.limit),
        )
        dags = tuple(DagRow(dag_id, *self._runs_of(dag_id)) for (dag_id,) in rows)
        return DagPage(dags, rows[-1][0] if len(rows) == request.limit else None)

    def _runs_of(self, dag_id: str) -> tuple[int, int | None, str]:
        """Return how many runs of a DAG there are, and when and from which file the newest was made."""
        rows = self.execute("select count(*), max(id) from run where dag_id = ?", (dag_id,))
        number, newest = rows[0]
        if newest is None:
            return 0, None, ""
        return number, *self.execute("select created_at, file from run where id = ?", (newest,))[0]

    def _counts(self, runs: Sequence[int]) -> dict[int, dict[str, int]]:
        """Return the number of task instances by state, for each of some runs."""
        counts: dict[int, dict[str, int]] = {run: {} for run in runs}
        for part in padded(runs):
            where = f"run in ({marks(part)}) group by run, state order by state"
            for run, state, number in self.execute(f"select run, state, count(*) from task where {where}", part):
                counts[run][state] = number
        return counts

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
            f"select {_TASK} from task join scope on scope.id = scope_id where {where}{self.only}", values
        )
        return [_task(row) for row in rows]

    def task(self, scope: TaskScope) -> TaskRow:
        """Return a task instance, locked; NotFound if no run knows it."""
        found = self.find_task(scope)
        if found is None:
            raise NotFound(f"no run has the task instance {scope}; `outlast tasks ls DAG/RUN` lists those there are")
        return found

    def find_task(self, scope: TaskScope) -> TaskRow | None:
        """Return a task instance, locked, its scope not; or None."""
        found = self.state.find_scope(scope, lock="")
        rows: list[TaskRow] = self.tasks("scope_id = ?", (found.id,)) if found else []
        return rows[0] if rows else None

    # --- for requests about attempts, and people's ------------------------------------------------------------

    def clear_state(self, scope: TaskScope, writer: Writer, now: int, history: bool = True) -> None:
        """Remove a scope's entries as one commit; with `history` no past value is left either."""
        self.commits.commit(Commit((Part(scope, (RemoveAll(history),)),), None, writer), now)

    def forget(self, scope: TaskScope, keys: Sequence[str], writer: Writer, now: int) -> None:
        """Delete some entries of a scope as one commit; their history stays."""
        operations = tuple(Remove(key) for key in dict.fromkeys(keys))
        self.commits.commit(Commit((Part(scope, operations),), None, writer), now)

    def end_attempt(self, scope_id: int, number: int, state: str, error: str | None, now: int) -> None:
        """Record how an attempt ended, unless that is recorded already."""
        self.execute(
            "update attempt set state = ?, error = ?, ended_at = ?"
            " where scope_id = ? and number = ? and ended_at is null",
            (state, error, now, scope_id, number),
        )


def _which_runs(request: ListRuns) -> tuple[str, list[Any]]:
    """Return a condition for the runs a list is of, and its values."""
    where = "true"
    values: list[Any] = []
    if request.dag_id is not None:
        where, values = where + " and dag_id = ?", [request.dag_id]
    for column, wanted in (("state", request.states), ("dag_id", request.among)):
        if wanted:
            where, values = where + f" and {column} in ({marks(wanted)})", [*values, *wanted]
    if request.due is not None:
        where += " and exists (select 1 from task where run = run.id and aftermath is not null and aftermath < ?)"
        values = [*values, request.due]
    return where, values


def micros(seconds: float) -> int:
    """Return seconds as microseconds."""
    return int(seconds * 1_000_000)


def process_text(process: ProcessRef | None) -> str | None:
    """Return a process as stored."""
    return None if process is None else _encode(process).decode()


def read_process(text: str | None) -> ProcessRef | None:
    """Return a process from what is stored."""
    return None if text is None else _process(text)


def _run(row: Sequence[Any]) -> RunRow:
    facts: tuple[Any, ...] = (*row[:11], read_process(row[11]), row[12], _ids(row[13]))
    return RunRow(*facts)


def _task(row: Sequence[Any]) -> TaskRow:
    scope, processes = TaskScope(row[0], row[1], row[2], -1 if row[3] is None else row[3], row[4]), row[15:17]
    refs = [read_process(process) for process in processes]
    facts: tuple[Any, ...] = (*row[5:15], *refs, _names(row[17]), bool(row[18]), *row[19:23], bool(row[23]))
    return TaskRow(scope, *facts)
