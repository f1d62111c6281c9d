"""Sensors: tasks that look again and again whether something has come, in a process or with none in between."""

from __future__ import annotations

import math
import time
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

from ..errors import DagError, StaleAttempt
from ..values import moment
from .arguments import duration
from .context import Context
from .operators import BaseOperator
from .outcomes import FailTask, SensorTimeout, SkipTask, TaskRescheduled
from .task_functions import FunctionTask, TaskFunction

__all__ = ["BaseSensorOperator", "PokeReturnValue", "SensorFunction", "SensorTask"]

_DAY = 86_400.0
_MODES = ("poke", "reschedule")


class PokeReturnValue:
    """What `poke` may return in place of a bool: whether the wait is over, and the task's result."""

    def __init__(self, is_done: bool, xcom_value: Any = None) -> None:
        self.is_done, self.xcom_value = is_done, xcom_value

    def __bool__(self) -> bool:
        return self.is_done

    def __repr__(self) -> str:
        return f"PokeReturnValue(is_done={self.is_done!r}, xcom_value={self.xcom_value!r})"


class BaseSensorOperator(BaseOperator):
    """A task that waits until `poke(context)` says so. Derive from it, and define that.

    >>> class FileSensor(BaseSensorOperator):
    ...     def __init__(self, *, path, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.path = path
    ...
    ...     def poke(self, context):
    ...         return os.path.exists(self.path)
    """

    def __init__(
        self,
        *,
        poke_interval: timedelta | float = 60.0,
        timeout: timedelta | float = 7 * _DAY,
        mode: str = "poke",
        soft_fail: bool = False,
        never_fail: bool = False,
        silent_fail: bool = False,
        exponential_backoff: bool = False,
        max_wait: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        """Define a sensor: how often it looks, and for how long, from the start of its attempt on.

        In the mode "poke" it sleeps in its process; in "reschedule" the process ends and its slot is free in between,
        so that what it remembers is in `task_state_store`. After `timeout` it fails, whatever retries are left, or is
        skipped with `soft_fail`. An exception in `poke` fails the attempt; with `silent_fail` it is logged and the
        sensor goes on, with `never_fail` it is skipped. `exponential_backoff` doubles the interval each time, up to
        `max_wait` (a day).
        """
        super().__init__(**kwargs)
        self.poke_interval = duration("poke_interval", poke_interval).total_seconds()
        self.timeout = duration("timeout", timeout).total_seconds()
        self.max_wait = None if max_wait is None else duration("max_wait", max_wait).total_seconds()
        if mode not in _MODES:
            raise DagError(f'mode is {mode!r}; use "poke" or "reschedule"')
        if soft_fail and never_fail:
            raise DagError("soft_fail and never_fail exclude each other: never_fail skips after a timeout too")
        self.mode, self.soft_fail, self.never_fail = str(mode), soft_fail, never_fail
        self.silent_fail, self.exponential_backoff = silent_fail, exponential_backoff

    @property
    def reschedule(self) -> bool:
        """Whether the process ends between two looks."""
        return self.mode == "reschedule"

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Look, and say whether the wait is over. Yours to define; it may be `async def`."""
        raise NotImplementedError

    def execute(self, context: Context) -> Any:
        """Look until the wait is over; return what the last look says is the result."""
        began = time.monotonic() - _seconds_since(context)
        while not (answer := self._look(context)):
            waited = time.monotonic() - began
            if waited >= self.timeout:
                self._give_up(f"it has not come within {self.timeout:g} s, the sensor's timeout")
            pause = min(self._interval(waited), self.timeout - waited)
            if self.reschedule:
                raise TaskRescheduled(_now(context) + timedelta(seconds=pause))
            time.sleep(pause)  # a signal ends it, by an exception
        return answer.xcom_value if isinstance(answer, PokeReturnValue) else None

    def _look(self, context: Context) -> Any:
        try:
            answer = self.poke(context)
            if isinstance(answer, Coroutine):
                import asyncio

                answer = asyncio.run(answer)
        except (SkipTask, TaskRescheduled, StaleAttempt):
            raise
        except FailTask as error:
            if self.soft_fail or self.never_fail:
                raise SkipTask(str(error)) from error
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("poke failed; it will be called again")
                return False
            if self.never_fail:
                raise SkipTask(f"{type(error).__name__}: {error}") from error
            raise
        return answer

    def _give_up(self, why: str) -> None:
        if self.soft_fail or self.never_fail:
            raise SkipTask(why)
        raise SensorTimeout(why)

    def _interval(self, waited: float) -> float:
        """Return the seconds until the next look; doubled each time, it is about as long as the wait has been."""
        if not self.exponential_backoff or not self.poke_interval:
            return self.poke_interval
        doublings = math.floor(math.log2(waited / self.poke_interval + 1))
        longest = max(self.poke_interval, _DAY) if self.max_wait is None else self.max_wait
        return min(self.poke_interval * 2.0 ** min(doublings, 60), longest)


def _now(context: Context) -> datetime:
    """Return the time by the store's clock, which the attempt's start was taken from as well."""
    return moment(context["task_state_store"].clock())


def _seconds_since(context: Context) -> float:
    """Return how long the attempt has been going, from before the process it now has."""
    started = context["ti"].start_date
    return 0.0 if started is None else max(0.0, (_now(context) - started).total_seconds())


# --- Functions -------------------------------------------------------------------------------------------


class SensorTask(FunctionTask, BaseSensorOperator):
    """A sensor that calls a function to look."""

    def execute(self, context: Context) -> Any:  # type: ignore[override]  # what looks again has no use for an event
        return BaseSensorOperator.execute(self, context)

    def poke(self, context: Context) -> Any:
        return FunctionTask.execute(self, context)


class SensorFunction(TaskFunction):
    """A function under `@task.sensor`."""

    operator_class = SensorTask
    option_class = BaseSensorOperator
