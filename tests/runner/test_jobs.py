"""Jobs, callbacks and exceptions under `outlast run`: when a job is cancelled and when never, and who is told."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from support.running import Ground, Program, exists

JOB = """
from datetime import timedelta
from outlast import FailTask, SkipTask
from outlast.operators import ProcessJobOperator

class Job(ProcessJobOperator):
    find_job_grace = 0.1

    def submit_job(self, context):
        mark(f"submit {context['ti'].try_number}")
        return super().submit_job(context)

    def poll_until_complete(self, external_id, context):
        mark(f"poll {context['ti'].try_number}")
        polling(self, context)
        super().poll_until_complete(external_id, context)

    def cancel_job(self, external_id, context):
        mark(f"cancel {context['ti'].try_number}")
        super().cancel_job(external_id, context)

    def on_kill(self):
        mark("kill")

def polling(task, context): ...

def job(script, **kwargs):
    where = {"cwd": HERE, "output_dir": HERE / "jobs", "poll_interval": 0.02}
    return Job(task_id="job", command=script, **where, **kwargs)
"""

#: A command that ends only when it is made to.
LONG = "echo $$ > job.new; mv job.new job; exec sleep 60"

ENDLESS = f"""{JOB}
with DAG("d"):
    @task(trigger_rule="all_done")
    def after(): ...

    job("{LONG}", retries=2) >> after()
"""


def started(ground: Ground, source: str) -> tuple[Program, int]:
    """Run until the job runs and its id is stored; return the runner and the job's process id."""
    ground.dag(source)
    program = ground.start("--run-id", "r")
    pid = ground.pid("job")
    ground.until(lambda: "poll 1" in ground.marks, "the job is waited for")
    return program, pid


def ended(ground: Ground, pid: int) -> bool:
    return ground.until(lambda: not exists(pid), "the job has ended")


# --- cancelling ----------------------------------------------------------------------------------------------

CANCEL = {"runs": ["runs", "cancel", "d/r", "--yes"], "tasks": ["tasks", "cancel", "d/r/job", "--yes"]}


@pytest.mark.parametrize("what", CANCEL)
def test_cancelling_cancels_the_job_while_a_runner_is_there(ground: Ground, what: str) -> None:
    program, pid = started(ground, ENDLESS)
    assert ground.command(*CANCEL[what]).status == 0
    assert program.ends().status == (3 if what == "runs" else 0)
    assert ended(ground, pid)
    assert ground.counts == {"submit 1": 1, "poll 1": 1, "kill": 1, "cancel 1": 1}
    assert ground.task("job").state == "cancelled"
    assert ground.left_soon() == []


@pytest.mark.parametrize("what", CANCEL)
def test_a_pause_leaves_the_job_and_cancelling_without_a_runner_cancels_it(ground: Ground, what: str) -> None:
    program, pid = started(ground, ENDLESS)
    program.signal(signal.SIGINT)
    assert program.ends().status == 75
    assert exists(pid)
    assert ground.counts == {"submit 1": 1, "poll 1": 1}
    assert ground.command(*CANCEL[what]).status == 0
    assert ended(ground, pid)
    assert ground.counts == {"submit 1": 1, "poll 1": 1, "cancel 1": 1}


def test_a_job_that_ran_out_of_time_is_cancelled_before_the_next_attempt(ground: Ground) -> None:
    script = f"if mkdir once; then {LONG}; else echo done; fi"
    ground.dag(f'{JOB}\nwith DAG("d"):\n    job("{script}", retries=1, retry_delay=0, execution_timeout=1.5)')
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("job") == ["failed", "success"]
    assert ground.marks == ["submit 1", "poll 1", "kill", "cancel 1", "submit 2", "poll 2"]
    assert not exists(ground.pid("job"))


FINAL = f"""{JOB}
def polling(task, context):
    if os.environ["HOW"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("no")

with DAG("d"):
    job("{LONG}", retries=1, retry_delay=0, cancel_on_final_failure=os.environ["FINAL"] == "yes")
"""


@pytest.mark.parametrize("how", ["failed", "killed"])
@pytest.mark.parametrize("final", ["yes", "no"])
def test_after_the_last_attempt_a_job_is_cancelled_where_that_is_wanted_and_never_before(
    ground: Ground, how: str, final: str
) -> None:
    ground.dag(FINAL)
    ground.env |= {"HOW": how, "FINAL": final, "OUTLAST__RUNNER__CRASH_RETRIES": "1"}
    assert ground.run("--run-id", "r").status == 1
    assert ground.outcomes("job") == (["failed", "failed"] if how == "failed" else ["crashed", "crashed"])
    cancelled = ["cancel 2"] if final == "yes" else []
    assert ground.marks == ["submit 1", "poll 1", "poll 2", *cancelled]
    assert exists(ground.pid("job")) == (final == "no")


