"""What a task can know while it runs: its context, its task instance, its run, results of other tasks."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from ..errors import DagError
from ..values import check_index, check_key
from .references import Parameter, Reference, Result, replaced
from .several_outputs import check_outputs, has_several

if TYPE_CHECKING:
    from ..state import TaskState
    from .graph import DAG
    from .operators import BaseOperator

__all__ = [
    "CONTEXT_KEYS",
    "Context",
    "DagRun",
    "Results",
    "TaskInstance",
    "build_context",
    "entered",
    "execute",
    "get_current_context",
    "replace_task",
    "resolve",
]

Context: TypeAlias = dict[str, Any]

#: What a function's parameter may be named after to be given it; a task without assets has no asset_state_store.
CONTEXT_KEYS = frozenset(
    {
        *("dag", "dag_run", "task", "ti", "task_instance", "task_instance_key_str", "run_id", "params"),
        *("task_state_store", "asset_state_store", "inlets", "outlets", "outlet_events", "triggering_asset_events"),
        *("logical_date", "data_interval_start", "data_interval_end"),
        *("ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz"),
    }
)

RETURN_VALUE = "return_value"
_current: ContextVar[Context | None] = ContextVar("outlast_context", default=None)


class Results(Protocol):
    """Where the tasks of one run leave results for each other, as one attempt sees it."""

    def push(self, name: str, value: Any) -> None:
        """Keep a named result of the running attempt."""

    def pull(
        self, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None
    ) -> Sequence[tuple[str, int, Any]]:
        """Return (task id, map index, value) of every such result there is; None means any map index."""


class DagRun(msgspec.Struct, frozen=True):
    """The run a task belongs to. `params` are the DAG's defaults with what this run was started with."""

    dag_id: str
    run_id: str
    logical_date: datetime
    params: dict[str, Any]

    @property
    def conf(self) -> dict[str, Any]:
        """The parameters, under their other name in Airflow."""
        return self.params

    @property
    def run_type(self) -> str:
        """How the run came about: "asset_triggered" by events of assets, "manual" otherwise, cron included."""
        return "asset_triggered" if self.run_id.startswith("asset_triggered__") else "manual"

    @property
    def state(self) -> str:
        """That of a run whose tasks run."""
        return "running"

    @property
    def run_after(self) -> datetime:
        """The logical date; so are `data_interval_start` and `data_interval_end`: a run covers no interval."""
        return self.logical_date

    data_interval_start = data_interval_end = run_after

    def __getattr__(self, name: str) -> Any:
        from .airflow_missing import no_part

        raise no_part("dag_run", self, name)


