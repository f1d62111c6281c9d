"""Which tasks of a run are above or below others, at any distance, by the upstream tasks that each one names."""

from __future__ import annotations

from collections.abc import Iterable

from .run_requests import TaskRow

__all__ = ["above", "below"]


def above(tasks: Iterable[TaskRow], task_ids: Iterable[str]) -> set[str]:
    """Return the ids of all tasks upstream of some, at any distance."""
    return _reached({task.scope.task_id: set(task.upstream) for task in tasks}, task_ids)


def below(tasks: Iterable[TaskRow], task_ids: Iterable[str]) -> set[str]:
    """Return the ids of all tasks downstream of some, at any distance."""
    direct: dict[str, set[str]] = {}
    for task in tasks:
        for upstream in task.upstream:
            direct.setdefault(upstream, set()).add(task.scope.task_id)
    return _reached(direct, task_ids)


def _reached(steps: dict[str, set[str]], start: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        fresh = steps.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found
