"""Events of assets: recorded with a success and only with it, read in order, consumed by the runs started for them."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Conflict, StaleAttempt
from outlast.event_requests import AddEvents, ConsumedUntil, EventRow, Events, ListEvents
from outlast.people_requests import CancelRun
from outlast.run_requests import NewEvent, PruneRuns, StartRun, TaskSpec
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


def test_events_that_do_not_concern_a_dag_are_passed_over(desk: Desk) -> None:
    assert consumed(desk, "consumer") == 0
    desk.send(AddEvents((USERS, USERS, ORDERS)))
    assert desk.send(ConsumedUntil("consumer", 2)).newest == 2
    assert desk.send(ConsumedUntil("consumer", 1)).newest == 2
    assert start_for(desk, "consumer", "c1", 3).run.events == (3,)


# --- Pruned with their runs ----------------------------------------------------------------------------------

DAY = 24 * 3600


def prune(desk: Desk, clock: Clock, limit: int = 100, **more: Any) -> Any:
    return desk.send(PruneRuns(clock() - DAY * 1_000_000, limit, **more))


def test_old_events_go_once_nothing_needs_them(desk: Desk, clock: Clock) -> None:
    desk.send(AddEvents((ORDERS, USERS)))
    clock.move(seconds=2 * DAY)
    desk.send(AddEvents((ORDERS,)))
    prune(desk, clock, dry_run=True)
    assert names(desk) == ["orders", "users", "orders"]
    prune(desk, clock)
    assert [row.id for row in listed(desk)] == [3]
    desk.send(AddEvents((USERS,)))
    assert [row.id for row in listed(desk)] == [3, 4]


def test_an_event_goes_with_the_run_that_made_it(begun: Desk, clock: Clock) -> None:
    begun.report(begun.fence("load"), "success", events=(ORDERS,))
    clock.move(seconds=2 * DAY)
    assert prune(begun, clock).runs == ()
    assert names(begun) == ["orders"]
    begun.send(CancelRun("nightly", "r1", ANN))
    clock.move(seconds=2 * DAY)
    assert prune(begun, clock).runs == (("nightly", "r1"),)
    assert names(begun) == []


def test_an_event_goes_with_the_last_run_started_for_it(desk: Desk, clock: Clock) -> None:
    desk.send(AddEvents((ORDERS, USERS, ORDERS)))
    start_for(desk, "consumer", "c1", 1, 3)
    clock.move(seconds=2 * DAY)
    prune(desk, clock)
    assert [row.id for row in listed(desk)] == [1, 3]
    desk.send(CancelRun("consumer", "c1", ANN))
    clock.move(seconds=2 * DAY)
    assert prune(desk, clock).runs == (("consumer", "c1"),)
    assert listed(desk) == []


def test_an_event_a_dag_is_still_to_be_started_for_stays(desk: Desk, clock: Clock) -> None:
    assert consumed(desk, "consumer") == 0
    desk.send(AddEvents((ORDERS, USERS, ORDERS)))
    clock.move(seconds=1000 * DAY)
    prune(desk, clock)
    assert len(listed(desk)) == 3
    desk.send(ConsumedUntil("consumer", 2))
    prune(desk, clock)
    assert [row.id for row in listed(desk)] == [3]


def test_a_batch_of_events_says_that_there_are_more(desk: Desk, clock: Clock) -> None:
    desk.send(AddEvents((ORDERS,) * 5))
    clock.move(seconds=2 * DAY)
    assert [prune(desk, clock, 2).more for _ in range(3)] == [True, True, False]
    assert listed(desk) == []


# --- Of one asset --------------------------------------------------------------------------------------------


def test_events_of_one_asset(desk: Desk) -> None:
    desk.send(AddEvents((ORDERS, USERS, NewEvent(None, "s3://orders"), NewEvent("orders", None))))

    def ids(**more: Any) -> list[int]:
        return [row.id for row in desk.send(ListEvents(**more)).rows]

    assert ids(name="orders") == [1, 4]
    assert ids(uri="s3://orders") == [1, 3]
    assert ids(name="orders", uri="s3://orders") == [1, 3, 4]
    assert ids(name="nothing") == []
    assert ids(name="orders", after=1) == [4]


def test_events_newest_first(desk: Desk) -> None:
    desk.send(AddEvents((ORDERS, USERS, ORDERS, ORDERS)))
    page = desk.send(ListEvents(limit=2, before=2**62, name="orders"))
    assert [row.id for row in page.rows] == [4, 3]
    assert [row.id for row in desk.send(ListEvents(before=3, name="orders")).rows] == [1]
