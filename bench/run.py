"""Measures outlast against apsw alone, and against what it promises, in one run on one machine.

    python bench/run.py [--quick] [--only NAME] [--json] [--folder PATH]
    python bench/run.py --profile set

Prints a table and never fails because a figure is not as it should be; docs/benchmarks.md says what each one means.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import calls
import door
import million
import planning
import postgres
import processes
import startup
import tasks
import viewing
import waiting
from measure import Line, Setting

FIGURES: dict[str, Callable[[Setting], list[Line]]] = {
    "set": calls.one_set,
    "get": calls.one_get,
    "set_many": calls.many_sets,
    "writers": processes.four_writers,
    "sweep": processes.sweeping,
    "size": million.size,
    "start": startup.starting,
    "plan": planning.planning,
    "task": tasks.doing_nothing,
    "wait": waiting.waiting,
    "postgres": postgres.postgres,
    "door": door.door,
    "page": viewing.page,
}

_WIDTH = 62


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the arguments ask for."""
    given = _parser().parse_args(arguments)
    logging.getLogger("outlast").setLevel(logging.ERROR)  # new stores are announced; these do not last
    if given.profile:
        with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=given.folder) as folder:
            calls.profile(Setting(Path(folder), given.quick, _show), given.profile)
        return
    told = [] if given.json else _head(given.folder)
    print(*told, sep="\n", end="\n" if told else "")
    found = []
    for name in given.only or FIGURES:
        lines = _measure(name, given)
        found += [_plain(name, line) for line in lines]
        if not given.json:
            print(*map(_row, lines), sep="\n", flush=True)
    if given.json:
        print(json.dumps({"machine": _machine(given.folder), "figures": found}, indent=2, ensure_ascii=False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure outlast beside apsw alone on this machine; docs/benchmarks.md says what the figures mean."
    )
    parser.add_argument("--only", metavar="NAME", action="append", choices=FIGURES, help=f"one of {', '.join(FIGURES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and a tenth of the rows")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    parser.add_argument("--folder", metavar="PATH", default=tempfile.gettempdir(), help="where the stores are made")
    parser.add_argument("--profile", choices=["set", "get", "set_many"], help="show where the time of a call goes")
    return parser


def _measure(name: str, given: argparse.Namespace) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=given.folder) as folder:
        _show(f"{name} …")
        lines = FIGURES[name](Setting(Path(folder), given.quick, _show))
    _show("")
    return lines


def _show(text: str) -> None:
    """Show how far it is, on a terminal only, in one line that is written over."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# --- The table -----------------------------------------------------------------------------------------------------


def _head(folder: str) -> list[str]:
    machine = ", ".join(f"{name} {text}" for name, text in _machine(folder).items())
    columns = f"{'figure':{_WIDTH}} {'least':>9} {'median':>9} {'most':>9}    target"
    return [machine, "", columns, "─" * (len(columns) + 8)]


def _machine(folder: str) -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "Python": platform.python_version(),
        "SQLite": apsw.sqlite_lib_version(),
        "cores": usable,
        "load": f"{os.getloadavg()[0]:.1f}",
        "files in": folder,
    }


def _row(line: Line) -> str:
    low, median, high = (_number(value) for value in line.spread)
    what = f"{line.what} ({line.unit})" if line.unit else line.what
    return f"{what:{_WIDTH}} {low:>9} {median:>9} {high:>9}    {_judged(line)}".rstrip()


def _judged(line: Line) -> str:
    if line.target is None:
        return ""
    verdict = "met" if line.target.met(line.spread) else "NOT MET"
    return f"{line.target.sign} {line.target.bound:<6g} {verdict}"


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _plain(name: str, line: Line) -> dict[str, Any]:
    target = line.target
    return {
        "name": name,
        "what": line.what,
        "unit": line.unit,
        **line.spread._asdict(),
        "target": None if target is None else f"{target.sign} {target.bound:g}",
        "met": None if target is None else target.met(line.spread),
    }


if __name__ == "__main__":
    main()
