"""A commit with an id is carried out once within the hour, whatever has become of its scope meanwhile. Contract 4.6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlast import Conflict, ValueTooLarge
from outlast.people_requests import ClearTasks
from outlast.requests import (
    Check,
    Commit,
    Increment,
    MergeAssets,
    Open,
    Operation,
    Part,
    Put,
    PutDefault,
    Receipt,
    Remove,
    Sweep,
)
from outlast.run_requests import Begin, DeleteRun, PruneRuns
from outlast.values import AssetScope, Scope, TaskScope
from support.clock import Clock
from support.runs import ANN, SUPERVISOR, Desk, state_of
from support.verbs import Verbs

ACCOUNT = AssetScope("account")


@pytest.fixture
def backend(store: Verbs) -> Verbs:
    return Verbs(store.real.backend, store.runner)


def write(scope: Scope, *operations: Operation) -> Part:
    return Part(scope, operations or (Put("key", "7", None),))


def texts(receipt: Receipt) -> list[list[str | None]]:
    return [[None if row is None else row.text for row in part] for part in receipt.rows]


# --- ways in which state goes -------------------------------------------------------------------------------------


def succeeds(desk: Desk, clock: Clock) -> None:
    desk.report(desk.fence("extract"), "success", clear_state=True)


def is_discarded(desk: Desk, clock: Clock) -> None:
    desk.send(ClearTasks(desk.dag_id, desk.run_id, (("extract", None),), ANN, discard=True))


def is_deleted(desk: Desk, clock: Clock) -> None:
    desk.report(desk.fence("extract"), "failed")
    desk.release("failed")
    desk.send(DeleteRun(desk.dag_id, desk.run_id, ANN))


def is_pruned(desk: Desk, clock: Clock) -> None:
    desk.report(desk.fence("extract"), "failed")
    desk.release("failed")
    desk.send(PruneRuns(clock.now, 10))


WAYS = [succeeds, is_discarded, is_deleted, is_pruned]


@pytest.mark.parametrize("goes", WAYS)
def test_a_commit_is_not_made_again_after_its_state_has_gone(
    store: Verbs, desk: Desk, clock: Clock, backend: Verbs, goes: Callable[[Desk, Clock], None]
) -> None:
    """Neither of its parts: what it has added to an asset is added once, and nothing comes back to the task."""
    desk.start("extract")
    desk.begin("extract")
    parts = (write(desk.scope("extract")), write(ACCOUNT, Increment("sum", 100, None)))
    commit = Commit(parts, commit_id="one")
    first = backend.send(commit)
    assert texts(first) == [["7"], ["100"]]
    goes(desk, clock)
    assert backend.send(commit) == first
    assert backend.send(Commit((parts[1],), commit_id="two")).rows[0][0].text == "200"
    assert (store.asset("account").get("sum"), store.task(desk.scope("extract")).items()) == (200, [])


def test_the_value_of_what_has_gone_is_answered_no_more_and_not_made_again(
    store: Verbs, desk: Desk, backend: Verbs
) -> None:
    """What the request says itself is known; what was removed or only looked at was not answered either."""
    desk.start("extract")
    desk.begin("extract")
    scope = desk.scope("extract")
    state_of(store, desk.fence("extract")).set_many({"old": 1, "seen": 2})
    counted = Commit((write(ACCOUNT), write(scope, Increment("n", 5, None))), commit_id="counted")
    default = Commit((write(scope, PutDefault("d", "8", None)),), commit_id="default")
    others = Commit((write(scope, Put("k", "9", None), Remove("old"), Check("seen", 1)),), commit_id="others")
    made = [backend.send(commit) for commit in (counted, default, others)]
    assert [backend.send(commit) for commit in (counted, default, others)] == made
    desk.report(desk.fence("extract"), "success", clear_state=True)
    for commit, name in ((counted, "n"), (default, "d")):
        with pytest.raises(Conflict, match=f"carried out when it was first sent; what '{name}' was then is gone"):
            backend.send(commit)
    again = backend.send(others)
    assert (again, texts(again)) == (made[2], [["9", None, None]])
    assert store.task(scope).items() == []


def test_what_stays_answers_beside_what_has_gone(store: Verbs, desk: Desk, backend: Verbs) -> None:
    """An asset's value is its own, also in a commit that is fenced by the task's attempt."""
    desk.start("extract")
    desk.send(Begin(desk.scope("extract"), 0, SUPERVISOR, 30.0, (ACCOUNT,)))
    fence = desk.fence("extract")
    parts = (write(desk.scope("extract")), write(ACCOUNT, Increment("sum", 100, None)))
    commit = Commit(parts, fence, commit_id="one")
    first = backend.send(commit)
    desk.report(fence, "success", clear_state=True)
    store.asset("account").increment("sum")
    assert backend.send(commit) == first
    assert texts(first) == [["7"], ["100"]]


def test_a_commit_to_a_run_whose_name_was_used_again_is_not_made_in_the_new_one(store: Verbs, backend: Verbs) -> None:
    scope = TaskScope("dag", "run", "task")
    backend.send(Open(scope, 1, (), "run:1", 1_000))
    commit = Commit((write(scope),), commit_id="one")
    first = backend.send(commit)
    backend.send(Open(scope, 1, (), "run:2", 2_000))
    assert backend.send(commit) == first
    assert store.task(scope).items() == []


def test_a_commit_to_an_asset_that_was_merged_is_not_made_again(store: Verbs, backend: Verbs) -> None:
    """Its sum comes along with its state."""
    store.asset("account").set("other", 1)
    commit = Commit((write(AssetScope(None, "s3://account"), Increment("sum", 100, None)),), commit_id="one")
    first = backend.send(commit)
    backend.send(MergeAssets("account", "s3://account", ANN))
    assert backend.send(commit) == first
    assert store.asset("account").items() == [("other", 1), ("sum", 100)]


def test_another_commit_under_the_id_is_refused_after_the_state_has_gone(
    store: Verbs, desk: Desk, clock: Clock, backend: Verbs
) -> None:
    desk.start("extract")
    desk.begin("extract")
    backend.send(Commit((write(desk.scope("extract")),), commit_id="one"))
    succeeds(desk, clock)
    with pytest.raises(Conflict, match="this id was used before"):
        backend.send(Commit((write(desk.scope("extract"), Put("key", "8", None)),), commit_id="one"))


def test_receipts_end_after_an_hour_with_their_values(backend: Verbs, clock: Clock, home: Any) -> None:
    for number in range(5):
        backend.send(Commit((write(ACCOUNT, Increment("sum", 1, None)),), commit_id=f"id {number}"))
    assert home.rows()["receipt"] == 10
    clock.move(hours=1)
    backend.send(Sweep(100))
    assert home.rows()["receipt"] <= 1  # of the sweep itself


# --- how much a commit answers ------------------------------------------------------------------------------------

LARGE = 4 * 1024 * 1024


def test_a_small_commit_has_no_huge_answer(store: Verbs, backend: Verbs) -> None:
    """Four values of 4 MiB are answered; of five, over all parts, nothing is changed, and nothing kept under the id."""
    task, scope = store.task("dag/run/task"), TaskScope("dag", "run", "task")
    task.set("large", "x" * LARGE)
    found = PutDefault("large", "1", None)
    replies = backend.send(Commit((write(scope, *[found] * 4),), commit_id="four")).rows[0]
    assert [len(row.text) for row in replies] == [LARGE + 2] * 4
    store.asset("account").set("large", "y" * LARGE)
    parts = (write(scope, Put("new", "1", None), *[found] * 3), write(ACCOUNT, found, Put("n", "1", None), found))
    for commit_id in ("five", "five", None):
        with pytest.raises(ValueTooLarge, match="more than 17 MiB; make several commits of it"):
            backend.send(Commit(parts, commit_id=commit_id))
    assert (task.keys(), store.asset("account").keys()) == (["large"], ["large"])
    assert backend.send(Commit((write(scope, Put("new", "2", None)),), commit_id="five")).revisions == (2,)


def test_what_is_only_checked_or_removed_is_not_answered(store: Verbs, backend: Verbs) -> None:
    """So a transaction may read, and remove, more than a commit may answer."""
    scope = TaskScope("dag", "run", "task")
    task = store.task(scope)
    for number in range(5):
        task.set(f"large {number}", "x" * LARGE)
    with task.transaction() as tx:
        assert [len(tx.get(f"large {number}")) for number in range(5)] == [LARGE] * 5
        tx.set("seen", 5)
    checks = [Check(f"large {number}", number + 1) for number in range(5)]
    removals = [Remove(f"large {number}") for number in range(5)]
    receipt = backend.send(Commit((write(scope, *checks, *removals, Remove("absent")),)))
    told = [(row.name, row.text, row.revision) for row in receipt.rows[0][:-1]]
    assert told == [(f"large {number}", None, number + 1) for number in range(5)] * 2
    assert (receipt.rows[0][-1], task.items()) == (None, [("seen", 5)])
