"""Which watchers of assets this process runs: each is run by one process of all that share a store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..errors import Conflict
from ..event_requests import HeldWatchers, HoldWatchers
from ..requests import Commit
from ..run_requests import ProcessRef
from ..store import Store
from . import processes
from .watching import Watcher

__all__ = ["Guarded", "NotOurs", "WatcherLease", "elapsed"]

#: The clock that goes on while this process, or where there is such a clock the machine, stands still.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NotOurs(Conflict):
    """A watcher has been taken over by another process, so it must neither write nor tell anything any more."""


class WatcherLease:
    """This process's claim on watchers, kept in the store: it lapses, or ends with the process."""

    def __init__(self, store: Store) -> None:
        self.store, self.lease = store, store.config.runner.lease_seconds
        self.me = processes.me()
        self.held: frozenset[str] = frozenset()
        self.others: tuple[ProcessRef, ...] = ()
        self.renew_at = self.sure_until = 0.0

    async def hold(self, wanted: Iterable[Watcher]) -> list[Watcher]:
        """Claim the wanted watchers, give up all others, and return those that are ours.

        Those of a process of this host that is dead become ours at the second call, those of another host's when
        their lease has lapsed.
        """
        wanted = list(wanted)
        digests = frozenset(watcher.digest for watcher in wanted)
        if gone := self.held - digests:
            await self._ask(gone, 0.0)
            self.held -= gone
        if digests != self.held or (digests and elapsed() >= self.renew_at):
            began, reply = elapsed(), await self._ask(digests, self.lease)
            self._heard(began, reply)
        return [watcher for watcher in wanted if watcher.digest in self.held]

    def check(self, watcher: Watcher) -> None:
        """Raise NotOurs if another process may run a watcher; asks only where our claim may have lapsed."""
        if elapsed() >= self.sure_until:
            began = elapsed()
            self._heard(began, self.store.backend.send(self._request(self.held, self.lease)))
        self._require(watcher)

    async def acheck(self, watcher: Watcher) -> None:
        """Do as `check` does, awaiting."""
        if elapsed() >= self.sure_until:
            began = elapsed()
            self._heard(began, await self._ask(self.held, self.lease))
        self._require(watcher)

    def _require(self, watcher: Watcher) -> None:
        if watcher.digest not in self.held:
            raise NotOurs(f"the watcher {watcher.name} is run by another process now; it ends here")

    def _heard(self, began: float, reply: HeldWatchers) -> None:
        """Note what is ours; the lease has begun no earlier than it was asked for."""
        self.held, self.others = frozenset(reply.held), reply.others
        self.renew_at, self.sure_until = began + self.lease / 3, began + self.lease

    async def _ask(self, digests: frozenset[str], lease: float) -> HeldWatchers:
        reply: HeldWatchers = await self.store.backend.asend(self._request(digests, lease))
        return reply

    def _request(self, digests: frozenset[str], lease: float) -> HoldWatchers:
        dead = {process for process in self.others if processes.is_here(process) and not processes.is_alive(process)}
        return HoldWatchers(tuple(sorted(digests)), self.me, lease, tuple(dead))


class Guarded:
    """A backend as the code of a watcher has it: nothing is written once another process may run that watcher."""

    def __init__(self, backend: Any, lease: WatcherLease, watcher: Watcher) -> None:
        self.backend, self.lease, self.watcher = backend, lease, watcher

    def send(self, request: Any) -> Any:
        if isinstance(request, Commit):
            self.lease.check(self.watcher)
        return self.backend.send(request)

    async def asend(self, request: Any) -> Any:
        if isinstance(request, Commit):
            await self.lease.acheck(self.watcher)
        return await self.backend.asend(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def elapsed() -> float:
    """Return the seconds by a clock that goes on while this process, and where it can the machine, stands still."""
    return time.clock_gettime(_CLOCK)
