"""What the runner asks a backend: runs, task instances, attempts and their results.

Truth about attempts lives in the store: an attempt is claimed with one compare-and-set (`Begin`), renewed,
and fenced once a newer one exists. Durations are seconds, moments microseconds since the epoch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .deferral_requests import Deferral
from .requests import Asked, Fence
from .values import AssetScope, TaskScope, Writer

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


class TaskSpec(Asked, frozen=True):
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
    that was deferred; `item_digest` is of the item a mapped instance is for. `aftermath` is how often what is due after
    its last attempt was tried (cancel its job, call its callback), None: nothing is due. `cancel_due`: its job ran out
    of time and has still to be cancelled, whatever else is due.
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
    aftermath: int | None = None
    cancel_due: bool = False


class AttemptRow(msgspec.Struct, frozen=True):
    """One attempt of a task instance: how it went, when, where, and why it ended. `state` is "running" until then."""

    number: int
    state: str
    started_at: int
    ended_at: int | None
    supervisor: ProcessRef | None
    error: str | None


# --- Runs ------------------------------------------------------------------------------------------------


class StartRun(Asked, frozen=True, tag="start_run"):
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


class HoldRun(Asked, frozen=True, tag="hold_run"):
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


class ReleaseRun(Asked, frozen=True, tag="release_run"):
    """End the hold: the run is then paused, or has ended as success, failed or cancelled."""

    dag_id: str
    run_id: str
    holder: ProcessRef
    state: RunState


class GetRun(Asked, frozen=True, tag="get_run"):
    """Ask for one run with its task instances (`task_id`: only that task's); NotFound if there is none."""

    dag_id: str
    run_id: str
    task_id: str | None = None


class RunDetail(msgspec.Struct, frozen=True, tag="run_detail"):
    run: RunRow
    tasks: tuple[TaskRow, ...]


class ListRuns(Asked, frozen=True, tag="list_runs"):
    """Page through runs, newest first, below the id `before`; `among`: of these DAGs; `total`: say how many there are.

    `due`: with something due after an attempt that has been tried less often than that.
    """

    dag_id: str | None = None
    states: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100
    offset: int = 0
    among: tuple[str, ...] = ()
    total: bool = False
    due: int | None = None


class RunPage(msgspec.Struct, frozen=True, tag="run_page"):
    """Runs with the number of their task instances by state, newest first."""

    runs: tuple[tuple[RunRow, dict[str, int]], ...]
    before: int | None
    total: int | None = None


class ListDags(Asked, frozen=True, tag="list_dags"):
    """Page through DAGs that have runs or state, by id."""

    after: str = ""
    limit: int = 1000


class DagRow(msgspec.Struct, frozen=True):
    """A DAG's id, how many runs of it there are, and of the newest when it was made and its file."""

    dag_id: str
    runs: int
    newest: int | None
    file: str = ""


class DagPage(msgspec.Struct, frozen=True, tag="dag_page"):
    """One page; `after` is where the next one begins, None at the end."""

    dags: tuple[DagRow, ...]
    after: str | None


class DeleteRun(Asked, frozen=True, tag="delete_run"):
    """Remove a run with its state, history and results; refused (Conflict) while it is held and not `force`d.

    `instead_of` is a holder known to be dead: its lease does not count.
    """

    dag_id: str
    run_id: str
    writer: Writer
    force: bool = False
    instead_of: ProcessRef | None = None


class PruneRuns(Asked, frozen=True, tag="prune_runs"):
    """Remove at most `limit` runs that ended before a moment; `dry_run` only lists them.

    As many events of assets from before that moment go too, if every DAG that waits for assets is past them and there
    is no run that made them or was started for them. With a `writer` it is a person's request, and audited.
    """

    ended_before: int
    limit: int
    dry_run: bool = False
    writer: Writer | None = None


class Pruned(msgspec.Struct, frozen=True, tag="pruned"):
    runs: tuple[tuple[str, str], ...]
    more: bool


# --- Attempts --------------------------------------------------------------------------------------------


class Begin(Asked, frozen=True, tag="begin"):
    """Claim the next attempt of a task instance that is waiting or due; Conflict if its newest is not `after`.

    Removes the results of the attempts before. One that was deferred or rescheduled goes on under the same
    number, its results kept. `lease` is in seconds. `assets` are its inlets and outlets, as in Open; `outlets` are
    (name, URI) of those its own token may report as updated, None: any.
    """

    scope: TaskScope
    after: int
    supervisor: ProcessRef
    lease: float
    assets: tuple[AssetScope, ...] = ()
    outlets: tuple[tuple[str | None, str | None], ...] | None = ()


class Renew(Asked, frozen=True, tag="renew"):
    """Keep a claim, a lapsed one too while no newer attempt exists; StaleAttempt otherwise. Records `child`."""

    fence: Fence
    lease: float
    child: ProcessRef | None = None


class NewEvent(Asked, frozen=True):
    """An asset that a task (or a trigger) has updated; `extra` is JSON text."""

    name: str | None
    uri: str | None
    extra: str = "{}"


class Report(Asked, frozen=True, tag="report"):
    """Record how an attempt ended; repeated for the same attempt it changes nothing.

    `failed` counts against `retries` and `crashed` against `crash_retries`; while one is left the task instance is up
    for retry at `retry_at`. `paused` counts against nothing. `result` is JSON text, `clear_state` removes the entries
    in the same transaction as the success (contract 6.3), `events` are of the assets it has updated. `deferred` waits
    for `deferral`, `rescheduled` for `retry_at`; neither ends the attempt, nor does it go on before `retry_at`. A
    failure for good leaves an aftermath in the same transaction, and so does `cancel_due`: out of time, job running.
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
    cancel_due: bool = False


class Item(Asked, frozen=True):
    """What one mapped instance is for: its key where state follows the item, and a digest of its value."""

    digest: str
    key: str | None = None


class ExpandTask(Asked, frozen=True, tag="expand_task"):
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


class Resolve(Asked, frozen=True, tag="resolve"):
    """Give a task instance that has not begun its end: skipped or upstream_failed."""

    scope: TaskScope
    state: Literal["skipped", "upstream_failed", "failed"]
    error: str | None = None


class NoteAftermath(Asked, frozen=True, tag="note_aftermath"):
    """Say that what is due after an attempt that is over is being tried (which counts), or with `done` is not due.

    Nothing happens when it is not due any more, or a newer attempt has begun. `assets` are as in Open.
    """

    scope: TaskScope
    attempt: int
    done: bool = False
    assets: tuple[AssetScope, ...] = ()


class ListAttempts(Asked, frozen=True, tag="list_attempts"):
    """Ask for every attempt of a task instance, oldest first; NotFound if there is no such instance."""

    scope: TaskScope


class Attempts(msgspec.Struct, frozen=True, tag="attempts"):
    task: TaskRow
    attempts: tuple[AttemptRow, ...]


# --- Results -----------------------------------------------------------------------------------------------


class PushResult(Asked, frozen=True, tag="push_result"):
    """Keep a named result of the running attempt; `text` is JSON."""

    fence: Fence
    name: str
    text: str


class PullResults(Asked, frozen=True, tag="pull_results"):
    """Ask for results of task instances of one run by task id, name and (None: any) map index."""

    dag_id: str
    run_id: str
    task_ids: tuple[str, ...]
    name: str
    map_indexes: tuple[int, ...] | None = None


class Results(msgspec.Struct, frozen=True, tag="results"):
    """(task id, map index, JSON text), ordered by task id and map index."""

    rows: tuple[tuple[str, int, str], ...]
