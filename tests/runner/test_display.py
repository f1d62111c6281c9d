"""What `outlast run` shows: lines where there is no terminal, a table on one, and nothing that could stop the run."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from contextlib import suppress

from support.running import PROGRAM, WAITS, Ground


def test_what_a_run_prints_where_there_is_no_terminal(ground: Ground) -> None:
    ground.dag(WAITS)
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
        "outlast: run d/r: success",
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


def test_a_task_that_fails_without_an_attempt_is_not_said_to_have_had_one(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def number():
        return 7

    @task
    def each(item): ...

    each.expand(item=number())
"""
    )
    told = ground.run("--run-id", "r")
    assert told.status == 1
    assert "each: failed for good before its first attempt: " in told.err
    assert "attempt 0" not in told.err


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
    ground.dag(WAITS)
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


def test_lines_name_their_run_while_several_are_active(ground: Ground) -> None:
    ground.dag(
        """
for name in "ab":
    with DAG(name):
        @task
        def load():
            wait_for("go")
        load()
"""
    )
    program = ground.start("--run-id", "r")
    ground.until(lambda: "a/r load: attempt 1 runs" in program.err and "b/r load: attempt 1 runs" in program.err)
    (ground.folder / "go").touch()
    told = program.ends()
    assert told.status == 0
    assert " a/r load: success after " in told.err or " b/r load: success after " in told.err


def test_a_value_that_cannot_be_kept_is_shown_at_the_line_that_wrote_it(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def writes(task_state_store=None):
        task_state_store.set("when", {"t": [[[[[[{1}]]]]]]})

    @task
    def returns():
        return {1}

    writes()
    returns()
"""
    )
    told = ground.run("--run-id", "r")
    assert told.status == 1
    assert 'task_state_store.set("when", {"t": [[[[[[{1}]]]]]]})' in told.err
    assert "InvalidValue: key 'when': $.t[0][0][0][0][0][0] is a set; store sorted(value)" in told.err
    assert "InvalidValue: the result of task returns: $ is a set; store sorted(value)" in told.err
    assert "codec.py" not in told.err
    assert told.err.splitlines()[-1].endswith("failed; to run them again: outlast tasks clear d/r --failed")


def test_a_success_with_failed_tasks_says_so(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task
    def load():
        raise ValueError("no")

    @task(trigger_rule="all_done")
    def after(loaded=None): ...

    load() >> after()
"""
    )
    told = ground.run("--run-id", "r")
    last = "run d/r: success; though 1 task instance failed; to run it again: outlast tasks clear d/r/load"
    assert (told.status, told.err.splitlines()[-1]) == (0, f"outlast: {last}")


def test_a_sensor_that_looks_again_at_once_does_so_now(ground: Ground) -> None:
    ground.dag(
        """
with DAG("d"):
    @task.sensor(poke_interval=0.1, timeout=30, mode="reschedule")
    def look():
        return not first("looked")
    look()
"""
    )
    told = ground.run("--run-id", "r")
    assert told.status == 0
    assert "look: attempt 1 looks again now\n" in told.err
