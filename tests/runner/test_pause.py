"""Pausing a run and going on with it: signals, killed runners, and who may hold a run."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outlast.requests import Fence
from outlast.run_requests import Begin, HoldRun, ProcessRef, ReleaseRun, Renew, StartRun, TaskRow, TaskSpec
from outlast.runner import processes
from outlast.values import TaskScope
from support.running import Ground, Program, exists

DAG = """
with DAG("d", params={"day": 1}):

    @task
    def before():
        mark("before")

    @task
    def long(task_state_store=None, ti=None):
        mark(f"long {ti.try_number}")
        task_state_store.set("tries", ti.try_number)
        if first("paused"):
            pid("child")
            try:
                forever()
            finally:
                mark("stopped")

    @task
    def after(params=None):
        mark(f"after {params['day']}")

    before() >> long() >> after()
"""

DONE = ["before", "long 1", "stopped", "long 2", "after 1"]
ELSEWHERE = ProcessRef("elsewhere.test", 4711, "then")


def begun(ground: Ground, *arguments: str, source: str = DAG) -> Program:
    """Run a DAG until its long task is at work."""
    ground.dag(source)
    program = ground.start("--run-id", "r", *arguments)
    ground.appears("child")
    return program


def processes_of(task: TaskRow) -> tuple[int, int]:
    assert task.supervisor is not None
    assert task.child is not None
    return task.supervisor.pid, task.child.pid


def check_paused(ground: Ground) -> None:
    """The run is paused, nothing of it is left running, and the attempt counts for nothing."""
    run = ground.detail().run
    assert (run.state, run.holder, run.ended_at) == ("paused", None, None)
    assert ground.left_soon() == []
    assert ground.outcomes("long") == ["paused"]
    row = ground.task("long")
    assert (row.state, row.failures, row.crashes, row.ended_at) == ("waiting", 0, 0, None)


def check_done(ground: Ground) -> None:
    """The run has ended well, and nothing that was finished before the pause was done again."""
    assert ground.detail().run.state == "success"
    assert ground.outcomes("long") == ["paused", "success"]
    assert ground.outcomes("before") == ["success"]
    assert ground.state("long") == {"tries": 2}
    assert ground.left_soon() == []


# --- Signals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_pause(ground: Ground, number: int) -> None:
    program = begun(ground)
    program.signal(number)
    told = program.ends()
    line = "outlast: run d/r: paused; to go on: outlast run d.py --run-id r"
    assert (told.status, told.err.splitlines()[-1]) == (75, line)
    check_paused(ground)
    assert ground.run("--resume").status == 0
    check_done(ground)
    assert ground.marks == DONE


def test_the_line_to_go_on_with_does(ground: Ground) -> None:
    ground.dag(DAG, "a b.py")
    program = ground.start(str(ground.folder / "a b.py"), "--dag", "d")
    ground.appears("child")
    program.signal(signal.SIGINT)
    line = program.ends().err.splitlines()[-1].partition("to go on: ")[2]
    words = shlex.split(line)
    assert words[:2] == ["outlast", "run"]
    assert ground.run(*words[2:]).status == 0
    assert ground.marks == DONE


def test_a_pause_leaves_external_jobs_running(ground: Ground) -> None:
    job = 'pid("job", subprocess.Popen(["sleep", "60"], start_new_session=True).pid)'
    program = begun(ground, source=DAG.replace('pid("child")', f'{job}; pid("child")'))
    program.signal(signal.SIGINT)
    assert program.ends().status == 75
    assert ground.left_soon(0.3) == [ground.pid("job")]


def test_a_pause_just_when_an_attempt_begins(ground: Ground) -> None:
    """Its child is told to stop, however early that is, and not only killed when its time is up."""
    ground.dag(DAG.replace('pid("child")', "pass"))
    program = ground.start("--run-id", "r")
    ground.until_state("long", "running")
    program.signal(signal.SIGINT)
    began = time.monotonic()
    assert program.ends().status == 75
    assert time.monotonic() - began < 3.0
    check_paused(ground)


def test_a_pause_while_a_retry_waits(ground: Ground) -> None:
    source = DAG.replace("    @task\n    def long", "    @task(retries=1, retry_delay=600)\n    def long")
    ground.dag(source.replace("forever()", "raise ValueError"))
    program = ground.start("--run-id", "r")
    due = ground.until_state("long", "up_for_retry").due_at
    program.signal(signal.SIGTERM)
    assert program.ends().status == 75
    row = ground.task("long")
    assert (row.state, row.due_at, row.failures, ground.detail().run.state) == ("up_for_retry", due, 1, "paused")


def test_a_second_signal_waits_for_nothing(ground: Ground) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); subprocess.Popen(['sleep', '60']); "
    program = begun(ground, source=DAG.replace('pid("child")', stubborn + 'pid("child")'))
    began = time.monotonic()
    program.signal(signal.SIGINT)
    time.sleep(0.3)
    program.signal(signal.SIGINT)
    told = program.ends()
    assert told.status == 75
    assert "to go on: outlast run d.py --run-id r" in told.err
    assert time.monotonic() - began < 3.0
    check_paused(ground)
    assert ground.run("--run-id", "r").status == 0
    check_done(ground)


def test_a_hangup_ignored_by_nohup_is_no_pause(ground: Ground) -> None:
    ground.dag(DAG.replace("forever()", "wait_for('go')"))
    program = ground.start("--run-id", "r", before=["nohup"])
    ground.appears("child")
    program.signal(signal.SIGHUP)
    time.sleep(0.3)
    (ground.folder / "go").touch()
    assert program.ends().status == 0


# --- Killed runners --------------------------------------------------------------------------------------


def test_workers_of_a_killed_runner_give_their_attempts_back(ground: Ground) -> None:
    program = begun(ground)
    program.signal(signal.SIGKILL)
    program.ends()
    ground.until_state("long", "waiting")
    assert ground.left_soon() == []
    assert ground.outcomes("long") == ["paused"]
    told = ground.run("--resume")
    assert told.status == 0
    assert f"the runner before (process {program.pid}) is gone; taking its run over" in told.err
    check_done(ground)
    assert ground.marks == DONE


def test_a_runner_killed_with_its_supervisors(ground: Ground) -> None:
    program = begun(ground)
    supervisor, _ = processes_of(ground.task("long"))
    program.signal(signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    program.ends()
    assert ground.left_soon() == []
    assert ground.outcomes("long") == ["running"]
    began = time.monotonic()
    assert ground.run("--run-id", "r").status == 0
    assert time.monotonic() - began < 5.0, "waited for the lease of a runner that is known to be dead"
    check_done(ground)
    assert ground.attempts("long")[0].error == "its runner was gone"


@pytest.mark.parametrize("stopped", ["supervisor", "both"])
def test_what_a_killed_runner_has_left_is_killed_before_its_run_goes_on(ground: Ground, stopped: str) -> None:
    program = begun(ground)
    supervisor, child = processes_of(ground.task("long"))
    for pid in (supervisor, child) if stopped == "both" else (supervisor,):
        os.kill(pid, signal.SIGSTOP)
    program.signal(signal.SIGKILL)
    program.ends()
    assert (exists(supervisor), exists(child)) == (True, True)
    assert ground.run("--resume").status == 0
    assert (exists(supervisor), exists(child)) == (False, False)
    check_done(ground)


def test_a_run_killed_again_and_again_gets_done(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def steps(task_state_store=None):
        for step in range(task_state_store.get("step", 0) + 1, 9):
            mark(f"step {step}")
            task_state_store.set("step", step)
            time.sleep(0.1)
    steps()
"""
    )
    for _ in range(3):
        program, done = ground.start("--resume"), len(ground.marks)
        ground.until(lambda done=done: len(ground.marks) > done + 1)
        program.signal(signal.SIGKILL)
        program.ends()
    assert ground.run("--resume").status == 0
    assert set(ground.marks) == {f"step {step}" for step in range(1, 9)}
    assert max(ground.counts.values()) <= 2


