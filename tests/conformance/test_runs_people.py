"""What people do to runs: clear, mark, cancel, delete, prune; fenced and audited. Contract 5.2, 6.2, 6.4, 6.6, 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest

from outlast import Conflict, NotFound, StaleAttempt
from outlast.config import Config, RunnerSettings
from outlast.requests import Fence, Sweep
from outlast.run_requests import Begin, ListAudit, PruneRuns, PullResults, PushResult, Resolve, TaskSpec
from outlast.runs import Runs
from outlast.state import TaskState
from outlast.values import Writer
from support.clock import Clock
from support.homes import Home, settings
from support.runs import ANN, OTHER, RUNNER, SUPERVISOR, Desk
from support.verbs import Verbs
from support.world import World


@pytest.fixture
def desk(store: Verbs) -> Desk:
    """Who speaks for a runner and its workers."""
    return Desk(Verbs(store.real.backend, store.runner))


@pytest.fixture
def runs(store: Verbs) -> Verbs:
    """The runs as a person sees and steers them."""
    return Verbs(store.real.runs_as(ANN), store.runner)


def state_of(store: Verbs, fence: Fence) -> Verbs:
    """Return the state of a task as its attempt sees it, without opening another."""
    real = store.real
    writer = Writer("task", fence.attempt, None, fence.scope)
    return Verbs(TaskState(real.backend, fence.scope, real.config, real.clock, writer, fence), store.runner)


def fails(*calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(StaleAttempt):
            call()


# --- clear -----------------------------------------------------------------------------------------------------


def test_a_clear_keeps_the_entries_and_counts_anew(desk: Desk, store: Verbs, runs: Verbs) -> None:
    """Contract 6.2."""
    desk.start("extract")
    desk.begin("extract")
    state_of(store, desk.fence("extract")).set("remote_job_id", "job-17")
    desk.report(desk.fence("extract"), "failed", error="why", retries=1)
    desk.ran("extract", "crashed", error="why")
    touched = runs.clear("nightly", "r1", ["extract"])
    (task,) = touched.tasks
    assert (task.state, task.failures, task.crashes, task.error, task.due_at) == ("waiting", 0, 0, None, None)
    assert touched.tasks == desk.detail().tasks
    assert store.task("nightly/r1/extract").get("remote_job_id") == "job-17"
    assert desk.attempts("extract") == {1: "failed", 2: "crashed"}


def test_a_clear_that_discards_removes_the_entries_and_can_be_undone(desk: Desk, store: Verbs, runs: Verbs) -> None:
    """Contract 6.2, 4.8."""
    desk.start("extract", "load")
    desk.ran("extract", "failed")
    state = store.task("nightly/r1/extract")
    state.set("page", 41)
    store.task("nightly/r1/load").set("page", 1)
    store.asset("table").set("watermark", 2)
    runs.clear("nightly", "r1", ["extract"], discard=True)
    assert state.keys() == []
    assert store.task("nightly/r1/load").get("page") == 1
    assert store.asset("table").get("watermark") == 2
    state.restore("page", 1)
    assert state.get("page") == 41


@pytest.mark.parametrize(("setting", "asked", "kept"), [(True, None, False), (True, False, True), (False, None, True)])
def test_the_setting_decides_where_nobody_does(world: World, setting: bool, asked: bool | None, kept: bool) -> None:
    store = world.open(discard_on_clear=setting)
    desk = Desk(Verbs(store.real.backend, store.runner))
    desk.start("extract")
    store.task("nightly/r1/extract").set("page", 41)
    Verbs(store.real.runs_as(ANN), store.runner).clear("nightly", "r1", ["extract"], discard=asked)
    assert store.task("nightly/r1/extract").get("page") == (41 if kept else None)


@pytest.mark.parametrize("discard", [False, True])
def test_a_clear_fences_the_attempt_that_runs(desk: Desk, store: Verbs, runs: Verbs, discard: bool) -> None:
    """Contract 5.2: refused for reads, writes, results, renewal and report, at once and for ever."""
    desk.start("extract")
    desk.begin("extract")
    fence = desk.fence("extract")
    old = state_of(store, fence)
    old.set("page", 41)
    runs.clear("nightly", "r1", ["extract"], discard=discard)

    def everything() -> None:
        fails(
            lambda: old.get("page"),
            lambda: old.keys(),
            lambda: old.history("page"),
            lambda: old.set("page", 1),
            lambda: old.increment("n"),
            lambda: old.delete("page"),
            lambda: old.clear(),
            lambda: desk.renew(fence),
            lambda: desk.send(PushResult(fence, "rows", "1")),
            *(
                lambda outcome=outcome: desk.report(fence, outcome)
                for outcome in ("success", "failed", "crashed", "paused")
            ),
        )

    everything()
    assert desk.attempts("extract") == {1: "cleared"}
    desk.begin("extract")
    everything()
    assert desk.task("extract").state == "running"
    assert store.task("nightly/r1/extract").get("page") == (None if discard else 41)


def test_a_clear_leaves_no_gap_in_the_try_numbers(desk: Desk, runs: Verbs) -> None:
    desk.start("extract")
    for _ in range(3):
        runs.clear("nightly", "r1", ["extract"])
    assert desk.begin("extract").attempt == 1
    runs.clear("nightly", "r1", ["extract"])
    runs.clear("nightly", "r1", ["extract"])
    assert desk.begin("extract", after=1).attempt == 2
    desk.report(desk.fence("extract"), "failed", retries=1)
    assert desk.begin("extract").attempt == 3
    assert desk.attempts("extract") == {1: "cleared", 2: "failed", 3: "running"}


def test_a_number_kept_for_the_next_attempt_is_not_given_to_two(desk: Desk, store: Verbs, runs: Verbs) -> None:
    desk.start("extract")
    desk.begin("extract")
    runs.clear("nightly", "r1", ["extract"])
    script = store.task("nightly/r1/extract", attempt="new")
    desk.begin("extract")
    newest = state_of(store, desk.fence("extract"))
    fails(lambda: script.get("page"))
    newest.set("page", 1)
    runs.clear("nightly", "r1", ["extract"])
    fails(lambda: newest.get("page"))


def test_a_clear_takes_the_results_away(desk: Desk, runs: Verbs) -> None:
    desk.start("extract")
    desk.ran("extract", result="1")
    runs.clear("nightly", "r1", ["extract"])
    assert desk.send(PullResults("nightly", "r1", ("extract",), "return_value")).rows == ()


def test_a_clear_takes_with_it_what_had_given_up_below(desk: Desk, runs: Verbs) -> None:
    desk.start("a", ("b", "a"), ("c", "b"), ("d", "a"), "e")
    desk.ran("a", "failed")
    desk.ran("d")
    desk.ran("e", "failed")
    desk.send(Resolve(desk.scope("b"), "upstream_failed"))
    desk.send(Resolve(desk.scope("c"), "skipped"))
    touched = runs.clear("nightly", "r1", ["a"])
    assert [task.scope.task_id for task in touched.tasks] == ["a", "b", "c"]
    assert desk.states() == {"a": "waiting", "b": "waiting", "c": "waiting", "d": "success", "e": "failed"}


def test_downstream_takes_everything_below(desk: Desk, runs: Verbs) -> None:
    desk.start("a", ("b", "a"), ("c", "b"), "d")
    for task_id in "abcd":
        desk.ran(task_id)
    touched = runs.clear("nightly", "r1", ["b"], downstream=True)
    assert [task.scope.task_id for task in touched.tasks] == ["b", "c"]
    assert desk.states() == {"a": "success", "b": "waiting", "c": "waiting", "d": "success"}


def test_a_dry_run_changes_nothing(desk: Desk, store: Verbs, runs: Verbs) -> None:
    desk.start("a", ("b", "a"), TaskSpec("each", 0, ("b",)))
    desk.ran("a")
    desk.begin("each", 0)
    fence = desk.fence("each", 0)
    desk.hold()
    before = desk.detail()
    touched = runs.clear("nightly", "r1", ["a"], downstream=True, discard=True, dry_run=True)
    assert touched.tasks == before.tasks
    assert desk.detail() == before
    assert runs.audit() == []
    state_of(store, fence).set("page", 1)


def test_one_index_of_a_mapped_task_is_cleared_alone(desk: Desk, runs: Verbs) -> None:
    desk.start("extract", *(TaskSpec("each", index) for index in range(3)))
    for index in range(3):
        desk.begin("each", index)
    runs.clear("nightly", "r1", [("each", 1)])
    assert desk.states() == {"extract": "waiting", "each/0": "running", "each/1": "waiting", "each/2": "running"}


def test_different_indexes_of_different_tasks_are_cleared_in_one_step(desk: Desk, runs: Verbs) -> None:
    desk.start("c", *(TaskSpec(task_id, index) for task_id in "ab" for index in range(2)))
    for task_id in "ab":
        for index in range(2):
            desk.ran(task_id, index=index)
    touched = runs.clear("nightly", "r1", [("a", 0), ("b", 1)])
    assert [(task.scope.task_id, task.scope.map_index) for task in touched.tasks] == [("a", 0), ("b", 1)]
    assert desk.states() == {"c": "waiting", "a/0": "waiting", "a/1": "success", "b/0": "success", "b/1": "waiting"}


@pytest.mark.parametrize("tasks", [["b"], ["a", "b"], [("a", 0)], [("each", 2)], [("each", -1)], []])
def test_what_the_run_does_not_have_is_refused_as_a_whole(desk: Desk, runs: Verbs, tasks: list[Any]) -> None:
    desk.start("a", TaskSpec("each", 0), TaskSpec("each", 1))
    desk.ran("a")
    before = desk.detail()
    with pytest.raises(NotFound, match="has no task"):
        runs.clear("nightly", "r1", tasks)
    assert desk.detail() == before


def test_every_index_at_once_is_refused_while_one_runs(desk: Desk, store: Verbs, runs: Verbs) -> None:
    """Contract 6.6."""
    desk.start("a", TaskSpec("each", 0, ("a",)), TaskSpec("each", 1, ("a",)))
    desk.ran("a")
    desk.ran("each", index=0)
    desk.begin("each", 1)
    fence = desk.fence("each", 1)
    before = desk.detail()
    for tasks, downstream in ((["each"], False), (["a"], True)):
        with pytest.raises(Conflict, match="nightly/r1/each/1"):
            runs.clear("nightly", "r1", tasks, downstream=downstream)
        assert desk.detail() == before
    state_of(store, fence).set("page", 1)
    runs.clear("nightly", "r1", ["each"], force=True)
    fails(lambda: state_of(store, fence).get("page"))
    assert desk.states() == {"a": "success", "each/0": "waiting", "each/1": "waiting"}


def test_a_run_that_has_ended_waits_to_be_gone_on_with(desk: Desk, runs: Verbs) -> None:
    desk.start("extract")
    desk.ran("extract", "failed")
    desk.release("failed")
    touched = runs.clear("nightly", "r1", ["extract"])
    assert (touched.run.state, touched.run.ended_at) == ("paused", None)
    assert desk.hold(OTHER).ok


def test_a_run_that_is_run_goes_on(desk: Desk, runs: Verbs) -> None:
    desk.start("extract", "load")
    desk.ran("extract", "failed")
    assert runs.clear("nightly", "r1", ["extract"]).run.state == "running"
    assert desk.run.holder == RUNNER


# --- mark and cancel -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["success", "failed", "cancelled"])
def test_a_mark_ends_and_fences_what_runs(desk: Desk, store: Verbs, runs: Verbs, clock: Clock, state: str) -> None:
    desk.start("extract")
    desk.begin("extract")
    fence = desk.fence("extract")
    clock.move(seconds=1)
    (task,) = runs.mark(desk.scope("extract"), state).tasks
    assert (task.state, task.ended_at, task.lease_until) == (state, clock.now, 0)
    fails(
        lambda: state_of(store, fence).get("page"),
        lambda: desk.renew(fence),
        lambda: desk.report(fence, "success"),
        lambda: desk.report(fence, "crashed", crash_retries=9),
    )
    assert desk.states() == {"extract": state}
    with pytest.raises(Conflict):
        desk.begin("extract")
    runs.clear("nightly", "r1", ["extract"])
    assert desk.begin("extract").attempt == 2


@pytest.mark.parametrize("state", ["success", "failed"])
@pytest.mark.parametrize("before", ["waiting", "up_for_retry", "success", "failed", "skipped"])
def test_anything_can_be_marked(desk: Desk, runs: Verbs, before: str, state: str) -> None:
    desk.start("extract")
    if before == "up_for_retry":
        desk.ran("extract", "failed", retries=1, retry_at=1)
    elif before != "waiting":
        desk.ran("extract", before)
    (task,) = runs.mark(desk.scope("extract"), state).tasks
    assert (task.state, task.due_at) == (state, None)


@pytest.mark.parametrize("before", ["success", "failed", "skipped"])
def test_what_has_ended_is_not_cancelled(desk: Desk, runs: Verbs, before: str) -> None:
    desk.start("extract")
    desk.ran("extract", before)
    with pytest.raises(Conflict, match="already ended"):
        runs.mark(desk.scope("extract"), "cancelled")
    assert desk.states() == {"extract": before}


def test_what_had_given_up_below_waits_again_after_a_success(desk: Desk, runs: Verbs) -> None:
    desk.start("a", ("b", "a"), ("c", "b"), ("d", "a"))
    desk.ran("a", "failed")
    desk.ran("d", "skipped")
    desk.send(Resolve(desk.scope("b"), "upstream_failed"))
    desk.send(Resolve(desk.scope("c"), "skipped"))
    desk.release("failed")
    touched = runs.mark(desk.scope("a"), "success")
    assert touched.run.state == "paused"
    assert desk.states() == {"a": "success", "b": "waiting", "c": "waiting", "d": "skipped"}
    assert desk.begin("b").attempt == 1


@pytest.mark.parametrize(("ended", "mark"), [("failed", "success"), ("success", "failed")])
def test_an_end_that_no_longer_holds_is_worked_out_anew(desk: Desk, runs: Verbs, ended: str, mark: str) -> None:
    desk.start("extract")
    desk.ran("extract", ended)
    desk.release(ended)
    assert runs.mark(desk.scope("extract"), mark).run.state == "paused"
    desk.hold(OTHER)
    assert desk.release(mark, OTHER).state == mark


def test_a_mark_that_says_the_same_leaves_the_end(desk: Desk, runs: Verbs) -> None:
    desk.start("extract")
    desk.ran("extract")
    ended = desk.release("success")
    assert runs.mark(desk.scope("extract"), "success").run == ended


def test_success_by_hand_removes_the_state_too_where_success_does(world: World) -> None:
    """Contract 6.3: on every way of reaching success."""
    store = world.open(clear_on_success=True)
    desk = Desk(Verbs(store.real.backend, store.runner))
    runs = Verbs(store.real.runs_as(ANN), store.runner)
    desk.start("a", "b")
    for task_id in "ab":
        store.task(f"nightly/r1/{task_id}").set("page", 41)
    runs.mark(desk.scope("a"), "success")
    runs.mark(desk.scope("b"), "failed")
    assert store.task("nightly/r1/a").keys() == []
    assert all(version.deleted for version in store.task("nightly/r1/a").history("page"))
    assert store.task("nightly/r1/b").get("page") == 41


def test_a_cancelled_run_ends_with_everything_open(desk: Desk, store: Verbs, runs: Verbs, clock: Clock) -> None:
    desk.start("a", "b", "c", "d")
    desk.ran("a")
    desk.ran("b", "failed")
    desk.begin("c")
    fence = desk.fence("c")
    touched = runs.cancel("nightly", "r1")
    assert [task.scope.task_id for task in touched.tasks] == ["c", "d"]
    assert desk.states() == {"a": "success", "b": "failed", "c": "cancelled", "d": "cancelled"}
    assert (touched.run.state, touched.run.ended_at) == ("cancelled", clock.now)
    fails(lambda: state_of(store, fence).set("page", 1), lambda: desk.report(fence, "success"))
    held = desk.hold()
    assert (held.ok, held.run.state) == (False, "cancelled")
    assert desk.release("paused").state == "cancelled"


@pytest.mark.parametrize("end", ["success", "failed", "cancelled"])
def test_an_ended_run_is_not_cancelled(desk: Desk, runs: Verbs, end: str) -> None:
    desk.start("extract")
    if end == "cancelled":
        runs.cancel("nightly", "r1")
    else:
        desk.ran("extract", end)
        desk.release(end)
    before = desk.detail()
    with pytest.raises(Conflict, match="already ended"):
        runs.cancel("nightly", "r1")
    assert desk.detail() == before


def test_a_cancelled_run_can_be_cleared_and_gone_on_with(desk: Desk, runs: Verbs) -> None:
    desk.start("a", "b")
    desk.begin("a")
    runs.cancel("nightly", "r1")
    desk.release("cancelled")
    assert runs.clear("nightly", "r1", ["a", "b"]).run.state == "paused"
    assert desk.hold(OTHER).ok
    assert [desk.begin(task_id).attempt for task_id in "ab"] == [2, 1]


# --- delete ----------------------------------------------------------------------------------------------------------


def rows(home: Home) -> dict[str, int]:
    """Count the rows of every table but the audit log and what SQLite and the schema keep of themselves."""
    connection = apsw.Connection(str(home.path), flags=apsw.SQLITE_OPEN_READONLY)  # type: ignore[attr-defined]
    try:
        names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
        kept = [name for name in names if name not in ("audit", "meta") and not name.startswith("sqlite_")]
        return {name: connection.execute(f"select count(*) from {name}").fetchone()[0] for name in kept}
    finally:
        connection.close()


def fill(desk: Desk, store: Verbs) -> None:
    """Make a run that has something in every table."""
    desk.start("extract", TaskSpec("each", 0), TaskSpec("each", 1))
    desk.begin("extract")
    state = state_of(store, desk.fence("extract"))
    for page in range(3):
        state.set("page", page)
    state.set("gone", 1)
    state.delete("gone")
    desk.send(PushResult(desk.fence("extract"), "rows", "1"))
    desk.report(desk.fence("extract"), "success", result="2")
    desk.ran("each", "failed", index=1, retries=1)
    store.task(f"{desk.dag_id}/{desk.run_id}/script").set("page", 1)


def test_a_deleted_run_leaves_nothing_at_all(desk: Desk, store: Verbs, runs: Verbs, home: Home) -> None:
    """Contract 6.4."""
    fill(desk, store)
    full = rows(home)
    assert all(full.values()), full
    desk.release("failed")
    runs.delete("nightly", "r1")
    assert rows(home) == dict.fromkeys(full, 0)
    with pytest.raises(NotFound):
        desk.detail()


def test_only_that_run_is_deleted(desk: Desk, store: Verbs, runs: Verbs, home: Home) -> None:
    others = [Desk(desk.backend, run_id="r2"), Desk(desk.backend, "hourly"), Desk(desk.backend, "nightly", "R1")]
    for other in others:
        fill(other, store)
    store.asset("table").set("watermark", 4)
    before = rows(home), [other.detail() for other in others]
    fill(desk, store)
    desk.release("failed")
    runs.delete("nightly", "r1")
    assert (rows(home), [other.detail() for other in others]) == before


def test_a_run_that_is_run_is_not_deleted_unless_forced(desk: Desk, store: Verbs, runs: Verbs) -> None:
    desk.start("extract")
    desk.begin("extract")
    fence = desk.fence("extract")
    with pytest.raises(Conflict, match=r"process 11 on here\.test"):
        runs.delete("nightly", "r1")
    with pytest.raises(Conflict):
        runs.delete("nightly", "r1", instead_of=OTHER)
    state_of(store, fence).set("page", 1)
    runs.delete("nightly", "r1", force=True)
    fails(
        lambda: state_of(store, fence).get("page"),
        lambda: state_of(store, fence).set("page", 1),
        lambda: desk.renew(fence),
        lambda: desk.report(fence, "success"),
        lambda: desk.report(fence, "crashed"),
    )
    assert store.scopes() == []


def test_a_dead_or_lapsed_holder_keeps_no_run(desk: Desk, runs: Verbs, clock: Clock) -> None:
    desk.start("extract", lease=30)
    runs.delete("nightly", "r1", instead_of=RUNNER)
    desk.start("extract", lease=30)
    clock.move(seconds=30)
    runs.delete("nightly", "r1")
    with pytest.raises(NotFound):
        runs.delete("nightly", "r1")


def test_a_run_made_anew_under_the_same_id_is_another_one(desk: Desk, store: Verbs, runs: Verbs) -> None:
    """Its scopes have ids of their own: nothing of the run before can reach it, whatever its attempt's number."""
    desk.start("extract")
    desk.begin("extract")
    old = desk.fence("extract")
    state_of(store, old).set("page", 41)
    runs.delete("nightly", "r1", force=True)
    desk.start("extract")
    desk.begin("extract")
    new = desk.fence("extract")
    assert new.attempt == old.attempt
    fails(
        lambda: state_of(store, old).get("page"),
        lambda: state_of(store, old).set("page", 1),
        lambda: desk.renew(old),
        lambda: desk.report(old, "success"),
        lambda: desk.report(old, "crashed"),
        lambda: desk.send(PushResult(old, "rows", "1")),
    )
    assert state_of(store, new).get("page") is None
    assert desk.states() == {"extract": "running"}


