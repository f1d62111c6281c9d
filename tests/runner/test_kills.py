"""SIGKILL at every point of an attempt's and of a run's life; afterwards everything is as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from support.running import Ground, Told

DAG = """
with DAG("d"):

    @task(retries=1)
    def pages(task_state_store=None, ti=None):
        mark(f"pages {ti.try_number}")
        if os.environ.get("LONG") and first("long"):
            time.sleep(1)
        for page in range(task_state_store.get("page", 0) + 1, 6):
            mark(f"page {page}")
            task_state_store.set("page", page)
            if page == 3 and first("failed once"):
                raise ValueError("once")
        ti.xcom_push("seen", task_state_store.get("page"))
        return task_state_store.get("page")

    @task
    def total(n, ti=None):
        mark(f"total {ti.try_number}")
        return [n, ti.xcom_pull("pages", key="seen")]

    @task
    def broken():
        mark("broken")
        raise ValueError("always")

    @task
    def below():
        mark("below")

    @task(trigger_rule="all_done")
    def end(task_state_store=None, ti=None):
        mark(f"end {ti.try_number}")
        task_state_store.set("total", ti.xcom_pull("total"))

    broken() >> below() >> (last := end())
    total(pages()) >> last
"""

FAILED_ONCE = ["failed", "success"]
CRASHED_FIRST = ["crashed", "failed", "success"]

#: Where a worker is killed, and how the attempts of the task then end.
WORKER = {
    "before Begin 1 pages": FAILED_ONCE,
    "after Begin 1 pages": CRASHED_FIRST,
    "before Renew 1 pages": CRASHED_FIRST,
    "after Renew 1 pages": CRASHED_FIRST,
    "before Renew 2 pages": CRASHED_FIRST,
    "after Renew 2 pages": CRASHED_FIRST,
    "before Report.failed 1 pages": ["crashed", "success"],
    "after Report.failed 1 pages": FAILED_ONCE,
    "before Report.success 1 pages": ["failed", "crashed", "success"],
    "after Report.success 1 pages": FAILED_ONCE,
    "before Commit 2 pages": CRASHED_FIRST,
    "after Commit 2 pages": CRASHED_FIRST,
    "before PushResult 1 pages": ["failed", "crashed", "success"],
    "after PushResult 1 pages": ["failed", "crashed", "success"],
    "before PullResults 1 -": FAILED_ONCE,
    "after PullResults 1 -": FAILED_ONCE,
}


def run_with_kill(ground: Ground, at: str, *more: str, **env: str) -> Told:
    ground.dag(DAG)
    known = {"KILL_AT": at, "KILL_ONCE": str(ground.folder / "killed")}
    known["OUTLAST__STATE_STORE__BACKEND"] = "killing:KillingBackend"
    told = ground.run("--run-id", "r", *more, env=known | env)
    assert (ground.folder / "killed").exists(), "nothing was killed"
    return told


def check(ground: Ground) -> None:
    """The run has ended well, everything was done, and nothing that was finished was done again."""
    detail = ground.detail()
    states = {task.scope.task_id: task.state for task in detail.tasks}
    assert states == {
        "pages": "success",
        "total": "success",
        "broken": "failed",
        "below": "upstream_failed",
        "end": "success",
    }
    assert (detail.run.state, detail.run.holder, bool(detail.run.ended_at)) == ("success", None, True)
    assert ground.state("pages") == {"page": 5}
    assert ground.state("end") == {"total": [5, 5]}
    for task_id in states:
        ended = ground.outcomes(task_id)
        assert "running" not in ended
        assert ended.count("success") == (states[task_id] == "success")
        assert not ended or ended[-1] == states[task_id]
    counts = ground.counts
    assert [counts[f"page {page}"] for page in range(1, 6)] in ([1, 1, 1, 1, 1], *AGAIN)
    assert counts["below"] == 0
    assert ground.left_soon() == []


#: One page may have been done and not been recorded.
AGAIN = [[1 + (page == again) for page in range(1, 6)] for again in range(1, 6)]


@pytest.mark.parametrize("at", WORKER)
def test_a_worker_killed(ground: Ground, at: str) -> None:
    if "Renew 2" in at:
        ground.env |= {"LONG": "1", "OUTLAST__RUNNER__LEASE_SECONDS": "2"}
    assert run_with_kill(ground, at).status == 0
    check(ground)
    assert ground.outcomes("pages") == WORKER[at]
    assert ground.outcomes("total") == (["crashed", "success"] if "PullResults" in at else ["success"])
    begun = [line for line in ground.marks if line.startswith("pages")]
    assert len(set(begun)) == len(begun)


@pytest.mark.parametrize("at", ["before Commit 2 pages", "after Commit 2 pages", "before PushResult 1 pages"])
def test_a_supervisor_killed_while_its_child_asks_the_store(ground: Ground, at: str) -> None:
    assert run_with_kill(ground, at, KILL_WHOM="parent").status == 0
    check(ground)
    assert ground.outcomes("pages") == WORKER[at]
    crashed = next(attempt for attempt in ground.attempts("pages") if attempt.state == "crashed")
    assert crashed.error == "its supervisor was killed by SIGKILL"


RUNNER = ["StartRun 1 -", "HoldRun 1 -", "GetRun 1 -", "GetRun 2 -", "GetRun 3 -", "GetRun 5 -", "Resolve 1 below"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", RUNNER)
def test_a_runner_killed(ground: Ground, point: str, when: str) -> None:
    told = run_with_kill(ground, f"{when} {point}")
    assert told.status == -9
    assert ground.run("--run-id", "r").status == 0
    check(ground)
    assert {attempt.state for attempt in ground.attempts("pages")} <= {"failed", "paused", "success"}
    assert ground.outcomes("pages").count("failed") <= 1


def test_a_runner_killed_before_it_has_said_that_the_run_has_ended(ground: Ground) -> None:
    assert run_with_kill(ground, "before ReleaseRun 1 -").status == -9
    before = ground.marks
    assert ground.run("--resume").status == 0
    check(ground)
    assert ground.marks == before


def test_a_runner_killed_after_it_has_said_that_the_run_has_ended(ground: Ground) -> None:
    assert run_with_kill(ground, "after ReleaseRun 1 -").status == -9
    check(ground)
    told = ground.run("--run-id", "r")
    assert (told.status, "has ended (success)" in told.err) == (9, True)


def test_resume_goes_on_after_a_runner_was_killed(ground: Ground) -> None:
    assert run_with_kill(ground, "before GetRun 4 -").status == -9
    told = ground.run("--resume")
    assert told.status == 0
    assert "is gone; taking its run over" in told.err
    check(ground)


CHAOS = """
with DAG("d"):
    @task
    def part(number, task_state_store=None):
        for page in range(task_state_store.get("page", 0) + 1, PAGES + 1):
            time.sleep(0.02)
            with task_state_store.transaction() as tx:
                tx.set("page", page)
                tx.increment("sum", page)

    @task
    def whole(ti=None, task_state_store=None):
        task_state_store.increment("times")

    last = whole()
    for number in range(4):
        part.override(task_id=f"part{number}")(number) >> last
