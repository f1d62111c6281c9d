"""The bodies of Airflow 3.3.2's public API, as far as outlast speaks it; field for field, in its words.

What outlast does not have (pools, bundles, timetables, owners) has the value an Airflow without any would give.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from .bodies import Aware, Expiry, Value

__all__ = [
    "AssetCollectionResponse",
    "AssetResponse",
    "AssetStateStoreBody",
    "AssetStateStoreCollectionResponse",
    "AssetStateStoreLastUpdatedBy",
    "AssetStateStoreResponse",
    "ClearTaskInstancesBody",
    "DAGCollectionResponse",
    "DAGResponse",
    "DAGRunCollectionResponse",
    "DAGRunResponse",
    "HTTPExceptionResponse",
    "HTTPValidationError",
    "LastAssetEventResponse",
    "PreconditionFailedResponse",
    "TaskInstanceCollectionResponse",
    "TaskInstanceResponse",
    "TaskStateStoreBody",
    "TaskStateStoreCollectionResponse",
    "TaskStateStorePatchBody",
    "TaskStateStoreResponse",
]

RunStateName = Literal["queued", "running", "success", "failed"]
InstanceState = Literal[
    "scheduled",
    "queued",
    "running",
    "success",
    "failed",
    "up_for_retry",
    "up_for_reschedule",
    "upstream_failed",
    "skipped",
    "deferred",
]


# --- Errors --------------------------------------------------------------------------------------------------


class HTTPExceptionResponse(msgspec.Struct):
    """An error: what was wrong, and what to do."""

    detail: str


class ValidationError(msgspec.Struct):
    """One thing that is wrong with a request: where, what, and the kind of error."""

    loc: list[str]
    msg: str
    type: str


class HTTPValidationError(msgspec.Struct):
    """What is wrong with a request."""

    detail: list[ValidationError]


class PreconditionFailedResponse(msgspec.Struct):
    """`If-Match` or `If-None-Match` did not hold: what was wrong, and the entry as it is now (null: absent)."""

    detail: str
    current: dict[str, Any] | None


# --- Task and asset state ------------------------------------------------------------------------------------


class TaskStateStoreResponse(msgspec.Struct):
    """One entry of a task instance's state."""

    key: str
    value: Any
    updated_at: datetime
    expires_at: datetime | None


class TaskStateStoreCollectionResponse(msgspec.Struct):
    """A page of a task instance's entries, by key, and how many there are in all."""

    task_state_store: list[TaskStateStoreResponse]
    total_entries: int


class TaskStateStoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """A value to write, and when it expires.

    `"default"`: after `[state_store] default_retention_days`; null: never; else at that moment, which has a time zone.
    """

    value: Value
    expires_at: Expiry = "default"


class TaskStateStorePatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """A value to write over the one there is; its expiry stays."""

    value: Value


class AssetStateStoreLastUpdatedBy(msgspec.Struct):
    """Who wrote an asset's entry last: a task, with its address, a watcher, or the API."""

    kind: Literal["task", "watcher", "api"]
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None


class AssetStateStoreResponse(msgspec.Struct):
    """One entry of an asset's state."""

    key: str
    value: Any
    updated_at: datetime
    last_updated_by: AssetStateStoreLastUpdatedBy | None


class AssetStateStoreCollectionResponse(msgspec.Struct):
    """A page of an asset's entries, by key, and how many there are in all."""

    asset_state_store: list[AssetStateStoreResponse]
    total_entries: int


class AssetStateStoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """A value to write."""

    value: Value


# --- Lists to find ids in ------------------------------------------------------------------------------------


class DAGResponse(msgspec.Struct, kw_only=True):
    """A DAG that has runs or state in this store."""

    dag_id: str
    dag_display_name: str
    fileloc: str = ""
    relative_fileloc: str | None = None
    file_token: str = ""
    description: str | None = None
    is_paused: bool = False
    is_stale: bool = False
    is_backfillable: bool = False
    has_import_errors: bool = False
    has_task_concurrency_limits: bool = False
    max_active_tasks: int = 16
    max_active_runs: int | None = None
    max_consecutive_failed_dag_runs: int = 0
    owners: list[str] = []
    tags: list[dict[str, str]] = []
    timetable_partitioned: bool = False
    timetable_periodic: bool = False
    timetable_summary: str | None = None
    timetable_description: str | None = None
    allowed_run_types: list[str] | None = None
    bundle_name: str | None = None
    bundle_version: str | None = None
    last_expired: datetime | None = None
    last_parse_duration: float | None = None
    last_parsed_time: datetime | None = None
    next_dagrun_data_interval_end: datetime | None = None
    next_dagrun_data_interval_start: datetime | None = None
    next_dagrun_logical_date: datetime | None = None
    next_dagrun_run_after: datetime | None = None


