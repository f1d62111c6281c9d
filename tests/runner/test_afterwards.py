"""What is due after the last attempt of a task: not lost with a runner, tried again, and told when it was not done."""

from __future__ import annotations

import os
import signal
import time

import pytest

from outlast.people_requests import CancelRun
from outlast.run_requests import ListRuns, NoteAftermath
from outlast.runner.afterwards import MOST
from outlast.values import TaskScope
from support.running import Ground
from support.runs import ANN, Desk

JOB = """
from outlast import BaseOperator
from outlast.dags.resumable import ResumableJobMixin

class Job(ResumableJobMixin, BaseOperator):
    find_job_grace = 0.1
    status_retry_for = 0

    def execute(self, context):
        return self.execute_resumable(context)

    def submit_job(self, context):
        mark(f"submit {context['ti'].try_number}")
        return 7

    def get_job_status(self, external_id, context):
        return "over" if (HERE / "over").exists() else "running"

    def is_job_active(self, status):
        return status == "running"

    def is_job_succeeded(self, status):
        return False

    def poll_until_complete(self, external_id, context):
        pid("child")
        polling()

    def get_job_result(self, external_id, context):
        return external_id

def polling():
    raise ValueError("no")

class Cancellable(Job):
    def cancel_job(self, external_id, context):
        mark(f"cancel {context['ti'].try_number}")
        cancelling()
        (HERE / "over").touch()

def cancelling(): ...

def failed(context):
    mark(f"failed {context['ti'].try_number}")
"""

FINAL = f"""{JOB}
def polling():
    if os.environ["HOW"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no")

with DAG("d"):
    Cancellable(task_id="job", cancel_on_final_failure=True, on_failure_callback=failed)
"""


def killing(ground: Ground, at: str) -> None:
    """Have one process killed at one point of what follows."""
    ground.env |= {"KILL_AT": at, "KILL_ONCE": str(ground.folder / "killed")}
    ground.env |= {"OUTLAST__STATE_STORE__BACKEND": "killing:KillingBackend", "OUTLAST__RUNNER__CRASH_RETRIES": "0"}


@pytest.mark.parametrize("how", ["failed", "killed"])
def test_a_runner_killed_before_it_has_seen_to_the_last_failure(ground: Ground, how: str) -> None:
    ground.dag(FINAL)
    ground.env["HOW"] = how
    killing(ground, "after ListAttempts 1 job")  # which the runner asks just before
    assert ground.run("--run-id", "r").status == -signal.SIGKILL
    in_process = ["failed 1"] if how == "failed" else []
    assert ground.marks == ["submit 1", *in_process]
    assert (ground.task("job").state, ground.task("job").aftermath) == ("failed", 0)
    assert ground.run("--resume").status == 1
    assert ground.marks == ["submit 1", *in_process, "cancel 1", *(["failed 1"] if how == "killed" else [])]
    assert ground.task("job").aftermath is None
    assert ground.left_soon() == []


@pytest.mark.parametrize(
    "at", ["before NoteAftermath 1 job", "after NoteAftermath 1 job", "before NoteAftermath 2 job"]
)
def test_what_is_done_afterwards_is_killed_and_done_again(ground: Ground, at: str) -> None:
    ground.dag(FINAL)
    ground.env["HOW"] = "killed"
    killing(ground, at)
    assert ground.run("--run-id", "r").status == 1
    assert (ground.folder / "killed").exists()
    once = ["cancel 1", "failed 1"]
    again = ["failed 1"]  # the job is over by then
    assert ground.marks == ["submit 1", *once, *(again if "before NoteAftermath 2" in at else [])]
    assert ground.task("job").aftermath is None


