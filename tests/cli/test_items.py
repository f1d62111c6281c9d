"""Items of mapped tasks at the command line: `--item`, and the position an item is at now. Contract 6.5."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import outlast
from outlast.run_requests import ExpandTask, Item, TaskSpec
from support.runs import Desk

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
    assert call("state", "clear", *place, "--yes").lines == ["cleared 1 key of nightly/r1/copy/a"]
    assert keyed.task("nightly/r1/copy", item="b").get("name") == "b"


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("get", "nightly/r1/copy", "--item", "c", "name"), 4, "there is no nightly/r1/copy/c"),
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
