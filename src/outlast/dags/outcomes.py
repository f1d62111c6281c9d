"""What a task raises to say how its attempt ends or goes on, and what it is told where waiting came to nothing.

    BaseException
    ├── TaskDeferred            the process ends; a trigger waits in its place
    ├── TaskTimeout             `execution_timeout` is over
    └── Exception
        └── TaskError           any of these is a failure unless said otherwise
            ├── SkipTask                skipped, which is no failure
            ├── TaskRescheduled         the process ends; the attempt goes on at a moment
            ├── FailTask                failed, however many retries are left
            │   └── SensorTimeout       what a sensor looked for has not come in time
            └── TaskDeferralError       the trigger raised, or ended without an event
                └── TaskDeferralTimeout     it did not fire within the deferral's timeout

The first two are no `Exception`s, so that code that catches everything does not stop them.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..errors import DagError
from .arguments import duration

if TYPE_CHECKING:
    from .triggers import BaseTrigger

__all__ = [
    "FailTask",
    "SensorTimeout",
    "SkipTask",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TaskDeferred",
    "TaskError",
    "TaskRescheduled",
    "TaskTimeout",
]

_MICROSECOND = timedelta(microseconds=1)


class TaskDeferred(BaseException):
    """Raised to wait for a trigger without a process; `BaseOperator.defer` does it, and checks the arguments.

    The attempt goes on in a new process with `method_name(context, event=…, **kwargs)`; for a function under
    `@task` that is `"execute"`, a call of the function. A `timeout` is a timedelta or seconds.
    """

    def __init__(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str = "execute",
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> None:
        super().__init__(f"deferred until {type(trigger).__name__} fires; goes on with {method_name}()")
        self.trigger, self.method_name, self.kwargs = trigger, method_name, {} if kwargs is None else kwargs
        self.timeout = None if timeout is None else duration("timeout", timeout, _MICROSECOND)


class TaskTimeout(BaseException):
    """An attempt has taken longer than its `execution_timeout`."""


class TaskError(Exception):
    """Raised by a task to fail; the next attempt follows if a retry is left. Base of the errors below."""


class SkipTask(TaskError):
    """Raised by a task to be skipped, and with it what waits for its success."""


class FailTask(TaskError):
    """Raised by a task to fail now, whatever retries are left."""


class TaskRescheduled(TaskError):
    """Raised by a task to give its slot back; the same attempt runs `execute` again at that moment, which is aware."""

    def __init__(self, at: datetime) -> None:
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise DagError(f"a task is rescheduled at {at!r}; use a datetime with its time zone: datetime.now(UTC) + …")
        super().__init__(f"rescheduled; goes on at {at.isoformat()}")
        self.at = at

    @property
    def reschedule_date(self) -> datetime:
        """The moment, under its name in Airflow."""
        return self.at


class SensorTimeout(FailTask):
    """What a sensor looked for has not come within its `timeout`; trying again would wait as long once more."""


class TaskDeferralError(TaskError):
    """Raised in a deferred task that goes on because its trigger failed; the text is the trigger's traceback."""


class TaskDeferralTimeout(TaskDeferralError):
    """Raised in a deferred task whose trigger did not fire within the deferral's timeout."""
