"""What other processes do to a run while it goes on: cancel, clear, mark, remove."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from outlast.people_requests import CancelRun, ClearTasks, MarkTask
from outlast.values import TaskScope, Writer
from support.running import WAITS, Ground

ANN = Writer("person", name="ann@desk")


def test_a_run_cancelled_by_another_process_stops_soon(ground: Ground) -> None:
    ground.dag(WAITS)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    began = time.monotonic()
    ground.send(CancelRun("d", "r", ANN))
    told = program.ends()
    assert told.status == 3
    assert time.monotonic() - began < 3.0
    assert "to go on" not in told.err
    assert ground.left_soon() == []
    assert (ground.detail().run.state, ground.detail().run.holder) == ("cancelled", None)
    assert (ground.outcomes("t"), ground.task("t").state, ground.task("after").state) == (
        ["cancelled"],
        "cancelled",
        "cancelled",
    )
    assert ground.marks == ["try 1"]


def test_a_run_is_cancelled_from_the_command_line(ground: Ground) -> None:
    ground.dag(WAITS)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    assert ground.command("runs", "cancel", "d/r", "--yes").status == 0
    assert program.ends().status == 3
    assert ground.detail().run.state == "cancelled"


def test_a_task_cancelled_while_it_runs_counts_as_failed(ground: Ground) -> None:
    ground.dag(WAITS)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    ground.send(MarkTask(TaskScope("d", "r", "t"), "cancelled", ANN))
    assert program.ends().status == 0, "an all_done task below it has succeeded"
    assert ground.task("t").state == "cancelled"
    assert ground.marks == ["try 1", "after"]


def test_a_task_cleared_while_it_runs_is_stopped_and_run_again(ground: Ground) -> None:
    ground.dag(WAITS.replace('pid("child")', "task_state_store.set('key', 'kept')\n            pid('child')"))
    program = ground.start("--run-id", "r")
    child = ground.pid("child")
    ground.send(ClearTasks("d", "r", (("t", None),), ANN))
    assert program.ends().status == 0
    assert [attempt.state for attempt in ground.attempts("t")] == ["cleared", "success"]
    assert ground.marks == ["try 1", "try 2", "end", "after"]
    assert ground.state("t") == {"key": "kept"}
    assert not Path(f"/proc/{child}").exists()
    assert (ground.task("t").failures, ground.task("t").crashes) == (0, 0)


def test_a_finished_task_cleared_while_its_run_goes_on_runs_again(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def early(ti=None):
        mark(f"early {ti.try_number}")
    @task
    def late(ti=None):
        pid("child")
        wait_for("go")
        mark(f"late {ti.try_number}")
    early() >> late()
"""
    )
    program = ground.start("--run-id", "r")
    ground.appears("child")
    ground.send(ClearTasks("d", "r", (("early", None),), ANN))
    ground.until_state("early", "success", 2)
    (ground.folder / "go").touch()
    assert program.ends().status == 0
    assert ground.marks == ["early 1", "early 2", "late 1"]


@pytest.mark.parametrize(("state", "status"), [("success", 0), ("failed", 0)])
def test_a_task_marked_while_it_runs_is_stopped(ground: Ground, state: str, status: int) -> None:
    ground.dag(WAITS)
    program = ground.start("--run-id", "r")
    child = ground.pid("child")
    ground.send(MarkTask(TaskScope("d", "r", "t"), state, ANN))  # type: ignore[arg-type]
    assert program.ends().status == status
    assert ground.task("t").state == state
    assert [attempt.state for attempt in ground.attempts("t")] == [f"marked {state}"]
    assert ground.marks == ["try 1", "after"]
    assert not Path(f"/proc/{child}").exists()
    assert ground.left_soon() == []


def test_a_task_marked_failed_takes_those_that_wait_for_a_retry_with_it(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def above():
        pass
    @task(retries=1, retry_delay=600)
    def below():
        raise ValueError
    above() >> below()
"""
    )
    program = ground.start("--run-id", "r")
    ground.until_state("below", "up_for_retry")
    ground.send(MarkTask(TaskScope("d", "r", "above"), "failed", ANN))
    assert program.ends().status == 1
    assert ground.task("below").state == "upstream_failed"


def test_a_scope_opened_from_outside_takes_the_attempt_away(short: Ground) -> None:
    short.dag(WAITS)
    program = short.start("--run-id", "r")
    short.appears("child")
    with short.store.task("d/r/t", attempt="new").transaction() as tx:
        tx.set("by", "a script")
    assert program.ends().status == 0
    states = [(attempt.number, attempt.state) for attempt in short.attempts("t")]
    assert states == [(1, "crashed"), (3, "success")]
    assert short.attempts("t")[0].error == "somebody else has opened the task's state as a newer attempt"
    assert short.state("t") == {"by": "a script"}


def test_a_run_removed_while_it_runs_ends(ground: Ground) -> None:
    ground.dag(WAITS)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    assert ground.command("runs", "rm", "d/r", "--yes", "--force").status == 0
    told = program.ends()
    assert (told.status, "run d/r was removed while it ran" in told.err) == (3, True)
    assert ground.left_soon() == []
