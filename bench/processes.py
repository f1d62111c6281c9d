"""Processes that share one file: whether four writers get their turn, and what a sweep does to a writer."""

from __future__ import annotations

import multiprocessing
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measure import Line, Setting, Spread, Target, spread
from stores import connect, numbers, value

from outlast.values import system_clock

WRITERS = 4
ROWS_A_SCOPE = 10
_HOUR = 3600 * 1_000_000

_new = multiprocessing.get_context("spawn")


def four_writers(setting: Setting) -> list[Line]:
    """Measure whether four processes that write durably, as fast as they can, get equal shares."""
    path = setting.folder / "shared.db"
    connect(path).close()
    seconds = 1.0 if setting.quick else 3.0
    rounds = [_compete(path, seconds) for _ in range(1 if setting.quick else 3)]
    counts = [[len(waits) for waits in taken] for taken in rounds]
    return [
        Line("four processes: slowest against fastest", spread(min(n) / max(n) for n in counts), "×", Target("≥", 0.8)),
        Line(
            "four processes: longest call",
            spread(max(max(waits) for waits in taken) for taken in rounds),
            "s",
            Target("≤", 0.15, worst=True),
        ),
        Line("four processes: calls a second, together", spread(sum(n) / seconds for n in counts), ""),
    ]


def _compete(path: Path, seconds: float) -> list[list[float]]:
    """Return how long each call of each writer took."""
    begin = _new.Barrier(WRITERS)
    ends = [_new.Pipe(duplex=False) for _ in range(WRITERS)]
    writers = [
        _new.Process(target=_write_for, args=(path, f"task-{number}", seconds, begin, sender))
        for number, (_, sender) in enumerate(ends)
    ]
    for writer in writers:
        writer.start()
    taken = [receiver.recv() for receiver, _ in ends]
    for writer in writers:
        writer.join()
    return taken


def _write_for(path: Path, task: str, seconds: float, begin: Any, sender: Connection) -> None:
    with connect(path) as store:
        state = store.task(f"nightly/2026-11-29/{task}", attempt="new")
        state.set("progress", 0)
        waits = []
        begin.wait()
        now = time.perf_counter()
        end = now + seconds
        while now < end:
            began, _ = now, state.set("progress", value(next(numbers)))
            now = time.perf_counter()
            waits.append(now - began)
    sender.send(waits)


# --- Sweeping ------------------------------------------------------------------------------------------------------


def sweeping(setting: Setting) -> list[Line]:
    """Measure a writer's calls while another process sweeps many expired rows."""
    path = setting.folder / "swept.db"
    rows = 20_000 if setting.quick else 200_000
    _fill_expired(path, rows, setting)
    calls, began, ended = _sweep_beside_writer(path)
    before = [seconds for at, seconds in calls if at < began]
    during = [seconds for at, seconds in calls if began < at and at - seconds < ended]
    return [
        Line("sweep: a writer's p99 meanwhile", _once(_share(during, 0.99) * 1000), "ms", Target("≤", 50)),
        Line("sweep: a writer's p50 meanwhile", _once(_share(during, 0.5) * 1000), "ms"),
        Line("sweep: a writer's longest call meanwhile", _once(max(during) * 1000), "ms"),
        Line("sweep: a writer's p50 before", _once(_share(before, 0.5) * 1000), "ms"),
        Line(f"sweep: {rows:,} expired rows", _once(ended - began), "s"),
    ]


def _fill_expired(path: Path, rows: int, setting: Setting) -> None:
    """Write, by a clock set back two hours, rows that have been expired for half an hour by now.

    A writer sweeps by itself what has been expired for an hour: it would help.
    """
    then = system_clock() - 2 * _HOUR
    with connect(path, clock=lambda: then, durability="process") as store:
        for number in range(rows // ROWS_A_SCOPE):
            if number % 1000 == 0:
                setting.progress(f"sweep: {number * ROWS_A_SCOPE:,} of {rows:,} rows")
            state = store.task(dag_id="nightly", run_id="2026-11-29", task_id="load", map_index=number)
            values = {f"key-{place:03}": value(next(numbers)) for place in range(ROWS_A_SCOPE)}
            state.set_many(values, retention=timedelta(minutes=90))


def _sweep_beside_writer(path: Path) -> tuple[list[tuple[float, float]], float, float]:
    """Return a writer's calls (when each ended, seconds), and when the sweep began and ended."""
    stop = _new.Event()
    receiver, sender = _new.Pipe(duplex=False)
    writer = _new.Process(target=_write_until, args=(path, stop, sender))
    with connect(path) as store:
        writer.start()
        receiver.recv()
        time.sleep(0.5)
        began = time.monotonic()
        store.sweep()
        ended = time.monotonic()
    stop.set()
    calls = receiver.recv()
    writer.join()
    return calls, began, ended


def _write_until(path: Path, stop: Any, sender: Connection) -> None:
    calls = []
    with connect(path) as store:
        state = store.task("nightly/2026-11-29/ingest", attempt="new")
        sender.send("ready")
        now = time.monotonic()
        while not stop.is_set():
            began, _ = now, state.set("progress", value(next(numbers)))
            now = time.monotonic()
            calls.append((now, now - began))
    sender.send(calls)


def _share(values: list[float], share: float) -> float:
    """Return the value that so large a share of the values does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _once(value: float) -> Spread:
    return Spread(value, value, value)