# --- Who may hold a run ----------------------------------------------------------------------------------


def held_by(ground: Ground, holder: ProcessRef, lease: float) -> Fence:
    """Leave a run in the store whose runner and whose worker are such a process."""
    ground.dag(DAG)
    tasks = (TaskSpec("before"), TaskSpec("long", upstream=("before",)), TaskSpec("after", upstream=("long",)))
    ground.send(StartRun("d", "r", tasks, '{"day":1}', str(ground.folder / "d.py"), "", 0, holder, lease))
    task = ground.send(Begin(TaskScope("d", "r", "before"), 0, holder, lease))
    fence = Fence(task.scope, task.attempt, task.scope_id)
    ground.send(Renew(fence, lease, holder))
    (ground.folder / "paused").touch()
    return fence


@contextmanager
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_live_runner_keeps_its_run(ground: Ground) -> None:
    program = begun(ground)
    for arguments in (["--resume"], ["--run-id", "r"]):
        told = ground.run(*arguments)
        assert told.status == 9
        assert told.err.splitlines()[-1] == (
            f"outlast: run d/r is being run by process {program.pid}; "
            "wait for it, stop it, or start another run with --run-id"
        )
    assert ground.detail().run.state == "running"
    assert ground.outcomes("long") == ["running"]


def test_one_of_two_gets_a_paused_run(ground: Ground) -> None:
    program = begun(ground)
    program.signal(signal.SIGINT)
    program.ends()
    both = [ground.start("--resume"), ground.start("--resume")]
    statuses = sorted(program.ends().status for program in both)
    assert statuses in ([0, 9], [0, 0]), "one is refused, or comes when all is done"
    assert ground.outcomes("long") == ["paused", "success"]
    assert ground.counts["after 1"] == (1 if statuses == [0, 9] else 2)


