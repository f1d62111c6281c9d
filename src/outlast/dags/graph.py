"""DAGs: tasks with an order between them, and the settings they share."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, overload

from ..errors import DagError
from ..values import check_id
from .arguments import count, did_you_mean, duration, listed, parameters_of, refuse_unknown
from .asset_definitions import condition_of
from .links import chain
from .params import defaults
from .references import Parameter

if TYPE_CHECKING:
    from .operators import BaseOperator
    from .partials import Partial
    from .task_functions import TaskFunction

__all__ = ["DAG", "DagFunction", "chain", "collect", "current_dag", "dag", "dag_or_current"]

_MICROSECOND = timedelta(microseconds=1)
_open: ContextVar[tuple[DAG, ...]] = ContextVar("outlast_open_dags", default=())
_collected: ContextVar[list[DAG] | None] = ContextVar("outlast_collected_dags", default=None)


class DAG:
    """A set of tasks with an order between them, which `outlast run` runs as one.

    >>> with DAG("nightly", params={"day": "today"}) as dag:
    ...     load(extract())

    Tasks made inside `with`, or given `dag=`, belong to it. A `schedule` of assets (`[a, b]`, `a & b`, `a | b`) is
    waited for; any other is recorded and shown, not acted on.
    """

    def __init__(
        self,
        dag_id: str,
        *,
        description: str | None = None,
        schedule: Any = None,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
        catchup: bool = False,
        tags: Iterable[str] = (),
        doc_md: str | None = None,
        params: Mapping[str, Any] | None = None,
        default_args: Mapping[str, Any] | None = None,
        max_active_runs: int = 16,
        max_active_tasks: int | None = None,
        dagrun_timeout: timedelta | float | None = None,
        **unknown: Never,
    ) -> None:
        """Define a DAG: what it is called, what it is for, and what its tasks and runs have in common.

        `params` are what a run can be started with, with their defaults: JSON values. `default_args` are given to
        every task whose constructor takes them and was not given them. `max_active_tasks` limits how many
        of its tasks run at once in one run. Raises DagError for a wrong argument, InvalidKey for a bad dag_id.
        """
        refuse_unknown("DAG", unknown, ["dag_id", *_OPTIONS])
        self.dag_id = check_id(dag_id, "dag_id")
        self.description, self.doc_md = description, doc_md
        self.schedule, self.catchup = schedule, catchup
        self.asset_condition = condition_of(schedule)
        self.start_date, self.end_date = _date("start_date", start_date), _date("end_date", end_date)
        self.tags: tuple[str, ...] = listed("tags", tags)
        self.params = defaults(_named("params", params))
        self.default_args = _named("default_args", default_args)
        self.max_active_runs = count("max_active_runs", max_active_runs, 1)
        self.max_active_tasks = None if max_active_tasks is None else count("max_active_tasks", max_active_tasks, 1)
        self.dagrun_timeout = (
            None if dagrun_timeout is None else duration("dagrun_timeout", dagrun_timeout, _MICROSECOND)
        )
        self.tasks: dict[str, BaseOperator] = {}
        self.decorated: list[TaskFunction] = []
        self.partials: list[Partial] = []
        self.module, self.line = _place()
        self._repeats: dict[str, int] = {}
        collected = _collected.get()
        if collected is not None:
            collected.append(self)

    def __getattr__(self, name: str) -> Any:
        from .airflow_missing import no_attribute

        raise no_attribute(self, name)

    def __repr__(self) -> str:
        return f"<DAG {self.dag_id}>"

    def __enter__(self) -> DAG:
        _open.set((*_open.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.set(_open.get()[:-1])
        if error is None:
            self.topological()

    def add_task(self, task: BaseOperator) -> None:
        """Add a task made outside; DagError if there is one of that id, or if it belongs to another DAG."""
        if task.dag is not None and task.dag is not self:
            raise DagError(
                f"task {task.task_id!r} belongs to DAG {task.dag.dag_id!r}, not to {self.dag_id!r}; make another"
            )
        if self.tasks.setdefault(task.task_id, task) is not task:
            raise DagError(f"DAG {self.dag_id!r} has a task {task.task_id!r} already; give this one another task_id")
        task.dag = self

    def free_id(self, task_id: str) -> str:
        """Return a task id no task of this DAG has: the one asked for, or with `__1`, `__2`, …"""
        free = task_id
        while free in self.tasks:
            self._repeats[task_id] = self._repeats.get(task_id, 0) + 1
            free = f"{task_id}__{self._repeats[task_id]}"
        return free

    def topological(self) -> tuple[str, ...]:
        """Return the task ids so that each comes after those it waits for; DagError naming a cycle."""
        left = {task_id: len(task.upstream_task_ids) for task_id, task in self.tasks.items()}
        ready = deque(task_id for task_id, above in left.items() if not above)
        order: list[str] = []
        while ready:
            order.append(ready.popleft())
            for below in self.tasks[order[-1]].downstream_task_ids:
                left[below] -= 1
                if not left[below]:
                    ready.append(below)
        if len(order) < len(self.tasks):
            cycle = " >> ".join(self._cycle({task_id for task_id, above in left.items() if above}))
            raise DagError(
                f"the tasks of DAG {self.dag_id!r} wait for each other: {cycle}; remove one of these dependencies"
            )
        return tuple(order)

    def _cycle(self, stuck: set[str]) -> list[str]:
        """Walk upstream among tasks that can never start until one comes a second time."""
        path = [next(task_id for task_id in self.tasks if task_id in stuck)]
        while path[-1] not in path[:-1]:
            path.append(next(above for above in self.tasks[path[-1]].upstream_task_ids if above in stuck))
        return path[path.index(path[-1]) :][::-1]

    def merged_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a run: the defaults with those given; DagError for one the DAG does not have."""
        for name in given:
            if name not in self.params:
                hint = did_you_mean(name, self.params) or f"; it has {', '.join(self.params) or 'none'}"
                raise DagError(f"DAG {self.dag_id!r} has no parameter {name!r}{hint}")
        return {**self.params, **given}

    def check(self, decorated: Iterable[TaskFunction] = ()) -> None:
        """Raise DagError if this cannot be run: no tasks, a cycle, a misspelt default argument.

        `decorated` are functions under `@task` which might have been meant to be called in it.
        """
        if not self.tasks and not self.partials:
            raise DagError(f"DAG {self.dag_id!r} has no tasks: {_to_be_called([*self.decorated, *decorated])}")
        for partial in self.partials:
            if not partial.used:
                raise DagError(f"{partial.name}.partial() is never expanded; write {partial.line_to_add}")
        self.topological()
        self._check_default_args()

    def _check_default_args(self) -> None:
        """Refuse a default that nothing takes but something nearly does; others may be for operators not used."""
        from .operators import accepted

        taken = {name for kind in self._kinds() for name in accepted(kind)}
        for name in self.default_args:
            if name not in taken and (hint := did_you_mean(name, taken, 0.8)):
                raise DagError(f"no task of DAG {self.dag_id!r} takes {name!r} from default_args{hint}")

    def _kinds(self) -> set[type[BaseOperator]]:
        return {getattr(task, "operator_class", type(task)) for task in self.tasks.values()}


