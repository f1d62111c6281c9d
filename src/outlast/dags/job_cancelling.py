"""Cancel the job of a task that nobody will wait for any more."""

from __future__ import annotations

from typing import Any

from ..state import TaskState
from .context import Context
from .job_events import logger
from .resumable import ABSENT, JobNotFound, ResumableJobMixin

__all__ = ["cancel_stored_job", "is_cancellable"]


def is_cancellable(task: object) -> bool:
    """Say whether a task, or each instance of a mapped one, may have a job that can be cancelled."""
    kind: Any = getattr(task, "operator_class", type(task))
    return bool(issubclass(kind, ResumableJobMixin) and kind.cancel_job is not ResumableJobMixin.cancel_job)


def cancel_stored_job(operator: ResumableJobMixin, context: Context) -> str:
    """Cancel the job of a task that will not be waited for any more, if it still runs; return what was done, in words.

    A job that was submitted but not recorded is looked for by its token. Raises what `cancel_job` raises.
    """
    store = operator._store(context)
    if store is None or not operator.can_cancel_job:
        return "there is no job to cancel" if store is None else f"{type(operator).__name__} has no cancel_job"
    job = store.get(operator.external_id_key, ABSENT)
    if job is ABSENT:
        job = _sought(operator, store, context)
    if job is ABSENT:
        return "no job is stored"
    try:
        status = operator.get_job_status(job, context)
        if not operator.is_job_active(status):
            return f"job {job!r} is {status} already"
    except JobNotFound:
        return f"job {job!r} is gone"
    except Exception as error:
        logger.warning("the status of job %r is not known, so it is cancelled all the same: %r", job, error)
    operator.cancel_job(job, context)
    return f"job {job!r} was cancelled"


def _sought(operator: ResumableJobMixin, store: TaskState, context: Context) -> Any:
    """Return the id of a job whose submission has not been recorded."""
    intent = store.get(operator._intent_key, ABSENT)
    if intent is ABSENT or not operator.can_find_job:
        return ABSENT
    job = operator._find_in_time(operator._token_of(intent), context)
    return ABSENT if job is None else job
