"""One attempt: how it dies, how that is seen, and what becomes of its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from outlast.run_requests import TaskRow
from outlast.runner.job import Job
from outlast.values import TaskScope
from support.running import Ground, exists, state_of


def one_task(code: str, options: str = "", otherwise: str = "pass") -> str:
    """Return a DAG whose task does something the first time, and something else afterwards."""
    body = "\n            ".join(code.strip().splitlines())
    return f"""
with DAG("d"):
    @task({options})
    def t(task_state_store=None, ti=None):
        mark(f"try {{ti.try_number}}")
        if first("once"):
            {body}
        else:
            {otherwise}
        mark("end")
    t()
"""


def all_stopped(*pids: int) -> bool:
    return all(state_of(pid) == "T" for pid in pids)


# --- Deaths and exceptions -------------------------------------------------------------------------------

DEATHS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "the process was killed by SIGKILL (perhaps out of memory)",
    "os._exit(3)": "the process exited with status 3 without reporting",
    "os._exit(0)": "the process exited with status 0 without reporting",
    "import faulthandler; faulthandler._sigsegv()": "the process was killed by SIGSEGV",
    "os.abort()": "the process was killed by SIGABRT",
    "os.kill(os.getpid(), signal.SIGTERM)": "the attempt was asked to stop (SIGTERM)",
    "os.kill(os.getppid(), signal.SIGKILL); forever()": "its supervisor was killed by SIGKILL",
    "os.kill(os.getppid(), signal.SIGSEGV); forever()": "its supervisor was killed by SIGSEGV",
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_death_is_tried_again_whatever_the_retries(ground: Ground, death: str) -> None:
    ground.dag(one_task(death))
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("t") == ["crashed", "success"]
    assert ground.attempts("t")[0].error == DEATHS[death]
    assert ground.marks == ["try 1", "try 2", "end"]
    assert ground.left_soon() == []


EXCEPTIONS = {
    "raise MemoryError": "MemoryError",
    "sys.exit(1)": "SystemExit: 1",
    "sys.exit('no')": "SystemExit: no",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise ValueError('bad')": "ValueError: bad",
    "raise ValueError('a name ' + os.fsdecode(b'\\xff'))": "ValueError: a name \\udcff",
    "return {'when': time}": "outlast.errors.InvalidValue: the result of task t: $.when is a module",
    "return 'x' * 1024 * 1024": "outlast.errors.ValueTooLarge",
    "ti.xcom_push('k', {1, 2})": "outlast.errors.InvalidValue: what task t pushes under 'k': $ is a set",
}


@pytest.mark.parametrize("code", EXCEPTIONS)
def test_an_exception_uses_a_retry(ground: Ground, code: str) -> None:
    ground.dag(one_task(code, "retries=1"))
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("t") == ["failed", "success"]
    error = ground.attempts("t")[0].error or ""
    assert error.startswith(EXCEPTIONS[code])


def test_an_exception_without_retries_fails_the_run(ground: Ground) -> None:
    ground.dag(one_task("raise ValueError('bad')"))
    assert ground.run("--run-id", "r").status == 1
    assert ground.outcomes("t") == ["failed"]
    assert (ground.task("t").state, ground.detail().run.state) == ("failed", "failed")


def test_sys_exit_zero_is_a_failure_that_is_tried_again(ground: Ground) -> None:
    """As in Airflow: whoever leaves half way has not returned."""
    ground.dag(one_task("sys.exit(0)", "retries=1"))
    assert ground.run("--run-id", "r").status == 0
    assert (ground.outcomes("t"), ground.marks) == (["failed", "success"], ["try 1", "try 2", "end"])
    assert ground.attempts("t")[0].error == "SystemExit: 0"


def test_results_with_tuples_and_a_template_told_once(ground: Ground) -> None:
    ground.dag("""
with DAG("d"):
    @task
    def one(day):
        return {"pair": (1, 2), "day": day}

    @task
    def two(pair, ti=None):
        mark([pair, ti.xcom_pull("one", key="pair"), ti.state])
        assert ti.dag_run.run_type == "manual"

    two(one("{{ ds }}")["pair"])
