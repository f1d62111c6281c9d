"""`outlast run` from beginning to end: results, exit statuses, many tasks, a backend of one's own."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.running import WAITS, Ground


def test_results_go_downstream_and_the_store_remembers_everything(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d", params={"n": 2}):
    @task
    def numbers(params=None, ti=None):
        ti.xcom_push("name", "two")
        return {"n": params["n"], "half": 1.5, "none": None}

    @task
    def double(found, half, ti=None, run_id=None):
        mark([found, half, ti.xcom_pull("numbers", key="name"), run_id])

    found = numbers()
    double(found, found["half"])
"""
    )
    assert ground.run("--run-id", "r", "--param", "n=3").status == 0
    assert ground.marks == ["[{'n': 3, 'half': 1.5, 'none': None}, 1.5, 'two', 'r']"]
    detail = ground.detail()
    assert (detail.run.state, detail.run.params, detail.run.holder) == ("success", '{"n":3}', None)
    assert [(task.scope.task_id, task.state, task.attempt) for task in detail.tasks] == [
        ("numbers", "success", 1),
        ("double", "success", 1),
    ]
    assert ground.left_soon() == []


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [("pass", 0, "success"), ("raise ValueError", 1, "failed"), ("os._exit(1)", 1, "failed")],
)
def test_the_exit_status_tells_how_a_run_ended(ground: Ground, code: str, status: int, state: str) -> None:
    ground.dag(f'with DAG("d"):\n    @task\n    def t():\n        {code}\n    t()\n')
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__CRASH_RETRIES": "0"}).status == status
    assert ground.detail().run.state == state


def test_a_task_whose_log_cannot_be_written_says_so(ground: Ground) -> None:
    (ground.folder / "s.db.logs").write_text("in the way")
    ground.dag(WAITS)
    told = ground.run("--run-id", "r")
    assert (told.status, "[runner] logs_dir" in told.err) == (78, True)


def test_workers_that_cannot_start_pause_the_run(ground: Ground) -> None:
    """The store goes through the runner, and not through a worker."""
    ground.dag(WAITS)
    (ground.folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if sys.orig_argv[-1] == 'outlast.runner.worker':\n"
        "    os.write(2, b'cannot start')\n"
        "    os._exit(5)\n"
    )
    path = os.pathsep.join([str(ground.folder), ground.env["PYTHONPATH"]])
    told = ground.run("--run-id", "r", env={"PYTHONPATH": path})
    assert (told.status, "d/r/t: the worker could not start: cannot start" in told.err) == (75, True)
    assert ground.outcomes("t") == []
    (ground.folder / "go").touch()
    assert ground.run("--run-id", "r").status == 0


def test_large_parameters_reach_the_task_at_once(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d", params={"text": "x" * 1_000_000}):
    @task
    def t(params=None):
        mark(len(params["text"]))
    t()
"""
    )
    assert ground.run("--run-id", "r", seconds=10).status == 0
    assert ground.marks == ["1000000"]


def test_a_store_in_memory_cannot_hold_a_run(ground: Ground) -> None:
    ground.dag(WAITS)
    told = ground.run("--store", ":memory:")
    assert (told.status, "which a store in memory cannot reach" in told.err) == (78, True)


# --- Many tasks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        "ends = [step.override(task_id=f't{n}')() for n in range(COUNT)]\n    done(ends)",
        "above = step.override(task_id='t0')()\n    for n in range(1, COUNT // 3):\n"
        "        below = step.override(task_id=f't{n}')()\n        above >> below\n        above = below\n"
        "    done([above])",
    ],
    ids=["fan-in", "chain"],
)
def test_many_tasks(ground: Ground, shape: str, soak: bool) -> None:
    ground.dag(
        f"""
COUNT = {300 if soak else 45}
with DAG("d"):
    @task
    def step(ti=None):
        mark(ti.task_id)
        return 1

    @task
    def done(numbers):
        mark(f"sum {{sum(numbers)}}")

    {shape}
"""
    )
    assert ground.run("--run-id", "r", seconds=600 if soak else 100).status == 0
    assert set(ground.counts.values()) == {1}
    assert ground.marks[-1] == f"sum {1 if 'above' in shape else len(ground.marks) - 1}"
    assert all(ground.outcomes(task.scope.task_id) == ["success"] for task in ground.detail().tasks)


def test_no_more_tasks_run_at_once_than_allowed(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def t(ti=None):
        mark("+1")
        time.sleep(0.1)
        mark("-1")
    for n in range(8):
        t.override(task_id=f"t{n}")()
"""
    )
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__PARALLELISM": "3"}).status == 0
    at_once = [sum(map(int, ground.marks[: place + 1])) for place in range(len(ground.marks))]
    assert 1 < max(at_once) <= 3


WAYS = st.sampled_from(["", "", "raise ValueError", "os._exit(1)", "os.kill(os.getppid(), 9); forever()"])


#: A task: what each attempt of it does, which ones it waits for, its retries and its trigger rule.
Spec: TypeAlias = tuple[list[str], list[int], int, str]


