"""Submit a job to another system once, and find it again after a crash: `ResumableJobMixin`.

What is stored is the job's id under `external_id_key` and, while a submission is under way, an intent with its
token under `<external_id_key>.intent`. The commit of an intent removes the id of the job before it, and the commit of
an id removes the intent: where both stand, somebody has stored the id since, and it decides. An attempt that takes
the job up notes `{"status": ..., "reconnects": n}` under `<external_id_key>.status`, for people to see.
"""

from __future__ import annotations

import os
import time
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from ..errors import DagError, InvalidValue, StaleAttempt
from ..state import TaskState
from ..values import NEVER_EXPIRE, JsonValue
from . import job_events
from .arguments import duration
from .context import Context
from .job_events import happened, logger
from .outcomes import FailTask, SkipTask, TaskRescheduled

__all__ = ["JobNotFound", "JobRefused", "ResumableJobMixin", "ResumeDecision", "new_token"]

Kind: TypeAlias = Literal[
    "fresh_submit", "reconnect", "already_succeeded", "terminal_resubmit", "find_then_submit", "uncertain"
]
T = TypeVar("T")

#: What a read answers where nothing is stored.
ABSENT: Any = object()
#: Seconds between two calls of `find_job` while a request may still be in flight.
_LOOK_EVERY = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
#: Characters kept of a status, which is whatever the other system says.
_STATUS_LENGTH = 500


class JobNotFound(Exception):
    """The other system has no such job (any more). For `get_job_status` to raise: a new job is then submitted."""


class JobRefused(Exception):
    """The other system has refused the job, so that none was started. For `submit_job` to raise.

    It fails the attempt as any exception does; but the next one need not ask itself whether there is a job.
    """


class ResumeDecision(msgspec.Struct, frozen=True):
    """What an attempt does about its job, and why.

    `external_id` and `status` are of the job stored, or `found` by its token. `token` is that of the submission
    whose outcome is not recorded; a submission without one gets a fresh token.
    """

    kind: Kind
    reason: str
    external_id: Any = None
    status: Any = None
    token: str | None = None
    found: bool = False


def new_token() -> str:
    """Return a token for one submission: letters, digits and a dash, 32 characters, fit for a job's name."""
    return f"outlast-{os.urandom(12).hex()}"


