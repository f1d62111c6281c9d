"""Watching converges: contract 4.7."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from outlast import Change, Cursor, Reset
from support.clock import Clock
from support.verbs import Verbs
from support.world import World


def events(state: Verbs, cursor: Cursor | None = None) -> list[Change | Reset]:
    """Return what a watch from a cursor gives until nothing more has changed."""
    return list(state.watch(cursor, timeout=0))


def seen(changes: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(change.key, change.entry and change.entry.value) for change in changes]


def cursor(state: Verbs) -> Cursor:
    """Return where the scope is now."""
    return events(state)[0].cursor


def test_without_a_cursor_the_first_event_is_everything(either: Verbs) -> None:
    """Contract 4.7."""
    either.set_many({"b": 1, "a": [2]})
    either.set("gone", 1)
    either.delete("gone")
    (reset,) = events(either)
    assert isinstance(reset, Reset)
    assert list(reset.entries) == either.entries()
    assert reset.cursor.revision == 3


def test_also_in_a_scope_that_is_empty_or_not_there_yet(store: Verbs) -> None:
    """Contract 4.7: a watcher is always told first what there is, were it nothing."""
    (reset,) = events(store.task("dag/run/task"))
    assert (type(reset), reset.entries) == (Reset, ())
    store.task("dag/run/opened", attempt="new")
    (reset,) = events(store.task("dag/run/opened"))
    assert (type(reset), reset.entries) == (Reset, ())


def test_a_watch_begun_before_the_scope_goes_on_in_it(store: Verbs) -> None:
    """Contract 4.7: no gap between nothing and the first write."""
    state = store.task("dag/run/task")
    watch = state.watch(timeout=0)
    list(watch)
    state.set("key", 1)
    state.set("other", 2)
    assert seen(events(state, watch.cursor)) == [("key", 1), ("other", 2)]


def test_changes_come_in_order_with_the_newest_state_of_each_key(either: Verbs) -> None:
    """Contract 4.7: several writes of one key may arrive as one."""
    either.set("a", 0)
    start = cursor(either)
    either.set("a", 1)
    either.set("b", 1)
    either.set("a", 2)
    either.delete("b")
    either.set("c", 3)
    found = events(either, start)
    assert seen(found) == [("a", 2), ("b", None), ("c", 3)]
    assert [change.revision for change in found] == [4, 5, 6]
    assert found[0].entry == either.entry("a")
    assert events(either, found[-1].cursor) == []


def test_every_step_can_be_followed(either: Verbs) -> None:
    """Contract 4.7: read after every write, each write is an event."""
    either.set("x", 0)
    at = cursor(either)
    for number in range(5):
        either.set("key", number)
        (change,) = events(either, at)
        assert (change.key, change.entry.value) == ("key", number)
        at = change.cursor


def test_a_clear_is_a_deletion_of_each_key(either: Verbs) -> None:
    """Contract 4.7."""
    either.set_many({"a": 1, "b": 2})
    start = cursor(either)
    either.clear()
    assert seen(events(either, start)) == [("a", None), ("b", None)]


def test_a_key_set_and_deleted_meanwhile_is_a_deletion(either: Verbs) -> None:
    """Contract 4.7."""
    either.set("a", 1)
    start = cursor(either)
    either.set("b", 1)
    either.delete("b")
    assert seen(events(either, start)) == [("b", None)]


def test_what_changes_nothing_is_no_event(either: Verbs) -> None:
    """Contract 4.3, 4.7."""
    either.set("a", 1)
    start = cursor(either)
    either.delete("b")
    either.set_default("a", 2)
    with either.transaction() as tx:
        tx.get("a")
    assert events(either, start) == []


def test_other_scopes_are_not_watched(store: Verbs) -> None:
    """Contract 1.1."""
    one, two = store.task("dag/run/one"), store.task("dag/run/two")
    one.set("a", 1)
    start = cursor(one)
    two.set("a", 2)
    store.asset("a").set("a", 3)
    assert events(one, start) == []


def replay(known: dict[str, Any], found: Iterable[Change | Reset]) -> dict[str, Any]:
    """Apply events to what is known."""
    for event in found:
        if isinstance(event, Reset):
            known = {entry.key: entry.value for entry in event.entries}
        elif event.entry is None:
            known.pop(event.key, None)
        else:
            known[event.key] = event.entry.value
    return known


def busy(state: Verbs, steps: int, seed: int) -> Iterable[None]:
    """Do one thing after another, from one key to many at once."""
    chance = random.Random(seed)
    for number in range(steps):
        keys = chance.sample("abcdef", chance.randint(1, 4))
        match chance.randrange(6):
            case 0:
                state.delete(keys[0])
            case 1:
                state.clear()
            case 2:
                with state.transaction() as tx:
                    tx.delete(keys[0])
                    tx.set(keys[-1], number)
            case _:
                state.set_many(dict.fromkeys(keys, number))
        yield


@pytest.mark.parametrize("seed", range(4))
def test_going_on_from_any_event_converges(either: Verbs, seed: int) -> None:
    """Contract 4.7: also from the middle of a commit of several keys; never a gap, never older after newer."""
    either.set("a", 0)
    stops: list[tuple[Cursor, dict[str, Any]]] = [(cursor(either), {"a": 0})]
    for _ in busy(either, 12, seed):
        at, known = stops[-1]
        for event in events(either, at):
            known = replay(dict(known), [event])
            stops.append((event.cursor, known))
    present = dict(either.items())
    for at, known in stops:
        rest = events(either, at)
        assert replay(dict(known), rest) == present
        keys = [event.key for event in rest]
        assert len(keys) == len(set(keys))
        assert [event.revision for event in rest] == sorted(event.revision for event in rest)
        for event in rest:
            within = at.name is not None and event.revision == at.revision
            assert event.revision > at.revision or (within and event.key > at.name)
    revisions = [at.revision for at, _ in stops]
    assert revisions == sorted(revisions)


def test_within_one_iteration_nothing_comes_twice(either: Verbs) -> None:
    """Contract 4.7."""
    either.set("a", 0)
    start = cursor(either)
    either.set_many({"a": 1, "b": 1, "c": 1})
    iteration = iter(either.watch(start, timeout=0.05, poll=0.001))
    first = [next(iteration), next(iteration)]
    either.set_many({"c": 2, "d": 2})
    rest = list(iteration)
    found = seen([*first, *rest])
    assert len(found) == len(set(found))
    assert replay({"a": 0}, [*first, *rest]) == dict(either.items())


def test_a_kept_cursor_does_not_repeat_what_came_before_it(either: Verbs) -> None:
    """Contract 4.7: nothing twice, were it from the middle of a commit of several keys."""
    either.set("x", 0)
    start = cursor(either)
    either.set_many({"a": 1, "b": 1, "c": 1})
    iteration = iter(either.watch(start, timeout=0))
    first = next(iteration)
    iteration.close()
    again = events(either, first.cursor)
    assert seen(again)[-2:] == [("b", 1), ("c", 1)]


def test_a_cursor_can_be_kept_as_text(either: Verbs) -> None:
    either.set("a", 1)
    text = str(cursor(either))
    either.set("b", 2)
    assert seen(events(either, Cursor.parse(text))) == [("b", 2)]
    for wrong in ("", "1", "a.b", "1.", ".1", "-1.2", "1.x.3", "1.-2"):
        with pytest.raises(ValueError, match="not a cursor"):
            Cursor.parse(wrong)


def test_the_cursor_of_a_watch_moves_with_its_events(either: Verbs) -> None:
    either.set("a", 1)
    watch = either.watch(timeout=0)
    assert [event.cursor for event in watch] == [watch.cursor]
    either.set("b", 1)
    again = either.watch(watch.cursor, timeout=0)
    assert [event.cursor for event in again] == [again.cursor] != [watch.cursor]


def test_a_cursor_that_is_too_old_gives_one_reset(store: Verbs, state: Verbs, clock: Clock) -> None:
    """Contract 4.7: once the sweeper has removed what it would need."""
    state.set("kept", 1, retention=timedelta(days=300))
    old = cursor(state)
    state.set("short", 2, retention=timedelta(hours=1))
    young = cursor(state)
    state.set("kept", 3, retention=timedelta(days=300))
    clock.move(hours=2)
    store.sweep()
    (reset,) = events(state, old)
    assert (type(reset), [(e.key, e.value) for e in reset.entries]) == (Reset, [("kept", 3)])
    assert seen(events(state, young)) == [("kept", 3)]
    assert events(state, reset.cursor) == []


def test_a_deletion_is_an_event_for_feed_hours(world: World, clock: Clock) -> None:
    """Contract 4.7, design 5: then the tombstone may go, and an older cursor is reset."""
    store = world.open(feed_hours=24, history_versions=0)
    state = store.task("dag/run/task")
    state.set_many({"key": 1, "kept": 1}, retention=timedelta(days=300))
    start = cursor(state)
    state.delete("key")
    clock.move(hours=24, microseconds=-1)
    store.sweep()
    assert seen(events(state, start)) == [("key", None)]
    clock.move(hours=1)
    store.sweep()
    (reset,) = events(state, start)
    assert (type(reset), [entry.key for entry in reset.entries]) == (Reset, ["kept"])


def test_after_the_scope_was_made_anew_a_cursor_is_reset(store: Verbs, clock: Clock) -> None:
    """Contract 4.7: a number of the first life is not taken for one of the second."""
    state = store.task("dag/run/task")
    state.set("a", 1, retention=timedelta(hours=1))
    old = cursor(state)
    clock.move(days=40)
    store.sweep()
    assert store.scopes() == []
    (reset,) = events(state, old)
    assert (type(reset), reset.entries) == (Reset, ())
    state.set("b", 2)
    state.set("c", 3)
    (reset,) = events(state, old)
    assert [entry.key for entry in reset.entries] == ["b", "c"]


@pytest.mark.parametrize("made_up", [Cursor(10**6, 1), Cursor(10**6, 0), Cursor(2**70, 1)])
def test_a_cursor_of_another_store_is_reset(either: Verbs, made_up: Cursor) -> None:
    """Contract 4.7."""
    either.set("a", 1)
    (reset,) = events(either, made_up)
    assert [entry.key for entry in reset.entries] == ["a"]


def test_a_cursor_from_the_future_is_reset(either: Verbs) -> None:
    """Contract 4.7: as after a restored backup."""
    either.set("a", 1)
    here = cursor(either)
    (reset,) = events(either, Cursor(here.scope_id, here.revision + 1))
    assert [entry.key for entry in reset.entries] == ["a"]


def test_an_open_watch_sees_another_stores_write(world: World) -> None:
    """Contract 4.7: within a second."""
    writer, watcher = world.open().task("dag/run/task"), world.open().task("dag/run/task")
    writer.set("a", 0)
    watch = iter(watcher.watch(timeout=5, poll=0.01))
    assert isinstance(next(watch), Reset)
    written = []

    def write() -> None:
        written.append(time.monotonic())
        writer.real.set("a", 1)

    timer = threading.Timer(0.05, write)
    timer.start()
    change = next(watch)
    assert (change.entry.value, time.monotonic() - written[0] < 1) == (1, True)
    timer.join()


def test_the_timeout_ends_the_iteration(either: Verbs) -> None:
    either.set("a", 1)
    began = time.monotonic()
    assert len(list(either.watch(timeout=0.05, poll=0.01))) == 1
    assert 0.05 <= time.monotonic() - began < 2


def test_a_watcher_beside_writers_ends_with_the_truth(either: Verbs) -> None:
    """Contract 4.7: with writes coming in all the time."""
    either.set("a", -1)
    stop = threading.Event()

    def write() -> None:
        for _ in busy(Verbs(either.real), 60, 7):
            pass
        stop.set()

    thread = threading.Thread(target=write)
    thread.start()
    known: dict[str, Any] = {}
    last: dict[str, int] = {}
    at: Cursor | None = None
    finished = False
    while not finished:
        finished = stop.is_set()
        for event in events(either, at):
            known, at = replay(known, [event]), event.cursor
            if isinstance(event, Change):
                assert event.revision > last.get(event.key, 0)
                last[event.key] = event.revision
    thread.join()
    assert known == dict(either.items())


def test_time_does_not_matter_to_a_cursor(either: Verbs, clock: Clock) -> None:
    """Contract 4.7: a clock that goes back loses no event."""
    either.set("a", 1)
    start = cursor(either)
    clock.move(hours=-5)
    either.set("b", 2)
    clock.move(hours=10)
    either.set("c", 3)
    assert seen(events(either, start)) == [("b", 2), ("c", 3)]
