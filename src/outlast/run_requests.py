"""What the runner and the people watching it ask a backend: runs, task instances, attempts, results, audit.

Truth about attempts lives in the store: an attempt is claimed with one compare-and-set (`Begin`), renewed,
and fenced once a newer one exists. Durations are seconds, moments microseconds since the epoch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .requests import Fence
from .values import TaskScope, Writer

RunState: TypeAlias = Literal["running", "paused", "success", "failed", "cancelled"]
TaskStateName: TypeAlias = Literal[
    "waiting",
    "running",
    "deferred",
    "scheduled",
    "up_for_reschedule",
    "up_for_retry",
    "success",
    "failed",
    "skipped",
    "upstream_failed",
    "cancelled",
]
Outcome: TypeAlias = Literal["success", "failed", "crashed", "paused", "skipped", "deferred", "rescheduled"]

#: States a task instance does not leave by itself.
ENDED: frozenset[str] = frozenset({"success", "failed", "skipped", "upstream_failed", "cancelled"})


class ProcessRef(msgspec.Struct, frozen=True, array_like=True):
    """A process that can be told from a later one with the same pid: host, pid, start time as the system gives it."""

    host: str
    pid: int
    started: str


class RunRow(msgspec.Struct, frozen=True):
    """One run as stored. `params` is JSON text, `file` the DAG file's path with the digest of its content."""

    id: int
    dag_id: str
    run_id: str
    state: RunState
    params: str
    file: str
    digest: str
    logical_date: int
    created_at: int
    started_at: int | None = None
    ended_at: int | None = None
    holder: ProcessRef | None = None
    lease_until: int = 0
    events: tuple[int, ...] = ()


class TaskSpec(msgspec.Struct, frozen=True):
    """A task instance of a new run, and what it waits for; a `mapped` one stands for instances to be known later.

    The flags are as in the settings when None.
    """

    task_id: str
    map_index: int = -1
    upstream: tuple[str, ...] = ()
    mapped: bool = False
    clear_on_success: bool | None = None
    discard_on_clear: bool | None = None


class TaskRow(msgspec.Struct, frozen=True):
    """One task instance as stored. `attempt` is the newest one begun, 0 if none was; deaths are counted apart.

    A `mapped` row stands for instances that are not known yet. `next_method` is set where an attempt goes on
    that was deferred; `item_digest` is of the item a mapped instance is for.
    """

    scope: TaskScope
    scope_id: int
    state: TaskStateName
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    due_at: int | None = None
    lease_until: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    error: str | None = None
    supervisor: ProcessRef | None = None
    child: ProcessRef | None = None
    upstream: tuple[str, ...] = ()
    mapped: bool = False
    next_method: str | None = None
    deadline: int | None = None
    item_digest: str | None = None


class AttemptRow(msgspec.Struct, frozen=True):
    """One attempt of a task instance: how it went, when, where, and why it ended. `state` is "running" until then."""

    number: int
    state: str
    started_at: int
    ended_at: int | None
    supervisor: ProcessRef | None
    error: str | None


# --- Runs ------------------------------------------------------------------------------------------------


class StartRun(msgspec.Struct, frozen=True, tag="start_run"):
    """Create a run with its task instances, held by its runner; Conflict if that run id exists.

    `events` are the ids of the asset events it is started for. With `unless_unfinished` it is also a Conflict if
    the DAG has a run that has not ended.
    """

    dag_id: str
    run_id: str
    tasks: tuple[TaskSpec, ...]
    params: str
    file: str
    digest: str
    logical_date: int
    holder: ProcessRef
    lease: float
    events: tuple[int, ...] = ()
    unless_unfinished: bool = False


class HoldRun(msgspec.Struct, frozen=True, tag="hold_run"):
    """Take (or, by the same holder, renew) a run; refused with the present row while another's lease holds.

    `instead_of` takes it from a holder known to be dead. `digest` updates the file's digest when given.
    """

    dag_id: str
    run_id: str
    holder: ProcessRef
    lease: float
    instead_of: ProcessRef | None = None
    file: str | None = None
    digest: str | None = None


class Held(msgspec.Struct, frozen=True, tag="held"):
    """The run as it is now; `ok` says whether the asker holds it."""

    ok: bool
    run: RunRow


class ReleaseRun(msgspec.Struct, frozen=True, tag="release_run"):
    """End the hold: the run is then paused, or has ended as success, failed or cancelled."""

    dag_id: str
    run_id: str
    holder: ProcessRef
    state: RunState


class GetRun(msgspec.Struct, frozen=True, tag="get_run"):
    """Ask for one run with its task instances (`task_id`: only that task's); NotFound if there is none."""

    dag_id: str
    run_id: str
    task_id: str | None = None


class RunDetail(msgspec.Struct, frozen=True, tag="run_detail"):
    run: RunRow
    tasks: tuple[TaskRow, ...]