@st.composite
def graphs(draw: st.DrawFn) -> list[Spec]:
    tasks = []
    for number in range(draw(st.integers(2, 5))):
        ways = draw(st.lists(WAYS, min_size=1, max_size=3))
        above = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=2)) if number else []
        rule = draw(st.sampled_from(["all_success", "all_done", "none_failed"]))
        tasks.append((ways, above, draw(st.integers(0, 1)), rule))
    return tasks


@settings(
    max_examples=60 if os.environ.get("OUTLAST_SOAK") == "1" else 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tasks=graphs(), kill=st.booleans())
def test_any_graph_with_any_failures_ends(tasks: list[Spec], kill: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder) / "ground")
        try:
            ground.dag(graph_source(tasks))
            ended_before = False
            if kill:
                program = ground.start("--run-id", "r")
                ground.until(lambda: ground.marks or program.process.poll() is not None)
                program.signal(signal.SIGKILL)
                ended_before = program.ends().status in (0, 1)
            told = ground.run("--run-id", "r")
            check_graph(ground, tasks, told.status, ended_before)
        finally:
            ground.close()


def graph_source(tasks: list[Spec]) -> str:
    lines = ["made = []", 'with DAG("d"):']
    for number, (ways, above, retries, rule) in enumerate(tasks):
        lines += [f"    @task(task_id='t{number}', retries={retries}, trigger_rule='{rule}')", "    def step(ti=None):"]
        lines += [f"        mark(f't{number}')", f"        exec(dict(enumerate({ways!r}, 1)).get(ti.try_number, ''))"]
        lines += ["    made.append(step())", *[f"    made[{one}] >> made[-1]" for one in above]]
    return "\n".join(lines) + "\n"


def check_graph(ground: Ground, tasks: list[Spec], status: int, ended_before: bool) -> None:
    states = [ground.task(f"t{number}").state for number in range(len(tasks))]
    for number, (_, above, retries, rule) in enumerate(tasks):
        ended = ground.outcomes(f"t{number}")
        assert states[number] in ("success", "failed", "upstream_failed")
        assert ended.count("success") == (states[number] == "success")
        assert ended.count("failed") <= retries + 1
        assert ended == [] if states[number] == "upstream_failed" else ended[-1] == states[number]
        given_up = rule != "all_done" and any(states[one] != "success" for one in above)
        assert given_up == (states[number] == "upstream_failed")
        assert ground.counts[f"t{number}"] <= len(ended)
    leaves = set(range(len(tasks))) - {one for _, above, _, _ in tasks for one in above}
    failed = any(states[leaf] != "success" for leaf in leaves)
    assert ground.detail().run.state == ("failed" if failed else "success")
    assert status == (9 if ended_before else int(failed))
    assert ground.left_soon() == []


# --- A backend of one's own ------------------------------------------------------------------------------


def test_the_backend_of_ones_own_is_used_by_all_processes_of_a_run(ground: Ground) -> None:
    (ground.folder / "mine.py").write_text(
        """
import os, sys
from outlast.backends.sqlite import SQLiteBackend

class Mine(SQLiteBackend):
    def send(self, request):
        with open(os.environ["ASKED"], "a") as file:
            file.write(f"{type(request).__name__} {sys.orig_argv[-1]}\\n")
        return super().send(request)
"""
    )
    ground.dag(WAITS)
    (ground.folder / "go").touch()
    path = os.pathsep.join([str(ground.folder), ground.env["PYTHONPATH"]])
    env = {"OUTLAST__STATE_STORE__BACKEND": "mine.Mine", "PYTHONPATH": path, "ASKED": str(ground.folder / "asked")}
    assert ground.run("--run-id", "r", env=env).status == 0
    asked = (ground.folder / "asked").read_text().split("\n")
    for line in ("StartRun r", "ReleaseRun r", "Begin outlast.runner.worker", "Report outlast.runner.worker"):
        assert line in asked


def test_processes_of_a_run_are_found_by_their_mark(ground: Ground) -> None:
    """What the other tests say of processes left over would otherwise always hold."""
    ground.dag(WAITS)
    program = ground.start("--run-id", "r")
    child = ground.pid("child")
    row = ground.task("t")
    assert row.supervisor is not None
    assert sorted(ground.left()) == sorted([program.pid, row.supervisor.pid, child])
    (ground.folder / "go").touch()
    assert program.ends().status == 0


# --- want of room ------------------------------------------------------------------------------------------------

ONE_AFTER_THE_OTHER = """
with DAG("d"):

    @task
    def early():
        mark("early")
        wait_for("go")

    @task
    def late():
        mark("late")

    early() >> late()
"""


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="optional: only Linux changes another process's limits")
def test_a_worker_for_which_there_is_no_room_is_started_later(ground: Ground) -> None:
    """A system that has no more processes or files for a moment does not end every run there is."""
    ground.dag(ONE_AFTER_THE_OTHER)
    program = ground.start("--run-id", "r")
    ground.appears("marks")
    soft, hard = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (0, hard))
    (ground.folder / "go").touch()
    ground.until(lambda: "no worker can be started (Too many open files); trying again in 2 s" in program.err, "said")
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (soft, hard))
    told = program.ends()
    assert told.status == 0, told.err
    assert ground.marks == ["early", "late"]
    assert "ResourceWarning" not in told.err
