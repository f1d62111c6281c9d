"""See to what is due after the attempts of a run: have it done, again if that fails, and tell what was not done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from ..dags.job_cancelling import may_have_job
from ..errors import NotFound
from ..event_requests import EventRow
from ..run_requests import Attempts, ListAttempts, NoteAftermath, RunRow, TaskRow
from ..store import Store
from ..values import TaskScope
from .aftermath import DONE, FAILED, NOT_CANCELLABLE, Aftermath, Launched, job_of
from .processes import is_for_want_of_room
from .starting import Starter

if TYPE_CHECKING:
    from ..dags.graph import DAG

__all__ = ["MOST", "Afterwards"]

#: Times a runner tries it, and times all runners together do.
TRIES, MOST = 3, 10
#: Seconds before it is tried again: as many times these as it was tried.
PAUSE = 2.0
#: Seconds before a process is started that could not be for want of room.
WAIT_FOR_ROOM = 5.0

Key: TypeAlias = tuple[TaskScope, int]


class Afterwards:
    """What is due after the attempts of one run, and the processes that do it; `say` is told what a person should know.

    That something is due is in the store until it is done, so nothing is lost with a runner.
    """

    def __init__(
        self,
        store: Store,
        dag: DAG,
        run: RunRow,
        say: Callable[[str], None],
        events: tuple[EventRow, ...] = (),
        tries: int = TRIES,
    ) -> None:
        self.store, self.dag, self.run, self.say, self.events = store, dag, run, say, events
        self.tries, self.starter = tries, Starter(store)
        self.launched: dict[Key, Launched] = {}
        self.tried: dict[Key, int] = {}
        self.again_at: dict[Key, float] = {}
        self.is_busy = False

    def look(self, rows: Iterable[TaskRow]) -> None:
        """Begin what is due, and deal with what has ended; afterwards `is_busy` says whether anything is left to do."""
        for key, launched in list(self.launched.items()):
            if launched.ended:
                del self.launched[key]
                self._after(key, launched)
        due = [row for row in rows if self.is_due(row)]
        for row in due:
            key = (row.scope, row.attempt)
            if key not in self.launched and time.monotonic() >= self.again_at.get(key, 0.0):
                self._begin(key, row)
        self.is_busy = bool(self.launched or any(self.is_due(row) for row in due))

    def is_due(self, row: TaskRow) -> bool:
        """Say whether something is due after a task instance's last attempt, and is still tried."""
        tried = self.tried.get((row.scope, row.attempt), 0)
        return row.aftermath is not None and row.aftermath < MOST and tried < self.tries

    def leave(self) -> None:
        """Tell what is under way, which ends by itself, when nobody waits for it any more."""
        for launched in self.launched.values():
            if not launched.ended:
                self.say(launched.under_way)
                launched.close()
            elif launched.unfinished is not None:
                self.say(launched.unfinished)

    def _begin(self, key: Key, row: TaskRow) -> None:
        aftermath = self._aftermath(row)
        if aftermath is None:
            self.tried[key] = self.tries
            with suppress(NotFound):
                self.store.backend.send(NoteAftermath(row.scope, row.attempt, done=True))
            return
        try:
            self.launched[key] = self.starter.aftermath(aftermath, self.dag.tasks[row.scope.task_id])
        except NotFound:
            self.tried[key] = self.tries
            return
        except OSError as error:
            if not is_for_want_of_room(error):
                raise
            self.again_at[key] = time.monotonic() + WAIT_FOR_ROOM
            self.say(f"what is due after {row.scope} cannot be started ({error.strerror}); trying again")
            return
        self.again_at[key] = float("inf")

    def _aftermath(self, row: TaskRow) -> Aftermath | None:
        """Return what there is to do; None where the task has neither a job nor a callback for it."""
        operator, final = self.dag.tasks[row.scope.task_id], row.state == "failed" and not row.cancel_due
        has_failed = row.state == "failed" and self._has_died(row)
        callback = "on_failure_callback" if has_failed and operator.on_failure_callback else None
        wanted = not final or getattr(operator, "cancel_on_final_failure", True)
        cancel = may_have_job(operator) and wanted
        if callback is None and not cancel:
            return None
        job, why = job_of(self.store, self.run, row, self.events), row.error or row.state
        return Aftermath(job, row.attempt, why, cancel=cancel, final=final, callback=callback)

    def _has_died(self, row: TaskRow) -> bool:
        """Say whether the last attempt ended without its own code having a say."""
        found: Attempts = self.store.backend.send(ListAttempts(row.scope))
        return bool(found.attempts) and found.attempts[-1].state == "crashed"

    def _after(self, key: Key, launched: Launched) -> None:
        status, line = launched.wait(), launched.unfinished
        tried = self.tried[key] = self.tried.get(key, 0) + 1
        again = status not in (DONE, NOT_CANCELLABLE) and tried < self.tries
        self.again_at[key] = time.monotonic() + PAUSE * tried
        if line is not None:
            self.say(line + (", and it is tried again" if again else ""))
        if status in (DONE, NOT_CANCELLABLE):
            self.tried[key] = self.tries
        elif line is None and not again and status != FAILED:
            self.say(f"what was due after {key[0]} was not done: its process ended {tried} times (status {status})")
