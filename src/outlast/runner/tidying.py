"""Tidy up beside a run: sweep, remove old runs with their logs; behind a server, logs of runs that it has removed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from ..errors import BackendError, NotFound
from ..log_files import log_folder, remove_run_logs, segment
from ..requests import Sweep
from ..run_requests import GetRun, Pruned, PruneRuns
from ..store import Store
from .remote import is_remote

__all__ = ["Tidying"]

#: Seconds between two rounds, and where one has left something to do; runs removed, and asked about, in one.
EVERY, AGAIN, RUNS = 60.0, 0.5, 10
#: Seconds between two looks for logs of runs that a server has removed.
LOGS_EVERY = 3600.0
_DAY = 24 * 3600


class Tidying:
    """What one runner tidies up. Behind a server sweeping and pruning are the server's; but logs are here."""

    def __init__(self, store: Store) -> None:
        self.store, self.days = store, store.config.runner.keep_runs_days
        self.logs = log_folder(store.config, store.url)
        self.at = self.logs_at = 0.0
        self._old: Iterator[tuple[str, str]] = iter(())

    def look(self, dag_ids: Iterable[str]) -> None:
        """Do a batch, if it is time; `dag_ids` are those of the runner, whose runs it may ask about."""
        now = time.monotonic()
        if now < self.at:
            return
        self.at = now + EVERY
        with suppress(BackendError):
            more = self._forgotten(dag_ids, now) if is_remote(self.store) else self._pruned()
            if more:
                self.at = now + AGAIN

    def _pruned(self) -> bool:
        more: bool = self._send(Sweep(self.store.config.state_store.batch_size)).more
        if not self.days:
            return more
        pruned: Pruned = self._send(PruneRuns(self.store.clock() - self.days * _DAY * 1_000_000, RUNS))
        for dag_id, run_id in pruned.runs:
            remove_run_logs(self.logs, dag_id, run_id)
        return pruned.more or more

    def _forgotten(self, dag_ids: Iterable[str], now: float) -> bool:
        """Remove logs of runs that are gone and in which nothing was written for as long as runs are kept."""
        if self.days and now >= self.logs_at:
            self.logs_at = now + LOGS_EVERY
            self._old = _old_runs(self.logs, sorted(dag_ids), self.store.clock() / 1e6 - self.days * _DAY)
        for asked, (dag_id, run_id) in enumerate(self._old, 1):
            try:
                self._send(GetRun(dag_id, run_id, task_id=""))
            except NotFound:
                remove_run_logs(self.logs, dag_id, run_id)
            if asked == RUNS:
                return True
        return False

    def _send(self, request: Any) -> Any:
        return self.store.backend.send(request)


def _old_runs(folder: str, dag_ids: Iterable[str], before: float) -> Iterator[tuple[str, str]]:
    """Return the runs whose logs were last written before a moment, oldest names first.

    Those whose id was too long for a file's name are left out: it is not known any more.
    """
    for dag_id in dag_ids:
        place = os.path.join(folder, segment(dag_id))
        for run_id in sorted(_names(place)):
            if "~" not in run_id and _newest(os.path.join(place, run_id)) < before:
                yield dag_id, run_id


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _newest(folder: str) -> float:
    """Return when a file below a folder was last written; now, as it were, where that cannot be seen."""
    newest = 0.0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                newest = max(newest, os.stat(os.path.join(place, name)).st_mtime)
            except OSError:
                return float("inf")
    return newest or float("inf")
