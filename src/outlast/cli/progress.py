"""What `outlast run` shows while it runs: a line a task instance on a terminal, a line a change otherwise."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..codec import load
from ..errors import OutlastError
from ..log_files import log_folder
from ..plans import run as drive
from ..run_requests import ENDED, RunDetail, RunRow, TaskRow
from ..runner.logs import log_path
from ..store import Store
from ..values import TaskScope
from .show import count, is_secret, note, visible

if TYPE_CHECKING:
    from ..dags.graph import DAG

__all__ = ["Display", "bar_text", "progress_of", "unseen"]

#: Lines of a failed attempt's log that are shown.
TAIL = 25
#: Task instances shown on a terminal; the others are counted.
SHOWN = 25

_MARKS = {
    "success": "✓",
    "failed": "✗",
    "running": "▶",
    "up_for_retry": "↻",
    "deferred": "⏸",
    "upstream_failed": "⊘",
    "skipped": "–",
}
_COLOURS = {"success": "green", "failed": "red", "running": "cyan", "up_for_retry": "yellow", "upstream_failed": "red"}


class Display:
    """Shows runs on standard error for the length of a `with` block; `observe` makes the observer of one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lines: list[_Lines] = []
        self.latest: dict[int, RunDetail] = {}
        self.live: Any = None

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=False)
        return self

    def observe(self, dag: DAG, run: RunRow) -> Callable[[RunDetail], None]:
        """Announce a run and return what is to be told of it."""
        lines = _Lines(self.store, dag)
        self.lines.append(lines)
        with unseen():
            click.echo(f"outlast: run {run.dag_id}/{run.run_id}", err=True)
            if self.live is not None:
                self.live.start()

        @unseen()
        def see(detail: RunDetail) -> None:
            self.latest[detail.run.id] = detail
            others = any(other.is_active for other in self.lines if other is not lines)
            lines.see(detail, quiet=self.live is not None, named=others)
            if self.live is not None:
                self.live.update(_tables(self.store, self.latest), refresh=True)

        return see

    def say(self, text: str) -> None:
        """Tell a person something beside the display."""
        with unseen():
            note(f"outlast: {text}")

    def __exit__(self, *error: object) -> None:
        with unseen():
            if self.live is not None:
                self.live.stop()
            for lines in self.lines:
                lines.show_failures()


def _tables(store: Store, latest: dict[int, RunDetail]) -> Any:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for detail in latest.values():
        if len(latest) > 1:
            parts.append(Text(visible(f"{detail.run.dag_id}/{detail.run.run_id}"), style="bold"))
        parts.append(_table(store, detail))
    return Group(*parts)


@contextmanager
def unseen() -> Iterator[None]:
    """Let what is shown go nowhere from now on if it cannot be written: a run is more than its display."""
    try:
        yield
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stderr.fileno())
            os.close(nowhere)


class _Lines:
    """Turns what changed into lines, and remembers which logs to show."""

    def __init__(self, store: Store, dag: DAG) -> None:
        self.store, self.dag = store, dag
        self.seen: dict[TaskScope, tuple[str, int]] = {}
        self.is_first = self.is_active = True
        self.logs = log_folder(store.config, store.url)
        self.failures: list[TaskRow] = []

    def see(self, detail: RunDetail, quiet: bool = False, named: bool = False) -> None:
        """Say what has changed since the last look; at the first, what had ended before is only counted.

        Where others run beside it, each line is `named` after its run.
        """
        self.is_active = any(task.state not in ENDED for task in detail.tasks)
        run = f"{detail.run.dag_id}/{detail.run.run_id} " if named else ""
        if self.is_first:
            self.is_first = False
            done = {task.scope: (task.state, task.attempt) for task in detail.tasks if task.state in ENDED}
            self.seen |= done
            if done and not quiet:
                click.echo(f"outlast: {visible(run)}{count(len(done), 'task instance')} had ended before", err=True)
        for task in detail.tasks:
            now = (task.state, task.attempt)
            if self.seen.get(task.scope, ("waiting", 0)) == now:
                continue
            self.seen[task.scope] = now
            if task.state == "failed" and task.attempt:
                self.failures.append(task)
            if not quiet:
                click.echo(f"{time.strftime('%H:%M:%S')} {visible(run + _line(task, self.store.clock()))}", err=True)
                if task.state == "failed":
                    self.show_failures()

    def show_failures(self) -> None:
        """Print the end of each failed attempt's log, once."""
        while self.failures:
            task = self.failures.pop(0)
            path = log_path(self.logs, task.scope, task.attempt)
            click.echo(f"--- the end of {path}", err=True)
            for line in _tail(path):
                click.echo(visible(line.rstrip("\n")), err=True)
            click.echo(f"--- {visible(task.error or 'failed')}", err=True)


