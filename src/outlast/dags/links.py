"""Which task waits for which: `>>`, `<<`, set_upstream, set_downstream and chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DagError

if TYPE_CHECKING:
    from .operators import BaseOperator

__all__ = ["Linked", "chain", "link"]

T = TypeVar("T")


class Linked:
    """What can stand at an end of `>>`: a task, or the result of one. `a >> b` makes b wait for a."""

    __slots__ = ()

    def linked(self) -> BaseOperator:
        """Return the task meant."""
        raise NotImplementedError

    def set_upstream(self, other: Linked | Sequence[Any]) -> None:
        """Make this task wait for another, or for each of a list."""
        link(other, self)

    def set_downstream(self, other: Linked | Sequence[Any]) -> None:
        """Make another task, or each of a list, wait for this one."""
        link(self, other)

    def __rshift__(self, other: T) -> T:
        link(self, other)
        return other

    def __lshift__(self, other: T) -> T:
        link(other, self)
        return other

    def __rrshift__(self, other: Any) -> Linked:
        link(other, self)
        return self

    def __rlshift__(self, other: Any) -> Linked:
        link(self, other)
        return self


def chain(*steps: Linked | Sequence[Any]) -> None:
    """Make each step wait for the one before it: `chain(a, [b, c], d)`.

    Two lists in a row are joined one to one and must be of the same length; anything else is DagError.
    """
    for before, after in pairwise(steps):
        if not isinstance(before, list | tuple) or not isinstance(after, list | tuple):
            link(before, after)
        elif len(before) != len(after):
            raise DagError(f"chain() cannot join {len(before)} tasks to {len(after)} one to one; put a task in between")
        else:
            for one, other in zip(before, after, strict=True):
                link(one, other)


def link(above: Any, below: Any) -> None:
    """Make every task of `below` wait for every task of `above`; DagError for what is no task."""
    for upstream in _tasks(above):
        for downstream in _tasks(below):
            _join(upstream, downstream)


def _tasks(side: Any) -> list[BaseOperator]:
    if isinstance(side, Linked):
        return [side.linked()]
    if isinstance(side, list | tuple):
        return [task for item in side for task in _tasks(item)]
    raise DagError(f"{side!r} is no task, so nothing can wait for it; call a @task function, or make an operator")


def _join(upstream: BaseOperator, downstream: BaseOperator) -> None:
    dag = upstream.dag or downstream.dag
    if dag is None:
        raise DagError(f"{upstream!r} and {downstream!r} belong to no DAG yet; make one of them inside `with DAG(...)`")
    for task in (upstream, downstream):
        if task.dag is not dag:
            dag.add_task(task)
    if upstream is downstream:
        raise DagError(f"task {upstream.task_id!r} would wait for itself; remove that dependency")
    upstream._downstream[downstream.task_id] = downstream
    downstream._upstream[upstream.task_id] = upstream
