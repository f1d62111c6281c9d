"""Runs: made once, held by one runner at a time, ended, listed."""

from __future__ import annotations

import pytest

from outlast import Conflict, NotFound, StaleAttempt
from outlast.people_requests import ClearTasks
from outlast.requests import ListScopes
from outlast.run_requests import GetRun, ListAttempts, ListDags, ListRuns, Resolve, RunPage, TaskSpec
from support.clock import Clock
from support.runs import ANN, OTHER, RUNNER, SUPERVISOR, Desk, state_of
from support.verbs import Verbs

SECOND = 1_000_000


def test_a_new_run_is_held_and_its_task_instances_wait(desk: Desk, clock: Clock) -> None:
    detail = desk.start("extract", ("load", "extract"), TaskSpec("each", 0, ("load",)), TaskSpec("each", 1, ("load",)))
    run = detail.run
    assert (run.state, run.holder, run.lease_until) == ("running", RUNNER, clock.now + 30 * SECOND)
    assert (run.started_at, run.ended_at) == (clock.now, None)
    assert [str(task.scope) for task in detail.tasks] == [
        "nightly/r1/extract",
        "nightly/r1/load",
        "nightly/r1/each/0",
        "nightly/r1/each/1",
    ]
    assert {(task.state, task.attempt, task.started_at) for task in detail.tasks} == {("waiting", 0, None)}
    assert [task.upstream for task in detail.tasks] == [(), ("extract",), ("load",), ("load",)]
    assert desk.detail() == detail


def test_a_run_id_is_used_once(desk: Desk) -> None:
    first = desk.start("extract")
    with pytest.raises(Conflict, match="exists already"):
        desk.start("other")
    assert desk.detail() == first
    Desk(desk.backend, "hourly").start("extract")


def test_a_run_takes_up_what_was_stored_under_its_name_before(desk: Desk, store: Verbs) -> None:
    before = store.task("nightly/r1/extract", attempt="new")
    before.set("page", 41)
    desk.start("extract")
    assert desk.begin("extract").attempt == 2
    assert state_of(store, desk.fence("extract")).get("page") == 41
    with pytest.raises(StaleAttempt):
        before.get("page")


def test_the_holder_renews_and_another_is_refused(desk: Desk, clock: Clock) -> None:
    desk.start("extract")
    clock.move(seconds=10)
    held = desk.hold()
    assert (held.ok, held.run.lease_until) == (True, clock.now + 30 * SECOND)
    refused = desk.hold(OTHER)
    assert (refused.ok, refused.run) == (False, held.run)
    assert desk.run == held.run


def test_a_lapsed_hold_is_taken_over_to_the_microsecond(desk: Desk, clock: Clock) -> None:
    desk.start("extract", lease=30)
    clock.move(seconds=30, microseconds=-1)
    assert not desk.hold(OTHER).ok
    clock.move(microseconds=1)
    assert desk.hold(OTHER).run.holder == OTHER
    assert not desk.hold(RUNNER).ok


def test_a_holder_known_to_be_dead_is_replaced_at_once_but_no_other_one(desk: Desk) -> None:
    desk.start("extract")
    assert not desk.hold(OTHER, instead_of=SUPERVISOR).ok
    assert desk.hold(OTHER, instead_of=RUNNER, file="/new.py", digest="new").ok
    assert (desk.run.holder, desk.run.file, desk.run.digest) == (OTHER, "/new.py", "new")
    assert not desk.hold(RUNNER).ok


def test_a_paused_run_goes_on_as_running(desk: Desk) -> None:
    desk.start("extract")
    paused = desk.release("paused")
    assert (paused.state, paused.holder, paused.lease_until, paused.ended_at) == ("paused", None, 0, None)
    assert desk.hold(OTHER).run.state == "running"
    assert desk.run.file == "/dags/nightly.py"


@pytest.mark.parametrize("end", ["success", "failed"])
def test_an_ended_run_cannot_be_held_again(desk: Desk, clock: Clock, end: str) -> None:
    desk.start("extract")
    desk.ran("extract", "success" if end == "success" else "failed")
    assert desk.release(end).ended_at == clock.now
    assert not desk.hold(RUNNER).ok
    assert desk.run.state == end


def test_a_hold_taken_away_is_not_released(desk: Desk) -> None:
    desk.start("extract")
    desk.hold(OTHER, instead_of=RUNNER)
    assert desk.release("failed", RUNNER).state == "running"
    assert desk.run.holder == OTHER


def test_a_run_with_a_task_instance_still_to_run_does_not_end(desk: Desk) -> None:
    """Somebody cleared it between the runner's last look and the end: the clear is not lost."""
    desk.start("extract")
    desk.ran("extract")
    desk.send(ClearTasks("nightly", "r1", (("extract", None),), ANN))
    released = desk.release("success")
    assert (released.state, released.ended_at, released.holder) == ("paused", None, None)


