"""`outlast audit`: what people have changed."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import outlast
from support.runs import ANN, Desk

from .conftest import SHOWN_THEN, Told

Call = Callable[..., Told]


@pytest.fixture
def changed(store: outlast.Store) -> outlast.Store:
    """A store in which somebody wrote, deleted and cleared."""
    for dag_id in ("nightly", "hourly"):
        Desk(store.backend, dag_id).start("extract")
        store.runs_as(ANN).clear(dag_id, "r1", ["extract"])
    state = store.task("nightly/r1/extract", writer=ANN)
    state.set("page", 41)
    state.set("page", {"a": [1, 2]})
    state.delete("page")
    return store


def test_changes_are_listed_newest_first(call: Call, changed: outlast.Store) -> None:
    told = call("audit")
    assert (told.status, told.err) == (0, "")
    rows = [line.split() for line in told.lines]
    assert rows[0] == ["WHEN", "WHO", "ACTION", "WHERE", "KEY", "BEFORE", "AFTER"]
    first = [SHOWN_THEN, "ann@desk"]
    assert rows[1:] == [
        [*first, "delete", "nightly/r1/extract", "page", '{"a":[1,2]}'],
        [*first, "set", "nightly/r1/extract", "page", "41", '{"a":[1,2]}'],
        [*first, "set", "nightly/r1/extract", "page", "41"],
        [*first, "clear", "hourly/r1/extract", '"waiting"', '"waiting"'],
        [*first, "clear", "nightly/r1/extract", '"waiting"', '"waiting"'],
    ]


def test_changes_for_programs(call: Call, changed: outlast.Store) -> None:
    told = call("audit", "--json", "--limit", "2")
    assert told.json == [
        {
            "id": 5,
            "at": SHOWN_THEN,
            "who": "ann@desk",
            "action": "delete",
            "place": "nightly/r1/extract",
            "dag_id": "nightly",
            "key": "page",
            "before": {"a": [1, 2]},
            "after": None,
            "masked": False,
        },
        {
            "id": 4,
            "at": SHOWN_THEN,
            "who": "ann@desk",
            "action": "set",
            "place": "nightly/r1/extract",
            "dag_id": "nightly",
            "key": "page",
            "before": 41,
            "after": {"a": [1, 2]},
            "masked": False,
        },
    ]


@pytest.mark.parametrize(("dag", "ids"), [("hourly", [2]), ("h*", [2]), ("*ly", [5, 4, 3, 2, 1]), ("x", [])])
def test_changes_of_one_dag(call: Call, changed: outlast.Store, dag: str, ids: list[int]) -> None:
    assert [row["id"] for row in call("audit", "--json", "--dag", dag).json] == ids


def test_what_one_does_at_the_command_line_is_there(call: Call, store: outlast.Store) -> None:
    call("state", "set", "nightly/r1/extract", "page", "41")
    (row,) = call("audit", "--json").json
    assert (row["action"], row["key"], row["after"]) == ("set", "page", 41)
    assert row["who"].partition("@")[2] == os.uname().nodename


def test_secrets_are_not_told(call: Call, store: outlast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that were secret when they were written, nor those that have become so since."""
    store.task("nightly/r1/extract", writer=ANN).set("old_token", "hunter2")
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "*token*")
    call("state", "set", "nightly/r1/extract", "new_token", "--string", "hunter3")
    told, json = call("audit"), call("audit", "--json")
    assert "hunter" not in told.out + json.out
    newest, oldest = json.json
    assert (newest["key"], newest["masked"]) == ("new_token", False)
    assert newest["after"].startswith("9 bytes, keyed digest ")
    assert (oldest["key"], oldest["masked"], oldest["after"]) == ("old_token", True, None)
    assert told.lines[2].split()[-1] == "***"


def test_control_characters_do_not_reach_the_screen(call: Call, store: outlast.Store) -> None:
    store.task("nightly/r1/extract", writer=ANN).set("page\u200b", "\x1b[2J\u202e")
    told = call("audit")
    assert "\x1b" not in told.out
    assert "\u202e" not in told.out
    assert call("audit", "--json").json[0]["after"] == "\x1b[2J\u202e"


def test_nothing_changed(call: Call, store: outlast.Store) -> None:
    assert call("audit") == Told(0, "", "nobody has changed anything\n")
    assert call("audit", "--json").json == []
