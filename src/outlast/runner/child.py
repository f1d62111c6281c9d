"""The process that runs one attempt's user code, in a process group of its own, and says how it ended."""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import msgspec

from .. import codec
from ..errors import NotFound
from ..requests import Fence
from ..run_requests import PullResults, PushResult, Results, TaskRow
from ..state import TaskState
from ..store import Store
from ..values import Writer, moment
from .job import Job

__all__ = ["Interrupted", "live"]

#: Bytes of JSON a task's result may take.
RESULT_LIMIT = 1024 * 1024


class Interrupted(BaseException):
    """Raised in the user's code when the attempt must stop; not to be caught."""


def live(store: Store, job: Job, task: TaskRow, fence: Fence, life: int, report: int, log: int) -> None:
    """Run the attempt and exit; never returns."""
    os.setsid()
    _use_log(log)
    for name in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if os.read(life, 1) != b"g":
        os._exit(0)
    _tie_to(life)
    me = os.getpid()
    message = _attempt(store, job, task, fence)
    _flush()
    if os.getpid() != me:  # a process the user's code forked, which has not to report for it
        os._exit(0 if message["outcome"] == "success" else 1)
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
    raise Interrupted


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


def _send(report: int, message: dict[str, Any]) -> None:
    view = memoryview(msgspec.json.encode(message) + b"\n")
    with suppress(BrokenPipeError):
        while view:
            view = view[os.write(report, view) :]


def _attempt(store: Store, job: Job, task: TaskRow, fence: Fence) -> dict[str, Any]:
    """Run the task; whatever it raises is in the log and in the message."""
    try:
        value = _execute(store, job, task, fence)
        result = codec.dump(value, allow_none=True, limit=RESULT_LIMIT).decode()
        return {"outcome": "success", "result": result}
    except Interrupted:
        print("outlast: this attempt was asked to stop", file=sys.stderr)
        return {"outcome": "crashed", "error": "the attempt was asked to stop (SIGTERM)"}
    except SystemExit as stop:
        if stop.code in (None, 0):
            return {"outcome": "success", "result": "null"}
        _print_trace(stop)
        return {"outcome": "failed", "error": f"SystemExit: {stop.code}"}
    except BaseException as error:
        _print_trace(error)
        return {"outcome": "failed", "error": _in_short(error)}


def _print_trace(error: BaseException) -> None:
    """Print a traceback that begins where the user's code does."""
    own, trace = os.path.dirname(os.path.dirname(__file__)) + os.sep, error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _in_short(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files may hold lone surrogates
    return text if len(text) <= 2000 else text[:2000] + "…"


def _execute(store: Store, job: Job, task: TaskRow, fence: Fence) -> Any:
    from ..dags import context as contexts
    from ..dags.loading import load_file

    loaded = load_file(job.file)
    dag = loaded.dags.get(task.scope.dag_id)
    if dag is None or task.scope.task_id not in dag.tasks:
        raise NotFound(f"{job.file} has no task {task.scope.dag_id}/{task.scope.task_id} any more; put it back")
    writer = Writer("task", fence.attempt, None, fence.scope)
    state = TaskState(store.backend, fence.scope, store.config, store.clock, writer, fence)
    operator = dag.tasks[task.scope.task_id]
    context = contexts.build_context(
        dag=dag,
        task=operator,
        run_id=task.scope.run_id,
        map_index=task.scope.map_index,
        try_number=fence.attempt,
        logical_date=moment(job.logical_date),
        params=msgspec.json.decode(job.params),
        task_state_store=state,
        results=AttemptResults(store, fence),
    )
    return contexts.execute(operator, context)


class AttemptResults:
    """What tasks of one run hand to each other, as the running attempt sees it."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self.store, self.fence = store, fence

    def push(self, name: str, value: Any) -> None:
        """Keep a value for the tasks downstream; it follows the same rules as a result."""
        text = codec.dump(value, allow_none=True, limit=RESULT_LIMIT).decode()
        self.store.backend.send(PushResult(self.fence, name, text))

    def pull(self, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None) -> list[tuple[str, int, Any]]:
        """Return (task id, map index, value) of what was pushed, by task id and map index."""
        scope = self.fence.scope
        wanted = None if map_indexes is None else tuple(map_indexes)
        request = PullResults(scope.dag_id, scope.run_id, tuple(task_ids), name, wanted)
        found: Results = self.store.backend.send(request)
        return [(task_id, map_index, codec.load(text)) for task_id, map_index, text in found.rows]