""")
    told = ground.run("--run-id", "r")
    assert told.status == 0, told.err
    assert ground.marks == ["[[1, 2], None, 'running']"]
    assert told.err.count("outlast: {{ ds }} in the arguments of task one is passed on as it is") == 1


def test_deaths_are_tried_again_so_often_and_then_fail(ground: Ground) -> None:
    ground.dag(one_task("os._exit(1)", "retries=5", "os._exit(1)"))
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__CRASH_RETRIES": "1"}).status == 1
    assert ground.outcomes("t") == ["crashed", "crashed"]
    assert ground.task("t").state == "failed"


def test_failures_and_deaths_are_counted_apart(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task(retries=1)
    def t(ti=None):
        if ti.try_number in (1, 3):
            os._exit(1)
        if ti.try_number == 2:
            raise ValueError
    t()
"""
    )
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__CRASH_RETRIES": "2"}).status == 0
    assert ground.outcomes("t") == ["crashed", "failed", "crashed", "success"]


@pytest.mark.parametrize("who", ["os.getpid()", "os.getppid()"])
def test_a_death_is_seen_within_a_second(ground: Ground, who: str) -> None:
    ground.dag(one_task(f"pid('died')\nos.kill({who}, signal.SIGKILL)\nforever()"))
    assert ground.run("--run-id", "r").status == 0
    died = (ground.folder / "died").stat().st_mtime
    first, second = ground.attempts("t")
    assert (first.ended_at or 0) / 1e6 - died < 1.0
    assert second.started_at / 1e6 - died < 1.5


# --- Delays ----------------------------------------------------------------------------------------------


def job(**more: object) -> Job:
    known = {"url": "", "scope": TaskScope("d", "r", "t"), "after": 0, "file": "", "params": "{}", "logical_date": 0}
    return Job(**known, logs="", lease=1.0, crash_retries=3, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "delays"),
    [
        ({}, [0, 0, 0]),
        ({"retry_delay": 5.0}, [5, 5, 5]),
        ({"retry_delay": 5.0, "exponential": True}, [5, 10, 20, 40]),
        ({"retry_delay": 5.0, "exponential": True, "max_retry_delay": 12.0}, [5, 10, 12, 12]),
        ({"retry_delay": 5.0, "max_retry_delay": 3.0}, [3, 3]),
        ({"retry_delay": 0.0, "exponential": True}, [0, 0]),
    ],
)
def test_how_long_a_retry_waits(settings: dict[str, object], delays: list[float]) -> None:
    assert [job(**settings).delay(failures) for failures in range(1, len(delays) + 1)] == delays


def test_a_delay_after_very_many_failures_is_still_a_number() -> None:
    assert job(retry_delay=1.0, exponential=True, max_retry_delay=60.0).delay(10**6) == 60.0


def test_how_long_an_attempt_after_a_death_waits() -> None:
    assert [job().crash_delay(crashes) for crashes in (1, 2, 3, 4, 7, 8, 10**6)] == [0, 1, 2, 4, 30, 30, 30]


def test_a_retry_is_not_begun_before_its_time(ground: Ground) -> None:
    ground.dag(one_task("raise ValueError", "retries=1, retry_delay=0.4"))
    assert ground.run("--run-id", "r").status == 0
    first, second = ground.attempts("t")
    waited = (second.started_at - (first.ended_at or 0)) / 1e6
    assert 0.39 <= waited < 1.5


# --- Time limits -----------------------------------------------------------------------------------------


def test_an_attempt_that_takes_too_long_fails_and_is_tried_again(ground: Ground) -> None:
    ground.dag(one_task("forever()", "retries=1, execution_timeout=0.5"))
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("t") == ["failed", "success"]
    assert ground.attempts("t")[0].error == "execution_timeout: still running after 0.5 s"
    assert ground.left_soon() == []


