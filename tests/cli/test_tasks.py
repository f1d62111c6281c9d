"""`outlast tasks`: what a person sees of task instances, and clearing, cancelling and marking them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast.run_requests import Resolve, TaskSpec
from outlast.runner import processes
from outlast.values import Writer
from support.runs import ANN, Desk

from .conftest import SHOWN_THEN, Told

Call = Callable[..., Told]

LONG = 10.0**9  # seconds: a lease that holds although the store's clock stands still


@pytest.fixture
def desk(store: outlast.Store) -> Desk:
    """Who speaks for a runner and its workers."""
    return Desk(store.backend)


@pytest.fixture
def failed(desk: Desk) -> Desk:
    """A run that ended because its first task failed."""
    desk.start("extract", ("load", "extract"), "other")
    desk.ran("extract", "failed", error="ValueError: bad page")
    desk.ran("other")
    desk.send(Resolve(desk.scope("load"), "upstream_failed"))
    desk.release("failed")
    return desk


# --- ls and show -----------------------------------------------------------------------------------------------


def test_the_task_instances_of_a_run(call: Call, failed: Desk) -> None:
    told = call("tasks", "ls", "nightly/r1")
    assert [line.split()[:2] for line in told.lines] == [
        ["TASK", "STATE"],
        ["extract", "failed"],
        ["load", "upstream_failed"],
        ["other", "success"],
    ]
    assert [task["address"] for task in call("tasks", "ls", "nightly/r1", "--json").json] == [
        "nightly/r1/extract",
        "nightly/r1/load",
        "nightly/r1/other",
    ]


def test_a_task_instance_is_shown_with_its_attempts_and_keys(call: Call, store: outlast.Store, desk: Desk) -> None:
    desk.start("extract", ("load", "extract"), holder=processes.me(), lease=LONG)
    desk.ran("extract")
    desk.ran("load", "failed", error="ValueError: bad page", retries=9)
    desk.ran("load", "crashed", error="the process was killed by SIGKILL", crash_retries=9)
    desk.begin("load", lease=LONG)
    store.task("nightly/r1/load", writer=ANN).set_many({"page": 41, "remote_job_id": "job-17"})
    told = call("tasks", "show", "nightly/r1/load")
    assert told.status == 0
    text = told.out.split("\n\n")
    assert text[0].splitlines() == [
        "task:          nightly/r1/load",
        "state:         running",
        "waits for:     extract",
        "try:           3",
        "failures:      1",
        "crashes:       1",
    ]
    where = ["process", "21", "on", "here.test"]
    attempts = [line.split() for line in text[1].splitlines()]
    assert attempts[1] == ["1", "failed", SHOWN_THEN, "0.0s", *where, "ValueError:", "bad", "page"]
    assert attempts[2] == [
        "2",
        "crashed",
        SHOWN_THEN,
        "0.0s",
        *where,
        "the",
        "process",
        "was",
        "killed",
        "by",
        "SIGKILL",
    ]
    assert attempts[3][:3] == ["3", "running", SHOWN_THEN]
    keys = [line.split() for line in text[2].splitlines()]
    assert keys[0] == ["KEY", "BYTES", "REVISION", "CHANGED", "EXPIRES", "BY"]
    assert keys[1:] == [
        ["page", "2", "1", SHOWN_THEN, "never", "person", "ann@desk"],
        ["remote_job_id", "8", "1", SHOWN_THEN, "never", "person", "ann@desk"],
    ]
    assert told.err == "its log: outlast logs nightly/r1/load\n"


def test_a_task_instance_for_programs(call: Call, store: outlast.Store, failed: Desk) -> None:
    store.task("nightly/r1/extract").set("page", 41)
    task = call("tasks", "show", "nightly/r1/extract", "--json").json
    assert (task["state"], task["error"], task["failures"]) == ("failed", "ValueError: bad page", 1)
    assert task["attempts"] == [
        {
            "number": 1,
            "state": "failed",
            "started_at": SHOWN_THEN,
            "ended_at": SHOWN_THEN,
            "error": "ValueError: bad page",
            "supervisor": {"host": "here.test", "pid": 21},
        }
    ]
    assert task["keys"] == [
        {
            "key": "page",
            "bytes": 2,
            "revision": 1,
            "updated_at": SHOWN_THEN,
            "expires_at": None,
            "writer": {"kind": "library", "attempt": None, "name": None, "scope": None},
        }
    ]


def test_one_that_has_not_begun(call: Call, desk: Desk) -> None:
    desk.start("extract")
    told = call("tasks", "show", "nightly/r1/extract")
    assert told == Told(0, "task:          nightly/r1/extract\nstate:         waiting\n\nit has stored nothing\n", "")


@pytest.mark.parametrize("command", [["show"], ["cancel", "--yes"], ["mark", "failed"]])
@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("nightly/r9/extract", 4, "there is no run nightly/r9"),
        ("nightly/r1/extrct", 4, "has no task extrct; did you mean extract?"),
        ("nightly/r1/zzz", 4, "has no task zzz; `outlast tasks ls nightly/r1` lists those it has"),
        ("nightly/r1/each", 4, "nightly/r1/each is mapped; name one of its instances: nightly/r1/each/0 to /2"),
        ("nightly/r1/each/3", 4, "there is no nightly/r1/each/3; the task's instances are 0 to 2"),
        ("nightly/r1/extract/0", 4, "extract is not mapped; its address is nightly/r1/extract"),
        ("nightly/r1", 65, "'nightly/r1' is a run; name a task of it: `outlast tasks ls nightly/r1` shows them"),
        ("nightly", 65, "is not an address"),
        ("nightly/r1/extract/x", 65, "is not an address"),
    ],
)
def test_a_wrong_address_is_explained(
    call: Call, desk: Desk, command: list[str], address: str, status: int, said: str
) -> None:
    desk.start("extract", *(TaskSpec("each", index) for index in range(3)))
    told = call("tasks", *command, address)
    assert (told.status, told.out) == (status, "")
    assert said in told.err


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


# --- cancel and mark -----------------------------------------------------------------------------------------------


def test_a_task_instance_is_cancelled(call: Call, desk: Desk) -> None:
    desk.start("extract", "load", holder=processes.me(), lease=LONG)
    desk.begin("extract")
    told = call("tasks", "cancel", "nightly/r1/extract", "--yes")
    assert told == Told(0, "nightly/r1/extract was running and is cancelled\nits attempt is being stopped\n", "")
    assert desk.states() == {"extract": "cancelled", "load": "waiting"}
    told = call("tasks", "cancel", "nightly/r1/extract", "--yes")
    assert told.status == 9
    assert "has already ended (cancelled)" in told.err
    assert call("tasks", "cancel", "nightly/r1/load").status == 2
    assert desk.states()["load"] == "waiting"


def test_on_a_terminal_cancelling_is_asked(terminal, desk: Desk) -> None:
    desk.start("extract")
    window = terminal("tasks", "cancel", "nightly/r1/extract")
    window.expect("Cancel it? [y/N]")
    window.type("y\n")
    assert "to go on with the run: outlast run /dags/nightly.py --run-id r1" in window.end().out
    assert desk.states() == {"extract": "cancelled"}


def test_a_mark_lets_go_on_what_had_given_up(call: Call, failed: Desk) -> None:
    told = call("tasks", "mark", "success", "nightly/r1/extract")
    assert told == Told(
        0,
        "nightly/r1/extract was failed and is success\n"
        "to go on with the run: outlast run /dags/nightly.py --run-id r1\n",
        "",
    )
    assert failed.states() == {"extract": "success", "load": "waiting", "other": "success"}


def test_a_mark_for_programs(call: Call, failed: Desk) -> None:
    told = call("tasks", "mark", "failed", "nightly/r1/other", "--json")
    assert told.json == {
        "address": "nightly/r1/other",
        "before": "success",
        "state": "failed",
        "run_state": "failed",
        "runner": False,
        "go_on": None,
    }
    assert call("tasks", "mark", "cancelled", "nightly/r1/other").status == 2


def test_who_changed_what_is_audited(call: Call, store: outlast.Store, failed: Desk) -> None:
    call("tasks", "clear", "nightly/r1/other")
    call("tasks", "mark", "success", "nightly/r1/other")
    rows = store.runs_as(Writer("person")).audit()
    assert [(row.action, row.place) for row in rows] == [
        ("mark success", "nightly/r1/other"),
        ("clear", "nightly/r1/other"),
    ]
    assert {row.who.partition("@")[2] for row in rows} == {os.uname().nodename}


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


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
