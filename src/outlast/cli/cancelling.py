"""Have the jobs of cancelled task instances cancelled where no runner is there to do it."""

from __future__ import annotations

from ..run_requests import RunRow, TaskRow
from ..runner.aftermath import Aftermath, job_of, launch
from ..store import Store

__all__ = ["cancel_jobs"]


def cancel_jobs(store: Store, run: RunRow, tasks: tuple[TaskRow, ...]) -> None:
    """Cancel, in a fresh process each, the jobs of task instances that have begun and have stored something."""
    processes = [
        launch(Aftermath(job_of(store, run, task), task.attempt, "cancelled by a person", cancel=True))
        for task in tasks
        if task.attempt and store.task(task.scope).keys()
    ]
    for process in processes:
        process.wait()
