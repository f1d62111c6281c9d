"""`outlast state`: the commands that write, and what they print, store and exit with."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import outlast

from .conftest import INGEST, SHOWN_THEN, Told, now_of

CTRL_C, CTRL_D = "\x03", "\x04"
Call = Callable[..., Told]


# --- set ---------------------------------------------------------------------------------------------------


def test_set_creates_the_store_and_says_what_was_written(call: Call, place: str) -> None:
    told = call("state", "set", INGEST, "page", "41", "--retention", "never")
    assert (told.status, told.out) == (0, "page = 41 (revision 1, never expires)\n")
    assert Path(place).exists()


def test_set_records_the_person(call: Call, place: str) -> None:
    writer = call("state", "set", INGEST, "page", "41", "--json").json["writer"]
    assert writer["kind"] == "person"
    assert writer["name"].startswith(f"{pwd.getpwuid(os.geteuid()).pw_name}@")


def test_set_takes_the_default_retention_or_the_one_given(call: Call, store: outlast.Store) -> None:
    spans = {}
    for text in (None, "90s", "1d12h", "2w", "1.5h"):
        told = call("state", "set", INGEST, "k", "1", "--json", *(["--retention", text] if text else [])).json
        entry = store.task(INGEST).entry("k")
        assert entry is not None
        assert entry.expires_at is not None
        assert told["revision"] == entry.revision
        spans[text] = round((entry.expires_at - entry.updated_at).total_seconds())
    assert spans == {None: 30 * 86400, "90s": 90, "1d12h": 129600, "2w": 14 * 86400, "1.5h": 5400}


@pytest.mark.parametrize("text", ["7", "d", "7 days", "-1d", "", "1e3s", "7d!", "Never", "999999999w"])
def test_set_refuses_another_retention(call: Call, store: outlast.Store, text: str) -> None:
    told = call("state", "set", INGEST, "k", "1", "--retention", text)
    assert told.status == 2
    assert "or never" in told.err
    assert now_of(store) == {}


def test_set_refuses_a_retention_of_nothing_and_one_past_the_year_9999(call: Call, store: outlast.Store) -> None:
    assert call("state", "set", INGEST, "k", "1", "--retention", "0s").status == 65
    late = call("state", "set", INGEST, "k", "1", "--retention", "999999w")
    assert (late.status, "year 9999" in late.err) == (65, True)
    assert now_of(store) == {}


def test_set_of_a_text_needs_quotes_or_says_how(call: Call, store: outlast.Store) -> None:
    told = call("state", "set", INGEST, "phase", "load it")
    assert (told.status, told.out, now_of(store)) == (65, "", {})
    assert told.err.endswith("""To store this text write '"load it"', or add --string\n""")
    assert call("state", "set", INGEST, "phase", "load it", "--string").status == 0
    assert call("state", "set", INGEST, "quoted", '"load it"').status == 0
    assert now_of(store) == {"phase": "load it", "quoted": "load it"}


def test_set_does_not_offer_quotes_for_broken_json(call: Call, store: outlast.Store) -> None:
    told = call("state", "set", INGEST, "k", '{"a": 1')
    assert (told.status, "--string" in told.err) == (65, False)


@pytest.mark.parametrize("text", ["NaN", "1e999", "null", '"\\ud800"', "[1,]", "[" * 200 + "]" * 200])
def test_set_refuses_what_cannot_be_stored(call: Call, store: outlast.Store, text: str) -> None:
    assert call("state", "set", INGEST, "k", text).status == 65
    assert now_of(store) == {}


def test_set_takes_a_negative_number_for_a_value(call: Call, store: outlast.Store) -> None:
    assert call("state", "set", INGEST, "k", "-5").out.startswith("k = -5 (")
    assert call("state", "set", "--asset", "orders", "k", "-0.5", "--json").json["value"] == -0.5


def test_set_names_an_option_it_does_not_know(call: Call, store: outlast.Store) -> None:
    told = call("state", "set", INGEST, "k", "1", "--retntion", "7d")
    assert (told.status, "No such option: --retntion" in told.err) == (2, True)


def test_set_reads_standard_input(program: Call, store: outlast.Store) -> None:
    assert program("state", "set", INGEST, "json", "-", text='\n {"a": [1, 2]}\n').status == 0
    assert program("state", "set", INGEST, "text", "-", "--string", text="é\n").status == 0
    assert now_of(store) == {"json": {"a": [1, 2]}, "text": "é\n"}
    told = program("state", "set", INGEST, "bad", "-", "--string", text=b"\xff")
    assert (told.status, "not UTF-8" in told.err, "Traceback" in told.err) == (65, True, False)


def test_set_if_revision_writes_only_over_that_one(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "set", INGEST, "page", "42", "--if-revision", "1").out.startswith("page = 42 (revision 3, ")
    told = call("state", "set", INGEST, "page", "43", "--if-revision", "1")
    assert (told.status, told.out) == (9, "")
    assert "'page' was expected at revision 1 but is at revision 3" in told.err
    assert call("state", "set", INGEST, "page", "43", "--if-revision", "absent").status == 9
    assert call("state", "set", INGEST, "new", "1", "--if-revision", "absent").status == 0
    assert call("state", "set", INGEST, "new", "1", "--if-revision", "x").status == 2
    assert ingest.items() == [("new", 1), ("page", 42), ("phase", "load")]


def test_an_asset_has_no_retention(call: Call, store: outlast.Store) -> None:
    assert (
        call("state", "set", "--asset", "orders", "watermark", "7").out == "watermark = 7 (revision 1, never expires)\n"
    )
    assert call("state", "set", "--asset", "orders", "watermark", "8", "--retention", "7d").status == 2
    assert store.asset("orders").get("watermark") == 7


def test_set_warns_of_a_value_the_rest_api_would_refuse(program: Call, place: str) -> None:
    told = program("state", "set", INGEST, "big", "-", text=f'"{"x" * 70_000}"')
    assert (told.status, len(told.out) < 200) == (0, True)
    assert "above [state_store] max_value_storage_bytes" in told.err


# --- rm and clear --------------------------------------------------------------------------------------------


def test_rm_removes_in_one_commit_and_says_what_was_not_there(call: Call, ingest: outlast.TaskState) -> None:
    told = call("state", "rm", INGEST, "page", "x", "phase", "page")
    assert told == Told(0, "removed page\nx is not there\nremoved phase\n")
    assert {version.revision for key in ("page", "phase") for version in ingest.history(key)[:1]} == {3}


def test_rm_as_json(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "rm", INGEST, "x", "page", "--json").json == {"removed": ["page"], "absent": ["x"]}


def test_rm_of_an_unknown_scope_makes_none(call: Call, store: outlast.Store) -> None:
    assert call("state", "rm", "a/b/c", "k") == Told(0, "k is not there\n")
    assert store.scopes() == []


def test_clear_with_yes_clears_this_scope_only(call: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    store.task("other/r/t").set("k", 1)
    assert call("state", "clear", INGEST, "--yes") == Told(0, f"cleared 2 keys of {INGEST}\n")
    assert (now_of(store), now_of(store, "other/r/t")) == ({}, {"k": 1})
    assert call("state", "clear", INGEST, "--yes", "--json").json == {"cleared": 0}
    assert call("state", "clear", "a/b/c") == Told(0, "cleared 0 keys of a/b/c\n")


def test_clear_without_a_terminal_needs_yes(program: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    told = program("state", "clear", INGEST, text="y\n")
    assert (told.status, told.out) == (2, "")
    assert told.err == (
        f"outlast: {INGEST} has 2 keys. Without them the next attempt begins from the start, "
        "as if none had run before. Nobody is there to be asked: add --yes.\n"
    )
    assert len(now_of(store)) == 2


@pytest.mark.parametrize(
    ("answer", "status", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("\n", 1, 2), (CTRL_C, 130, 2), (CTRL_D, 130, 2)]
)
def test_clear_asks_on_a_terminal(
    terminal: Any, store: outlast.Store, ingest: outlast.TaskState, answer: str, status: int, left: int
) -> None:
    window = terminal("state", "clear", INGEST)
    window.expect("begins from the start, as if none had run before.\nRemove them? [y/N]: ")
    window.press_ctrl_c() if answer == CTRL_C else window.type(answer)
    assert window.end().status == status
    assert len(now_of(store)) == left


def test_clear_says_that_a_job_will_be_submitted_anew(terminal: Any, store: outlast.Store) -> None:
    store.task(INGEST).set("remote_job_id", "job-17")
    window = terminal("state", "clear", INGEST)
    window.expect("has 1 key. Without them the next attempt submits its external job anew")
    window.type("y\n")
    assert f"cleared 1 key of {INGEST}" in window.end().out


def test_clear_of_an_asset_asks_about_the_asset(terminal: Any, store: outlast.Store) -> None:
    store.asset("orders").set("watermark", 7)
    window = terminal("state", "clear", "--asset", "orders")
    window.expect("asset orders has 1 key. Without them the next run that uses this asset begins where")
    window.type("n\n")
    assert "nothing was removed" in window.end().out


# --- history and restore -------------------------------------------------------------------------------------


def test_history_lists_versions_and_restore_brings_one_back(call: Call, ingest: outlast.TaskState) -> None:
    ingest.set("page", 42)
    ingest.delete("page")
    assert call("state", "history", INGEST, "page").lines == [
        "REVISION  VALUE      WRITTEN               BY",
        f"       4  (deleted)  {SHOWN_THEN}  attempt 1",
        f"       3  42         {SHOWN_THEN}  attempt 1",
        f"       1  41         {SHOWN_THEN}  attempt 1",
    ]
    restored = call("state", "restore", INGEST, "page", "1", "--retention", "never")
    assert restored == Told(0, "page = 41 (revision 5, never expires)\n")
    newest, *_, oldest = call("state", "history", INGEST, "page", "--json").json
    assert (newest["value"], newest["deleted"], newest["writer"]["kind"]) == (41, False, "person")
    assert oldest == {
        "key": "page",
        "value": 41,
        "masked": False,
        "deleted": False,
        "revision": 1,
        "at": SHOWN_THEN,
        "writer": {"kind": "task", "attempt": 1, "name": None, "scope": None},
    }


def test_history_and_restore_of_what_is_not_kept_are_exit_4(call: Call, ingest: outlast.TaskState) -> None:
    ingest.delete("page")
    assert call("state", "history", INGEST, "x").status == 4
    assert call("state", "history", "a/b/c", "x").status == 4
    assert call("state", "restore", INGEST, "page", "9").status == 4
    told = call("state", "restore", INGEST, "page", "3")
    assert (told.status, "is a deletion" in told.err) == (4, True)
    assert call("state", "restore", INGEST, "page", "first").status == 2


def test_restore_of_an_asset(call: Call, store: outlast.Store) -> None:
    for watermark in (7, 8):
        store.asset("orders").set("watermark", watermark)
    assert call("state", "restore", "--asset", "orders", "watermark", "1", "--json").json["value"] == 7
    assert call("state", "restore", "--asset", "orders", "watermark", "1", "--retention", "1d").status == 2


# --- JSON that could be read in two ways ----------------------------------------------------------------------


def test_a_key_that_comes_twice_is_refused(program: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    for given, text in (('{"a": [{"b": 1, "b": 2}]}', ""), ("-", '{"a": [{"b": 1, "b": 2}]}')):
        told = program("state", "set", INGEST, "page", given, text=text)
        assert (told.status, told.out) == (65, "")
        assert told.err.startswith("outlast: $.a[0] has the key 'b' twice")
    assert now_of(store) == {"page": 41, "phase": "load"}
