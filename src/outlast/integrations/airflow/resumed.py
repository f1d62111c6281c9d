"""One try of an operator of Airflow's that submits a job, decided as outlast decides; imported when such a one runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from ...dags.outcomes import FailTask
from ...dags.resumable import ResumableJobMixin
from ...errors import StaleAttempt
from .accessors import TaskStateStore

__all__ = ["Resumed", "execute"]

T = TypeVar("T")

#: What an operator raises to say what is to become of the try: no fault that may be over soon.
_OUTCOMES = (
    "AirflowFailException",
    "AirflowSkipException",
    "AirflowRescheduleException",
    "AirflowTaskTimeout",
    "AirflowSensorTimeout",
)


def execute(operator: Any, context: Any) -> Any:
    """Submit the job, or find the one submitted before; wait for it and return its result."""
    store = context.get("task_state_store")
    if operator.durable and isinstance(store, TaskStateStore):
        store.require()
    kind = type(type(operator).__name__, (Resumed,), {})  # by this name it is logged and counted
    try:
        return kind(operator).execute_resumable(context)
    except FailTask as error:
        raise _exceptions().AirflowFailException(str(error)) from error


class Resumed(ResumableJobMixin):
    """One try of an operator of Airflow's, decided as outlast decides."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.durable, self.external_id_key = operator.durable, operator.external_id_key
        for name in ("find_job_grace", "status_retry_for", "on_uncertain"):
            if hasattr(operator, name):
                setattr(self, name, getattr(operator, name))

    def submit_job(self, context: Any) -> Any:
        return self.operator.submit_job(context)

    def get_job_status(self, external_id: Any, context: Any) -> Any:
        return self.operator.get_job_status(external_id, context)

    def is_job_active(self, status: Any) -> bool:
        return bool(self.operator.is_job_active(status))

    def is_job_succeeded(self, status: Any) -> bool:
        return bool(self.operator.is_job_succeeded(status))

    def poll_until_complete(self, external_id: Any, context: Any) -> Any:
        return self.operator.poll_until_complete(external_id, context)

    def get_job_result(self, external_id: Any, context: Any) -> Any:
        return self.operator.get_job_result(external_id, context)

    def find_job(self, token: str, context: Any) -> Any:
        return self.operator.find_job(token, context)

    @property
    def can_find_job(self) -> bool:
        """Whether `find_job` may be asked: the operator has it."""
        return callable(getattr(self.operator, "find_job", None))

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        """Ask the other system; what decides about the try is not tried again."""

        def asked() -> T:
            try:
                return call()
            except _outcomes() as outcome:
                raise _Decided(outcome) from outcome

        try:
            return super()._ask(what, asked)
        except _Decided as decided:
            raise decided.outcome from None


class _Decided(StaleAttempt):
    """Carries an outcome past whoever would try again."""

    def __init__(self, outcome: BaseException) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


def _outcomes() -> tuple[type[BaseException], ...]:
    known = (getattr(_exceptions(), name, None) for name in _OUTCOMES)
    return tuple(kind for kind in known if kind is not None)


def _exceptions() -> Any:
    return importlib.import_module("airflow.exceptions")