# --- prune -----------------------------------------------------------------------------------------------------------


def test_runs_go_when_they_ended_long_ago_and_no_others(desk: Desk, store: Verbs, clock: Clock, home: Home) -> None:
    """Contract 6.4. Held, unended and recent ones stay."""
    for run_id, end in [("old", "success"), ("older", "failed"), ("paused", "paused"), ("cut", "cancelled")]:
        one = Desk(desk.backend, run_id=run_id)
        one.start("extract")
        one.ran("extract", "success" if end == "success" else "failed")
        one.release(end)
    fill(Desk(desk.backend, run_id="running"), store)
    ended = clock.now
    clock.move(days=1)
    recent = Desk(desk.backend, run_id="recent")
    recent.start("extract")
    recent.ran("extract")
    recent.release("success")
    assert desk.send(PruneRuns(ended - 1, 100)).runs == ()
    listed = desk.send(PruneRuns(ended, 100, dry_run=True))
    assert (listed.runs, listed.more) == ((("nightly", "old"), ("nightly", "older"), ("nightly", "cut")), False)
    assert desk.send(PruneRuns(ended, 100)).runs == listed.runs
    left = {run.run_id for run, _ in Verbs(store.real.runs_as(ANN), store.runner).list()}
    assert left == {"paused", "running", "recent"}
    for one in (Desk(desk.backend, run_id=run_id) for run_id in left):
        Verbs(store.real.runs_as(ANN), store.runner).delete("nightly", one.run_id, force=True)
    assert set(rows(home).values()) == {0}


