"""Runs, task instances, assets and the audit log in outlast's own API: look at them, clear, mark, cancel, delete."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from ..people_requests import AuditPage as AuditRows
from ..people_requests import AuditRow, ClearTasks, ListAudit, MarkTask, Touched
from ..requests import ListScopes, ScopePage
from ..run_requests import (
    Attempts,
    ListRuns,
    RunDetail,
    RunPage,
    RunRow,
    TaskRow,
)
from ..runs import Runs
from ..values import AssetScope, ScopeInfo, check_id, moment
from .bodies import read
from .entries import MAP_INDEX, Whole, task_of
from .explaining import explain
from .operations import Call, Parameter, answer, nothing
from .outlast_shapes import (
    AssetShape,
    AssetsPage,
    AttemptShape,
    AuditPage,
    AuditShape,
    ClearBody,
    ErrorShape,
    Explanation,
    MarkBody,
    RunDetailShape,
    RunShape,
    RunsPage,
    TaskDetailShape,
    TaskShape,
    TouchedShape,
)
from .outlast_state import LIMIT, OPERATIONS, REFUSALS, REVEAL

__all__ = ["run_shape", "runs_of"]

_DAG = Parameter("dag_id", str, "Only this DAG.", None)
_BEFORE = Parameter("before", Whole, "Begin below this id: `before` of the page before.", None)
_AFTER = Parameter("after", Whole, "Begin after this id: `after` of the page before.", 0)
_STATE = Parameter("state", str, "Only runs in this state; may come several times.", (), many=True)
_FORCE = Parameter("force", bool, "Also while it is being run.", False)
_RUN = "/runs/{dag_id}/{run_id}"
_TASK = _RUN + "/tasks/{task_id}"
_CHANGES = {**REFUSALS, 409: ErrorShape}


def runs_of(call: Call) -> Runs:
    """Return the library's verbs on runs, in the name of who asks."""
    return Runs(call.backend, call.config, call.store.clock, call.writer)


def _run_of(call: Call) -> tuple[str, str]:
    return check_id(call.places["dag_id"], "dag_id"), check_id(call.places["run_id"], "run_id")


# --- Runs ----------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET", "/runs", tag="Runs", parameters=(_DAG, _STATE, _BEFORE, LIMIT), answers={200: RunsPage, **REFUSALS}
)
async def list_runs(call: Call) -> Response:
    """List runs, newest first, each with the number of its task instances by state.

    A page may be shorter than asked for and not be the last: go on while `before` is not null.
    """
    query = call.query
    page: RunPage = await call.ask(ListRuns(query["dag_id"], query["state"], query["before"], query["limit"]))
    return answer(RunsPage([run_shape(run, counts) for run, counts in page.runs], page.before))


@OPERATIONS.declare("GET", _RUN, tag="Runs", answers={200: RunDetailShape, **REFUSALS})
async def get_run(call: Call) -> Response:
    """Return a run with its task instances."""
    detail: RunDetail = await runs_of(call).aget(*_run_of(call))
    return answer(RunDetailShape(run_shape(detail.run, _counts(detail.tasks)), [_task(task) for task in detail.tasks]))


@OPERATIONS.declare("DELETE", _RUN, tag="Runs", parameters=(_FORCE,), answers={204: None, **_CHANGES})
async def delete_run(call: Call) -> Response:
    """Remove a run with its state, history and results; 409 while it is being run. For admins."""
    await runs_of(call).adelete(*_run_of(call), force=call.query["force"])
    return nothing()


@OPERATIONS.declare("POST", _RUN + "/cancel", tag="Runs", answers={200: TouchedShape, **_CHANGES})
async def cancel_run(call: Call) -> Response:
    """Cancel a run and what has not ended of it; 409 if it has ended."""
    return await _touched(call, await runs_of(call).acancel(*_run_of(call)))


@OPERATIONS.declare(
    "POST",
    _RUN + "/clear",
    tag="Runs",
    body=ClearBody,
    example={"tasks": ["ingest", ["load", 3]], "keep_state": True, "dry_run": False},
    answers={200: TouchedShape, **_CHANGES, 413: ErrorShape},
)
async def clear_tasks(call: Call) -> Response:
    """Have task instances of a run run again, and those below that were skipped or gave up because of them.

    What they have stored is kept unless you choose otherwise; an attempt that runs is fenced.
    """
    body = await read(call, ClearBody, ClearTasks)
    tasks = [check_id(t, "task_id") if isinstance(t, str) else (check_id(t[0], "task_id"), t[1]) for t in body.tasks]
    touched = await runs_of(call).aclear(
        *_run_of(call),
        tasks,
        discard=None if body.keep_state is None else not body.keep_state,
        downstream=body.downstream,
        force=body.force,
        dry_run=body.dry_run,
        forget=body.forget,
    )
    return await _touched(call, touched)