def test_a_later_process_with_a_recorded_pid_is_left_alone(ground: Ground) -> None:
    with sleeper() as pid:
        held_by(ground, ProcessRef(processes.me().host, pid, "another start"), 600.0)
        assert ground.run("--run-id", "r").status == 0
        assert exists(pid)
    assert ground.outcomes("before") == ["paused", "success"]


def test_a_runner_elsewhere_is_waited_for_until_its_lease_lapses(ground: Ground) -> None:
    held_by(ground, ELSEWHERE, 1.5)
    began = time.monotonic()
    told = ground.run("--resume")
    assert told.status == 0
    assert time.monotonic() - began > 1.0
    assert "another host holds this run; it is taken over in" in told.err
    assert ground.outcomes("before") == ["crashed", "success"]


def test_a_runner_elsewhere_that_shows_signs_of_life_is_waited_for(ground: Ground) -> None:
    held_by(ground, ELSEWHERE, 0.8)
    program = ground.start("--resume")
    for _ in range(8):
        time.sleep(0.2)
        assert ground.send(HoldRun("d", "r", ELSEWHERE, 0.8)).ok
    assert ground.marks == []
    ground.send(ReleaseRun("d", "r", ELSEWHERE, "paused"))
    assert program.ends().status == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_runner_stopped_past_its_lease_is_replaced_and_gives_way(short: Ground, late: bool) -> None:
    wait = "    if ti.try_number == 2: wait_for('go')\n"
    program = begun(short, source=DAG.replace("        if first", f"    {wait}        if first"))
    program.signal(signal.SIGSTOP)
    time.sleep(1.2)
    second = short.start("--resume")
    short.until_state("long", "running", 2)
    if late:
        (short.folder / "go").touch()
        assert second.ends().status == 0
    program.signal(signal.SIGCONT)
    told = program.ends()
    if late:
        assert told.status == 0, "what has become of the run meanwhile"
    else:
        assert (told.status, "another runner has taken this run over" in told.err) == (75, True)
        (short.folder / "go").touch()
        assert second.ends().status == 0
    check_done(short)
    assert [line for line in short.marks if line != "stopped"] == ["before", "long 1", "long 2", "after 1"]


# --- What a run remembers --------------------------------------------------------------------------------


def paused(ground: Ground, *arguments: str) -> None:
    program = begun(ground, *arguments)
    program.signal(signal.SIGINT)
    assert program.ends().status == 75


def test_other_parameters_are_refused(ground: Ground) -> None:
    paused(ground, "--param", "day=2")
    told = ground.run("--run-id", "r", "--param", "day=3")
    assert told.status == 66
    assert 'was started with parameters {"day":2}, not with' in told.err
    check_paused(ground)
    assert ground.run("--run-id", "r", "--param", "day=2").status == 0
    assert ground.marks[-1] == "after 2"


def test_parameters_need_not_be_repeated(ground: Ground) -> None:
    paused(ground, "--param", "day=2")
    assert ground.run("--resume").status == 0
    assert ground.marks[-1] == "after 2"


def test_a_changed_file_is_warned_about_and_used(ground: Ground) -> None:
    paused(ground)
    ground.dag(DAG.replace('mark(f"after', 'mark(f"changed'))
    told = ground.run("--resume")
    assert told.status == 0
    assert "has changed since this run began; going on with the file as it is now" in told.err
    assert ground.marks[-1] == "changed 1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" >> after()", "", "no longer has the tasks after of this run"),
        (" >> after()", " >> after() >> before.override(task_id='more')()", "has new tasks more"),
    ],
)
def test_a_file_with_other_tasks_is_refused(ground: Ground, old: str, new: str, message: str) -> None:
    paused(ground)
    ground.dag(DAG.replace(old, new))
    told = ground.run("--resume")
    assert (told.status, message in told.err) == (66, True), told.err
    check_paused(ground)


def test_a_run_that_has_ended_is_not_gone_on_with(ground: Ground) -> None:
    (ground.folder / "paused").touch()
    ground.dag(DAG)
    assert ground.run("--run-id", "r").status == 0
    told = ground.run("--run-id", "r")
    assert (told.status, "run d/r has ended (success)" in told.err) == (9, True)
    assert ground.marks == ["before", "long 1", "after 1"]


def test_resume_without_an_unfinished_run_starts_one(ground: Ground) -> None:
    (ground.folder / "paused").touch()
    ground.dag(DAG)
    assert ground.run("--resume").status == 0
    assert ground.run("--resume").status == 0
    assert ground.counts == {"before": 2, "long 1": 2, "after 1": 2}


def test_resume_and_a_run_id_exclude_each_other(ground: Ground) -> None:
    ground.dag(DAG)
    assert ground.run("--resume", "--run-id", "r").status == 2
