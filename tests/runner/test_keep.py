"""State that is removed with a success, never before it and never without it; and runners that stay: `--keep`."""

from __future__ import annotations

import signal

import pytest

from support.running import Ground

# --- clear_on_success ------------------------------------------------------------------------------------------

#: Both ways of asking for it: for one task, and for all.
WAYS = {
    "task": ("@task(clear_state_on_success=True)", {}),
    "config": ("@task", {"OUTLAST__STATE_STORE__CLEAR_ON_SUCCESS": "true"}),
}
CLEARED = """
from outlast import Asset

def store(task_state_store, asset_state_store, ti):
    mark(f"{ti.try_number} found {sorted(task_state_store.items())}")
    task_state_store.set("page", ti.try_number)
    if ti.try_number > 1:
        task_state_store.set("again", True)
    asset_state_store.set("watermark", ti.try_number)

with DAG("d"):
    DECORATED
    def t(task_state_store=None, asset_state_store=None, ti=None):
        store(task_state_store, asset_state_store, ti)
        if first("once"):
            raise ValueError("once")

    t.override(retries=1, retry_delay=0, outlets=[Asset("orders")])()
"""


def cleared(way: str) -> str:
    return CLEARED.replace("DECORATED", WAYS[way][0])


@pytest.mark.parametrize("way", WAYS)
def test_a_success_removes_the_state_and_a_failure_does_not(ground: Ground, way: str) -> None:
    ground.dag(cleared(way))
    assert ground.run("--run-id", "r", env=WAYS[way][1]).status == 0
    assert ground.marks == ["1 found []", "2 found [('page', 1)]"]
    assert ground.state("t") == {}
    assert ground.store.asset("orders").get("watermark") == 2


def test_a_task_may_keep_what_the_configuration_removes(ground: Ground) -> None:
    ground.dag(CLEARED.replace("DECORATED", "@task(clear_state_on_success=False)"))
    assert ground.run("--run-id", "r", env=WAYS["config"][1]).status == 0
    assert ground.state("t") == {"page": 2, "again": True}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_supervisor_killed_at_its_report_of_success(ground: Ground, way: str, when: str) -> None:
    """Before it, the next attempt finds everything; after it, nothing is left and nothing runs again."""
    ground.dag(cleared(way))
    kill = {"KILL_AT": f"{when} Report.success 1 t", "KILL_ONCE": str(ground.folder / "killed")}
    kill["OUTLAST__STATE_STORE__BACKEND"] = "killing:KillingBackend"
    assert ground.run("--run-id", "r", env=kill | WAYS[way][1]).status == 0
    assert (ground.folder / "killed").exists()
    found = ["1 found []", "2 found [('page', 1)]"]
    if when == "before":
        found.append("3 found [('again', True), ('page', 2)]")
    assert ground.marks == found
    assert ground.outcomes("t") == ["failed", *(["crashed"] if when == "before" else []), "success"]
    assert ground.state("t") == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_state_is_there_exactly_while_there_is_no_success(ground: Ground, when: str) -> None:
    """The last attempt dies at its report, and no other follows: what is in the store at that very moment."""
    ground.dag(cleared("task"))
    kill = {"KILL_AT": f"{when} Report.success 1 t", "KILL_ONCE": str(ground.folder / "killed")}
    kill |= {"OUTLAST__STATE_STORE__BACKEND": "killing:KillingBackend", "OUTLAST__RUNNER__CRASH_RETRIES": "0"}
    status = ground.run("--run-id", "r", env=kill).status
    state, entries = ground.task("t").state, ground.state("t")
    assert (status, state, entries) == (
        (1, "failed", {"page": 2, "again": True}) if when == "before" else (0, "success", {})
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", ["success", "failed"])
def test_marking_a_success_removes_the_state(ground: Ground, way: str, state: str) -> None:
    ground.dag(cleared(way).replace('if first("once")', "if True"))
    ground.env |= WAYS[way][1]
    assert ground.run("--run-id", "r").status == 1
    assert ground.state("t") == {"page": 2, "again": True}
    assert ground.command("tasks", "mark", state, "d/r/t").status == 0
    assert ground.task("t").state == state
    assert ground.state("t") == ({} if state == "success" else {"page": 2, "again": True})


# --- discard_state_on_clear --------------------------------------------------------------------------------------

DISCARDS = """
with DAG("d"):
    @task(discard_state_on_clear=True)
    def fresh(task_state_store=None):
        mark(f"fresh {task_state_store.increment('times')}")

    @task
    def kept(task_state_store=None):
        mark(f"kept {task_state_store.increment('times')}")

    fresh(), kept()
"""


def test_a_clear_discards_the_state_of_a_task_that_wants_it(ground: Ground) -> None:
    ground.dag(DISCARDS)
    assert ground.run("--run-id", "r").status == 0
    for name in ("fresh", "kept"):
        assert ground.command("tasks", "clear", f"d/r/{name}", "--yes").status == 0
    assert ground.run("--run-id", "r").status == 0
    assert sorted(ground.marks) == ["fresh 1", "fresh 1", "kept 1", "kept 2"]


# --- keep --------------------------------------------------------------------------------------------------------

KEPT = """
with DAG("d"):
    @task
    def t(ti=None):
        mark(f"t {ti.try_number}")
        if not (HERE / "well").exists():
            raise ValueError("not yet")

    @task
    def after():
        mark("after")

    t() >> after()
"""


def test_a_runner_that_stays_runs_what_is_cleared_and_what_is_marked(ground: Ground) -> None:
    ground.dag(KEPT)
    program = ground.start("--keep", "--run-id", "r")
    ground.until_state("after", "upstream_failed", 0)
    ground.until(lambda: ground.detail().run.state == "failed", "the run ends")
    assert ground.command("tasks", "mark", "success", "d/r/t").status == 0
    ground.until(lambda: ground.marks == ["t 1", "after"], "what waited for the marked task runs")
    ground.until(lambda: ground.detail().run.state == "success", "the run ends again")
    (ground.folder / "well").touch()
    assert ground.command("tasks", "clear", "d/r/t", "--downstream", "--yes").status == 0
    ground.until(lambda: ground.marks[2:] == ["t 2", "after"], "what was cleared runs, and what is downstream of it")
    ground.until(lambda: ground.detail().run.state == "success", "the run ends once more")
    assert program.process.poll() is None
    program.signal(signal.SIGINT)
    assert program.ends().status == 0
    assert ground.detail().run.holder is None
    assert ground.left_soon() == []


def test_ctrl_c_pauses_what_a_runner_that_stays_is_running(ground: Ground) -> None:
    ground.dag('with DAG("d"):\n    @task\n    def t():\n        pid("child")\n        forever()\n    t()')
    program = ground.start("--keep", "--run-id", "r")
    ground.pid("child")
    program.signal(signal.SIGINT)
    told = program.ends()
    assert (told.status, "paused; to go on" in told.err) == (75, True)
    assert ground.outcomes("t") == ["paused"]
