"""What starting costs: programs beside a bare interpreter, in turn, each a process of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from measure import Line, Round, Setting, Target, spread

import outlast

#: A program that writes `time.time_ns()` to the file this variable names is timed until then, not until its end.
MARK = "OUTLAST_BENCH_MARK"

#: Isolated, an interpreter sees no PYTHONPATH: it is told where this one has found outlast.
_FIND = f"import sys; sys.path.insert(0, {str(Path(outlast.__file__).parent.parent)!r}); "


class Start(NamedTuple):
    """A program (arguments of the interpreter) and how many milliseconds more than a bare one it may take."""

    what: str
    arguments: list[str]
    allowed: float


_FIRST_LINE = f"""
import os, time
from outlast import DAG, task
with DAG("first"):
    @task
    def line():
        with open(os.environ[{MARK!r}], "w") as mark:
            mark.write(str(time.time_ns()))
    line()
"""


def _starts(folder: Path) -> list[Start]:
    """Return the programs to start; a figure is added here, and `folder` holds the files it needs."""
    file = folder / "first_line.py"
    file.write_text(_FIRST_LINE)
    run = (
        f"from outlast.cli import main; sys.exit(main(['run', {str(file)!r}, '--store', {str(folder / 'first.db')!r}]))"
    )
    return [
        Start("import outlast", _isolated("import outlast"), 80),
        Start("import outlast and use outlast.connect", _isolated("import outlast; outlast.connect"), 80),
        Start("outlast run, to the first line of user code", _isolated("import sys; " + run), 250),
    ]


def starting(setting: Setting) -> list[Line]:
    """Measure each program's time above the interpreter's own."""
    lines = []
    bare = _isolated("pass")
    for start in _starts(setting.folder):
        pairs = [
            (_run(start.arguments, setting.folder), _run(bare, setting.folder))
            for _ in range(6 if setting.quick else 16)
        ][1:]
        wall = spread(ours.wall - plain.wall for ours, plain in pairs)
        cpu = spread(ours.cpu - plain.cpu for ours, plain in pairs)
        lines.append(Line(start.what, wall, "ms", Target("≤", start.allowed)))
        lines.append(Line(f"{start.what}: CPU", cpu, "ms"))
    return lines


def _isolated(code: str) -> list[str]:
    return ["-I", "-c", _FIND + code]


def _run(arguments: list[str], folder: Path) -> Round:
    """Return the milliseconds a program takes, by the clock and of CPU."""
    mark = folder / "mark"
    mark.unlink(missing_ok=True)
    began = time.time_ns()
    quiet = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    environ = os.environ | {MARK: str(mark)}
    process = os.posix_spawn(sys.executable, [sys.executable, *arguments], environ, file_actions=quiet)
    _, status, used = os.wait4(process, 0)
    ended = int(mark.read_text()) if mark.exists() else time.time_ns()
    if status != 0:
        raise SystemExit(f"this program failed: {' '.join(arguments)}")
    return Round((ended - began) / 1e6, (used.ru_utime + used.ru_stime) * 1000)
