"""`outlast state`: what each command prints, stores and exits with."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import outlast
from outlast.people_requests import ListAudit

from .conftest import INGEST, PROGRAM, SHOWN_THEN, Told

CTRL_C, CTRL_D = "\x03", "\x04"
Call = Callable[..., Told]


# --- ls ----------------------------------------------------------------------------------------------------


def test_ls_lists_scopes_tasks_before_assets(call: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    store.task("weekly/r1/load/3").set("done", [1, 2])
    store.asset("orders").set("watermark", 7)
    assert call("state", "ls").lines == [
        "SCOPE                      ENTRIES  BYTES  ATTEMPT  CHANGED",
        f"nightly/2026-11-29/ingest        2      8        1  {SHOWN_THEN}",
        f"weekly/r1/load/3                 1      5        0  {SHOWN_THEN}",
        f"asset orders                     1      1        -  {SHOWN_THEN}",
    ]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--dag", "nightly"], ["nightly/r1/a", "nightly/r2/b"]),
        (["--dag", "*ly"], ["nightly/r1/a", "nightly/r2/b", "weekly/r1/a"]),
        (["--run", "r1", "--task", "?"], ["nightly/r1/a", "weekly/r1/a"]),
        (["--assets"], ["asset orders"]),
        (["--dag", "Nightly"], []),
    ],
)
def test_ls_lists_the_scopes_chosen(call: Call, store: outlast.Store, options: list[str], shown: list[str]) -> None:
    for address in ("nightly/r1/a", "nightly/r2/b", "weekly/r1/a"):
        store.task(address).set("k", 1)
    store.asset("orders").set("k", 1)
    told = call("state", "ls", *options, "--json")
    names = [one["scope"].get("address") or f"asset {one['scope']['name']}" for one in told.json]
    assert (told.status, names) == (0, shown)


def test_ls_of_scopes_as_json(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "ls", "--json").json == [
        {
            "scope": {
                "kind": "task",
                "address": INGEST,
                "dag_id": "nightly",
                "run_id": "2026-11-29",
                "task_id": "ingest",
                "map_index": -1,
                "item": None,
            },
            "entries": 2,
            "bytes": 8,
            "attempt": 1,
            "revision": 2,
            "updated_at": SHOWN_THEN,
        }
    ]


def test_ls_of_an_address_lists_its_keys(call: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    store.task(INGEST).set("rows", 5, retention=timedelta(days=10_000))
    assert call("state", "ls", INGEST).lines == [
        "KEY    VALUE   BYTES  REVISION  CHANGED               EXPIRES               BY",
        f"page   41          2         1  {SHOWN_THEN}  never                 attempt 1",
        f'phase  "load"      6         2  {SHOWN_THEN}  never                 attempt 1',
        f"rows   5           1         3  {SHOWN_THEN}  2053-05-20T03:04:05Z  library",
    ]


def test_ls_of_keys_as_json_and_by_prefix(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "ls", INGEST, "--prefix", "pa", "--json").json == [
        {
            "key": "page",
            "value": 41,
            "masked": False,
            "bytes": 2,
            "revision": 1,
            "updated_at": SHOWN_THEN,
            "expires_at": None,
            "writer": {"kind": "task", "attempt": 1, "name": None, "scope": None},
        }
    ]


def test_ls_shortens_values_lines_up_wide_letters_and_shows_no_control(call: Call, store: outlast.Store) -> None:
    store.task(INGEST).set_many({"\u5317\u4eac": "x" * 100, "esc\u009b": "\u202e"})
    head, first, second = call("state", "ls", INGEST).lines
    assert first.startswith('esc\\u009b  "\\u202e"')
    assert second.startswith('\u5317\u4eac       "' + "x" * 58 + "…  ")
    assert head.index("BYTES") + len("BYTES") == first.index(" 5 ") + 2


def test_ls_of_an_asset_by_name_or_uri(call: Call, store: outlast.Store) -> None:
    store.asset("orders", uri="s3://b/orders").set("watermark", 7)
    by_name, by_uri = call("state", "ls", "--asset", "orders"), call("state", "ls", "--asset-uri", "s3://b/orders")
    assert by_name == by_uri
    assert by_name.lines[1].split() == ["watermark", "7", "1", "1", SHOWN_THEN, "never", "library"]


def test_ls_of_what_is_not_there(call: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    unknown = call("state", "ls", "nightly/2026-11-29/inges")
    assert unknown == Told(
        4, "", "outlast: there is no nightly/2026-11-29/inges; `outlast state ls` lists what there is\n"
    )
    assert call("state", "ls", INGEST, "--prefix", "x") == Told(0, "", f"{INGEST} has no such entries\n")
    assert call("state", "ls", "--dag", "x") == Told(0, "", "nothing is stored here\n")
    assert call("state", "ls", "--dag", "x", "--json") == Told(0, "[]\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prefix", "p"],
        [INGEST, "--dag", "nightly"],
        ["--assets", "--run", "r"],
        [INGEST, "page"],
        [INGEST, "--asset", "orders"],
        ["--asset", "orders", "--assets"],
    ],
)
def test_ls_refuses_what_makes_no_sense(call: Call, store: outlast.Store, arguments: list[str]) -> None:
    told = call("state", "ls", *arguments)
    assert (told.status, told.out) == (2, "")
    assert "Error: " in told.err


# --- get ---------------------------------------------------------------------------------------------------


def test_get_prints_the_json(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "get", INGEST, "page") == Told(0, "41\n")
    assert call("state", "get", INGEST, "phase") == Told(0, '"load"\n')


def test_get_raw_prints_a_text_as_it_is_and_others_as_json(call: Call, ingest: outlast.TaskState) -> None:
    ingest.set("note", 'a "b"\n\u009bc')
    assert call("state", "get", INGEST, "note", "--raw") == Told(0, 'a "b"\n\u009bc\n')
    assert call("state", "get", INGEST, "page", "--raw") == Told(0, "41\n")
    assert call("state", "get", INGEST, "page", "--raw", "--json").status == 2


@pytest.mark.parametrize(
    "text", ["123456789012345678901234567890", "0.1", "1e300", "-0.0", '{"b":1,"a":[1.0,"é\\n"]}', "false"]
)
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_get_prints_every_value_exactly(call: Call, store: outlast.Store, text: str, option: tuple[str, ...]) -> None:
    assert call("state", "set", INGEST, "k", text).status == 0
    out = call("state", "get", INGEST, "k", *option).out
    assert f'"value":{text},' in out if option else out == text + "\n"


def test_get_as_json_tells_all_about_the_entry(call: Call, ingest: outlast.TaskState) -> None:
    told = call("state", "get", INGEST, "phase", "--json").json
    assert (told["value"], told["revision"], told["updated_at"], told["expires_at"]) == ("load", 2, SHOWN_THEN, None)


def test_get_of_what_is_not_there_is_exit_4_and_names_what_looks_like_it(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "get", INGEST, "pag") == Told(4, "", f"outlast: {INGEST} has no 'pag'; did you mean 'page'?\n")
    assert (
        call("state", "get", INGEST, "x").err
        == f"outlast: {INGEST} has no 'x'; `outlast state ls {INGEST}` lists its keys\n"
    )
    assert (
        call("state", "get", "a/b/c", "page").err
        == "outlast: there is no a/b/c; `outlast state ls` lists what there is\n"
    )


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nightly", "is not an address"),
        ("a/b/c/d", "is not an address"),
        ("a//c", "run_id is empty"),
        ("a/../c", "may not be"),
    ],
)
def test_a_bad_address_is_exit_65(call: Call, store: outlast.Store, address: str, reason: str) -> None:
    told = call("state", "get", address, "page")
    assert (told.status, told.out) == (65, "")
    assert reason in told.err


def test_a_mapped_task_is_addressed_with_its_index(call: Call, store: outlast.Store) -> None:
    store.task("d/r/t/3").set("k", 3)
    assert call("state", "get", "d/r/t/3", "k").out == "3\n"
    assert call("state", "get", "d/r/t", "k").status == 4


# --- watch ---------------------------------------------------------------------------------------------------


def test_watch_prints_what_is_there_and_ends_after_the_timeout(call: Call, ingest: outlast.TaskState) -> None:
    told = call("state", "watch", INGEST, "--timeout", "0")
    assert told.lines == [
        "now: 2 entries",
        f"page = 41 (revision 1, {SHOWN_THEN}, attempt 1)",
        f'phase = "load" (revision 2, {SHOWN_THEN}, attempt 1)',
    ]
    assert told.err == "to go on from here: --cursor 1.2\n"


def test_watch_goes_on_from_a_cursor(call: Call, ingest: outlast.TaskState) -> None:
    ingest.set("page", 42)
    ingest.delete("phase")
    told = call("state", "watch", INGEST, "--cursor", "1.2", "--timeout", "0")
    assert told.lines == [f"page = 42 (revision 3, {SHOWN_THEN}, attempt 1)", "phase deleted (revision 4)"]
    first, second = call("state", "watch", INGEST, "--cursor", "1.2", "--timeout", "0", "--json").lines
    page, phase = msgspec.json.decode(first), msgspec.json.decode(second)
    assert (page["event"], page["key"], page["entry"]["value"], page["cursor"]) == ("change", "page", 42, "1.3")
    assert phase == {"event": "change", "cursor": "1.4", "revision": 4, "key": "phase", "entry": None}


def test_watch_as_json_lines_sees_another_process_and_ctrl_c_ends_it(
    store: outlast.Store, ingest: outlast.TaskState
) -> None:
    with subprocess.Popen(
        [*PROGRAM, "state", "watch", INGEST, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        reset = msgspec.json.decode(watching.stdout.readline())
        assert (reset["event"], [entry["key"] for entry in reset["entries"]]) == ("reset", ["page", "phase"])
        ingest.set("page", 42)
        began = time.monotonic()
        change = msgspec.json.decode(watching.stdout.readline())
        assert (change["entry"]["value"], time.monotonic() - began < 1) == (42, True)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
        assert watching.stderr.read() == "outlast: interrupted\n"


def test_watch_waits_for_a_scope_that_is_not_there_yet(call: Call, store: outlast.Store) -> None:
    told = call("state", "watch", INGEST, "--timeout", "0")
    assert (told.status, told.out) == (0, "now: 0 entries\n")
    assert told.err.startswith(f"there is no {INGEST} yet; waiting for it\n")


@pytest.mark.parametrize("arguments", [["--cursor", "x"], ["--timeout", "-1"], ["--timeout", "soon"]])
def test_watch_refuses_another_cursor_or_timeout(call: Call, ingest: outlast.TaskState, arguments: list[str]) -> None:
    assert call("state", "watch", INGEST, *arguments).status == 2


# --- find ----------------------------------------------------------------------------------------------------


def test_find_lists_matches(call: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    store.task("weekly/r1/load").set("page", 7)
    assert call("state", "find", "--key", "page", "--where", "$ > 6").lines == [
        "SCOPE                      KEY   VALUE  BYTES  CHANGED               EXPIRES",
        f"nightly/2026-11-29/ingest  page  41         2  {SHOWN_THEN}  never",
        f"weekly/r1/load             page  7          1  {SHOWN_THEN}  never",
    ]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--dag", "night*"], ["page", "phase"]),
        (["--run", "2026-11-29", "--task", "in*", "--key", "ph*"], ["phase"]),
        (["--where", '$ == "load"'], ["phase"]),
        (["--older-than", "1d"], ["page", "phase"]),
        (["--newer-than", "1d"], ["soon"]),
        (["--min-bytes", "6"], ["phase"]),
        (["--max-bytes", "2"], ["page", "soon"]),
        (["--expiring-within", "1h"], ["soon"]),
        (["--assets"], ["watermark"]),
        (["--limit", "1"], ["page"]),
        (["--dag", "x"], []),
    ],
)
def test_find_takes_every_criterion(
    call: Call, store: outlast.Store, ingest: outlast.TaskState, options: list[str], keys: list[str]
) -> None:
    store.asset("orders").set("watermark", 7)
    assert call("state", "set", "d/r/t", "soon", "1", "--retention", "30m").status == 0
    told = call("state", "find", *options, "--json")
    assert (told.status, [one["key"] for one in told.json]) == (0, keys)
    assert all(set(one) >= {"scope", "value", "bytes", "revision", "updated_at", "expires_at"} for one in told.json)


def test_find_says_when_nothing_is_found_and_what_a_condition_may_be(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "find", "--key", "x") == Told(0, "", "nothing found\n")
    told = call("state", "find", "--where", "rows > 1")
    assert (told.status, "$.rows > 100" in told.err) == (65, True)
    assert call("state", "find", "--assets", "--dag", "d").status == 65
    assert call("state", "find", "--older-than", "yesterday").status == 2


# --- secrets -------------------------------------------------------------------------------------------------


def test_secret_keys_are_masked_everywhere_unless_revealed(
    call: Call, store: outlast.Store, ingest: outlast.TaskState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "*password,token?")
    ingest.set("db_password", "hunter2")
    commands = [
        ["ls", INGEST],
        ["get", INGEST, "db_password"],
        ["get", INGEST, "db_password", "--raw"],
        ["history", INGEST, "db_password"],
        ["find", "--key", "db_*"],
        ["watch", INGEST, "--timeout", "0"],
    ]
    for command in commands:
        masked, revealed = call("state", *command), call("state", *command, "--reveal")
        assert ("hunter2" in masked.out + masked.err, "***" in masked.out) == (False, True), command
        assert ("hunter2" in revealed.out, "***" in revealed.out) == (True, False), command
        if "--raw" not in command:
            assert "hunter2" not in call("state", *command, "--json").out, command
    assert "hunter3" not in call("state", "set", INGEST, "db_password", '"hunter3"').out
    entry = call("state", "get", INGEST, "db_password", "--json").json
    assert (entry["value"], entry["masked"]) == (None, True)
    assert "--reveal shows it" in call("state", "get", INGEST, "db_password").err
    assert call("state", "get", INGEST, "page").out == "41\n"


# --- no store yet ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", INGEST],
        ["get", INGEST, "k"],
        ["rm", INGEST, "k"],
        ["clear", INGEST, "--yes"],
        ["history", INGEST, "k"],
        ["restore", INGEST, "k", "1"],
        ["watch", INGEST],
        ["find"],
    ],
)
def test_only_set_creates_a_store(call: Call, place: str, arguments: list[str]) -> None:
    told = call("state", *arguments)
    assert (told.status, told.out) == (4, "")
    assert told.err.startswith(f"outlast: there is no store at {place} yet: the first write creates it")
    assert list(Path(place).parent.iterdir()) == []


def test_store_goes_before_the_variable(call: Call, store: outlast.Store, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    assert call("state", "set", "a/b/c", "k", "1", "--store", other).status == 0
    assert call("state", "get", "a/b/c", "k", "--store", f"sqlite:///{other}").out == "1\n"
    assert call("state", "get", "a/b/c", "k").status == 4


def test_a_person_is_not_fenced_and_does_not_fence(call: Call, ingest: outlast.TaskState) -> None:
    assert call("state", "set", INGEST, "page", "50").status == 0
    ingest.set("page", 51)
    assert call("state", "get", INGEST, "page").out == "51\n"


def test_what_a_person_changes_is_in_the_audit_log(call: Call, store: outlast.Store, ingest: outlast.TaskState) -> None:
    ingest.set("page", 42)
    for command in (
        ["set", INGEST, "page", "43"],
        ["restore", INGEST, "page", "1"],
        ["rm", INGEST, "page", "x"],
        ["clear", INGEST, "--yes"],
        ["set", "--asset", "orders", "watermark", "7"],
    ):
        assert call("state", *command).status == 0
    rows = store.backend.send(ListAudit()).rows[::-1]
    assert [(row.place, row.name, row.before, row.after) for row in rows] == [
        (INGEST, "page", "42", "43"),
        (INGEST, "page", "43", "41"),
        (INGEST, "page", "41", None),
        (INGEST, "phase", '"load"', None),
        ("asset orders", "watermark", None, "7"),
    ]
    assert {row.who.partition("@")[0] for row in rows} == {pwd.getpwuid(os.geteuid()).pw_name}


def test_without_any_name_the_store_is_in_the_persons_own_state_folder(
    call: Call, place: str, clean_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUTLAST_URL")
    assert call("state", "set", INGEST, "page", "41").status == 0
    folder = clean_env / "state" / "outlast"
    assert (folder / "outlast.db").exists()
    assert folder.stat().st_mode & 0o777 == 0o700
