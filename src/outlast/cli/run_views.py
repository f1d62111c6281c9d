"""How runs and task instances are shown: rows for people, documents for programs, and the line to type next."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import codec
from ..backends import is_server
from ..config import Config
from ..run_requests import ENDED, AttemptRow, ProcessRef, RunDetail, RunRow, TaskRow
from ..runner import processes
from ..store import Store
from ..values import moment
from . import show
from .addresses import by_position
from .progress import bar_text, progress_of
from .show import Column

__all__ = [
    "age_text",
    "attempt_document",
    "clear_line",
    "command_line",
    "counts_text",
    "dead_holder",
    "detail_document",
    "facts",
    "failed_of",
    "first_line",
    "in_order",
    "is_gone",
    "is_held",
    "params_of",
    "place_of",
    "process_text",
    "resume_line",
    "run_document",
    "run_name",
    "run_seconds",
    "run_state_text",
    "since_to",
    "span",
    "state_text",
    "task_document",
    "tasks_table",
    "time_text",
]

#: The order in which the states of task instances are counted.
_ORDER = (
    *("success", "running", "deferred", "scheduled", "up_for_reschedule", "up_for_retry", "waiting"),
    *("failed", "upstream_failed", "skipped", "cancelled"),
)
#: Characters of an error in a table, at most.
_ERROR_WIDTH = 60


# --- Who holds a run -----------------------------------------------------------------------------------------


def dead_holder(run: RunRow) -> ProcessRef | None:
    """Return the runner of a run where it is known to be dead: it was on this host, and is no more."""
    holder = run.holder
    dead = holder is not None and processes.is_here(holder) and not processes.is_alive(holder)
    return holder if dead else None


def is_held(run: RunRow, now: int) -> bool:
    """Say whether a runner holds a run: its lease has not lapsed, and it is not known to be dead."""
    return run.holder is not None and run.lease_until > now and dead_holder(run) is None


def is_gone(run: RunRow, now: int) -> bool:
    """Say whether a run counts as running although its runner is dead or its lease has lapsed."""
    return run.state == "running" and not is_held(run, now)


# --- Words -----------------------------------------------------------------------------------------------------


def run_name(run: RunRow) -> str:
    """Return a run's address, DAG/RUN."""
    return f"{run.dag_id}/{run.run_id}"


def place_of(task: TaskRow) -> str:
    """Return a task instance's place in its run, TASK or TASK/INDEX."""
    return by_position(task.scope).split("/", 2)[2]


def state_text(state: str, gone: bool) -> str:
    """Return a state in words; what runs for a runner that is gone, does not."""
    return f"{state} (runner gone)" if gone and state == "running" else state


def run_state_text(run: RunRow, counts: Mapping[str, int], now: int) -> str:
    """Return a run's state in words; of one that is a success all the same, how many of its tasks have failed."""
    if run.state == "success" and counts.get("failed"):
        return f"success ({counts['failed']} failed)"
    return state_text(run.state, is_gone(run, now))


def counts_text(counts: Mapping[str, int]) -> str:
    """Return task instances by state: 3 success, 1 running."""
    return ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts.get(state)) or "none"


def process_text(process: ProcessRef | None) -> str:
    """Return a process as people look for it."""
    return "" if process is None else f"process {process.pid} on {process.host}"


def age_text(micros: int | None) -> str:
    """Return a moment for a table; nothing for none."""
    return "" if micros is None else show.age(moment(micros))


def time_text(micros: int | None) -> str:
    """Return a moment to the second, in UTC; nothing for none."""
    return "" if micros is None else show.when(moment(micros))