def test_a_cancel_that_fails_is_told_and_tried_again(ground: Ground) -> None:
    broken = 'def cancelling():\n    if first("broken"):\n        raise ConnectionError("no network")\n'
    ground.dag(FINAL.replace("def polling", f"{broken}\ndef polling"))
    ground.env["HOW"] = "failed"
    told = ground.run("--run-id", "r")
    assert told.status == 1
    log = ground.place.with_name("s.db.logs") / "d" / "r" / "job" / "attempt-1.log"
    line = f"outlast: job 7 of job was NOT cancelled: ConnectionError: no network; see {log}, and it is tried again"
    assert line in told.err.splitlines()
    assert ground.marks == ["submit 1", "failed 1", "cancel 1", "cancel 1"]
    assert "ConnectionError: no network" in log.read_text()
    assert ground.task("job").aftermath is None


def test_a_job_that_cannot_be_cancelled_is_told(ground: Ground) -> None:
    ground.dag(FINAL.replace("Cancellable(task_id", "Job(task_id"))
    ground.env["HOW"] = "failed"
    told = ground.run("--run-id", "r")
    assert told.status == 1
    assert told.err.count("job 7 of job was NOT cancelled: Job has no cancel_job; see ") == 1
    assert ground.task("job").aftermath is None


@pytest.mark.parametrize("what", ["runs", "tasks"])
def test_a_cancelled_task_whose_job_cannot_be_cancelled_is_told_by_the_runner(ground: Ground, what: str) -> None:
    ground.dag(f'{JOB}\ndef polling():\n    forever()\n\nwith DAG("d"):\n    Job(task_id="job")\n')
    program = ground.start("--run-id", "r")
    ground.pid("child")
    ground.command(what, "cancel", "d/r" if what == "runs" else "d/r/job", "--yes")
    told = program.ends()
    assert told.status == (3 if what == "runs" else 1)
    assert told.err.count("job 7 of job was NOT cancelled: Job has no cancel_job; see ") == 1


def test_the_next_run_cancels_what_a_killed_runner_of_a_cancelled_run_has_left(ground: Ground) -> None:
    ground.dag(f'{JOB}\ndef polling():\n    forever()\n\nwith DAG("d"):\n    Cancellable(task_id="job")\n')
    program = ground.start("--run-id", "r")
    ground.pid("child")
    os.kill(program.pid, signal.SIGSTOP)
    ground.send(CancelRun("d", "r", ANN))
    program.signal(signal.SIGKILL)
    program.ends()
    assert ("cancel 1" in ground.marks, ground.task("job").aftermath) == (False, 0)
    ground.dag(f'{JOB}\ndef polling():\n    pass\n\nwith DAG("d"):\n    Cancellable(task_id="job")\n')
    assert ground.run("--run-id", "s").status == 0
    assert ground.counts == {"submit 1": 2, "cancel 1": 1}
    assert ground.task("job").aftermath is None


HANGS = f"""{JOB}
def polling():
    forever()

def cancelling():
    pid("cancelling")
    while not (HERE / "free").exists():
        time.sleep(0.01)

with DAG("d"):
    Cancellable(task_id="job", retries=RETRIES, retry_delay=0, execution_timeout=1)
"""


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_cancel_that_hangs_does_not_hold_a_pause_up_and_is_done_later(
    ground: Ground, retries: int, number: int
) -> None:
    ground.dag(HANGS.replace("RETRIES", str(retries)))
    program = ground.start("--run-id", "r")
    ground.pid("cancelling")
    began = time.monotonic()
    program.signal(number)
    told = program.ends()
    ground.until(lambda: not ground.left(), "everything ends")
    assert time.monotonic() - began < 8.0
    if number == signal.SIGTERM:
        assert told.status == 75
        assert "job 7 of job was NOT cancelled: the runner paused meanwhile; see " in told.err
    row = ground.task("job")
    assert (row.state, row.failures) == ("up_for_retry" if retries else "failed", 1)
    assert (row.cancel_due, row.aftermath) == (True, 0)
    (ground.folder / "free").touch()
    ground.dag(HANGS.replace("RETRIES", str(retries)).replace("    forever()", "    pass"))
    assert ground.run("--resume").status == (0 if retries else 1)
    assert ground.marks == ["submit 1", "cancel 1", "cancel 1", *(["submit 2"] if retries else [])]
    assert (ground.task("job").cancel_due, ground.task("job").aftermath) == (False, None)


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGTERM, "the runner paused"), (signal.SIGKILL, "its runner was gone")]
)
def test_an_attempt_says_whether_its_runner_paused_or_died(ground: Ground, number: int, why: str) -> None:
    ground.dag('with DAG("d"):\n    @task\n    def t():\n        pid("child")\n        forever()\n    t()\n')
    program = ground.start("--run-id", "r")
    ground.pid("child")
    program.signal(number)
    program.ends()
    ground.until_state("t", "waiting")
    assert ground.attempts("t")[0].error == why


