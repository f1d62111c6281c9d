"""`outlast tasks`: what a person sees of task instances, and cancelling and marking them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import outlast
from outlast.run_requests import TaskSpec
from outlast.runner import processes
from outlast.values import Writer
from support.runs import ANN, Desk

from .conftest import LONG, SHOWN_THEN, Told

Call = Callable[..., Told]


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
