"""How an attempt under test has ended, and going on with it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ..dags.asset_events import AssetEvent
    from ..dags.outcomes import TaskDeferred
    from .trial import Trial

__all__ = ["Killed", "TaskOutcome"]


class Killed(BaseException):
    """Ends a task as a kill would; `except Exception` does not catch it, and the store answers no more."""


class TaskOutcome:
    """How an attempt ended: `outcome` is success, failed, skipped, crashed, deferred or rescheduled.

    `state` is what is stored for the task afterwards, `attempt` the attempt's number. `exception` is what it
    raised to fail or to be skipped, `deferral` what it waits for (`trigger`, `method_name`, `kwargs`, `timeout`),
    `at` when a rescheduled one goes on. `events` are of the assets it has updated, if it has succeeded.
    """

    def __init__(self, trial: Trial) -> None:
        self.outcome: Literal["success", "failed", "skipped", "crashed", "deferred", "rescheduled"] = "success"
        self.attempt = trial.attempt
        self.exception: BaseException | None = None
        self.deferral: TaskDeferred | None = None
        self.at: datetime | None = None
        self.state: dict[str, Any] = {}
        self.events: list[AssetEvent] = []
        self._trial, self._result = trial, None

    @property
    def result(self) -> Any:
        """What the task returned; where it did not get that far, what it raised is raised, or AssertionError."""
        if self.outcome == "success":
            return self._result
        if self.exception is not None:
            raise self.exception
        raise AssertionError(f"{self!r}: there is no result")

    @property
    def succeeded(self) -> bool:
        """Whether it returned."""
        return self.outcome == "success"

    @property
    def failed(self) -> bool:
        """Whether it raised."""
        return self.outcome == "failed"

    @property
    def crashed(self) -> bool:
        """Whether it was killed by `crash_after` or `crash_before`."""
        return self.outcome == "crashed"

    @property
    def deferred(self) -> bool:
        """Whether it waits for a trigger."""
        return self.outcome == "deferred"

    def resume(
        self, event: Any = None, *, crash_after: str | int | None = None, crash_before: str | None = None
    ) -> TaskOutcome:
        """Go on with an attempt that was deferred, with a trigger's payload, or rescheduled; its number stays."""
        if self.outcome == "rescheduled":
            return self._trial.run(None, crash_after, crash_before)
        if self.deferral is None:
            raise AssertionError(f"{self!r} does not wait, so it cannot go on; run the next attempt with run_task")
        arguments = {**self._trial._value(dict(self.deferral.kwargs)), "event": self._trial._value(event)}
        return self._trial.run((self.deferral.method_name, arguments), crash_after, crash_before)

    def __repr__(self) -> str:
        why = "" if self.exception is None else f": {type(self.exception).__name__}: {self.exception}"
        return f"<attempt {self.attempt} of {self._trial.scope}: {self.outcome}{why}>"
