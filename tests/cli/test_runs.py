"""`outlast runs`: what a person sees of runs, and cancelling them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast.cli.run_views import resume_line
from outlast.run_requests import ProcessRef, Resolve, TaskSpec
from outlast.runner import processes
from outlast.values import Writer
from support.runs import RUNNER, Desk

from .conftest import LONG, SHOWN_THEN, Told, ended, wait_until

Call = Callable[..., Told]

DEAD = ProcessRef(os.uname().nodename, 2**22 + 1, "never")


# --- ls ------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", ("load", "extract"), holder=processes.me(), lease=LONG)
    desk.ran("extract")
    ended(store, "r2", "failed")
    told = call("runs", "ls")
    assert (told.status, told.err) == (0, "")
    head, newest, oldest = told.lines
    assert head.split() == ["RUN", "STATE", "TASKS", "STARTED", "DURATION"]
    assert newest.split() == ["nightly/r2", "failed", "1", "failed", SHOWN_THEN, "0.0s"]
    assert oldest.split()[:7] == ["nightly/r1", "running", "1", "success,", "1", "waiting", SHOWN_THEN]


def test_runs_for_programs(call: Call, store: outlast.Store) -> None:
    ended(store, "r1")
    told = call("runs", "ls", "--json")
    assert told.json == [
        {
            "address": "nightly/r1",
            "dag_id": "nightly",
            "run_id": "r1",
            "state": "success",
            "runner_gone": False,
            "tasks": {"success": 1},
            "logical_date": "1970-01-01T00:00:00Z",
            "created_at": SHOWN_THEN,
            "started_at": SHOWN_THEN,
            "ended_at": SHOWN_THEN,
            "seconds": 0.0,
            "file": "/dags/nightly.py",
            "digest": "digest",
            "holder": None,
        }
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["r3", "r2", "r1"]),
        (["--state", "failed"], ["r2"]),
        (["--state", "failed", "--state", "paused"], ["r3", "r2"]),
        (["--limit", "2"], ["r3", "r2"]),
        (["--dag", "night*"], ["r3", "r2", "r1"]),
        (["--dag", "Nightly"], []),
    ],
)
def test_what_is_asked_for_is_listed(call: Call, store: outlast.Store, options: list[str], expected: list[str]) -> None:
    for run_id, end in [("r1", "success"), ("r2", "failed")]:
        ended(store, run_id, end)
    paused = Desk(store.backend, run_id="r3")
    paused.start("extract")
    paused.release("paused")
    assert [run["run_id"] for run in call("runs", "ls", "--json", *options).json] == expected


def test_without_runs_the_next_step_is_told(call: Call, store: outlast.Store) -> None:
    assert call("runs", "ls") == Told(0, "", "there are no runs yet; `outlast run FILE` starts one\n")
    assert call("runs", "ls", "--dag", "x").err == "there are no such runs\n"
    assert call("runs", "ls", "--json").json == []


def test_without_a_store_there_is_nothing_to_look_at(call: Call, place: str) -> None:
    told = call("runs", "ls")
    assert told.status == 4
    assert f"there is no store at {place}" in told.err
    assert not os.path.exists(place)


@pytest.mark.parametrize(
    ("holder", "lease", "gone"),
    [
        (processes.me(), LONG, False),
        (RUNNER, LONG, False),
        (processes.me(), 30, True),
        (RUNNER, 30, True),
        (DEAD, LONG, True),
    ],
)
def test_a_run_whose_runner_is_gone_is_told_apart(
    call: Call, desk: Desk, holder: ProcessRef, lease: float, gone: bool
) -> None:
    """It is dead on this host, or its lease has lapsed."""
    desk.start("extract", holder=holder, lease=lease)
    desk.begin("extract")
    assert ("running (runner gone)" in call("runs", "ls").out) is gone
    (run,) = call("runs", "ls", "--json").json
    assert (run["state"], run["runner_gone"], run["seconds"] is None) == ("running", gone, gone)
    shown = call("runs", "show", "nightly/r1")
    assert shown.out.count("running (runner gone)") == (2 if gone else 0)
    assert ("to go on: outlast run /dags/nightly.py --run-id r1" in shown.err) is gone


# --- show ----------------------------------------------------------------------------------------------------


def test_a_run_is_shown_with_its_task_instances(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.start(
        "extract", ("load", "extract"), ("report", "load"), TaskSpec("each", 0), params='{"day":"2026-11-29","n":3}'
    )
    desk.ran("extract")
    store.task("nightly/r1/extract").set("rows_loaded", 1200)
    desk.ran("load", "crashed", crash_retries=9, retry_at=1)
    desk.ran("load", "failed", error="ValueError: bad page\nof many")
    store.task("nightly/r1/load").set("progress", {"done": 41, "total": 120, "rate": 3.5})
    desk.send(Resolve(desk.scope("report"), "upstream_failed"))
    desk.ran("each", "failed", index=0, retries=1, retry_at=2**60)
    desk.release("paused")
    told = call("runs", "show", "nightly/r1")
    assert told.status == 0
    lines = told.lines
    assert lines[:6] == [
        "run:           nightly/r1",
        "state:         paused",
        "file:          /dags/nightly.py",
        "logical date:  1970-01-01T00:00:00Z",
        'parameters:    day="2026-11-29", n=3',
        f"started:       {SHOWN_THEN}",
    ]
    assert lines[6] == "tasks:         1 success, 1 up_for_retry, 1 failed, 1 upstream_failed"
    rows = {line.split()[0]: line.split()[1:] for line in lines[8:]}
    assert rows["TASK"] == ["STATE", "TRY", "FAILED", "CRASHED", "STARTED", "ELAPSED", "PROGRESS", "ERROR"]
    assert rows["extract"] == ["success", "1", SHOWN_THEN, "0.0s", "1,200"]
    assert rows["load"] == ["failed", "2", "1", "1", SHOWN_THEN, "0.0s", "41/120", "ValueError:", "bad", "page"]
    assert rows["report"] == ["upstream_failed"]
    assert rows["each/0"][:2] == ["up_for_retry", "(in"]
    assert told.err == "to go on: outlast run /dags/nightly.py --run-id r1\n"


def test_a_run_for_programs(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", params='{"n":3}')
    desk.ran("extract", "failed", error="ValueError: bad\npage")
    store.task("nightly/r1/extract").set("progress", {"done": 1, "total": 2, "rate": None})
    run = call("runs", "show", "nightly/r1", "--json").json
    assert (run["params"], run["masked_params"], run["holder"]) == ({"n": 3}, [], {"host": "here.test", "pid": 11})
    assert run["instances"] == [
        {
            "address": "nightly/r1/extract",
            "task_id": "extract",
            "map_index": -1,
            "item": None,
            "state": "failed",
            "attempt": 1,
            "failures": 1,
            "crashes": 0,
            "due_at": None,
            "started_at": SHOWN_THEN,
            "ended_at": SHOWN_THEN,
            "seconds": 0.0,
            "error": "ValueError: bad\npage",
            "upstream": [],
            "supervisor": {"host": "here.test", "pid": 21},
            "progress": {"done": 1, "total": 2, "rate": None},
        }
    ]


def test_secrets_are_masked(call: Call, store: outlast.Store, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST__STATE_STORE__SECRET_KEYS", "*token*,rows_loaded")
    desk.start("extract", params='{"api_token":"hunter2","n":3}')
    desk.ran("extract")
    store.task("nightly/r1/extract").set("rows_loaded", 31337)
    told, json = call("runs", "show", "nightly/r1"), call("runs", "show", "nightly/r1", "--json")
    assert "api_token=***, n=3" in told.out
    assert (json.json["params"], json.json["masked_params"]) == ({"api_token": None, "n": 3}, ["api_token"])
    for text in (told.out, json.out, call("tasks", "ls", "nightly/r1", "--json").out):
        assert "hunter2" not in text
        assert "31,337" not in text
        assert "31337" not in text
    assert 'api_token="hunter2"' in call("runs", "show", "nightly/r1", "--reveal").out


def test_a_failed_run_says_how_to_go_on(call: Call, store: outlast.Store) -> None:
    ended(store, "it's", "failed")
    told = call("runs", "show", "nightly/it's")
    assert "to run it again: outlast tasks clear 'nightly/it'\"'\"'s/extract'\n" in told.err
    assert "its log: outlast logs " in told.err


@pytest.mark.parametrize(
    ("uid", "url", "end"),
    [
        (0, "http://state:8765", " --store http://state:8765 --run-as USER"),
        (0, "unix:///run/outlast", " --store unix:///run/outlast --run-as USER"),
        (0, "/tmp/work.db", " --store /tmp/work.db"),
        (0, None, ""),
        (1000, "http://state:8765", " --store http://state:8765"),
    ],
)
def test_root_who_goes_on_with_a_run_of_a_server_is_asked_as_whom(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, uid: int, url: str | None, end: str
) -> None:
    """Pasted without, it would run as root what has run as another user."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert resume_line(desk.start("extract").run, url) == f"outlast run /dags/nightly.py --run-id r1{end}"


