"""`outlast run` from beginning to end: what it shows, how it exits, what others may do to it, and many tasks."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.run_requests import CancelRun, ClearTasks, MarkTask
from outlast.values import TaskScope, Writer
from support.running import MARK, PROGRAM, Ground

ANN = Writer("person", name="ann@desk")

ONE = """
with DAG("d"):
    @task
    def t(task_state_store=None, ti=None):
        mark(f"try {ti.try_number}")
        if first("once"):
            pid("child")
            wait_for("go")
        mark("end")

    @task(trigger_rule="all_done")
    def after():
        mark("after")

    t() >> after()
"""


# --- From beginning to end -------------------------------------------------------------------------------


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


def test_what_a_run_prints_where_there_is_no_terminal(ground: Ground) -> None:
    ground.dag(ONE)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    ground.until(lambda: "t: attempt 1 runs" in program.err)
    (ground.folder / "go").touch()
    told = program.ends()
    lines = [re.sub(r"\d\d:\d\d:\d\d", "TIME", re.sub(r"\d+\.\d s", "N s", line)) for line in told.err.splitlines()]
    shown = [line for line in lines if "after: attempt 1 runs" not in line]
    assert (told.status, shown[0]) == (0, f"outlast: created a new store at {ground.place}")
    assert shown[1:] == [
        "outlast: run d/r",
        "TIME t: attempt 1 runs",
        "TIME t: success after N s (attempt 1)",
        "TIME after: success after N s (attempt 1)",
    ]
    assert "\x1b" not in told.err


def test_a_failure_shows_the_end_of_its_log(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def t():
        for line in range(100):
            print(f"line {line}")
        print("red \\x1b[31m", file=sys.stderr)
        raise ValueError("that is why")
    t()
"""
    )
    told = ground.run("--run-id", "r")
    assert told.status == 1
    assert "t: failed for good at attempt 1: ValueError: that is why" in told.err
    assert "--- the end of" in told.err
    assert "line 99\n" in told.err
    assert "line 10\n" not in told.err
    assert "Traceback" in told.err
    assert "\x1b" not in told.err
    log = ground.folder / "s.db.logs" / "d" / "r" / "t" / "attempt-1.log"
    assert log.read_text().splitlines()[:100] == [f"line {line}" for line in range(100)]


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
    ground.dag(ONE)
    told = ground.run("--run-id", "r", env={"OUTLAST__RUNNER__CRASH_RETRIES": "0"})
    assert told.status == 1
    assert ground.outcomes("t") == ["crashed"]
    error = ground.attempts("t")[0].error or ""
    assert error.startswith("its supervisor died (exit status 1): NotADirectoryError")


def test_workers_that_cannot_start_pause_the_run(ground: Ground) -> None:
    """The store goes through the runner, and not through a worker."""
    ground.dag(ONE)
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


# --- On a terminal ---------------------------------------------------------------------------------------


class Terminal:
    """An `outlast run` on a terminal of its own, whose Ctrl-C it gets."""

    def __init__(self, ground: Ground, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 120))
        self.before = termios.tcgetattr(slave)
        take = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", take, *PROGRAM, "run", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=ground.env | {"TERM": "xterm-256color"},
            cwd=ground.folder,
        )
        self.slave, self.shown = slave, ""

    def reads(self, wanted: str, seconds: float = 30.0) -> None:
        """Read until something is shown."""
        deadline = time.monotonic() + seconds
        while wanted not in self.shown:
            assert time.monotonic() < deadline, (wanted, self.shown)
            self._read(0.1)

    def _read(self, seconds: float) -> None:
        if select.select([self.master], [], [], seconds)[0]:
            self.shown += os.read(self.master, 65536).decode(errors="replace")

    def types(self, text: bytes) -> None:
        os.write(self.master, text)

    def ends(self) -> int:
        while self.process.poll() is None:
            self._read(0.05)
        self._read(0.1)
        return self.process.returncode

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)


SHOWN = """
with DAG("d"):
    @task(retries=1)
    def load(task_state_store=None, ti=None):
        if ti.try_number == 1:
            raise ValueError("first")
        task_state_store.set("progress", {"done": 5, "total": 10})
        pid("child")
        wait_for("go")

    @task
    def fails():
        print("what it printed")
        raise ValueError("that is why")

    load() >> fails()
"""


def test_a_terminal_shows_a_live_table_and_then_the_failure(ground: Ground) -> None:
    ground.dag(SHOWN)
    terminal = Terminal(ground, "d.py", "--run-id", "r")
    try:
        for text in ("▶ running", "try 2", "█" * 10 + "░" * 10, "5/10"):
            terminal.reads(text)
        (ground.folder / "go").touch()
        assert terminal.ends() == 1
        for text in ("✓ success", "✗ failed", "what it printed", "ValueError: that is why"):
            assert text in terminal.shown
        assert termios.tcgetattr(terminal.slave) == terminal.before
    finally:
        terminal.close()