# --- What was left by many runs ---------------------------------------------------------------------------

MANY = f"""{JOB}
def polling():
    forever()

def cancelling():
    if not (HERE / "net").exists():
        raise ConnectionError("no network")

class Endless(Cancellable):
    def get_job_status(self, external_id, context):
        return "running"

with DAG("d"):
    Endless(task_id="job")
"""


def left_behind(ground: Ground, *runs: str) -> None:
    """Make runs that were cancelled while nobody was there to cancel their jobs."""
    for run in runs:
        desk = Desk(ground.store.backend, "d", run)
        desk.start("job", file=str(ground.folder / "d.py"))
        desk.begin("job")
        ground.store.task(f"d/{run}/job").set("remote_job_id", 7)
        ground.send(CancelRun("d", run, ANN))
        desk.release("cancelled")


def test_jobs_of_all_runs_that_were_left_are_cancelled_not_only_of_the_newest(ground: Ground) -> None:
    ground.dag(MANY)
    runs = [f"r{number}" for number in range(6)]
    left_behind(ground, *runs)
    (ground.folder / "net").touch()
    ground.dag(MANY.replace("    forever()", "    pass"))
    assert ground.run("--run-id", "s").status == 0
    assert [ground.task("job", run).aftermath for run in runs] == [None] * 6
    assert ground.counts["cancel 1"] == 6


def test_those_further_back_have_their_turn(ground: Ground) -> None:
    ground.dag(MANY)
    left_behind(ground, *[f"r{number}" for number in range(4)])
    for run in ("r2", "r3"):
        for _ in range(MOST):
            ground.send(NoteAftermath(TaskScope("d", run, "job"), 1))
    assert [run.run_id for run, _ in ground.send(ListRuns("d", due=MOST)).runs] == ["r1", "r0"]
    assert [run.run_id for run, _ in ground.send(ListRuns("d", due=1 << 40)).runs] == ["r3", "r2", "r1", "r0"]
    page = ground.send(ListRuns("d", ("cancelled",), None, 1, due=MOST))
    assert [run.run_id for run, _ in ground.send(ListRuns("d", before=page.before, due=MOST)).runs] == ["r0"]


@pytest.mark.parametrize("what", ["runs", "tasks"])
def test_a_cancel_of_what_has_ended_tries_again_what_is_still_due(ground: Ground, what: str) -> None:
    ground.dag(MANY)
    left_behind(ground, "r")
    command = ("runs", "cancel", "d/r") if what == "runs" else ("tasks", "cancel", "d/r/job")
    told = ground.command(*command, "--yes")
    assert told.status == 0
    assert "job 7 of d/r/job was NOT cancelled: ConnectionError: no network; see " in told.err
    assert (ground.task("job").state, ground.task("job").aftermath) == ("cancelled", 1)
    (ground.folder / "net").touch()
    again = ground.command(*command, "--yes")
    assert again.status == 0
    assert "NOT cancelled" not in again.err
    assert (ground.task("job").aftermath, ground.marks) == (None, ["cancel 1", "cancel 1"])
    refused = ground.command(*command, "--yes")
    assert refused.status != 0 if what == "runs" else "nothing was changed" in refused.err or refused.status != 0
