"""What is done in a task's name when its attempt cannot: cancel its job, call its callbacks; in a fresh process.

Started as `python -m outlast.runner.aftermath` with an `Aftermath` as the line on standard input, for an attempt
that was cancelled, timed out, or is over without a retry left. What it says goes to that attempt's log, and what is to
be told of the job to its standard output, a line each time it knows more: the last one counts. It ends by itself within
its limit.

That it is due is a mark in the store, set together with the end of the attempt. One process at a time does it, counts
that it tries, and takes the mark away when it has: so it is done once, or again after a death before that.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any

import msgspec

from ..errors import Unauthorized
from ..event_requests import EventRow
from ..log_files import log_folder
from ..plans import Plan
from ..requests import Fence, Found, Read
from ..run_requests import Attempts, ListAttempts, NoteAftermath, RunRow, TaskRow
from ..state import TaskState
from ..store import Store
from ..values import TaskScope, Writer
from .attempt import Attempt
from .job import Job
from .logs import log_path
from .remote import is_remote, opened
from .traces import trace_of

__all__ = ["Aftermath", "Ended", "EndedState", "Launched", "job_of", "launch", "main"]

#: Seconds all of it may take: what asks another system tries again for a minute.
LIMIT = 120.0
#: The part of that which the cancelling of a job may take; the rest is for the callback.
CANCEL_PART = 0.75
#: What a server shows in the place of a secret value, as JSON.
_MASKED = '"***"'
#: Exit statuses: done; not done, but another time perhaps; there is nothing to do it with.
DONE, FAILED, NOT_CANCELLABLE = 0, 1, 2


class Aftermath(msgspec.Struct, frozen=True):
    """What to do for an attempt that is over, and why it ended; `callback` is the name of the operator's.

    `final` says that it was the last one: the job is then cancelled only where `cancel_on_final_failure` wants it.
    `asked` says that a person asks for it now, whether or not it is due.
    """

    job: Job
    attempt: int
    why: str
    cancel: bool = False
    final: bool = False
    callback: str | None = None
    limit: float = LIMIT
    asked: bool = False


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


class Launched:
    """An aftermath in a process of its own, which outlives whoever started it.

    `log` is the open log of its attempt where it could not open that itself; `environ` and `options` (of `subprocess`)
    are of one that is another user's.
    """

    def __init__(
        self,
        aftermath: Aftermath,
        log: int | None = None,
        environ: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.aftermath, self._why_killed = aftermath, ""
        self._last: tuple[str, str] | None = None
        with ExitStack() as opened:
            self._said = opened.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "outlast.runner.aftermath"],
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=subprocess.DEVNULL if log is None else log,
                start_new_session=True,
                env=environ,
                **(options or {}),
            )
            opened.pop_all()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(aftermath) + b"\n")
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already, as its exit status says

    @property
    def ended(self) -> bool:
        """Say whether the process has exited."""
        if self.process.poll() is None:
            return False
        self.close()
        return True

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        status = self.process.wait(seconds)
        self.close()
        return status

    def kill(self, why: str) -> None:
        """End it at once, with what it has started."""
        self._why_killed = why
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """Look no more at what it says; a process that has not ended goes on."""
        self._last = self._told
        self._said.close()
        self.process.returncode = self.process.poll() or DONE  # or it would count as forgotten

    @property
    def log(self) -> str:
        """The log of the attempt it is about, where all it says is."""
        return log_path(self.aftermath.job.logs, self.aftermath.job.scope, self.aftermath.attempt)

    @property
    def left(self) -> tuple[str, str] | None:
        """The job that was not cancelled, or is not yet, in words, and why; None where there is nothing to tell.

        What is not about a job is in the log alone.
        """
        if self._why_killed and self.aftermath.cancel:
            return (self._told or ("its job", ""))[0], self._why_killed
        return None if self.process.poll() == DONE else self._told

    @property
    def unfinished(self) -> str | None:
        """The line a person is told of such a job."""
        if self.left is None:
            return None
        job, reason = self.left
        return f"{job} of {_name(self.aftermath.job.scope)} was NOT cancelled: {reason}; see {self.log}"

    @property
    def under_way(self) -> str:
        """The line a person is told when nobody waits for its end."""
        told, name = self._told, _name(self.aftermath.job.scope)
        what = f"what is due after {name} is still being done"
        if told is not None:
            what = f"{told[0]} of {name} is still being cancelled"
        return f"{what}, by process {self.process.pid}; see {self.log}"

    @property
    def _told(self) -> tuple[str, str] | None:
        """What it has said last of the job."""
        if self._said.closed:
            return self._last
        lines = os.pread(self._said.fileno(), 1 << 20, 0).splitlines()
        return msgspec.json.decode(lines[-1], type=tuple[str, str]) if lines else None


def _name(scope: TaskScope) -> str:
    return scope.task_id if scope.map_index < 0 else f"{scope.task_id}[{scope.map_index}]"


def launch(
    aftermath: Aftermath,
    *,
    log: int | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Launched:
    """Start the process; it needs nobody to wait for it."""
    return Launched(aftermath, log, environ, options)


# --- The process itself --------------------------------------------------------------------------------------


def main() -> int:
    """Do what standard input says."""
    aftermath = msgspec.json.decode(sys.stdin.buffer.readline(), type=Aftermath)
    told = os.dup(1)
    _use_log(aftermath)
    faulthandler.dump_traceback_later(aftermath.limit, exit=True)
    try:
        with opened(aftermath.job) as store:
            fcntl.flock(2, fcntl.LOCK_EX)  # another one may be at it
            return Ended(store, aftermath.job, aftermath.attempt, told).see_to(aftermath)
    except Exception as error:
        print(f"outlast: after this attempt: {error}", file=sys.stderr)
        return FAILED


def _use_log(aftermath: Aftermath) -> None:
    """Have everything said go to the attempt's log: the file that standard error is, or else its own."""
    log = 2
    if not stat.S_ISREG(os.fstat(2).st_mode):
        path = log_path(aftermath.job.logs, aftermath.job.scope, aftermath.attempt)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        log = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    sys.stdout.flush()
    for target in (1, 2):
        os.dup2(log, target)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