async def _touched(call: Call, touched: Touched) -> Response:
    detail: RunDetail = await runs_of(call).aget(touched.run.dag_id, touched.run.run_id)
    run = run_shape(touched.run, _counts(detail.tasks))
    return answer(TouchedShape(run, [_task(task) for task in touched.tasks]))


# --- Task instances ------------------------------------------------------------------------------------------


@OPERATIONS.declare("GET", _TASK, tag="Runs", parameters=(MAP_INDEX,), answers={200: TaskDetailShape, **REFUSALS})
async def get_task(call: Call) -> Response:
    """Return a task instance with all its attempts, oldest first."""
    found: Attempts = await runs_of(call).aattempts(task_of(call))
    attempts = [
        AttemptShape(
            row.number,
            row.state,
            moment(row.started_at),
            _when(row.ended_at),
            None if row.supervisor is None else row.supervisor.host,
            None if row.supervisor is None else row.supervisor.pid,
            row.error,
        )
        for row in found.attempts
    ]
    return answer(TaskDetailShape(_task(found.task), attempts))


@OPERATIONS.declare(
    "POST",
    _TASK + "/mark",
    tag="Runs",
    parameters=(MAP_INDEX,),
    body=MarkBody,
    example={"state": "success"},
    answers={200: TouchedShape, **_CHANGES, 413: ErrorShape},
)
async def mark_task(call: Call) -> Response:
    """Set a task instance's state by hand; an attempt that runs is fenced. To cancel one that has ended is 409."""
    body = await read(call, MarkBody, MarkTask)
    return await _touched(call, await runs_of(call).amark(task_of(call), body.state))


@OPERATIONS.declare(
    "GET", _TASK + "/explain", tag="Runs", parameters=(MAP_INDEX,), answers={200: Explanation, **REFUSALS}
)
async def explain_task(call: Call) -> Response:
    """Say what the next attempt of a task instance would do, and why, from what is stored; nothing is started."""
    return answer(await explain(call, runs_of(call), task_of(call)))


# --- Assets and audit ----------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET", "/assets", tag="Asset state", parameters=(_AFTER, LIMIT), answers={200: AssetsPage, **REFUSALS}
)
async def list_assets(call: Call) -> Response:
    """List the assets that have, or had, state, by id."""
    page: ScopePage = await call.ask(ListScopes(assets=True, after=call.query["after"], limit=call.query["limit"]))
    return answer(AssetsPage([_asset(info) for info in page.scopes], page.after))


def _asset(info: ScopeInfo) -> AssetShape:
    scope = info.scope
    assert isinstance(scope, AssetScope)
    return AssetShape(info.id, scope.name, scope.uri, info.revision, info.entries, info.bytes, info.updated_at)


@OPERATIONS.declare(
    "GET",
    "/audit",
    tag="Across scopes",
    parameters=(_DAG, _BEFORE, LIMIT, REVEAL),
    answers={200: AuditPage, **REFUSALS},
)
async def list_audit(call: Call) -> Response:
    """List what people changed, at any door, newest first: who, when, before and after."""
    page: AuditRows = await call.ask(ListAudit(call.query["before"], call.query["limit"], call.query["dag_id"]))
    return answer(AuditPage([_change(row) for row in page.rows], page.before))


def _change(row: AuditRow) -> AuditShape:
    before, after = (None if text is None else msgspec.Raw(text.encode()) for text in (row.before, row.after))
    return AuditShape(row.id, moment(row.at), row.who, row.action, row.place, row.name, before, after)


# --- As the API shows them -----------------------------------------------------------------------------------


def run_shape(run: RunRow, counts: dict[str, int]) -> RunShape:
    """Return a run as the API shows it."""
    return RunShape(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=run.state,
        params=msgspec.Raw(run.params.encode()),
        file=run.file,
        logical_date=moment(run.logical_date),
        created_at=moment(run.created_at),
        started_at=_when(run.started_at),
        ended_at=_when(run.ended_at),
        tasks=counts,
    )


def _counts(tasks: tuple[TaskRow, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task.state] = counts.get(task.state, 0) + 1
    return counts


def _task(task: TaskRow) -> TaskShape:
    return TaskShape(
        task_id=task.scope.task_id,
        map_index=task.scope.map_index,
        item=task.scope.item,
        state=task.state,
        mapped=task.mapped,
        attempt=task.attempt,
        failures=task.failures,
        crashes=task.crashes,
        upstream=list(task.upstream),
        due_at=_when(task.due_at),
        started_at=_when(task.started_at),
        ended_at=_when(task.ended_at),
        error=task.error,
    )


def _when(micros: int | None) -> Any:
    return None if micros is None else moment(micros)