class TaskInstance:
    """One task in one run, as the attempt that is running sees it; `ti` in the context.

    `try_number` is the attempt's number, from 1 on. `map_index` is -1 unless the task is mapped.
    """

    def __init__(self, task: BaseOperator, dag_run: DagRun, map_index: int, try_number: int, results: Results) -> None:
        self.task, self.dag_run, self.results = task, dag_run, results
        self.dag_id, self.run_id, self.task_id = dag_run.dag_id, dag_run.run_id, task.task_id
        self.map_index, self.try_number = map_index, try_number
        self.start_date: datetime | None = None
        self.end_date: datetime | None = None
        self.state = "running"

    @property
    def max_tries(self) -> int:
        """How often the task is tried again: its `retries`."""
        return self.task.retries

    @property
    def operator(self) -> str:
        """The name of the operator's class."""
        return type(self.task).__name__

    @property
    def logical_date(self) -> datetime:
        """That of the run."""
        return self.dag_run.logical_date

    @property
    def hostname(self) -> str:
        """The name of the host the attempt runs on."""
        return os.uname().nodename

    @property
    def pid(self) -> int:
        """The process the attempt runs in."""
        return os.getpid()

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Which attempt this is: DAG, task, run, try number and map index."""
        return self.dag_id, self.task_id, self.run_id, self.try_number, self.map_index

    def get_template_context(self) -> Context:
        """Return the context of the attempt."""
        return get_current_context()

    def __repr__(self) -> str:
        place = "" if self.map_index < 0 else f"/{self.map_index}"
        return f"<TaskInstance {self.dag_id}/{self.run_id}/{self.task_id}{place} try {self.try_number}>"

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep a named result for other tasks of this run: a JSON value of at most 1 MiB, or None.

        The next attempt begins without it. Raises InvalidKey or InvalidValue.
        """
        self.results.push(check_key(key), value)

    def xcom_pull(
        self,
        task_ids: str | Sequence[str] | None = None,
        key: str = RETURN_VALUE,
        default: Any = None,
        map_indexes: int | Sequence[int] | None = None,
    ) -> Any:
        """Return a result of another task (by default what it returned), `default` where there is none.

        For a list of tasks or of map indexes, and for a mapped task, a list. Without task_ids: this task's own.
        """
        ids = (self.task_id,) if task_ids is None else (task_ids,) if isinstance(task_ids, str) else tuple(task_ids)
        one_index = isinstance(map_indexes, int)
        indexes = None if map_indexes is None else _indexes(map_indexes)
        rows = self._rows(ids, check_key(key), indexes)
        if not isinstance(task_ids, str | None) or not (one_index or indexes is None):
            return [value for task_id in ids for value in _of_task(rows, task_id, indexes, default)]
        if not rows:
            return default
        return rows[0][2] if one_index else _whole(rows)

    def _rows(self, ids: tuple[str, ...], key: str, indexes: tuple[int, ...] | None) -> Sequence[tuple[str, int, Any]]:
        """Return what tasks have left under a name: pushed, or as that key of a dict that is several outputs."""
        rows = {(task_id, index): value for task_id, index, value in self.results.pull(ids, key, indexes)}
        tasks = {} if key == RETURN_VALUE or self.task.dag is None else self.task.dag.tasks
        several = tuple(task_id for task_id in ids if task_id in tasks and has_several(tasks[task_id]))
        for task_id, index, value in self.results.pull(several, RETURN_VALUE, indexes) if several else ():
            if isinstance(value, dict) and key in value:
                rows[task_id, index] = value[key]
        return [(*place, rows[place]) for place in sorted(rows)]

    def __getattr__(self, name: str) -> Any:
        from .airflow_missing import no_part

        raise no_part("ti", self, name)


