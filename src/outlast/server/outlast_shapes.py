"""The bodies of outlast's own public API, /api/outlast/v1: what is sent and what is answered."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from .bodies import Expiry, Value
from .entries import EntryShape, WriterShape

__all__ = [
    "AssetPlace",
    "AssetShape",
    "AssetsPage",
    "AttemptShape",
    "AuditPage",
    "AuditShape",
    "ClearBody",
    "CommitBody",
    "CommitShape",
    "EntriesPage",
    "ErrorShape",
    "Explanation",
    "FoundEntry",
    "FoundPage",
    "HistoryShape",
    "ImportShape",
    "MarkBody",
    "PreconditionShape",
    "PutBody",
    "RestoreBody",
    "RunDetailShape",
    "RunShape",
    "RunsPage",
    "ScopeShape",
    "TaskDetailShape",
    "TaskPlace",
    "TaskShape",
    "TouchedShape",
    "VersionShape",
]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=250)]


class ErrorShape(msgspec.Struct):
    """An error: what was wrong and what to do, and a code that does not change (missing where the path is no route).

    `outcome` (503) says whether the write may have happened; `current` (409) is the entry that was in the way.
    """

    detail: str
    code: str | None = None
    outcome: Literal["failed", "unknown"] | None = None
    current: EntryShape | None = None


class PreconditionShape(msgspec.Struct):
    """`If-Match` or `If-None-Match` did not hold: what was wrong, and the entry as it is now (null: absent)."""

    detail: str
    code: str
    current: EntryShape | None


# --- State ---------------------------------------------------------------------------------------------------


class EntriesPage(msgspec.Struct):
    """A page of a scope's entries, by key; `after` is where the next one begins, null at the end."""

    entries: list[EntryShape]
    revision: int
    after: str | None


class PutBody(msgspec.Struct, forbid_unknown_fields=True):
    """A value to write. `expires_at` as in Airflow's API: `"default"`, null (never), or a moment with its time zone.

    Entries of an asset do not expire: leave it out there.
    """

    value: Value
    expires_at: Expiry = "default"


class VersionShape(msgspec.Struct):
    """One step of a key's history; of a deletion, and of a masked one, the value is null."""

    value: Any
    masked: bool
    deleted: bool
    revision: int
    at: datetime
    writer: WriterShape


class HistoryShape(msgspec.Struct):
    """The kept versions of a key, newest first, the present one included."""

    key: str
    versions: list[VersionShape]


class RestoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """The version to write again, by its revision, and when it expires."""

    revision: int
    expires_at: Expiry = "default"


class ScopeShape(msgspec.Struct):
    """A task's scope or an asset's: `address` for people, and its parts (null where they do not apply)."""

    kind: Literal["task", "asset"]
    address: str
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    item: str | None = None
    name: str | None = None
    uri: str | None = None


class FoundEntry(msgspec.Struct):
    """An entry that was found, and where."""

    scope: ScopeShape
    entry: EntryShape


class FoundPage(msgspec.Struct):
    """What was found, by scope and key; `more` says that the search ended at its limit."""

    found: list[FoundEntry]
    more: bool


# --- Commits -------------------------------------------------------------------------------------------------


class TaskPlace(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="task"):
    """A task instance: by its map index, or by the key of its item."""

    dag_id: Id
    run_id: Id
    task_id: Id
    map_index: int = -1
    item: Name | None = None


class AssetPlace(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="asset"):
    """An asset, by its name, its URI, or both."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=1500)] | None = None
    uri: Annotated[str, msgspec.Meta(min_length=1, max_length=1500)] | None = None


class SetOperation(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="set"):
    """Write a value. `keep_expiry` leaves a present entry's own, `expires_at` is then for an absent one."""

    key: Name
    value: Value
    expires_at: Expiry = "default"
    keep_expiry: bool = False


class SetDefaultOperation(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="set_default"):
    """Write a value only where there is none."""

    key: Name
    value: Value
    expires_at: Expiry = "default"


class IncrementOperation(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="increment"):
    """Add to an integer, absent counting as 0; a present entry's expiry stays."""

    key: Name
    by: int = 1
    expires_at: Expiry = "default"


class DeleteOperation(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="delete"):
    """Delete a key; one that is absent is no error."""

    key: Name


class ClearOperation(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="clear"):
    """Delete every key of the scope."""


class CheckOperation(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="check"):
    """Go on only if the key is at this revision (null: absent); otherwise nothing at all is written, and it is 409."""

    key: Name
    revision: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None


AnyOperation = (
    SetOperation | SetDefaultOperation | IncrementOperation | DeleteOperation | ClearOperation | CheckOperation
)


