"""The process that runs one attempt's user code, in a process group of its own, and says how it ended."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

import msgspec

from ..requests import Fence
from ..run_requests import TaskRow
from ..store import Store
from .attempt import Attempt, Interrupted
from .job import STOP, Job, Told
from .traces import Formatter

__all__ = ["live"]


def live(store: Store, job: Job, task: TaskRow, fence: Fence, life: int, report: int, log: int) -> None:
    """Run the attempt and exit; never returns."""
    os.setsid()
    _use_log(log)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in STOP:
        signal.signal(name, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    if os.read(life, 1) != b"g":
        os._exit(0)
    _tie_to(life)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    me = os.getpid()
    message = Attempt(store, job, task, fence).run()
    _flush()
    if os.getpid() != me:  # a process the user's code forked, which has not to report for it
        os._exit(0 if message.outcome == "success" else 1)
    _send(report, message)
    with suppress(BaseException):
        atexit._run_exitfuncs()
    _flush()
    os._exit(0)


def _use_log(log: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(kill=number == signal.SIGTERM)


def _tie_to(life: int) -> None:
    """End the whole group when the other end of the pipe is closed, which is the supervisor's death.

    Where the system can do it by itself it does, because no thread runs while user code holds the interpreter.
    """
    threading.Thread(target=_die_with_supervisor, args=(life,), name="outlast-life", daemon=True).start()
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpid())
            fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def _die_with_supervisor(life: int) -> None:
    with suppress(OSError):
        os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _send(report: int, message: Told) -> None:
    view = memoryview(msgspec.json.encode(message) + b"\n")
    with suppress(BrokenPipeError):
        while view:
            view = view[os.write(report, view) :]
