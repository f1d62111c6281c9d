"""Retention and expiry: contract 3."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast import NEVER_EXPIRE, Change, Conflict
from outlast.requests import Find
from outlast.values import to_micros
from support.clock import Clock
from support.verbs import Verbs
from support.world import World

HOUR = timedelta(hours=1)

WRITES: dict[str, Callable[..., Any]] = {
    "set": lambda state, **retention: state.set("key", 1, **retention),
    "set_many": lambda state, **retention: state.set_many({"key": 1}, **retention),
    "set_default": lambda state, **retention: state.set_default("key", 1, **retention),
    "compare_and_set": lambda state, **retention: state.compare_and_set("key", 1, revision=None, **retention),
    "increment": lambda state, **retention: state.increment("key", **retention),
    "update": lambda state, **retention: state.update("key", lambda value: 1, **retention),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_retention_expires_that_long_after_the_write(state: Verbs, clock: Clock, write: str) -> None:
    """Contract 3.1."""
    WRITES[write](state, retention=HOUR)
    assert state.entry("key").expires_at == clock.shows() + HOUR
    assert state.entry("key").expires_at.tzinfo is UTC


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("forever", [NEVER_EXPIRE, pickle.loads(pickle.dumps(NEVER_EXPIRE)), timedelta.max])
def test_never_expire_is_recognised_by_value(state: Verbs, clock: Clock, write: str, forever: timedelta) -> None:
    """Contract 3.1."""
    WRITES[write](state, retention=forever)
    assert state.entry("key").expires_at is None
    clock.move(days=365 * 500)
    assert state.get("key") == 1


@pytest.mark.parametrize("write", WRITES)
def test_none_takes_the_default_of_30_days(state: Verbs, clock: Clock, write: str) -> None:
    """Contract 3.1."""
    WRITES[write](state)
    assert state.entry("key").expires_at == clock.shows() + timedelta(days=30)
    state.delete("key")
    WRITES[write](state, retention=None)
    assert state.entry("key").expires_at == clock.shows() + timedelta(days=30)


@pytest.mark.parametrize(("days", "expected"), [(1, timedelta(days=1)), (0, None)])
def test_the_default_is_a_setting_and_0_is_never(
    world: World, clock: Clock, days: int, expected: timedelta | None
) -> None:
    """Contract 3.1."""
    state = world.open(default_retention_days=days).task("dag/run/task")
    state.set("key", 1)
    assert state.entry("key").expires_at == (None if expected is None else clock.shows() + expected)


def test_a_default_past_the_year_9999_ends_there(world: World) -> None:
    """Contract 3.1: a large default is no reason for a write to fail."""
    state = world.open(default_retention_days=1_000_000 * 3).task("dag/run/task")
    state.set("key", 1)
    assert state.entry("key").expires_at in (None, datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("retention", [0, 3600, 1.5, True, "1h", datetime(2030, 1, 1, tzinfo=UTC)])
def test_a_retention_of_another_type_is_a_type_error(state: Verbs, write: str, retention: Any) -> None:
    """Contract 3.1."""
    with pytest.raises(TypeError, match="use a timedelta"):
        WRITES[write](state, retention=retention)
    assert state.keys() == []


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("retention", [timedelta(0), timedelta(microseconds=-1), timedelta.min])
def test_a_retention_that_is_not_positive_is_a_value_error(state: Verbs, write: str, retention: timedelta) -> None:
    """Contract 3.1."""
    with pytest.raises(ValueError, match="must be positive"):
        WRITES[write](state, retention=retention)
    assert state.keys() == []


def test_a_retention_may_end_with_the_year_9999_but_not_later(state: Verbs, clock: Clock) -> None:
    """Contract 3.1."""
    last = datetime.max.replace(tzinfo=UTC)
    state.set("key", 1, retention=last - clock.shows())
    assert state.entry("key").expires_at == last
    for write in WRITES.values():
        with pytest.raises(ValueError, match="after the year 9999; use NEVER_EXPIRE"):
            write(state, retention=last - clock.shows() + timedelta(microseconds=1))
        with pytest.raises(ValueError, match="9999"):
            write(state, retention=timedelta.max - timedelta(microseconds=1))


def test_asset_entries_have_no_retention(store: Verbs, clock: Clock) -> None:
    """Contract 3.4, 7.2."""
    asset = store.asset("table")
    for write in WRITES.values():
        with pytest.raises(TypeError, match="retention"):
            write(asset, retention=HOUR)
        write(asset)
        assert asset.entry("key").expires_at is None
        asset.delete("key")
    asset.set("key", 1)
    clock.move(days=365 * 100)
    store.sweep()
    assert asset.get("key") == 1


@pytest.mark.parametrize("write", ["set", "set_many"])
def test_a_write_computes_the_expiry_anew_and_reading_does_not(state: Verbs, clock: Clock, write: str) -> None:
    """Contract 3.2."""
    began = clock.shows()
    WRITES[write](state, retention=HOUR)
    clock.move(minutes=30)
    for _ in range(3):
        state.get("key"), state.items(), state.entry("key"), state.set_default("key", 5, retention=10 * HOUR)
    assert state.entry("key").expires_at == began + HOUR
    WRITES[write](state, retention=HOUR)
    assert state.entry("key").expires_at == clock.shows() + HOUR
    WRITES[write](state)
    assert state.entry("key").expires_at == clock.shows() + timedelta(days=30)


@pytest.mark.parametrize("write", ["increment", "update"])
def test_increment_and_update_keep_the_expiry(state: Verbs, clock: Clock, write: str) -> None:
    """Contract 3.1: unless told otherwise; the default when the entry was absent."""
    began = clock.shows()
    state.set("key", 1, retention=HOUR)
    clock.move(minutes=59)
    WRITES[write](state)
    assert state.entry("key").expires_at == began + HOUR
    WRITES[write](state, retention=2 * HOUR)
    assert state.entry("key").expires_at == clock.shows() + 2 * HOUR
    state.set("key", 1, retention=NEVER_EXPIRE)
    WRITES[write](state)
    assert state.entry("key").expires_at is None


@pytest.mark.parametrize("write", ["increment", "update"])
def test_increment_and_update_of_an_expired_entry_take_the_default(state: Verbs, clock: Clock, write: str) -> None:
    """Contract 3.1, 3.3: an expired entry is absent, so its expiry is not kept."""
    state.set("key", 5, retention=HOUR)
    clock.move(hours=1)
    WRITES[write](state)
    assert state.get("key") == 1
    assert state.entry("key").expires_at == clock.shows() + timedelta(days=30)


@pytest.mark.parametrize("write", ["increment", "update"])
def test_they_keep_it_in_a_transaction_too(state: Verbs, clock: Clock, write: str) -> None:
    """Contract 3.1, 4.4."""
    began = clock.shows()
    state.set("key", 1, retention=HOUR)
    clock.move(minutes=1)
    with state.transaction() as tx:
        WRITES[write](tx)
        assert tx.entry("key").expires_at == began + HOUR
        tx.set("new", 0, retention=3 * HOUR)
        tx.increment("new")
        tx.increment("default")
    assert state.entry("key").expires_at == began + HOUR
    assert state.entry("new").expires_at == clock.shows() + 3 * HOUR
    assert state.entry("default").expires_at == clock.shows() + timedelta(days=30)


def found_by(store: Verbs, state: Verbs) -> dict[str, Any]:
    """Return what every door says about the key."""
    page = store.real.backend.send(Find())
    (info,) = store.scopes()
    return {
        "get": state.get("key"),
        "entry": state.entry("key") and state.entry("key").value,
        "keys": state.keys(),
        "keys with prefix": state.keys("k"),
        "items": state.items(),
        "entries": [entry.value for entry in state.entries()],
        "history": [version.value for version in state.history("key")],
        "find": [row.row.name for row in page.rows],
        "scopes": info.entries,
        "bytes": info.bytes,
        "watch": [entry.key for event in state.watch(timeout=0) for entry in event.entries],
        "transaction": transaction_reads(state),
    }


def transaction_reads(state: Verbs) -> tuple[Any, Any]:
    with state.transaction() as tx:
        return tx.get("key"), tx.keys()


PRESENT = {
    "get": 7, "entry": 7, "keys": ["key"], "keys with prefix": ["key"], "items": [("key", 7)], "entries": [7],
    "history": [7],
    "find": ["key"], "scopes": 1, "bytes": 1, "watch": ["key"], "transaction": (7, ["key"]),
}  # fmt: skip
GONE = {
    "get": None, "entry": None, "keys": [], "keys with prefix": [], "items": [], "entries": [], "history": [],
    "find": [], "scopes": 0, "bytes": 0, "watch": [], "transaction": (None, []),
}  # fmt: skip


def test_an_entry_is_gone_at_expires_at_to_the_microsecond_at_every_door(
    store: Verbs, state: Verbs, clock: Clock
) -> None:
    """Contract 3.3: whether or not anything has swept it."""
    state.set("key", 7, retention=HOUR)
    clock.move(hours=1, microseconds=-1)
    assert found_by(store, state) == PRESENT
    clock.move(microseconds=1)
    assert found_by(store, state) == GONE
    store.sweep()
    assert found_by(store, state) == GONE


def expired(state: Verbs, clock: Clock) -> Verbs:
    state.set("key", 7, retention=HOUR)
    clock.move(hours=1)
    return state


def test_writing_over_an_expired_entry_is_writing_on_an_absent_one(state: Verbs, clock: Clock) -> None:
    """Contract 3.3: at every verb that looks first."""
    assert expired(state, clock).compare_and_set("key", 8, revision=None, retention=HOUR).value == 8
    clock.move(hours=1)
    assert state.set_default("key", 9, retention=HOUR) == 9
    clock.move(hours=1)
    assert state.increment("key", retention=HOUR) == 1
    clock.move(hours=1)
    seen = []
    state.update("key", lambda value: seen.append(value) or 5, default="absent", retention=HOUR)
    assert seen == ["absent"]
    clock.move(hours=1)
    state.set("key", 10)
    assert [version.value for version in state.history("key")] == [10]


def test_an_expired_entry_cannot_be_compared_with(state: Verbs, clock: Clock) -> None:
    """Contract 3.3, 4.3: it is absent, so nothing is at its revision."""
    state.set("key", 7, retention=HOUR)
    revision = state.entry("key").revision
    clock.move(hours=1)
    with pytest.raises(Conflict) as caught:
        state.compare_and_set("key", 8, revision=revision)
    assert caught.value.current is None


def test_deleting_or_clearing_what_has_expired_is_no_change(store: Verbs, state: Verbs, clock: Clock) -> None:
    """Contract 3.3, 4.3."""
    expired(state, clock)
    state.delete("key")
    state.clear()
    assert store.scopes()[0].revision == 1


def test_an_entry_that_expires_during_a_transaction_is_a_conflict(state: Verbs, clock: Clock) -> None:
    """Contract 3.3, 4.4: what was read is no longer so."""
    state.set("key", 7, retention=HOUR)
    with pytest.raises(Conflict), state.transaction() as tx:  # noqa: PT012 - its end is what raises
        tx.set("copy", tx.get("key"))
        clock.move(hours=1)
    assert state.keys() == []


def test_expiry_is_no_event_but_a_change_that_has_expired_since_is_gone(state: Verbs, clock: Clock) -> None:
    """Contract 4.7: entries carry `expires_at`; no watcher is shown a value that is gone."""
    state.set("other", 1)
    watch = state.watch(timeout=0)
    assert len(list(watch)) == 1
    state.set("key", 7, retention=HOUR)
    (change,) = list(state.watch(watch.cursor, timeout=0))
    assert change.entry.expires_at == clock.shows() + HOUR
    clock.move(hours=1)
    assert list(state.watch(change.cursor, timeout=0)) == []
    (late,) = list(state.watch(watch.cursor, timeout=0))
    assert (type(late), late.key, late.entry) == (Change, "key", None)


def test_changing_the_default_does_not_touch_what_is_written(world: World, clock: Clock) -> None:
    """Contract 3.4."""
    world.open(default_retention_days=30).task("dag/run/task").set("key", 1)
    began = clock.shows()
    state = world.open(default_retention_days=1).task("dag/run/task")
    clock.move(days=2)
    assert state.get("key") == 1
    state.increment("key")
    assert state.entry("key").expires_at == began + timedelta(days=30)
    state.set("key", 1)
    assert state.entry("key").expires_at == clock.shows() + timedelta(days=1)


def test_restore_takes_a_retention_of_its_own(state: Verbs, clock: Clock) -> None:
    """Contract 3.2: it is a write."""
    state.set("key", 1, retention=NEVER_EXPIRE)
    state.set("key", 2)
    state.restore("key", 1, retention=HOUR)
    assert state.entry("key").expires_at == clock.shows() + HOUR
    state.restore("key", 2)
    assert state.entry("key").expires_at == clock.shows() + timedelta(days=30)


def test_times_are_exact_to_the_microsecond(state: Verbs, clock: Clock) -> None:
    """Contract 3.3: no float in between, far in the future too."""
    clock.now = to_micros(datetime(9999, 12, 31, 23, 59, 59, 999_997, tzinfo=UTC))
    state.set("key", 1, retention=timedelta(microseconds=1))
    assert state.entry("key").updated_at.microsecond == 999_997
    assert state.entry("key").expires_at.microsecond == 999_998
    clock.now += 1
    assert state.get("key") is None