def span(seconds: float | None) -> str:
    """Return a length of time: 0.8s, 12.3s, 4m 07s, 3h 05m, 2d 04h."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{max(seconds, 0.0):.1f}s"
    for unit, size, part, smaller in (("m", 60, "s", 1), ("h", 3600, "m", 60), ("d", 86400, "h", 3600)):
        if whole < size * (24 if unit == "h" else 60) or unit == "d":
            return f"{whole // size}{unit} {whole % size // smaller:02}{part}"
    raise AssertionError(unit)


def since_to(started_at: int | None, ended_at: int | None) -> float | None:
    """Return the seconds between two moments, None where one of them is not known."""
    return None if started_at is None or ended_at is None else max(0, ended_at - started_at) / 1e6


def first_line(text: str | None) -> str:
    """Return an error in one line: its first, or its last where it begins with a place in a file."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return "" if not lines else lines[-1] if lines[0].startswith("File ") else lines[0]


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values under one another; what is empty is left out."""
    for name, value in pairs:
        if value:
            show.line(f"{name + ':':<15}{value}")


def resume_line(run: RunRow, url: str | None) -> str:
    """Return the command that goes on with a run.

    Root who goes on with a run of a server has to say whose its workers are: the store does not know, and what is typed
    after this line must not run as root what ran as somebody else.
    """
    whose = ["--run-as", "USER"] if url is not None and is_server(url) and os.geteuid() == 0 else []
    return shlex.join(["outlast", "run", run.file, "--run-id", run.run_id, *_store(url), *whose])


def failed_of(detail: RunDetail) -> list[TaskRow]:
    """Return the task instances of a run that have failed or were cancelled: what somebody may want to run again."""
    return [task for task in in_order(detail.tasks) if task.state in ("failed", "cancelled")]


def clear_line(detail: RunDetail, url: str | None) -> str | None:
    """Return the command that has everything that failed run again; None where nothing has."""
    failed = failed_of(detail)
    if not failed:
        return None
    what = [by_position(failed[0].scope)] if len(failed) == 1 else [run_name(detail.run), "--failed"]
    return command_line("tasks", "clear", *what, url=url)


def command_line(*words: str, url: str | None) -> str:
    """Return an `outlast` command as it can be typed, for the same store."""
    return shlex.join(["outlast", *words, *_store(url)])


def _store(url: str | None) -> list[str]:
    return [] if url is None else ["--store", os.fspath(url)]


# --- Times of runs and task instances ---------------------------------------------------------------------------


def run_seconds(run: RunRow, now: int) -> float | None:
    """Return how long a run took or has been running; None where it is paused, or its runner gone."""
    live = run.state == "running" and is_held(run, now)
    return since_to(run.started_at, run.ended_at or (now if live else None))


def task_seconds(task: TaskRow, now: int) -> float | None:
    """Return how long a task instance's newest attempt took or has been running."""
    return since_to(_began(task), now if task.state == "running" else task.ended_at)


def _began(task: TaskRow) -> int | None:
    """Return when the newest attempt began, of a task instance that runs or ended with it."""
    return task.started_at if task.state == "running" or task.state in ENDED else None


# --- Tables ------------------------------------------------------------------------------------------------------


