"""`outlast assets`: what is known of assets, and making one of two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast.event_requests import AddEvents
from outlast.run_requests import NewEvent
from support.public import open_door
from support.runs import Desk

from .conftest import SHOWN_THEN, Told

Call = Callable[..., Told]
URI = "s3://bucket/orders"


@pytest.fixture
def known(store: outlast.Store) -> outlast.Store:
    """Assets with state and events: one written by a task, one only by its URI, one only updated."""
    desk = Desk(store.backend)
    desk.start("load")
    desk.ran("load", events=(NewEvent("orders", URI, '{"rows":7,"api_token":"hunter2"}'), NewEvent("users", "users")))
    state = store.task("nightly/r1/load", attempt="new")
    state.asset("orders", uri=URI).set_many({"watermark": 7, "api_token": "hunter2"})
    store.asset(uri="s3://bucket/old").set("rows", 1)
    store.backend.send(AddEvents((NewEvent("orders", URI),)))
    return store


def test_assets_are_listed_by_name(call: Call, known: outlast.Store) -> None:
    told = call("assets", "ls")
    assert (told.status, told.err) == (0, "")
    assert [line.split() for line in told.lines] == [
        ["NAME", "URI", "KEYS", "CHANGED", "BY", "UPDATED"],
        ["orders", URI, "2", SHOWN_THEN, "nightly/r1/load", "attempt", "2", SHOWN_THEN],
        ["s3://bucket/old", "1", SHOWN_THEN, "library"],
        ["users", "0", SHOWN_THEN],
    ]


def test_assets_for_programs(call: Call, known: outlast.Store) -> None:
    first, second, third = call("assets", "ls", "--json").json
    writer = {"kind": "task", "attempt": 2, "name": None, "scope": "nightly/r1/load"}
    times = {"changed_at": SHOWN_THEN, "updated_at": SHOWN_THEN}
    assert first == {"name": "orders", "uri": URI, "keys": 2, "writer": writer} | times
    assert (second["name"], second["uri"], second["updated_at"]) == (None, "s3://bucket/old", None)
    assert (third["name"], third["keys"], third["writer"]) == ("users", 0, None)


def test_no_assets(call: Call, store: outlast.Store) -> None:
    store.task("d/r/t").set("page", 1)
    assert call("assets", "ls") == Told(0, "", "there are no assets yet\n")
    assert call("assets", "ls", "--json").json == []


@pytest.mark.parametrize("words", [("orders",), (URI, "--uri")])
def test_one_asset(call: Call, known: outlast.Store, words: tuple[str, ...]) -> None:
    told = call("assets", "show", *words)
    assert (told.status, told.err) == (0, "")
    assert [line.split() for line in told.lines] == [
        ["name:", "orders"],
        ["URI:", URI],
        ["KEY", "VALUE", "REVISION", "CHANGED", "BY"],
        ["api_token", '"hunter2"', "1", SHOWN_THEN, "nightly/r1/load", "attempt", "2"],
        ["watermark", "7", "1", SHOWN_THEN, "nightly/r1/load", "attempt", "2"],
        ["UPDATED", "BY", "EXTRA"],
        [SHOWN_THEN, "{}"],
        [SHOWN_THEN, "nightly/r1/load", '{"rows":7,"api_token":"hunter2"}'],
    ]


def test_one_asset_for_programs(call: Call, known: outlast.Store) -> None:
    told = call("assets", "show", "orders", "--json").json
    assert (told["name"], told["uri"]) == ("orders", URI)
    assert [(entry["key"], entry["value"], entry["masked"]) for entry in told["entries"]] == [
        ("api_token", "hunter2", False),
        ("watermark", 7, False),
    ]
    assert told["entries"][1]["writer"]["scope"] == "nightly/r1/load"
    assert told["events"] == [
        {"id": 3, "at": SHOWN_THEN, "source": None, "extra": {}},
        {"id": 1, "at": SHOWN_THEN, "source": "nightly/r1/load", "extra": {"rows": 7, "api_token": "hunter2"}},
    ]


def test_secrets_are_masked(call: Call, known: outlast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under keys of the state and in what events carry."""
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "*token*")
    text, json = call("assets", "show", "orders"), call("assets", "show", "orders", "--json")
    assert "hunter" not in text.out + json.out
    assert json.json["entries"][0]["masked"]
    assert json.json["events"][1]["extra"] == {"rows": 7, "api_token": "***"}
    assert call("assets", "show", "orders", "--reveal", "--json").out.count("hunter2") == 2


def test_only_so_many_events(call: Call, known: outlast.Store) -> None:
    known.backend.send(AddEvents(tuple(NewEvent("users", "users", f'{{"n":{number}}}') for number in range(2500))))
    shown = call("assets", "show", "users", "--json").json["events"]
    assert [event["extra"]["n"] for event in shown] == list(range(2499, 2489, -1))
    assert [event["id"] for event in call("assets", "show", "orders", "--limit", "1", "--json").json["events"]] == [3]
    assert call("assets", "show", "orders", "--limit", "0", "--json").json["events"] == []


def test_an_asset_with_events_alone(call: Call, known: outlast.Store) -> None:
    told = call("assets", "show", "users")
    assert (told.status, told.err) == (0, "it has no state\n")
    assert [line.split()[0] for line in told.lines] == ["name:", "UPDATED", SHOWN_THEN]


