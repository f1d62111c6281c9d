"""Mapped tasks in the store: expansion, re-expansion, and whose state is whose. Contract 5.2, 6.4, 6.5, 6.6."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Conflict, DagError, InvalidKey, StaleAttempt
from outlast.requests import Fence
from outlast.run_requests import (
    Begin,
    Expanded,
    ExpandTask,
    GetRun,
    Item,
    PullResults,
    Report,
    TaskRow,
    TaskSpec,
)
from outlast.values import TaskScope
from support.clock import Clock
from support.runs import ANN, SUPERVISOR, Desk, state_of
from support.verbs import Verbs

MAPPED = TaskSpec("copy", upstream=("extract",), mapped=True)


class Mapped:
    """One run of a task `copy` mapped over what `extract` returns."""

    def __init__(self, desk: Desk, store: Verbs, runs: Verbs) -> None:
        self.desk, self.store, self.runs = desk, store, runs
        desk.start("extract", MAPPED, ("total", "copy"))
        desk.ran("extract")

    def expand(self, *items: Item | str) -> Expanded:
        """Expand into items; text is the digest of one without a key."""
        made = tuple(Item(item) if isinstance(item, str) else item for item in items)
        expanded: Expanded = self.desk.send(ExpandTask("nightly", "r1", "copy", made))
        return expanded

    def again(self, *items: Item | str, **more: Any) -> Expanded:
        """Clear what it is mapped over, and expand anew."""
        self.runs.clear("nightly", "r1", ["extract"], downstream=True, **more)
        self.desk.ran("extract")
        return self.expand(*items)

    def rows(self) -> list[TaskRow]:
        rows: list[TaskRow] = list(self.desk.send(GetRun("nightly", "r1", "copy")).tasks)
        return sorted(rows, key=lambda row: row.scope.map_index)

    def begin(self, index: int) -> Fence:
        row = self.rows()[index]
        begun = self.desk.send(Begin(row.scope, row.attempt, SUPERVISOR, 30))
        return Fence(begun.scope, begun.attempt, begun.scope_id)

    def ran(self, index: int, **more: Any) -> None:
        self.desk.send(Report(self.begin(index), "success", **more))

    def at(self, index: int) -> Verbs:
        """Return the state of what is at a position."""
        state: Verbs = self.store.task("nightly/r1/copy", map_index=index)
        return state

    def of(self, key: str) -> Verbs:
        """Return the state of an item by its key."""
        state: Verbs = self.store.task("nightly/r1/copy", item=key)
        return state

    def results(self) -> list[tuple[int, str]]:
        rows = self.desk.send(PullResults("nightly", "r1", ("copy",), "return_value")).rows
        return [(index, text) for _, index, text in rows]


@pytest.fixture
def mapped(desk: Desk, store: Verbs, runs: Verbs) -> Mapped:
    return Mapped(desk, store, runs)


def keyed(*keys: str) -> list[Item]:
    return [Item(f"digest of {key}", key) for key in keys]


# --- Expansion -------------------------------------------------------------------------------------------


def test_instances_take_the_place_of_the_mapped_row(mapped: Mapped) -> None:
    (before,) = mapped.rows()
    assert (before.mapped, before.state, before.scope.map_index) == (True, "waiting", -1)
    expanded = mapped.expand("one", "two", "three")
    assert list(expanded.tasks) == mapped.rows()
    assert [row.scope for row in expanded.tasks] == [TaskScope("nightly", "r1", "copy", index) for index in range(3)]
    assert {(row.state, row.attempt, row.upstream, row.mapped) for row in expanded.tasks} == {
        ("waiting", 0, ("extract",), False)
    }
    assert [row.item_digest for row in expanded.tasks] == ["one", "two", "three"]
    assert expanded.changed == ()
    assert len({row.scope_id for row in expanded.tasks} | {before.scope_id}) == 4


def test_the_mapped_row_itself_cannot_begin(mapped: Mapped) -> None:
    with pytest.raises(Conflict):
        mapped.desk.begin("copy")


def test_the_first_expansion_stays(mapped: Mapped) -> None:
    """A runner that comes later with another list goes on with the one that is stored."""
    first = mapped.expand("one", "two")
    fence = mapped.begin(0)
    state_of(mapped.store, fence).set("page", 41)
    again = mapped.expand("another")
    assert [row.scope for row in again.tasks] == [row.scope for row in first.tasks]
    assert (again.changed, again.tasks[0].state) == ((), "running")
    assert mapped.at(0).get("page") == 41
    assert [row.item_digest for row in mapped.rows()] == ["one", "two"]


def test_what_is_mapped_over_nothing_is_skipped(mapped: Mapped) -> None:
    assert mapped.expand() == Expanded((), ())
    (row,) = mapped.rows()
    assert (row.state, row.mapped, row.ended_at is not None) == ("skipped", True, True)
    assert mapped.expand("one") == Expanded((), ())
    assert mapped.rows() == [row]


def test_equal_keys_are_refused_and_nothing_is_expanded(mapped: Mapped) -> None:
    before = mapped.rows()
    with pytest.raises(DagError, match=r"'a'.*two items|'a' for items 0 and 2"):
        mapped.expand(*keyed("a", "b", "a"))
    assert mapped.rows() == before
    mapped.expand("same", "same")


def test_many_items_are_expanded_in_their_order(mapped: Mapped) -> None:
    expanded = mapped.expand(*(Item(str(number), f"k{number}") for number in range(300)))
    assert [row.scope.item for row in expanded.tasks] == [f"k{number}" for number in range(300)]
    assert [row.scope.map_index for row in expanded.tasks] == list(range(300))


def test_each_instance_has_a_state_of_its_own(mapped: Mapped) -> None:
    mapped.expand("one", "two", "three")
    fences = [mapped.begin(index) for index in range(3)]
    for index, fence in enumerate(fences):
        state_of(mapped.store, fence).set("page", index)
    state_of(mapped.store, fences[1]).clear()
    assert [mapped.at(index).get("page") for index in range(3)] == [0, None, 2]
    mapped.runs.clear("nightly", "r1", [("copy", 2)], discard=True)
    assert [mapped.at(index).get("page") for index in range(3)] == [0, None, None]
    state_of(mapped.store, fences[0]).set("page", 5)
    with pytest.raises(StaleAttempt):
        state_of(mapped.store, fences[2]).get("page")


# --- Clearing and expanding again ------------------------------------------------------------------------


def test_clearing_what_it_is_mapped_over_has_it_mapped_again(mapped: Mapped) -> None:
    mapped.expand("one", "two")
    mapped.ran(0, result="1")
    mapped.ran(1, result="2")
    mapped.runs.clear("nightly", "r1", ["extract"], downstream=True)
    (row,) = mapped.rows()
    assert (row.mapped, row.state, row.upstream) == (True, "waiting", ("extract",))
    assert mapped.results() == []


@pytest.mark.parametrize("tasks", [["total"], [("copy", 0)], ["extract"]])
def test_another_clear_leaves_the_expansion(mapped: Mapped, tasks: list[Any]) -> None:
    mapped.expand("one", "two")
    for index in range(2):
        mapped.ran(index)
    mapped.runs.clear("nightly", "r1", tasks)
    assert [row.item_digest for row in mapped.rows()] == ["one", "two"]


def test_all_indexes_are_refused_while_one_runs(mapped: Mapped) -> None:
    mapped.expand("one", "two")
    fence = mapped.begin(1)
    with pytest.raises(Conflict, match="copy/1 is running"):
        mapped.runs.clear("nightly", "r1", ["extract"], downstream=True)
    assert len(mapped.rows()) == 2
    mapped.runs.clear("nightly", "r1", ["extract"], downstream=True, force=True)
    with pytest.raises(StaleAttempt):
        state_of(mapped.store, fence).set("page", 1)
    with pytest.raises(StaleAttempt):
        mapped.desk.report(fence, "success")


def test_an_unchanged_item_keeps_its_state_and_goes_on_counting(mapped: Mapped) -> None:
    mapped.expand("one", "two")
    mapped.ran(0)
    mapped.at(0).set("page", 41)
    expanded = mapped.again("one", "two")
    assert (expanded.changed, mapped.at(0).get("page")) == ((), 41)
    assert mapped.begin(0).attempt == 2
    assert [attempt.state for attempt in mapped.runs.attempts(mapped.rows()[0].scope).attempts] == [
        "success",
        "running",
    ]


def test_a_changed_item_begins_afresh_without_state_or_history(mapped: Mapped) -> None:
    mapped.expand("one", "two")
    for index in range(2):
        mapped.at(index).set("page", 1)
        mapped.at(index).set("page", 2)
    expanded = mapped.again("one", "other", "new")
    assert expanded.changed == (1,)
    assert [mapped.at(index).get("page") for index in range(3)] == [2, None, None]
    assert [version.value for version in mapped.at(1).history("page") if not version.deleted] == []
    assert [version.value for version in mapped.at(0).history("page")] == [2, 1]
    assert [row.item_digest for row in mapped.rows()] == ["one", "other", "new"]


def test_a_fenced_attempt_of_the_item_before_cannot_write_to_the_new_one(mapped: Mapped) -> None:
    mapped.expand("one")
    fence = mapped.begin(0)
    mapped.again("other", force=True)
    with pytest.raises(StaleAttempt):
        state_of(mapped.store, fence).set("page", 1)
    newest = mapped.begin(0)
    state_of(mapped.store, newest).set("page", 2)
    assert (fence.attempt, newest.attempt) == (1, 2)


def test_a_shorter_list_has_fewer_instances_and_a_longer_one_finds_their_state(mapped: Mapped) -> None:
    mapped.expand("one", "two", "three")
    mapped.at(2).set("page", 3)
    assert mapped.again("one").changed == ()
    assert len(mapped.rows()) == 1
    assert mapped.at(2).get("page") == 3
    assert mapped.again("one", "two", "three").changed == ()
    assert mapped.at(2).get("page") == 3


def test_what_an_item_has_stored_that_is_no_longer_there_is_no_earlier_runs(mapped: Mapped, clock: Clock) -> None:
    mapped.expand("one", "two")
    mapped.store.task("nightly/r1/copy", map_index=1, attempt=1).set("page", 3)
    mapped.again("one")
    clock.move(seconds=1)
    other = mapped.store.task("nightly/r1/copy", map_index=1, attempt=2, origin=("run:1", clock.now))
    assert other.get("page") == 3


def test_from_something_to_nothing_and_back(mapped: Mapped) -> None:
    mapped.expand("one")
    mapped.at(0).set("page", 1)
    assert mapped.again() == Expanded((), ())
    assert [row.state for row in mapped.rows()] == ["skipped"]
    assert mapped.again("one").changed == ()
    assert mapped.at(0).get("page") == 1


def test_items_that_cannot_be_told_apart_keep_the_state_of_their_position(mapped: Mapped) -> None:
    mapped.expand("")
    mapped.at(0).set("page", 1)
    assert mapped.again("").changed == ()
    assert mapped.at(0).get("page") == 1


def test_a_discard_discards_before_it_is_known_what_comes_next(mapped: Mapped) -> None:
    mapped.expand("one")
    mapped.at(0).set("page", 1)
    assert mapped.again("one", discard=True).changed == ()
    assert mapped.at(0).get("page") is None


def test_what_a_task_says_of_clearing_holds_for_its_instances(desk: Desk, store: Verbs, runs: Verbs) -> None:
    desk.start(TaskSpec("copy", mapped=True, discard_on_clear=True))
    desk.send(ExpandTask("nightly", "r1", "copy", (Item("one"), Item("two"))))
    store.task("nightly/r1/copy/1").set("page", 1)
    runs.clear("nightly", "r1", ["copy"])
    assert store.task("nightly/r1/copy/1").keys() == []


def test_try_numbers_have_no_gap_over_a_new_expansion(mapped: Mapped) -> None:
    mapped.expand("one", *keyed("b"))
    for number in (1, 2, 3):
        assert [mapped.begin(index).attempt for index in range(2)] == [number, number]
        mapped.again("one", *keyed("b"), force=True)


# --- State that follows the item -------------------------------------------------------------------------


def test_state_follows_the_item_when_others_are_put_in_taken_out_and_moved(mapped: Mapped) -> None:
    mapped.expand(*keyed("a", "b", "c"))
    for key in "abc":
        mapped.of(key).set("name", key)
    for order in ("cab", "xcab", "xb", "bx", "abxc"):
        expanded = mapped.again(*keyed(*order))
        assert (expanded.changed, [row.scope.item for row in expanded.tasks]) == ((), list(order))
        mapped.of("x").set("name", "x") if "x" in order else None
        assert [mapped.at(index).get("name") for index in range(len(order))] == list(order)
        assert [mapped.of(key).get("name") for key in "abc"] == list("abc")


def test_an_item_whose_value_changes_under_its_key_keeps_its_state(mapped: Mapped) -> None:
    mapped.expand(Item("1", "a"))
    mapped.of("a").set("page", 41)
    assert mapped.again(Item("2", "a")).changed == ()
    assert mapped.of("a").get("page") == 41
    assert mapped.rows()[0].item_digest == "2"


def test_an_item_in_the_list_no_more_is_reached_by_its_key_only(mapped: Mapped) -> None:
    mapped.expand(*keyed("a", "b"))
    mapped.of("b").set("name", "b")
    mapped.again(*keyed("a"))
    assert (mapped.at(1).get("name"), mapped.of("b").get("name")) == (None, "b")
    assert TaskScope("nightly", "r1", "copy", -1, "b") in [info.scope for info in mapped.store.scopes(task_id="copy")]
    mapped.runs.delete("nightly", "r1", force=True)
    assert mapped.of("b").keys() == []


def test_every_door_of_a_position_leads_to_the_item_that_is_there(mapped: Mapped) -> None:
    """Contract 6.5: reading, writing, clearing, marking, attempts and results."""
    mapped.expand(*keyed("a", "b"))
    mapped.ran(0, result='"of a"')
    mapped.ran(1, result='"of b"')
    assert mapped.results() == [(0, '"of a"'), (1, '"of b"')]
    mapped.again(*keyed("b", "a"))
    mapped.at(0).set("page", 1)
    assert (mapped.of("b").get("page"), mapped.of("a").get("page")) == (1, None)
    first = TaskScope("nightly", "r1", "copy", 0)
    assert mapped.runs.attempts(first).task.scope == TaskScope("nightly", "r1", "copy", 0, "b")
    mapped.runs.mark(first, "success")
    assert {row.scope.item: row.state for row in mapped.rows()} == {"a": "waiting", "b": "success"}
    mapped.runs.clear("nightly", "r1", [("copy", 0)])
    assert {row.scope.item: row.state for row in mapped.rows()} == {"a": "waiting", "b": "waiting"}
    mapped.ran(1, result='"again of a"')
    assert mapped.results() == [(1, '"again of a"')]


def test_a_fence_belongs_to_the_item_and_not_to_the_position(mapped: Mapped) -> None:
    mapped.expand(*keyed("a", "b"))
    script = mapped.store.task("nightly/r1/copy", item="a", attempt="new")
    mapped.again(*keyed("b", "a"))
    mapped.begin(0)
    mapped.begin(1)
    with pytest.raises(StaleAttempt):
        script.set("page", 1)


def test_attempts_are_those_of_the_item(mapped: Mapped) -> None:
    mapped.expand(*keyed("a", "b"))
    mapped.ran(0)
    mapped.again(*keyed("new", "b", "a"))
    assert [row.attempt for row in mapped.rows()] == [0, 0, 1]


def test_a_task_that_is_given_keys_later_is_found_at_its_positions(mapped: Mapped) -> None:
    """Its state by position stays where it was, and nobody takes it for an item's."""
    mapped.expand("one", "two")
    mapped.at(0).set("name", "by position")
    mapped.again(*keyed("a", "b"))
    mapped.of("a").set("name", "a")
    assert mapped.at(0).get("name") == "a"