class DAGCollectionResponse(msgspec.Struct):
    """A page of DAGs, by id, and how many there are in all."""

    dags: list[DAGResponse]
    total_entries: int


class DAGRunResponse(msgspec.Struct, kw_only=True):
    """One run. A paused one is `queued`, a cancelled one `failed`; `conf` has its parameters."""

    dag_run_id: str
    dag_id: str
    dag_display_name: str
    state: RunStateName
    logical_date: datetime | None
    run_after: datetime
    queued_at: datetime | None
    start_date: datetime | None
    end_date: datetime | None
    duration: float | None
    run_type: Literal["manual", "asset_triggered"]
    conf: dict[str, Any] | None
    dag_versions: list[dict[str, Any]] = []
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None
    last_scheduling_decision: datetime | None = None
    triggered_by: str | None = None
    triggering_user_name: str | None = None
    note: str | None = None
    bundle_version: str | None = None
    partition_key: str | None = None
    partition_date: datetime | None = None


class DAGRunCollectionResponse(msgspec.Struct):
    """A page of runs, newest first, and how many there are in all."""

    dag_runs: list[DAGRunResponse]
    total_entries: int
    next_cursor: str | None = None
    previous_cursor: str | None = None
    total_entries_limit: int | None = None


class TaskInstanceResponse(msgspec.Struct, kw_only=True):
    """One task instance. One that has not begun has the state null, a cancelled one `failed`.

    `try_number` is the number of its newest attempt; `rendered_map_index` the key of its item, where state follows it.
    """

    id: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})]
    task_id: str
    dag_id: str
    dag_run_id: str
    map_index: int
    state: InstanceState | None
    try_number: int
    max_tries: int
    logical_date: datetime | None
    run_after: datetime
    start_date: datetime | None
    end_date: datetime | None
    duration: float | None
    task_display_name: str
    dag_display_name: str
    hostname: str | None
    pid: int | None
    rendered_map_index: str | None
    pool: str = "default_pool"
    pool_slots: int = 1
    executor_config: str = "{}"
    executor: str | None = None
    unixname: str | None = None
    queue: str | None = None
    priority_weight: int | None = None
    operator: str | None = None
    operator_name: str | None = None
    queued_when: datetime | None = None
    scheduled_when: datetime | None = None
    note: str | None = None
    rendered_fields: dict[str, Any] = {}
    trigger: dict[str, Any] | None = None
    triggerer_job: dict[str, Any] | None = None
    dag_version: dict[str, Any] | None = None


class TaskInstanceCollectionResponse(msgspec.Struct):
    """A page of task instances, and how many there are in all."""

    task_instances: list[TaskInstanceResponse]
    total_entries: int
    next_cursor: str | None = None
    previous_cursor: str | None = None
    total_entries_limit: int | None = None


class LastAssetEventResponse(msgspec.Struct):
    """The newest event of an asset."""

    id: int | None = None
    timestamp: datetime | None = None


class AssetResponse(msgspec.Struct, kw_only=True):
    """An asset that has, or had, state. One known by its URI alone has that as its name, and the other way round."""

    id: int
    name: str
    uri: str
    group: str = "asset"
    extra: dict[str, Any] | None = None
    created_at: datetime
    updated_at: datetime
    scheduled_dags: list[dict[str, Any]] = []
    producing_tasks: list[dict[str, Any]] = []
    consuming_tasks: list[dict[str, Any]] = []
    aliases: list[dict[str, Any]] = []
    watchers: list[dict[str, Any]] = []
    last_asset_event: LastAssetEventResponse | None = None


class AssetCollectionResponse(msgspec.Struct):
    """A page of assets, by id, and how many there are in all."""

    assets: list[AssetResponse]
    total_entries: int


# --- Clearing ------------------------------------------------------------------------------------------------


class ClearTaskInstancesBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which task instances are to run again; with Airflow's defaults nothing happens: `dry_run` is true.

    `task_ids` are ids (every index of a mapped task) or pairs of id and map index; null: all. Without `dag_run_id`
    every run between the two dates is meant. `keep_task_state` false discards what they have stored, true keeps it;
    null does as the tasks and `[state_store] discard_on_clear` say. `note`, `run_on_latest_version`: no effect.
    """

    dry_run: bool = True
    start_date: Aware | None = None
    end_date: Aware | None = None
    only_failed: bool = True
    only_running: bool = False
    reset_dag_runs: bool = True
    task_ids: list[str | tuple[str, int]] | None = None
    dag_run_id: str | None = None
    include_upstream: bool = False
    include_downstream: bool = False
    include_future: bool = False
    include_past: bool = False
    run_on_latest_version: bool | None = None
    prevent_running_task: bool = False
    note: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    keep_task_state: bool | None = None
