"""Deleting and pruning runs, and what the sweeper leaves. Contract 6.4."""

from __future__ import annotations

import pytest

from outlast import Conflict, NotFound
from outlast.config import Config, RunnerSettings
from outlast.requests import Sweep
from outlast.run_requests import (
    PruneRuns,
    PushResult,
    TaskSpec,
)
from outlast.runs import Runs
from support.clock import Clock
from support.homes import Home, settings
from support.runs import ANN, OTHER, RUNNER, Desk, fails, state_of
from support.verbs import Verbs

# --- delete ------------------------------------------------------------------------------------------------


def rows(home: Home) -> dict[str, int]:
    """Count the rows of every table but the audit log, the feed, events of assets and what the schema keeps."""
    kept = ("asset_event", "audit", "consumer", "feed", "meta", "receipt", "secret", "token", "watcher")
    return {name: count for name, count in home.rows().items() if name not in kept and not name.startswith("sqlite_")}


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


# --- prune -------------------------------------------------------------------------------------------------


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