def test_an_attempt_that_will_not_stop_is_killed(ground: Ground) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '60'])\nforever()"
    ground.dag(one_task(code, "retries=1, execution_timeout=0.3"))
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("t") == ["failed", "success"]
    assert ground.left_soon() == []


def test_the_exception_with_which_an_attempt_is_stopped_can_be_cleaned_up_after(ground: Ground) -> None:
    code = "try:\n    forever()\nfinally:\n    mark('cleaned up')"
    ground.dag(one_task(code, "retries=1, execution_timeout=0.3"))
    assert ground.run("--run-id", "r").status == 0
    assert ground.marks == ["try 1", "cleaned up", "try 2", "end"]


# --- Groups ----------------------------------------------------------------------------------------------

GRANDCHILD = "pid('grandchild', subprocess.Popen(['sleep', '60']).pid)\n"


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "raise ValueError",
        "os._exit(1)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getppid(), signal.SIGKILL); forever()",
        "os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_process_in_the_group_dies_with_the_attempt(ground: Ground, end: str) -> None:
    ground.dag(one_task(GRANDCHILD + end, "retries=1"))
    assert ground.run("--run-id", "r").status == 0
    grandchild = ground.pid("grandchild")
    ground.until(lambda: not exists(grandchild), "the grandchild dies", 2.0)


@pytest.mark.parametrize("end", ["pass", "raise ValueError", "os.kill(os.getppid(), signal.SIGKILL); forever()"])
def test_a_detached_job_survives_the_attempt(ground: Ground, end: str) -> None:
    code = "pid('job', subprocess.Popen(['sleep', '60'], start_new_session=True).pid)\n"
    ground.dag(one_task(code + end, "retries=1"))
    assert ground.run("--run-id", "r").status == 0
    assert ground.left_soon(0.3) == [ground.pid("job")]


def test_a_process_forked_by_the_task_does_not_report_for_it(ground: Ground) -> None:
    code = """
if os.fork() == 0:
    sys.exit(0)
os.wait()
if os.fork() == 0:
    raise ValueError
os.wait()
pid('grandchild', subprocess.Popen(['sleep', '60']).pid)
time.sleep(0.3)
task_state_store.set("reached", True)
"""
    ground.dag(one_task(code))
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("t") == ["success"]
    assert (ground.state("t"), ground.marks) == ({"reached": True}, ["try 1", "end"])


def test_user_code_that_never_lets_go_of_the_interpreter_dies_with_its_supervisor(ground: Ground) -> None:
    """Nothing in Python can run in such a child, no other thread and no signal's handler."""
    code = "pid('child')\nos.kill(os.getppid(), signal.SIGKILL) if EARLY else None\nsum(range(10**12))"
    ground.dag("EARLY = False\n" + one_task(code))
    run = ground.start("--run-id", "r")
    child = ground.pid("child")
    row = ground.task("t")
    assert row.child is not None
    assert row.supervisor is not None
    os.kill(run.pid, signal.SIGSTOP)  # so that it cannot be the runner who ends the child
    os.kill(row.supervisor.pid, signal.SIGKILL)
    ground.until(lambda: not exists(child), "the child dies", 2.0)
    os.kill(run.pid, signal.SIGCONT)
    assert run.ends().status == 0
    assert ground.outcomes("t") == ["crashed", "success"]


def test_a_supervisor_whose_child_has_closed_its_pipes_does_not_spin(ground: Ground) -> None:
    ground.dag(one_task("os.closerange(3, 256)\npid('child')\ntime.sleep(1)\nos._exit(4)"))
    run = ground.start("--run-id", "r")
    ground.appears("child")
    supervisor = ground.task("t").supervisor
    assert supervisor is not None
    before = cpu_seconds(supervisor.pid)
    time.sleep(0.8)
    assert cpu_seconds(supervisor.pid) - before < 0.3
    assert run.ends().status == 0
    assert ground.outcomes("t") == ["crashed", "success"]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- Leases ----------------------------------------------------------------------------------------------

