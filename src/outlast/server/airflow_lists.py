"""Airflow's read-only lists of dags, runs, task instances and assets, for clients to find ids in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from uuid import UUID

import msgspec
from starlette.responses import Response

from ..config import Config
from ..errors import NotFound
from ..event_requests import Events, ListEvents
from ..requests import ListScopes, ScopePage
from ..run_requests import DagPage, DagRow, GetRun, ListDags, ListRuns, RunDetail, RunPage, RunRow, TaskRow
from ..values import AssetScope, ScopeInfo, address, check_id, moment
from .airflow_shapes import (
    AssetCollectionResponse,
    AssetResponse,
    DAGCollectionResponse,
    DAGResponse,
    DAGRunCollectionResponse,
    DAGRunResponse,
    InstanceState,
    LastAssetEventResponse,
    RunStateName,
    TaskInstanceCollectionResponse,
    TaskInstanceResponse,
)
from .airflow_state import LIMIT, OFFSET, OPERATIONS, REFUSALS, page_limit
from .entries import Index, asset_info
from .operations import Call, Parameter, answer

__all__ = ["every_run", "find_run", "instance_shape", "known_dag", "run_shape"]

#: Stands in a path for every DAG, or every run.
ANY = "~"
_PAGE = 1000

_RUN_STATE = Parameter("state", RunStateName, "Only runs in this state; may come several times.", None, many=True)
_STATE = Parameter(
    "state",
    InstanceState | Literal["removed", "restarting", "awaiting_input", "none", "no_status"],
    "Only in this state; may come several times.",
    None,
    many=True,
)
_TASK_ID = Parameter("task_id", str, "Only instances of this task.", None)
_MAPPED = Parameter("map_index", Index, "Only this index; may come several times.", None, many=True)
_PREFIX = Parameter("dag_id_prefix_pattern", str, "Only DAGs whose id begins with this; `|` means or.", None)
_IN_ID = Parameter("dag_id_pattern", str, "Only DAGs whose id has this in it, case not counting; `|` means or.", None)

_RUN_STATES: dict[str, RunStateName] = {
    "running": "running",
    "paused": "queued",
    "success": "success",
    "failed": "failed",
    "cancelled": "failed",
}


# --- DAGs ----------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET",
    "/dags",
    tag="DAG",
    parameters=(LIMIT, OFFSET, _IN_ID, _PREFIX),
    answers={200: DAGCollectionResponse, **REFUSALS},
)
async def get_dags(call: Call) -> Response:
    """List the DAGs that have runs or state here, by id."""
    rows = [row for row in await _every_dag(call) if _fits(call, row.dag_id)]
    page = [_dag(row.dag_id, row.file, call.config) for row in _paged(call, rows)]
    return answer(DAGCollectionResponse(page, len(rows)))


@OPERATIONS.declare("GET", "/dags/{dag_id}", tag="DAG", answers={200: DAGResponse, **REFUSALS})
async def get_dag(call: Call) -> Response:
    """Return one DAG that has runs or state here."""
    dag_id = check_id(call.places["dag_id"], "dag_id")
    try:
        run = await known_dag(call, dag_id)
    except NotFound:
        raise NotFound(f"Dag with id {dag_id} was not found") from None
    return answer(_dag(dag_id, run.file if run else "", call.config))


async def _every_dag(call: Call) -> list[DagRow]:
    found: list[DagRow] = []
    after: str | None = ""
    while after is not None:
        page: DagPage = await call.ask(ListDags(after, _PAGE))
        found, after = found + list(page.dags), page.after
    return found


def _dag(dag_id: str, file: str, config: Config) -> DAGResponse:
    return DAGResponse(dag_id=dag_id, dag_display_name=dag_id, fileloc=file, max_active_tasks=config.runner.parallelism)


def _fits(call: Call, dag_id: str) -> bool:
    part, prefix = call.query["dag_id_pattern"], call.query["dag_id_prefix_pattern"]
    if part is not None and not any(one.strip("%").lower() in dag_id.lower() for one in _either(part)):
        return False
    return prefix is None or any(dag_id.startswith(one) for one in _either(prefix))


def _either(pattern: str) -> list[str]:
    return ["" if one == ANY else one for one in pattern.split("|")]


# --- Runs ----------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET",
    "/dags/{dag_id}/dagRuns",
    tag="DagRun",
    parameters=(LIMIT, OFFSET, _RUN_STATE),
    answers={200: DAGRunCollectionResponse, **REFUSALS},
)
async def get_dag_runs(call: Call) -> Response:
    """List a DAG's runs, newest first; `~` is every DAG."""
    asked, dag_id = call.query["state"], call.places["dag_id"]
    states = tuple(state for state, shown in _RUN_STATES.items() if asked is None or shown in asked)
    among: tuple[str, ...] = ()
    if dag_id != ANY:
        await known_dag(call, check_id(dag_id, "dag_id"))
        among = (dag_id,)
    elif not call.who.sees_all:
        among = tuple(row.dag_id for row in await _every_dag(call))
    if not states or not (among or call.who.sees_all):
        return answer(DAGRunCollectionResponse([], 0))
    limit, offset = page_limit(call), call.query["offset"]
    page: RunPage = await call.ask(ListRuns(None, states, None, limit, offset, among, total=True))
    return answer(DAGRunCollectionResponse([run_shape(run) for run, _ in page.runs], page.total or 0))