def test_an_ended_run_still_held_stays(desk: Desk, runs: Verbs, clock: Clock) -> None:
    desk.start("extract", lease=30)
    runs.cancel("nightly", "r1")
    assert desk.send(PruneRuns(clock.now, 100)).runs == ()
    clock.move(seconds=30)
    assert desk.send(PruneRuns(clock.now, 100)).runs == (("nightly", "r1"),)


def test_pruning_goes_in_batches_and_tells_of_each(desk: Desk, store: Verbs, clock: Clock) -> None:
    for number in range(45):
        one = Desk(desk.backend, run_id=f"r{number:02}")
        one.start("extract")
        one.ran("extract")
        one.release("success")
        clock.move(microseconds=1)
    real = store.real
    config = Config(state_store=settings().state_store, runner=RunnerSettings(keep_runs_days=1))
    runs = Verbs(Runs(real.backend, config, real.clock, ANN), store.runner)
    assert runs.prune() == []
    clock.move(days=1)
    batches: list[int] = []
    assert len(runs.prune(dry_run=True)) == 45
    removed = runs.prune(removed=lambda names: batches.append(len(names)))
    assert removed == [("nightly", f"r{number:02}") for number in range(45)]
    assert batches == [20, 20, 5]
    assert runs.list() == []
    assert [row.action for row in runs.audit()] == ["prune run"] * 45


