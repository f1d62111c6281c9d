"""The planner, position by position: given a graph, states and a moment, what happens next."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.dags.graph import DAG
from outlast.dags.task_functions import task
from outlast.run_requests import ENDED, TaskRow
from outlast.runner.planner import Node, Plan, graph_of, next_actions
from outlast.values import TaskScope

NOW = 1_000_000
LATER = NOW + 500
OPEN = ("waiting", "running", "up_for_retry")
STATES = (*OPEN, *sorted(ENDED))
RULES = ("all_success", "none_failed", "all_done")
FAILED = {"failed", "upstream_failed", "cancelled"}


def graph(*nodes: Node) -> dict[str, Node]:
    return {node.task_id: node for node in nodes}


def row(task_id: str, state: str = "waiting", map_index: int = -1, **known) -> TaskRow:
    if state == "running":
        known.setdefault("lease_until", LATER)
    return TaskRow(TaskScope("d", "r", task_id, map_index), 1, state, **known)


def plan(nodes: dict[str, Node], *rows: TaskRow, slots: int = 8) -> Plan:
    return next_actions(nodes, rows, NOW, slots=slots)


def started(plan: Plan) -> list[str]:
    return [row.scope.task_id for row in plan.start]


def resolved(plan: Plan) -> dict[str, str]:
    return {row.scope.task_id: state for row, state in plan.resolve}


LINE = graph(Node("a"), Node("b", ("a",)), Node("c", ("b",)))


# --- One task above --------------------------------------------------------------------------------------

ONE_ABOVE = {
    "all_success": dict.fromkeys(OPEN, None)
    | {"success": "start", "skipped": "skipped"}
    | dict.fromkeys(FAILED, "upstream_failed"),
    "none_failed": dict.fromkeys(OPEN, None)
    | {"success": "start", "skipped": "start"}
    | dict.fromkeys(FAILED, "upstream_failed"),
    "all_done": dict.fromkeys(OPEN, None) | dict.fromkeys(ENDED, "start"),
}


def becomes(found: Plan, task_id: str) -> str | None:
    return "start" if task_id in started(found) else resolved(found).get(task_id)


@pytest.mark.parametrize("mine", ["waiting", "up_for_retry"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("above", STATES)
def test_a_task_below_one_other(rule: str, above: str, mine: str) -> None:
    nodes = graph(Node("a"), Node("b", ("a",), rule))
    found = plan(nodes, row("a", above, due_at=LATER), row("b", mine))
    assert becomes(found, "b") == ONE_ABOVE[rule][above]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pair", list(itertools.product(STATES, STATES)))
def test_a_task_below_two_others(rule: str, pair: tuple[str, str]) -> None:
    nodes = graph(Node("a"), Node("b"), Node("c", ("a", "b"), rule))
    found = plan(nodes, row("a", pair[0], due_at=LATER), row("b", pair[1], due_at=LATER), row("c"))
    alone = {ONE_ABOVE[rule][state] for state in pair}
    expected = next(verdict for verdict in ("upstream_failed", None, "skipped", "start") if verdict in alone)
    assert becomes(found, "c") == expected


@pytest.mark.parametrize("state", ["running", *sorted(ENDED)])
def test_a_task_that_runs_or_has_ended_is_not_started(state: str) -> None:
    assert not plan(graph(Node("a")), row("a", state)).start


def test_a_task_above_all_others_starts_whatever_its_rule() -> None:
    nodes = graph(*(Node(rule, (), rule) for rule in RULES))
    assert started(plan(nodes, *(row(rule) for rule in RULES))) == list(RULES)


# --- Passing on what cannot run --------------------------------------------------------------------------


def test_a_failure_is_passed_down_the_whole_line_at_once() -> None:
    found = plan(LINE, row("a", "failed"), row("b"), row("c"))
    assert resolved(found) == {"b": "upstream_failed", "c": "upstream_failed"}


def test_a_skip_is_passed_down_the_whole_line_at_once() -> None:
    assert resolved(plan(LINE, row("a", "skipped"), row("b"), row("c"))) == {"b": "skipped", "c": "skipped"}


def test_a_failure_is_passed_on_while_another_task_above_still_runs() -> None:
    nodes = graph(Node("a"), Node("b"), Node("c", ("a", "b")))
    assert resolved(plan(nodes, row("a", "failed"), row("b", "running"), row("c"))) == {"c": "upstream_failed"}


@pytest.mark.parametrize("last", sorted(ENDED))
def test_how_a_task_ends_does_not_depend_on_which_task_above_was_quicker(last: str) -> None:
    nodes = graph(Node("a"), Node("b"), Node("c", ("a", "b")))
    while_open = plan(nodes, row("a", "skipped"), row("b", "running"), row("c"))
    assert becomes(while_open, "c") is None
    at_the_end = plan(nodes, row("a", "skipped"), row("b", last), row("c"))
    assert becomes(at_the_end, "c") == ("upstream_failed" if last in FAILED else "skipped")


def test_a_task_under_all_done_starts_below_one_resolved_in_the_same_plan() -> None:
    nodes = graph(Node("a"), Node("b", ("a",)), Node("c", ("b",), "all_done"))
    found = plan(nodes, row("a", "failed"), row("b"), row("c"))
    assert (resolved(found), started(found)) == ({"b": "upstream_failed"}, ["c"])


def test_a_plan_with_something_to_resolve_does_not_say_that_the_run_has_ended() -> None:
    assert plan(LINE, row("a", "failed"), row("b"), row("c")).ended is None


# --- Due times and leases --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due_at", "starts", "wake_at"),
    [(None, True, None), (NOW - 1, True, None), (NOW, True, None), (NOW + 1, False, NOW + 1), (LATER, False, LATER)],
)
@pytest.mark.parametrize("state", ["waiting", "up_for_retry"])
def test_a_task_starts_when_it_is_due(due_at: int | None, starts: bool, wake_at: int | None, state: str) -> None:
    found = plan(graph(Node("a")), row("a", state, due_at=due_at))
    assert (bool(found.start), found.wake_at) == (starts, wake_at)


@pytest.mark.parametrize(
    ("lease_until", "lost", "wake_at"), [(NOW - 1, True, None), (NOW, False, NOW + 1), (LATER, False, LATER + 1)]
)
def test_a_running_task_is_lost_once_its_lease_has_lapsed(lease_until: int, lost: bool, wake_at: int | None) -> None:
    running = row("a", "running", lease_until=lease_until)
    found = plan(graph(Node("a")), running)
    assert (found.lost, found.wake_at, found.ended) == ((running,) if lost else (), wake_at, None)


def test_at_the_moment_a_plan_names_for_a_lease_the_task_is_lost() -> None:
    running = row("a", "running", lease_until=LATER)
    wake_at = plan(graph(Node("a")), running).wake_at
    assert wake_at is not None
    assert next_actions(graph(Node("a")), [running], wake_at, slots=1).lost == (running,)


def test_the_earliest_moment_counts() -> None:
    nodes = graph(Node("a"), Node("b"), Node("c"))
    rows = [row("a", "up_for_retry", due_at=NOW + 30), row("b", "running", lease_until=NOW + 10), row("c")]
    assert plan(nodes, *rows).wake_at == NOW + 11


def test_what_waits_for_another_task_is_no_reason_to_wake() -> None:
    assert plan(LINE, row("a", "running"), row("b", "up_for_retry", due_at=NOW + 1)).wake_at == LATER + 1


def test_what_waits_only_for_a_free_slot_is_no_reason_to_wake() -> None:
    nodes = graph(Node("a"), Node("b"))
    assert plan(nodes, row("a"), row("b"), slots=1).wake_at is None


# --- Slots and order -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "running", "expected"), [(0, 0, 0), (2, 0, 2), (3, 1, 2), (2, 2, 0), (1, 3, 0), (9, 0, 5)]
)
def test_never_more_than_the_slots_less_those_running(slots: int, running: int, expected: int) -> None:
    names = [f"t{n}" for n in range(running + 5)]
    rows = [row(name, "running" if n < running else "waiting") for n, name in enumerate(names)]
    assert len(plan(graph(*map(Node, names)), *rows, slots=slots).start) == expected


def test_a_lost_task_keeps_its_slot_until_its_end_is_recorded() -> None:
    nodes = graph(Node("a"), Node("b"))
    assert not plan(nodes, row("a", "running", lease_until=NOW - 1), row("b"), slots=1).start


def test_a_full_house_does_not_keep_anything_from_being_resolved() -> None:
    nodes = graph(Node("a"), Node("b"), Node("c", ("b",)))
    assert resolved(plan(nodes, row("a", "running"), row("b", "failed"), row("c"), slots=1)) == {"c": "upstream_failed"}


def test_tasks_start_in_topological_order_whatever_the_order_of_the_rows() -> None:
    names = [f"t{n}" for n in range(20)]
    rows = [row(name) for name in names]
    random.Random(1).shuffle(rows)
    assert started(plan(graph(*map(Node, names)), *rows, slots=7)) == names[:7]


# --- Several instances of one task -----------------------------------------------------------------------


def test_instances_start_in_the_order_of_their_index() -> None:
    rows = [row("a", map_index=index) for index in (10, 2, 0, 1)]
    found = plan(graph(Node("a")), *rows, slots=3)
    assert [row.scope.map_index for row in found.start] == [0, 1, 2]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("success", "success"), "start"),
        (("success", "running"), None),
        (("success", "up_for_retry"), None),
        (("success", "failed"), "upstream_failed"),
        (("running", "failed"), "upstream_failed"),
        (("success", "skipped"), "skipped"),
    ],
)
def test_every_instance_above_counts(states: tuple[str, str], expected: str | None) -> None:
    above = [row("a", state, map_index=n, due_at=LATER) for n, state in enumerate(states)]
    assert becomes(plan(graph(Node("a"), Node("b", ("a",))), *above, row("b")), "b") == expected


def test_only_the_instances_that_wait_are_resolved() -> None:
    nodes = graph(Node("a"), Node("b", ("a",)))
    found = plan(nodes, row("a", "failed"), row("b", "success", 0), row("b", "waiting", 1), row("b", "running", 2))
    assert [(row.scope.map_index, state) for row, state in found.resolve] == [(1, "upstream_failed")]


# --- How a run ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_a_run_of_one_task_ends_as_the_task_does(state: str) -> None:
    expected = None if state in OPEN else "failed" if state in FAILED else "success"
    assert plan(graph(Node("a")), row("a", state)).ended == expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("success", "success", "success"), "success"),
        (("failed", "upstream_failed", "upstream_failed"), "failed"),
        (("failed", "success", "success"), "success"),  # as in Airflow: only the leaf counts
        (("skipped", "skipped", "skipped"), "success"),
        (("success", "success", "cancelled"), "failed"),
        (("success", "success", "running"), None),
        (("running", "success", "success"), None),
        (("success", "up_for_retry", "success"), None),
    ],
)
def test_a_run_ends_as_its_leaf_does(states: tuple[str, str, str], expected: str | None) -> None:
    assert plan(LINE, *map(row, "abc", states)).ended == expected


def test_a_failure_is_not_forgiven_when_another_leaf_fails_with_it() -> None:
    nodes = graph(Node("a"), Node("clean", ("a",), "all_done"), Node("b", ("a",)))
    rows = [row("a", "failed"), row("clean", "success")]
    assert plan(nodes, *rows, row("b", "upstream_failed")).ended == "failed"
    assert plan(nodes, *rows, row("b", "success")).ended == "success"


# --- A file that has changed since the run began ---------------------------------------------------------


def test_a_task_without_instances_stands_for_the_tasks_above_it() -> None:
    states = {"a": "running", "c": "waiting"}
    assert not plan(LINE, *itertools.starmap(row, states.items())).start
    assert started(plan(LINE, row("a", "success"), row("c"))) == ["c"]
    assert not plan(LINE, row("a", "running"), row("c"), row("gone", "success")).start
    assert resolved(plan(LINE, row("a", "failed"), row("c"))) == {"c": "upstream_failed"}


def test_a_leaf_without_instances_does_not_hide_a_failure_above_it() -> None:
    assert plan(LINE, row("a", "success"), row("b", "failed")).ended == "failed"
    assert plan(LINE, row("a", "success"), row("b", "success")).ended == "success"


def test_an_instance_without_a_task_is_left_alone() -> None:
    found = plan(graph(Node("a")), row("a", "success"), row("gone"))
    assert (found.start, found.resolve, found.ended) == ((), (), "success")


def test_an_instance_without_a_task_that_still_runs_keeps_the_run_open() -> None:
    assert plan(graph(Node("a")), row("a", "success"), row("gone", "running")).ended is None


# --- From a DAG ------------------------------------------------------------------------------------------


def test_the_graph_of_a_dag_is_in_topological_order() -> None:
    @task
    def work(*above: object) -> None: ...

    with DAG("d") as dag:
        last = work.override(task_id="last", trigger_rule="all_done")
        first = work.override(task_id="first")()
        last(first, work.override(task_id="middle")(first))
    assert list(graph_of(dag).values()) == [
        Node("first", ()),
        Node("middle", ("first",)),
        Node("last", ("first", "middle"), "all_done"),
    ]


# --- Whole runs ------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Node]:
    names = [f"t{n}" for n in range(draw(st.integers(1, 7)))]
    return graph(
        *(
            Node(
                name,
                tuple(draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else ()),
                draw(st.sampled_from(RULES)),
            )
            for n, name in enumerate(names)
        )
    )


def play(nodes: dict[str, Node], fates: dict[str, list[str]], slots: int, chance: random.Random) -> dict[str, TaskRow]:
    """Run a graph to its end, obeying the planner; each start takes the next of the task's fates, then "success"."""
    rows = {name: row(name) for name in nodes}
    now = NOW
    for _ in range(200):
        found = next_actions(nodes, list(rows.values()), now, slots=slots)
        if found.ended is not None:
            check_end(nodes, rows, found.ended)
            return rows
        running = [one for one in rows.values() if one.state == "running"]
        assert len(running) + len(found.start) <= slots
        for one, state in found.resolve:
            assert one.state == "waiting"
            assert one.attempt == 0
            rows[one.scope.task_id] = msgspec.structs.replace(one, state=state)
        for one in found.start:
            assert rows[one.scope.task_id].state in ("waiting", "up_for_retry")
            began = msgspec.structs.replace(one, state="running", attempt=one.attempt + 1, lease_until=now + 50)
            rows[one.scope.task_id] = began
        for one in found.lost:
            rows[one.scope.task_id] = msgspec.structs.replace(one, state="up_for_retry", due_at=now + 10)
        if not (found.start or found.resolve or found.lost):
            now = advance(rows, found, fates, now, chance)
    raise AssertionError(f"the run does not end: {rows}")


