"""Start the processes that work for a run: as which user, with which environment, and with what they are given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import ConfigError, Conflict, NotFound, StaleAttempt
from ..run_requests import ProcessRef
from ..store import Store
from . import processes, users
from .aftermath import Aftermath, Launched, launch
from .job import Job, LocalWorker
from .log_relay import open_inside
from .logs import log_path
from .remote import begin, entrusted, is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..dags.operators import BaseOperator

__all__ = ["Starter"]


class Starter:
    """Starts workers and aftermaths for the runs of one store.

    On a store of one's own a worker opens it as the runner has, and claims its attempt itself. Behind a server the
    runner claims it, and the worker gets the token of that attempt, never the runner's.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.settings = store, store.config.runner
        self.is_remote = is_remote(store)
        self.user = users.user_of(self.settings)
        if self.user is not None and not self.is_remote:
            raise ConfigError(
                f"workers can run as {self.user.name} only with a store behind a server, because they would have to "
                "open this one themselves; start `outlast serve`, and name its URL with --server"
            )
        self._environ = users.environment(self.user, self.settings, store.url) if self.is_remote else None
        self._options = None if self.user is None else self.user.options

    def check(self, files: Iterable[str]) -> None:
        """Raise ConfigError if workers could not start, or not read their DAG files."""
        if self.user is not None and self._environ is not None:
            users.check(self.user, self._environ, files)

    def begin(self, job: Job, operator: BaseOperator) -> LocalWorker | None:
        """Start the worker of an attempt; None where somebody else has begun it, or there is nothing to begin."""
        worker = LocalWorker(self._environ, self._options)
        if not self.is_remote:
            worker.give(job)
            return worker
        try:
            job = begin(self.store, job, operator, processes.identify(worker.process.pid))
            assert job.begun is not None
            with self._log(job, job.begun.attempt) as log:
                worker.give(job, log)
        except BaseException as error:
            worker.kill()
            worker.close()
            if isinstance(error, Conflict | NotFound | StaleAttempt):
                return None
            raise
        return worker

    def aftermath(self, aftermath: Aftermath, operator: BaseOperator) -> Launched:
        """Start what is due after an attempt; NotFound where that is gone."""
        if not self.is_remote:
            return launch(aftermath)
        aftermath = entrusted(self.store, aftermath, self.store.config.client, operator)
        with self._log(aftermath.job, aftermath.attempt) as log:
            return launch(aftermath, log=log, environ=self._environ, options=self._options)

    def kill_groups(self, found: Iterable[ProcessRef | None]) -> None:
        """Kill the process groups of workers that the store names."""
        users.kill_groups(self.user, found)

    @contextmanager
    def _log(self, job: Job, attempt: int) -> Iterator[int | None]:
        """Open the log for a process that could not open it itself, because it is another user's."""
        if self.user is None:
            yield None
            return
        path = log_path(job.logs, job.scope, attempt)
        try:
            os.makedirs(job.logs, exist_ok=True)
            log = open_inside(job.logs, path)
        except OSError as error:
            raise ConfigError(
                f"cannot write to the log {path}: {error.strerror or error}; below {job.logs} there may be no links"
            ) from error
        try:
            yield log
        finally:
            os.close(log)
