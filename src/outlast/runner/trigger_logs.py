"""What triggers log and print goes to their task's `trigger.log`, and one that holds the event loop up is told on.

Triggers share a process, so the file is that of the context the code runs in: an asyncio task hands it on to
the tasks and threads it starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TextIO
from weakref import WeakKeyDictionary

from .board import NOBODY, Board, Key, Shown
from .logs import Log, log_of
from .traces import Formatter

__all__ = ["LogFiles", "Threads", "Watchdog", "divert_output", "run_as", "use_log", "write_log"]

#: Seconds between signs of life of the event loop …
BEAT = 0.25
#: … and how long none may come before that is told.
LATE = 0.5

_log: ContextVar[Log | None] = ContextVar("outlast_trigger_log", default=None)
_key: ContextVar[Key | None] = ContextVar("outlast_trigger_key", default=None)
#: Whose the asyncio tasks are that triggers have started.
_children: WeakKeyDictionary[asyncio.Task[Any], Key] = WeakKeyDictionary()


def use_log(log: Log) -> None:
    """Have what is logged and printed from here on, in this context, go to a log."""
    _log.set(log)


def run_as(key: Key) -> None:
    """Have asyncio tasks that are started from here on, in this context, count as a trigger's."""
    _key.set(key)


def _make_task(board: Board, loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
    key = _key.get()
    shown = work if key is None or isinstance(work, Shown) else Shown(work, board, key)
    task: asyncio.Task[Any] = asyncio.Task(shown, loop=loop, **how)
    if key is not None:
        _children[task] = key
    return task


class Threads(ThreadPoolExecutor):
    """Threads that show on a board whose code they run."""

    def __init__(self, board: Board, count: int) -> None:
        super().__init__(count, "outlast")
        self._board, self._working, self._lock = board, list[Key](), threading.Lock()

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        key = _key.get()
        if key is None:
            return super().submit(work, *args, **kwargs)
        return super().submit(self._shown, key, work, *args, **kwargs)

    def _shown(self, key: Key, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._note(self._working.append, key)
        try:
            return work(*args, **kwargs)
        finally:
            self._note(self._working.remove, key)

    def _note(self, change: Callable[[Key], None], key: Key) -> None:
        with self._lock:
            change(key)
            self._board.thread_key = self._working[-1] if self._working else NOBODY


class LogFiles:
    """Writes logs where it may: files in a folder, which somebody may remove meanwhile."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, log: Log, text: str) -> None:
        """Append text to the file of a log."""
        path = log_of(self.folder, log)
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)


#: What writes logs in this process.
_writer: Callable[[Log, str], None] | None = None


def write_log(log: Log | None, text: str) -> None:
    """Append text to a log; None is the triggerer's own."""
    if log is not None and _writer is not None:
        _writer(log, text)
        return
    sys.__stderr__.write(text)  # type: ignore[union-attr]
    sys.__stderr__.flush()  # type: ignore[union-attr]


def divert_output(writer: Callable[[Log, str], None]) -> None:
    """Send logging, standard output and standard error to the log of the context they are used in, by `writer`."""
    global _writer
    _writer = writer
    handler = _Handler()
    handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_log(_log.get(), self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class _Stream:
    """Standard output or error, for those who write text to it; the rest of it is the real one's."""

    def __init__(self, real: TextIO) -> None:
        self._real = real

    def write(self, text: str) -> int:
        write_log(_log.get(), text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self._real.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Watchdog(threading.Thread):
    """Notices that the event loop stands still, and says in the log of the trigger that holds it where that is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, logs: dict[asyncio.Task[Any], Log], board: Board) -> None:
        super().__init__(name="outlast-watchdog", daemon=True)
        self.loop, self.logs, self.board = loop, logs, board
        loop.set_task_factory(partial(_make_task, board))
        self.thread_id = threading.get_ident()
        self.beat_at = time.monotonic()
        self.told: list[Log | None] = []
        self._beat()

    def _beat(self) -> None:
        self.beat_at = self.board.beat_at = time.monotonic()
        self.loop.call_later(BEAT, self._beat)

    def run(self) -> None:
        looked_at = time.monotonic()
        while True:
            time.sleep(BEAT)
            now = time.monotonic()
            slept, looked_at = now - looked_at, now
            if slept < 2 * BEAT:  # else the whole process stood still, which is nobody's fault
                self._look(now)

    def _look(self, now: float) -> None:
        late = now - self.beat_at
        if late >= LATE and not self.told:
            task, place = self._current()
            log = None if task is None else self.logs.get(task)
            if task is not None and (key := _children.get(task)) is not None:
                self.board.key = key
            whose = "something" if task is None else "a task that a trigger has started"
            who = whose if log is None else "this trigger"
            self.since, self.told = self.beat_at, [None] if log is None else [log, None]
            self._say(f"{who} holds up the event loop that all triggers share, at {place}; await, or use a thread")
        elif late < LATE and self.told:
            self._say(f"the event loop goes on after {now - late - self.since:.1f} s")
            self.told = []

    def _current(self) -> tuple[asyncio.Task[Any] | None, str]:
        """Return the asyncio task that runs, and the line it is at."""
        frame = sys._current_frames().get(self.thread_id)
        place = "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        try:
            return asyncio.current_task(self.loop), place
        except RuntimeError:
            return None, place

    def _say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        for log in self.told:
            write_log(log, f"{stamp} WARNING outlast: {text}\n")