def _indexes(map_indexes: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(check_index(index) for index in ([map_indexes] if isinstance(map_indexes, int) else map_indexes))


def _of_task(
    rows: Sequence[tuple[str, int, Any]], task_id: str, indexes: tuple[int, ...] | None, default: Any
) -> list[Any]:
    found = {map_index: value for owner, map_index, value in rows if owner == task_id}
    if indexes is not None:
        return [found.get(index, default) for index in indexes]
    return list(found.values()) or [default]


def _whole(rows: Sequence[tuple[str, int, Any]]) -> Any:
    """Return the value of an unmapped task, the list of a mapped one's, None where there is none."""
    if not rows:
        return None
    return rows[0][2] if rows[0][1] < 0 else [value for _, _, value in rows]


# --- The context of an attempt ---------------------------------------------------------------------------


def build_context(
    *,
    dag: DAG,
    task: BaseOperator,
    run_id: str,
    try_number: int,
    logical_date: datetime,
    params: dict[str, Any],
    task_state_store: TaskState,
    results: Results,
    map_index: int = -1,
    start_date: datetime | None = None,
) -> Context:
    """Return the context of one attempt. `logical_date` is aware; `params` are complete.

    `start_date` is when the attempt began, also where it goes on after a deferral.
    """
    dag_run = DagRun(dag.dag_id, run_id, logical_date, params)
    ti = TaskInstance(task, dag_run, map_index, try_number, results)
    ti.start_date = start_date
    return {
        "dag": dag,
        "task": task,
        "ti": ti,
        "task_instance": ti,
        "dag_run": dag_run,
        "run_id": run_id,
        "params": params,
        "task_state_store": task_state_store,
        "inlets": task.inlets,
        "outlets": task.outlets,
        "task_instance_key_str": f"{dag.dag_id}__{task.task_id}__{logical_date:%Y%m%d}",
        **_dates(logical_date.astimezone(UTC)),
    }


def _dates(moment: datetime) -> Context:
    """Return the logical date in the forms Airflow has for it; a run started by hand covers no interval."""
    ts = moment.isoformat()
    return {
        "logical_date": moment,
        "data_interval_start": moment,
        "data_interval_end": moment,
        "ds": f"{moment:%Y-%m-%d}",
        "ds_nodash": f"{moment:%Y%m%d}",
        "ts": ts,
        "ts_nodash": f"{moment:%Y%m%dT%H%M%S}",
        "ts_nodash_with_tz": ts.replace("-", "").replace(":", ""),
    }


def get_current_context() -> Context:
    """Return the context of the task that is running, from anywhere in its code; DagError outside a task."""
    context = _current.get()
    if context is None:
        raise DagError("no task is running here, so there is no context; call get_current_context() from a task's code")
    return context


@contextmanager
def entered(context: Context) -> Iterator[None]:
    """Make a context the current one."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def replace_task(context: Context, task: BaseOperator) -> None:
    """Make a context that of another task object: the instance of a mapped one, or one with its references resolved."""
    context["ti"].task = context["task"] = task
    context["inlets"], context["outlets"] = task.inlets, task.outlets


def execute(task: BaseOperator, context: Context, resumption: tuple[str, dict[str, Any]] | None = None) -> Any:
    """Run a task's code in its context, and return what it returned. Raises what it raised.

    `resumption` names the method a deferred attempt goes on with, and its arguments beside the context.
    """
    with entered(context):
        ready = _with_values(task, context["ti"])
        replace_task(context, ready)
        try:
            return _called(ready, context, resumption)
        except KeyError as error:
            from .airflow_missing import explained

            better = explained(error, context)
            if better is None:
                raise
            raise better.with_traceback(error.__traceback__) from None


def _called(task: BaseOperator, context: Context, resumption: tuple[str, dict[str, Any]] | None) -> Any:
    method, arguments = ("execute", {}) if resumption is None else resumption
    answer = getattr(task, method)(context, **arguments)
    if isinstance(answer, Coroutine):
        import asyncio  # 30 ms that other tasks need not pay

        if asyncio._get_running_loop() is not None:
            answer.close()
            raise DagError(
                f"{task.task_id} is async, and an event loop runs in this thread already; "
                "call what runs it in a thread: await asyncio.to_thread(…)"
            )
        answer = asyncio.run(answer)
        if method == "execute" and has_several(task):
            check_outputs(task.task_id, answer)
    return answer


def _with_values(task: BaseOperator, ti: TaskInstance) -> BaseOperator:
    """Return the task with references in its attributes replaced; a copy, so that the DAG stays as defined."""
    before = vars(task)
    after = resolve(before, ti, required=task.trigger_rule == "all_success")
    if after is before:
        return task
    copy: BaseOperator = object.__new__(type(task))
    vars(copy).update(after)
    return copy


def resolve(arguments: Any, ti: TaskInstance, *, required: bool = True) -> Any:
    """Return arguments with the values their references stand for, also inside lists, tuples and dicts.

    A result that does not exist is a DagError naming the task, or None if not `required`: a task that
    runs whatever became of those above it cannot count on their results.
    """

    def value_of(reference: Reference) -> Any:
        match reference:
            case Result():
                return _value(reference, ti, required)
            case Parameter(name=name):
                return ti.dag_run.params[name]
        raise TypeError(f"{reference!r} has no value")

    return replaced(arguments, value_of)


def _value(result: Result, ti: TaskInstance, required: bool) -> Any:
    """Return what a result stands for. A part may also be one the task has pushed under that name."""
    task_id, steps = result.task.task_id, result.path
    rows = ti.results.pull((task_id,), RETURN_VALUE, None)
    value = _whole(rows)
    if steps and isinstance(steps[0], str) and not (isinstance(value, dict) and steps[0] in value):
        rows = ti.results.pull((task_id,), steps[0], None)
        value, steps = _whole(rows), steps[1:]
    if rows and value is None:  # marked as success by hand, or returned None
        return None
    if rows:
        try:
            return functools.reduce(operator.getitem, steps, value)
        except (LookupError, TypeError):
            pass
    if required:
        raise DagError(f"there is no {result!r} in this run; see what task {task_id!r} returned, and what became of it")
    return [] if result.task.mapped and not (rows or result.path) else None