class ListRuns(msgspec.Struct, frozen=True, tag="list_runs"):
    """Page through runs, newest first; `before` is the id the page begins below."""

    dag_id: str | None = None
    states: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100


class RunPage(msgspec.Struct, frozen=True, tag="run_page"):
    """Runs with the number of their task instances by state, newest first."""

    runs: tuple[tuple[RunRow, dict[str, int]], ...]
    before: int | None


class CancelRun(msgspec.Struct, frozen=True, tag="cancel_run"):
    """Cancel every task instance that has not ended, fencing the running ones, and the run itself."""

    dag_id: str
    run_id: str
    writer: Writer


class DeleteRun(msgspec.Struct, frozen=True, tag="delete_run"):
    """Remove a run with its state, history and results; refused (Conflict) while it is held and not `force`d.

    `instead_of` is a holder known to be dead: its lease does not count.
    """

    dag_id: str
    run_id: str
    writer: Writer
    force: bool = False
    instead_of: ProcessRef | None = None


class PruneRuns(msgspec.Struct, frozen=True, tag="prune_runs"):
    """Remove at most `limit` runs that ended before a moment; `dry_run` only lists them.

    With a `writer` it is a person's request, and audited.
    """

    ended_before: int
    limit: int
    dry_run: bool = False
    writer: Writer | None = None


class Pruned(msgspec.Struct, frozen=True, tag="pruned"):
    runs: tuple[tuple[str, str], ...]
    more: bool


# --- Attempts --------------------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Claim the next attempt of a task instance that is waiting or due; Conflict if its newest is not `after`.

    Removes the results of the attempts before. One that was deferred or rescheduled goes on under the same
    number, its results kept. `lease` is in seconds.
    """

    scope: TaskScope
    after: int
    supervisor: ProcessRef
    lease: float


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """Keep a claim, a lapsed one too while no newer attempt exists; StaleAttempt otherwise. Records `child`."""

    fence: Fence
    lease: float
    child: ProcessRef | None = None


class Deferral(msgspec.Struct, frozen=True):
    """What a deferred attempt waits for, and how it goes on: texts are JSON, `timeout` is in seconds."""

    trigger_path: str
    trigger_kwargs: str
    next_method: str
    next_kwargs: str = "{}"
    timeout: float | None = None


class NewEvent(msgspec.Struct, frozen=True):
    """An asset that a task (or a trigger) has updated; `extra` is JSON text."""

    name: str | None
    uri: str | None
    extra: str = "{}"


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Record how an attempt ended; repeated for the same attempt it changes nothing.

    `failed` counts against `retries` and `crashed` against `crash_retries`; while one is left the task
    instance is up for retry at `retry_at`. `paused` counts against nothing. `result` is JSON text,
    `clear_state` removes the entries in the same transaction as the success (contract 6.3), `events` are of
    the assets it has updated. `deferred` waits for `deferral`, `rescheduled` for `retry_at`; neither ends the attempt.
    """

    fence: Fence
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    retries: int = 0
    crash_retries: int = 0
    retry_at: int = 0
    clear_state: bool = False
    deferral: Deferral | None = None
    events: tuple[NewEvent, ...] = ()


class GetDeferral(msgspec.Struct, frozen=True, tag="get_deferral"):
    """Ask, as the attempt that goes on, what it was deferred for and what came of it; StaleAttempt if it is over."""

    fence: Fence


class Resumption(msgspec.Struct, frozen=True, tag="resumption"):
    """`event` is JSON text: `{"event": …}`, `{"error": "…"}` or `{"timeout": true}`; None after a reschedule."""

    deferral: Deferral | None
    event: str | None


class ListDeferred(msgspec.Struct, frozen=True, tag="list_deferred"):
    """Ask for the deferred task instances of some runs (their ids)."""

    runs: tuple[int, ...]


class DeferredRow(msgspec.Struct, frozen=True):
    """A deferred task instance, and the trigger it waits for; `number` counts the deferrals of the task instance.

    `deadline` is in microseconds since the epoch.
    """

    scope: TaskScope
    scope_id: int
    attempt: int
    deferral: Deferral
    deadline: int | None
    number: int = 1


class DeferredRows(msgspec.Struct, frozen=True, tag="deferred_rows"):
    rows: tuple[DeferredRow, ...]


class Fire(msgspec.Struct, frozen=True, tag="fire"):
    """Let a deferred attempt go on, with JSON text as in Resumption; nothing happens when it waits no more.

    `number` is the deferral that is meant; None: the one there is.
    """

    scope_id: int
    attempt: int
    event: str
    number: int | None = None


class Item(msgspec.Struct, frozen=True):
    """What one mapped instance is for: its key where state follows the item, and a digest of its value."""

    digest: str
    key: str | None = None


