"""`outlast tasks clear`: what runs again, with what state, and what is asked first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast.run_requests import TaskSpec
from outlast.runner import processes
from support.runs import Desk

from .conftest import LONG, Told, wait_until

Call = Callable[..., Told]


# --- clear -------------------------------------------------------------------------------------------------------


def test_a_clear_keeps_the_state_and_says_how_to_go_on(call: Call, store: outlast.Store, failed: Desk) -> None:
    store.task("nightly/r1/extract").set("page", 41)
    told = call("tasks", "clear", "nightly/r1/extract")
    assert told == Told(
        0,
        "cleared 2 task instances; 1 key kept\n  nightly/r1/extract\n  nightly/r1/load\n"
        "to run them: outlast run /dags/nightly.py --run-id r1\n",
        "",
    )
    assert failed.states() == {"extract": "waiting", "load": "waiting", "other": "success"}
    assert store.task("nightly/r1/extract").get("page") == 41


def test_a_clear_discards_when_asked_to(call: Call, store: outlast.Store, failed: Desk) -> None:
    store.task("nightly/r1/extract").set("page", 41)
    assert "1 key discarded" in call("tasks", "clear", "nightly/r1/extract", "--discard-state").out
    assert store.task("nightly/r1/extract").keys() == []


def test_a_clear_forgets_the_keys_that_are_named_and_keeps_the_others(
    call: Call, store: outlast.Store, failed: Desk
) -> None:
    state = store.task("nightly/r1/extract")
    state.set_many({"page": 41, "cursor": "a", "rows": 3})
    told = call("tasks", "clear", "nightly/r1/extract", "--forget", "cursor", "--forget", "rows", "--dry-run")
    assert "1 key kept" in told.out
    assert len(state.keys()) == 3
    assert "1 key kept" in call("tasks", "clear", "nightly/r1/extract", "--forget", "cursor", "--forget", "rows").out
    assert state.keys() == ["page"]
    assert state.history("cursor")[1].value == "a"


@pytest.mark.parametrize(("options", "kept"), [([], False), (["--keep-state"], True), (["--yes"], False)])
def test_the_setting_decides_where_nobody_is_asked(
    call: Call, store: outlast.Store, failed: Desk, monkeypatch: pytest.MonkeyPatch, options: list[str], kept: bool
) -> None:
    """Contract 6.2."""
    monkeypatch.setenv("OUTLAST__STATE_STORE__DISCARD_ON_CLEAR", "true")
    store.task("nightly/r1/extract").set("page", 41)
    told = call("tasks", "clear", "nightly/r1/extract", "--json", *options)
    assert told.json == {
        "run": "nightly/r1",
        "dry_run": False,
        "cleared": ["nightly/r1/extract", "nightly/r1/load"],
        "keys": 1,
        "discarded": not kept,
        "forgotten": [],
        "go_on": "outlast run /dags/nightly.py --run-id r1",
    }
    assert (store.task("nightly/r1/extract").get("page") == 41) is kept


def test_a_dry_run_only_says_so(call: Call, store: outlast.Store, failed: Desk) -> None:
    store.task("nightly/r1/extract").set("page", 41)
    before = failed.detail()
    told = call("tasks", "clear", "nightly/r1/extract", "--dry-run", "--discard-state")
    assert told == Told(
        0,
        "would clear 2 task instances; 1 key discarded\n"
        "nightly/r1/extract (failed), has stored page (2 bytes)\nnightly/r1/load (upstream_failed)\n",
        "",
    )
    assert call("tasks", "clear", "nightly/r1/extract", "--dry-run", "--json").json["dry_run"] is True
    assert failed.detail() == before
    assert store.task("nightly/r1/extract").get("page") == 41


def test_downstream_takes_everything_below(call: Call, failed: Desk) -> None:
    call("tasks", "mark", "success", "nightly/r1/extract")
    failed.ran("load")
    assert call("tasks", "clear", "nightly/r1/extract", "--json").json["cleared"] == ["nightly/r1/extract"]
    told = call("tasks", "clear", "nightly/r1/extract", "--downstream", "--json")
    assert told.json["cleared"] == ["nightly/r1/extract", "nightly/r1/load"]


def test_several_are_cleared_in_one_step(call: Call, desk: Desk) -> None:
    desk.start("extract", *(TaskSpec("each", index) for index in range(3)))
    told = call("tasks", "clear", "nightly/r1/each/0", "nightly/r1/each/2", "nightly/r1/extract", "--json")
    assert told.json["cleared"] == ["nightly/r1/extract", "nightly/r1/each/0", "nightly/r1/each/2"]
    told = call("tasks", "clear", "nightly/r1/extract", "nightly/r1/each/7")
    assert (told.status, "has no task each/7" in told.err) == (4, True)
    told = call("tasks", "clear", "nightly/r1/extract", "nightly/r2/extract")
    assert (told.status, "of different runs" in told.err) == (65, True)


def test_a_mapped_task_is_cleared_by_force_only_while_it_runs(call: Call, desk: Desk) -> None:
    """Contract 6.6."""
    desk.start(*(TaskSpec("each", index) for index in range(3)), lease=LONG)
    desk.begin("each", 1)
    told = call("tasks", "clear", "nightly/r1/each")
    assert told.status == 9
    assert "the mapped task instance nightly/r1/each/1 is running" in told.err
    assert desk.states()["each/1"] == "running"
    assert call("tasks", "clear", "nightly/r1/each/1").status == 0
    desk.begin("each", 1)
    assert call("tasks", "clear", "nightly/r1/each", "--force").status == 0
    assert set(desk.states().values()) == {"waiting"}


def test_a_live_runner_goes_on_with_what_is_cleared(call: Call, desk: Desk) -> None:
    desk.start("extract", holder=processes.me(), lease=LONG)
    desk.ran("extract", "failed")
    told = call("tasks", "clear", "nightly/r1/extract")
    assert f"the run's runner (process {os.getpid()} on {os.uname().nodename}) goes on with them" in told.out
    assert call("tasks", "clear", "nightly/r1/extract", "--json").json["go_on"] is None


@pytest.mark.parametrize(
    ("entries", "keep", "discard"),
    [
        ({"remote_job_id": "job-17", "page": 1}, 'finds job "job-17" and asks', "submits its job anew"),
        ({"last_done": {"done": 41, "digest": "x"}}, "goes on after item 41", "begins from the start"),
        ({"page": 41, "phase": "load"}, "finds page, phase, and goes on from there", "begins from the start"),
    ],
)
def test_on_a_terminal_keeping_or_discarding_is_asked(
    terminal, store: outlast.Store, failed: Desk, entries: dict[str, object], keep: str, discard: str
) -> None:
    """Contract 6.2: saying what the next attempt would then do."""
    store.task("nightly/r1/extract").set_many(entries)
    window = terminal("tasks", "clear", "nightly/r1/extract")
    window.expect("(keep, discard, stop) [keep]")
    seen = window.seen
    assert "nightly/r1: 2 task instances would run again:" in seen
    assert all(f"{key} (" in seen for key in entries)
    assert f"keep:    the next attempt {keep}" in seen
    assert f"discard: the next attempt {discard}" in seen
    window.type("stop\n")
    told = window.end()
    assert (told.status, "nothing was cleared" in told.out) == (1, True)
    assert failed.states()["extract"] == "failed"
    window = terminal("tasks", "clear", "nightly/r1/extract")
    window.expect("[keep]")
    window.type("discard\n")
    assert f"{len(entries)} key" in window.end().out
    assert store.task("nightly/r1/extract").keys() == []


def test_on_a_terminal_enter_keeps_unless_the_setting_says_otherwise(
    terminal, store: outlast.Store, failed: Desk
) -> None:
    store.task("nightly/r1/extract").set("page", 41)
    for variables, kept in (({}, True), ({"OUTLAST__STATE_STORE__DISCARD_ON_CLEAR": "true"}, False)):
        window = terminal("tasks", "clear", "nightly/r1/extract", **variables)
        window.expect("[keep]" if kept else "[discard]")
        window.type("\n")
        assert window.end().status == 0
        assert (store.task("nightly/r1/extract").get("page") == 41) is kept


@pytest.mark.parametrize(
    ("options", "told"), [([], "None of them has stored anything."), (["--discard-state"], "Their state is discarded.")]
)
def test_on_a_terminal_a_plain_yes_is_enough_where_nothing_is_to_choose(
    terminal, failed: Desk, options: list[str], told: str
) -> None:
    window = terminal("tasks", "clear", "nightly/r1/extract", *options)
    window.expect("Clear them? [y/N]")
    assert told in window.seen
    window.type("y\n")
    assert window.end().status == 0
    assert failed.states()["extract"] == "waiting"


def test_a_secret_job_is_not_told(terminal, store: outlast.Store, failed: Desk) -> None:
    store.task("nightly/r1/extract").set("remote_job_id", "hunter2")
    window = terminal("tasks", "clear", "nightly/r1/extract", OUTLAST__STATE_STORE__SECRET_KEYS="remote_*")
    window.expect("[keep]")
    assert "hunter2" not in window.seen
    window.type("keep\n")
    assert window.end().status == 0


def test_what_runs_is_told_before_it_is_stopped(terminal, desk: Desk) -> None:
    desk.start("extract", holder=processes.me(), lease=LONG)
    desk.begin("extract")
    window = terminal("tasks", "clear", "nightly/r1/extract")
    window.expect("1 task instance, 1 of them running now, which would be stopped would run again")
    window.type("n\n")
    window.end()


# --- with a real runner ----------------------------------------------------------------------------------------------


DAG_FILE = """
import os, time
from outlast import DAG, task