@pytest.mark.parametrize("words", [("nope",), ("orders", "--uri"), ("nope", "--json")])
def test_no_such_asset(call: Call, known: outlast.Store, words: tuple[str, ...]) -> None:
    told = call("assets", "show", *words)
    assert (told.status, told.out) == (4, "")
    assert told.err == f"outlast: there is no asset {words[0]}; `outlast assets ls` lists those there are\n"


def test_its_state_is_changed_by_the_state_commands(call: Call, known: outlast.Store) -> None:
    assert call("state", "set", "--asset", "orders", "watermark", "8").status == 0
    assert call("state", "get", "--asset-uri", URI, "watermark").out == "8\n"


# --- merge ---------------------------------------------------------------------------------------------------


def test_two_assets_become_one(call: Call, store: outlast.Store) -> None:
    store.asset("orders").set_many({"a": 1, "b": 2})
    store.asset(uri=URI).set_many({"b": 3, "c": 4})
    told = call("assets", "merge", "orders", URI)
    assert (told.status, told.out) == (9, "")
    assert "--prefer" in told.err
    told = call("assets", "merge", "orders", URI, "--prefer", "name")
    assert told.lines == [
        f"orders and {URI} are one asset; 1 key moved to it",
        f"b: the value of {URI} is gone; `outlast audit` has it",
    ]
    assert store.asset("orders", uri=URI).items() == [("a", 1), ("b", 2), ("c", 4)]
    assert call("assets", "merge", "orders", URI, "--json").json == {
        "name": "orders",
        "uri": URI,
        "moved": [],
        "dropped": [],
    }


def test_what_cannot_be_merged(call: Call, known: outlast.Store) -> None:
    assert call("assets", "merge", "nope", "s3://nope").status == 4
    assert call("assets", "merge", "orders", "s3://bucket/old").status == 65


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("order", URI), "no asset with the name 'order' (like it: 'orders'). If it is meant to be new: --new"),
        (("users", "s3://bucket/order"), f"no asset with the URI 's3://bucket/order' (like it: '{URI}'"),
        (("orders", "users"), "the URI 'users': that is the name of another asset, and merge takes a NAME and a URI"),
        (("s3://bucket/old", URI), "the name 's3://bucket/old': that is a URI"),
        (("nope", "s3://nope", "--new"), "no asset with the name 'nope'; and there is no asset with the URI"),
    ],
)
def test_a_merge_with_what_is_not_known_is_refused(
    call: Call, known: outlast.Store, words: tuple[str, ...], complaint: str
) -> None:
    before = call("assets", "ls").lines
    told = call("assets", "merge", *words)
    assert (told.status, complaint in told.err) == (4, True), told.err
    assert call("assets", "ls").lines == before


def test_a_second_name_that_is_new_is_given_and_taken_off_again(call: Call, store: outlast.Store) -> None:
    store.asset("orders").set("a", 1)
    assert call("assets", "merge", "orders", URI, "--new").status == 0
    assert call("state", "get", "--asset-uri", URI, "a").out == "1\n"
    told = call("assets", "unname", URI, "--uri")
    assert told.lines == [f"{URI} means this asset no more; its state stays with orders"]
    assert call("assets", "ls", "--json").json[0]["uri"] is None
    assert call("assets", "unname", "orders").status == 9
    assert call("assets", "unname", URI, "--uri").status == 4


# --- rm ------------------------------------------------------------------------------------------------------


def test_an_asset_is_removed_with_its_state(call: Call, known: outlast.Store) -> None:
    assert call("assets", "rm", "s3://bucket/old", "--uri").status == 2  # nobody is there to be asked
    told = call("assets", "rm", "s3://bucket/old", "--uri", "--yes")
    assert told.lines == ["removed asset s3://bucket/old: 1 key"]
    assert [asset["name"] for asset in call("assets", "ls", "--json").json] == ["orders", "users"]
    actions = [(row["action"], row["key"], row["before"]) for row in call("audit", "--json").json]
    assert actions[0][:2] == ("remove asset", None)
    assert actions[1][1:] == ("rows", 1)
    assert call("assets", "rm", "s3://bucket/old", "--uri", "--yes").status == 4


@pytest.mark.http
def test_an_editor_at_a_server_is_told_what_went_and_how_it_comes_back(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_door(tmp_path) as door:
        door.store.asset("oders").set("rows", 1)
        monkeypatch.setenv("OUTLAST_TOKEN", door.as_role("editor").token or "")
        told = call("assets", "rm", "oders", "--yes", "--store", door.url)
        assert told.status == 77
        assert "it takes an admin's" in told.err
        assert "asset oders keeps its name and its history, only its 1 key went: `outlast state restore`" in told.err
        assert door.store.asset("oders").get("rows") is None
        revision = door.store.asset("oders").history("rows")[-1].revision
        restored = call("state", "restore", "--asset", "oders", "rows", str(revision), "--store", door.url)
        assert (restored.status, door.store.asset("oders").get("rows")) == (0, 1), restored.err


def test_an_asset_with_events_alone_has_nothing_to_remove(call: Call, known: outlast.Store) -> None:
    told = call("assets", "rm", "users", "--yes")
    assert (told.status, "only events" in told.err) == (9, True)