class ExpandTask(msgspec.Struct, frozen=True, tag="expand_task"):
    """Put instances in the place of a mapped row, one an item in their order; done already, nothing happens.

    No items: the row is skipped. State at a position whose item has changed since is removed (contract 6.5).
    """

    dag_id: str
    run_id: str
    task_id: str
    items: tuple[Item, ...]


class Expanded(msgspec.Struct, frozen=True, tag="expanded"):
    """The instances there are now, and the positions that begin afresh because their item has changed."""

    tasks: tuple[TaskRow, ...]
    changed: tuple[int, ...]


class Resolve(msgspec.Struct, frozen=True, tag="resolve"):
    """Give a task instance that has not begun its end: skipped or upstream_failed."""

    scope: TaskScope
    state: Literal["skipped", "upstream_failed", "failed"]
    error: str | None = None


class ListAttempts(msgspec.Struct, frozen=True, tag="list_attempts"):
    """Ask for every attempt of a task instance, oldest first; NotFound if there is no such instance."""

    scope: TaskScope


class Attempts(msgspec.Struct, frozen=True, tag="attempts"):
    task: TaskRow
    attempts: tuple[AttemptRow, ...]


# --- What people do to task instances ----------------------------------------------------------------------


class ClearTasks(msgspec.Struct, frozen=True, tag="clear_tasks"):
    """Have task instances run again: counters back to 0, results gone, fence raised; `discard` removes their entries.

    With None each task says whether it does, and `default_discard` for those that do not.

    `tasks` are (task id, map index), None for every index of the task; that is refused (Conflict) while one runs,
    unless `force`d. Task instances below them that ended as upstream_failed or skipped are cleared too; all below
    with `downstream`.
    """

    dag_id: str
    run_id: str
    tasks: tuple[tuple[str, int | None], ...]
    writer: Writer
    discard: bool | None = None
    downstream: bool = False
    force: bool = False
    dry_run: bool = False
    default_discard: bool = False


class MarkTask(msgspec.Struct, frozen=True, tag="mark_task"):
    """Set a task instance's state by hand; the fence is raised. `clear_state` as in Report.

    A task instance that has ended can be marked success or failed, but not cancelled (Conflict). A run that has
    ended is paused by it when there is something to run again or its end has to be worked out anew.
    """

    scope: TaskScope
    state: Literal["success", "failed", "cancelled"]
    writer: Writer
    clear_state: bool = False


class Touched(msgspec.Struct, frozen=True, tag="touched"):
    """The task instances a person's request changed (or, dry, would), as they are now."""

    tasks: tuple[TaskRow, ...]
    run: RunRow


# --- Results and audit -------------------------------------------------------------------------------------


class PushResult(msgspec.Struct, frozen=True, tag="push_result"):
    """Keep a named result of the running attempt; `text` is JSON."""

    fence: Fence
    name: str
    text: str


class PullResults(msgspec.Struct, frozen=True, tag="pull_results"):
    """Ask for results of task instances of one run by task id, name and (None: any) map index."""

    dag_id: str
    run_id: str
    task_ids: tuple[str, ...]
    name: str
    map_indexes: tuple[int, ...] | None = None


class Results(msgspec.Struct, frozen=True, tag="results"):
    """(task id, map index, JSON text), ordered by task id and map index."""

    rows: tuple[tuple[str, int, str], ...]


class AddEvents(msgspec.Struct, frozen=True, tag="add_events"):
    """Record that assets were updated, by a trigger or a person."""

    events: tuple[NewEvent, ...]


class ListEvents(msgspec.Struct, frozen=True, tag="list_events"):
    """Page through events of assets after an id, oldest first."""

    after: int = 0
    limit: int = 1000


class EventRow(msgspec.Struct, frozen=True):
    """One event of an asset, and the task it came from; None for a trigger or a person."""

    id: int
    name: str | None
    uri: str | None
    at: int
    source: TaskScope | None
    extra: str


class Events(msgspec.Struct, frozen=True, tag="events"):
    """One page, with the id of the newest event there is."""

    rows: tuple[EventRow, ...]
    newest: int


class ConsumedUntil(msgspec.Struct, frozen=True, tag="consumed_until"):
    """Ask for the newest event that runs of a DAG were started for (answer: Events without rows).

    Asked for the first time, that is the newest there is: what was before is not for this DAG.
    """

    dag_id: str


class ListAudit(msgspec.Struct, frozen=True, tag="list_audit"):
    """Page through what people changed, newest first."""

    before: int | None = None
    limit: int = 100
    dag_id: str | None = None


class AuditRow(msgspec.Struct, frozen=True):
    """One change by a person: before and after are JSON text, or a digest where the key is secret."""

    id: int
    at: int
    who: str
    action: str
    place: str
    name: str | None
    before: str | None
    after: str | None
    dag_id: str | None = None


class AuditPage(msgspec.Struct, frozen=True, tag="audit_page"):
    """One page; `before` is the id the next one begins below, None at the end."""

    rows: tuple[AuditRow, ...]
    before: int | None = None