@OPERATIONS.declare(
    "GET", "/dags/{dag_id}/dagRuns/{dag_run_id}", tag="DagRun", answers={200: DAGRunResponse, **REFUSALS}
)
async def get_dag_run(call: Call) -> Response:
    """Return one run."""
    return answer(run_shape((await find_run(call)).run))


async def _runs_of(call: Call) -> list[RunRow]:
    """Return the runs of the DAG in the path; NotFound if nothing is known of that DAG."""
    dag_id = call.places["dag_id"]
    if dag_id == ANY:
        return await every_run(call, None)
    await known_dag(call, check_id(dag_id, "dag_id"))
    return await every_run(call, dag_id)


async def known_dag(call: Call, dag_id: str) -> RunRow | None:
    """Return the newest run of a DAG, None if it has state only; NotFound if nothing is known of it."""
    runs: RunPage = await call.ask(ListRuns(dag_id, limit=1))
    if runs.runs:
        return runs.runs[0][0]
    scopes: ScopePage = await call.ask(ListScopes(dag_id, limit=1, counts=False))
    if not scopes.scopes:
        raise NotFound(f"The DAG with ID: `{dag_id}` was not found")
    return None


async def every_run(call: Call, dag_id: str | None) -> list[RunRow]:
    """Return every run of a DAG (None: of all), newest first."""
    found: list[RunRow] = []
    before: int | None = None
    while True:
        page: RunPage = await call.ask(ListRuns(dag_id, (), before, _PAGE))
        found += [run for run, _ in page.runs]
        before = page.before
        if before is None:
            return found


async def find_run(call: Call, task_id: str | None = None) -> RunDetail:
    """Return the run in the path, with its task instances; NotFound in Airflow's words."""
    places = call.places
    dag_id, run_id = check_id(places["dag_id"], "dag_id"), check_id(places["dag_run_id"], "run_id")
    try:
        detail: RunDetail = await call.ask(GetRun(dag_id, run_id, task_id))
    except NotFound:
        raise NotFound(f"The DagRun with dag_id: `{dag_id}` and run_id: `{run_id}` was not found") from None
    return detail


def run_shape(run: RunRow) -> DAGRunResponse:
    """Return a run as Airflow shows one."""
    created = moment(run.created_at)
    return DAGRunResponse(
        dag_run_id=run.run_id,
        dag_id=run.dag_id,
        dag_display_name=run.dag_id,
        state=_RUN_STATES[run.state],
        logical_date=moment(run.logical_date),
        run_after=created,
        queued_at=created,
        start_date=_when(run.started_at),
        end_date=_when(run.ended_at),
        duration=_seconds(run.started_at, run.ended_at),
        run_type="asset_triggered" if run.events else "manual",
        conf=msgspec.Raw(run.params.encode()),  # type: ignore[arg-type]
    )


# --- Task instances ------------------------------------------------------------------------------------------

_INSTANCES = "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances"


@OPERATIONS.declare(
    "GET",
    _INSTANCES,
    tag="Task Instance",
    parameters=(LIMIT, OFFSET, _STATE, _TASK_ID, _MAPPED),
    answers={200: TaskInstanceCollectionResponse, **REFUSALS},
)
async def get_task_instances(call: Call) -> Response:
    """List a run's task instances, by task and map index; `~` is every run, or every DAG's."""
    runs = [await find_run(call, call.query["task_id"])] if _one_run(call) else await _every_detail(call)
    found = [instance_shape(detail.run, task) for detail in runs for task in _wanted(call, detail.tasks)]
    found = _in_state(call, found)
    return answer(TaskInstanceCollectionResponse(_paged(call, found), len(found)))


@OPERATIONS.declare(
    "GET", _INSTANCES + "/{task_id}", tag="Task Instance", answers={200: TaskInstanceResponse, **REFUSALS}
)
async def get_task_instance(call: Call) -> Response:
    """Return one task instance of a task that is not mapped."""
    return await _instance(call, -1)


@OPERATIONS.declare(
    "GET",
    _INSTANCES + "/{task_id}/listMapped",
    tag="Task Instance",
    parameters=(LIMIT, OFFSET, _STATE, _MAPPED),
    answers={200: TaskInstanceCollectionResponse, **REFUSALS},
)
async def get_mapped_task_instances(call: Call) -> Response:
    """List the instances of a mapped task, by map index."""
    detail = await find_run(call, check_id(call.places["task_id"], "task_id"))
    mapped = [task for task in _wanted(call, detail.tasks) if task.scope.map_index >= 0]
    if not any(task.mapped or task.scope.map_index >= 0 for task in detail.tasks):
        raise NotFound(f"Task id {call.places['task_id']} is not mapped, or is not in this run")
    found = _in_state(call, [instance_shape(detail.run, task) for task in mapped])
    return answer(TaskInstanceCollectionResponse(_paged(call, found), len(found)))


