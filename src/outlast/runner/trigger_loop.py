"""The event loop of a triggerer: what is deferred in the store runs here, and what fires is told to the store."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

import msgspec

from ..dags.triggers import BaseTrigger, made_arguments, trigger_class
from ..deferral_requests import DeferredRow, DeferredRows, Fire, ListDeferred
from ..errors import BackendError, OutlastError, Unauthorized
from ..store import Store
from .board import Board, Key, Shown
from .log_relay import LogSender
from .logs import Log
from .remote import opened_by_triggerer
from .trigger_logs import LogFiles, Threads, Watchdog, divert_output, run_as, use_log, write_log
from .trigger_run import run_for_good, run_once
from .triggerer import Orders, TriggererJob
from .watcher_lease import WatcherLease
from .watching import Watcher, start

__all__ = ["TriggerLoop", "run_triggers"]

#: Seconds between looks at the store.
LOOK_EVERY = 1.0
#: Seconds triggers have for tidying up when this process ends.
GRACE = 1.0
#: Events told to the store at a time; those who write to it take turns anyway.
AT_ONCE = 4
#: Threads for the store, and for what triggers do in threads.
THREADS = 32

#: Seconds after which those triggers begin that have held up the others before.
SUSPECT_AFTER = 2.0

Place = tuple[int, int]


def run_triggers(job: TriggererJob, commands: BinaryIO) -> int:
    """Run triggers until there are no more commands. Ends the process: a trigger may not let itself be ended."""
    divert_output(LogFiles(job.logs or "") if job.relay is None else LogSender(job.relay))
    with opened_by_triggerer(job.url, job.given) as store:
        asyncio.run(_live(store, job, commands))
    return 0


async def _live(store: Store, job: TriggererJob, commands: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    board = Board(job.board)
    loop.set_default_executor(Threads(board, THREADS))
    triggers = TriggerLoop(store, board)
    threading.Thread(target=_obey, args=(commands, loop, triggers), name="outlast-commands", daemon=True).start()
    Watchdog(loop, triggers.logs_of, board).start()
    await triggers.watch_store()
    await triggers.end()
    _exit(triggers.status)


def _obey(commands: BinaryIO, loop: asyncio.AbstractEventLoop, triggers: TriggerLoop) -> None:
    """Pass commands on; the end of them is the end, whatever holds up the event loop."""
    for line in commands:
        orders = None if line == b"look\n" else msgspec.json.decode(line, type=Orders)
        loop.call_soon_threadsafe(triggers.look, orders)
    triggers.stopping = True
    loop.call_soon_threadsafe(triggers.look, None)
    time.sleep(2 * GRACE)
    _exit()


def _exit(status: int = 0) -> None:
    with suppress(OSError, ValueError):  # the runner, which reads it, has ended
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


class _Live(msgspec.Struct):
    """A deferred task instance whose trigger runs here."""

    row: DeferredRow
    task: asyncio.Task[None]


class TriggerLoop:
    """Runs one trigger for each deferred task instance of some runs."""

    def __init__(self, store: Store, board: Board) -> None:
        self.store, self.board = store, board
        self.orders = Orders()
        self.lease = WatcherLease(store)
        self.watchers: dict[Watcher, asyncio.Task[None]] = {}
        self.live: dict[Place, _Live] = {}
        self.leaving: set[asyncio.Task[None]] = set()
        self.logs_of: dict[asyncio.Task[Any], Log] = {}
        self.classes: dict[tuple[str, str, int], asyncio.Task[type[BaseTrigger]]] = {}
        self.stopping, self.status = False, 0
        self.looks = 0
        self.fired: dict[Place, int] = {}
        self.trouble = ""
        self._wake = asyncio.Event()
        self._turns = asyncio.Semaphore(AT_ONCE)

    # --- what to run -----------------------------------------------------------------------------------------

    def look(self, orders: Orders | None = None) -> None:
        """Look now; from now on as ordered."""
        if orders is not None:
            self.orders = orders
            if orders.token is not None:
                backend: Any = self.store.backend
                backend.show(orders.token)
        self._wake.set()

    async def watch_store(self) -> None:
        """Run what is deferred, until there is nobody to do it for."""
        while not self.stopping:
            self._wake.clear()
            try:
                await self._look()
                self._say("")
            except BackendError as error:  # what runs goes on
                self._say(f"cannot look for deferred tasks: {error}")
            except Unauthorized as error:  # the runner starts another process, with another token, if it gets one
                self._say(f"cannot look for deferred tasks any more: {error}")
                self.stopping, self.status = True, 1
            if not self.stopping:
                await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _look(self) -> None:
        self.looks += 1
        orders, found = self.orders, dict[Place, tuple[DeferredRow, str]]()
        for run, file in orders.runs.items():
            reply: DeferredRows = await self.store.backend.asend(ListDeferred((run,)))
            found.update({(row.scope_id, row.attempt): (row, file) for row in reply.rows})
        held = await self.lease.hold(orders.watchers)
        if self.orders is orders:
            self._obey(found)
            self._obey_watchers(held)

    def _obey(self, found: dict[Place, tuple[DeferredRow, str]]) -> None:
        """Start what is new among the deferred, and end what waits no more.

        What fired while the store was being asked may be in its answer all the same, and is left alone.
        """
        for key in self.live.keys() - found.keys():
            self._stop(key)
        for key, (row, file) in found.items():
            live = self.live.get(key)
            if live is not None and live.row != row:
                self._stop(key)
                live = None
            if live is None and self.fired.get(key, 0) < self.looks:
                self._start(key, row, file)
        self.fired = {key: look for key, look in self.fired.items() if look >= self.looks}

    def _start(self, key: Place, row: DeferredRow, file: str) -> None:
        whose = row.scope_id, row.attempt, row.number
        work = run_once(partial(self._make, row, file), partial(self._fire, key, row))
        task = self._spawn(work, str(row.scope), row.scope, whose)
        self.live[key] = _Live(row, task)
        task.add_done_callback(lambda task: self._forget(key, task))

    def _spawn(self, work: Any, name: str, log: Log, key: Key) -> asyncio.Task[None]:
        async def logged() -> None:
            use_log(log)
            run_as(key)
            if key in self.orders.suspects:
                await asyncio.sleep(SUSPECT_AFTER)
            await work

        task: asyncio.Task[None] = asyncio.create_task(Shown(logged(), self.board, key), name=name)
        self.logs_of[task] = log
        self.leaving.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self.leaving.discard(task)
        log = self.logs_of.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            write_log(log, f"outlast: {error!r}\n")

    def _stop(self, key: Place) -> None:
        self.live.pop(key).task.cancel()

    def _forget(self, key: Place, task: asyncio.Task[None]) -> None:
        if (live := self.live.get(key)) is not None and live.task is task:
            del self.live[key]

    # --- a trigger ---------------------------------------------------------------------------------------------

    async def _make(self, row: DeferredRow, file: str) -> BaseTrigger:
        kind = await self.class_of(row.deferral.trigger_path, file)
        return kind(**made_arguments(row.deferral.trigger_kwargs))

    async def class_of(self, path: str, file: str) -> type[BaseTrigger]:
        """Find a trigger's class, in a thread because that may import much; again once the file has changed."""
        try:
            key = (path, file, os.stat(file).st_mtime_ns)
        except OSError:
            key = (path, file, 0)
        if key not in self.classes or _failed(self.classes[key]):
            self.classes[key] = asyncio.create_task(asyncio.to_thread(trigger_class, path, file))
        return await asyncio.shield(self.classes[key])

    async def _fire(self, key: Place, row: DeferredRow, text: str) -> None:
        """Tell the store what came of a trigger, as long as it takes."""
        fire, pause = Fire(row.scope_id, row.attempt, text, row.number, row.scope.dag_id), 0.1
        while not self.stopping:
            try:
                async with self._turns:
                    if not self.stopping:
                        await self.store.backend.asend(fire)
                break
            except BackendError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 10.0)
        self.fired[key] = self.looks
        live = self.live.get(key)
        if live is not None and live.task is asyncio.current_task():
            del self.live[key]  # or the next look would cancel its tidying up

    # --- triggers of assets ------------------------------------------------------------------------------------

    def _obey_watchers(self, wanted: list[Watcher]) -> None:
        for watcher in self.watchers.keys() - {*wanted}:
            self.watchers.pop(watcher).cancel()
        for watcher in wanted:
            if watcher not in self.watchers or self.watchers[watcher].done():
                [self.watchers[watcher]] = start(self, [watcher])

    def watch(
        self,
        name: str,
        make: Callable[[], Awaitable[BaseTrigger]],
        callback: Callable[[Any], Awaitable[None]],
        key: Key,
    ) -> asyncio.Task[None]:
        """Run a trigger that belongs to no task, for good or until the returned task is cancelled.

        The payload of each of its events goes to `callback`. One that ends or raises is made and run again after a
        pause. What it logs goes to `watchers/NAME.log` in the folder of the logs.
        """
        return self._spawn(run_for_good(make, callback), name, name, key)

    # --- the end -----------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Cancel everything, and give it a moment to tidy up."""
        tasks = list(self.leaving)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE)
        with suppress(OutlastError):
            await self.lease.hold(())

    def _say(self, trouble: str) -> None:
        """Log trouble once, and when it is over."""
        if trouble != self.trouble:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            write_log(None, f"{stamp} outlast: {trouble or 'deferred tasks can be looked for again'}\n")
        self.trouble = trouble


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
