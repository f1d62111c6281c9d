"""What is done in a task's name when its attempt cannot: cancel its job, call its callbacks; in a fresh process.

Started as `python -m outlast.runner.aftermath` with an `Aftermath` as the line on standard input, for an attempt
that was cancelled, timed out, or died without a retry left. What it says goes to that attempt's log, and it
ends by itself within its limit. The exit status is 0 when all was done.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import traceback
from typing import Any

import msgspec

from ..plans import Plan
from ..requests import Fence, Found, Read
from ..run_requests import Attempts, EventRow, ListAttempts, RunRow, TaskRow
from ..state import TaskState
from ..store import Store, connect
from ..values import Writer
from .attempt import Attempt
from .job import Job
from .logs import log_folder, log_path

__all__ = ["Aftermath", "Ended", "EndedState", "job_of", "launch", "main"]

#: Seconds all of it may take: what asks another system tries again for a minute.
LIMIT = 120.0


class Aftermath(msgspec.Struct, frozen=True):
    """What to do for an attempt that is over, and why it ended; `callback` is the name of the operator's.

    `final` says that it was the last one: the job is then cancelled only where `cancel_on_final_failure` wants it.
    """

    job: Job
    attempt: int
    why: str
    cancel: bool = False
    final: bool = False
    callback: str | None = None
    limit: float = LIMIT


def job_of(store: Store, run: RunRow, task: TaskRow, events: tuple[EventRow, ...] = ()) -> Job:
    """Return what it takes to load a task instance's file and build its context."""
    return Job(
        url=store.url,
        scope=task.scope,
        after=task.attempt,
        file=run.file,
        params=run.params,
        logical_date=run.logical_date,
        logs=log_folder(store.config, store.url),
        lease=store.config.runner.lease_seconds,
        crash_retries=store.config.runner.crash_retries,
        events=events,
    )


def launch(aftermath: Aftermath) -> subprocess.Popen[bytes]:
    """Start the process; it needs nobody to wait for it, and outlives whoever started it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "outlast.runner.aftermath"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(aftermath) + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended already, as its exit status says
    return process


def main() -> int:
    """Do what standard input says."""
    aftermath = msgspec.json.decode(sys.stdin.buffer.readline(), type=Aftermath)
    _use_log(aftermath)
    faulthandler.dump_traceback_later(aftermath.limit, exit=True)
    try:
        with connect(aftermath.job.url) as store:
            return 0 if Ended(store, aftermath.job, aftermath.attempt).do(aftermath) else 1
    except Exception as error:
        print(f"outlast: after this attempt: {error}", file=sys.stderr)
        return 1


def _use_log(aftermath: Aftermath) -> None:
    """Have everything said go to the attempt's log."""
    path = log_path(aftermath.job.logs, aftermath.job.scope, aftermath.attempt)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    sys.stdout.flush()
    for target in (1, 2):
        os.dup2(log, target)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


class EndedState(TaskState):
    """The state of a task for an attempt that is over: it may read always, and write while no newer one has begun."""

    def _find(self, names: tuple[str, ...] | None, prefix: str = "", texts: bool = True) -> Plan[Found]:
        return (yield Read(self.scope, names, prefix, texts=texts))  # type: ignore[no-any-return]


class Ended(Attempt):
    """An attempt that is over, with its operator and context as they were."""

    def __init__(self, store: Store, job: Job, number: int) -> None:
        found: Attempts = store.backend.send(ListAttempts(job.scope))
        super().__init__(store, job, found.task, Fence(job.scope, number, found.task.scope_id))

    def restore(self, state: TaskState | None = None) -> Any:
        """Load the task and build its context with a state; return the operator, its references replaced."""
        from ..dags import assets
        from ..dags import context as contexts

        self._prepare()
        writer = Writer("task", self.fence.attempt, None, self.fence.scope)
        store = self.store
        if state is None:
            state = EndedState(store.backend, self.task.scope, store.config, store.clock, writer, self.fence)
        self.context["task_state_store"] = state
        assets.provide(self.context, state, self.job.events)
        assert self.operator is not None
        self.operator = contexts._with_values(self.operator, self.context["ti"])
        contexts.replace_task(self.context, self.operator)
        return self.operator

    def do(self, aftermath: Aftermath) -> bool:
        """Cancel the job and call the callback as told; say whether the job is seen to."""
        from ..dags.context import entered
        from ..dags.outcomes import TaskError

        self.restore()
        self.context["exception"] = TaskError(aftermath.why)
        with entered(self.context):
            done = self._cancel(aftermath.final) if aftermath.cancel else True
            if aftermath.callback is not None:
                self._call(aftermath.callback)
        return done

    def _cancel(self, final: bool) -> bool:
        from ..dags.job_cancelling import cancel_stored_job
        from ..dags.resumable import ResumableJobMixin

        if not isinstance(self.operator, ResumableJobMixin) or (final and not self.operator.cancel_on_final_failure):
            return True
        try:
            print(f"outlast: {cancel_stored_job(self.operator, self.context)}", file=sys.stderr)
            return True
        except Exception as error:
            print("outlast: the job could not be cancelled:", file=sys.stderr)
            traceback.print_exception(error)
            return False


if __name__ == "__main__":
    sys.exit(main())
