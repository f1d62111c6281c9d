"""For people who test their own tasks: a store in memory, a clock to move, and single attempts that can be killed.

As a pytest plugin it has the fixtures `outlast_store` and `outlast_clock`. pytest loads it at every start where
outlast is installed, so nothing that takes time is imported before it is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from .outcome import Killed, TaskOutcome

if TYPE_CHECKING:
    from ..dags.graph import DAG
    from ..store import Store

__all__ = ["Clock", "Killed", "TaskOutcome", "load_dag", "memory_store", "run_task"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = datetime(2026, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock:
    """A clock that stands still until it is moved: `connect(..., clock=clock)`, or the fixture `outlast_clock`.

    It is the store's clock, which decides what has expired; `datetime.now()` in a task's code is not changed.

    >>> clock = Clock()
    >>> clock.advance(timedelta(days=31))
    """

    def __init__(self, start: datetime = _START) -> None:
        self.set(start)

    def __call__(self) -> int:
        """Return the time in microseconds since 1970-01-01 UTC."""
        return (self._now - _EPOCH) // _MICROSECOND

    @property
    def now(self) -> datetime:
        """The time it shows, in UTC."""
        return self._now

    def advance(self, span: timedelta | float) -> None:
        """Go on by a timedelta or by seconds; a negative one goes back."""
        self._now += span if isinstance(span, timedelta) else timedelta(seconds=span)

    def set(self, moment: datetime) -> None:
        """Show a moment, which has a time zone."""
        if moment.utcoffset() is None:
            raise ValueError(f"{moment!r} has no time zone; use datetime(…, tzinfo=UTC)")
        self._now = moment.astimezone(UTC)

    def __repr__(self) -> str:
        return f"<Clock {self._now.isoformat()}>"


def memory_store(clock: Callable[[], int] | None = None) -> Store:
    """Open a store that is kept in memory, with the default settings whatever the environment says."""
    from ..config import Config
    from ..store import connect
    from ..values import system_clock

    return connect(":memory:", config=Config(), clock=clock or system_clock)


def load_dag(path: str | os.PathLike[str], dag_id: str | None = None) -> DAG:
    """Load a DAG file as `outlast run` does, and return its DAG; `dag_id` says which, where there are several.

    Where no Airflow is installed, Airflow's import paths mean outlast's own names from then on.
    """
    from ..dags.loading import load_file, pick_dag

    return pick_dag(load_file(path), dag_id)


def run_task(
    task: Any,
    *,
    store: Store | None = None,
    attempt: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    upstream: Mapping[str, Any] | None = None,
    triggering_events: Mapping[Any, Sequence[Mapping[str, Any]]] | None = None,
    map_index: int = -1,
    run_id: str = "test",
    logical_date: datetime | None = None,
    crash_after: str | int | None = None,
    crash_before: str | None = None,
) -> TaskOutcome:
    """Run one attempt of a task in this process, with a real state store, and return how it ended.

    `task` is a function, with or without `@task`, a task of a DAG, or an operator. A second call with the same
    store is the next attempt, unless `attempt` gives a number. `arguments` are those of a function, `upstream`
    results of tasks above it by their ids, beside what earlier calls with this store have left; `triggering_events`
    the extras of the asset events the run was started for, `{Asset("orders"): [{"rows": 3}]}`. Of a mapped task the
    instance `map_index` is run.

    `crash_after="key"` kills the task when that key has been written, `crash_after=3` after its third write,
    `crash_before="key"` instead of writing it. What the task then still does has no effect on the store.
    AssertionError if it ends without having come there.

    >>> first = run_task(load, store=outlast_store, crash_after="page")
    >>> assert first.crashed and first.state == {"page": 1}
    >>> assert run_task(load, store=outlast_store).result == 10
    """
    from .trial import Trial, check_crash, task_of

    check_crash(crash_after, crash_before)
    place = memory_store() if store is None else store
    dag, operator = task_of(task, dict(arguments or {}), dict(params or {}))
    trial = Trial(place, dag, operator, dag.merged_params(params or {}), run_id, logical_date)
    trial.give(upstream or {})
    trial.trigger(triggering_events or {})
    trial.open(map_index, attempt)
    return trial.run(None, crash_after, crash_before)


# --- Fixtures --------------------------------------------------------------------------------------------

if "pytest" in sys.modules:
    import pytest

    @pytest.fixture
    def outlast_clock() -> Clock:
        """A clock that stands still until the test moves it; it begins at 2026-01-01 UTC."""
        return Clock()

    @pytest.fixture
    def outlast_store(outlast_clock: Clock) -> Iterator[Store]:
        """A store in memory of the test's own, with `outlast_clock` as its clock."""
        with memory_store(outlast_clock) as store:
            yield store
