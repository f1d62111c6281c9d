"""Items of mapped tasks at the command line: `--item`, and the position an item is at now. Contract 6.5."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import outlast
from outlast.run_requests import ExpandTask, Item, TaskSpec
from support.runs import ANN, Desk

from .conftest import Told

Call = Callable[..., Told]


@pytest.fixture
def keyed(store: outlast.Store) -> outlast.Store:
    """A store with a task mapped to the items a and b, each of which has stored its own name."""
    desk = Desk(store.backend)
    desk.start(TaskSpec("copy", mapped=True))
    desk.send(ExpandTask("nightly", "r1", "copy", (Item("1", "a"), Item("2", "b"))))
    for item in "ab":
        store.task("nightly/r1/copy", item=item).set("name", item)
    return store


def test_an_item_is_addressed_by_its_key_or_by_where_it_is_now(call: Call, keyed: outlast.Store) -> None:
    for place in (("nightly/r1/copy/1",), ("nightly/r1/copy", "--item", "b")):
        assert call("state", "get", *place, "name").out == '"b"\n'
        assert [entry["value"] for entry in call("state", "ls", *place, "--json").json] == ["b"]


def test_every_command_of_a_scope_takes_an_item(call: Call, keyed: outlast.Store) -> None:
    place = ("nightly/r1/copy", "--item", "a")
    assert call("state", "set", *place, "name", "2").status == 0
    assert [version["value"] for version in call("state", "history", *place, "name", "--json").json] == [2, "a"]
    assert call("state", "restore", *place, "name", "1").status == 0
    assert keyed.task("nightly/r1/copy/0").get("name") == "a"
    assert call("state", "watch", *place, "--timeout", "0").lines[-1].startswith('name = "a"')
    assert call("state", "rm", *place, "name").status == 0
    keyed.task("nightly/r1/copy/0").set("name", 3)
    assert call("state", "clear", *place, "--yes").lines == ["cleared 1 key of nightly/r1/copy --item a"]
    assert keyed.task("nightly/r1/copy", item="b").get("name") == "b"


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("get", "nightly/r1/copy", "--item", "c", "name"), 4, "nightly/r1/copy has no item 'c' now; it has a, b"),
        (("get", "nightly/r1/copy/0", "--item", "a", "name"), 65, "give one of the two"),
        (("get", "nightly/r1/copy", "--item", "", "name"), 65, "item is empty"),
        (("get", "--asset", "table", "--item", "a", "name"), 2, "an asset has none"),
        (("ls", "--item", "a"), 2, "--item is for one item of a task; give its ADDRESS"),
    ],
)
def test_an_item_that_makes_no_sense_is_refused(
    call: Call, keyed: outlast.Store, arguments: tuple[str, ...], status: int, complaint: str
) -> None:
    told = call("state", *arguments)
    assert (told.status, complaint in told.err) == (status, True)


def test_the_keys_of_an_item_are_completed(program: Callable[..., Told], keyed: outlast.Store) -> None:
    keyed.task("nightly/r1/copy", item="b").set("only b", 1)
    words = {"COMP_WORDS": "outlast state get --item b nightly/r1/copy on", "COMP_CWORD": "6"}
    told = program(_OUTLAST_COMPLETE="bash_complete", **words)
    assert (told.err, told.lines) == ("", ["plain,only b"])


def test_what_a_command_says_to_call_takes_the_address_it_gives(call: Call, keyed: outlast.Store) -> None:
    [first, second] = call("tasks", "ls", "nightly/r1", "--json").json
    assert (second["address"], second["item"]) == ("nightly/r1/copy/1", "b")
    assert call("tasks", "show", first["address"], "--json").json["item"] == "a"


# --- `outlast tasks` ---------------------------------------------------------------------------------------------


def test_instances_are_shown_where_they_can_be_reached(call: Call, keyed: outlast.Store) -> None:
    assert [line.split() for line in call("tasks", "ls", "nightly/r1").lines] == [
        ["TASK", "STATE", "ITEM"],
        ["copy/0", "waiting", "a"],
        ["copy/1", "waiting", "b"],
    ]
    assert [line.split()[:3] for line in call("runs", "show", "nightly/r1").lines[-2:]] == [
        ["copy/0", "waiting", "a"],
        ["copy/1", "waiting", "b"],
    ]
    shown = call("tasks", "show", "nightly/r1/copy/1").lines
    assert shown[:2] == ["task:          nightly/r1/copy/1", "item:          b"]
    dry = call("tasks", "clear", "nightly/r1/copy", "--dry-run")
    assert dry.lines[1:] == [
        "nightly/r1/copy/0 (waiting), has stored name (3 bytes)",
        "nightly/r1/copy/1 (waiting), has stored name (3 bytes)",
    ]
    told = call("tasks", "clear", "nightly/r1/copy/1", "--discard-state")
    assert told.lines[:2] == ["cleared 1 task instance; 1 key discarded", "  nightly/r1/copy/1"]
    told = call("tasks", "cancel", "nightly/r1/copy/0", "--yes")
    assert told.lines[0] == "nightly/r1/copy/0 was waiting and is cancelled"


def test_instances_are_listed_by_position(call: Call, store: outlast.Store) -> None:
    """Wherever their items were before."""
    desk = Desk(store.backend)
    desk.start("files", TaskSpec("copy", upstream=("files",), mapped=True))
    for items in ("ab", "xba"):
        desk.ran("files")
        desk.send(ExpandTask("nightly", "r1", "copy", tuple(Item(key, key) for key in items)))
        listed = [(task["address"], task["item"]) for task in call("tasks", "ls", "nightly/r1", "--json").json]
        assert listed[-len(items) :] == [(f"nightly/r1/copy/{place}", key) for place, key in enumerate(items)]
        store.runs_as(ANN).clear("nightly", "r1", ["files"], downstream=True)


@pytest.mark.parametrize("which", [("--item", "b"), ("--map-index", "1")])
def test_every_command_of_a_task_instance_takes_an_item_or_an_index(
    call: Call, keyed: outlast.Store, which: tuple[str, ...]
) -> None:
    address = ("nightly/r1/copy", *which)
    assert call("tasks", "show", *address, "--json").json["address"] == "nightly/r1/copy/1"
    assert call("tasks", "explain", *address, "--json").json["address"] == "nightly/r1/copy/1"
    assert call("tasks", "clear", *address, "--json").json["cleared"] == ["nightly/r1/copy/1"]
    assert "nightly/r1/copy/1 has no log: it has not begun" in call("logs", *address).err
    assert call("tasks", "cancel", *address, "--yes", "--json").json["address"] == "nightly/r1/copy/1"
    assert call("tasks", "mark", "success", *address, "--json").json["address"] == "nightly/r1/copy/1"


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("show", "nightly/r1/copy", "--item", "c"), 4, "nightly/r1/copy has no item 'c' now; it has a, b. What an"),
        (("show", "nightly/r1/copy", "--item", "c"), 4, "outlast state ls nightly/r1/copy --item c"),
        (("clear", "nightly/r1/copy", "--item", "c"), 4, "has no item 'c' now"),
        (("show", "nightly/r1/copy/0", "--item", "a"), 65, "give one of the two"),
        (("show", "nightly/r1/copy/0", "--map-index", "1"), 65, "has an index already"),
        (("show", "nightly/r1/copy", "--map-index", "7"), 4, "the task's instances are 0 to 1"),
        (("show", "nightly/r1/copy", "--map-index", "-1"), 2, "--map-index"),
        (("cancel", "nightly/r1/copy", "--item", "a", "--map-index", "0"), 2, "exclude each other"),
        (("clear", "nightly/r1/copy/0", "nightly/r1/copy/1", "--item", "a"), 2, "give one ADDRESS"),
    ],
)
def test_an_instance_that_makes_no_sense_is_refused(
    call: Call, keyed: outlast.Store, arguments: tuple[str, ...], status: int, complaint: str
) -> None:
    told = call("tasks", *arguments)
    assert (told.status, complaint in told.err) == (status, True), told.err


def test_an_item_of_a_task_without_keys(call: Call, store: outlast.Store) -> None:
    Desk(store.backend).start("plain", TaskSpec("each", 0))
    for task in ("plain", "each"):
        told = call("tasks", "show", f"nightly/r1/{task}", "--item", "a")
        assert (told.status, "have no keys: it has no `map_key`; leave --item out" in told.err) == (4, True)
