"""History and restore: contract 4.8."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outlast import NEVER_EXPIRE, NotFound, Version, Writer
from outlast.requests import Commit, Part, RemoveAll
from support.clock import Clock
from support.verbs import Verbs
from support.world import World

MIB = 1024 * 1024


def values(state: Verbs, key: str = "key") -> list[Any]:
    """Return the kept values, newest first; deletions as "deleted"."""
    return ["deleted" if version.deleted else version.value for version in state.history(key)]


def test_a_version_says_value_or_deletion_when_and_by_whom(store: Verbs, clock: Clock) -> None:
    """Contract 4.8."""
    began = clock.shows()
    store.task("dag/run/task", attempt=1).set("key", {"a": 1})
    clock.move(seconds=1)
    store.task("dag/run/task").delete("key")
    clock.move(seconds=1)
    second = store.task("dag/run/task", attempt=2)
    second.set("key", 2)
    assert second.history("key") == [
        Version("key", 2, False, 3, began + timedelta(seconds=2), Writer("task", 2)),
        Version("key", None, True, 2, began + timedelta(seconds=1), Writer("library")),
        Version("key", {"a": 1}, False, 1, began, Writer("task", 1)),
    ]


def test_an_absent_key_has_no_history(either: Verbs) -> None:
    assert either.history("key") == []
    either.set("other", 1)
    assert either.history("key") == []


def test_the_last_20_are_kept(either: Verbs) -> None:
    """Contract 4.8: the present one included, whatever other keys do."""
    for number in range(1, 51):
        either.set("key", number)
        either.set("other", -number)
        assert values(either) == list(range(number, max(number - 20, 0), -1))
    assert values(either, "other") == list(range(-50, -30))


@pytest.mark.parametrize("kept", [1, 2, 3, 5])
def test_how_many_are_kept_is_a_setting(world: World, kept: int) -> None:
    """Contract 4.8."""
    state = world.open(history_versions=kept).task("dag/run/task")
    for number in range(1, 12):
        state.set("key", number)
        assert values(state) == list(range(number, max(number - kept, 0), -1))


def test_0_turns_history_off(world: World) -> None:
    """Contract 4.8."""
    state = world.open(history_versions=0).task("dag/run/task")
    state.set("key", 1)
    state.set("key", 2)
    assert state.history("key") == []
    assert state.get("key") == 2
    state.delete("key")
    assert state.history("key") == []


@pytest.mark.parametrize(
    ("before", "after"), [(20, 5), (5, 20), (20, 19), (3, 2), (2, 3), (20, 1), (1, 20), (20, 0), (0, 20)]
)
@pytest.mark.parametrize("written", [20, 30, 31])
def test_the_setting_may_change(world: World, before: int, after: int, written: int) -> None:
    """Contract 4.8: the last ones are kept, without a gap, as many as both settings allow."""
    first = world.open(history_versions=before)
    for number in range(1, written + 1):
        first.task("dag/run/task").set("key", number)
    first.close()
    state = world.open(history_versions=after).task("dag/run/task")
    for number in range(written + 1, written + 31):
        state.set("key", number)
        found = values(state)
        assert len(found) <= after
        assert found == list(range(number, number - len(found), -1))
        assert len(found) >= min(after, number - written + max(min(before, after) - 1, 0))
    assert len(values(state)) == after


def test_deletions_are_recorded_and_count(either: Verbs) -> None:
    """Contract 4.8."""
    either.set("key", 1)
    either.delete("key")
    either.delete("key")
    either.set("key", 2)
    either.clear()
    assert values(either) == ["deleted", 2, "deleted", 1]


def test_delete_and_clear_can_be_undone(either: Verbs) -> None:
    """Contract 4.8: restore is a write."""
    either.set("key", {"rows": [1]})
    either.set("other", 1)
    either.delete("key")
    entry = either.restore("key", 1)
    assert (entry.value, entry.revision, either.get("key")) == ({"rows": [1]}, 4, {"rows": [1]})
    either.clear()
    for key in ("key", "other"):
        latest = next(version for version in either.history(key) if not version.deleted)
        either.restore(key, latest.revision)
    assert either.items() == [("key", {"rows": [1]}), ("other", 1)]
    assert values(either) == [{"rows": [1]}, "deleted", {"rows": [1]}, "deleted", {"rows": [1]}]


def test_restoring_what_is_not_kept_is_not_found(world: World) -> None:
    """Contract 4.8, 9."""
    state = world.open(history_versions=2).task("dag/run/task")
    for number in range(1, 4):
        state.set("key", number)
    state.delete("key")
    for revision in (0, 1, 2, 5, -1):
        with pytest.raises(NotFound, match="no kept version"):
            state.restore("key", revision)
    with pytest.raises(NotFound, match="deletion"):
        state.restore("key", 4)
    with pytest.raises(NotFound):
        state.restore("absent", 1)
    assert state.keys() == []
    assert state.restore("key", 3).value == 3


def test_restoring_the_present_value_writes_it_again(either: Verbs) -> None:
    either.set("key", 1)
    assert either.restore("key", 1).revision == 2


def test_at_most_1_mib_is_kept_for_a_key(either: Verbs) -> None:
    """Contract 4.8: the newest ones; other keys keep theirs."""
    either.set("small", 1)
    for number in range(10):
        either.set("key", str(number) * 300_000)
        either.set("small", number)
    found = values(either)
    assert found[0] == "9" * 300_000
    assert sum(len(value) + 2 for value in found[1:]) <= MIB
    assert found == [str(number) * 300_000 for number in range(9, 9 - len(found), -1)]
    assert len(found) >= 3
    assert len(values(either, "small")) == 11


def test_a_value_above_1_mib_is_stored_but_not_remembered(either: Verbs) -> None:
    """Contract 4.8."""
    either.set("key", "x" * (MIB + 1))
    assert either.get("key") == "x" * (MIB + 1)
    either.set("key", "after")
    assert values(either) == ["after"]


def test_many_small_values_fill_the_ring_after_a_large_one(either: Verbs) -> None:
    """Contract 4.8: a large value costs others their place only while it is there."""
    either.set("key", "x" * (MIB - 10))
    for number in range(25):
        either.set("key", number)
    assert values(either) == list(range(24, 4, -1))


def test_a_value_that_comes_after_a_dropped_one_leaves_no_gap(either: Verbs) -> None:
    """Contract 4.8: the last ones are kept, so nothing older than what was dropped."""
    either.set("key", "oldest")
    either.set("key", "a" * 700_000)
    either.set("key", "b" * 700_000)
    either.set("key", "newest")
    assert values(either) == ["newest", "b" * 700_000]


def test_bytes_are_counted_in_utf_8(either: Verbs) -> None:
    """Contract 2.4, 4.8."""
    for number in range(6):
        either.set("key", str(number) + "é" * 150_000)
    assert sum(len(value.encode()) + 2 for value in values(either)[1:]) <= MIB
    assert len(values(either)) == 4


def test_expiry_removes_the_history_at_once(state: Verbs, clock: Clock) -> None:
    """Contract 4.8, 3.3: to the microsecond, also when the key was deleted meanwhile."""
    for deleted in (False, True):
        state.set("key", "secret", retention=timedelta(hours=1))
        state.set("key", "secret too", retention=timedelta(hours=1))
        if deleted:
            state.delete("key")
        clock.move(hours=1, microseconds=-1)
        assert "secret" in values(state)
        clock.move(microseconds=1)
        assert state.history("key") == []
        with pytest.raises(NotFound):
            state.restore("key", 1)
        state.set("key", "new", retention=timedelta(hours=1))
        assert values(state) == ["new"]
        clock.move(hours=1)


def test_what_has_expired_does_not_come_back_when_deleted_or_cleared(state: Verbs, clock: Clock) -> None:
    """Contract 4.8."""
    state.set("key", "secret", retention=timedelta(hours=1))
    clock.move(hours=1)
    state.delete("key")
    state.clear()
    assert state.history("key") == []
    state.increment("key")
    assert values(state) == [1]


def test_history_stays_while_a_key_never_expires(store: Verbs, state: Verbs, clock: Clock) -> None:
    """Contract 4.8, 3.5: sweeping frees what is gone, not what can be restored."""
    state.set("key", 1, retention=NEVER_EXPIRE)
    state.delete("key")
    clock.move(days=365)
    store.sweep()
    assert values(state) == ["deleted", 1]


def test_discarding_erases_history_at_once(store: Verbs, state: Verbs) -> None:
    """Contract 4.8, 6.2: what clear_on_success and a discarding clear are made of."""
    state.set("key", "secret")
    state.set("key", "secret too")
    state.set("gone", "secret")
    state.delete("gone")
    store.real.backend.send(Commit((Part(state.scope, (RemoveAll(history=True),)),)))
    assert state.keys() == []
    assert [version.value for key in ("key", "gone") for version in state.history(key) if not version.deleted] == []
    state.set("key", "new")
    assert [value for value in values(state) if value != "deleted"] == ["new"]


def test_one_commit_is_one_version(either: Verbs) -> None:
    """Contract 4.4, 4.8: what a transaction passed through is not remembered."""
    either.set("key", 0)
    with either.transaction() as tx:
        tx.set("key", 1)
        tx.set("key", 2)
        tx.increment("key")
    assert values(either) == [3, 0]


def test_set_default_and_failed_writes_leave_no_version(either: Verbs) -> None:
    """Contract 4.3, 4.8."""
    either.set("key", 1)
    either.set_default("key", 2)
    with pytest.raises(ValueError, match="None"):
        either.set("key", None)
    assert values(either) == [1]


def test_histories_of_scopes_are_their_own(store: Verbs) -> None:
    """Contract 1.1, 4.8."""
    for number, target in enumerate([store.task("dag/run/a"), store.task("dag/run/b"), store.asset("a")]):
        target.set("key", number)
        target.set("key", number + 10)
    assert values(store.task("dag/run/a")) == [10, 0]
    assert values(store.task("dag/run/b")) == [11, 1]
    assert values(store.asset("a")) == [12, 2]