with DAG("ingest"):
    @task
    def load(task_state_store=None, ti=None):
        for item in task_state_store.checkpoint(range(4)):
            if item == 2 and not os.path.exists("go"):
                while os.path.exists("slow"):
                    time.sleep(0.05)
                raise ValueError("no more pages")
            with open("items", "a") as file:
                file.write(f"{item}\\n")

    load()
"""


@pytest.mark.parametrize(("option", "expected"), [("--keep-state", "0123"), ("--discard-state", "010123")])
def test_a_cleared_task_goes_on_or_begins_anew(
    program: Call, place: str, tmp_path: Path, option: str, expected: str
) -> None:
    (tmp_path / "ingest.py").write_text(DAG_FILE)
    assert program("run", "ingest.py", "--run-id", "r1").status == 1
    (tmp_path / "go").touch()
    told = program("tasks", "clear", "ingest/r1/load", option)
    line = told.lines[-1].removeprefix("to run them: outlast ")
    assert program(*line.split()).status == 0
    assert (tmp_path / "items").read_text().split() == list(expected)
    shown = program("tasks", "show", "ingest/r1/load", "--json").json
    assert [(attempt["number"], attempt["state"]) for attempt in shown["attempts"]] == [(1, "failed"), (2, "success")]


def test_a_live_runner_stops_and_runs_again_what_is_cleared(program: Call, place: str, tmp_path: Path) -> None:
    (tmp_path / "ingest.py").write_text(DAG_FILE)
    (tmp_path / "slow").touch()
    runner = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "outlast.cli", "run", "ingest.py", "--run-id", "r1"],
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: os.path.exists("items") and len(Path("items").read_text().split()) == 2)
        (tmp_path / "go").touch()
        told = program("tasks", "clear", "ingest/r1/load")
        assert f"(process {runner.pid} on {os.uname().nodename}) goes on with them" in told.out
        assert runner.wait(30) == 0
        assert Path("items").read_text().split() == ["0", "1", "2", "3"]
        shown = program("tasks", "show", "ingest/r1/load", "--json").json
        assert [attempt["state"] for attempt in shown["attempts"]] == ["cleared", "success"]
    finally:
        runner.kill()
        runner.communicate()
