"""What waiting costs: a run with many deferred tasks, its runner and the process that runs their triggers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from measure import Line, Setting, Target, spread
from stores import connect

from outlast.deferral_requests import Deferral
from outlast.requests import Fence
from outlast.run_requests import Begin, ProcessRef, ReleaseRun, Report, RunDetail, StartRun, TaskSpec

TASKS = 1000

_NOBODY = ProcessRef("bench.test", 1, "")
_FILE = """
from outlast import DAG, task
with DAG("d"):
    @task
    def wait(n):
        pass
    wait.expand(n=list(range({tasks})))
"""
_TRIGGER = "outlast.dags.triggers.DateTimeTrigger"
_ARGUMENTS = '{"moment":{"$datetime":"2999-01-01T00:00:00+00:00"}}'


class Use(NamedTuple):
    """What the processes of a run have used: seconds of CPU, and MiB of memory at the moment."""

    cpu: float
    memory: float


def waiting(setting: Setting) -> list[Line]:
    """Measure a run that waits; looks at processes in /proc, so there is nothing to measure elsewhere."""
    if not Path("/proc/self/stat").exists():
        return []
    _defer(setting)
    seconds = 5.0 if setting.quick else 15.0
    runner = subprocess.Popen(
        [sys.executable, "-P", "-m", "outlast.cli", "run", "d.py", "--run-id", "r", "--store", "s.db"],
        cwd=setting.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        triggerer = _triggerer_of(runner.pid)
        _until_all_wait(setting)
        rounds = [_watch(runner.pid, triggerer, seconds) for _ in range(1 if setting.quick else 3)]
    finally:
        runner.terminate()
        runner.wait()
    both = [(one.cpu + other.cpu, one.memory + other.memory) for one, other in rounds]
    what = f"{TASKS:,} deferred tasks"
    return [
        Line(f"{what}: CPU", spread(cpu / seconds * 100 for cpu, _ in both), "% of a core", Target("≤", 5)),
        Line(f"{what}: memory", spread(memory for _, memory in both), "MiB", Target("≤", 100, worst=True)),
        Line(f"{what}: CPU of the triggers", spread(one.cpu / seconds * 100 for _, one in rounds), "% of a core"),
        Line(f"{what}: memory of the triggers", spread(one.memory for _, one in rounds), "MiB"),
    ]


def _defer(setting: Setting) -> None:
    """Leave a run as one is that was paused while all its tasks were deferred."""
    file = setting.folder / "d.py"
    file.write_text(_FILE.format(tasks=TASKS))
    with connect(setting.folder / "s.db", durability="process") as store:
        tasks = tuple(TaskSpec("wait", index) for index in range(TASKS))
        detail: RunDetail = store.backend.send(
            StartRun("d", "r", tasks, "{}", str(file), "digest", store.clock(), _NOBODY, 60.0)
        )
        for number, task in enumerate(detail.tasks):
            if number % 100 == 0:
                setting.progress(f"waiting: {number:,} of {TASKS:,} deferred")
            begun = store.backend.send(Begin(task.scope, after=0, supervisor=_NOBODY, lease=60.0))
            fence = Fence(task.scope, begun.attempt, begun.scope_id)
            store.backend.send(Report(fence, "deferred", deferral=Deferral(_TRIGGER, _ARGUMENTS, "execute")))
        store.backend.send(ReleaseRun("d", "r", _NOBODY, "paused"))


def _triggerer_of(runner: int) -> int:
    """Wait for the process that runs the triggers, and return its id."""
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        for name in os.listdir("/proc"):
            if name.isdigit() and _parent(int(name)) == runner and b"outlast.runner.triggerer" in _command(int(name)):
                return int(name)
        time.sleep(0.05)
    raise SystemExit("waiting: `outlast run` has started no process for triggers")


def _until_all_wait(setting: Setting) -> None:
    """Wait until every trigger runs, and what it took to start them is over."""
    deadline = time.monotonic() + 60.0
    logs = setting.folder / "s.db.logs" / "d" / "r" / "wait"
    while sum(1 for _ in logs.glob("*/trigger.log")) < TASKS:
        if time.monotonic() > deadline:
            raise SystemExit("waiting: not all triggers have begun")
        time.sleep(0.2)
    time.sleep(2.0)


def _watch(runner: int, triggerer: int, seconds: float) -> tuple[Use, Use]:
    before = _use(runner), _use(triggerer)
    time.sleep(seconds)
    after = _use(runner), _use(triggerer)
    return _between(before[0], after[0]), _between(before[1], after[1])


def _between(before: Use, after: Use) -> Use:
    return Use(after.cpu - before.cpu, after.memory)


def _use(pid: int) -> Use:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Use(cpu, pages * os.sysconf("SC_PAGE_SIZE") / 1024**2)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
