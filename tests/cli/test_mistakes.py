"""Mistakes people make at the command line: what is not meant is refused, and says what was probably meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import outlast
from outlast.run_requests import ExpandTask, Item, TaskSpec
from support.runs import Desk

from .conftest import Told

Call = Callable[..., Told]


@pytest.fixture
def keyed(store: outlast.Store) -> Desk:
    """A run with a task mapped to items, one with a number for its key, and a task that waits for it."""
    desk = Desk(store.backend)
    desk.start(TaskSpec("copy", mapped=True), ("report", "copy"), "other")
    desk.send(ExpandTask("nightly", "r1", "copy", (Item("1", "a.orders"), Item("2", "7"), Item("3", "b b"))))
    return desk


# --- command lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rn",), "No such command 'rn'. Did you mean 'run'?"),
        (("state", "gte"), "No such command 'gte'. Did you mean 'get'?"),
        (("tasks", "frobnicate"), "No such command 'frobnicate'. There are: cancel, clear, explain,"),
    ],
)
def test_the_nearest_command_is_named(call: Call, arguments: tuple[str, ...], said: str) -> None:
    told = call(*arguments)
    assert (told.status, said in told.err) == (2, True), told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("state", "get", "nightly/r1/copy", "--item", "a", "--item", "b", "x"),
            "--item is given 2 times",
        ),
        (("runs", "ls", "--limit", "1", "--limit", "2"), "--limit is given 2 times"),
        (
            ("tasks", "clear", "nightly/r1/copy", "--keep-state", "--discard-state"),
            "exclude each other; give one",
        ),
        (("doctor", "--store", "a", "--store", "b"), "--store is given 2 times"),
        (("logs", "nightly/r1/copy", "--map-index", "1", "--map-index", "2"), "--map-index is given 2 times"),
    ],
)
def test_an_option_given_twice_is_refused(call: Call, keyed: Desk, arguments: tuple[str, ...], said: str) -> None:
    told = call(*arguments)
    assert (told.status, said in told.err) == (2, True), told.err


def test_what_may_come_twice_does(call: Call, keyed: Desk) -> None:
    assert call("runs", "ls", "--state", "running", "--state", "paused").status == 0
    assert call("tasks", "clear", "nightly/r1/copy", "--yes", "--yes").status == 0
    told = call("tasks", "clear", "nightly/r1/copy", "--item", "7", "--item", "b b", "--json")
    assert told.json["cleared"] == ["nightly/r1/copy/1", "nightly/r1/copy/2"]
    told = call("tasks", "clear", "nightly/r1/copy", "--map-index", "0", "--map-index", "2", "--json")
    assert told.json["cleared"] == ["nightly/r1/copy/0", "nightly/r1/copy/2"]


# --- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("state", "get", "nightly/r1/copy/a.orders", "x"), 65, "nightly/r1/copy --item a.orders"),
        (("tasks", "show", "nightly/r1/copy/a/b"), 65, "nightly/r1/copy --item a/b"),
        (("state", "get", "nightly/r1/copy/7", "x"), 4, "0 to 2. The item of that key: nightly/r1/copy --item 7"),
        (("tasks", "show", "nightly/r1/copy/7"), 4, "0 to 2. The item of that key: nightly/r1/copy --item 7"),
        (
            ("state", "get", "nightly/r1/copy", "x"),
            4,
            "instances: nightly/r1/copy/0 to /2, or by its key: nightly",
        ),
        (("state", "ls", "nightly/r1/copy"), 4, "nightly/r1/copy is mapped; name one of its instances"),
        (("state", "get", "nightly/r1/repart", "x"), 4, "has no task repart; did you mean report?"),
    ],
)
def test_an_address_that_leads_nowhere_says_what_does(
    call: Call, keyed: Desk, arguments: tuple[str, ...], status: int, said: str
) -> None:
    told = call(*arguments)
    assert (told.status, said in told.err) == (status, True), told.err


def test_a_scope_that_is_printed_is_an_address(call: Call, store: outlast.Store, keyed: Desk) -> None:
    store.task("nightly/r1/copy", item="b b").set("page", 41)
    shown = "nightly/r1/copy --item 'b b'"
    assert any(line.startswith(f"{shown} ") for line in call("state", "ls").lines)
    assert call("state", "find", "--key", "page").lines[1].startswith(f"{shown} ")
    assert call("state", "ls", "nightly/r1/copy", "--item", "b b").lines[1].startswith("page  41")
    call("tasks", "mark", "failed", "nightly/r1/copy", "--item", "b b")
    assert call("audit", "--json").json[0]["place"] == shown
    assert f"{shown} has already ended" in call("tasks", "cancel", "nightly/r1/copy/2", "--yes").err


# --- state -------------------------------------------------------------------------------------------------------


def test_a_write_to_a_task_the_run_does_not_have_is_refused(call: Call, store: outlast.Store, keyed: Desk) -> None:
    for address, said in (
        ("nightly/r1/repport", "did you mean report? To store it there all the same add --create"),
        ("nightly/r1/copy/9", "the task's instances are 0 to 2. To store it there all the same add --create"),
        ("nightly/r1/copy", "is mapped; name one of its instances"),
    ):
        told = call("state", "set", address, "page", "1")
        assert (told.status, said in told.err) == (4, True), told.err
    assert call("state", "set", "nightly/r1/report", "page", "1").err == ""
    told = call("state", "set", "nightly/r1/repport", "page", "1", "--create")
    assert (told.status, told.err) == (0, "outlast: created nightly/r1/repport\n")
    assert call("state", "set", "nightly/r1/repport", "page", "2").err == ""


def test_a_write_where_no_run_is_known_says_what_it_made(call: Call, keyed: Desk) -> None:
    told = call("state", "set", "script/today/load", "page", "1")
    assert (told.status, told.err) == (0, "outlast: created script/today/load\n")
    assert call("state", "set", "script/today/load", "page", "2").err == ""


def test_a_value_that_cannot_be_kept_is_named_by_its_key(store: outlast.Store) -> None:
    with pytest.raises(outlast.InvalidValue, match=r"^key 'when': \$\.t\[0\] is a set"):
        store.task("d/r/t").set("when", {"t": [{1}]})  # type: ignore[dict-item]


def test_scopes_in_which_nothing_is_stored_are_left_out(call: Call, store: outlast.Store, ingest: object) -> None:
    store.task("other/r1/load").set("page", 1)
    call("state", "clear", "nightly/2026-11-29/ingest", "--yes")
    assert [scope["scope"]["address"] for scope in call("state", "ls", "--json").json] == ["other/r1/load"]
    every = {scope["scope"]["address"]: scope["entries"] for scope in call("state", "ls", "--all", "--json").json}
    assert every == {"nightly/2026-11-29/ingest": 0, "other/r1/load": 1}


def test_the_scopes_of_one_run(call: Call, store: outlast.Store) -> None:
    for run_id in ("r1", "r[1]", "r2"):
        store.task(f"nightly/{run_id}/load").set("page", 1)
    for run_id in ("r1", "r[1]"):
        told = call("state", "ls", f"nightly/{run_id}", "--json").json
        assert [scope["scope"]["address"] for scope in told] == [f"nightly/{run_id}/load"]


# --- runs and task instances -------------------------------------------------------------------------------------


def test_everything_that_failed_is_cleared_with_one_command(call: Call, store: outlast.Store) -> None:
    desk = Desk(store.backend)
    desk.start("a", "b", "c", ("d", "a"))
    for task_id, end in (("a", "failed"), ("b", "success"), ("c", "failed"), ("d", "success")):
        desk.ran(task_id, end, error="ValueError: no" if end == "failed" else None)
    desk.release("success")
    assert "success (2 failed)" in call("runs", "ls").out
    told = call("runs", "show", "nightly/r1")
    assert "state:         success (2 failed)" in told.lines
    assert "to run them again: outlast tasks clear nightly/r1 --failed\n" in told.err
    assert "the log of the first: outlast logs nightly/r1/a\n" in told.err
    assert call("tasks", "clear", "nightly/r1", "--failed", "--json").json["cleared"] == [
        "nightly/r1/a",
        "nightly/r1/c",
    ]
    told = call("tasks", "clear", "nightly/r1", "--failed")
    assert (told.status, "has no failed task instance" in told.err) == (4, True)
    assert call("tasks", "clear", "nightly/r1", "nightly/r2", "--failed").status == 2
    assert call("tasks", "clear", "nightly/r1/a", "--failed").status == 65


def test_what_is_a_success_is_not_marked_again(call: Call, store: outlast.Store) -> None:
    desk = Desk(store.backend)
    desk.start("a")
    desk.ran("a", result="7")
    before = desk.task("a")
    told = call("tasks", "mark", "success", "nightly/r1/a")
    assert told.lines == ["nightly/r1/a is success already; nothing was changed"]
    assert desk.task("a") == before
    assert call("audit", "--json").json == []


def test_a_result_is_printed(call: Call, store: outlast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(store.backend)
    desk.start("a", "b")
    desk.ran("a", result='{"rows":7}')
    assert call("tasks", "result", "nightly/r1/a").out == '{"rows":7}\n'
    told = call("tasks", "result", "nightly/r1/a", "--json").json
    assert told == {"address": "nightly/r1/a", "key": "return_value", "value": {"rows": 7}, "masked": False}
    assert 'result:        {"rows":7}' in call("tasks", "show", "nightly/r1/a").lines
    assert call("tasks", "show", "nightly/r1/a", "--json").json["result"] == {"rows": 7}
    assert call("tasks", "show", "nightly/r1/b", "--json").json["result"] is None
    assert call("tasks", "result", "nightly/r1/b").status == 4
    assert call("tasks", "result", "nightly/r1/a", "--key", "pushed").status == 4
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "return_*")
    assert call("tasks", "result", "nightly/r1/a").out == "***\n"
    assert "rows" not in call("tasks", "show", "nightly/r1/a").out


def test_instances_stand_before_what_waits_for_them(call: Call, keyed: Desk) -> None:
    shown = [line.split()[0] for line in call("tasks", "ls", "nightly/r1").lines[1:]]
    assert shown == ["copy/0", "copy/1", "copy/2", "report", "other"]
