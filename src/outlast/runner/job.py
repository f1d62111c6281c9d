"""What carries work: "execute task instance X, attempt after N", and the process that supervises it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

import msgspec

from ..run_requests import Deferral, EventRow, NewEvent, Outcome
from ..values import TaskScope

__all__ = ["AT_TIMEOUT", "STOP", "Job", "LocalWorker", "Told"]


#: What asks a child to stop: SIGINT for a pause, SIGTERM for good.
STOP = frozenset({signal.SIGINT, signal.SIGTERM})
#: What of a task's callbacks may be called for an attempt that ran out of time.
AT_TIMEOUT = ("on_retry_callback", "on_failure_callback")


class Told(msgspec.Struct, frozen=True):
    """What a child says of how its attempt ended. `retry_at` is of a rescheduled one, in microseconds."""

    outcome: Outcome
    result: str | None = None
    error: str | None = None
    retry: bool = True
    retry_at: int = 0
    deferral: Deferral | None = None
    events: tuple[NewEvent, ...] = ()


class Job(msgspec.Struct, frozen=True):
    """Everything an attempt needs to know; times in seconds.

    `after` is the number of the attempt before it. `file` is the DAG file; `params` and `logical_date`
    are the run's. `callbacks` names those of the task that are called for an attempt that ran out of time.
    """

    url: str
    scope: TaskScope
    after: int
    file: str
    params: str
    logical_date: int
    logs: str
    lease: float
    crash_retries: int
    retries: int = 0
    retry_delay: float = 0.0
    exponential: bool = False
    max_retry_delay: float | None = None
    timeout: float | None = None
    clear_state: bool = False
    events: tuple[EventRow, ...] = ()
    cancellable: bool = False
    callbacks: tuple[str, ...] = ()

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures: the delay, doubled each time if exponential.

        At most `max_retry_delay`; without one doubling ends at a day.
        """
        limit = self.max_retry_delay
        if not self.exponential:
            return self.retry_delay if limit is None else min(self.retry_delay, limit)
        longest = max(self.retry_delay, 86_400.0) if limit is None else limit
        return min(self.retry_delay * 2.0 ** min(failures - 1, 60), longest)

    @staticmethod
    def crash_delay(crashes: int) -> float:
        """Return the seconds to wait after so many deaths: none after the first, then 1, 2, 4, … up to 30."""
        return 0.0 if crashes <= 1 else min(2.0 ** min(crashes - 2, 5), 30.0)


class LocalWorker:
    """A supervisor process on this host, in a session of its own so that Ctrl-C reaches only the runner.

    It lives as long as its standard input is open: closing it asks for a pause, as the runner's death does.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "outlast.runner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
            bufsize=0,
        )
        self._write(msgspec.json.encode(job) + b"\n")

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError, ValueError):
            assert self.process.stdin is not None
            view = memoryview(data)
            while view:
                view = view[self.process.stdin.write(view) or 0 :]

    @property
    def ended(self) -> bool:
        """Say whether the supervisor process has exited."""
        return self.process.poll() is not None

    def pause(self) -> None:
        """Ask it to stop its child and give the attempt back."""
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def stop(self) -> None:
        """Ask it to stop its child; the attempt is somebody else's already."""
        self._write(b"stop\n")

    def kill(self) -> None:
        """End it at once, also when it is stopped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def errors(self) -> str:
        """Return what it wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        """Release its pipe and file; the process must have ended."""
        self.pause()
        self._errors.close()