@OPERATIONS.declare(
    "GET", _INSTANCES + "/{task_id}/{map_index}", tag="Task Instance", answers={200: TaskInstanceResponse, **REFUSALS}
)
async def get_mapped_task_instance(call: Call) -> Response:
    """Return one instance of a mapped task, by its map index."""
    text = call.places["map_index"]
    if not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 12):
        raise NotFound("Not Found")
    return await _instance(call, int(text))


async def _instance(call: Call, map_index: int) -> Response:
    task_id = check_id(call.places["task_id"], "task_id")
    detail = await find_run(call, task_id)
    task = next((task for task in detail.tasks if task.scope.map_index == map_index), None)
    if task is None or (task.scope.task_id != task_id):
        run = f"dag_id: `{detail.run.dag_id}`, run_id: `{detail.run.run_id}`"
        raise NotFound(f"The Task Instance with {run}, task_id: `{task_id}` and map_index: `{map_index}` was not found")
    return answer(instance_shape(detail.run, task))


def _one_run(call: Call) -> bool:
    return ANY not in (call.places["dag_id"], call.places["dag_run_id"])


async def _every_detail(call: Call) -> list[RunDetail]:
    task_id = call.query["task_id"]
    return [await call.ask(GetRun(run.dag_id, run.run_id, task_id)) for run in await _runs_of(call)]


def _wanted(call: Call, tasks: Iterable[TaskRow]) -> list[TaskRow]:
    indexes = call.query["map_index"]
    return [task for task in tasks if indexes is None or task.scope.map_index in indexes]


def _in_state(call: Call, found: list[TaskInstanceResponse]) -> list[TaskInstanceResponse]:
    states = call.query["state"]
    if states is None:
        return found
    return [
        shape for shape in found if shape.state in states or (not shape.state and {"none", "no_status"} & {*states})
    ]


def instance_shape(run: RunRow, task: TaskRow) -> TaskInstanceResponse:
    """Return a task instance as Airflow shows one."""
    scope = task.scope
    state: Any = {"waiting": None, "cancelled": "failed"}.get(task.state, task.state)
    process = task.child or task.supervisor
    return TaskInstanceResponse(
        id=str(UUID(bytes=address(scope))),
        task_id=scope.task_id,
        dag_id=scope.dag_id,
        dag_run_id=scope.run_id,
        map_index=scope.map_index,
        state=state,
        try_number=task.attempt,
        max_tries=max(task.attempt, 1),
        logical_date=moment(run.logical_date),
        run_after=moment(run.created_at),
        start_date=_when(task.started_at),
        end_date=_when(task.ended_at),
        duration=_seconds(task.started_at, task.ended_at),
        task_display_name=scope.task_id,
        dag_display_name=scope.dag_id,
        hostname=None if process is None else process.host,
        pid=None if process is None else process.pid,
        rendered_map_index=scope.item,
    )


# --- Assets --------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET", "/assets", tag="Asset", parameters=(LIMIT, OFFSET), answers={200: AssetCollectionResponse, **REFUSALS}
)
async def get_assets(call: Call) -> Response:
    """List the assets that have, or had, state, by id."""
    infos = await _every_asset(call)
    return answer(AssetCollectionResponse([await _asset(call, info) for info in _paged(call, infos)], len(infos)))


@OPERATIONS.declare("GET", "/assets/{asset_id}", tag="Asset", answers={200: AssetResponse, **REFUSALS})
async def get_asset(call: Call) -> Response:
    """Return one asset."""
    return answer(await _asset(call, await asset_info(call, "The Asset with ID: `{}` was not found")))


async def _asset(call: Call, info: ScopeInfo) -> AssetResponse:
    scope = info.scope
    assert isinstance(scope, AssetScope)
    events: Events = await call.ask(ListEvents(before=2**62, limit=1, name=scope.name, uri=scope.uri))
    newest = LastAssetEventResponse(events.rows[0].id, moment(events.rows[0].at)) if events.rows else None
    changed = info.updated_at or moment(0)
    return AssetResponse(
        id=info.id,
        name=scope.name or scope.uri or "",
        uri=scope.uri or scope.name or "",
        created_at=changed,
        updated_at=changed,
        last_asset_event=newest,
    )


async def _every_asset(call: Call) -> list[ScopeInfo]:
    found: list[ScopeInfo] = []
    after: int | None = 0
    while after is not None:
        page: ScopePage = await call.ask(ListScopes(assets=True, after=after, counts=False))
        found, after = found + list(page.scopes), page.after
    return found


# --- Pages and times -----------------------------------------------------------------------------------------


def _paged(call: Call, found: list[Any]) -> list[Any]:
    offset = call.query["offset"]
    return found[offset : offset + page_limit(call)]


def _when(micros: int | None) -> Any:
    return None if micros is None else moment(micros)


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1_000_000
