"""What a server does unasked: sweep what has expired, prune old runs, notice claims nobody renews; once a database.

Whoever holds the lease does it; the other servers of a database wait for it to lapse. What is to become of an attempt
that has lost its process is decided by whoever runs its DAG, which knows its retries: here it is only reported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from typing import Any, Final

import msgspec

from ..errors import OutlastError
from ..event_requests import HeldWatchers, HoldWatchers
from ..log_files import remove_logs
from ..requests import Sweep, Swept
from ..run_requests import ProcessRef, Pruned, PruneRuns
from ..store import Store

__all__ = ["DUTY", "Maintenance", "Report"]

logger = logging.getLogger("outlast.server")

#: What the lease is called among those of watchers, whose names are digests.
DUTY: Final = "server maintenance"
#: Seconds between two rounds, for which the lease holds from each, and between two batches of one round.
EVERY, LEASE, BETWEEN = 20.0, 60.0, 0.05
#: Runs removed in one transaction, and batches of one round before the lease is renewed.
RUNS, BATCHES = 10, 100
_DAY: Final = 86_400_000_000


class Report(msgspec.Struct, frozen=True):
    """How it stands: whether this server does it, when it last did and will next, how long the lease took to write.

    Moments are microseconds. `swept` and `pruned` count since the server started; `problem` is why a round failed.
    """

    on_duty: bool = False
    last_at: int | None = None
    next_at: int | None = None
    write_seconds: float | None = None
    swept: int = 0
    pruned: int = 0
    problem: str | None = None


class Maintenance:
    """One a server process; `run` goes on until it is cancelled, whatever fails."""

    def __init__(self, store: Store, *, every: float = EVERY, lease: float = LEASE) -> None:
        self.store, self.every, self.lease = store, every, lease
        self.me = ProcessRef(socket.gethostname(), os.getpid(), f"server {secrets.token_hex(4)}")
        self.report = Report()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """End, when what is being written has ended; another server need not wait for the lease to lapse."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self.report.on_duty:
            with suppress(OutlastError):
                await self._ask(HoldWatchers((DUTY,), self.me, 0.0))
            self._note(on_duty=False, next_at=None)

    async def run(self) -> None:
        """Do a round now and then."""
        while True:
            await self.round()
            self._note(next_at=self.store.clock() + int(self.every * 1_000_000))
            await asyncio.sleep(self.every)

    async def round(self) -> None:
        """Take or renew the lease, and with it sweep and prune all there is; a failure is logged."""
        try:
            more = await self._hold()
            while more:
                more = await self._some() and await self._hold()
            if self.report.on_duty:
                self._note(last_at=self.store.clock())
            self._note(problem=None)
        except OutlastError as error:
            self._failed(error.message)
        except Exception as error:
            logger.exception("maintenance failed, and will be tried again")
            self._note(problem=f"{type(error).__name__}: {error}")

    async def _hold(self) -> bool:
        began = time.perf_counter()
        held: HeldWatchers = await self._ask(HoldWatchers((DUTY,), self.me, self.lease))
        on_duty = DUTY in held.held
        if on_duty and not self.report.on_duty:
            logger.info("this server sweeps and prunes")
        self._note(on_duty=on_duty, write_seconds=time.perf_counter() - began)
        return on_duty

    async def _some(self) -> bool:
        """Sweep and prune some batches, letting writers in between; say whether there is more."""
        more = True
        for _ in range(BATCHES):
            if not more:
                break
            more = await self._sweep()
            more = await self._prune() or more
            if more:
                await asyncio.sleep(BETWEEN)
        return more

    async def _sweep(self) -> bool:
        swept: Swept = await self._ask(Sweep(self.store.config.state_store.batch_size))
        self._note(swept=self.report.swept + swept.entries)
        return swept.more

    async def _prune(self) -> bool:
        days = self.store.config.runner.keep_runs_days
        if not days:
            return False
        pruned: Pruned = await self._ask(PruneRuns(self.store.clock() - int(days * _DAY), RUNS))
        self._note(pruned=self.report.pruned + len(pruned.runs))
        if pruned.runs:
            await asyncio.to_thread(remove_logs, self.store.config, self.store.url, pruned.runs)
        return pruned.more

    async def _ask(self, request: Any) -> Any:
        return await self.store.backend.asend(request)

    def _failed(self, why: str) -> None:
        if why != self.report.problem:  # said once, not every round
            logger.warning("maintenance failed, and will be tried again: %s", why)
        self._note(problem=why)

    def _note(self, **changes: Any) -> None:
        self.report = msgspec.structs.replace(self.report, **changes)