def _line(task: TaskRow, now: int) -> str:
    """Say in one line what a task instance is doing."""
    name = _name(task)
    seconds = ((task.ended_at or now) - (task.started_at or now)) / 1e6
    match task.state:
        case "running":
            return f"{name}: attempt {task.attempt} runs"
        case "success":
            return f"{name}: success after {seconds:.1f} s (attempt {task.attempt})"
        case "up_for_retry":
            wait = max(0.0, ((task.due_at or now) - now) / 1e6)
            again = "at once" if wait < 0.5 else f"in {wait:.0f} s"
            return f"{name}: attempt {task.attempt} ended: {_first(task.error)}; another one {again}"
        case "failed":
            when = f"at attempt {task.attempt}" if task.attempt else "before its first attempt"
            return f"{name}: failed for good {when}: {_first(task.error)}"
        case "deferred":
            return f"{name}: attempt {task.attempt} waits for a trigger, without a process"
        case "scheduled":
            return f"{name}: attempt {task.attempt} goes on"
        case "up_for_reschedule":
            wait = max(0.0, ((task.due_at or now) - now) / 1e6)
            return f"{name}: attempt {task.attempt} looks again {'now' if wait < 0.5 else f'in {wait:.0f} s'}"
        case "waiting":
            return f"{name}: waits" + (f" ({task.error})" if task.error else "")
    return f"{name}: {task.state.replace('_', ' ')}"


def _name(task: TaskRow) -> str:
    index = task.scope.map_index
    return task.scope.task_id if index < 0 else f"{task.scope.task_id}[{index}]"


def _first(text: str | None) -> str:
    lines = (text or "").splitlines()
    return lines[0] if lines else "no reason given"


def _tail(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(max(0, os.path.getsize(path) - 64 * 1024))
            return file.read().splitlines()[-TAIL:]
    except OSError as error:
        return [f"(no log: {error})"]


# --- On a terminal -----------------------------------------------------------------------------------------


def _table(store: Store, detail: RunDetail) -> Any:
    from rich.table import Table
    from rich.text import Text

    from .run_views import in_order

    table = Table.grid(padding=(0, 2))
    chosen = _chosen(in_order(detail.tasks))
    for task in chosen:
        colour = _COLOURS.get(task.state, "dim")
        mark = Text(f"{_MARKS.get(task.state, '·')} {task.state.replace('_', ' ')}", style=colour)
        attempt = f"try {task.attempt}" if task.attempt else ""
        error = "" if task.state in ("success", "running") else _first(task.error) if task.error else ""
        progress = bar_text(progress_of(store, task)) or error
        table.add_row(Text(visible(_name(task))), mark, attempt, _elapsed(task, store.clock()), Text(visible(progress)))
    if len(chosen) < len(detail.tasks):
        counts = Counter(task.state for task in detail.tasks)
        rest = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        table.add_row(Text(f"… {len(detail.tasks)} in all: {rest}", style="dim"))
    return table


def _chosen(tasks: list[TaskRow]) -> list[TaskRow]:
    """Return what to show: everything, or what moves first when it is too much."""
    if len(tasks) <= SHOWN:
        return tasks
    order = {"running": 0, "up_for_retry": 1, "failed": 2, "waiting": 3}
    ranked = sorted(range(len(tasks)), key=lambda place: (order.get(tasks[place].state, 4), place))
    return [tasks[place] for place in sorted(ranked[:SHOWN])]


def _elapsed(task: TaskRow, now: int) -> str:
    if task.started_at is None:
        return ""
    end = task.ended_at if task.state in ENDED else now
    seconds = max(0, ((end or now) - task.started_at) // 1_000_000)
    return f"{seconds // 60}:{seconds % 60:02}"


def progress_of(store: Store, task: TaskRow) -> Any:
    """Return what a task instance says of its progress: `progress`, else `rows_loaded`; None if nothing."""
    if not task.attempt:
        return None
    state = store.task(task.scope)
    try:
        found = drive(state._find(("progress", "rows_loaded")), store.backend)
    except OutlastError:
        return None
    texts = {row.name: row.text for row in found.rows if not is_secret(store.config, row.name, reveal=False)}
    text = texts.get("progress") or texts.get("rows_loaded")
    return None if text is None else load(text)


def bar_text(progress: Any) -> str:
    """Return progress as a short text: a bar for done/total, else the numbers there are."""
    match progress:
        case {"done": int(done), "total": int(total)} if total > 0:
            filled = round(20 * min(max(done / total, 0.0), 1.0))
            rate = progress.get("rate")
            speed = f" {rate:,.0f}/s" if isinstance(rate, int | float) and rate >= 1 else ""
            return f"{'█' * filled}{'░' * (20 - filled)} {done:,}/{total:,}{speed}"
        case {"done": int(done)} | {"rows_loaded": int(done)} | int(done):
            return f"{done:,}"
        case list():
            return f"{len(progress):,} items"
        case None:
            return ""
    return msgspec.json.encode(progress).decode()[:40]
