"""A run's name is used again: what the earlier run has left is neither seen nor in the way."""

from __future__ import annotations

import threading

import pytest

from outlast import StaleAttempt
from support.clock import Clock
from support.runs import Desk, state_of
from support.verbs import Verbs

ADDRESS = "dag/run/task"
EARLIER, LATER = ("run:1", 1_000), ("run:2", 2_000)


def test_another_origin_is_a_new_run(store: Verbs) -> None:
    earlier = store.task(ADDRESS, attempt=3, origin=EARLIER)
    earlier.set("job", 7)
    later = store.task(ADDRESS, attempt=1, origin=LATER)
    assert later.items() == []
    assert later.history("job") == []
    assert [(info.attempt, info.entries) for info in store.scopes()] == [(1, 0)]


def test_a_new_run_says_so_once(store: Verbs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "outlast")
    for origin in (EARLIER, LATER, LATER):
        store.task(ADDRESS, attempt=1, origin=origin)
    assert [record.message for record in caplog.records] == [
        "outlast: dag/run/task is a new run of that name; the state of the earlier one is removed"
    ]


def test_an_attempt_of_the_earlier_run_is_refused_all_it_asks(store: Verbs) -> None:
    zombie = store.task(ADDRESS, attempt=1, origin=EARLIER)
    later = store.task(ADDRESS, attempt=1, origin=LATER)
    later.set("job", 8)
    with pytest.raises(StaleAttempt, match="deleted after attempt 1 began"):
        zombie.get("job")
    with pytest.raises(StaleAttempt, match="deleted after attempt 1 began"):
        zombie.set("job", 7)
    with pytest.raises(StaleAttempt, match="deleted after attempt 1 began"):
        zombie.asset("table").set("mark", 7)
    assert later.get("job") == 8


def test_an_attempt_of_the_earlier_run_that_comes_late_is_stale(store: Verbs) -> None:
    store.task(ADDRESS, attempt=1, origin=LATER).set("job", 8)
    with pytest.raises(StaleAttempt, match="a later run of that name"):
        store.task(ADDRESS, attempt=5, origin=EARLIER)
    assert store.task(ADDRESS).get("job") == 8


@pytest.mark.parametrize("origin", [EARLIER, ("run:1", 9_000), ("run:1", None), None])
def test_the_same_origin_and_none_keep_the_state(store: Verbs, origin: tuple[str, int | None] | None) -> None:
    store.task(ADDRESS, attempt=1, origin=EARLIER).set("job", 7)
    assert store.task(ADDRESS, attempt=2, origin=origin).get("job") == 7
    with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
        store.task(ADDRESS, attempt=1, origin=EARLIER)


def test_without_times_another_origin_is_a_new_run(store: Verbs) -> None:
    store.task(ADDRESS, attempt=1, origin=LATER).set("job", 8)
    assert store.task(ADDRESS, attempt=1, origin=("run:3", None)).get("job") is None


def test_a_first_attempt_that_began_after_the_fence_was_raised_is_a_new_run(store: Verbs, clock: Clock) -> None:
    """Where only first attempts say which run they are of, and that of the earlier run never opened its scope."""
    store.task(ADDRESS, attempt=2).set("job", 7)
    clock.move(seconds=1)
    assert store.task(ADDRESS, attempt=1, origin=("ti:b", clock.now)).items() == []


def test_a_first_attempt_that_began_before_is_late(store: Verbs, clock: Clock) -> None:
    began = clock.now
    clock.move(seconds=1)
    store.task(ADDRESS, attempt=2).set("job", 7)
    for started in (began, clock.now, None):
        with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
            store.task(ADDRESS, attempt=1, origin=("ti:a", started))
    assert store.task(ADDRESS).get("job") == 7


def test_an_origin_of_another_kind_is_no_new_run(store: Verbs, clock: Clock) -> None:
    """Airflow was upgraded from 2 to 3 while the first try was deferred."""
    began = clock.now
    clock.move(seconds=1)
    store.task(ADDRESS, attempt=1, origin=("run:1", began)).set("job", 7)
    for started in (began, None):
        assert store.task(ADDRESS, attempt=1, origin=("ti:a", started)).get("job") == 7
    assert store.task(ADDRESS, attempt=1, origin=("ti:b", clock.now)).items() == []


def test_a_late_first_try_does_not_remove_what_a_later_one_has_that_could_not_say_its_run(
    store: Verbs, clock: Clock
) -> None:
    store.task(ADDRESS, attempt=1, origin=("ti:a", clock.now))
    clock.move(seconds=1)
    began = clock.now
    clock.move(seconds=1)
    store.task(ADDRESS, attempt=2).set("job", 7)
    for started in (began, None):
        with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
            store.task(ADDRESS, attempt=1, origin=("ti:b", started))
    assert store.task(ADDRESS).get("job") == 7
    clock.move(seconds=1)
    assert store.task(ADDRESS, attempt=1, origin=("ti:c", clock.now)).items() == []


def test_what_a_program_has_prepared_through_an_attempt_of_its_own_stays(store: Verbs, clock: Clock) -> None:
    store.task(ADDRESS, attempt="new").set("job", 7)
    clock.move(seconds=1)
    assert store.task(ADDRESS, attempt=1, origin=("ti:a", clock.now)).get("job") == 7


def test_an_attempt_above_the_fence_goes_on_with_what_is_there(store: Verbs, clock: Clock) -> None:
    store.task(ADDRESS).set("job", 7)  # a person has prepared it
    clock.move(seconds=1)
    assert store.task(ADDRESS, attempt=1, origin=("ti:a", clock.now)).get("job") == 7
    assert store.task(ADDRESS, attempt=1, origin=("ti:b", clock.now + 1)).get("job") is None


def test_each_index_of_a_mapped_task_is_for_itself(store: Verbs) -> None:
    for index in (0, 1):
        store.task(ADDRESS, map_index=index, attempt=1, origin=EARLIER).set("job", index)
    assert store.task(ADDRESS, map_index=0, attempt=1, origin=LATER).get("job") is None
    assert store.task(ADDRESS, map_index=1, attempt=2, origin=EARLIER).get("job") == 1


def test_two_that_open_a_new_run_at_once_find_one(store: Verbs) -> None:
    store.task(ADDRESS, attempt=9, origin=EARLIER).set("job", 7)
    opened = []

    def begin() -> None:
        state = store.real.task(ADDRESS, attempt=1, origin=LATER)
        opened.append(state.fence.scope_id)
        state.increment("begun")

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    assert len(set(opened)) == 1
    assert store.task(ADDRESS).items() == [("begun", 4)]


def test_what_a_run_of_outlasts_own_has_stored_is_never_an_earlier_runs(store: Verbs, desk: Desk, clock: Clock) -> None:
    desk.start("extract")
    desk.begin("extract")
    fence = desk.fence("extract")
    state_of(store, fence).set("job", 7)
    clock.move(seconds=1)
    own = store.task(desk.scope("extract"), attempt=2, origin=("run:1", clock.now))
    assert own.get("job") == 7
    assert store.task(desk.scope("extract"), attempt=3, origin=("run:2", clock.now)).get("job") == 7
    assert desk.task("extract").scope_id == fence.scope_id