def test_nothing_is_pruned_where_runs_are_kept_for_ever(desk: Desk, runs: Verbs, clock: Clock) -> None:
    desk.start("extract")
    desk.ran("extract")
    desk.release("success")
    clock.move(days=36500)
    assert runs.prune(keep_days=0) == []
    assert runs.prune(keep_days=1) == [("nightly", "r1")]


@pytest.mark.parametrize("end", ["running", "paused", "success"])
def test_the_sweeper_leaves_the_scopes_of_runs(desk: Desk, store: Verbs, runs: Verbs, clock: Clock, end: str) -> None:
    """An empty scope that no run knows goes after its grace; one of a run keeps its fence for ever."""
    desk.start("extract", "load")
    store.task("nightly/r1/script", attempt="new")
    desk.ran("extract")
    desk.ran("load")
    if end != "running":
        desk.release(end)
    fence = desk.fence("extract")
    for _ in range(3):
        clock.move(days=400)
        desk.send(Sweep(1000))
    assert [str(info.scope) for info in store.scopes()] == ["nightly/r1/extract", "nightly/r1/load"]
    assert desk.fence("extract") == fence
    runs.delete("nightly", "r1", force=True)
    assert store.scopes() == []


def test_expiry_does_not_end_a_run(desk: Desk, store: Verbs, clock: Clock) -> None:
    desk.start("extract")
    desk.begin("extract")
    state_of(store, desk.fence("extract")).set("page", 1)
    clock.move(days=31)
    desk.send(Sweep(1000))
    assert state_of(store, desk.fence("extract")).get("page") is None
    desk.report(desk.fence("extract"), "success")


