"""What carries work: "execute task instance X, attempt after N", and the process that supervises it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from ..config import ClientSettings, StateStoreSettings
from ..deferral_requests import Deferral
from ..event_requests import EventRow
from ..run_requests import NewEvent, Outcome, TaskRow
from ..values import TaskScope

__all__ = ["AT_TIMEOUT", "STOP", "Job", "LocalWorker", "Told", "received"]


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

    Behind a server the attempt has `begun` already, and `client` has its token: with `state_store` these are all its
    settings, since it looks for no others.
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
    begun: TaskRow | None = None
    client: ClientSettings | None = None
    state_store: StateStoreSettings | None = None

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


def received(place: int, *, with_log: bool) -> tuple[bytes, bytes, int | None]:
    """Read the line of a job from an open file; return it with what came after it, and the open log that came along."""
    parts: list[bytes] = []
    log: int | None = None
    if with_log:
        import socket

        with socket.socket(fileno=os.dup(place)) as commands:
            data, files, *_ = socket.recv_fds(commands, 65536, 1)
        parts, log = [data], next(iter(files), None)
    while not parts or b"\n" not in parts[-1]:
        if parts and not parts[-1]:
            raise SystemExit(0)
        parts.append(os.read(place, 65536))
    line, _, command = b"".join(parts).partition(b"\n")
    return line, command, log


class LocalWorker:
    """A supervisor process on this host, in a session of its own so that Ctrl-C reaches only the runner.

    It waits for its job, and lives as long as its standard input is open: the end of that, as by the runner's death,
    is a pause too. `environ` and `options` (of `subprocess`) are of one that is another user's.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None) -> None:
        import socket  # costs what reads this module, but starts no worker, 3 ms

        with ExitStack() as opened:
            self._errors = opened.enter_context(tempfile.TemporaryFile())
            self._said = opened.enter_context(tempfile.TemporaryFile())
            commands, theirs = socket.socketpair()
            self._commands = opened.enter_context(commands)
            with theirs:
                self.process = self._started(theirs.fileno(), environ, options)
            opened.pop_all()

    def _started(
        self, commands: int, environ: Mapping[str, str] | None, options: Mapping[str, Any] | None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "outlast.runner.worker", *(["log"] if options else [])],
            stdin=commands,
            stdout=self._said,
            stderr=self._errors,
            start_new_session=True,
            env=environ,
            **(options or {}),
        )

    def give(self, job: Job, log: int | None = None) -> None:
        """Hand it what it has to do, and the open log where it could not open that itself."""
        line = msgspec.json.encode(job) + b"\n"
        if log is not None:
            import socket

            with suppress(OSError):
                sent = socket.send_fds(self._commands, [line], [log])
                self._write(line[sent:])
            return
        self._write(line)

    def _write(self, data: bytes) -> None:
        with suppress(OSError):
            self._commands.sendall(data)

    @property
    def ended(self) -> bool:
        """Say whether the supervisor process has exited."""
        return self.process.poll() is not None

    def pause(self) -> None:
        """Ask it to stop its child and give the attempt back."""
        self._write(b"pause\n")
        self._commands.close()

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

    def said(self) -> list[str]:
        """Return what it wrote to standard output: lines a person should be told."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace").splitlines()

    def close(self) -> None:
        """Release its pipe and files; the process must have ended."""
        self.pause()
        self._errors.close()
        self._said.close()
