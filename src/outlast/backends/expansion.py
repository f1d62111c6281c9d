"""Mapped tasks as portable SQL: a row that stands for instances not known yet, and those that take its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import DagError
from ..requests import LIBRARY
from ..run_requests import Expanded, ExpandTask, Item, RunRow, TaskRow, TaskSpec
from ..values import TaskScope, address
from .execute import Overtaken
from .runs import RunsSQL

__all__ = ["ExpansionSQL"]


class ExpansionSQL:
    """Answers through the connection of a `RunsSQL`."""

    def __init__(self, runs: RunsSQL) -> None:
        self.runs, self.execute = runs, runs.execute

    def expand(self, request: ExpandTask, now: int) -> Expanded:
        """Put instances in the place of a mapped row; the first expansion stays (contract 6.5)."""
        run = self.runs.run(request.dag_id, request.run_id)
        rows = self.runs.tasks("run = ? and task_id = ? order by map_index", (run.id, request.task_id))
        placeholder = next((row for row in rows if row.mapped), None)
        if placeholder is None or placeholder.state != "waiting":
            return Expanded(tuple(row for row in rows if not row.mapped), ())
        if not request.items:
            ended = "update task set state = 'skipped', ended_at = ? where scope_id = ?"
            self.execute(ended, (now, placeholder.scope_id))
            return Expanded((), ())
        return self._fill(run, placeholder, request, now)

    def _fill(self, run: RunRow, placeholder: TaskRow, request: ExpandTask, now: int) -> Expanded:
        _refuse_twins(request)
        spec = self._spec(placeholder, mapped=False)
        scopes = [
            TaskScope(request.dag_id, request.run_id, request.task_id, index, item.key)
            for index, item in enumerate(request.items)
        ]
        self._lock(scopes, now)
        self.execute("delete from task where scope_id = ?", (placeholder.scope_id,))
        moved = self._moved(request)
        self.runs.state.feed.gone(moved, now)
        self._unplace(request)
        changed = [
            scope.map_index
            for scope, item in zip(scopes, request.items, strict=True)
            if self._add(run, scope, item, now, spec)
        ]
        for scope_id in moved:
            self.runs.state.feed.announce(scope_id, now)
        rows = self.runs.tasks("run = ? and task_id = ? order by map_index", (run.id, request.task_id))
        return Expanded(tuple(rows), tuple(changed))

    def _lock(self, scopes: Sequence[TaskScope], now: int) -> None:
        """Lock every scope the task has or is to have, in the one order."""
        self.runs.state.make_scopes(scopes, now)
        place = (scopes[0].dag_id, scopes[0].run_id, scopes[0].task_id)
        rows = self.execute("select digest, id from scope where dag_id = ? and run_id = ? and task_id = ?", place)
        locked = self.runs.state.lock_ids([scope_id for _, scope_id in rows])
        there = {bytes(digest) for digest, scope_id in rows if scope_id in locked}
        if not there.issuperset(map(address, scopes)):
            raise Overtaken

    def _moved(self, request: ExpandTask) -> list[int]:
        """Return the scopes that follow an item which has another position now, or none; those without state not."""
        rows = self.execute(
            "select id, item, map_index from scope where dag_id = ? and run_id = ? and task_id = ?"
            " and item is not null and revision > 0 order by id",
            (request.dag_id, request.run_id, request.task_id),
        )
        places = {item.key: index for index, item in enumerate(request.items)}
        return [scope_id for scope_id, item, index in rows if places.get(item) != index]

    def _unplace(self, request: ExpandTask) -> None:
        """Take their positions from scopes that follow an item: those still in the list get theirs anew."""
        self.execute(
            "update scope set map_index = null where dag_id = ? and run_id = ? and task_id = ? and item is not null",
            (request.dag_id, request.run_id, request.task_id),
        )

    def _add(self, run: RunRow, scope: TaskScope, item: Item, now: int, spec: TaskSpec) -> bool:
        """Add one instance; say whether its position had another item before, whose state is removed."""
        scope_id = self.runs.add_task(run.id, scope, spec, now)
        before = self.execute("select item_digest from scope where id = ?", (scope_id,))[0][0]
        self.execute(
            "update scope set map_index = ?, item_digest = ? where id = ?", (scope.map_index, item.digest, scope_id)
        )
        changed = scope.item is None and before is not None and before != item.digest
        if changed:
            self.runs.clear_state(scope, LIBRARY, now)
        return changed

    def collapse(self, run: RunRow, task_id: str, now: int) -> None:
        """Forget which instances a task was mapped to; their scopes, with state and attempts, stay."""
        rows = self.runs.tasks(f"run = ? and task_id = ? order by {self.runs.order}", (run.id, task_id))
        spec = self._spec(rows[0], mapped=True)
        for row in rows:
            self.execute(
                "update scope set reserved_attempt ="
                " (select reserved from task where scope_id = scope.id) where id = ?",
                (row.scope_id,),
            )
            self.execute("delete from task where scope_id = ?", (row.scope_id,))
        self.runs.add_task(run.id, TaskScope(run.dag_id, run.run_id, task_id), spec, now)

    def _spec(self, row: TaskRow, *, mapped: bool) -> TaskSpec:
        clear, discard = self.runs.flags(row.scope_id)
        return TaskSpec(row.scope.task_id, -1, row.upstream, mapped, clear, discard)


def mapped_below(tasks: Iterable[TaskRow], cleared: Iterable[TaskRow]) -> list[str]:
    """Return the ids of cleared mapped tasks whose items come from a task that is cleared as well."""
    again = {task.scope.task_id for task in cleared}
    indexed = {task.scope.task_id: task for task in cleared if task.scope.map_index >= 0}
    whole = {task_id: all(row in cleared for row in tasks if row.scope.task_id == task_id) for task_id in indexed}
    return [task_id for task_id, task in indexed.items() if whole[task_id] and again.intersection(task.upstream)]


def _refuse_twins(request: ExpandTask) -> None:
    seen: set[str] = set()
    for item in request.items:
        if item.key in seen:
            raise DagError(f"map_key of {request.task_id} gives {item.key!r} for two items; make the keys differ")
        if item.key is not None:
            seen.add(item.key)
