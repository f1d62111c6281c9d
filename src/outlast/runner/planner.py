"""Decide what a run does next: what to start, what cannot run any more, what is lost, whether it is over. Pure.

A task instance waits until every task above it has ended, and then, by its trigger rule,

    all_success     runs; is upstream_failed if one above failed, else skipped if one was skipped
    none_failed     runs, also after skipped ones; is upstream_failed if one above failed
    all_done        runs

where failed, upstream_failed and cancelled count as failed. A failure above is passed on at once; a skip
only when all above have ended, so that how a run ends does not depend on which task was quicker.

An attempt that was deferred or rescheduled has begun, so it goes on when it may, whatever becomes of the tasks
above it meanwhile. A mapped row stands for instances not known yet: it is expanded where another would start.

As in Airflow a run ends as its leaves do (the tasks nothing waits for): failed if one of them failed, else success.
So a failure is forgiven where an `all_done` task below it succeeds, unless another leaf fails with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from ..run_requests import TaskRow

if TYPE_CHECKING:
    from ..dags.graph import DAG
    from ..dags.operators import BaseOperator

__all__ = ["Node", "Plan", "graph_of", "next_actions"]

Verdict: TypeAlias = Literal["start", "skipped", "upstream_failed"]

# What the instances of one task are in, as bits, so that many tasks above are one number.
_WAITING, _RUNNING, _GOOD, _SKIPPED, _BAD = 1, 2, 4, 8, 16
_OPEN = _WAITING | _RUNNING
_BITS = {
    "waiting": _WAITING,
    "up_for_retry": _WAITING,
    "running": _RUNNING,
    "deferred": _RUNNING,
    "scheduled": _RUNNING,
    "up_for_reschedule": _RUNNING,
    "success": _GOOD,
    "skipped": _SKIPPED,
    "failed": _BAD,
    "upstream_failed": _BAD,
    "cancelled": _BAD,
}


class Node(msgspec.Struct, frozen=True):
    """A task of the DAG: what it waits for, by which rule, and how many of its instances may run at a time."""

    task_id: str
    upstream: tuple[str, ...] = ()
    trigger_rule: str = "all_success"
    most: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """What to do now. `resolve` are task instances that will not run, with the state they end in.

    `lost` are running ones whose lease has lapsed, `expand` mapped rows to put instances in the place of, and
    `expired` deferred ones whose trigger has not fired by its deadline. `ended` is how the run has ended, once
    every task instance has. `wake_at` is when to ask again if nothing else happens: something becomes due, or
    a lease lapses.
    """

    start: tuple[TaskRow, ...] = ()
    resolve: tuple[tuple[TaskRow, Literal["skipped", "upstream_failed"]], ...] = ()
    lost: tuple[TaskRow, ...] = ()
    expand: tuple[TaskRow, ...] = ()
    expired: tuple[TaskRow, ...] = ()
    ended: Literal["success", "failed"] | None = None
    wake_at: int | None = None


def graph_of(dag: DAG) -> dict[str, Node]:
    """Return a DAG's tasks in topological order."""
    tasks = (dag.tasks[task_id] for task_id in dag.topological())
    return {task.task_id: Node(task.task_id, task.upstream_task_ids, task.trigger_rule, _most(task)) for task in tasks}


def _most(task: BaseOperator) -> int | None:
    limits = (task.max_active_tis_per_dag, task.max_active_tis_per_dagrun)
    return min((limit for limit in limits if limit is not None), default=None)