class _TooLong(BaseException):
    """Raised in user's code that has had its time; no `Exception`, so that what tries again does not catch it."""


class EndedState(TaskState):
    """The state of a task for an attempt that is over: it may read always, and write while no newer one has begun.

    A person may do that whose token does not show secret values: a mask must not be taken for the value.
    """

    shows_masks = False

    def _find(self, names: tuple[str, ...] | None, prefix: str = "", texts: bool = True) -> Plan[Found]:
        found: Found = yield Read(self.scope, names, prefix, texts=texts)
        masked = [row.name for row in found.rows if row.text == _MASKED] if self.shows_masks else []
        if masked:
            raise Unauthorized(f"{masked[0]!r} is a secret key, whose value your token does not show; use an admin's")
        return found


class Ended(Attempt):
    """An attempt that is over, with its operator and context as they were; `told` is where lines about its job go."""

    def __init__(self, store: Store, job: Job, number: int, told: int | None = None) -> None:
        task = self._found(store, job)
        super().__init__(store, job, task, Fence(job.scope, number, task.scope_id))
        self.told, self.which = told, "its job"

    @staticmethod
    def _found(store: Store, job: Job) -> TaskRow:
        """Return the task instance as it is now; an attempt that runs knows that, as long as it is the newest."""
        if job.begun is not None:
            fence = Fence(job.begun.scope, job.begun.attempt, job.begun.scope_id)
            store.backend.send(Read(fence.scope, (), fence=fence))  # StaleAttempt, if it is superseded
            return job.begun
        found: Attempts = store.backend.send(ListAttempts(job.scope))
        return found.task

    def restore(self, state: TaskState | None = None) -> Any:
        """Load the task and build its context with a state; return the operator, its references replaced."""
        from ..dags import assets
        from ..dags import context as contexts

        self._prepare()
        writer = Writer("task", self.fence.attempt, None, self.fence.scope)
        store = self.store
        if state is None:
            state = EndedState(store.backend, self.task.scope, store.config, store.clock, writer, self.fence)
            state.shows_masks = self.job.client is None and is_remote(store)
        self.context["task_state_store"] = state
        assets.provide(self.context, state, self.job.events)
        assert self.operator is not None
        self.operator = contexts._with_values(self.operator, self.context["ti"])
        contexts.replace_task(self.context, self.operator)
        return self.operator

    def see_to(self, aftermath: Aftermath) -> int:
        """Do what is due, unless it is due no more; return the exit status."""
        due, running = self.task.aftermath is not None, self.task.state == "running"
        if self.task.attempt != self.fence.attempt or not (due or running or aftermath.asked):
            return DONE
        if self.job.client is None:  # else whoever gave the token has counted it
            self._note(done=False)
        status = self.do(aftermath)
        if status != FAILED:
            self._note(done=True)
        return status

    def _note(self, done: bool) -> None:
        self.store.backend.send(NoteAftermath(self.job.scope, self.fence.attempt, done))

    def do(self, aftermath: Aftermath) -> int:
        """Cancel the job and call the callback as told; return the exit status."""
        from ..dags.context import entered
        from ..dags.outcomes import TaskError

        try:
            self.restore()
        except Exception as error:
            if aftermath.cancel and not aftermath.final:
                self._tell("its job", f"{error}")
            raise
        self.context["exception"] = TaskError(aftermath.why)
        with entered(self.context):
            status = self._cancel(aftermath) if aftermath.cancel else DONE
            if aftermath.callback is not None:
                self._call(aftermath.callback, self.task.state)
        return status

    def _cancel(self, aftermath: Aftermath) -> int:
        from ..dags.job_cancelling import NotCancellable
        from ..dags.resumable import ResumableJobMixin

        operator = self.operator
        if not isinstance(operator, ResumableJobMixin):
            return DONE
        if aftermath.final and not operator.cancel_on_final_failure:
            return DONE
        seconds = aftermath.limit * CANCEL_PART
        self._tell(self.which, f"that was not over within {aftermath.limit:g} s")
        signal.signal(signal.SIGALRM, self._too_long)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            print(f"outlast: {self._end_job(operator, aftermath)}", file=sys.stderr)
            return DONE
        except NotCancellable as error:
            self._report(error, f"{error}", trace=False)
            return NOT_CANCELLABLE
        except _TooLong as error:
            self._report(error, f"that was not over within {seconds:g} s")
        except Exception as error:
            self._report(error, f"{type(error).__name__}: {error}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return FAILED

    def _end_job(self, operator: Any, aftermath: Aftermath) -> str:
        from ..dags.job_cancelling import end_job, stored_job
        from ..dags.resumable import ABSENT

        job = stored_job(operator, self.context)
        if job is ABSENT:
            return "no job is stored"
        self.which = f"job {job!r}"
        self._tell(self.which, f"that was not over within {aftermath.limit:g} s")
        return end_job(operator, job, self.context)

    def _report(self, error: BaseException, reason: str, trace: bool = True) -> None:
        text = f"outlast: {self.which} was NOT cancelled: {reason}\n"
        sys.stderr.write(text + (trace_of(error) if trace else ""))
        self._tell(self.which, reason)

    def _tell(self, job: str, reason: str) -> None:
        """Say on standard output what is to be told of a job unless there is more to say."""
        if self.told is not None:
            short = " ".join(reason.split())[:500]
            with suppress(OSError):
                os.write(self.told, msgspec.json.encode((job, short)) + b"\n")

    @staticmethod
    def _too_long(number: int, frame: FrameType | None) -> None:
        raise _TooLong("the time for cancelling is over")


if __name__ == "__main__":
    sys.exit(main())