def test_ctrl_c_on_a_terminal_is_a_pause_and_leaves_the_terminal_as_it_was(ground: Ground) -> None:
    ground.dag(SHOWN)
    terminal = Terminal(ground, "d.py", "--run-id", "r")
    try:
        ground.appears("child")
        terminal.reads("5/10")
        terminal.types(b"\x03")
        assert terminal.ends() == 75
        assert "paused; to go on: outlast run d.py --run-id r" in terminal.shown
        assert termios.tcgetattr(terminal.slave) == terminal.before
        assert terminal.shown.rfind("\x1b[?25h") > terminal.shown.rfind("\x1b[?25l"), "the cursor is shown again"
    finally:
        terminal.close()
    assert ground.outcomes("load") == ["failed", "paused"]
    assert ground.left_soon() == []


def test_a_run_whose_terminal_goes_away_is_paused(ground: Ground) -> None:
    ground.dag(SHOWN)
    terminal = Terminal(ground, "d.py", "--run-id", "r")
    try:
        ground.appears("child")
        os.close(terminal.master)
        assert terminal.process.wait(30) == 75
    finally:
        terminal.master = os.open(os.devnull, os.O_RDONLY)
        terminal.close()
    assert ground.detail().run.state == "paused"
    assert ground.outcomes("load") == ["failed", "paused"]
    assert ground.left_soon() == []


def test_a_run_whose_output_nobody_reads_goes_on(ground: Ground) -> None:
    ground.dag(ONE)
    read, write = os.pipe()
    process = subprocess.Popen(
        [*PROGRAM, "run", "d.py", "--run-id", "r"], env=ground.env, cwd=ground.folder, stdout=write, stderr=write
    )
    os.close(write)
    ground.appears("child")
    os.close(read)
    (ground.folder / "go").touch()
    assert process.wait(30) == 0
    assert ground.marks == ["try 1", "end", "after"]


# --- What others do to it --------------------------------------------------------------------------------


def test_a_run_cancelled_by_another_process_stops_soon(ground: Ground) -> None:
    ground.dag(ONE)
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
    ground.dag(ONE)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    assert ground.command("runs", "cancel", "d/r", "--yes").status == 0
    assert program.ends().status == 3
    assert ground.detail().run.state == "cancelled"


def test_a_task_cancelled_while_it_runs_counts_as_failed(ground: Ground) -> None:
    ground.dag(ONE)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    ground.send(MarkTask(TaskScope("d", "r", "t"), "cancelled", ANN))
    assert program.ends().status == 0, "an all_done task below it has succeeded"
    assert ground.task("t").state == "cancelled"
    assert ground.marks == ["try 1", "after"]


def test_a_task_cleared_while_it_runs_is_stopped_and_run_again(ground: Ground) -> None:
    ground.dag(ONE.replace('pid("child")', "task_state_store.set('key', 'kept')\n            pid('child')"))
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
    ground.dag(ONE)
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
    short.dag(ONE)
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
    ground.dag(ONE)
    program = ground.start("--run-id", "r")
    ground.appears("child")
    assert ground.command("runs", "rm", "d/r", "--yes", "--force").status == 0
    told = program.ends()
    assert (told.status, "there is no run d/r" in told.err) == (4, True)
    assert ground.left_soon() == []


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
    ground.dag(ONE)
    (ground.folder / "go").touch()
    path = os.pathsep.join([str(ground.folder), ground.env["PYTHONPATH"]])
    env = {"OUTLAST__STATE_STORE__BACKEND": "mine.Mine", "PYTHONPATH": path, "ASKED": str(ground.folder / "asked")}
    assert ground.run("--run-id", "r", env=env).status == 0
    asked = (ground.folder / "asked").read_text().split("\n")
    for line in ("StartRun r", "ReleaseRun r", "Begin outlast.runner.worker", "Report outlast.runner.worker"):
        assert line in asked


def test_processes_of_a_run_are_found_by_their_mark(ground: Ground) -> None:
    """What the other tests say of processes left over would otherwise always hold."""
    ground.dag(ONE)
    program = ground.start("--run-id", "r")
    child = ground.pid("child")
    row = ground.task("t")
    assert row.supervisor is not None
    assert sorted(ground.left()) == sorted([program.pid, row.supervisor.pid, child])
    assert MARK in ground.env
    (ground.folder / "go").touch()
    assert program.ends().status == 0


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
    ground.dag(ONE)
    told = ground.run("--store", ":memory:")
    assert (told.status, "which a store in memory cannot reach" in told.err) == (78, True)
