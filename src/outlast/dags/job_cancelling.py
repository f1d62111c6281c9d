"""Cancel the job of a task that nobody will wait for any more."""

from __future__ import annotations

from typing import Any

from ..state import TaskState
from .context import Context
from .job_events import logger
from .resumable import ABSENT, JobNotFound, ResumableJobMixin

__all__ = ["NotCancellable", "cancel_stored_job", "end_job", "is_cancellable", "may_have_job", "stored_job"]


class NotCancellable(Exception):
    """A job still runs, and its operator has no `cancel_job` to end it with."""


def may_have_job(task: object) -> bool:
    """Say whether a task, or each instance of a mapped one, may have a job in another system."""
    return bool(issubclass(_kind(task), ResumableJobMixin))


def is_cancellable(task: object) -> bool:
    """Say whether a task, or each instance of a mapped one, may have a job that can be cancelled."""
    return may_have_job(task) and _kind(task).cancel_job is not ResumableJobMixin.cancel_job


def _kind(task: object) -> Any:
    return getattr(task, "operator_class", type(task))


def cancel_stored_job(operator: ResumableJobMixin, context: Context) -> str:
    """Cancel the job of a task that will not be waited for any more, if it still runs; return what was done, in words.

    A job that was submitted but not recorded is looked for by its token. Raises what `cancel_job` raises.
    """
    if operator._store(context) is None:
        return "there is no job to cancel"
    if not operator.can_cancel_job:
        return f"{type(operator).__name__} has no cancel_job"
    job = stored_job(operator, context)
    return "no job is stored" if job is ABSENT else end_job(operator, job, context)


def stored_job(operator: ResumableJobMixin, context: Context) -> Any:
    """Return the id of a task's job, ABSENT if there is none; one that is not recorded is looked for by its token."""
    store = operator._store(context)
    if store is None:
        return ABSENT
    job = store.get(operator.external_id_key, ABSENT)
    return _sought(operator, store, context) if job is ABSENT else job


def end_job(operator: ResumableJobMixin, job: Any, context: Context) -> str:
    """Cancel a job unless it is over; return what was done, in words. Raises what `cancel_job` raises.

    NotCancellable where there is none, and the job may still run.
    """
    try:
        status = operator.get_job_status(job, context)
        if not operator.is_job_active(status):
            return f"job {job!r} is {status} already"
    except JobNotFound:
        return f"job {job!r} is gone"
    except Exception as error:
        logger.warning("the status of job %r is not known, so it is cancelled all the same: %r", job, error)
    if not operator.can_cancel_job:
        raise NotCancellable(f"{type(operator).__name__} has no cancel_job")
    operator.cancel_job(job, context)
    return f"job {job!r} was cancelled"


def _sought(operator: ResumableJobMixin, store: TaskState, context: Context) -> Any:
    """Return the id of a job whose submission has not been recorded."""
    intent = store.get(operator._intent_key, ABSENT)
    if intent is ABSENT or not operator.can_find_job:
        return ABSENT
    job = operator._find_in_time(operator._token_of(intent), context)
    return ABSENT if job is None else job