def test_the_line_to_go_on_names_the_store_that_was_named(call: Call, desk: Desk, place: str) -> None:
    desk.start("extract", file="/my dags/night.py")
    desk.release("paused")
    told = call("runs", "show", "nightly/r1", "--store", place)
    assert told.err == f"to go on: outlast run '/my dags/night.py' --run-id r1 --store {place}\n"


def test_control_characters_do_not_reach_the_screen(call: Call, desk: Desk) -> None:
    desk.start("extract", params='{"a":"\\u001b[2J"}')
    desk.ran("extract", "failed", error="\x1b[2J\x07 gone")
    for command in (
        ["runs", "show", "nightly/r1"],
        ["tasks", "ls", "nightly/r1"],
        ["tasks", "show", "nightly/r1/extract"],
    ):
        told = call(*command)
        assert told.status == 0
        assert "\x1b" not in told.out
        assert "\\u001b[2J" in told.out


@pytest.mark.parametrize("command", [["show"], ["cancel", "--yes"], ["rm", "--yes"]])
@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("nightly/other", 4, "there is no run nightly/other; `outlast runs ls` lists those there are"),
        ("nightly", 65, "'nightly' is not a run; write DAG/RUN"),
        ("nightly/r1/extract", 65, "that is the address of a task instance"),
        ("nightly/..", 65, "run_id may not be '..'"),
        ("/r1", 65, "dag_id is empty"),
    ],
)
def test_a_wrong_address_is_explained(
    call: Call, desk: Desk, command: list[str], address: str, status: int, said: str
) -> None:
    desk.start("extract")
    told = call("runs", *command, address)
    assert (told.status, told.out) == (status, "")
    assert said in told.err
    assert "Traceback" not in told.err


