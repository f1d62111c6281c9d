"""Airflow's state-store routes, of tasks and of assets: path for path, body for body, status for status."""

from __future__ import annotations

from starlette.responses import Response

from ..errors import Conflict, NotFound
from ..requests import ListScopes, Row, ScopePage
from ..run_requests import GetRun, RunDetail
from ..values import TaskScope, Writer, check_key, moment
from . import entries
from .airflow_shapes import (
    AssetStateStoreBody,
    AssetStateStoreCollectionResponse,
    AssetStateStoreLastUpdatedBy,
    AssetStateStoreResponse,
    HTTPExceptionResponse,
    HTTPValidationError,
    PreconditionFailedResponse,
    TaskStateStoreBody,
    TaskStateStoreCollectionResponse,
    TaskStateStorePatchBody,
    TaskStateStoreResponse,
)
from .bodies import expiry, read, shown, stored
from .entries import LIST_PRECONDITION, MAP_INDEX, PRECONDITIONS, Whole, asset_of, etag, task_of
from .operations import Call, Operations, Parameter, answer, nothing

__all__ = ["LIMIT", "OFFSET", "OPERATIONS", "REFUSALS", "page_limit"]

OPERATIONS = Operations("/api/v2", "airflow")

#: Entries of a page, at most, as in an Airflow left as it is.
MAXIMUM_PAGE = 100

LIMIT = Parameter("limit", Whole, f"Entries of a page; {MAXIMUM_PAGE} at most, whatever is asked for.", 50)
OFFSET = Parameter("offset", Whole, "Entries to pass over.", 0)
ALL_INDICES = Parameter(
    "all_map_indices", bool, "Clear every index of a mapped task, whatever `map_index` says; 409 while one runs.", False
)

REFUSALS = {
    401: HTTPExceptionResponse,
    404: HTTPExceptionResponse,
    422: HTTPValidationError,
    503: HTTPExceptionResponse,
}
_READS = {**REFUSALS}
_WRITES = {
    204: None,
    **REFUSALS,
    409: HTTPExceptionResponse,
    412: PreconditionFailedResponse,
}
_BIG = {413: HTTPExceptionResponse}

_TASK = "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/state-store"
_ASSET = "/assets/{asset_id}/state-store"
_TASK_TAG, _ASSET_TAG = "Task State Store", "Asset State Store"


def page_limit(call: Call) -> int:
    """Return how many entries a page is to have."""
    return min(int(call.query["limit"]), MAXIMUM_PAGE)


# --- Task state ----------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET",
    _TASK,
    tag=_TASK_TAG,
    parameters=(LIMIT, OFFSET, MAP_INDEX),
    answers={200: TaskStateStoreCollectionResponse, **_READS},
)
async def list_task_state_store(call: Call) -> Response:
    """List a task instance's entries, by key.

    Expired ones are not there. Unlike Airflow's, the list of a task instance that does not exist is 404.
    """
    page = await entries.find_page(call, task_of(call), page_limit(call), call.query["offset"])
    found = TaskStateStoreCollectionResponse([_task_entry(row) for row in page.rows], page.total)
    return answer(found, etag=etag(page.scope_id, page.revision))


@OPERATIONS.declare(
    "GET",
    _TASK + "/{key:path}",
    tag=_TASK_TAG,
    parameters=(MAP_INDEX,),
    answers={200: TaskStateStoreResponse, **_READS},
)
async def get_task_state_store(call: Call) -> Response:
    """Return one entry of a task instance."""
    key = call.places["key"]
    found, row = await entries.require(call, task_of(call), key, _no_task_key(key))
    return answer(_task_entry(row), etag=etag(found.scope_id, row.revision))


@OPERATIONS.declare(
    "PUT",
    _TASK + "/{key:path}",
    tag=_TASK_TAG,
    parameters=(MAP_INDEX, *PRECONDITIONS),
    body=TaskStateStoreBody,
    example={"value": {"rows": 1200, "page": 41}, "expires_at": "default"},
    answers={**_WRITES, **_BIG},
)
async def set_task_state_store(call: Call) -> Response:
    """Write an entry of a task instance, new or over the one there is.

    Its expiry is computed anew. A value above `[state_store] max_value_storage_bytes` is 422, and so is a moment that
    has passed.
    """
    scope, key = task_of(call), check_key(call.places["key"])
    body = await read(call, TaskStateStoreBody)
    text = await stored(body.value, call.config)
    _, tag = await entries.put(call, scope, key, text, expiry(body.expires_at, call))
    return nothing(tag)


@OPERATIONS.declare(
    "PATCH",
    _TASK + "/{key:path}",
    tag=_TASK_TAG,
    parameters=(MAP_INDEX, *PRECONDITIONS),
    body=TaskStateStorePatchBody,
    example={"value": 42},
    answers={200: None, **{status: shape for status, shape in _WRITES.items() if status != 204}, **_BIG},
)
async def patch_task_state_store(call: Call) -> Response:
    """Write over an entry of a task instance, atomically; its expiry stays. The answer's body is `null`."""
    scope, key = task_of(call), check_key(call.places["key"])
    body = await read(call, TaskStateStorePatchBody)
    text = await stored(body.value, call.config)
    _, tag = await entries.change(call, scope, key, text, _no_task_key(key))
    return answer(None, etag=tag)


