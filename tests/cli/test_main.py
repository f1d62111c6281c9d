"""The command line as a whole: help, version, exit statuses, lost readers, interrupts, and what it imports."""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

import outlast
from outlast import cli
from outlast.values import system_clock

from .conftest import PROGRAM, SHOWN_THEN, Told

Call = Callable[..., Told]
INGEST = "nightly/2026-11-29/ingest"


def test_help_lists_every_command_without_importing_one(place: str) -> None:
    script = (
        "import sys; from outlast.cli import main; status = main([]); "
        "late = ('outlast.cli.', 'outlast.store', 'rich'); "
        "sys.exit(status or any(name.startswith(late) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [name for name in cli.COMMANDS if f"\n  {name} " not in done.stdout] == []


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_the_help_of_a_command_says_what_the_list_of_commands_says(command: str) -> None:
    home = cli.COMMANDS[command]
    found: click.Command = getattr(importlib.import_module(f"outlast.cli.{home.module}"), home.name)
    assert found.get_short_help_str(200) == home.help


def test_no_argument_shows_the_help(call: Call) -> None:
    assert call() == call("--help") == call("-h")
    assert call().out.startswith("Usage: outlast ")


def test_version(call: Call) -> None:
    assert call("--version") == Told(0, f"outlast {outlast.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [["stat"], ["state"], ["state", "lst"], ["state-store"], ["doctor", "--shallow"], ["doctor", "x"]]
)
def test_a_wrong_command_line_is_exit_2(call: Call, arguments: list[str]) -> None:
    told = call(*arguments)
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith("Usage: outlast")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["state", "get", INGEST, "absent"], 4),
        (["state", "set", INGEST, "page", "1", "--if-revision", "9"], 9),
        (["state", "set", INGEST, "page", "nil"], 65),
        (["state", "get", INGEST, "a/../b"], 65),
        (["state", "ls", "--store", "http:/nowhere"], 78),
        (["state", "set", INGEST, "page", "1", "--store", "/no/such/folder/work.db"], 78),
    ],
)
def test_an_error_ends_with_its_own_status_and_no_traceback(
    program: Call, store: outlast.Store, arguments: list[str], status: int
) -> None:
    store.task(INGEST).set("page", 41)
    told = program(*arguments)
    assert (told.status, told.out, len(told.lines)) == (status, "", 0)
    assert told.err.startswith("outlast: ")
    assert "Traceback" not in told.err
    assert store.task(INGEST).get("page") == 41


def test_a_damaged_store_is_exit_69(program: Call, place: str) -> None:
    Path(place).write_bytes(b"SQLite format 3\0" + b"x" * 8000)
    told = program("state", "ls")
    assert (told.status, "is damaged" in told.err, "Traceback" in told.err) == (69, True, False)


def test_a_wrong_setting_is_exit_78(program: Call) -> None:
    told = program("state", "ls", OUTLAST__STATE_STORE__HISTORY_VERSIONS="many")
    assert (told.status, told.err.count("\n")) == (78, 1)
    assert "history_versions = 'many' is not allowed" in told.err


def test_a_name_that_is_no_unicode_is_refused(program: Call, store: outlast.Store) -> None:
    done = subprocess.run([*PROGRAM, "state", "get", INGEST, b"\xff"], capture_output=True, timeout=60)
    assert (done.returncode, b"lone surrogate" in done.stderr, b"Traceback" in done.stderr) == (65, True, False)


def test_output_that_cannot_be_encoded_is_escaped_and_json_stays_utf_8(program: Call, store: outlast.Store) -> None:
    store.task("d/r/北").set("k", "北")
    assert "\nd/r/\\u5317 " in program("state", "ls", PYTHONIOENCODING="latin-1").out
    assert program("state", "get", "d/r/北", "k", PYTHONIOENCODING="latin-1").out == '"北"\n'


def test_a_reader_that_has_gone_is_no_error_worth_a_word(store: outlast.Store) -> None:
    store.task(INGEST).set_many({f"key{number:05}": "x" * 50 for number in range(3000)})
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" state ls ' + INGEST + " | head -1", "-", *PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("KEY ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="optional: no /dev/full on this system")
def test_output_that_cannot_be_written_is_exit_74(store: outlast.Store) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*PROGRAM, "state", "find"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "nothing found\n")
        done = subprocess.run([*PROGRAM, "config", "show"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, "No space left" in done.stderr, "Traceback" in done.stderr) == (74, True, False)


def test_ctrl_c_while_waiting_for_another_writer_leaves_nothing_half_done(store: outlast.Store) -> None:
    state = store.task(INGEST)
    state.set("page", 41)
    command = [*PROGRAM, "state", "rm", INGEST, "page", "x"]
    with open(f"{store.url}.lock", "r+b") as lock:  # held as by a writer in the middle of its commit
        fcntl.flock(lock, fcntl.LOCK_EX)
        removing = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert removing.stderr is not None
        while "apsw" not in Path(f"/proc/{removing.pid}/maps").read_text():  # it has come as far as opening the store
            time.sleep(0.05)
        with pytest.raises(subprocess.TimeoutExpired):
            removing.wait(0.6)
        removing.send_signal(signal.SIGINT)
        assert removing.wait(10) == 130
        assert removing.stderr.read() == "outlast: interrupted\n"
        removing.stderr.close()
    assert state.get("page") == 41
    assert [version.revision for version in state.history("page")] == [1]


def test_on_a_terminal_a_table_fits_and_tells_how_long_ago(
    terminal: Callable[..., Any], program: Call, store: outlast.Store
) -> None:
    state = store.task(INGEST)
    state.set_many({"esc": "\u009b31m [bold]", "long": "x" * 200})
    store.clock = state.clock = store.backend.clock = system_clock  # type: ignore[attr-defined]
    state.set("soon", 1, retention=timedelta(days=30, hours=1))
    shown = terminal("state", "ls", INGEST).end()
    assert (shown.status, max(map(len, shown.lines))) == (0, 80)
    assert '"\\u009b31m [bold]"' in shown.out
    assert "\x1b" not in shown.out
    assert re.search(r'^long +"x+… +202 +1 +\d+ d ago +never +library *$', shown.out, re.MULTILINE)
    assert re.search(r"in 30 d +library *$", shown.out, re.MULTILINE)
    piped = program("state", "ls", INGEST).out
    assert (SHOWN_THEN in piped, " ago" in piped) == (True, False)


def test_on_a_terminal_a_value_is_json_without_what_the_terminal_would_obey(
    terminal: Callable[..., Any], program: Call, store: outlast.Store
) -> None:
    store.task(INGEST).set("esc", "\u009b31m")
    assert terminal("state", "get", INGEST, "esc").end().out == '"\\u009b31m"\n'
    assert program("state", "get", INGEST, "esc").out == '"\u009b31m"\n'
