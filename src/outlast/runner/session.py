"""Run several runs at once in this process's foreground: signals, slots, waiting, assets, and tidying up."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import BackendError, Conflict, NotFound
from ..event_requests import ConsumedUntil, EventRow, Events, ListEvents
from ..log_files import log_folder
from ..run_requests import ENDED, GetRun, ListRuns, RunDetail, RunPage, RunRow
from ..store import Store
from . import processes
from .afterwards import MOST, Afterwards
from .logs import check_logs
from .loop import Observer, RunEnd, Runner
from .opening import Opening, unfinished
from .patience import Patient
from .tidying import Tidying
from .trigger_host import TriggerHost
from .watching import Watcher, watchers_of

if TYPE_CHECKING:
    from ..dags.graph import DAG

__all__ = ["Ended", "Session"]

#: Seconds between looks at the store when nothing has happened.
LOOK_EVERY = 0.5
#: Runs of a DAG that have ended and whose jobs are still due to be cancelled: so many are seen to at each start.
LOOK_BACK = 20
#: Seconds workers have to stop their children and give their attempts back.
STOP_FOR = 12.0

_OVER = tuple(sorted(ENDED))


class Ended(msgspec.Struct, frozen=True):
    """How one run ended, and what went wrong if it was not its tasks."""

    run: RunRow
    end: RunEnd
    problem: str | None = None


class Session:
    """Everything `outlast run` does at once. `observe` makes the observer of a run.

    With `keep` it stays when its runs have ended, and takes up runs of its DAGs that are cleared or marked later.
    """

    def __init__(
        self,
        store: Store,
        observe: Callable[[DAG, RunRow], Observer],
        say: Callable[[str], None],
        *,
        keep: bool = False,
    ) -> None:
        self.store, self.observe, self.say, self.keep = store, observe, say, keep
        self.settings = store.config.runner
        check_logs(log_folder(store.config, store.url))
        self.runners: list[Runner] = []
        self.openings: dict[str, Opening] = {}
        self.consumers: dict[str, Opening] = {}
        self.closing: list[tuple[Runner, RunEnd, float]] = []
        self.ended: list[Ended] = []
        self.triggers = TriggerHost(store, say)
        self.left: list[Afterwards] = []
        self.watchers: list[Watcher] = []
        self.watching: set[str] = set()
        self.seen_event = -1
        self.stopping: str | None = None
        self.hurry = False
        self.wake_by = store.clock()
        self.tidying = Tidying(store)
        self.lost: BackendError | None = None
        if isinstance(store.backend, Patient):
            store.backend.heed(say, lambda: self.stopping is not None, self._allow_for_sleep)

    def add(self, opening: Opening, run: RunRow) -> None:
        """Take on a run that is held."""
        self.openings[run.dag_id] = opening
        runner = Runner(self.store, opening.dag, run, self.observe(opening.dag, run), self.say, self._events_of(run))
        self.runners.append(runner)

    def consume(self, opening: Opening) -> None:
        """Start a run of a DAG whenever the assets of its schedule have been updated."""
        self.openings[opening.dag.dag_id] = self.consumers[opening.dag.dag_id] = opening
        self._send(ConsumedUntil(opening.dag.dag_id))  # what happens from now on is for it, whoever starts it then
        held = {runner.row.run_id for runner in self.runners if runner.row.dag_id == opening.dag.dag_id}
        for run_id in unfinished(self.store, opening.dag.dag_id):
            if run_id not in held:
                with suppress(Conflict):  # another runner has it
                    self.add(opening, opening.resume(run_id, {}))
        self.watchers = watchers_of((each.loaded.path, each.dag) for each in self.consumers.values())
        if watchers_of([(opening.loaded.path, opening.dag)]):
            self.watching.add(opening.dag.dag_id)

    def run(self) -> list[Ended]:
        """Run until every run has ended, or somebody asks for a pause."""
        with _signals(self) as wake:
            try:
                self._look_back()
                while not self.stopping and (self._step() or self.keep):
                    self._wait(wake)
            finally:
                self._stop_all(wake)
        if self.lost is not None:
            raise self.lost
        return self.ended

    # --- one step ----------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Bring every run on; say whether there is anything left to do."""
        for runner in list(self.runners):
            others = sum(len(other.active) for other in self.runners if other is not runner)
            end = runner.step(max(self.settings.parallelism - others, 0))
            if end is not None:
                self._end(runner, end)
        self._start_consumers()
        if self.keep:
            self._take_up()
        self._close()
        self._see_to_left()
        self._watch_triggers()
        if not any(runner.changed for runner in self.runners):  # there is nothing better to do
            self.tidying.look(self.openings)
        return bool(self.runners or self.closing or self.left or self._is_watching())

    def _is_watching(self) -> bool:
        """Say whether a DAG has yet to be started for what a watcher sees."""
        return bool(self.watching - {ended.run.dag_id for ended in self.ended})

    def _end(self, runner: Runner, end: RunEnd) -> None:
        """Have a run's workers stop, and wait for them before it is let go."""
        runner.stop_workers(for_good=end == "cancelled")
        self.runners.remove(runner)
        self.closing.append((runner, end, time.monotonic() + STOP_FOR))
        self._close()

    def _close(self) -> None:
        """Let the runs go whose workers have stopped, or have had their time to."""
        for closing in list(self.closing):
            runner, end, deadline = closing
            is_over = runner.is_idle or self.hurry or time.monotonic() > deadline
            if is_over and (self.stopping or runner.settles(end)):
                self.closing.remove(closing)
                self._let_go(runner, end)

    def _let_go(self, runner: Runner, end: RunEnd) -> None:
        """Let a run go; while everything stops, a store that cannot be reached holds up none of the others."""
        try:
            self.ended.append(Ended(runner.row, runner.end(end), runner.problem))
        except BackendError as error:
            if not self.stopping:
                raise
            self.lost = error

    def _wait(self, wake: int) -> None:
        """Sleep until a worker exits, a signal comes, something is due, or it is time for a look."""
        seconds = 0.0 if any(runner.changed for runner in self.runners) else LOOK_EVERY
        for runner in self.runners:
            if runner.wake_at is not None:
                seconds = min(seconds, max(0.0, (runner.wake_at - self.store.clock()) / 1e6))
        self.wake_by = self.store.clock() + int(seconds * 1_000_000)
        _drain(wake, seconds)
        if self.store.clock() - self.wake_by > self.settings.lease_seconds * 1_000_000 // 3:
            self._allow_for_sleep()

    def _allow_for_sleep(self) -> None:
        """Give every worker another lease: this process was late, or the server away."""
        for runner in self.runners:
            runner.allow_for_sleep()

    # --- runs that begin later ---------------------------------------------------------------------------------

    def _start_consumers(self) -> None:
        """Start the DAGs whose assets have been updated since they were last started for them."""
        if not self.consumers:
            return
        newest: Events = self._send(ListEvents(limit=0))
        if newest.newest == self.seen_event:
            return
        self.seen_event = newest.newest
        for opening in self.consumers.values():
            events = self._pending(opening.dag)
            if events:
                run_id = f"asset_triggered__{_iso(self.store.clock())}"
                with suppress(Conflict):  # another runner has started it
                    self.add(opening, opening.start(run_id, {}, events=tuple(event.id for event in events)))

    def _pending(self, dag: DAG) -> list[EventRow]:
        """Return the events a DAG is to be started for, or none while its schedule is not fulfilled."""
        consumed: Events = self._send(ConsumedUntil(dag.dag_id))
        after = consumed.newest
        rows: list[EventRow] = []
        condition = dag.asset_condition
        while condition is not None:
            page: Events = self._send(ListEvents(after))
            rows += [event for event in page.rows if condition.concerns(event.name, event.uri)]
            if not page.rows:
                break
            after = page.rows[-1].id
        past = rows[0].id - 1 if rows else after
        if past > consumed.newest:  # so that what no DAG waits for can be pruned, and is not read again
            self._send(ConsumedUntil(dag.dag_id, past))
        updated = [(event.name, event.uri) for event in rows]
        return rows if condition is not None and condition.satisfied(updated) else []

    def _events_of(self, run: RunRow) -> tuple[EventRow, ...]:
        rows: list[EventRow] = []
        for event in run.events:
            rows += self._send(ListEvents(event - 1, 1)).rows
        return tuple(rows)

    def _take_up(self) -> None:
        """Go on with runs that were cleared or marked, unless it was this process that could not go on with them."""
        given_up = {ended.run.id for ended in self.ended if ended.problem}
        held = {runner.row.id for runner in self.runners}
        for dag_id, opening in self.openings.items():
            page: RunPage = self._send(ListRuns(dag_id, ("paused", "running"), limit=20))
            for run, _ in page.runs:
                if run.id not in held | given_up and (run.state == "paused" or _is_left(run)):
                    with suppress(Conflict):
                        self.add(opening, opening.resume(run.run_id, {}))

    # --- what runners before have left ---------------------------------------------------------------------------

    def _look_back(self) -> None:
        """Find runs that have ended with something due after their attempts, and with nobody to see to it.

        What has been tried often enough is no longer due, so that those further back have their turn.
        """
        for opening in self.openings.values():
            found, before = list[Afterwards](), None
            while len(found) < LOOK_BACK:
                page: RunPage = self._send(ListRuns(opening.dag.dag_id, _OVER, before, limit=LOOK_BACK, due=MOST))
                found += filter(None, (self._left_of(opening.dag, run) for run, _ in page.runs))
                if (before := page.before) is None:
                    break
            self.left += found[:LOOK_BACK]

    def _left_of(self, dag: DAG, run: RunRow) -> Afterwards | None:
        """Return what is to be done for a run; None if somebody has it, or the DAG has no such tasks any more."""
        if run.holder is not None and not _is_left(run):
            return None
        each = Afterwards(self.store, dag, run, self.say, self._events_of(run), tries=1)
        try:
            detail: RunDetail = self._send(GetRun(run.dag_id, run.run_id))
        except NotFound:
            return None
        return each if any(each.is_due(row) for row in detail.tasks if row.scope.task_id in dag.tasks) else None

    def _see_to_left(self) -> None:
        for each in list(self.left):
            try:
                detail: RunDetail = self._send(GetRun(each.run.dag_id, each.run.run_id))
            except NotFound:
                self.left.remove(each)
                continue
            each.look(row for row in detail.tasks if row.scope.task_id in each.dag.tasks)
            if not each.is_busy:
                self.left.remove(each)

    # --- triggers --------------------------------------------------------------------------------------------------

    def _watch_triggers(self) -> None:
        """Have a triggerer run while anything is deferred or watched."""
        waiting = [runner for runner in self.runners if runner.has_deferred]
        files = {runner.row.id: runner.row.file for runner in self.runners}
        news = any(runner.has_news for runner in waiting)
        names = [(runner.row.dag_id, runner.row.run_id) for runner in self.runners]
        self.triggers.look(files, self.watchers, wanted=bool(waiting), news=news, names=names)

    def _send(self, request: Any) -> Any:
        return self.store.backend.send(request)

    # --- stopping ----------------------------------------------------------------------------------------------

    def _stop_all(self, wake: int) -> None:
        """Have every worker give its attempt back, and leave no process behind."""
        self.stopping = self.stopping or "the end"
        for runner in list(self.runners):
            self._end(runner, "paused")
        while self.closing:
            _drain(wake, 0.1)
            self._close()
        for each in self.left:
            each.leave()
        self.triggers.close()


def _is_left(run: RunRow) -> bool:
    """Say whether the runner of a run was on this host and is gone."""
    return run.holder is not None and processes.is_here(run.holder) and not processes.is_alive(run.holder)


def _iso(micros: int) -> str:
    from ..values import moment

    return moment(micros).isoformat()


def _drain(wake: int, seconds: float) -> None:
    ready, _, _ = select.select([wake], [], [], seconds)
    if ready:
        with suppress(BlockingIOError):
            os.read(wake, 4096)


@contextmanager
def _signals(session: Session) -> Iterator[int]:
    """Make SIGINT, SIGTERM and SIGHUP a pause (a second one: at once), and give a pipe that wakes a wait."""
    wake, write = os.pipe()
    for end in (wake, write):
        os.set_blocking(end, False)

    def stop(number: int, frame: Any) -> None:
        session.hurry = session.stopping is not None
        session.stopping = signal.Signals(number).name

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # less what nohup or a shell has had ignored
    before = {name: signal.signal(name, stop) for name in wanted if signal.getsignal(name) != signal.SIG_IGN}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    previous = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield wake
    finally:
        signal.set_wakeup_fd(previous)
        for name, handler in before.items():
            signal.signal(name, handler)
        os.close(wake)
        os.close(write)
