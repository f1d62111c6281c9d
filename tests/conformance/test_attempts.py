"""The attempts of a run's task instances: begun once, fenced, ended once. Contract 5, 6.1, 6.3."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from outlast import Conflict, StaleAttempt
from outlast.people_requests import ClearTasks
from outlast.requests import Fence
from outlast.run_requests import (
    PullResults,
    PushResult,
    Resolve,
    TaskSpec,
)
from outlast.values import Writer
from support.clock import Clock
from support.runs import CHILD, SUPERVISOR, Desk, state_of
from support.verbs import Verbs
from support.world import World

SECOND = 1_000_000


def pulled(desk: Desk, *task_ids: str, name: str = "return_value", indexes: Any = None) -> Any:
    return desk.send(PullResults(desk.dag_id, desk.run_id, task_ids, name, indexes)).rows


# --- an attempt begins -------------------------------------------------------------------------------------


def test_an_attempt_begins_once(desk: Desk, clock: Clock) -> None:
    desk.start("extract")
    task = desk.begin("extract", lease=7)
    assert (task.state, task.attempt, task.supervisor) == ("running", 1, SUPERVISOR)
    assert (task.started_at, task.lease_until) == (clock.now, clock.now + 7 * SECOND)
    for after in (0, 1):
        with pytest.raises(Conflict, match="is running at attempt 1"):
            desk.begin("extract", after=after)
    assert desk.task("extract") == task
    assert desk.attempts("extract") == {1: "running"}


def test_of_many_workers_exactly_one_begins(desk: Desk) -> None:
    desk.start("extract")
    real = Desk(desk.backend.real)
    begun: list[int] = []

    def worker() -> None:
        try:
            begun.append(real.begin("extract", after=0).attempt)
        except Conflict:
            pass

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == [1]
    assert desk.attempts("extract") == {1: "running"}


def test_a_retry_begins_when_it_is_due_and_not_before(desk: Desk, clock: Clock) -> None:
    desk.start("extract")
    desk.ran("extract", "failed", retries=1, retry_at=clock.now + 5)
    clock.move(microseconds=4)
    with pytest.raises(Conflict):
        desk.begin("extract")
    clock.move(microseconds=1)
    assert desk.begin("extract").attempt == 2
    assert desk.task("extract").due_at is None


def test_an_attempt_begins_only_after_the_one_it_was_planned_after(desk: Desk) -> None:
    desk.start("extract")
    desk.ran("extract", "paused")
    with pytest.raises(Conflict, match="waiting at attempt 1"):
        desk.begin("extract", after=0)
    assert desk.begin("extract", after=1).attempt == 2


@pytest.mark.parametrize("outcome", ["success", "failed", "crashed", "skipped"])
def test_what_has_ended_does_not_begin_again(desk: Desk, outcome: str) -> None:
    desk.start("extract")
    desk.ran("extract", outcome)
    with pytest.raises(Conflict):
        desk.begin("extract")


def test_a_new_attempt_sees_what_was_stored_and_fences_the_one_before(desk: Desk, store: Verbs) -> None:
    """Contract 5.1, 6.1."""
    desk.start("extract")
    desk.begin("extract")
    old = state_of(store, desk.fence("extract"))
    old.set("page", 41)
    desk.report(desk.fence("extract"), "crashed", crash_retries=1)
    desk.begin("extract")
    new = state_of(store, desk.fence("extract"))
    assert new.get("page") == 41
    for call in (lambda: old.get("page"), lambda: old.set("page", 1), lambda: old.clear(), lambda: old.history("page")):
        with pytest.raises(StaleAttempt):
            call()
    assert new.get("page") == 41


# --- it lives ----------------------------------------------------------------------------------------------


def test_a_claim_is_kept_alive_also_when_it_has_lapsed(desk: Desk, clock: Clock) -> None:
    desk.start("extract")
    desk.begin("extract", lease=5)
    clock.move(hours=8)
    desk.renew(desk.fence("extract"), lease=5, child=CHILD)
    assert (desk.task("extract").lease_until, desk.task("extract").child) == (clock.now + 5 * SECOND, CHILD)
    clock.move(seconds=1)
    desk.renew(desk.fence("extract"), lease=5)
    assert (desk.task("extract").lease_until, desk.task("extract").child) == (clock.now + 5 * SECOND, CHILD)


@pytest.mark.parametrize("outcome", ["success", "failed", "paused", "skipped"])
def test_a_claim_that_is_over_is_not_renewed(desk: Desk, outcome: str) -> None:
    desk.start("extract")
    desk.ran("extract", outcome, retries=3)
    with pytest.raises(StaleAttempt, match="is over"):
        desk.renew(desk.fence("extract"))
    with pytest.raises(StaleAttempt):
        desk.send(PushResult(desk.fence("extract"), "name", "1"))


def test_the_process_group_that_is_recorded_first_stays(desk: Desk) -> None:
    """What runs user code could else name a group that a runner then kills."""
    desk.start("extract")
    desk.begin("extract")
    for child in (CHILD, SUPERVISOR, None):
        desk.renew(desk.fence("extract"), child=child)
        assert desk.task("extract").child == CHILD
    desk.report(desk.fence("extract"), "paused")
    assert desk.begin("extract").child is None


def test_a_claim_that_is_another_ones_is_not_renewed(desk: Desk) -> None:
    desk.start("extract")
    desk.begin("extract")
    old = desk.fence("extract")
    desk.report(old, "crashed", crash_retries=1)
    desk.begin("extract")
    for call in (
        lambda: desk.renew(old),
        lambda: desk.report(old, "success"),
        lambda: desk.send(PushResult(old, "a", "1")),
    ):
        with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
            call()
    assert desk.task("extract").state == "running"


# --- it ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "left", "state", "failures", "crashes"),
    [
        ("success", 0, "success", 0, 0),
        ("failed", 0, "failed", 1, 0),
        ("failed", 1, "up_for_retry", 1, 0),
        ("crashed", 0, "failed", 0, 1),
        ("crashed", 1, "up_for_retry", 0, 1),
        ("paused", 0, "waiting", 0, 0),
        ("skipped", 0, "skipped", 0, 0),
    ],
)
def test_what_follows_from_an_end(
    desk: Desk, clock: Clock, outcome: str, left: int, state: str, failures: int, crashes: int
) -> None:
    desk.start("extract")
    desk.begin("extract")
    clock.move(seconds=3)
    due = clock.now + 9
    limits = {"retries": left if outcome == "failed" else 0, "crash_retries": left if outcome == "crashed" else 0}
    task = desk.report(desk.fence("extract"), outcome, error="why", retry_at=due, **limits)
    assert (task.state, task.failures, task.crashes, task.error) == (state, failures, crashes, "why")
    assert task.due_at == (due if state == "up_for_retry" else None)
    assert task.ended_at == (clock.now if state in ("success", "failed", "skipped") else None)
    assert task.lease_until == 0
    assert desk.attempts("extract") == {1: outcome}


def test_failures_and_deaths_are_counted_apart(desk: Desk) -> None:
    desk.start("extract")
    limits = {"retries": 1, "crash_retries": 1}
    for outcome, state in [
        ("failed", "up_for_retry"),
        ("crashed", "up_for_retry"),
        ("paused", "waiting"),
        ("failed", "failed"),
    ]:
        assert desk.ran("extract", outcome, **limits).state == state
    task = desk.task("extract")
    assert (task.failures, task.crashes, task.attempt) == (2, 1, 4)
    assert desk.attempts("extract") == {1: "failed", 2: "crashed", 3: "paused", 4: "failed"}


def test_pauses_count_for_nothing_however_many(desk: Desk) -> None:
    desk.start("extract")
    for _ in range(5):
        desk.ran("extract", "paused")
    assert desk.ran("extract", "failed", retries=1).state == "up_for_retry"
    assert desk.task("extract").attempt == 6


@pytest.mark.parametrize("first", ["success", "failed", "crashed", "paused", "skipped"])
@pytest.mark.parametrize("second", ["success", "failed", "crashed"])
def test_an_end_reported_again_changes_nothing(desk: Desk, clock: Clock, first: str, second: str) -> None:
    desk.start("extract")
    desk.begin("extract")
    fence = desk.fence("extract")
    once = desk.report(fence, first, result='"one"', error="one", retries=5, crash_retries=5)
    clock.move(seconds=1)
    assert desk.report(fence, second, result='"two"', error="two") == once
    assert desk.task("extract") == once
    assert pulled(desk, "extract") == ((("extract", -1, '"one"'),) if first == "success" else ())
    assert desk.attempts("extract") == {1: first}


def test_an_end_of_an_attempt_that_never_began_is_stale(desk: Desk) -> None:
    detail = desk.start("extract")
    scope_id = detail.tasks[0].scope_id
    for attempt in (0, 1, 7):
        with pytest.raises(StaleAttempt):
            desk.report(Fence(desk.scope("extract"), attempt, scope_id), "success")
    assert desk.task("extract").state == "waiting"


@pytest.mark.parametrize("outcome", ["failed", "crashed", "paused"])
def test_the_end_of_an_attempt_fenced_from_outside_can_be_told_but_not_as_success(
    desk: Desk, store: Verbs, outcome: str
) -> None:
    """Otherwise its task would count as running for ever."""
    desk.start("extract")
    desk.begin("extract")
    fence = desk.fence("extract")
    store.task("nightly/r1/extract", attempt="new")
    with pytest.raises(StaleAttempt):
        desk.report(fence, "success")
    with pytest.raises(StaleAttempt):
        desk.renew(fence)
    assert desk.report(fence, outcome, retries=1, crash_retries=1).state in ("up_for_retry", "waiting")
    assert desk.begin("extract").attempt == 3


def test_a_task_instance_that_waits_is_given_its_end(desk: Desk, clock: Clock) -> None:
    desk.start("extract", ("load", "extract"))
    desk.ran("extract", "failed")
    resolved = desk.send(Resolve(desk.scope("load"), "upstream_failed"))
    assert (resolved.state, resolved.ended_at, resolved.attempt) == ("upstream_failed", clock.now, 0)
    assert desk.attempts("load") == {}


@pytest.mark.parametrize("outcome", [None, "success", "failed"])
def test_one_that_has_begun_is_not(desk: Desk, outcome: str | None) -> None:
    desk.start("extract")
    desk.begin("extract")
    if outcome is not None:
        desk.report(desk.fence("extract"), outcome)
    before = desk.task("extract")
    assert desk.send(Resolve(desk.scope("extract"), "skipped")) == before


# --- results -----------------------------------------------------------------------------------------------


def test_results_are_kept_by_task_index_and_name(desk: Desk) -> None:
    desk.start("extract", TaskSpec("each", 1), TaskSpec("each", 0), TaskSpec("each", 10))
    desk.begin("extract")
    desk.send(PushResult(desk.fence("extract"), "rows", "41"))
    desk.send(PushResult(desk.fence("extract"), "rows", "42"))
    desk.report(desk.fence("extract"), "success", result="null")
    for index in (10, 1, 0):
        desk.ran("each", index=index, result=str(index))
    assert pulled(desk, "each") == (("each", 0, "0"), ("each", 1, "1"), ("each", 10, "10"))
    assert pulled(desk, "each", indexes=(10, 0)) == (("each", 0, "0"), ("each", 10, "10"))
    assert pulled(desk, "extract", "each", indexes=(-1, 1)) == (("extract", -1, "null"), ("each", 1, "1"))
    assert pulled(desk, "extract", name="rows") == (("extract", -1, "42"),)
    assert pulled(desk, "other") == ()


def test_a_new_attempt_forgets_the_results_of_those_before(desk: Desk) -> None:
    desk.start("extract")
    desk.begin("extract")
    desk.send(PushResult(desk.fence("extract"), "rows", "41"))
    desk.report(desk.fence("extract"), "failed", retries=1)
    assert pulled(desk, "extract", name="rows") == (("extract", -1, "41"),)
    desk.begin("extract")
    assert pulled(desk, "extract", name="rows") == ()


def test_results_are_of_one_run(desk: Desk) -> None:
    for run_id in ("r1", "r2"):
        other = Desk(desk.backend, run_id=run_id)
        other.start("extract")
        other.ran("extract", result=f'"{run_id}"')
    assert pulled(desk, "extract") == (("extract", -1, '"r1"'),)


# --- clear_on_success --------------------------------------------------------------------------------------


def test_success_removes_the_state_with_its_history_in_the_same_step(desk: Desk, world: World) -> None:
    """Contract 6.3: never before it, never without it; assets and other scopes stay."""
    store = world.open()
    desk.start("extract", "load")
    desk.begin("extract")
    state = state_of(store, desk.fence("extract"))
    state.set("page", 1)
    state.set("page", 2)
    store.task("nightly/r1/load").set("page", 3)
    store.asset("table").set("watermark", 4)
    revision = store.scopes(task_id="extract")[0].revision
    desk.report(desk.fence("extract"), "success", clear_state=True)
    assert state.keys() == []
    assert [version.deleted for version in state.history("page")] == [True]
    assert store.scopes(task_id="extract")[0].revision == revision + 1
    assert store.task("nightly/r1/load").get("page") == 3
    assert store.asset("table").get("watermark") == 4


def test_an_attempt_that_has_succeeded_writes_no_more(desk: Desk, world: World) -> None:
    """Contract 6.3: what it left is what counts, its assets' state included; the next attempt writes again."""
    store = world.open()
    desk.start("extract")
    desk.begin("extract")
    state = state_of(store, desk.fence("extract"))
    state.set("page", 1)
    desk.report(desk.fence("extract"), "success", clear_state=True)
    with pytest.raises(StaleAttempt, match="has succeeded"):
        state.set("page", 2)
    with pytest.raises(StaleAttempt, match="has succeeded"), state.transaction() as tx:
        tx.of(store.real.asset("table")).set("watermark", 4)
    assert (state.keys(), store.asset("table").keys()) == ([], [])
    desk.send(ClearTasks("nightly", "r1", (("extract", None),), Writer("person", name="ann")))
    desk.begin("extract")
    state_of(store, desk.fence("extract")).set("page", 3)


