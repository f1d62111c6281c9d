"""Marking and cancelling by hand, and the audit log. Contract 5.2, 6.3, 10."""

from __future__ import annotations

import hashlib
from hashlib import blake2b

import pytest

from outlast import Conflict, NotFound
from outlast.people_requests import ListAudit
from outlast.run_requests import NoteAftermath, PullResults, Resolve
from support.clock import Clock
from support.runs import ANN, OTHER, Desk, fails, state_of
from support.verbs import Verbs
from support.world import World

# --- mark and cancel ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("before", ["success", "failed", "cancelled"])
def test_what_was_done_after_an_end_is_not_due_again_when_it_is_marked_failed(
    desk: Desk, runs: Verbs, before: str
) -> None:
    desk.start("extract")
    desk.begin("extract")
    if before == "cancelled":
        runs.mark(desk.scope("extract"), "cancelled")
    else:
        desk.report(desk.fence("extract"), before)
    desk.send(NoteAftermath(desk.scope("extract"), 1, done=True))
    (task,) = runs.mark(desk.scope("extract"), "failed").tasks
    assert (task.state, task.aftermath) == ("failed", None)


def test_a_cancel_that_is_due_stays_due_when_it_is_marked_failed(desk: Desk, runs: Verbs) -> None:
    desk.start("extract")
    desk.begin("extract")
    runs.mark(desk.scope("extract"), "cancelled")
    desk.send(NoteAftermath(desk.scope("extract"), 1))
    (task,) = runs.mark(desk.scope("extract"), "failed").tasks
    assert (task.state, task.aftermath, task.cancel_due) == ("failed", 1, True)


def test_what_runs_and_is_marked_failed_has_its_job_to_be_seen_to(desk: Desk, runs: Verbs) -> None:
    desk.start("extract")
    desk.begin("extract")
    assert runs.mark(desk.scope("extract"), "failed").tasks[0].aftermath == 0


def test_an_end_with_a_cancel_still_due_is_asked_for_again(desk: Desk, runs: Verbs) -> None:
    desk.start("a", "b")
    desk.begin("a")
    runs.cancel("nightly", "r1")
    desk.send(NoteAftermath(desk.scope("a"), 1))
    before = desk.detail()
    assert [task.scope.task_id for task in runs.cancel("nightly", "r1").tasks] == ["a"]
    assert [task.aftermath for task in runs.mark(desk.scope("a"), "cancelled").tasks] == [1]
    assert desk.detail() == before
    desk.send(NoteAftermath(desk.scope("a"), 1, done=True))
    with pytest.raises(Conflict, match="already ended"):
        runs.cancel("nightly", "r1")
    with pytest.raises(Conflict, match="already ended"):
        runs.mark(desk.scope("a"), "cancelled")


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


def test_what_is_taken_for_done_has_a_result(desk: Desk, runs: Verbs) -> None:
    """None, unless it had returned something: tasks below that use it can run."""
    desk.start("a", "b", "c")
    desk.ran("b", result="41")
    desk.ran("c", result="42")
    runs.clear("nightly", "r1", ["c"])
    for task_id in "abc":
        runs.mark(desk.scope(task_id), "success")
    found = desk.send(PullResults("nightly", "r1", ("a", "b", "c"), "return_value")).rows
    assert found == (("a", -1, "null"), ("b", -1, "41"), ("c", -1, "null"))


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


# --- audit -------------------------------------------------------------------------------------------------


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
    assert after.startswith('"9 bytes, keyed digest ')
    assert "hunter2" not in str(told)


def test_digests_of_secrets_are_keyed_with_a_secret_of_the_store(world: World) -> None:
    """Who has the log cannot try out values; in one store, equal values look equal."""
    for task in ("a", "b"):
        store = world.open(secret_keys=("*token*",))
        store.task(f"nightly/r1/{task}", writer=ANN).set("api_token", "hunter2")
    store.task("nightly/r1/c", writer=ANN).set("api_token", "hunter3")
    same, other = {row.after for row in Verbs(store.real.runs_as(ANN), store.runner).audit()}
    told = str((same, other))
    for text in ('"hunter2"', "hunter2", '"hunter3"', "hunter3"):
        for name in ("blake2b", "sha256", "md5", "sha1"):
            digest = blake2b(text.encode(), digest_size=16) if name == "blake2b" else hashlib.new(name, text.encode())
            assert digest.hexdigest()[:32] not in told


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