def test_a_task_whose_keys_are_taken_away_begins_afresh(mapped: Mapped) -> None:
    mapped.expand(*keyed("a", "b"))
    mapped.of("a").set("name", "a")
    mapped.again("one", "two")
    assert [row.scope.item for row in mapped.rows()] == [None, None]
    assert mapped.at(0).get("name") is None
    assert mapped.of("a").get("name") == "a"


# --- Addresses -------------------------------------------------------------------------------------------


def test_an_item_is_an_address_like_any_other(store: Verbs) -> None:
    for key in ("a", "3", "a/b", "été", "x" * 512):
        state = store.task(dag_id="d", run_id="r", task_id="t", item=key)
        state.set("key", key)
        assert store.task("d/r/t", item=key).get("key") == key
    assert store.task("d/r/t").get("key") is None
    assert store.task("d/r/t/3").get("key") is None


@pytest.mark.parametrize("item", ["", "a\nb", "x" * 513, 3])
def test_a_key_that_is_none_is_refused(store: Verbs, item: Any) -> None:
    with pytest.raises(InvalidKey):
        store.task("d/r/t", item=item)


def test_a_position_and_a_key_exclude_each_other(store: Verbs) -> None:
    for arguments in ({"address": "d/r/t/0"}, {"address": "d/r/t", "map_index": 0}):
        with pytest.raises(InvalidKey, match="give one of the two"):
            store.task(**arguments, item="a")
    with pytest.raises(TypeError):
        store.task(TaskScope("d", "r", "t"), item="a")


def test_deleting_a_run_takes_every_item_with_it(mapped: Mapped) -> None:
    """Contract 6.4."""
    mapped.expand(*keyed("a", "b"))
    for key in "ab":
        mapped.of(key).set("name", key)
    mapped.ran(0)
    mapped.again(*keyed("b"))
    mapped.runs.delete("nightly", "r1", force=True)
    assert mapped.store.scopes() == []
    assert [mapped.of(key).keys() for key in "ab"] == [[], []]
    mapped.desk.start("extract", MAPPED)
    mapped.desk.ran("extract")
    mapped.expand(*keyed("a"))
    assert mapped.begin(0).attempt == 1
    assert mapped.runs.audit()[-1].who == ANN.name
