"""Going through items once: `checkpoint`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from outlast import Conflict, InvalidKey, InvalidValue, StaleAttempt
from support.clock import Clock
from support.verbs import Verbs

LETTERS = ["a", "b", "c", "d", "e"]


def done(state: Verbs, items: Iterable[Any] = LETTERS, stop: int | None = None, **options: Any) -> list[Any]:
    """Go through items, and die in the body of the one after `stop`; return those whose body has run."""
    ran: list[Any] = []
    try:
        for item in state.checkpoint(items, **options):
            if len(ran) == stop:
                raise ZeroDivisionError
            ran.append(item)
    except ZeroDivisionError:
        pass
    return ran


def test_items_are_done_once(state: Verbs) -> None:
    assert done(state) == LETTERS
    assert done(state) == []
    assert state.get("last_done")["done"] == 5


@pytest.mark.parametrize("stop", range(5))
@pytest.mark.parametrize("options", [{}, {"every": 2}, {"every": 100}, {"id": str}, {"id": str, "every": 3}])
def test_the_next_attempt_goes_on_where_one_raised(state: Verbs, stop: int, options: dict[str, Any]) -> None:
    """None skipped, and none twice: what an exception leaves is recorded, whatever `every`.

    An `async for` that is left is closed some time later, so there what `every` has left open is done again.
    """
    assert done(state, stop=stop, **options) == LETTERS[:stop]
    again = done(state, **options)
    repeated = len(again) - len(LETTERS[stop:])
    assert again == LETTERS[stop - repeated :]
    assert 0 <= repeated < (options.get("every", 1) if state.runner else 1)


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"id": str}])
def test_the_item_in_whose_body_the_loop_was_left_is_not_done(state: Verbs, options: dict[str, Any]) -> None:
    for item in state.checkpoint(LETTERS, **options):
        if item == "c":
            break
    assert done(state, **options) == ["c", "d", "e"]


def test_an_item_is_recorded_when_the_next_is_asked_for(state: Verbs) -> None:
    """A kill in the body repeats that item: at least once."""
    steps = iter(state.checkpoint(LETTERS))
    next(steps)
    assert state.get("last_done") is None
    next(steps)
    assert state.get("last_done")["done"] == 1


def test_every_records_each_nth(state: Verbs) -> None:
    steps = iter(state.checkpoint(LETTERS, every=2))
    recorded = []
    for _ in range(5):
        next(steps)
        recorded.append((state.get("last_done") or {"done": 0})["done"])
    assert recorded == [0, 0, 2, 2, 4]
    assert list(steps) == []
    assert state.get("last_done")["done"] == 5


@pytest.mark.parametrize("every", [0, -1, True, 1.5, "2", None])
def test_an_every_that_is_no_count_is_refused(state: Verbs, every: Any) -> None:
    with pytest.raises(ValueError, match="every"):
        state.checkpoint(LETTERS, every=every)


def test_a_changed_list_is_refused(state: Verbs) -> None:
    """By position, an item other than the one done last time would mean items skipped or repeated."""
    assert done(state, stop=3) == ["a", "b", "c"]
    for changed in ("abxd", "xabc", "bcde", "xbcd", "axcd", "bacd"):
        with pytest.raises(Conflict, match=r"the list has changed.*id="):
            done(state, list(changed))
    with pytest.raises(Conflict, match="has 2 items but 3 were done"):
        done(state, ["a", "b"])
    assert done(state, [*"abcxyz"]) == ["x", "y", "z"]


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_a_person_says_after_which_item_to_go_on(state: Verbs, place: int) -> None:
    """Without a digest the items before are not compared; the next record has that of the items as they are."""
    assert done(state, stop=3) == ["a", "b", "c"]
    state.set("last_done", {"done": place})
    assert done(state, list("vwxyz")) == list("vwxyz")[place:]
    if place < 5:
        with pytest.raises(Conflict, match=r"was edited.*set it to \{\"done\": 5\}"):
            done(state, list("abcde"))


@pytest.mark.parametrize("mark", [{"done": 1, "total": 9}, {"done": -1}, {"done": True}, {"done": "1"}, {"digest": ""}])
def test_what_is_no_mark_is_refused(state: Verbs, mark: Any) -> None:
    state.set("last_done", mark)
    with pytest.raises(InvalidValue, match=r'set it to \{"done": N\}'):
        done(state)


def test_a_list_may_grow(state: Verbs) -> None:
    assert done(state, "ab") == ["a", "b"]
    assert done(state, "abcd") == ["c", "d"]


def test_items_without_a_stable_text_go_by_position_alone(state: Verbs) -> None:
    assert len(done(state, [object(), object(), object()], stop=2)) == 2
    assert len(done(state, [object(), object(), object()])) == 1


def test_by_id_order_does_not_matter(state: Verbs) -> None:
    assert done(state, "abc", id=str) == ["a", "b", "c"]
    assert done(state, "dcbaé", id=str) == ["d", "é"]
    assert done(state, "b", id=str) == []


def test_ids_are_kept_in_batches(state: Verbs) -> None:
    """One record rewrites one small list."""
    assert done(state, range(450), id=int, key="pages") == list(range(450))
    assert [(key, len(value)) for key, value in state.items("pages/")] == [
        ("pages/0", 200),
        ("pages/1", 200),
        ("pages/2", 50),
    ]
    assert done(state, range(460), id=int, key="pages") == list(range(450, 460))


def test_ids_of_both_kinds_are_told_apart(state: Verbs) -> None:
    assert done(state, [1, "1", "x"], id=lambda item: item) == [1, "1", "x"]
    assert done(state, ["1", 1, "x", 2], id=lambda item: item) == [2]


@pytest.mark.parametrize("wrong", [None, 1.5, True, (1,), b"a"])
def test_an_id_that_is_no_text_or_int_is_refused(state: Verbs, wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="must return a str or an int"):
        done(state, "ab", id=lambda item: wrong)


def test_two_checkpoints_do_not_mix(state: Verbs) -> None:
    """Whatever their keys: one whose key begins with the other's is another one."""
    assert done(state, "ab", id=str, key="pages/eu") == ["a", "b"]
    assert done(state, "ab", id=str, key="pages") == ["a", "b"]
    assert done(state, "ab", id=str, key="pages/eu/7") == ["a", "b"]
    assert done(state, "abc", id=str, key="pages") == ["c"]
    assert done(state, "ab", key="by position") == ["a", "b"]