OBSERVE = """
pid('child')
wait_for('go')
try:
    task_state_store.get("key")
except StaleAttempt as stale:
    mark(f"read: {stale}")
try:
    task_state_store.set("key", "old")
except StaleAttempt as stale:
    mark(f"write: {stale}")
pid('observed')
"""


def supervised(ground: Ground, attempt: int = 1) -> TaskRow:
    return ground.until_state("t", "running", attempt)


def test_a_stopped_worker_is_replaced_and_what_it_does_afterwards_is_refused(short: Ground) -> None:
    """Contract 5.1, with real processes: stopped past its lease, continued after a newer attempt."""
    short.dag(one_task(OBSERVE, otherwise="task_state_store.set('key', 'new'); wait_for('observed')"))
    run = short.start("--run-id", "r")
    child, row = short.pid("child"), supervised(short)
    assert row.supervisor is not None
    for pid in (row.supervisor.pid, child):
        os.kill(pid, signal.SIGSTOP)
    supervised(short, 2)
    short.until(lambda: short.state("t") == {"key": "new"}, "the new attempt has written")
    (short.folder / "go").touch()
    os.kill(child, signal.SIGCONT)
    assert run.ends().status == 0
    assert short.outcomes("t") == ["crashed", "success"]
    assert short.attempts("t")[0].error == "no sign of life within its lease of 1 s"
    refused = "attempt 1 of d/r/t was superseded by attempt 2; it must stop"
    assert short.marks == ["try 1", "try 2", f"read: {refused}", f"write: {refused}", "end", "end"]
    assert short.state("t") == {"key": "new"}
    assert short.left_soon() == []


def test_what_still_works_for_a_lost_attempt_is_killed_before_the_next_one(short: Ground) -> None:
    short.dag(one_task("pid('child')\nforever()", otherwise="wait_for('go')"))
    run = short.start("--run-id", "r")
    child, row = short.pid("child"), supervised(short)
    assert row.supervisor is not None
    os.kill(row.supervisor.pid, signal.SIGSTOP)
    supervised(short, 2)
    assert not exists(child)
    os.kill(row.supervisor.pid, signal.SIGCONT)
    (short.folder / "go").touch()
    assert run.ends().status == 0
    assert short.outcomes("t") == ["crashed", "success"]
    assert short.left_soon() == []


def test_a_stopped_child_is_not_renewed(short: Ground) -> None:
    short.dag(one_task("pid('child')\nos.kill(os.getpid(), signal.SIGSTOP)\nforever()"))
    assert short.run("--run-id", "r").status == 0
    assert short.outcomes("t") == ["crashed", "success"]
    first, second = short.attempts("t")
    assert 0.6 < (second.started_at - first.started_at) / 1e6 < 3.0
    assert short.left_soon() == []


def test_a_child_continued_within_its_lease_goes_on(ground: Ground) -> None:
    ground.dag(one_task("pid('child')\nos.kill(os.getpid(), signal.SIGSTOP)"))
    run = ground.start("--run-id", "r")
    child = ground.pid("child")
    ground.until(lambda: all_stopped(child))
    os.kill(child, signal.SIGCONT)
    assert run.ends().status == 0
    assert ground.outcomes("t") == ["success"]


@pytest.mark.parametrize("order", ["runner first", "worker first"])
def test_a_machine_that_slept_loses_nothing(short: Ground, order: str) -> None:
    short.dag(one_task("pid('child')\nwait_for('go')"))
    run = short.start("--run-id", "r")
    child, row = short.pid("child"), supervised(short)
    assert row.supervisor is not None
    pids = [run.pid, row.supervisor.pid, child]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    short.until(lambda: all_stopped(*pids))
    time.sleep(1.3)
    for pid in pids if order == "runner first" else reversed(pids):
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
    time.sleep(0.7)
    (short.folder / "go").touch()
    assert run.ends().status == 0
    assert short.outcomes("t") == ["success"]
    assert short.marks == ["try 1", "end"]
