"""What starting costs: programs beside a bare interpreter, in turn, each a process of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import outlast
from measure import Line, Setting, Target, spread


class Start(NamedTuple):
    """A program to start, and how many milliseconds more than a bare interpreter it may take (None: no target)."""

    what: str
    code: str
    allowed: float | None


#: A figure is added here; the time of a process is counted until it has ended.
STARTS = [
    Start("import outlast", "import outlast", 80),
    Start("import outlast, then name outlast.connect", "import outlast; outlast.connect", 80),
]

#: Isolated, an interpreter sees no PYTHONPATH: it is told where this one has found outlast.
_FIND = f"import sys; sys.path.insert(0, {str(Path(outlast.__file__).parent.parent)!r}); "


def starting(setting: Setting) -> list[Line]:
    """Measure each program's time above the interpreter's own."""
    lines = []
    for start in STARTS:
        pairs = [(_run(start.code), _run("pass")) for _ in range(6 if setting.quick else 16)][1:]
        target = None if start.allowed is None else Target("≤", start.allowed)
        lines.append(Line(start.what, spread(ours[0] - bare[0] for ours, bare in pairs), "ms", target))
        lines.append(Line(f"{start.what}: CPU", spread(ours[1] - bare[1] for ours, bare in pairs), "ms"))
    return lines


def _run(code: str) -> tuple[float, float]:
    """Return the milliseconds a program takes, by the clock and of CPU."""
    began = time.perf_counter()
    process = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", _FIND + code], os.environ)
    _, status, used = os.wait4(process, 0)
    wall = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"this program failed: {code}")
    return wall * 1000, (used.ru_utime + used.ru_stime) * 1000
