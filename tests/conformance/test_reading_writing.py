"""The verbs, their twins and the revision: contract 4.1 to 4.3, 4.6."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from outlast import (
    AssetState,
    BackendError,
    Conflict,
    Entry,
    InvalidKey,
    InvalidValue,
    NotFound,
    Store,
    TaskState,
    Writer,
)
from outlast.requests import Commit, Part, Put, Read, Remove
from support.clock import Clock
from support.verbs import CALLS, Verbs
from support.world import World


def revision(store: Verbs) -> int:
    """Return the revision of the only scope there is."""
    (info,) = [*store.scopes(), *store.scopes(assets=True)]
    return int(info.revision)


@pytest.mark.parametrize("kind", [Store, TaskState, AssetState])
def test_every_verb_has_an_awaiting_twin_with_the_same_signature(kind: type) -> None:
    """Contract 4.1, 4.2."""
    names = [name for name in dir(kind) if not name.startswith("_") and hasattr(kind, "a" + name)]
    assert len(names) >= 4
    for name in names:
        verb, twin = getattr(kind, name), getattr(kind, "a" + name)
        assert inspect.signature(verb).parameters == inspect.signature(twin).parameters
        assert (verb.__name__, twin.__name__, verb.__doc__) == (name, "a" + name, twin.__doc__)
        assert inspect.iscoroutinefunction(twin)
        assert not inspect.iscoroutinefunction(verb)


def test_the_airflow_verbs(either: Verbs) -> None:
    """Contract 4.1."""
    assert either.get("key") is None
    assert either.get("key", "default") == "default"
    assert either.get("key", default=[1]) == [1]
    assert either.set("key", 1) is None
    assert either.get("key", "default") == 1
    assert either.delete("key") is None
    assert either.get("key") is None
    either.set_many({"a": 1, "b": 2})
    assert either.clear() is None
    assert either.keys() == []


def test_delete_of_an_absent_key_is_nothing(either: Verbs) -> None:
    """Contract 4.1."""
    either.set("other", 1)
    either.delete("key")
    assert either.items() == [("other", 1)]


def test_clear_empties_this_scope_only(store: Verbs) -> None:
    """Contract 4.1."""
    for address in ("dag/run/task", "dag/run/task/0", "dag/run/other", "dag/other/task"):
        store.task(address).set_many({"a": 1, "b": 2})
    store.asset("table").set("a", 1)
    store.task("dag/run/task").clear()
    assert [(str(info.scope), info.entries) for info in store.scopes()] == [
        ("dag/run/task", 0),
        ("dag/run/task/0", 2),
        ("dag/run/other", 2),
        ("dag/other/task", 2),
    ]
    assert store.asset("table").get("a") == 1


ORDER = [" ", "!", "%", "/", "0", "10", "2", "A", "Z", "a", "aa", "ab", "a/", "b", "\x80", "é", "z\u0301", "日",
         "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0001f600", "\U0010ffff", "\U0010ffff\U0010ffff"]  # fmt: skip


def test_keys_are_listed_in_code_point_order(either: Verbs) -> None:
    """Contract 4.2: also beyond the basic plane, where UTF-16 would order otherwise."""
    names = ORDER
    either.set_many({name: number for number, name in enumerate(reversed(names))})
    assert either.keys() == sorted(names)
    assert [key for key, _ in either.items()] == sorted(names)
    assert [entry.key for entry in either.entries()] == sorted(names)
    with either.transaction() as tx:
        tx.set("ö", 1)
        assert tx.keys() == sorted([*names, "ö"])


@pytest.mark.parametrize(
    "prefix", ["a", "aa", "a/", "%", "\ud7ff", "\ue000", "\uffff", "\U0001f600", "\U0010ffff", "z", "nothing", "A", "_"]
)
def test_a_prefix_selects_by_code_points(either: Verbs, prefix: str) -> None:
    """Contract 4.2: no wildcard, no folding, no end that is missed."""
    names = [name + tail for name in ORDER for tail in ("", "x", "\U0010ffff", "/y")]
    either.set_many(dict.fromkeys(names, 1))
    expected = sorted(name for name in {*names} if name.startswith(prefix))
    assert either.keys(prefix) == expected
    assert either.items(prefix) == [(name, 1) for name in expected]
    assert [entry.key for entry in either.entries(prefix=prefix)] == expected
    with either.transaction() as tx:
        assert tx.keys(prefix) == expected


def test_no_prefix_and_an_empty_one_are_everything(either: Verbs) -> None:
    either.set_many({"a": 1, "b": 2})
    assert either.keys() == either.keys(None) == either.keys("") == ["a", "b"]


def test_entry_says_all_that_is_known(store: Verbs, clock: Clock) -> None:
    """Contract 4.2, 7.2: value, revision, updated_at, expires_at, writer."""
    task = store.task("dag/run/task", attempt=2)
    assert task.entry("key") is None
    task.set("other", 0)
    clock.move(seconds=5)
    task.set("key", {"a": [1]})
    entry = task.entry("key")
    assert isinstance(entry, Entry)
    assert (entry.key, entry.value, entry.revision, entry.updated_at) == ("key", {"a": [1]}, 2, clock.shows())
    assert (entry.writer.kind, entry.writer.attempt, entry.writer.scope) == ("task", 2, None)
    assert task.entries() == [task.entry("key"), task.entry("other")]


def test_a_writer_outside_tasks_is_named(store: Verbs) -> None:
    """Contract 7.2, 10."""
    store.task("dag/run/task").set("key", 1)
    assert store.task("dag/run/task").entry("key").writer == Writer("library")
    store.task("dag/run/task", writer=Writer("person", name="ann@desk")).set("key", 1)
    assert str(store.task("dag/run/task").entry("key").writer) == "person ann@desk"
    store.asset("table", writer=Writer("trigger", name="tick")).set("key", 1)
    assert str(store.asset("table").entry("key").writer) == "trigger tick"


def test_a_missing_key_is_a_named_default_and_never_an_error(either: Verbs) -> None:
    """Contract 4.1."""
    sentinel = object()
    assert either.get("key", sentinel) is sentinel


# --- More verbs ------------------------------------------------------------------------------------------


def test_set_many_writes_all(either: Verbs, store: Verbs) -> None:
    """Contract 4.2, 4.3: one commit, so one step of the revision."""
    either.set_many({"b": 1, "a": [2], "c": 3})
    assert either.items() == [("a", [2]), ("b", 1), ("c", 3)]
    assert {entry.revision for entry in either.entries()} == {1}
    assert revision(store) == 1


def test_set_many_writes_nothing_if_one_value_or_key_is_wrong(either: Verbs) -> None:
    """Contract 4.4."""
    for values in ({"a": 1, "b": None}, {"a": 1, "b": {1}}, {"a": 1, "..": 1}, {"a": 1, 7: 1}):
        with pytest.raises((InvalidValue, InvalidKey)):
            either.set_many(values)
    assert either.items() == []


def test_set_many_of_thousands(either: Verbs, store: Verbs) -> None:
    """Contract 4.4: no limit of the database shows."""
    values = {f"key {number:04}": number for number in range(3000)}
    either.set_many(values)
    assert either.items() == list(values.items())
    assert revision(store) == 1
    either.clear()
    assert (either.keys(), revision(store)) == ([], 2)


def test_set_many_of_nothing_is_no_change(either: Verbs, store: Verbs) -> None:
    """Contract 4.3."""
    either.set("key", 1)
    either.set_many({})
    assert revision(store) == 1


def test_set_default_returns_what_is_stored(either: Verbs) -> None:
    """Contract 4.2."""
    assert either.set_default("key", [1]) == [1]
    assert either.set_default("key", [2]) == [1]
    assert either.get("key") == [1]


def test_set_default_on_a_present_key_is_no_change(either: Verbs, store: Verbs) -> None:
    """Contract 4.3."""
    either.set("key", 0)
    either.set_default("key", 1)
    assert (revision(store), either.get("key"), len(either.history("key"))) == (1, 0, 1)


def test_compare_and_set(either: Verbs) -> None:
    """Contract 4.3: with the revision of the entry, None for absent."""
    first = either.compare_and_set("key", "a", revision=None)
    assert (first.value, first.revision) == ("a", 1)
    either.set("other", 1)
    second = either.compare_and_set("key", "b", revision=first.revision)
    assert (second.value, second.revision) == ("b", 3)
    assert either.entry("key") == second


def test_a_failed_comparison_carries_the_current_entry(either: Verbs, store: Verbs) -> None:
    """Contract 4.3."""
    either.set("key", "a")
    either.set("key", "b")
    for wrong in (None, 1, 3, 0, -1, 2**70):
        with pytest.raises(Conflict) as caught:
            either.compare_and_set("key", "c", revision=wrong)
        assert caught.value.current == either.entry("key")
    with pytest.raises(Conflict) as caught:
        either.compare_and_set("absent", "c", revision=1)
    assert caught.value.current is None
    assert (either.items(), revision(store)) == ([("key", "b")], 2)


@pytest.mark.parametrize("wrong", ["1", 1.0, True, object()])
def test_a_revision_of_another_type_is_a_type_error(either: Verbs, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"entry\.revision"):
        either.compare_and_set("key", 1, revision=wrong)


def test_after_a_deletion_the_key_must_be_absent(either: Verbs) -> None:
    """Contract 4.3: a tombstone is not an entry."""
    either.set("key", 1)
    old = either.entry("key").revision
    either.delete("key")
    for wrong in (old, old + 1):
        with pytest.raises(Conflict):
            either.compare_and_set("key", 2, revision=wrong)
    assert either.compare_and_set("key", 2, revision=None).value == 2


def test_increment_counts_from_0(either: Verbs) -> None:
    """Contract 4.2."""
    assert either.increment("n") == 1
    assert either.increment("n", 41) == 42
    assert either.increment("n", by=-50) == -8
    assert either.increment("n", 0) == -8
    assert either.increment("n", 2**70) == 2**70 - 8
    assert either.get("n") == 2**70 - 8


@pytest.mark.parametrize("value", [1.0, "1", True, False, [], {}, [1], {"a": 1}, "", 1e300])
def test_increment_of_what_is_no_int_is_refused(either: Verbs, value: Any) -> None:
    """Contract 4.2."""
    either.set("key", value)
    with pytest.raises(InvalidValue, match="not an int"):
        either.increment("key")
    assert either.get("key") == value
    with either.transaction() as tx, pytest.raises(InvalidValue, match="not an int"):
        tx.increment("key")


@pytest.mark.parametrize("by", [1.0, "1", True, None, 10**4000])
def test_increment_by_what_is_no_int_is_refused(either: Verbs, by: Any) -> None:
    """Contract 4.2, 2.1."""
    with pytest.raises(InvalidValue):
        either.increment("key", by)
    assert either.keys() == []


def test_increment_stops_at_4000_digits(either: Verbs) -> None:
    """Contract 2.1: what could not be stored is not computed into the store either."""
    either.set("up", 10**4000 - 1)
    either.set("down", -(10**4000) + 1)
    with pytest.raises(InvalidValue, match="4,000 digits"):
        either.increment("up")
    with pytest.raises(InvalidValue, match="4,000 digits"):
        either.increment("down", -1)
    assert either.increment("up", -1) == 10**4000 - 2
    assert either.increment("down", 10**4000 - 1) == 0


def test_update_computes_from_the_value(either: Verbs) -> None:
    """Contract 4.2."""
    assert either.update("key", lambda value: (value or 0) + 1) == 1
    assert either.update("key", lambda value: [value]) == [1]
    assert either.update("other", lambda value: {**value, "a": 1}, default={}) == {"a": 1}
    assert either.items() == [("key", [1]), ("other", {"a": 1})]


def test_update_computes_again_when_somebody_came_between(either: Verbs) -> None:
    """Contract 4.4: no lock is held while the function runs, and no write is lost."""
    either.set("key", 0)
    seen = []

    def double(value: int) -> int:
        seen.append(value)
        if len(seen) < 3:
            either.real.increment("key", 10)
        return value * 2

    assert either.update("key", double) == 40
    assert (seen, either.get("key")) == ([0, 10, 20], 40)


def test_what_update_raises_is_raised_and_nothing_is_written(either: Verbs, store: Verbs) -> None:
    """Contract 4.4."""
    either.set("key", 1)
    with pytest.raises(ZeroDivisionError):
        either.update("key", lambda value: value / 0)
    with pytest.raises(InvalidValue):
        either.update("key", lambda value: None)
    assert (either.get("key"), revision(store)) == (1, 1)


# --- The revision ----------------------------------------------------------------------------------------


def test_every_changing_commit_raises_the_revision_by_one(either: Verbs, store: Verbs) -> None:
    """Contract 4.3: whatever the number of keys, also when the value stays the same."""
    steps = [
        lambda: either.set("a", 1),
        lambda: either.set("a", 1),
        lambda: either.set_many({"b": 1, "c": 2, "d": 3}),
        lambda: either.set_default("e", 1),
        lambda: either.compare_and_set("f", 1, revision=None),
        lambda: either.increment("a"),
        lambda: either.update("a", lambda value: value),
        lambda: either.delete("a"),
        lambda: either.restore("a", 1),
        lambda: either.clear(),
    ]
    for number, step in enumerate(steps, start=1):
        step()
        assert revision(store) == number


def test_what_touches_nothing_live_is_no_commit(either: Verbs, store: Verbs) -> None:
    """Contract 4.3."""
    either.set("key", 1)
    either.delete("absent")
    either.set_default("key", 2)
    either.delete("absent")
    with either.transaction() as tx:
        tx.get("key"), tx.get("absent"), tx.keys("x")
    with either.transaction() as tx:
        tx.set("new", 1)
        tx.delete("new")
    assert revision(store) == 1
    either.delete("key")
    either.delete("key")
    either.clear()
    either.clear()
    assert revision(store) == 2


def test_setting_and_deleting_an_absent_key_in_one_commit_is_none(store: Verbs) -> None:
    """Contract 4.3: as one request, too."""
    task = store.task("dag/run/task")
    task.set("other", 1)
    operations = (Put("key", "1", None), Remove("key"))
    receipt = store.real.backend.send(Commit((Part(task.scope, operations),)))
    assert (receipt.revisions, revision(store), task.history("key")) == ((1,), 1, [])


def test_a_failed_commit_changes_nothing(either: Verbs, store: Verbs) -> None:
    """Contract 4.4."""
    either.set("key", "text")
    before = (revision(store), either.entries(), either.history("key"))
    with pytest.raises(Conflict):
        either.compare_and_set("key", 2, revision=None)
    with pytest.raises(InvalidValue):
        either.increment("key")
    with pytest.raises(NotFound):
        either.restore("key", 99)
    assert (revision(store), either.entries(), either.history("key")) == before


def test_an_entrys_revision_is_the_scopes_at_its_last_write(either: Verbs) -> None:
    """Contract 4.3."""
    either.set("a", 1)
    either.set("b", 1)
    either.set_many({"a": 2, "c": 3})
    assert [(entry.key, entry.revision) for entry in either.entries()] == [("a", 3), ("b", 2), ("c", 3)]


def test_scopes_count_for_themselves(store: Verbs) -> None:
    """Contract 4.3: a commit of one scope is none of another's."""
    store.task("dag/run/a").set("key", 1)
    for _ in range(3):
        store.task("dag/run/b").set("key", 1)
    assert [(str(info.scope), info.revision) for info in store.scopes()] == [("dag/run/a", 1), ("dag/run/b", 3)]