def test_what_is_not_there_is_not_found(desk: Desk) -> None:
    desk.start("extract")
    for request in [
        GetRun("nightly", "other"),
        ListAttempts(desk.scope("other")),
        ListAttempts(desk.scope("extract", 0)),
        Resolve(desk.scope("other"), "skipped"),
    ]:
        with pytest.raises(NotFound):
            desk.send(request)
    with pytest.raises(NotFound):
        Desk(desk.backend, run_id="other").hold()
    with pytest.raises(NotFound):
        desk.begin("other", after=0)


def test_a_scope_outside_any_run_is_no_task_instance(desk: Desk, store: Verbs) -> None:
    desk.start("extract")
    store.task("nightly/r1/script").set("page", 1)
    with pytest.raises(NotFound, match="no run has"):
        desk.begin("script", after=0)


def test_one_task_of_a_run_can_be_asked_for(desk: Desk) -> None:
    desk.start("extract", TaskSpec("each", 0), TaskSpec("each", 1))
    found = desk.send(GetRun("nightly", "r1", "each"))
    assert [task.scope.map_index for task in found.tasks] == [0, 1]
    assert desk.send(GetRun("nightly", "r1", "other")).tasks == ()


def test_runs_are_listed_newest_first_in_pages(desk: Desk, store: Verbs) -> None:
    for number in range(5):
        Desk(desk.backend, run_id=f"r{number}").start("extract", "load")
    Desk(desk.backend, "hourly").start("extract")
    Desk(desk.backend, run_id="r3").release("paused")
    page = desk.send(ListRuns(limit=4))
    assert [run.run_id for run, _ in page.runs] == ["r1", "r4", "r3", "r2"]
    rest = desk.send(ListRuns(before=page.before, limit=4))
    assert [run.run_id for run, _ in rest.runs] == ["r1", "r0"]
    assert rest.before is None
    assert [run.run_id for run, _ in desk.send(ListRuns("nightly", ("paused", "failed"))).runs] == ["r3"]
    assert desk.send(ListRuns("other")).runs == ()


def test_runs_are_counted_and_paged_by_offset_among_some_dags(desk: Desk, store: Verbs) -> None:
    for dag_id in ("nightly", "hourly", "other"):
        for number in range(3):
            Desk(desk.backend, dag_id, f"r{number}").start("extract", "load")
    Desk(desk.backend, "hourly", "r1").release("paused")
    page = desk.send(ListRuns(among=("nightly", "hourly"), limit=2, offset=1, total=True))
    assert ([(run.dag_id, run.run_id) for run, _ in page.runs], page.total) == (
        [("hourly", "r1"), ("hourly", "r0")],
        6,
    )
    assert [counts for _, counts in page.runs] == [{"waiting": 2}, {"waiting": 2}]
    assert desk.send(ListRuns("hourly", ("paused",), limit=0, total=True)) == RunPage((), None, 1)
    assert desk.send(ListRuns("nightly", offset=3, total=True)) == RunPage((), None, 3)
    assert desk.send(ListRuns()).total is None


def test_dags_are_listed_with_their_newest_run(desk: Desk, store: Verbs) -> None:
    for number in range(2):
        Desk(desk.backend, run_id=f"r{number}").start("extract", file=f"/dags/{number}.py")
    store.real.task("script/r1/load", attempt="new")
    page = desk.send(ListDags(limit=1))
    assert [(dag.dag_id, dag.runs, dag.file) for dag in page.dags] == [("nightly", 2, "/dags/1.py")]
    rest = desk.send(ListDags(page.after or "", limit=2))
    assert [(dag.dag_id, dag.runs, dag.newest, dag.file) for dag in rest.dags] == [("script", 0, None, "")]
    assert rest.after is None


def test_scopes_can_be_listed_without_counting_their_entries(desk: Desk, store: Verbs) -> None:
    store.real.task("script/r1/load", attempt="new").set("page", 1)
    counted, plain = (desk.send(ListScopes("script", counts=counts)).scopes[0] for counts in (True, False))
    assert (counted.entries, counted.bytes) == (1, 1)
    assert (plain.entries, plain.bytes) == (0, 0)
    assert (plain.id, plain.scope, plain.revision) == (counted.id, counted.scope, counted.revision)


def test_runs_are_listed_with_their_task_instances_by_state(desk: Desk, store: Verbs) -> None:
    desk.start("extract", "load", "report")
    desk.ran("extract")
    Desk(desk.backend, "hourly").start("extract")
    verbs = Verbs(store.real.runs_as(ANN), store.runner)
    assert [counts for _, counts in verbs.list()] == [{"waiting": 1}, {"success": 1, "waiting": 2}]
    assert [run.dag_id for run, _ in verbs.list(dag_id="night*")] == ["nightly"]
    assert [run.dag_id for run, _ in verbs.list(dag_id="*ly", limit=1)] == ["hourly"]
    assert verbs.list(dag_id="night") == []