class ResumableJobMixin(metaclass=ABCMeta):
    """Makes an operator that submits a job and waits for it safe against crashes. Stands before BaseOperator.

    >>> class Query(ResumableJobMixin, BaseOperator):
    ...     def execute(self, context):
    ...         return self.execute_resumable(context)

    Define the six abstract methods, and `find_job` where the other system can look a job up by the token it was
    submitted with (`context["submission_token"]`). An id is any JSON value but None, also 0 and "".
    """

    #: The key the job's id is stored under. Renamed, a retry no longer finds the job.
    external_id_key: str = "remote_job_id"
    #: How long a request of an attempt that has died may still start a job that `find_job` does not see yet.
    find_job_grace: timedelta | float = timedelta(seconds=10)
    #: How long a failing status call is tried again before it fails the attempt.
    status_retry_for: timedelta | float = timedelta(seconds=60)
    #: What to do when nobody can tell whether a job was started: submit with the same token, or fail for good.
    on_uncertain: Literal["resubmit", "fail"] = "resubmit"
    durable: bool = True
    cancel_on_final_failure: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class that has BaseOperator first: arguments of the mixin would never reach it."""
        from .operators import BaseOperator

        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if BaseOperator in order and order.index(BaseOperator) < order.index(ResumableJobMixin):
            raise DagError(
                f"{cls.__name__} has ResumableJobMixin after BaseOperator, whose arguments then are lost; "
                f"write class {cls.__name__}(ResumableJobMixin, BaseOperator)"
            )

    def __init__(self, *, durable: bool = True, cancel_on_final_failure: bool | None = None, **kwargs: Any) -> None:
        """Define the task. Without `durable` nothing is stored and every attempt submits a job of its own.

        `cancel_on_final_failure` has `cancel_job` called when no attempt is left; None leaves it to the class, where
        it is False unless said otherwise. Raises DagError for a wrong value.
        """
        super().__init__(**kwargs)
        self.durable = _flag("durable", durable)
        if cancel_on_final_failure is not None:
            self.cancel_on_final_failure = _flag("cancel_on_final_failure", cancel_on_final_failure)
        duration("find_job_grace", self.find_job_grace)
        duration("status_retry_for", self.status_retry_for)
        if self.on_uncertain not in ("resubmit", "fail"):
            raise DagError(f'on_uncertain is {self.on_uncertain!r}; use "resubmit" or "fail"')

    # --- yours to define -----------------------------------------------------------------------------------

    @abstractmethod
    def submit_job(self, context: Context) -> JsonValue:
        """Start the job and return its id; hand `context["submission_token"]` on, as idempotency key, name or tag."""

    @abstractmethod
    def get_job_status(self, external_id: Any, context: Context) -> Any:
        """Return the job's status in the other system's words; raise JobNotFound where it is gone."""

    @abstractmethod
    def is_job_active(self, status: Any) -> bool:
        """Say whether a job of that status has still to end."""

    @abstractmethod
    def is_job_succeeded(self, status: Any) -> bool:
        """Say whether a job of that status has done its work."""

    @abstractmethod
    def poll_until_complete(self, external_id: Any, context: Context) -> Any:
        """Wait for the job's end; raise where it has failed."""

    @abstractmethod
    def get_job_result(self, external_id: Any, context: Context) -> Any:
        """Return the result of a job that has succeeded, which is then the task's."""

    def find_job(self, token: str, context: Context) -> JsonValue:
        """Return the id of the job that was submitted with that token, None if there is none."""
        raise NotImplementedError

    def cancel_job(self, external_id: Any, context: Context) -> None:
        """End the job before its time."""
        raise NotImplementedError

    @property
    def can_find_job(self) -> bool:
        """Whether `find_job` may be asked: it is defined."""
        return type(self).find_job is not ResumableJobMixin.find_job

    @property
    def can_cancel_job(self) -> bool:
        """Whether there is a `cancel_job` to call."""
        return type(self).cancel_job is not ResumableJobMixin.cancel_job

    # --- what to call ----------------------------------------------------------------------------------------

    def execute_resumable(self, context: Context) -> Any:
        """Submit the job, or find the one submitted before; wait for it and return its result."""
        if self._store(context) is None:
            job = self._submit_unrecorded(context)
            self.poll_until_complete(job, context)
            return self.get_job_result(job, context)
        with job_events.deciding(self, self.external_id_key) as decided:
            decision = self._awaited(self.resume_decision(context), context)
            decided(decision)
        job = self._carried_out(decision, context)
        if decision.kind != "already_succeeded":
            self.poll_until_complete(job, context)
        if decision.kind == "reconnect":
            happened("resumable_job.reconnect_success", self, f"job {job!r} has ended")
        return self.get_job_result(job, context)

    def resume_decision(self, context: Context) -> ResumeDecision:
        """Return what an attempt would do now, and why. It asks the other system, and changes nothing anywhere.

        Raises what the status call raises, once it has been tried for `status_retry_for`.
        """
        store = self._store(context)
        if store is None:
            return ResumeDecision("fresh_submit", "nothing is stored for this task, so every attempt submits")
        stored = store.get(self.external_id_key, ABSENT)
        intent = store.get(self._intent_key, ABSENT)
        token = None if intent is ABSENT else self._token_of(intent)
        if stored is not ABSENT:
            return self._judge(stored, token, context)
        if token is None:
            return ResumeDecision("fresh_submit", "no job is stored")
        return self._seek(token, context)

    def submit_once(self, decision: ResumeDecision, context: Context) -> Any:
        """Carry a decision out and return the job's id: that of the job there is, or of one submitted now.

        A deferrable operator calls it with what `resume_decision` has returned, and then defers.
        """
        return self._carried_out(self._awaited(decision, context), context)

    # --- time, for tests to replace ---------------------------------------------------------------------------

    def _monotonic(self) -> float:
        return time.monotonic()

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    # --- deciding --------------------------------------------------------------------------------------------

    @property
    def _intent_key(self) -> str:
        return f"{self.external_id_key}.intent"

    @property
    def _status_key(self) -> str:
        return f"{self.external_id_key}.status"

    def _store(self, context: Context) -> TaskState | None:
        """Return where the job is recorded; None where nothing is."""
        if not self.durable:
            return None
        store: TaskState | None = context.get("task_state_store")
        if store is None:
            logger.warning("there is no task_state_store in the context: a retry will submit another job")
        return store

    def _token_of(self, intent: Any) -> str:
        match intent:
            case {"token": str(token)}:
                return token
        raise InvalidValue(
            f"{self._intent_key} holds {intent!r}, which is no intent; delete that key if no job was started, "
            f"or store the job's id under {self.external_id_key}"
        )

    def _judge(self, job: Any, token: str | None, context: Context, found: bool = False) -> ResumeDecision:
        """Decide on a job by its status."""
        name = f"job {job!r}" + (f", found by its token {token}," if found else "")
        try:
            status = self._ask_status(job, context)
        except JobNotFound:
            return ResumeDecision("terminal_resubmit", f"{name} is gone", job, None, token, found)
        if self.is_job_active(status):
            return ResumeDecision("reconnect", f"{name} is {status}", job, status, token, found)
        if self.is_job_succeeded(status):
            return ResumeDecision("already_succeeded", f"{name} is {status}", job, status, token, found)
        return ResumeDecision("terminal_resubmit", f"{name} is {status}", job, status, token, found)

    def _seek(self, token: str, context: Context) -> ResumeDecision:
        """Decide on a submission whose outcome is not recorded."""
        if not self.can_find_job:
            reason = f"the submission with token {token} has no recorded outcome, and there is no find_job to ask"
            return ResumeDecision("uncertain", reason, token=token)
        job = self._find(token, context)
        if job is None:
            reason = f"no job is found for token {token}; its request may still be in flight"
            return ResumeDecision("find_then_submit", reason, token=token)
        return self._judge(job, token, context, found=True)

    def _find(self, token: str, context: Context) -> Any:
        try:
            return self._ask("find_job", lambda: self.find_job(token, context))
        except JobNotFound:
            return None

    def _awaited(self, decision: ResumeDecision, context: Context) -> ResumeDecision:
        """Give a request of the attempt before time to arrive, where its job is not found yet."""
        if decision.kind != "find_then_submit" or decision.token is None:
            return decision
        job = self._find_in_time(decision.token, context)
        if job is not None:
            return self._judge(job, decision.token, context, found=True)
        reason = f"there is no job with token {decision.token}"
        return ResumeDecision("find_then_submit", reason, token=decision.token)

    def _find_in_time(self, token: str, context: Context) -> Any:
        """Return the id of the job with that token, None if none appears within `find_job_grace`."""
        deadline = self._monotonic() + duration("find_job_grace", self.find_job_grace).total_seconds()
        while True:
            job, left = self._find(token, context), deadline - self._monotonic()
            if job is not None or left <= 0:
                return job
            self._sleep(min(_LOOK_EVERY, left))

    def _ask_status(self, job: Any, context: Context) -> Any:
        return self._ask("the status call", lambda: self.get_job_status(job, context))

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        """Ask the other system, again and again for `status_retry_for` while it fails."""
        deadline = self._monotonic() + duration("status_retry_for", self.status_retry_for).total_seconds()
        pause = _FIRST_PAUSE
        while True:
            try:
                return call()
            except (JobNotFound, StaleAttempt, FailTask, SkipTask, TaskRescheduled):
                raise
            except Exception as error:
                left = deadline - self._monotonic()
                if left <= 0:
                    raise
                logger.warning("%s failed and is tried again for %.0f s: %r", what, left, error)
                self._sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)

    # --- acting ----------------------------------------------------------------------------------------------

    def _carried_out(self, decision: ResumeDecision, context: Context) -> Any:
        if decision.kind in ("reconnect", "already_succeeded"):
            return self._taken_up(decision, context)
        store = self._store(context)
        if store is None:
            return self._submit_unrecorded(context)
        token = self._intended(decision, store)
        context["submission_token"] = token
        try:
            job = self.submit_job(context)
        except JobRefused:
            if token != decision.token:  # else the request before, which had the same token, may have been accepted
                store.delete(self._intent_key)
            raise
        self._record(job, store)
        return job

    def _submit_unrecorded(self, context: Context) -> Any:
        context["submission_token"] = new_token()
        happened("resumable_job.fresh_submit", self, "nothing is stored for this task")
        return self.submit_job(context)

    def _taken_up(self, decision: ResumeDecision, context: Context) -> Any:
        """Say that the job there is will be used, and see to it that it is the one stored."""
        store = self._store(context)
        if decision.found:
            happened("resumable_job.found_by_token", self, decision.reason)
        if store is not None:
            self._note_taken_up(decision, store)
        event = "reconnect_attempt" if decision.kind == "reconnect" else "already_succeeded"
        happened(f"resumable_job.{event}", self, decision.reason)
        return decision.external_id

    def _note_taken_up(self, decision: ResumeDecision, store: TaskState) -> None:
        """Note the status of the job and how often it was taken up; store the id of one found by its token."""
        times = _once_more(store.get(self._status_key), "reconnects")
        noted: JsonValue = {"status": str(decision.status)[:_STATUS_LENGTH], "reconnects": times}
        with store.transaction() as tx:
            tx.set(self._status_key, noted, retention=NEVER_EXPIRE)
            if decision.token is not None:
                tx.set(self.external_id_key, decision.external_id, retention=NEVER_EXPIRE)
                tx.delete(self._intent_key)

    def _intended(self, decision: ResumeDecision, store: TaskState) -> str:
        """Return the token to submit with, its intent committed."""
        match decision:
            case ResumeDecision(kind="uncertain", token=str(token)):
                happened("resumable_job.uncertain_submit", self, f"{decision.reason}; on_uncertain={self.on_uncertain}")
                self._note_uncertain(token, store)
                if self.on_uncertain == "fail":
                    raise FailTask(self._what_to_do(decision.reason, store))
                return token
            case ResumeDecision(kind="find_then_submit", token=str(token)):
                happened("resumable_job.same_token_submit", self, decision.reason)
                return token
        token = new_token()
        with store.transaction() as tx:
            tx.set(self._intent_key, {"token": token}, retention=NEVER_EXPIRE)
            tx.delete(self.external_id_key)
            tx.delete(self._status_key)
        happened(f"resumable_job.{decision.kind}", self, f"{decision.reason}; submitting with token {token}")
        return token

    def _note_uncertain(self, token: str, store: TaskState) -> None:
        """Count in the intent how often its outcome was found to be uncertain: a server tells that in its metrics."""
        times = _once_more(store.get(self._intent_key), "uncertain")
        store.set(self._intent_key, {"token": token, "uncertain": times}, retention=NEVER_EXPIRE)

    def _what_to_do(self, reason: str, store: TaskState) -> str:
        return (
            f"{reason}. If there is a job, store its id: outlast state set {store.scope} {self.external_id_key} ID "
            f"(JSON; --string for a text). If there is none: outlast state rm {store.scope} {self._intent_key}. "
            "Then clear the task"
        )

    def _record(self, job: Any, store: TaskState) -> None:
        """Store a job's id and settle its intent, in one commit."""
        if job is None:
            logger.warning("submit_job has returned no id (None): a retry will submit another job")
            store.delete(self._intent_key)
            return
        with store.transaction() as tx:
            tx.set(self.external_id_key, job, retention=NEVER_EXPIRE)
            tx.delete(self._intent_key)


def _once_more(noted: Any, what: str) -> int:
    """Return one more than what is noted; 1 where nothing that counts is."""
    times = noted.get(what) if isinstance(noted, dict) else None
    return times + 1 if isinstance(times, int) else 1


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise DagError(f"{what} is {value!r}; use True or False")
    return value