"""


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.soak)])
def test_any_process_of_a_run_killed_at_any_time(ground: Ground, kills: int) -> None:
    """What is written in a transaction is there exactly once, whoever died when."""
    ground.env["OUTLAST__RUNNER__CRASH_RETRIES"] = "1000"
    pages = 40 + 5 * kills
    ground.dag(f"PAGES = {pages}\n{CHAOS}")
    kill_some(ground, kills)
    if ground.programs[-1].ends(300).status != 0:
        assert ground.run("--run-id", "r", seconds=300).status == 0
    for number in range(4):
        assert ground.state(f"part{number}") == {"page": pages, "sum": pages * (pages + 1) // 2}
        outcomes = ground.outcomes(f"part{number}")
        assert outcomes[-1] == "success"
        assert set(outcomes[:-1]) <= {"crashed", "paused"}
    assert ground.detail().run.state == "success"
    assert ground.outcomes("whole").count("success") == 1
    assert ground.left_soon() == []


def kill_some(ground: Ground, kills: int) -> None:
    """Kill processes of a run, now this one, now that one; a killed runner is started again."""
    chance = random.Random(kills)
    program = ground.start("--run-id", "r")
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 0.6))
        if left := ground.left():
            with suppress(ProcessLookupError):
                os.kill(chance.choice(left), signal.SIGKILL)
        if program.process.poll() == 0:
            return
        if program.process.poll() is not None:
            program = ground.start("--run-id", "r")