def in_order(tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Return task instances with those of one task together, by position, after those of the tasks above it."""
    places = _places({task.scope.task_id: task.upstream for task in tasks})
    return sorted(tasks, key=lambda task: (places[task.scope.task_id], task.scope.map_index))


def _places(upstream: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the place of each task: as given, but those that a task waits for before it."""
    places: dict[str, int] = {}
    pending = list(upstream)[::-1]
    while pending:
        task_id = pending[-1]
        above = [other for other in upstream[task_id] if other in upstream and other not in places]
        if above and task_id not in places:
            pending += reversed(above)
        else:
            places.setdefault(task_id, len(places))
            pending.pop()
    return places


def tasks_table(store: Store, detail: RunDetail) -> None:
    """Print a row a task instance, without the columns in which nothing stands."""
    now = store.clock()
    gone = is_gone(detail.run, now)
    columns = [Column("TASK"), Column("STATE", narrow="keep"), Column("ITEM", narrow="cut")]
    columns += [Column("TRY", True), Column("FAILED", True)]
    columns += [Column("CRASHED", True), Column("STARTED", narrow="keep"), Column("ELAPSED", True)]
    columns += [Column("PROGRESS", narrow="keep"), Column("ERROR", narrow="cut")]
    rows = [_task_cells(store, task, now, gone) for task in in_order(detail.tasks)]
    used = [place for place in range(len(columns)) if place < 2 or any(row[place] for row in rows)]
    show.table([columns[place] for place in used], [[row[place] for place in used] for row in rows])


def _task_cells(store: Store, task: TaskRow, now: int, gone: bool) -> Sequence[str]:
    numbers = [str(number) if number else "" for number in (task.attempt, task.failures, task.crashes)]
    times = [age_text(_began(task)), span(None if gone else task_seconds(task, now))]
    error = show.cut(first_line(task.error), _ERROR_WIDTH)
    names = [place_of(task), _task_state(task, now, gone), show.cut(task.scope.item or "", _ERROR_WIDTH)]
    return [*names, *numbers, *times, _progress_text(store, task), error]


def _task_state(task: TaskRow, now: int, gone: bool) -> str:
    if task.state == "up_for_retry" and task.due_at is not None and task.due_at > now:
        return f"up_for_retry (in {span((task.due_at - now) / 1e6)})"
    return state_text(task.state, gone)


def _progress_text(store: Store, task: TaskRow) -> str:
    progress = _progress(store, task, reveal=False)
    match progress:
        case {"done": int(done), "total": int(total)} if total > 0:
            rate = progress.get("rate")
            speed = f", {rate:,.3g}/s" if isinstance(rate, int | float) and task.state == "running" else ""
            return f"{done:,}/{total:,}{speed}"
    return show.cut(bar_text(progress), 40)


def _progress(store: Store, task: TaskRow, reveal: bool) -> Any:
    hidden = any(show.is_secret(store.config, key, reveal) for key in ("progress", "rows_loaded"))
    return None if hidden else progress_of(store, task)


# --- Documents -----------------------------------------------------------------------------------------------------


def run_document(run: RunRow, counts: Mapping[str, int], now: int) -> dict[str, Any]:
    """Return a run for a program; durations are seconds."""
    return {
        "address": run_name(run),
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "state": run.state,
        "runner_gone": is_gone(run, now),
        "tasks": dict(counts),
        "logical_date": moment(run.logical_date),
        "created_at": moment(run.created_at),
        "started_at": _moment(run.started_at),
        "ended_at": _moment(run.ended_at),
        "seconds": run_seconds(run, now),
        "file": run.file,
        "digest": run.digest,
        "holder": _process_document(run.holder),
    }


def detail_document(store: Store, detail: RunDetail, reveal: bool) -> dict[str, Any]:
    """Return a run with its parameters and task instances for a program; a hidden parameter is null."""
    now = store.clock()
    counts: Counter[str] = Counter(task.state for task in detail.tasks)
    params, masked = params_of(detail.run, store.config, reveal)
    instances = [task_document(store, task, now) for task in in_order(detail.tasks)]
    run = run_document(detail.run, counts, now)
    return {**run, "params": params, "masked_params": masked, "instances": instances}


def params_of(run: RunRow, config: Config, reveal: bool) -> tuple[dict[str, Any], list[str]]:
    """Return a run's parameters, those that are secret as None, and the names of these."""
    params: Any = codec.load(run.params)
    masked = [name for name in params if show.is_secret(config, name, reveal)]
    return {name: None if name in masked else value for name, value in params.items()}, masked


def task_document(store: Store, task: TaskRow, now: int) -> dict[str, Any]:
    """Return a task instance for a program."""
    return {
        "address": by_position(task.scope),
        "task_id": task.scope.task_id,
        "map_index": task.scope.map_index,
        "item": task.scope.item,
        "state": task.state,
        "attempt": task.attempt,
        "failures": task.failures,
        "crashes": task.crashes,
        "due_at": _moment(task.due_at),
        "started_at": _moment(_began(task)),
        "ended_at": _moment(task.ended_at),
        "seconds": task_seconds(task, now),
        "error": task.error,
        "upstream": task.upstream,
        "supervisor": _process_document(task.supervisor),
        "progress": _progress(store, task, reveal=False),
    }


def attempt_document(attempt: AttemptRow) -> dict[str, Any]:
    """Return an attempt for a program."""
    return {
        "number": attempt.number,
        "state": attempt.state,
        "started_at": moment(attempt.started_at),
        "ended_at": _moment(attempt.ended_at),
        "error": attempt.error,
        "supervisor": _process_document(attempt.supervisor),
    }


def _moment(micros: int | None) -> Any:
    return None if micros is None else moment(micros)


def _process_document(process: ProcessRef | None) -> dict[str, Any] | None:
    return None if process is None else {"host": process.host, "pid": process.pid}