# --- audit -----------------------------------------------------------------------------------------------------------


def test_what_people_do_is_in_the_audit_log_and_what_runs_do_is_not(desk: Desk, runs: Verbs, clock: Clock) -> None:
    """Contract 10."""
    desk.start("a", "b")
    desk.ran("a", "failed")
    clock.move(seconds=5)
    runs.clear("nightly", "r1", ["a"])
    runs.clear("nightly", "r1", ["a"], discard=True)
    runs.mark(desk.scope("a"), "success")
    runs.mark(desk.scope("b"), "cancelled")
    desk.release("success")
    runs.clear("nightly", "r1", ["b"])
    runs.cancel("nightly", "r1")
    runs.delete("nightly", "r1")
    found = runs.audit()
    assert {(row.who, row.at, row.dag_id) for row in found} == {("ann@desk", clock.now, "nightly")}
    assert [(row.action, row.place, row.before, row.after) for row in reversed(found)] == [
        ("clear", "nightly/r1/a", '"failed"', '"waiting"'),
        ("clear and discard", "nightly/r1/a", '"waiting"', '"waiting"'),
        ("mark success", "nightly/r1/a", '"waiting"', '"success"'),
        ("cancel", "nightly/r1/b", '"waiting"', '"cancelled"'),
        ("clear", "nightly/r1/b", '"cancelled"', '"waiting"'),
        ("cancel run", "nightly/r1", '"paused"', '"cancelled"'),
        ("delete run", "nightly/r1", '"cancelled"', None),
    ]