_OPTIONS = parameters_of(DAG.__init__).keyword_only


def _to_be_called(decorated: Iterable[TaskFunction]) -> str:
    uncalled = {function.name: function for function in decorated if not function.origin.called}
    if not uncalled:
        return "put @task above a function and call it inside `with DAG(...)`"
    names = " and ".join(f"{function.name} (line {function.line})" for function in uncalled.values())
    verb = "are" if len(uncalled) > 1 else "is"
    lines = "".join(f"\n    {function.line_to_add}" for function in uncalled.values())
    return f"{names} {verb} under @task but never called; add inside the DAG:{lines}"


def _date(what: str, value: object) -> datetime | None:
    if value is not None and not isinstance(value, datetime):
        raise DagError(f"{what} is {value!r}; use a datetime, such as datetime(2026, 11, 29, tzinfo=UTC)")
    return value


def _named(what: str, values: object) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise DagError(f"{what} is {values!r}; use a dict whose keys are names")
    return dict(values)


def _place() -> tuple[str, int]:
    """Return the name of the module being executed that led to this DAG, and the line it is at."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame.f_globals.get("__name__", ""), frame.f_lineno


# --- The DAG being defined -------------------------------------------------------------------------------


def current_dag() -> DAG | None:
    """Return the DAG whose `with` block is being executed, if any."""
    return _open.get()[-1] if _open.get() else None


def dag_or_current(given: object) -> DAG | None:
    """Return the DAG given as an argument, else the current one; DagError for something else."""
    if given is None:
        return current_dag()
    if not isinstance(given, DAG):
        raise DagError(f"dag is {given!r}; pass the DAG itself")
    return given


@contextmanager
def collect() -> Iterator[list[DAG]]:
    """Collect the DAGs made inside a `with` block, and begin it with no DAG open."""
    made: list[DAG] = []
    collected, opened = _collected.set(made), _open.set(())
    try:
        yield made
    finally:
        _collected.reset(collected)
        _open.reset(opened)


# --- Functions that make DAGs ----------------------------------------------------------------------------


class DagFunction:
    """A function under `@dag`: a call makes the DAG, runs the function to define its tasks, and returns the DAG."""

    def __init__(self, function: Callable[..., Any], dag_id: str | None, options: dict[str, Any]) -> None:
        refuse_unknown("@dag", options, _OPTIONS)
        functools.update_wrapper(self, function)
        self.function, self.options = function, options
        self.dag_id = function.__name__ if dag_id is None else dag_id
        self.called = False

    def __call__(self, *args: Any, **kwargs: Any) -> DAG:
        """Make the DAG. The function's parameters become parameters of its runs, with these values as defaults."""
        self.called = True
        values = self._arguments(args, kwargs)
        options = {"doc_md": self.function.__doc__} | self.options
        options["params"] = _named("params", options.get("params")) | values
        with DAG(self.dag_id, **options) as made:
            self.function(**{name: Parameter(name) for name in values})
        return made

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        import inspect

        name = self.function.__name__
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise DagError(f"{name}(): {error}; give its parameters defaults, for runs that do not set them") from None
        bound.apply_defaults()
        return bound.arguments

    def __repr__(self) -> str:
        return f"<@dag function {self.function.__name__}>"


@overload
def dag(function: Callable[..., Any], /) -> DagFunction: ...


@overload
def dag(dag_id: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], DagFunction]: ...


def dag(dag_id: Any = None, **options: Any) -> Any:
    """Make a function that defines tasks a maker of DAGs: `@dag`, or `@dag(...)` with any argument of DAG.

    The DAG is named after the function unless `dag_id` is given. Call the function to make the DAG.

    >>> @dag(tags=["demo"])
    ... def nightly(day="today"):
    ...     load(extract(day))
    ...
    >>> nightly()
    <DAG nightly>
    """
    if callable(dag_id):
        return DagFunction(dag_id, None, options)
    return lambda function: DagFunction(function, dag_id, options)