def next_actions(graph: Mapping[str, Node], tasks: Sequence[TaskRow], now: int, *, slots: int) -> Plan:
    """Return what to do, given all task instances of a run as stored.

    `graph` is in topological order, and so is what is started: at most `slots` less those running. A task
    without instances stands for the tasks above it; an instance without a task is left alone.
    """
    states, waiting, begun = _survey(tasks)
    if len(states) < len(graph) or any(task_id not in states for task_id in graph):
        _see_through(graph, states)
    running = [row for row in begun if row.state == "running"]
    deferred = [row for row in begun if row.state == "deferred"]
    start = [row for row in begun if row.state in ("scheduled", "up_for_reschedule")]
    expand: list[TaskRow] = []
    resolve: list[tuple[TaskRow, Literal["skipped", "upstream_failed"]]] = []
    is_open = bool(begun) or any(task_id in graph for task_id in waiting)
    for node in graph.values() if is_open else ():
        rows = waiting.get(node.task_id)
        verdict = _judge(node, _together(states, node.upstream)) if rows else None
        if rows is None or verdict is None:
            continue
        if verdict == "start":
            expand += [row for row in rows if row.mapped]
            start += [row for row in rows if not row.mapped]
        else:
            resolve += [(row, verdict) for row in rows]
            states[node.task_id] = states[node.task_id] & ~_WAITING | _BITS[verdict]
    due = [row for row in start if row.due_at is None or row.due_at <= now]
    later = [row.due_at for row in start if row.due_at is not None and row.due_at > now]
    later += [row.lease_until + 1 for row in running if row.lease_until >= now]
    later += [row.deadline for row in deferred if row.deadline is not None and row.deadline > now]
    return Plan(
        tuple(_allowed(graph, due, running, slots)),
        tuple(resolve),
        tuple(row for row in running if row.lease_until < now),
        tuple(expand),
        tuple(row for row in deferred if row.deadline is not None and row.deadline <= now),
        None if is_open else _outcome(graph, states),
        min(later, default=None),
    )


def _allowed(
    graph: Mapping[str, Node], due: Iterable[TaskRow], running: Sequence[TaskRow], slots: int
) -> Iterable[TaskRow]:
    """Yield what may start now: at most `slots` less those running, and of each task at most as many as it allows."""
    free = slots - len(running)
    counts = Counter(row.scope.task_id for row in running)
    for row in due if free > 0 else ():
        node = graph.get(row.scope.task_id)
        if node is not None and node.most is not None and counts[node.task_id] >= node.most:
            continue
        yield row
        counts[row.scope.task_id] += 1
        free -= 1
        if free <= 0:
            return


def _survey(tasks: Iterable[TaskRow]) -> tuple[dict[str, int], dict[str, list[TaskRow]], list[TaskRow]]:
    """Return the states of each task's instances, those that wait, by task and index, and those that have begun."""
    states: dict[str, int] = {}
    waiting: dict[str, list[TaskRow]] = {}
    begun: list[TaskRow] = []
    for row in tasks:
        task_id, bit = row.scope.task_id, _BITS[row.state]
        states[task_id] = states.get(task_id, 0) | bit
        if bit == _WAITING:
            waiting.setdefault(task_id, []).append(row)
        elif bit == _RUNNING:
            begun.append(row)
    for rows in waiting.values():
        if len(rows) > 1:
            rows.sort(key=_map_index)
    return states, waiting, begun


def _see_through(graph: Mapping[str, Node], states: dict[str, int]) -> None:
    """Let a task without instances stand for the tasks above it."""
    for node in graph.values():
        if node.task_id not in states:
            states[node.task_id] = _together(states, node.upstream)


def _map_index(row: TaskRow) -> int:
    return row.scope.map_index


def _together(states: Mapping[str, int], task_ids: Iterable[str]) -> int:
    seen = 0
    for task_id in task_ids:
        seen |= states.get(task_id, 0)
    return seen


def _judge(node: Node, above: int) -> Verdict | None:
    """Return what becomes of a task, given the states above it; None while that is open."""
    if above & _BAD and node.trigger_rule != "all_done":
        return "upstream_failed"
    if above & _OPEN:
        return None
    if above & _SKIPPED and node.trigger_rule == "all_success":
        return "skipped"
    return "start"


def _outcome(graph: Mapping[str, Node], states: Mapping[str, int]) -> Literal["success", "failed"]:
    inner = {task_id for node in graph.values() for task_id in node.upstream}
    leaves = [task_id for task_id in graph if task_id not in inner]
    return "failed" if _together(states, leaves) & _BAD else "success"
