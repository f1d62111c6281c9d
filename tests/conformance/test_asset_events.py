"""Events of assets: recorded with a success and only with it, read in order, consumed by the runs started for them."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Conflict, StaleAttempt
from outlast.run_requests import AddEvents, ConsumedUntil, EventRow, Events, ListEvents, NewEvent, StartRun, TaskSpec
from outlast.values import TaskScope
from support.clock import Clock
from support.runs import ANN, RUNNER, Desk
from support.verbs import Verbs

ORDERS = NewEvent("orders", "s3://orders", '{"rows":7}')
USERS = NewEvent("users", None)


def listed(desk: Desk, after: int = 0, limit: int = 1000) -> list[EventRow]:
    found: Events = desk.send(ListEvents(after, limit))
    return list(found.rows)


def names(desk: Desk) -> list[str | None]:
    return [row.name for row in listed(desk)]


@pytest.fixture
def begun(desk: Desk) -> Desk:
    """A run whose first task's first attempt is running."""
    desk.start("load", ("after", "load"))
    desk.begin("load")
    return desk


# --- From tasks --------------------------------------------------------------------------------------------


def test_a_success_records_events_with_their_source(begun: Desk, clock: Clock) -> None:
    begun.report(begun.fence("load"), "success", events=(ORDERS, USERS))
    source = TaskScope("nightly", "r1", "load")
    assert listed(begun) == [
        EventRow(1, "orders", "s3://orders", clock(), source, '{"rows":7}'),
        EventRow(2, "users", None, clock(), source, "{}"),
    ]


@pytest.mark.parametrize("outcome", ["failed", "crashed", "paused", "skipped", "rescheduled"])
def test_no_other_outcome_records_any(begun: Desk, outcome: str) -> None:
    begun.report(begun.fence("load"), outcome, events=(ORDERS,))
    assert listed(begun) == []


def test_a_repeated_report_records_nothing_twice(begun: Desk) -> None:
    fence = begun.fence("load")
    for _ in range(2):
        begun.report(fence, "success", events=(ORDERS,))
    assert names(begun) == ["orders"]


def test_a_superseded_attempt_records_nothing(begun: Desk, runs: Verbs) -> None:
    fence = begun.fence("load")
    runs.clear("nightly", "r1", ["load"])
    with pytest.raises(StaleAttempt):
        begun.report(fence, "success", events=(ORDERS,))
    assert listed(begun) == []


def test_a_second_success_after_a_clear_is_another_event(begun: Desk, runs: Verbs) -> None:
    begun.report(begun.fence("load"), "success", events=(ORDERS,))
    runs.clear("nightly", "r1", ["load"])
    begun.ran("load", events=(ORDERS,))
    assert names(begun) == ["orders", "orders"]


def test_a_success_by_hand_records_none(begun: Desk, runs: Verbs) -> None:
    runs.mark(TaskScope("nightly", "r1", "load"), "success")
    assert listed(begun) == []


def test_a_mapped_instance_is_told_by_its_index(desk: Desk) -> None:
    desk.start(TaskSpec("load", 0), TaskSpec("load", 1))
    desk.ran("load", index=1, events=(ORDERS,))
    assert listed(desk)[0].source == TaskScope("nightly", "r1", "load", 1)


def test_events_outlive_their_run(begun: Desk, store: Verbs) -> None:
    begun.report(begun.fence("load"), "success", events=(ORDERS,))
    store.runs_as(ANN).delete("nightly", "r1", force=True)
    assert names(begun) == ["orders"]


# --- From triggers and people --------------------------------------------------------------------------------


def test_events_of_nobody_in_particular(desk: Desk, clock: Clock) -> None:
    added: Events = desk.send(AddEvents((ORDERS, USERS)))
    assert (added.rows, added.newest) == ((), 2)
    assert listed(desk)[0] == EventRow(1, "orders", "s3://orders", clock(), None, '{"rows":7}')


# --- Reading -----------------------------------------------------------------------------------------------


def test_events_are_read_in_pages_oldest_first(desk: Desk) -> None:
    for number in range(5):
        desk.send(AddEvents((NewEvent(f"a{number}", None),)))
    read: list[str | None] = []
    after = 0
    while page := listed(desk, after, limit=2):
        read += [row.name for row in page]
        after = page[-1].id
    assert read == ["a0", "a1", "a2", "a3", "a4"]


def test_a_page_tells_of_the_newest_event_there_is(desk: Desk) -> None:
    assert desk.send(ListEvents(limit=0)) == Events((), 0)
    desk.send(AddEvents((ORDERS, USERS)))
    assert desk.send(ListEvents(limit=0)) == Events((), 2)
    assert desk.send(ListEvents(2)).newest == 2


# --- Runs started for them -----------------------------------------------------------------------------------


def start_for(desk: Desk, dag_id: str, run_id: str, *events: int) -> Any:
    request = StartRun(dag_id, run_id, (TaskSpec("t"),), "{}", "/dags/c.py", "digest", 0, RUNNER, 30.0, events)
    return desk.send(request)


def test_a_run_knows_the_events_it_was_started_for(desk: Desk) -> None:
    desk.send(AddEvents((ORDERS, USERS, ORDERS)))
    assert start_for(desk, "consumer", "c1", 1, 3).run.events == (1, 3)
    assert start_for(desk, "consumer", "c2").run.events == ()


def consumed(desk: Desk, dag_id: str) -> int:
    found: Events = desk.send(ConsumedUntil(dag_id))
    return found.newest


def test_a_dag_begins_with_what_happens_after_it_first_looked(desk: Desk) -> None:
    """Also when it has not been started for anything yet when it looks again."""
    desk.send(AddEvents((ORDERS, USERS)))
    assert consumed(desk, "consumer") == 2
    desk.send(AddEvents((ORDERS,)))
    assert consumed(desk, "consumer") == 2
    assert consumed(desk, "late") == 3


def test_what_a_dag_was_started_for_is_consumed_by_it_and_no_other(desk: Desk) -> None:
    assert [consumed(desk, dag_id) for dag_id in ("consumer", "other")] == [0, 0]
    desk.send(AddEvents((ORDERS, USERS, ORDERS)))
    start_for(desk, "consumer", "c1", 1, 2)
    start_for(desk, "consumer", "c2")
    assert [consumed(desk, dag_id) for dag_id in ("consumer", "other")] == [2, 0]


def test_two_runners_do_not_start_a_dag_for_the_same_event(desk: Desk) -> None:
    desk.send(AddEvents((ORDERS, USERS, ORDERS)))
    start_for(desk, "consumer", "c1", 1, 2)
    with pytest.raises(Conflict, match="for these asset events already"):
        start_for(desk, "consumer", "c2", 2, 3)
    assert start_for(desk, "consumer", "c2", 3).run.events == (3,)
    assert start_for(desk, "other", "o1", 1, 2, 3).run.events == (1, 2, 3)


def test_events_are_not_taken_again_when_the_run_they_started_is_removed(desk: Desk, store: Verbs) -> None:
    desk.send(AddEvents((ORDERS,)))
    start_for(desk, "consumer", "c1", 1)
    store.runs_as(ANN).delete("consumer", "c1", force=True)
    assert consumed(desk, "consumer") == 1
