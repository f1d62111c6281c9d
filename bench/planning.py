"""What the planner takes to look at a large run: 10,000 task instances, in graphs of several shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from measure import Contender, Line, Setting, Target, in_turn, spread

from outlast import TaskScope
from outlast.run_requests import TaskRow
from outlast.runner.planner import Node, next_actions

TASKS = 10_000
_NOW = 1_000_000


class Shape(NamedTuple):
    """A run in the middle of its work: what it is called, its graph, and its task instances as stored."""

    what: str
    graph: dict[str, Node]
    rows: list[TaskRow]


def planning(setting: Setting) -> list[Line]:
    """Measure one look at each run, beside one bare pass over the same rows in the same round."""
    shapes = [_wide(), _chain(), _mapped(), _layers()]
    sides = [_looking(shape) for shape in shapes] + [_passing_over(shape.rows) for shape in shapes]
    rounds = in_turn(sides, 1, 8 if setting.quick else 30)
    lines = []
    for place, shape in enumerate(shapes):
        what = f"planner, {TASKS:,} tasks, {shape.what}"
        looks = spread(sides[place].cpu / 1000 for sides in rounds)
        against = spread(sides[place].cpu / sides[place + len(shapes)].cpu for sides in rounds)
        lines += [Line(what, looks, "ms", Target("≤", 20)), Line(f"{what}: against a bare pass", against, "×")]
    return lines


# --- Shapes ---------------------------------------------------------------------------------------------------


def _wide() -> Shape:
    """Half of them have ended; the others could all start."""
    return Shape("side by side", *_run({f"task-{number}": () for number in range(TASKS)}))


def _chain() -> Shape:
    """Each waits for the one before; half of them have ended."""
    names = [f"task-{number}" for number in range(TASKS)]
    return Shape("in a chain", *_run(dict(zip(names, [(), *((name,) for name in names)], strict=False))))


def _mapped() -> Shape:
    """One task of so many instances, between one that has ended and one that waits for them all."""
    graph = [Node("first"), Node("mapped", ("first",)), Node("last", ("mapped",))]
    rows = [_row("mapped", "success" if index < TASKS // 2 else "waiting", index) for index in range(TASKS)]
    return Shape("of one mapped task", _by_id(graph), [_row("first", "success"), *rows, _row("last", "waiting")])


def _layers() -> Shape:
    """A hundred layers of a hundred, each task waiting for four of the layer before; half of them have ended."""
    above = {(layer, place): [(layer - 1, (place + step) % 100) for step in range(4)] for layer, place in _places()}
    names = {place: f"task-{place[0]}-{place[1]}" for place in above}
    return Shape(
        "in 100 layers",
        *_run({names[place]: tuple(names[one] for one in others if one in names) for place, others in above.items()}),
    )


def _places() -> Iterable[tuple[int, int]]:
    return ((layer, place) for layer in range(100) for place in range(100))


def _run(upstream: dict[str, tuple[str, ...]]) -> tuple[dict[str, Node], list[TaskRow]]:
    """Return a graph, given in topological order, and its instances, the first half of which have ended."""
    rows = [_row(name, "success" if place < TASKS // 2 else "waiting") for place, name in enumerate(upstream)]
    return _by_id(Node(name, above) for name, above in upstream.items()), rows


def _by_id(nodes: Iterable[Node]) -> dict[str, Node]:
    return {node.task_id: node for node in nodes}


def _row(task_id: str, state: str, index: int = -1) -> TaskRow:
    return TaskRow(TaskScope("nightly", "2026-11-29", task_id, index), 1, state)  # type: ignore[arg-type]


# --- Contenders -----------------------------------------------------------------------------------------------


def _looking(shape: Shape) -> Contender:
    def work(calls: int) -> None:
        for _ in range(calls):
            plan = next_actions(shape.graph, shape.rows, _NOW, slots=8)
            if not plan.start:
                raise SystemExit(f"the planner starts nothing of a run {shape.what}")

    return work


def _passing_over(rows: list[TaskRow]) -> Contender:
    """Look at the state and the task of every row, which is the least a planner must do."""

    def work(calls: int) -> None:
        for _ in range(calls):
            seen: dict[str, str] = {}
            for row in rows:
                seen[row.scope.task_id] = row.state

    return work