def test_what_is_refused_is_not_in_the_audit_log(desk: Desk, runs: Verbs) -> None:
    desk.start("a")
    desk.ran("a")
    for call in (
        lambda: runs.mark(desk.scope("a"), "cancelled"),
        lambda: runs.delete("nightly", "r1"),
        lambda: runs.clear("nightly", "r1", ["b"]),
    ):
        with pytest.raises((Conflict, NotFound)):
            call()
    assert runs.audit() == []


def test_secret_values_are_audited_as_digests(world: World) -> None:
    store = world.open(secret_keys=("*token*",))
    desk = Desk(Verbs(store.real.backend, store.runner))
    runs = Verbs(store.real.runs_as(ANN), store.runner)
    desk.start("a")
    state = store.task("nightly/r1/a", writer=ANN)
    state.set("api_token", "hunter2")
    state.set("page", 41)
    runs.clear("nightly", "r1", ["a"], discard=True)
    told = {(row.action, row.name): (row.before, row.after) for row in runs.audit()}
    assert told["set", "page"] == (None, "41")
    assert told["delete", "page"] == ("41", None)
    before, after = told["delete", "api_token"][0], told["set", "api_token"][1]
    assert before == after
    assert after.startswith('"9 bytes, blake2b ')
    assert "hunter2" not in str(told)


