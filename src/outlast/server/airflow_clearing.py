"""Airflow's `clearTaskInstances`, with its defaults: nothing happens unless `dry_run` is false."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.responses import Response

from ..errors import Conflict, InvalidValue, NotFound
from ..lineage import above, below
from ..people_requests import ClearTasks, Touched
from ..run_requests import GetRun, RunDetail, RunRow, TaskRow
from ..values import check_id, check_index, to_micros
from .airflow_lists import every_run, instance_shape, known_dag
from .airflow_shapes import ClearTaskInstancesBody, HTTPExceptionResponse, TaskInstanceCollectionResponse
from .airflow_state import OPERATIONS, REFUSALS
from .bodies import read
from .operations import Call, answer

__all__ = ["clear_task_instances"]

Chosen = tuple[tuple[str, int | None], ...]


@OPERATIONS.declare(
    "POST",
    "/dags/{dag_id}/clearTaskInstances",
    tag="Task Instance",
    body=ClearTaskInstancesBody,
    example={"dag_run_id": "2026-11-29", "task_ids": ["ingest", ["load", 3]], "dry_run": False, "only_failed": False},
    answers={
        200: TaskInstanceCollectionResponse,
        **REFUSALS,
        409: HTTPExceptionResponse,
        413: HTTPExceptionResponse,
    },
)
async def clear_task_instances(call: Call) -> Response:
    """Have task instances run again; what they have stored stays, unless `keep_task_state` is false.

    Those below them that were skipped, or gave up because of them, are cleared as well. Clearing every index of a
    mapped task is refused (409) while one runs.
    """
    dag_id = check_id(call.places["dag_id"], "dag_id")
    body = await read(call, ClearTaskInstancesBody, ClearTasks)
    _refuse_contradictions(body)
    details = [await call.ask(GetRun(dag_id, run.run_id)) for run in await _runs(call, dag_id, body)]
    _refuse_unknown(body, details)
    chosen = [(detail, _chosen(body, detail)) for detail in details]
    if body.prevent_running_task:
        _refuse_running(chosen)
    found = []
    for detail, tasks in chosen:
        if tasks:
            touched = await _clear(call, detail.run, _as_asked(body, detail, tasks), body)
            found += [instance_shape(touched.run, task) for task in touched.tasks]
    return answer(TaskInstanceCollectionResponse(found, len(found)))


def _refuse_contradictions(body: ClearTaskInstancesBody) -> None:
    if body.start_date is not None and body.end_date is not None and body.start_date > body.end_date:
        raise InvalidValue("end_date is sooner than start_date")
    if body.dag_run_id is not None and (body.start_date is not None or body.end_date is not None):
        raise InvalidValue("Exactly one of dag_run_id or (start_date and end_date) must be provided")
    if body.task_ids is not None and not body.task_ids:
        raise InvalidValue("task_ids list should have at least 1 element.")


async def _clear(call: Call, run: RunRow, tasks: Chosen, body: ClearTaskInstancesBody) -> Touched:
    discard = None if body.keep_task_state is None else not body.keep_task_state
    default = call.config.state_store.discard_on_clear
    request = ClearTasks(
        run.dag_id, run.run_id, tasks, call.writer, discard, dry_run=body.dry_run, default_discard=default
    )
    touched: Touched = await call.ask(request)
    return touched


# --- Which runs ----------------------------------------------------------------------------------------------


async def _runs(call: Call, dag_id: str, body: ClearTaskInstancesBody) -> list[RunRow]:
    if await known_dag(call, dag_id) is None:
        raise NotFound(f"The DAG with ID: `{dag_id}` was not found")
    if body.dag_run_id is not None and not (body.include_past or body.include_future):
        return [await _named(call, dag_id, body.dag_run_id)]
    runs = await every_run(call, dag_id)
    if body.dag_run_id is None:
        start = None if body.start_date is None else to_micros(body.start_date)
        end = None if body.end_date is None else to_micros(body.end_date)
        return [run for run in runs if _between(run.logical_date, start, end)]
    named = await _named(call, dag_id, body.dag_run_id)
    first = None if body.include_past else named.logical_date
    last = None if body.include_future else named.logical_date
    return [run for run in runs if _between(run.logical_date, first, last)]


async def _named(call: Call, dag_id: str, run_id: str) -> RunRow:
    try:
        detail: RunDetail = await call.ask(GetRun(dag_id, check_id(run_id, "dag_run_id")))
    except NotFound:
        raise NotFound(f"Dag Run id {run_id} not found in dag {dag_id}") from None
    return detail.run


def _between(moment: int, first: int | None, last: int | None) -> bool:
    return (first is None or first <= moment) and (last is None or moment <= last)


# --- Which task instances ------------------------------------------------------------------------------------


def _refuse_unknown(body: ClearTaskInstancesBody, details: list[RunDetail]) -> None:
    known = {task.scope.task_id for detail in details for task in detail.tasks}
    unknown = [task_id for task_id, _ in _asked(body) if task_id not in known]
    if unknown and details:
        raise NotFound(f"Task id {', '.join(unknown)} not found in dag {details[0].run.dag_id}")


def _asked(body: ClearTaskInstancesBody) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    for task in body.task_ids or ():
        if isinstance(task, str):
            found.append((check_id(task, "task_id"), None))
        else:
            found.append((check_id(task[0], "task_id"), check_index(task[1])))
    return found


def _chosen(body: ClearTaskInstancesBody, detail: RunDetail) -> list[TaskRow]:
    """Return the task instances of a run that are meant: named or beside those, and in a state that was asked for."""
    asked = _asked(body)
    beside = _beside(body, detail.tasks, {task_id for task_id, _ in asked})
    states = _states(body)
    return [
        task
        for task in detail.tasks
        if (not asked or task.scope.task_id in beside or _is_named(task, asked))
        and (not states or task.state in states)
    ]


def _is_named(task: TaskRow, asked: Iterable[tuple[str, int | None]]) -> bool:
    place = task.scope
    return any(task_id == place.task_id and index in (None, place.map_index) for task_id, index in asked)


def _states(body: ClearTaskInstancesBody) -> set[str]:
    states: set[str] = set()
    if body.only_failed:
        states |= {"failed", "upstream_failed", "cancelled"}
    if body.only_running:
        states |= {"running", "deferred", "scheduled", "up_for_reschedule"}
    return states


def _beside(body: ClearTaskInstancesBody, tasks: Sequence[TaskRow], named: set[str]) -> set[str]:
    """Return the tasks above and below the named ones, at any distance, as far as they are to be included."""
    found: set[str] = set()
    if body.include_upstream:
        found |= above(tasks, named)
    if body.include_downstream:
        found |= below(tasks, named)
    return found


def _refuse_running(chosen: list[tuple[RunDetail, list[TaskRow]]]) -> None:
    running = [task.scope for _, tasks in chosen for task in tasks if task.state == "running"]
    if running:
        raise Conflict(f"the task instance {running[0]} is running, and prevent_running_task is set; wait for it")


def _as_asked(body: ClearTaskInstancesBody, detail: RunDetail, chosen: list[TaskRow]) -> Chosen:
    """Return what to clear: a task as a whole where all its instances are meant and none was named by its index."""
    by_index = {task_id for task_id, index in _asked(body) if index is not None}
    counts: dict[str, int] = {}
    for task in detail.tasks:
        counts[task.scope.task_id] = counts.get(task.scope.task_id, 0) + 1
    for task in chosen:
        counts[task.scope.task_id] -= 1
    pairs: dict[tuple[str, int | None], None] = {}
    for task in chosen:
        task_id = task.scope.task_id
        whole = not counts[task_id] and task_id not in by_index
        pairs[task_id, None if whole else task.scope.map_index] = None
    return tuple(pairs)