# --- Opening and closing ---------------------------------------------------------------------------------


def test_what_was_written_is_there_when_opened_again(world: World) -> None:
    """Contract 4.5."""
    first = world.open()
    first.task("dag/run/task").set("key", 1)
    first.close()
    assert world.open().task("dag/run/task").get("key") == 1


def test_a_closed_store_says_so(world: World) -> None:
    """Contract 4.6, 9: it never reads as absent."""
    store = world.open()
    state, watch = store.task("dag/run/task"), store.task("dag/run/task").watch(timeout=0)
    state.set("key", 1)
    store.close()
    store.close()
    for call in CALLS.values():
        with pytest.raises(BackendError, match="closed"):
            call(state)
    with pytest.raises(BackendError, match="closed"):
        list(watch)
    for call in (store.scopes, store.sweep, store.inspect, lambda: store.task("dag/run/task", attempt="new")):
        with pytest.raises(BackendError, match="closed"):
            call()


def test_a_with_block_closes_what_it_opened(world: World) -> None:
    with world.open().real as store:
        store.task("dag/run/task").set("key", 1)
    with pytest.raises(BackendError, match="closed"):
        store.task("dag/run/task").get("key")

    async def work() -> None:
        async with world.open().real as store:
            assert await store.task("dag/run/task").aget("key") == 1
        with pytest.raises(BackendError, match="closed"):
            await store.task("dag/run/task").aget("key")

    asyncio.run(work())


def test_a_request_nobody_knows_is_a_type_error(store: Verbs) -> None:
    with pytest.raises(TypeError, match="not a request"):
        store.real.backend.send(object())


def test_reads_page_through_a_long_list(store: Verbs) -> None:
    """Contract 10: what a list at any door is made of."""
    task = store.task("dag/run/task")
    task.set_many({f"k{number}": number for number in range(10)})
    names: list[str] = []
    after = None
    while True:
        found = store.real.backend.send(Read(task.scope, None, "k", after=after, limit=3))
        if not found.rows:
            break
        names += [row.name for row in found.rows]
        after = names[-1]
    assert names == [f"k{number}" for number in range(10)]