def test_the_audit_log_is_read_by_dag_and_in_pages(desk: Desk, store: Verbs, runs: Verbs) -> None:
    for dag_id in ("nightly", "hourly"):
        one = Desk(desk.backend, dag_id)
        one.start("a")
        for _ in range(4):
            runs.clear(dag_id, "r1", ["a"])
    store.asset("table", writer=ANN).set("watermark", 1)
    assert [row.dag_id for row in runs.audit()] == [None, *["hourly"] * 4, *["nightly"] * 4]
    assert [row.dag_id for row in runs.audit(dag_id="nightly")] == ["nightly"] * 4
    assert [row.dag_id for row in runs.audit(dag_id="n*", limit=3)] == ["nightly"] * 3
    assert len(runs.audit(limit=2)) == 2
    page = desk.send(ListAudit(limit=4))
    rest = desk.send(ListAudit(page.before, limit=100))
    assert [row.id for row in page.rows + rest.rows] == list(range(9, 0, -1))
    assert rest.before is None


# --- all or nothing --------------------------------------------------------------------------------------------------


def test_a_stale_claim_after_a_clear_is_refused(desk: Desk, runs: Verbs) -> None:
    """A worker told to begin after attempt 0 comes late, when attempt 1 has come and gone by."""
    desk.start("a")
    desk.ran("a", "failed")
    runs.clear("nightly", "r1", ["a"])
    with pytest.raises(Conflict):
        desk.send(Begin(desk.scope("a"), 0, SUPERVISOR, 30))
    assert desk.begin("a", after=1).attempt == 2
