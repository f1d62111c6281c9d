"""Clearing task instances to run again. Contract 5.2, 6.2, 6.6."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Conflict, InvalidKey, NotFound
from outlast.run_requests import (
    Begin,
    PullResults,
    PushResult,
    Resolve,
    TaskSpec,
)
from support.runs import ANN, OTHER, RUNNER, SUPERVISOR, Desk, fails, state_of
from support.verbs import Verbs
from support.world import World


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


def test_a_clear_can_forget_some_keys_in_the_same_step(desk: Desk, store: Verbs, runs: Verbs) -> None:
    desk.start("extract", ("load", "extract"))
    desk.ran("extract", "failed")
    below = store.task("nightly/r1/load")
    below.set("page", 7)
    state = store.task("nightly/r1/extract")
    state.set_many({"page": 41, "cursor": "a", "rows": 3})
    revision = state.entry("page").revision
    runs.clear("nightly", "r1", ["extract"], forget=["cursor", "rows", "absent", "rows"])
    assert state.keys() == ["page"]
    assert [version.deleted for version in state.history("cursor")] == [True, False]
    state.set("page", 42)
    assert state.entry("page").revision == revision + 2  # what was forgotten went in one commit
    assert below.get("page") == 7  # only what was named forgets
    assert [(row.action, row.name) for row in runs.audit() if row.name] == [("delete", "rows"), ("delete", "cursor")]
    with pytest.raises(InvalidKey):
        runs.clear("nightly", "r1", ["extract"], forget=["a/../b"])


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


def test_a_stale_claim_after_a_clear_is_refused(desk: Desk, runs: Verbs) -> None:
    """A worker told to begin after attempt 0 comes late, when attempt 1 has come and gone by."""
    desk.start("a")
    desk.ran("a", "failed")
    runs.clear("nightly", "r1", ["a"])
    with pytest.raises(Conflict):
        desk.send(Begin(desk.scope("a"), 0, SUPERVISOR, 30))
    assert desk.begin("a", after=1).attempt == 2
