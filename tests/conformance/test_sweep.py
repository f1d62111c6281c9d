"""Sweeping frees space and nothing else: contract 3.5, 6.4."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outlast import NEVER_EXPIRE, InvalidValue
from outlast.requests import Sweep, Swept
from support.clock import Clock
from support.homes import Home, RestartingHome
from support.verbs import Verbs
from support.world import World

HOUR = timedelta(hours=1)


def facts(store: Verbs) -> dict[str, str]:
    return dict(store.inspect().facts)


def is_told(home: Home, told: int, freed: int) -> bool:
    """Say whether a sweep tells what was freed; where servers begin anew, each first sweeps what is long overdue."""
    return told <= freed if isinstance(home, RestartingHome) else told == freed


def test_it_frees_what_has_expired_and_nothing_else(store: Verbs, clock: Clock, home: Home) -> None:
    """Contract 3.5."""
    for number in range(3):
        state = store.task(f"dag/run/task/{number}")
        state.set("short", 1, retention=HOUR)
        state.set("long", 2, retention=10 * HOUR)
        state.set("forever", 3, retention=NEVER_EXPIRE)
    store.asset("table").set("key", 4)
    clock.move(hours=1, microseconds=-1)
    assert store.sweep().entries == 0
    clock.move(microseconds=1)
    assert store.sweep() == Swept(3, 0, False)
    assert store.sweep() == Swept(0, 0, False)
    assert [store.task(f"dag/run/task/{number}").items() for number in range(3)] == [[("forever", 3), ("long", 2)]] * 3
    assert store.asset("table").get("key") == 4
    clock.move(hours=9)
    assert is_told(home, store.sweep().entries, 3)


def test_revisions_do_not_move(store: Verbs, clock: Clock) -> None:
    """Contract 4.3, 3.5: sweeping changes nothing that can be seen."""
    state = store.task("dag/run/task")
    state.set("short", 1, retention=HOUR)
    state.set("kept", 1)
    clock.move(hours=1)
    before = (store.scopes(), state.entries())
    store.sweep()
    assert (store.scopes(), state.entries()) == before
    state.set("short", 1)
    assert store.scopes()[0].revision == 3


def test_a_dry_run_lists_and_frees_nothing(store: Verbs, clock: Clock, home: Home) -> None:
    """Contract 3.5."""
    for number in range(3):
        store.task(f"dag/run/task/{number}").set_many({"a": 1, "b": 2}, retention=HOUR)
        store.task(f"dag/run/task/{number}").set("c", 3)
    clock.move(hours=1)
    for _ in range(2):
        swept = store.sweep(dry_run=True)
        assert (swept.entries, swept.scopes) == (6, 0)
        assert [(str(row.scope), row.row.name) for row in swept.rows] == [
            (f"dag/run/task/{number}", name) for number in range(3) for name in "ab"
        ]
    assert is_told(home, store.sweep().entries, 6)
    assert store.sweep(dry_run=True).entries == 0


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 1000])
def test_it_works_in_batches(world: World, clock: Clock, batch: int, home: Home) -> None:
    """Contract 3.5: whatever their size, all is freed; a batch is never larger than told."""
    store = world.open(state_cleanup_batch_size=batch)
    for number in range(5):
        store.task(f"dag/run/task/{number}").set_many(dict.fromkeys("abc", 1), retention=HOUR)
    clock.move(hours=2)
    sums: list[int] = []
    assert is_told(home, store.sweep(dry_run=True).entries, 15)
    assert is_told(home, store.sweep(progress=sums.append).entries, 15)
    assert is_told(home, sums[-1], 15)
    assert store.sweep(dry_run=True).entries == 0
    assert all(after - before <= batch for before, after in zip([0, *sums], sums, strict=False))


def test_a_batch_size_of_0_means_1000(world: World, clock: Clock, home: Home) -> None:
    """Contract 3.5."""
    store = world.open(state_cleanup_batch_size=0)
    store.task("dag/run/task").set_many({f"k{number}": 1 for number in range(1001)}, retention=HOUR)
    clock.move(hours=2)
    sums: list[int] = []
    store.sweep(progress=sums.append)
    assert is_told(home, sums[0], 1000)
    assert is_told(home, sums[-1], 1001)
    assert store.sweep(dry_run=True).entries == 0


def test_the_space_is_freed(store: Verbs, clock: Clock) -> None:
    """Contract 3.5: entries and their history."""
    state = store.task("dag/run/task")
    for number in range(5):
        state.set("key", number, retention=HOUR)
    assert facts(store)["past versions"] == "4"
    clock.move(hours=1)
    store.sweep()
    assert (facts(store)["entries"], facts(store)["past versions"]) == ("0", "0")
    assert facts(store)["expired, not yet swept"] == "0"


def test_an_overwritten_expiry_is_not_swept(store: Verbs, clock: Clock) -> None:
    """Contract 3.2, 3.5."""
    state = store.task("dag/run/task")
    state.set("key", 1, retention=HOUR)
    state.set("key", 2, retention=NEVER_EXPIRE)
    clock.move(hours=2)
    assert store.sweep().entries == 0
    assert state.get("key") == 2


def test_a_writer_sweeps_what_is_overdue_for_an_hour(store: Verbs, clock: Clock) -> None:
    """Contract 3.5: one batch after its commit, so that nobody has to think of it."""
    store.task("dag/run/old").set("key", 1, retention=HOUR)
    clock.move(hours=1, minutes=59)
    store.task("dag/run/new").set("key", 1)
    assert facts(store)["expired, not yet swept"] == "1"
    clock.move(minutes=2)
    store.task("dag/run/new").set("key", 2)
    assert facts(store)["expired, not yet swept"] == "0"
    assert store.task("dag/run/new").get("key") == 2


def test_an_empty_scope_is_dropped_after_a_while(store: Verbs, clock: Clock, home: Home) -> None:
    """Contract 6.4: with no entry and no run; its fence still holds for a slow script until then."""
    store.task("dag/run/opened", attempt=3)
    store.task("dag/run/emptied").set("key", 1, retention=HOUR)
    store.task("dag/run/kept").set("key", 1, retention=NEVER_EXPIRE)
    store.asset("table").set("key", 1)
    store.asset("table").clear()
    clock.move(hours=2)
    store.sweep()
    assert [str(info.scope) for info in store.scopes()] == ["dag/run/opened", "dag/run/emptied", "dag/run/kept"]
    clock.move(days=40)
    assert is_told(home, store.sweep().scopes, 2)
    assert [str(info.scope) for info in store.scopes()] == ["dag/run/kept"]
    assert len(store.scopes(assets=True)) == 1


def test_a_scope_whose_keys_were_deleted_is_dropped_when_they_would_have_expired(store: Verbs, clock: Clock) -> None:
    """Contract 6.4, 4.8: until then they can be restored."""
    state = store.task("dag/run/task")
    state.set("key", 1)
    state.delete("key")
    clock.move(days=29)
    store.sweep()
    assert state.restore("key", 1).value == 1
    state.delete("key")
    clock.move(days=100)
    store.sweep()
    assert store.scopes() == []


def test_a_discarded_scope_is_dropped_too(store: Verbs, clock: Clock) -> None:
    """Contract 6.2, 6.4: also one whose entries would never have expired."""
    from outlast.requests import Commit, Part, RemoveAll

    state = store.task("dag/run/task")
    state.set("key", 1, retention=NEVER_EXPIRE)
    clock.move(days=31)
    store.sweep()
    store.real.backend.send(Commit((Part(state.scope, (RemoveAll(history=True),)),)))
    clock.move(days=100)
    store.sweep()
    assert store.scopes() == []


def test_a_scope_id_is_never_used_again(store: Verbs, clock: Clock) -> None:
    """Design 5."""
    first = store.task("dag/run/task", attempt=1).real.fence.scope_id
    clock.move(days=40)
    store.sweep()
    assert store.task("dag/run/task", attempt=1).real.fence.scope_id > first


def test_a_sweep_beside_writers_loses_nothing(store: Verbs, clock: Clock) -> None:
    """Contract 3.5: rewritten between two batches, an entry is not taken for the expired one."""
    state: Any = store.task("dag/run/task")
    state.set_many({f"k{number}": 1 for number in range(30)}, retention=HOUR)
    clock.move(hours=1)
    real, small = store.real, {"rewritten": False}

    def between(total: int) -> None:
        if not small["rewritten"]:
            real.task("dag/run/task").set_many({f"k{number}": 2 for number in range(0, 30, 3)})
            small["rewritten"] = True

    more = True
    while more:
        batch = real.backend.send(Sweep(4))
        more = batch.more
        between(batch.entries)
    assert [value for _, value in state.items()] == [2] * 10


@pytest.mark.parametrize(
    "request_", [Sweep(100, older_than=-1), Sweep(100, -(10**15), dry_run=True), Sweep(-1)], ids=str
)
def test_a_sweep_of_what_has_yet_to_expire_is_refused(store: Verbs, request_: Sweep) -> None:
    """Contract 3.5: it frees space, and nothing that is there."""
    state = store.task("dag/run/task")
    state.set("key", 1, retention=HOUR)
    with pytest.raises(InvalidValue, match="0 or more"):
        store.real.backend.send(request_)
    assert state.get("key") == 1