@OPERATIONS.declare(
    "DELETE", _TASK + "/{key:path}", tag=_TASK_TAG, parameters=(MAP_INDEX, *PRECONDITIONS), answers=_WRITES
)
async def delete_task_state_store(call: Call) -> Response:
    """Delete an entry of a task instance; one that is absent is no error. Its history stays."""
    await entries.remove(call, task_of(call), call.places["key"])
    return nothing()


@OPERATIONS.declare(
    "DELETE", _TASK, tag=_TASK_TAG, parameters=(MAP_INDEX, ALL_INDICES, LIST_PRECONDITION), answers=_WRITES
)
async def clear_task_state_store(call: Call) -> Response:
    """Delete every entry of a task instance, or with `all_map_indices` of every index of its task."""
    scope = task_of(call)
    scopes = await _every_index(call, scope) if call.query["all_map_indices"] else [scope]
    await entries.clear(call, *scopes)
    return nothing()


async def _every_index(call: Call, scope: TaskScope) -> list[TaskScope]:
    """Return the scopes of every index of a task, of items that are in the list no more too (contract 6.6)."""
    found: list[TaskScope] = []
    after: int | None = 0
    while after is not None:
        page: ScopePage = await call.ask(ListScopes(scope.dag_id, scope.run_id, scope.task_id, after=after))
        found += [info.scope for info in page.scopes if isinstance(info.scope, TaskScope)]
        after = page.after
    await _refuse_running(call, scope)
    by_item = {place.map_index for place in found if place.item is not None}
    return [place for place in found if place.item is not None or place.map_index not in by_item - {-1}] or [scope]


async def _refuse_running(call: Call, scope: TaskScope) -> None:
    try:
        detail: RunDetail = await call.ask(GetRun(scope.dag_id, scope.run_id, scope.task_id))
    except NotFound:  # no run has it: state of a script
        return
    running = [task.scope for task in detail.tasks if task.state == "running" and task.scope.map_index >= 0]
    if running:
        others = f", and {len(running) - 1} more" if len(running) > 1 else ""
        raise Conflict(
            f"the mapped task instance {running[0]} is running{others}; wait for them, "
            "clear the indexes meant one by one, or clear the task instances with keep_task_state = false"
        )


def _task_entry(row: Row) -> TaskStateStoreResponse:
    expires_at = None if row.expires_at is None else moment(row.expires_at)
    return TaskStateStoreResponse(row.name, shown(row), moment(row.updated_at), expires_at)


def _no_task_key(key: str) -> str:
    return f"Task state store key '{key}' not found"


# --- Asset state ---------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET",
    _ASSET,
    tag=_ASSET_TAG,
    parameters=(LIMIT, OFFSET),
    answers={200: AssetStateStoreCollectionResponse, **_READS},
)
async def list_asset_state_store(call: Call) -> Response:
    """List an asset's entries, by key, each with who wrote it last."""
    page = await entries.find_page(call, await asset_of(call), page_limit(call), call.query["offset"])
    found = AssetStateStoreCollectionResponse([_asset_entry(row) for row in page.rows], page.total)
    return answer(found, etag=etag(page.scope_id, page.revision))


@OPERATIONS.declare("GET", _ASSET + "/{key:path}", tag=_ASSET_TAG, answers={200: AssetStateStoreResponse, **_READS})
async def get_asset_state_store(call: Call) -> Response:
    """Return one entry of an asset."""
    key = call.places["key"]
    found, row = await entries.require(call, await asset_of(call), key, f"Asset state store key '{key}' not found")
    return answer(_asset_entry(row), etag=etag(found.scope_id, row.revision))


@OPERATIONS.declare(
    "PUT",
    _ASSET + "/{key:path}",
    tag=_ASSET_TAG,
    parameters=PRECONDITIONS,
    body=AssetStateStoreBody,
    example={"value": "2026-11-29T00:00:00Z"},
    answers={**_WRITES, **_BIG},
)
async def set_asset_state_store(call: Call) -> Response:
    """Write an entry of an asset, new or over the one there is. It is recorded as written through the API."""
    scope, key = await asset_of(call), check_key(call.places["key"])
    body = await read(call, AssetStateStoreBody)
    _, tag = await entries.put(call, scope, key, await stored(body.value, call.config), None)
    return nothing(tag)


@OPERATIONS.declare("DELETE", _ASSET + "/{key:path}", tag=_ASSET_TAG, parameters=PRECONDITIONS, answers=_WRITES)
async def delete_asset_state_store(call: Call) -> Response:
    """Delete an entry of an asset; one that is absent is no error. Its history stays."""
    await entries.remove(call, await asset_of(call), call.places["key"])
    return nothing()


@OPERATIONS.declare("DELETE", _ASSET, tag=_ASSET_TAG, parameters=(LIST_PRECONDITION,), answers=_WRITES)
async def clear_asset_state_store(call: Call) -> Response:
    """Delete every entry of an asset."""
    await entries.clear(call, await asset_of(call))
    return nothing()


def _asset_entry(row: Row) -> AssetStateStoreResponse:
    return AssetStateStoreResponse(row.name, shown(row), moment(row.updated_at), _updated_by(row.writer))


def _updated_by(writer: Writer) -> AssetStateStoreLastUpdatedBy | None:
    place: TaskScope | None = writer.scope
    match writer.kind:
        case "task" if place is not None:
            return AssetStateStoreLastUpdatedBy("task", place.dag_id, place.run_id, place.task_id, place.map_index)
        case "trigger":
            return AssetStateStoreLastUpdatedBy("watcher")
        case "person":
            return AssetStateStoreLastUpdatedBy("api")
    return None  # a program that used the library
