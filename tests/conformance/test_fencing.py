"""Attempts are fenced: contract 5."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outlast import AssetState, StaleAttempt, TaskState
from support.clock import Clock
from support.verbs import CALLS, LONGER, Verbs

EVERYTHING = CALLS | LONGER
ON_ASSETS = {name: call for name, call in EVERYTHING.items() if name != "checkpoint"}


def attempts(store: Verbs) -> list[tuple[str, int]]:
    return [(str(info.scope), info.attempt) for info in store.scopes()]


def picture(store: Verbs) -> list[Any]:
    """Return all there is: entries and revisions."""
    scopes = [*store.scopes(), *store.scopes(assets=True)]
    return [scopes, store.task("dag/run/task").entries(), store.asset("table").entries()]


def verbs_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize("kind", [TaskState, AssetState])
def test_no_verb_is_forgotten_here(kind: type) -> None:
    """A verb added to the class must be added to the calls below, and so be tested as fenced."""
    twins = {name for name in verbs_of(kind) if "a" + name in verbs_of(kind)}
    assert twins == set(CALLS)
    others = verbs_of(kind) - twins - {"a" + name for name in twins}
    assert others == (
        {"transaction", "watch", "checkpoint", "asset"} if kind is TaskState else {"transaction", "watch"}
    )


def test_an_attempt_opens_with_its_number(store: Verbs) -> None:
    """Contract 5.1."""
    assert store.task("dag/run/task", attempt=1).attempt == 1
    assert store.task("dag/run/task", attempt=4).attempt == 4
    assert store.task("dag/run/task").attempt is None
    assert attempts(store) == [("dag/run/task", 4)]


def test_new_takes_the_next_number(store: Verbs) -> None:
    """Contract 5.1: for scripts."""
    assert [store.task("dag/run/task", attempt="new").attempt for _ in range(3)] == [1, 2, 3]
    store.task("dag/run/task", attempt=10)
    assert store.task("dag/run/task", attempt="new").attempt == 11


def test_new_is_atomic(store: Verbs) -> None:
    """Contract 5.1: two scripts that begin at once are two attempts."""
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.real.task("dag/run/task", attempt="new").attempt))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 9))


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "1", "newest", object(), 2**63, 2**80])
def test_an_attempt_that_is_no_number_is_refused(store: Verbs, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="attempt"):
        store.task("dag/run/task", attempt=wrong)
    assert store.scopes() == []


def test_the_fence_only_rises(store: Verbs) -> None:
    """Contract 5.1."""
    store.task("dag/run/task", attempt=3)
    for older in (1, 2):
        with pytest.raises(StaleAttempt, match=f"attempt {older} of dag/run/task was superseded by attempt 3"):
            store.task("dag/run/task", attempt=older)
    assert attempts(store) == [("dag/run/task", 3)]


def test_the_same_attempt_may_open_again(store: Verbs) -> None:
    """Contract 5.1: as a worker that reconnects does."""
    first, again = store.task("dag/run/task", attempt=2), store.task("dag/run/task", attempt=2)
    first.set("key", 1)
    again.set("key", 2)
    assert (first.get("key"), attempts(store)) == (2, [("dag/run/task", 2)])


@pytest.mark.parametrize("verb", EVERYTHING)
def test_an_older_attempt_is_refused_on_task_state(store: Verbs, verb: str) -> None:
    """Contract 5.1: at every verb, reads included."""
    old = store.task("dag/run/task", attempt=1)
    old.set_many({"key": "old", "number": 1})
    new = store.task("dag/run/task", attempt=2)
    before = picture(store)
    with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
        EVERYTHING[verb](old)
    assert picture(store) == before
    new.set("key", "new")
    with pytest.raises(StaleAttempt):
        EVERYTHING[verb](old)
    assert new.items() == [("key", "new"), ("number", 1)]


@pytest.mark.parametrize("verb", ON_ASSETS)
def test_an_older_attempt_is_refused_on_asset_state(store: Verbs, verb: str) -> None:
    """Contract 5.1: it cannot move a watermark, nor read one."""
    old = store.task("dag/run/task", attempt=1).asset("table")
    old.set_many({"key": "old", "number": 1})
    store.task("dag/run/task", attempt=2)
    before = picture(store)
    with pytest.raises(StaleAttempt, match="superseded by attempt 2"):
        ON_ASSETS[verb](old)
    assert picture(store) == before


@pytest.mark.parametrize("verb", ON_ASSETS)
def test_on_an_asset_that_is_not_there_too(store: Verbs, verb: str) -> None:
    """Contract 5.1, 5.2."""
    old = store.task("dag/run/task", attempt=1).asset("table")
    store.task("dag/run/task", attempt=2)
    with pytest.raises(StaleAttempt):
        ON_ASSETS[verb](old)
    assert store.scopes(assets=True) == []


@pytest.mark.parametrize("verb", EVERYTHING)
def test_the_newest_attempt_may_do_everything(store: Verbs, verb: str) -> None:
    """Contract 5.1: the other half of the two tests above."""
    store.task("dag/run/task", attempt=1)
    new = store.task("dag/run/task", attempt=2)
    targets = [new] if verb == "checkpoint" else [new, new.asset("table")]
    for target in targets:
        if verb == "restore":
            target.set("key", 0)
        EVERYTHING[verb](target)


@pytest.mark.parametrize("verb", EVERYTHING)
def test_without_an_attempt_nothing_is_fenced(store: Verbs, verb: str) -> None:
    """Contract 5.1: people and tools."""
    state = store.task("dag/run/task")
    state.set("key", 0)
    state.delete("key")
    store.task("dag/run/task", attempt=5)
    EVERYTHING[verb](state)


def test_an_empty_set_many_is_a_call_too(store: Verbs) -> None:
    """Contract 5.1: every call is checked, so that a loop whose pages are empty learns that it must stop."""
    old = store.task("dag/run/task", attempt=1)
    store.task("dag/run/task", attempt=2)
    with pytest.raises(StaleAttempt):
        old.set_many({})


def test_a_transaction_is_checked_at_its_commit(store: Verbs) -> None:
    """Contract 5.1, 4.4: superseded in the middle, nothing of it is written."""
    old = store.task("dag/run/task", attempt=1)
    with pytest.raises(StaleAttempt), old.transaction() as tx:  # noqa: PT012
        tx.set("key", 1)
        tx.of(store.asset("table")).set("key", 1)
        tx.of(store.task("dag/run/other")).set("key", 1)
        store.task("dag/run/task", attempt=2)
    assert store.task("dag/run/task").items() == store.asset("table").items() == []
    assert store.task("dag/run/other").items() == []


def test_a_read_in_a_stale_transaction_is_refused_at_once(store: Verbs) -> None:
    """Contract 5.1: nor does it read "no job yet" and submit a duplicate."""
    old = store.task("dag/run/task", attempt=1)
    with contextlib.suppress(StaleAttempt), old.transaction() as tx:
        store.task("dag/run/task", attempt=2)
        with pytest.raises(StaleAttempt):
            tx.get("job")


def test_an_update_is_checked_when_it_writes(store: Verbs) -> None:
    """Contract 5.1: superseded while its function runs."""
    old = store.task("dag/run/task", attempt=1)
    with pytest.raises(StaleAttempt):
        old.update("key", lambda value: store.real.task("dag/run/task", attempt=2).attempt)
    assert store.task("dag/run/task").keys() == []


def test_an_open_watch_ends_when_superseded(store: Verbs) -> None:
    """Contract 5.1."""
    old = store.task("dag/run/task", attempt=1)
    old.set("key", 1)
    watch = iter(old.watch(timeout=1, poll=0.001))
    next(watch)
    store.task("dag/run/task", attempt=2)
    with pytest.raises(StaleAttempt):
        next(watch)


def test_fences_of_scopes_are_their_own(store: Verbs) -> None:
    """Contract 5.1: a newer attempt of a neighbour supersedes nobody."""
    state = store.task("dag/run/task", attempt=1)
    for neighbour in ("dag/run/task/0", "dag/run/other", "dag/other/task"):
        store.task(neighbour, attempt=7)
    state.set("key", 1)
    mapped = store.task("dag/run/task/0", attempt=7)
    with pytest.raises(ValueError, match="another attempt"), state.transaction() as tx:
        tx.of(mapped)


def dropped(store: Verbs, clock: Clock) -> tuple[Verbs, Verbs]:
    """Return an attempt, and its asset, whose scope the sweeper has dropped."""
    state = store.task("dag/run/task", attempt=1)
    asset = state.asset("table")
    clock.move(days=40)
    store.sweep()
    assert store.scopes() == []
    return state, asset


@pytest.mark.parametrize("verb", EVERYTHING)
def test_a_fenced_call_never_makes_its_scope_anew(store: Verbs, clock: Clock, verb: str) -> None:
    """Contract 5.2: StaleAttempt, and nothing is there afterwards."""
    state, asset = dropped(store, clock)
    for target in (state, asset) if verb != "checkpoint" else (state,):
        with pytest.raises(StaleAttempt, match="dag/run/task was deleted after attempt 1 began"):
            EVERYTHING[verb](target)
    assert store.scopes() + store.scopes(assets=True) == []


@pytest.mark.parametrize("verb", EVERYTHING)
@pytest.mark.parametrize("number", [1, 2])
def test_an_attempt_of_a_former_life_is_stale_in_the_next(store: Verbs, clock: Clock, verb: str, number: int) -> None:
    """Contract 5.1, 5.2: a number that fits again does not help it."""
    state, asset = dropped(store, clock)
    store.task("dag/run/task", attempt=number).set("key", "second life")
    for target in (state, asset) if verb != "checkpoint" else (state,):
        with pytest.raises(StaleAttempt):
            EVERYTHING[verb](target)
    assert store.task("dag/run/task").items() == [("key", "second life")]
    assert store.scopes(assets=True) == []


def test_an_open_makes_the_scope(store: Verbs) -> None:
    """Contract 5.2."""
    store.task("dag/run/task", attempt="new")
    (info,) = store.scopes()
    assert (str(info.scope), info.revision, info.attempt, info.entries) == ("dag/run/task", 0, 1, 0)


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.set("key", 1),
        lambda state: state.set_many({"key": 1}),
        lambda state: state.set_default("key", 1),
        lambda state: state.compare_and_set("key", 1, revision=None),
        lambda state: state.increment("key"),
        lambda state: state.update("key", lambda value: 1),
        LONGER["transaction"],
    ],
)
def test_an_unfenced_library_write_makes_the_scope(store: Verbs, write: Callable[[Any], Any]) -> None:
    """Contract 5.2."""
    write(store.task("dag/run/task"))
    write(store.asset("table"))
    assert [info.revision for info in [*store.scopes(), *store.scopes(assets=True)]] == [1, 1]


def test_an_attempt_may_be_the_first_to_write_an_asset(store: Verbs) -> None:
    """Contract 7: its own scope exists, which is what the fence asks."""
    store.task("dag/run/task", attempt=1).asset("table").set("watermark", 1)
    assert store.asset("table").get("watermark") == 1


def test_reading_an_absent_asset_makes_none(store: Verbs) -> None:
    """Contract 5.2: a read never does, in a transaction or outside."""
    state = store.task("dag/run/task", attempt=1)
    state.asset("table").get("watermark")
    with state.transaction() as tx:
        tx.of(state.asset("table")).get("watermark")
        tx.set("key", 1)
    assert store.scopes(assets=True) == []


def test_a_script_that_overlaps_an_older_copy_fences_it(store: Verbs) -> None:
    """Contract 5.1: as cron would start it."""
    old = store.task("nightly/2026-11-29/ingest", attempt="new")
    old.set("page", 41)
    new = store.task("nightly/2026-11-29/ingest", attempt="new")
    assert new.get("page") == 41
    with pytest.raises(StaleAttempt):
        old.set("page", 42)
    new.set("page", 43)
    with pytest.raises(StaleAttempt):
        old.get("page")
    assert new.get("page") == 43
