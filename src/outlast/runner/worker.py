"""Supervise one attempt: claim it, start the child with the user's code, renew the lease, kill, report.

Started by a runner as `python -m outlast.runner.worker` with a `Job` as the first line of standard input.
The line "pause", or the end of standard input (the runner is gone), means a pause: the child is stopped and the
attempt given back without counting. It never renews for a child that is stopped. What it writes to standard output,
the runner tells people.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..errors import BackendError, Conflict, StaleAttempt
from ..requests import Fence
from ..run_requests import Begin, Outcome, Renew, Report, TaskRow
from ..store import Store
from . import processes
from .job import STOP, Job, Told, received
from .logs import log_path
from .remote import Renewed, in_its_name, opened

if TYPE_CHECKING:
    from .aftermath import Launched

__all__ = ["main"]

T = TypeVar("T")

#: Seconds a child has between SIGTERM and SIGKILL, and between its report and its end.
GRACE = 5.0
#: Seconds for which a report is tried again while the store cannot be reached.
REPORT_FOR = 120.0
#: Seconds for which a call is tried again, behind a server, before the child is looked after.
ONE_CALL = 1.0
#: Seconds for which a task that is rescheduled, or deferred once more, waits at least.
SHORTEST_WAIT = 0.5
#: Where the job and the runner's commands come from: standard input.
COMMANDS = 0
#: Seconds the cancelling of a job and a callback may take, and how long a pause waits for them.
CANCEL_FOR, CANCEL_AT_PAUSE = 60.0, 1.0
#: Exit status when somebody else had begun the attempt already.
TAKEN = 3


def main() -> int:
    """Run one attempt; the exit status is 0 when its end was recorded (or is another's to record)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line, command, log = received(COMMANDS, with_log=sys.argv[1:] == ["log"])
    job = msgspec.json.decode(line, type=Job)
    if command and job.begun is None:
        return TAKEN
    with opened(job, retry_for=None if job.begun is None else ONE_CALL) as store:
        task = job.begun
        if task is None:
            try:
                task = store.backend.send(Begin(job.scope, after=job.after, supervisor=processes.me(), lease=job.lease))
            except Conflict:
                return TAKEN
        return Supervisor(store, job, task, log).run(command)


class Supervisor:
    """One attempt from its claim to its report."""

    def __init__(self, store: Store, job: Job, task: TaskRow, log: int | None = None) -> None:
        self.store, self.job, self.task, self.log = store, job, task, log
        self.fence = Fence(task.scope, task.attempt, task.scope_id)
        self.renewed: Renewed | None = None
        self.message = b""
        self.status: int | None = None
        self.started = False
        self.stopped = False
        self.ending: Outcome | None = None
        self.why = ""
        self.abandoned = False
        self.kill_at: float | None = None
        self.cancel_due = False

    def run(self, command: bytes = b"") -> int:
        """Start the child, watch it to its end, report; `command` has come together with the job."""
        if command:
            self.ending, self.why = "paused", "the runner paused"
            return self._report()
        wake, self.wake_write = os.pipe()
        for end in (wake, self.wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self._spawn()
        try:
            self._watch(wake)
        finally:
            self._kill(signal.SIGKILL)
            if self.renewed is not None:
                self.renewed.close()
                self.renewed = None
        if self.ending == "failed" and not self.abandoned:
            self._see_to_timeout()
        return 0 if self.abandoned else self._report()

    def _see_to_timeout(self) -> None:
        """Have the job of an attempt that ran out of time cancelled, before another attempt can reconnect to it.

        And have its callback called, unless its own code has ended it in time and has done so.
        """
        from .aftermath import DONE, NOT_CANCELLABLE, Aftermath, launch

        told = self._told()
        again = self.task.failures + 1 <= self.job.retries
        name = "on_retry_callback" if again else "on_failure_callback"
        callback = name if name in self.job.callbacks and (told is None or told.outcome == "crashed") else None
        if callback is None and not self.job.cancellable:
            return
        self.stopped = False
        job = in_its_name(self.store, self.job)  # its claim holds until it is reported
        aftermath = Aftermath(
            job, self.task.attempt, self.why, cancel=self.job.cancellable, callback=callback, limit=CANCEL_FOR
        )
        self._wait_for(launched := launch(aftermath, log=self.log))
        self.cancel_due = self.job.cancellable and launched.wait() not in (DONE, NOT_CANCELLABLE)
        if launched.unfinished is not None and not self.abandoned:
            print(launched.unfinished, flush=True)

    def _wait_for(self, launched: Launched) -> None:
        """Wait for what is done after this attempt, which a pause does not: what is not done then is due later."""
        give_up_at = math.inf
        while not launched.ended:
            if time.monotonic() >= self.renew_at:
                self._renew()  # the lease holds meanwhile
            listen = [COMMANDS] if give_up_at == math.inf else []
            ready, _, _ = select.select(listen, [], [], 0.05)
            if ready:
                self.abandoned |= b"stop" in os.read(COMMANDS, 4096)
                give_up_at = time.monotonic() + CANCEL_AT_PAUSE
            if self.abandoned or time.monotonic() >= give_up_at:
                launched.kill("the runner paused meanwhile")

    def _spawn(self) -> None:
        """Fork the child; it runs the user's code only after its process group has been recorded."""
        life_read, self.life = os.pipe()
        if self.job.client is not None:
            self.renewed = Renewed(self.store)
        self.report_read, report_write = os.pipe()
        log = self._open_log() if self.log is None else os.dup(self.log)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # until the child can be told that way to stop
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.life)
            os.close(self.report_read)
            _become_child(self, life_read, report_write, log)
        for end in (life_read, report_write, log):
            os.close(end)
        os.set_blocking(self.report_read, False)
        self.child = processes.identify(self.pid)
        self.began = time.monotonic()
        self._renew()

    def _open_log(self) -> int:
        path = log_path(self.job.logs, self.task.scope, self.task.attempt)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)

    def _watch(self, wake: int) -> None:
        inputs = {wake, COMMANDS, self.report_read}
        while self.status is None:
            ready, _, _ = select.select(inputs, [], [], self._patience())
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, 4096)
            if self.report_read in ready and self._read_message():
                inputs.discard(self.report_read)
            if COMMANDS in ready and self._command() == b"":
                inputs.discard(COMMANDS)
            self._look_at_child()
            self._keep_time()
        self._read_message()

    def _patience(self) -> float:
        """Return how long nothing needs doing, in seconds."""
        now = time.monotonic()
        moments = [self.renew_at, self.kill_at, self._timeout_at()]
        return max(0.0, min(moment for moment in moments if moment is not None) - now)

    def _timeout_at(self) -> float | None:
        pending = self.job.timeout is not None and self.ending is None and not self.message
        return self.began + (self.job.timeout or 0.0) if pending else None

    # --- what happens ----------------------------------------------------------------------------------------

    def _read_message(self) -> bool:
        """Take in what the child says, and return whether that was all; a whole message leaves it a moment to end."""
        closed = False
        with suppress(BlockingIOError):
            while data := os.read(self.report_read, 65536):
                self.message += data
            closed = True
        if self.message.endswith(b"\n") and self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE
        return closed

    def _command(self) -> bytes:
        """Obey the runner: "stop" abandons the attempt, the end of input pauses it."""
        data = os.read(COMMANDS, 4096)
        if b"stop" in data:
            self.abandoned = True
            self._end("paused", "stopped")
        elif b"pause" in data:
            self._end("paused", "the runner paused", signal.SIGINT)
        elif data == b"":
            self._end("paused", "its runner was gone", signal.SIGINT)
        return data

    def _look_at_child(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status) or os.WIFCONTINUED(status):
            self.stopped = os.WIFSTOPPED(status)
            self.renew_at = time.monotonic()  # at once when it goes on: it may have been stopped for long
        else:
            self.status = status

    def _keep_time(self) -> None:
        now = time.monotonic()
        timeout_at = self._timeout_at()
        if timeout_at is not None and now >= timeout_at:
            self._end("failed", f"execution_timeout: still running after {self.job.timeout:g} s")
        if self.kill_at is not None and now >= self.kill_at:
            self._kill(signal.SIGKILL)
            self.kill_at = now + GRACE
        if now >= self.renew_at:
            self._renew()

    def _renew(self) -> None:
        """Keep the claim, unless the child is stopped; a claim that is another's ends the child at once.

        The first time it records the child's process group, and then lets it begin.
        """
        self.renew_at = time.monotonic() + self.job.lease / 3
        if self.stopped:
            return
        try:
            self.store.backend.send(Renew(self.fence, self.job.lease, self.child))
            if self.renewed is not None:
                self.renewed.note()
            self._let_begin()
        except StaleAttempt as stale:
            self.abandoned = True
            self.why = stale.message
            self._kill(signal.SIGKILL)
        except BackendError:
            self.renew_at = time.monotonic() + min(1.0, self.job.lease / 3)

    def _let_begin(self) -> None:
        if not self.started and self.ending is None:
            self.started = True
            with suppress(BrokenPipeError):
                os.write(self.life, b"g")

    # --- ending ------------------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, why: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask the child to end, and make it if it does not."""
        if self.ending is None:
            self.ending, self.why = outcome, why
            self._kill(how)
            self._kill(signal.SIGCONT)
            self.kill_at = time.monotonic() + GRACE

    def _kill(self, how: signal.Signals) -> None:
        """Signal the child's group, which it may not have made yet; whatever is left of it when the child has ended."""
        with suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, how)
            except ProcessLookupError:
                if self.status is None:
                    os.kill(self.pid, how)

    def _report(self) -> int:
        report = self._outcome()
        with suppress(StaleAttempt):
            self._insist(partial(self.store.backend.send, report))
        return 0

    def _insist(self, call: Callable[[], T]) -> T:
        """Make a call, again and again while the store cannot be reached.

        A server is waited for as long as the runner does, whatever else for a while.
        """
        deadline = time.monotonic() + REPORT_FOR if self.job.client is None else math.inf
        while True:
            try:
                return call()
            except BackendError:
                if time.monotonic() > deadline:
                    raise
            ready, _, _ = select.select([COMMANDS] if deadline == math.inf else [], [], [], 0.5)
            if ready:
                os.read(COMMANDS, 4096)
                deadline = time.monotonic() + REPORT_FOR

    def _outcome(self) -> Report:
        """Say how the attempt ended: by the child's own words, else by how it died."""
        told = self._told()
        if told is not None and told.outcome not in ("failed", "crashed"):
            return self._made(told)
        if self.ending is not None:
            return self._made(Told(self.ending, error=self.why))
        return self._made(told or Told("crashed", error=_death(self.status or 0)))

    def _told(self) -> Told | None:
        return msgspec.json.decode(self.message, type=Told) if self.message.endswith(b"\n") else None

    def _made(self, told: Told) -> Report:
        job, now = self.job, self.store.clock()
        delays = {"failed": job.delay(self.task.failures + 1), "crashed": job.crash_delay(self.task.crashes + 1)}
        delay = delays.get(told.outcome, self._shortest_wait(told))
        return Report(
            self.fence,
            told.outcome,
            told.result,
            told.error,
            job.retries if told.retry else 0,
            job.crash_retries,
            max(told.retry_at, now + int(delay * 1_000_000)) if delay is not None else 0,
            clear_state=job.clear_state,
            deferral=told.deferral,
            events=told.events,
            cancel_due=self.cancel_due,
        )

    def _shortest_wait(self, told: Told) -> float | None:
        """Return the seconds an attempt that ends only its process waits at least, so that none of them spins."""
        again = told.outcome == "deferred" and self.task.next_method is not None
        return SHORTEST_WAIT if again or told.outcome == "rescheduled" else None


def _death(status: int) -> str:
    """Say in words how a process died without a report."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (perhaps out of memory)" if number == signal.SIGKILL else ""
        return f"the process was killed by {signal.Signals(number).name}{hint}"
    return f"the process exited with status {os.WEXITSTATUS(status)} without reporting"


def _become_child(supervisor: Supervisor, life: int, report: int, log: int) -> None:
    """Turn this fork into the process that runs the user's code; never returns."""
    from .child import live

    try:
        signal.set_wakeup_fd(-1)
        store = supervisor.store if supervisor.renewed is None else supervisor.renewed.opened(supervisor.job)
        live(store, supervisor.job, supervisor.task, supervisor.fence, life, report, log)
    except BaseException:
        import traceback

        with suppress(Exception):
            os.write(log, b"outlast: the attempt could not be reported:\n" + traceback.format_exc().encode())
    finally:
        os._exit(70)


if __name__ == "__main__":
    sys.exit(main())