@pytest.mark.parametrize("outcome", ["failed", "crashed", "paused", "skipped"])
def test_no_other_end_removes_the_state(desk: Desk, store: Verbs, outcome: str) -> None:
    desk.start("extract")
    desk.begin("extract")
    state_of(store, desk.fence("extract")).set("page", 1)
    desk.report(desk.fence("extract"), outcome, clear_state=True)
    assert store.task("nightly/r1/extract").get("page") == 1


def test_an_error_with_a_nul_in_it_is_kept(desk: Desk) -> None:
    """A database that cannot hold U+0000 keeps U+FFFD in its place; nothing but that character differs."""
    desk.start("extract")
    desk.begin("extract")
    task = desk.report(desk.fence("extract"), "failed", error="a\x00b 🦆")
    assert (task.state, (task.error or "").replace("\x00", "\ufffd")) == ("failed", "a\ufffdb 🦆")
    assert desk.task("extract") == task


def test_a_success_that_is_refused_removes_nothing(desk: Desk, store: Verbs) -> None:
    desk.start("extract")
    desk.begin("extract")
    old = desk.fence("extract")
    state_of(store, old).set("page", 1)
    desk.report(old, "crashed", crash_retries=1)
    desk.begin("extract")
    with pytest.raises(StaleAttempt):
        desk.report(old, "success", clear_state=True)
    assert store.task("nightly/r1/extract").get("page") == 1
