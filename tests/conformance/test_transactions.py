"""Several changes as one commit: contract 4.4."""
# ruff: noqa: PT012 - the block of a transaction is what raises, at its end

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from outlast import Conflict, InvalidKey, InvalidValue, Writer, connect
from support.clock import Clock
from support.verbs import Verbs
from support.world import World


def entries(store: Verbs) -> int:
    return sum(info.entries for info in [*store.scopes(), *store.scopes(assets=True)])


def test_all_writes_are_one_commit(either: Verbs, store: Verbs) -> None:
    """Contract 4.3, 4.4."""
    either.set("old", 1)
    with either.transaction() as tx:
        tx.set("a", 1)
        tx.increment("n", 5)
        tx.delete("old")
        tx.set_many({"b": 2, "c": 3})
        tx.update("u", lambda value: [value])
        assert either.items() == [("old", 1)]
    assert either.items() == [("a", 1), ("b", 2), ("c", 3), ("n", 5), ("u", [None])]
    assert {entry.revision for entry in either.entries()} == {2}


def test_reads_see_the_transactions_own_writes(either: Verbs) -> None:
    """Contract 4.4: at every verb."""
    either.set_many({"a": 1, "b": 2, "n": 40})
    with either.transaction() as tx:
        tx.set("a", 10)
        tx.delete("b")
        tx.set("c", 30)
        assert (tx.get("a"), tx.get("b"), tx.get("b", "gone"), tx.get("c")) == (10, None, "gone", 30)
        assert tx.keys() == ["a", "c", "n"]
        assert tx.items() == [("a", 10), ("c", 30), ("n", 40)]
        assert tx.keys("c") == ["c"]
        assert [entry.value for entry in tx.entries()] == [10, 30, 40]
        assert tx.entry("b") is None
        assert (tx.increment("n"), tx.increment("n")) == (41, 42)
        assert (tx.set_default("c", 31), tx.set_default("b", 21)) == (30, 21)
        assert tx.update("a", lambda value: value + 1) == 11
        tx.clear()
        assert (tx.items(), tx.get("n")) == ([], None)
        tx.set("last", 1)
        assert tx.items() == [("last", 1)]
    assert either.items() == [("last", 1)]


def test_compare_and_set_inside(either: Verbs) -> None:
    """Contract 4.3, 4.4: on what is stored, and on the transaction's own writes."""
    either.set("key", "a")
    with either.transaction() as tx:
        entry = tx.compare_and_set("key", "b", revision=tx.entry("key").revision)
        tx.compare_and_set("key", "c", revision=entry.revision)
        tx.compare_and_set("new", 1, revision=None)
        with pytest.raises(Conflict) as caught:
            tx.compare_and_set("key", "d", revision=None)
        assert caught.value.current.value == "c"
    assert either.items() == [("key", "c"), ("new", 1)]


def test_restore_inside(either: Verbs) -> None:
    """Contract 4.4, 4.8."""
    either.set("key", 1)
    either.set("key", 2)
    with either.transaction() as tx:
        assert tx.restore("key", 1).value == 1
        assert tx.get("key") == 1
    assert either.get("key") == 1