# --- what a run is for downstream -----------------------------------------------------------------------------

SAME = f"""{JOB}
def polling(task, context):
    if os.environ["WHEN"] != "fresh" and context["ti"].try_number == 1:
        if os.environ["WHEN"] == "ended":
            wait_for("ended")
            time.sleep(0.2)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)
    (HERE / "go").touch()

with DAG("d"):
    @task
    def store(value, task_state_store=None):
        task_state_store.set("value", value)

    until = "" if os.environ["WHEN"] == "ended" else "while [ ! -e go ]; do sleep 0.02; done; "
    script = until + "echo $$ >> started; echo '{{\\"rows\\": 7}}'; touch ended"
    store(job(script, json_result=True).output)
"""


@pytest.mark.parametrize("when", ["fresh", "running", "ended"])
def test_fresh_reconnected_and_succeeded_attempts_hand_on_the_same_value(ground: Ground, when: str) -> None:
    ground.dag(SAME)
    assert ground.run("--run-id", "r", env={"WHEN": when}).status == 0
    assert ground.outcomes("job") == (["success"] if when == "fresh" else ["crashed", "success"])
    assert len((ground.folder / "started").read_text().split()) == 1
    assert ground.counts["submit 1"] == 1
    assert ground.counts["poll 2"] == (when == "running")
    assert ground.state("store") == {"value": {"rows": 7}}


# --- callbacks ------------------------------------------------------------------------------------------------

CALLBACKS = """
from outlast import DAG, FailTask, SkipTask

def told(kind):
    return lambda context: mark(f"{context['task'].task_id} {kind} {context['ti'].try_number}")

KINDS = ("execute", "success", "failure", "retry", "skipped")
ALL = {f"on_{kind}_callback": told(kind) for kind in KINDS}

def broken(context):
    raise RuntimeError("a callback that fails")

with DAG("d"):
    @task(**ALL | {"on_success_callback": [broken, told("success"), told("success too")]})
    def good(): ...

    @task(retries=1, retry_delay=0, **ALL)
    def second(ti=None):
        if ti.try_number == 1:
            raise ValueError("once")

    @task(retries=1, retry_delay=0, **ALL)
    def bad():
        raise ValueError("always")

    @task(retries=5, **ALL)
    def stopped():
        raise FailTask("for good")

    @task(retries=5, **ALL)
    def left_out():
        raise SkipTask("nothing to do")

    @task(**ALL)
    def killed():
        os.kill(os.getpid(), signal.SIGKILL)

    @task(retries=1, retry_delay=0, execution_timeout=0.7, **ALL)
    def late():
        forever()

    good(), second(), bad(), stopped(), left_out(), killed(), late()
"""

#: Which callbacks each task has had, with the number of the attempt.
TOLD = {
    "good": ["execute 1", "success 1", "success too 1"],
    "second": ["execute 1", "retry 1", "execute 2", "success 2"],
    "bad": ["execute 1", "retry 1", "execute 2", "failure 2"],
    "stopped": ["execute 1", "failure 1"],
    "left_out": ["execute 1", "skipped 1"],
    "killed": ["execute 1", "execute 2", "failure 2"],
    "late": ["execute 1", "retry 1", "execute 2", "failure 2"],
}


def test_each_callback_is_called_once_for_each_time_it_is_about(ground: Ground) -> None:
    ground.dag(CALLBACKS)
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__CRASH_RETRIES": "1"}).status == 1
    of_task = {name: [line.partition(" ")[2] for line in ground.marks if line.split()[0] == name] for name in TOLD}
    assert of_task == TOLD
    states = Counter(task.state for task in ground.detail().tasks)
    assert states == {"success": 2, "failed": 4, "skipped": 1}
    assert ground.outcomes("stopped") == ["failed"]
    assert ground.left_soon() == []


KILLS = """
with DAG("d"):
    class Waits(BaseOperator):
        def execute(self, context):
            pid("child")
            forever()

        def on_kill(self):
            mark("kill")

    Waits(task_id="t")
"""


@pytest.mark.parametrize("how", ["cancel", "pause"])
def test_on_kill_is_of_a_cancelled_attempt_and_not_of_a_paused_one(ground: Ground, how: str) -> None:
    ground.dag(f"from outlast import BaseOperator\n{KILLS}")
    program = ground.start("--run-id", "r")
    child = ground.pid("child")
    if how == "cancel":
        assert ground.command("tasks", "cancel", "d/r/t", "--yes").status == 0
    else:
        program.signal(signal.SIGINT)
    assert program.ends().status == (75 if how == "pause" else 1)
    assert ground.marks == ([] if how == "pause" else ["kill"])
    assert not exists(child)
