"""What people ask a backend to do to runs and task instances, and the record that is kept of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from .errors import Conflict
from .requests import Asked
from .run_requests import RunRow, TaskRow
from .values import TaskScope, Writer


class CancelRun(Asked, frozen=True, tag="cancel_run"):
    """Cancel every task instance that has not ended, fencing the running ones, and the run itself."""

    dag_id: str
    run_id: str
    writer: Writer


class ClearTasks(Asked, frozen=True, tag="clear_tasks"):
    """Have task instances run again: counters back to 0, results gone, fence raised; `discard` removes their entries.

    With None each task says whether it does, and `default_discard` for those that do not.

    `tasks` are (task id, map index), None for every index of the task; that is refused (Conflict) while one runs,
    unless `force`d. Task instances below them that ended as upstream_failed or skipped are cleared too; all below
    with `downstream`. `forget` are keys that the named ones lose in the same step, where they are not discarded whole.
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
    forget: tuple[str, ...] = ()


def refuse_running(chosen: Iterable[TaskRow], named: Collection[tuple[str, int | None]]) -> None:
    """Raise Conflict if an instance of a mapped task is to be cleared that runs and was not named by its index."""
    running = [task for task in chosen if task.state == "running" and task.scope.map_index >= 0]
    unnamed = [task for task in running if (task.scope.task_id, task.scope.map_index) not in named]
    others = f", and {len(unnamed) - 1} more" if len(unnamed) > 1 else ""
    if unnamed:
        raise Conflict(
            f"the mapped task instance {unnamed[0].scope} is running{others}; "
            "wait for them, name the indexes meant, or use force to fence and stop them first"
        )


class MarkTask(Asked, frozen=True, tag="mark_task"):
    """Set a task instance's state by hand; the fence is raised. `clear_state` as in Report.

    A task instance that has ended can be marked success or failed, but not cancelled (Conflict, unless its job is still
    due to be: it stays as it is then); marked what it is
    already, nothing is changed. A run that has
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


class ListAudit(Asked, frozen=True, tag="list_audit"):
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