READS: dict[str, Callable[[Verbs], Any]] = {
    "get": lambda tx: tx.get("read"),
    "entry": lambda tx: tx.entry("read"),
    "increment": lambda tx: tx.increment("read"),
    "update": lambda tx: tx.update("read", lambda value: 5),
    "set_default": lambda tx: tx.set_default("read", 5),
    "keys": lambda tx: tx.keys(),
    "items": lambda tx: tx.items(),
    "keys by prefix": lambda tx: tx.keys("re"),
    "entries by prefix": lambda tx: tx.entries("r"),
    "clear": lambda tx: tx.clear(),
}
MEANWHILE: dict[str, Callable[[Verbs], Any]] = {
    "set": lambda state: state.set("read", 7),
    "set to the same": lambda state: state.set("read", state.get("read", 7)),
    "delete and set again": lambda state: (state.set("read", 7), state.delete("read"), state.set("read", 7)),
    "increment": lambda state: state.increment("read"),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("present", [True, False], ids=["present", "absent"])
def test_what_was_read_is_checked_at_commit(either: Verbs, read: str, meanwhile: str, present: bool) -> None:
    """Contract 4.4: absent keys and prefixes included."""
    if present:
        either.set("read", 1)
    with pytest.raises(Conflict), either.transaction() as tx:
        READS[read](tx)
        tx.set("written", 1)
        MEANWHILE[meanwhile](either)
    assert either.get("written") is None
    assert either.keys() == ["read"]


@pytest.mark.parametrize("read", READS)
def test_a_deletion_meanwhile_is_noticed(either: Verbs, read: str) -> None:
    """Contract 4.4."""
    either.set("read", 1)
    with pytest.raises(Conflict), either.transaction() as tx:
        READS[read](tx)
        tx.set("written", 1)
        either.delete("read")
    assert either.keys() == []


def test_a_conflict_carries_the_entry_that_came_between(either: Verbs) -> None:
    """Contract 4.3."""
    either.set("read", 1)
    with pytest.raises(Conflict) as caught, either.transaction() as tx:
        tx.set("copy", tx.get("read"))
        either.set("read", 2)
    assert caught.value.current == either.entry("read")


def test_what_was_not_read_may_change(either: Verbs) -> None:
    """Contract 4.4: a blind write and a read of another key conflict with nothing."""
    either.set_many({"a": 1, "b": 1, "x/1": 1})
    with either.transaction() as tx:
        tx.get("a")
        tx.keys("x/")
        tx.set("b", 2)
        tx.delete("c")
        either.set_many({"b": 3, "c": 3, "y": 3})
    assert either.items() == [("a", 1), ("b", 2), ("x/1", 1), ("y", 3)]


def test_a_key_that_came_into_a_prefix_is_noticed(either: Verbs) -> None:
    """Contract 4.4: no phantom."""
    either.set("x/1", 1)
    with pytest.raises(Conflict), either.transaction() as tx:
        tx.set("count", len(tx.keys("x/")))
        either.set("x/2", 1)
    with either.transaction() as tx:
        tx.set("count", len(tx.keys("x/")))
        either.set("y/2", 1)
    assert either.get("count") == 2


def test_own_writes_do_not_conflict_with_own_reads(either: Verbs) -> None:
    """Contract 4.4: reading a prefix, writing into it and reading it again."""
    either.set("x/1", 1)
    with either.transaction() as tx:
        tx.get("x/2")
        for key in tx.keys("x/"):
            tx.set(key + "/copy", 1)
        tx.set("x/2", 2)
        tx.delete("x/1")
        assert tx.keys("x/") == ["x/1/copy", "x/2"]
        tx.increment("x/2")
    assert either.items() == [("x/1/copy", 1), ("x/2", 3)]


def test_reads_are_repeatable(either: Verbs) -> None:
    """Contract 4.4: the same key reads the same until the end, which then fails."""
    either.set("key", 1)
    with pytest.raises(Conflict), either.transaction() as tx:
        first = tx.get("key")
        either.set("key", 2)
        assert tx.get("key") == first == 1
        assert tx.items() == [("key", 1)]


def test_a_transaction_that_only_read_is_checked_too(either: Verbs) -> None:
    """Contract 4.4: what it returned was so at one moment."""
    either.set_many({"a": 1, "b": 1})
    with pytest.raises(Conflict), either.transaction() as tx:
        tx.get("a")
        either.set_many({"a": 2, "b": 2})
        tx.get("b")


def test_an_exception_in_the_block_writes_nothing(either: Verbs, store: Verbs) -> None:
    """Contract 4.4."""
    with pytest.raises(ZeroDivisionError), either.transaction() as tx:
        tx.set("a", 1)
        tx.set("b", 1 / 0)
    with pytest.raises(InvalidValue), either.transaction() as tx:
        tx.set("a", 1)
        tx.set("b", None)
    with pytest.raises(KeyboardInterrupt), either.transaction() as tx:
        tx.set("a", 1)
        raise KeyboardInterrupt
    assert either.items() == []
    assert entries(store) == 0


def test_no_lock_is_held_in_the_block(world: World) -> None:
    """Contract 4.4: another store writes while the block runs."""
    one, two = world.open().task("dag/run/task"), world.open().task("dag/run/task")
    with one.transaction() as tx:
        tx.set("a", 1)
        tx.get("b")
        two.set("c", 1)
        assert two.items() == [("c", 1)]
    assert two.items() == [("a", 1), ("c", 1)]


def test_several_scopes_and_an_asset_in_one_commit(store: Verbs) -> None:
    """Contract 4.4."""
    one, two, asset = store.task("dag/run/one"), store.task("dag/run/two"), store.asset("table")
    with one.transaction() as tx:
        tx.set("key", 1)
        tx.of(two).set("key", 2)
        tx.of(asset).set("watermark", 3)
        assert tx.of(two).get("key") == 2
        assert tx.of(asset).increment("watermark") == 4
        assert (two.get("key"), asset.get("watermark")) == (None, None)
    assert (one.get("key"), two.get("key"), asset.get("watermark")) == (1, 2, 4)
    assert [info.revision for info in [*store.scopes(), *store.scopes(assets=True)]] == [1, 1, 1]


@pytest.mark.parametrize("spoilt", ["dag/run/one", "dag/run/two", "asset"])
def test_no_part_is_written_when_another_conflicts(store: Verbs, spoilt: str) -> None:
    """Contract 4.4: whichever part it is."""
    parts = {name: store.task(name) for name in ("dag/run/one", "dag/run/two")} | {"asset": store.asset("table")}
    with pytest.raises(Conflict), parts["dag/run/one"].transaction() as tx:
        for part in parts.values():
            tx.of(part).set("key", tx.of(part).get("key", 0) + 1)
        parts[spoilt].set("key", 99)
    assert {name: part.get("key") for name, part in parts.items()} == {
        name: 99 if name == spoilt else None for name in parts
    }


def test_the_same_scope_is_one_view(store: Verbs) -> None:
    """Contract 4.4: however it was reached."""
    with store.task("dag/run/task").transaction() as tx:
        tx.increment("n")
        tx.of(store.task(dag_id="dag", run_id="run", task_id="task")).increment("n")
        assert tx.get("n") == 2
    assert store.task("dag/run/task").get("n") == 2


def test_an_asset_by_name_and_by_uri_is_one_view(store: Verbs) -> None:
    """Contract 1.2, 4.4: two addresses of one asset do not overwrite each other."""
    store.asset("orders", uri="s3://orders").set("n", 0)
    with store.task("dag/run/task").transaction() as tx:
        for asset in (store.asset("orders"), store.asset(uri="s3://orders"), store.asset("orders", uri="s3://orders")):
            tx.of(asset).increment("n")
    asset = store.asset("orders")
    assert (asset.get("n"), asset.entry("n").revision, len(asset.history("n"))) == (3, 2, 2)


def test_an_asset_reached_through_the_transaction_belongs_to_it(store: Verbs) -> None:
    """Contract 4.4: `tx.asset(…)` does not write behind the transaction's back."""
    task = store.task("dag/run/task", attempt="new")
    with pytest.raises(ZeroDivisionError), task.transaction() as tx:
        tx.asset("orders").set("watermark", 1)
        tx.set("b", 1 / 0)
    assert store.asset("orders").get("watermark") is None
    with task.transaction() as tx:
        tx.asset("orders").set("watermark", 2)
        assert store.asset("orders").get("watermark") is None
    assert store.asset("orders").get("watermark") == 2


def test_the_state_of_another_store_is_refused(world: World, store: Verbs, tmp_path: Any) -> None:
    """Contract 4.4: it cannot be part of the same commit, and is not written into this store by mistake."""
    with connect(tmp_path / "other.db") as other:
        with pytest.raises(ValueError, match="store"), store.task("dag/run/task").transaction() as tx:
            tx.of(other.task("dag/run/task")).set("key", 1)
        assert other.task("dag/run/task").get("key") is None
    assert store.task("dag/run/task").get("key") is None


def test_the_writer_and_the_time_are_the_commits(store: Verbs, clock: Clock) -> None:
    """Contract 4.2, 7.2."""
    task = store.task("dag/run/task", attempt=3)
    with task.transaction() as tx:
        tx.set("key", 1)
        tx.of(store.asset("table")).set("key", 1)
        clock.move(seconds=1)
    assert task.entry("key").updated_at == clock.shows()
    assert task.entry("key").writer == Writer("task", 3)
    assert store.asset("table").entry("key").writer == Writer("task", 3, None, task.scope)


def test_a_transaction_is_used_once(state: Verbs) -> None:
    block = state.transaction()
    with block as tx:
        tx.set("a", 1)
    for call in (lambda: tx.get("a"), lambda: tx.set("a", 2), block.__enter__):
        with pytest.raises(RuntimeError, match="ended"):
            call()
    assert state.get("a") == 1


def test_a_transaction_does_not_nest(state: Verbs) -> None:
    with state.transaction() as tx, pytest.raises(RuntimeError, match="already open"):
        tx.transaction()


def test_names_and_values_are_checked_as_outside(state: Verbs) -> None:
    """Contract 1.3, 2.2."""
    with state.transaction() as tx:
        with pytest.raises(InvalidKey):
            tx.set("..", 1)
        with pytest.raises(InvalidKey):
            tx.get("")
        with pytest.raises(TypeError):
            tx.set("key", 1, retention=5)
    assert state.keys() == []


def test_an_empty_transaction_is_nothing(store: Verbs) -> None:
    with store.task("dag/run/task").transaction():
        pass
    assert store.scopes() == []


def test_many_keys_read_and_written(either: Verbs) -> None:
    """Contract 4.4: no limit of the database shows."""
    either.set_many({f"k{number:04}": number for number in range(1500)})
    with either.transaction() as tx:
        for number in range(1500):
            tx.set(f"k{number:04}", tx.get(f"k{number:04}") + 1 if number % 100 == 0 else number + 1)
    assert [value for _, value in either.items()] == list(range(1, 1501))


def test_transactions_that_try_again_lose_no_update(either: Verbs) -> None:
    """Contract 4.4: read, compute and write, over and over, at the same time."""

    async def one(number: int) -> None:
        while True:
            try:
                async with either.real.transaction() as tx:
                    total = await tx.aget("total", 0)
                    await asyncio.sleep(0)
                    await tx.aset("total", total + 1)
                    await tx.aset(f"seen {total}", number)
                return
            except Conflict:
                await asyncio.sleep(0)

    async def work() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    asyncio.run(work())
    assert either.get("total") == 12
    assert sorted(value for _, value in either.items("seen ")) == list(range(12))