def test_another_use_of_the_key_is_not_taken_for_a_mark(state: Verbs) -> None:
    for value in (7, "x", [1], {"done": "many"}, {"digest": "x"}):
        state.set("last_done", value)
        with pytest.raises(InvalidValue, match="not a checkpoint's mark"):
            done(state)
    with pytest.raises(InvalidKey):
        done(state, key="..")


def test_a_checkpoint_may_be_gone_through_again(state: Verbs) -> None:
    """The same object in a second loop is as good as a new one."""
    checkpoint = state.checkpoint(LETTERS)
    for item in checkpoint:
        if item == "c":
            break
    assert list(checkpoint) == ["c", "d", "e"]
    assert list(checkpoint) == []
    assert state.get("last_done")["done"] == 5
    assert done(state) == []


def test_progress_is_kept_up_to_date(state: Verbs, clock: Clock) -> None:
    """A few writes a second: `done`, `total` and the rate of this run."""
    for _ in state.checkpoint(LETTERS):
        clock.move(seconds=1)
    assert state.get("progress") == {"done": 5, "total": 5, "rate": 1.0, "from": 0}
    assert done(state, iter(LETTERS), key="other") == LETTERS
    assert state.get("progress")["total"] is None
    assert done(state, iter(LETTERS), key="third", total=9) == LETTERS
    assert state.get("progress")["total"] == 9


def test_progress_says_how_many_were_done_when_the_attempt_began(state: Verbs, clock: Clock) -> None:
    for item in state.checkpoint(LETTERS):
        clock.move(seconds=1)
        if item == "c":
            break
    assert state.get("progress") == {"done": 2, "total": 5, "rate": 1.0, "from": 0}
    for _ in state.checkpoint(LETTERS):
        clock.move(seconds=1)
    assert state.get("progress") == {"done": 5, "total": 5, "rate": 1.0, "from": 2}


def test_progress_may_be_off_or_elsewhere(state: Verbs) -> None:
    done(state, progress=None)
    assert state.keys() == ["last_done"]
    done(state, key="other", progress="how far")
    assert state.keys() == ["how far", "last_done", "other"]


def test_progress_costs_few_writes(store: Verbs, state: Verbs, clock: Clock) -> None:
    """Coalesced: with `every` and a quick body, one write in 0.3 s at most, and one at the end."""
    for _ in state.checkpoint(range(1000), every=1000):
        clock.move(milliseconds=1)
    assert store.scopes()[0].revision <= 1000 // 300 + 3


def test_a_finished_loop_writes_nothing_more(store: Verbs, state: Verbs) -> None:
    done(state)
    revision = store.scopes()[0].revision
    assert done(state) == []
    assert store.scopes()[0].revision == revision


def test_a_superseded_attempt_stops_at_its_next_item(store: Verbs) -> None:
    """Contract 5.1."""
    old = store.task("dag/run/task", attempt=1)
    steps = iter(old.checkpoint(LETTERS))
    next(steps)
    store.task("dag/run/task", attempt=2)
    with pytest.raises(StaleAttempt):
        next(steps)
    assert done(store.task("dag/run/task", attempt=3)) == LETTERS


def test_nothing_to_do_is_nothing(store: Verbs, state: Verbs) -> None:
    assert done(state, []) == []
    assert store.scopes() == []


async def letters() -> AsyncIterator[str]:
    for letter in LETTERS:
        await asyncio.sleep(0)
        yield letter


def test_async_items_need_async_for(state: Verbs) -> None:
    async def work() -> list[str]:
        return [item async for item in state.real.checkpoint(letters())]

    assert asyncio.run(work()) == LETTERS
    assert asyncio.run(work()) == []
    with pytest.raises(TypeError, match="async for"):
        list(state.real.checkpoint(letters()))


def test_what_follows_a_broken_async_loop_is_the_last_word(state: Verbs) -> None:
    """A loop that was left writes nothing behind the back of what comes after it."""

    async def work() -> None:
        async for item in state.real.checkpoint(letters()):
            if item == "c":
                break
        await state.real.aclear()
        for _ in range(5):
            await asyncio.sleep(0.01)

    asyncio.run(work())
    assert state.keys() == []


def test_the_mark_and_the_result_may_be_one_commit(state: Verbs) -> None:
    """Exactly once: on the same store, in one transaction."""
    for page in state.checkpoint([1, 2, 3], progress=None):
        with state.transaction() as tx:
            tx.increment("rows", page)
    assert (state.get("rows"), state.get("last_done")["done"]) == (6, 3)