# --- cancel --------------------------------------------------------------------------------------------------


def test_a_run_is_cancelled(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", "load")
    desk.ran("extract")
    told = call("runs", "cancel", "nightly/r1", "--yes")
    assert told == Told(
        0, "cancelled nightly/r1: 1 task instance had not ended\nno runner holds it: it has ended now\n", ""
    )
    assert (desk.run.state, desk.states()) == ("cancelled", {"extract": "success", "load": "cancelled"})
    (row, *_) = store.runs_as(Writer("person")).audit()
    assert (row.action, row.who.partition("@")[2]) == ("cancel run", os.uname().nodename)


def test_a_live_runner_is_named(call: Call, desk: Desk) -> None:
    desk.start("extract", holder=processes.me(), lease=LONG)
    told = call("runs", "cancel", "nightly/r1", "--yes")
    assert f"its runner (process {os.getpid()} on " in told.out
    assert "notices within a second" in told.out


def test_a_cancelled_run_for_programs(call: Call, desk: Desk) -> None:
    desk.start("extract", holder=RUNNER, lease=LONG)
    told = call("runs", "cancel", "nightly/r1", "--yes", "--json")
    assert told.json == {
        "run": "nightly/r1",
        "cancelled": ["nightly/r1/extract"],
        "runner_stops_it": True,
        "not_cancelled": [],
    }


@pytest.mark.parametrize("command", ["cancel", "rm", "prune"])
def test_where_nobody_can_be_asked_nothing_is_done(call: Call, store: outlast.Store, desk: Desk, command: str) -> None:
    ended(store, "r2")
    desk.start("extract")
    told = call("runs", command, *([] if command == "prune" else ["nightly/r1"]))
    assert told.status == 2
    assert "add --yes" in told.err
    assert desk.run.state == "running"
    assert len(call("runs", "ls", "--json").json) == 2


def test_an_ended_run_is_not_cancelled(call: Call, store: outlast.Store) -> None:
    ended(store, "r1")
    told = call("runs", "cancel", "nightly/r1")
    assert told.status == 9
    assert "has already ended (success)" in told.err


def test_on_a_terminal_cancelling_is_asked(terminal, desk: Desk) -> None:
    desk.start("extract", "load")
    desk.begin("extract")
    window = terminal("runs", "cancel", "nightly/r1")
    window.expect("Cancel it? [y/N]")
    assert "nightly/r1: 2 of 2 task instances have not ended, 1 of them run. " in window.seen
    window.type("n\n")
    assert window.end().status == 1
    assert desk.run.state == "running"
    window = terminal("runs", "cancel", "nightly/r1")
    window.expect("Cancel it? [y/N]")
    window.type("y\n")
    assert window.end().status == 0
    assert desk.run.state == "cancelled"


# --- with a real runner ----------------------------------------------------------------------------------------


DAG_FILE = """
import time
from outlast import DAG, task

with DAG("slow"):
    @task
    def wait(task_state_store=None):
        print("waiting", flush=True)
        task_state_store.set("page", 41)
        time.sleep(60)

    wait()
"""


def test_a_live_runner_stops_what_is_cancelled(program: Call, place: str, tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(DAG_FILE)
    runner = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "outlast.cli", "run", str(file), "--run-id", "r1"], stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: os.path.exists(place) and program("state", "get", "slow/r1/wait", "page").status == 0)
        (run,) = program("runs", "ls", "--json").json
        assert (run["state"], run["runner_gone"], run["tasks"]) == ("running", False, {"running": 1})
        child = program("tasks", "show", "slow/r1/wait", "--json").json
        assert program("runs", "rm", "slow/r1", "--yes").status == 9
        told = program("runs", "cancel", "slow/r1", "--yes")
        assert f"its runner (process {runner.pid} on " in told.out
        assert runner.wait(20) == 3
        assert not os.path.exists(f"/proc/{child['supervisor']['pid']}")
        assert program("runs", "ls", "--json").json[0]["state"] == "cancelled"
        assert program("state", "get", "slow/r1/wait", "page").out == "41\n"
    finally:
        runner.kill()
        runner.communicate()


def test_a_killed_runner_is_seen_at_once(program: Call, place: str, tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(DAG_FILE)
    runner = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "outlast.cli", "run", str(file), "--run-id", "r1"], stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: os.path.exists(place) and program("state", "get", "slow/r1/wait", "page").status == 0)
    finally:
        runner.kill()
        runner.communicate()
    assert "running (runner gone)" in program("runs", "ls").out
    shown = program("runs", "show", "slow/r1")
    assert f"process {runner.pid} on {os.uname().nodename} is dead" in shown.out
    assert f"to go on: outlast run {file} --run-id r1" in shown.err
