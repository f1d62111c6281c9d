"""What was probably meant by the address of a task instance that leads nowhere."""

from __future__ import annotations

import difflib
import shlex

from ..backends import Backend
from ..errors import NotFound, Unauthorized
from ..run_requests import GetRun, RunDetail
from ..values import TaskScope
from .run_views import run_name

__all__ = ["has_instance", "meant", "run_of"]

#: Items named of a mapped task, at most.
_ITEMS = 8


def run_of(backend: Backend, scope: TaskScope) -> RunDetail | None:
    """Return the run a task instance would belong to; None where there is none, or it may not be seen."""
    try:
        detail: RunDetail = backend.send(GetRun(scope.dag_id, scope.run_id))
    except (NotFound, Unauthorized):
        return None
    return detail


def has_instance(detail: RunDetail, scope: TaskScope) -> bool:
    """Say whether a run has a task instance, by its position or by the key of its item."""
    of_task = [task.scope for task in detail.tasks if task.scope.task_id == scope.task_id]
    if scope.item is not None:
        return any(each.item == scope.item for each in of_task)
    return any(each.map_index == scope.map_index for each in of_task)


def meant(scope: TaskScope, detail: RunDetail) -> NotFound | None:
    """Return an error that names what was probably meant; None where nothing is like it."""
    of_task = [task.scope for task in detail.tasks if task.scope.task_id == scope.task_id]
    indexes = [each.map_index for each in of_task]
    items = [each.item for each in of_task if each.item is not None]
    if of_task and scope.item is not None:
        return _no_such_item(scope, items)
    if indexes == [-1]:
        return NotFound(f"{scope.task_id} is not mapped; its address is {str(scope).rpartition('/')[0]}")
    if of_task and scope.map_index < 0:
        by_key = f", or by its key: {scope} --item {shlex.quote(items[0])}" if items else ""
        return NotFound(
            f"{scope} is mapped; name one of its instances: {scope}/{min(indexes)} to /{max(indexes)}{by_key}"
        )
    if of_task:
        by_key = _by_key(scope, items)
        return NotFound(f"there is no {scope}; the task's instances are {min(indexes)} to {max(indexes)}{by_key}")
    names = {task.scope.task_id for task in detail.tasks}
    near = difflib.get_close_matches(scope.task_id, names, n=3)
    run = run_name(detail.run)
    hint = f"did you mean {' or '.join(near)}?" if near else f"`outlast tasks ls {run}` lists those it has"
    return NotFound(f"run {run} has no task {scope.task_id}; {hint}")


def _by_key(scope: TaskScope, items: list[str]) -> str:
    """Say how to mean an item whose key is a number; nothing where none has that key."""
    key = str(scope.map_index)
    return f". The item of that key: {TaskScope(scope.dag_id, scope.run_id, scope.task_id, -1, key)}" * (key in items)


def _no_such_item(scope: TaskScope, items: list[str]) -> NotFound:
    task = f"{scope.dag_id}/{scope.run_id}/{scope.task_id}"
    if not items:
        return NotFound(f"the instances of {task}, if it has any, have no keys: it has no `map_key`; leave --item out")
    has = ", ".join(items[:_ITEMS]) + (f" and {len(items) - _ITEMS} more" if len(items) > _ITEMS else "")
    keeps = shlex.join(["outlast", "state", "ls", task, "--item", scope.item or ""])
    return NotFound(f"{task} has no item {scope.item!r} now; it has {has}. What an item that was has stored: {keeps}")