class CommitPart(msgspec.Struct, forbid_unknown_fields=True):
    """What a commit does to one scope, in order."""

    scope: TaskPlace | AssetPlace
    operations: Annotated[list[AnyOperation], msgspec.Meta(min_length=1, max_length=10_000)]


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Changes to one scope or several, all or nothing. Sent again under the same `commit_id`, they are made once."""

    parts: Annotated[list[CommitPart], msgspec.Meta(min_length=1, max_length=1000)]
    commit_id: Annotated[str, msgspec.Meta(min_length=8, max_length=100)] | None = None


class PartShape(msgspec.Struct):
    """A scope after the commit: its revision, and for each operation the entry it left (null: none or only checked)."""

    scope: ScopeShape
    revision: int
    entries: list[EntryShape | None]


class CommitShape(msgspec.Struct):
    """What became of a commit, part by part."""

    parts: list[PartShape]


# --- Runs and task instances ---------------------------------------------------------------------------------


class RunShape(msgspec.Struct, kw_only=True):
    """One run; `tasks` counts its task instances by state, `params` is its parameters."""

    dag_id: str
    run_id: str
    state: Literal["running", "paused", "success", "failed", "cancelled"]
    params: Any
    file: str
    logical_date: datetime
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    tasks: dict[str, int]


class RunsPage(msgspec.Struct):
    """A page of runs, newest first; `before` is where the next one begins, null at the end."""

    runs: list[RunShape]
    before: int | None


class TaskShape(msgspec.Struct, kw_only=True):
    """One task instance; `attempt` is the number of its newest attempt, 0 if none has begun."""

    task_id: str
    map_index: int
    item: str | None
    state: str
    mapped: bool
    attempt: int
    failures: int
    crashes: int
    upstream: list[str]
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None


class RunDetailShape(msgspec.Struct):
    """A run with its task instances."""

    run: RunShape
    task_instances: list[TaskShape]


class AttemptShape(msgspec.Struct):
    """One attempt: how it went, when, where, and why it ended; `state` is `running` until then."""

    number: int
    state: str
    started_at: datetime
    ended_at: datetime | None
    host: str | None
    pid: int | None
    error: str | None


class TaskDetailShape(msgspec.Struct):
    """A task instance with its attempts, oldest first."""

    task_instance: TaskShape
    attempts: list[AttemptShape]


class ClearBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which task instances are to run again: ids (every index of a mapped task), or pairs of id and map index.

    `keep_state` null does as the tasks and `discard_on_clear` say; `forget` are keys that go even so. `force` stops and
    clears also indexes that run and were not named; `downstream` clears everything below too.
    """

    tasks: Annotated[list[str | tuple[str, int]], msgspec.Meta(min_length=1)]
    keep_state: bool | None = None
    downstream: bool = False
    force: bool = False
    dry_run: bool = False
    forget: list[Name] = []


class MarkBody(msgspec.Struct, forbid_unknown_fields=True):
    """The state a task instance is to have; an attempt that runs is fenced."""

    state: Literal["success", "failed", "cancelled"]


class TouchedShape(msgspec.Struct):
    """The task instances that were changed (or, dry, would be), and the run, as they are now."""

    run: RunShape
    task_instances: list[TaskShape]


class Explanation(msgspec.Struct, kw_only=True):
    """What the next attempt of a task instance would do, as far as what is stored tells.

    The code is not asked: `outlast tasks explain` also loads the DAG file and asks the job's system.
    """

    address: str
    state: str
    attempt: int
    next: str
    would: str
    because: str | None
    failures: int
    restarts_left: int
    keys: list[str]
    error: str | None


# --- Assets, audit, import -----------------------------------------------------------------------------------


class AssetShape(msgspec.Struct):
    """An asset that has, or had, state: its id here, its names, its revision, live entries and bytes."""

    id: int
    name: str | None
    uri: str | None
    revision: int
    entries: int
    bytes: int
    updated_at: datetime | None


class AssetsPage(msgspec.Struct):
    """A page of assets, by id; `after` is where the next one begins, null at the end."""

    assets: list[AssetShape]
    after: int | None


class AuditShape(msgspec.Struct):
    """One change by a person; before and after are JSON, or a digest where the key is secret or the value long."""

    id: int
    at: datetime
    who: str
    action: str
    place: str
    key: str | None
    before: Any
    after: Any


class AuditPage(msgspec.Struct):
    """A page of changes, newest first; `before` is where the next one begins, null at the end."""

    changes: list[AuditShape]
    before: int | None


class ImportShape(msgspec.Struct):
    """What an import wrote: entries, and in how many scopes; `expired` were left out because their time has come."""

    entries: int
    scopes: int
    expired: int