def advance(rows: dict[str, TaskRow], found: Plan, fates: dict[str, list[str]], now: int, chance: random.Random) -> int:
    """Let one running task meet its fate, or, when all that run have died silently, the time pass."""
    dying = {name for name, one in rows.items() if one.state == "running" and fates[name][:1] == ["lost"]}
    running = [one for name, one in rows.items() if one.state == "running" and name not in dying]
    if running:
        one = chance.choice(running)
        fate = fates[one.scope.task_id].pop(0) if fates[one.scope.task_id] else "success"
        rows[one.scope.task_id] = msgspec.structs.replace(
            one, state=fate, due_at=now + 20 if fate == "up_for_retry" else None
        )
        return now
    assert found.wake_at is not None, f"nothing to wait for: {rows}"
    assert found.wake_at > now
    for name in dying:
        if rows[name].lease_until < found.wake_at:
            fates[name].pop(0)
    return found.wake_at


def check_end(nodes: dict[str, Node], rows: dict[str, TaskRow], ended: str) -> None:
    """A task that ran was allowed to, one that did not could not, and the run ended as its leaves did."""
    for name, node in nodes.items():
        above = {rows[upstream].state for upstream in node.upstream}
        expected = {ONE_ABOVE[node.trigger_rule][state] for state in above} or {"start"}
        verdict = next(kind for kind in ("upstream_failed", "skipped", "start") if kind in expected)
        assert (rows[name].attempt > 0) == (verdict == "start")
        assert rows[name].state in ENDED
        if verdict != "start":
            assert rows[name].state == verdict
    leaves = set(nodes) - {above for node in nodes.values() for above in node.upstream}
    assert (ended == "failed") == any(rows[leaf].state in FAILED for leaf in leaves)


FATES = st.lists(st.sampled_from(["lost", "up_for_retry", "success", "failed", "skipped", "cancelled"]), max_size=4)


@given(graphs(), st.data(), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_every_run_ends_the_same_way_whoever_is_quicker(
    nodes: dict[str, Node], data: st.DataObject, slots: int, seed: int, other: int
) -> None:
    fates = {name: data.draw(FATES, label=name) for name in nodes}
    ends = [
        {name: one.state for name, one in play(nodes, copied(fates), n, random.Random(chance)).items()}
        for n, chance in ((slots, seed), (4, other))
    ]
    assert ends[0] == ends[1]


def copied(fates: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: list(fate) for name, fate in fates.items()}


@given(graphs(), st.data())
def test_a_plan_changes_nothing_and_is_the_same_for_the_same_position(
    nodes: dict[str, Node], data: st.DataObject
) -> None:
    rows = [row(name, data.draw(st.sampled_from(STATES), label=name), due_at=NOW) for name in nodes]
    before = list(rows)
    found, other = plan(nodes, *rows), plan(nodes, *reversed(rows))
    assert msgspec.structs.replace(found, lost=()) == msgspec.structs.replace(other, lost=())
    assert set(found.lost) == set(other.lost)
    assert rows == before
