"""Who runs the watchers of assets, as portable SQL: each belongs to one process at a time."""

from __future__ import annotations

from ..event_requests import HeldWatchers, HoldWatchers
from ..run_requests import ProcessRef
from .runs import micros, process_text, read_process
from .sql import StateSQL

__all__ = ["WatchersSQL"]


class WatchersSQL:
    """Gives watchers to processes, through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL) -> None:
        self.state, self.execute = state, state.execute

    def hold(self, request: HoldWatchers, now: int) -> HeldWatchers:
        """Take, renew or (with a lease of nothing) give up watchers, each unless another process has it."""
        self.state.stand_alone("watchers")
        dead = {process_text(process) for process in request.dead}
        mine, until = process_text(request.holder), now + micros(request.lease)
        held: list[str] = []
        others: list[ProcessRef] = []
        for digest in sorted(request.watchers):
            rows = self.execute("select holder, lease_until from watcher where digest = ?", (digest,))
            holder = rows[0][0] if rows and rows[0][1] > now and rows[0][0] not in dead else mine
            if holder == mine:
                held.append(digest)
                self._give(digest, mine, until)
            else:
                others.append(read_process(holder))  # type: ignore[arg-type]
        return HeldWatchers(tuple(held), tuple(others))

    def _give(self, digest: str, holder: str | None, until: int) -> None:
        self.execute(
            "insert into watcher (digest, holder, lease_until) values (?, ?, ?)"
            " on conflict (digest) do update set holder = excluded.holder, lease_until = excluded.lease_until",
            (digest, holder, until),
        )
