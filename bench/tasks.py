"""What a task that does nothing costs: the CPU of its two processes, and of the runner that starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from measure import Line, Setting, Target, spread

import outlast

#: A run of this many tasks that do nothing is held against one of a single such task.
TASKS = 25

_FILE = """
from outlast import DAG, task
with DAG("nothing"):
    @task
    def nothing(number):
        pass
    for number in range({tasks}):
        nothing(number)
"""
#: Runs the command line, and says what it and the processes it has waited for have used.
_RUN = """
import os, resource, sys
sys.path.insert(0, {place!r})
from outlast.cli import main
status = 1
try:
    main(sys.argv[1:])
except SystemExit as end:
    status = end.code or 0
both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("used", *(use.ru_utime + use.ru_stime for use in both))
sys.stdout.flush()
os._exit(status)
"""


class Used(NamedTuple):
    """Milliseconds of CPU, the kernel's part included: of the runner, and of the processes below it."""

    runner: float
    below: float


def doing_nothing(setting: Setting) -> list[Line]:
    """Measure a task that does nothing: what a run of many uses more than a run of one, shared among them."""
    tasks = 8 if setting.quick else TASKS
    rounds = []
    for number in range(2 if setting.quick else 4):
        setting.progress(f"no-op tasks: round {number + 1}")
        rounds.append((_run(setting.folder, 1, number), _run(setting.folder, tasks, number)))
    rounds = rounds[1:]  # the first has compiled what is compiled once
    more = [(many.runner - one.runner, many.below - one.below) for one, many in rounds]
    bare = spread(_bare() for _ in range(5 if setting.quick else 15))
    return [
        Line(
            "a no-op task: CPU with the runner's part",
            spread((runner + below) / (tasks - 1) for runner, below in more),
            "ms",
            Target("≤", 150),
        ),
        Line("a no-op task: CPU of its two processes", spread(below / (tasks - 1) for _, below in more), "ms"),
        Line("a no-op task: CPU of a bare interpreter, for comparison", bare, "ms"),
    ]


def _run(folder: Path, tasks: int, number: int) -> Used:
    """Execute a run of so many tasks, and return what it has used."""
    file = folder / f"nothing_{tasks}.py"
    file.write_text(_FILE.format(tasks=tasks))
    program = _RUN.format(place=str(Path(outlast.__file__).parent.parent))
    store = folder / f"nothing_{tasks}_{number}.db"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, "run", str(file), "--store", str(store)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    words = done.stdout.rpartition("used ")[2].split()
    if done.returncode != 0 or len(words) != 2:
        raise SystemExit(f"a run of tasks that do nothing failed: {done.stderr or done.stdout}")
    return Used(float(words[0]) * 1000, float(words[1]) * 1000)


def _bare() -> float:
    process = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", "pass"], os.environ)
    _, _, used = os.wait4(process, 0)
    return (used.ru_utime + used.ru_stime) * 1000
