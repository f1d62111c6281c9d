"""A task in a run that exists only in a test, and the attempts of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from .. import codec
from ..dags import assets, mapping
from ..dags.arguments import did_you_mean
from ..dags.asset_definitions import OneAsset
from ..dags.asset_events import AssetEvent
from ..dags.context import build_context, execute, replace_task
from ..dags.graph import DAG
from ..dags.links import Linked
from ..dags.operators import BaseOperator
from ..dags.outcomes import SkipTask, TaskDeferred, TaskRescheduled, TaskTimeout
from ..dags.task_functions import TaskFunction
from ..dags.task_functions import task as decorator
from ..dags.triggers import trigger_text
from ..errors import InvalidKey
from ..event_requests import EventRow
from ..requests import Commit, Increment, Put, PutDefault
from ..runner.attempt import RESULT_LIMIT, result_text
from ..state import TaskState
from ..store import Store
from ..values import TaskScope, Writer, check_key, moment
from .outcome import Killed, TaskOutcome

__all__ = ["Trial", "check_crash", "task_of"]

#: What a run is about where the test does not say; the same for all its attempts.
_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def task_of(task: Any, arguments: dict[str, Any], params: dict[str, Any]) -> tuple[DAG, BaseOperator]:
    """Return the task meant with its DAG, which is made for one that has none."""
    if isinstance(task, type):
        raise TypeError(f'{task.__name__} is a class; pass a task made of it: {task.__name__}(task_id="t", …)')
    if not isinstance(task, Linked | TaskFunction) and callable(task):
        task = decorator(task)
    if isinstance(task, TaskFunction):
        with DAG("test", params=params) as made:
            return made, task(**arguments).linked()
    if not isinstance(task, Linked):
        raise TypeError(f"{task!r} is no task; pass a function, a task of a DAG, or an operator")
    operator = task.linked()
    if arguments:
        raise TypeError(f"{operator!r} has its arguments already; `arguments` are for a function")
    return operator.dag or DAG("test", params=params), operator


def check_crash(after: object, before: object) -> None:
    """Raise for what names no write to be killed at: TypeError, ValueError, or InvalidKey for no key."""
    if isinstance(after, bool) or not isinstance(after, str | int | None):
        raise TypeError(f"crash_after is {after!r}; use a key, or a number: 1 is the first write")
    if isinstance(after, int) and after < 1:
        raise ValueError(f"crash_after is {after}; writes are counted from 1, and crash_before=KEY kills before one")
    if not isinstance(before, str | None):
        raise TypeError(f"crash_before is {before!r}; use a key")
    for name, key in (("crash_after", after), ("crash_before", before)):
        if isinstance(key, str):
            try:
                check_key(key)
            except InvalidKey as error:
                raise InvalidKey(f"{name} is {key!r}, which is never written: {error.message}") from None


def _above(operator: BaseOperator, dag: DAG) -> set[str]:
    """Return the ids of all tasks a task waits for, directly or not."""
    found: set[str] = set()
    left = list(operator.upstream_task_ids)
    while left:
        task_id = left.pop()
        if task_id not in found:
            found.add(task_id)
            left += dag.tasks[task_id].upstream_task_ids
    return found


class Trial:
    """A task in a run that exists only here: what it takes to run an attempt, and to go on with it."""

    def __init__(
        self,
        store: Store,
        dag: DAG,
        operator: BaseOperator,
        params: dict[str, Any],
        run_id: str,
        logical_date: datetime | None,
    ) -> None:
        self.store, self.dag, self.operator, self.params = store, dag, operator, params
        self.run_id, self.logical_date = run_id, logical_date or _WHEN
        self.results = _Results(_left.setdefault(store, {}), dag.dag_id, run_id)
        self.scope: TaskScope
        self.attempt = 0
        self.began = moment(store.clock())
        self.events: list[EventRow] = []
        self.context: Any = None

    def give(self, upstream: Mapping[str, Any]) -> None:
        """Take over results of tasks above, at any distance; ValueError for a name that is none of these."""
        above = _above(self.operator, self.dag)
        for task_id in upstream:
            if task_id not in above:
                of = f"above {self.operator.task_id!r} are {', '.join(sorted(above))}" if above else "it has none"
                raise ValueError(
                    f"upstream has {task_id!r}, which is no task above {self.operator.task_id!r}"
                    f"{did_you_mean(task_id, above)}; {of}"
                )
        self.results.seed({task_id: self._value(value) for task_id, value in upstream.items()})

    def trigger(self, events: Mapping[Any, Sequence[Mapping[str, Any]]]) -> None:
        """Say which events of assets the run was started for: the extra of each, by asset, oldest first."""
        for asset, extras in events.items():
            if not isinstance(asset, OneAsset):
                raise TypeError(f"triggering_events has {asset!r}, which is no asset; use {{Asset(...): [extra, ...]}}")
            if isinstance(extras, Mapping | str):
                raise TypeError(f"triggering_events has {extras!r} for {asset!r}; use a list, one extra an event")
            for extra in extras:
                text = codec.dump(dict(extra)).decode()
                number = len(self.events) + 1
                self.events.append(EventRow(number, asset.name, asset.uri, self.store.clock(), None, text))

    def open(self, map_index: int, attempt: int | None) -> None:
        """Begin an attempt, as a worker does: older ones are refused from now on, and their results are gone."""
        item = None
        if self.operator.mapped:
            found = mapping.items(self.operator, self.results.pull, self.params)
            if not 0 <= map_index < len(found):
                raise IndexError(f"{self.operator!r} has {len(found)} instances; say which: map_index=0")
            item = found[map_index].key
        self.scope = TaskScope(self.dag.dag_id, self.run_id, self.operator.task_id, map_index, item)
        opened = self.store.task(self.scope, attempt="new" if attempt is None else attempt)
        self.attempt, self.fence = opened.attempt or 0, opened.fence
        self.results.begin(self.scope)

    def run(
        self, resumption: tuple[str, dict[str, Any]] | None, crash_after: str | int | None, crash_before: str | None
    ) -> TaskOutcome:
        """Run the task's code until it ends, and say how."""
        check_crash(crash_after, crash_before)
        mortal = _Mortal(self.store.backend, crash_after, crash_before)
        outcome = TaskOutcome(self)
        try:
            self._execute(mortal, resumption, outcome)
        except Killed:
            outcome.outcome = "crashed"
        if mortal.dead:  # also where the code has caught the kill
            outcome.outcome, outcome._result, outcome.exception, outcome.events = "crashed", None, None, []
        outcome.state = dict(self.store.task(self.scope).items())
        mortal.must_have_died(outcome)
        return outcome

    def _execute(self, mortal: _Mortal, resumption: Any, outcome: TaskOutcome) -> None:
        try:
            value = self._called(mortal, resumption)
            if mortal.dead:
                raise Killed
            result, made = self._result(value), assets.events_of(self.context["task"], self.context)
            outcome._result, outcome.events = result, self._made(made)
            self._succeed(result)
        except TaskDeferred as deferral:
            self._check(deferral, outcome)
        except TaskRescheduled as put_off:
            outcome.outcome, outcome.at = "rescheduled", put_off.at
        except SkipTask as skip:
            outcome.outcome, outcome.exception = "skipped", skip
        except SystemExit as stop:
            outcome.outcome, outcome.exception = "failed", stop
        except (Exception, TaskTimeout) as error:
            outcome.outcome, outcome.exception = "failed", error

    def _called(self, mortal: _Mortal, resumption: tuple[str, dict[str, Any]] | None) -> Any:
        """Call the task's code with a context as a worker makes it."""
        operator = copy.copy(self.operator)  # what one attempt sets on it, the next does not see
        state = self._state(mortal)
        context = build_context(
            dag=self.dag,
            task=operator,
            run_id=self.run_id,
            map_index=self.scope.map_index,
            try_number=self.attempt,
            logical_date=self.logical_date,
            start_date=self.began,
            params=self.params,
            task_state_store=state,
            results=self.results,
        )
        if operator.mapped:
            operator = mapping.instance(operator, self.scope.map_index, context["ti"], key=self.scope.item)
            replace_task(context, operator)
        assets.provide(context, state, self.events)
        self.context = context
        return execute(operator, context, resumption)

    def _state(self, mortal: _Mortal) -> TaskState:
        backend: Any = mortal
        writer = Writer("task", self.attempt, None, self.scope)
        return TaskState(backend, self.scope, self.store.config, self.store.clock, writer, self.fence)

    def _value(self, value: Any) -> Any:
        """Return a result as the tasks below get it; InvalidValue for one that is no JSON value."""
        return codec.load(codec.dump(value, allow_none=True, limit=RESULT_LIMIT).decode())

    def _result(self, value: Any) -> Any:
        """Return the same of what a task has returned or pushed, tuples as lists."""
        return codec.load(result_text(value, f"the result of task {self.operator.task_id}"))

    def _made(self, events: Iterable[tuple[str | None, str | None, str]]) -> list[AssetEvent]:
        """Return the events of a success, as those they start would see them."""
        rows = [EventRow(0, name, uri, self.store.clock(), self.scope, extra) for name, uri, extra in events]
        return [event for found in assets.triggering(rows).values() for event in found]

    def _succeed(self, value: Any) -> None:
        self.results.push("return_value", value)
        clear = self.operator.clear_state_on_success
        if self.store.config.state_store.clear_on_success if clear is None else clear:
            self.store.task(self.scope).clear()

    def _check(self, deferral: TaskDeferred, outcome: TaskOutcome) -> None:
        """Note a deferral if it could be stored; the attempt fails otherwise."""
        try:
            trigger_text(deferral.trigger)
            self._value(dict(deferral.kwargs))
        except Exception as error:
            outcome.outcome, outcome.exception = "failed", error
        else:
            outcome.outcome, outcome.deferral = "deferred", deferral


# --- What stands in for a worker -------------------------------------------------------------------------


class _Mortal:
    """A backend as a task sees it that can be killed: from then on there is no answer, and nothing is written."""

    def __init__(self, backend: Any, after: str | int | None, before: str | None) -> None:
        self.backend, self.after, self.before = backend, after, before
        self.dead = False
        self.commits = 0
        self.written: list[str] = []

    def send(self, request: Any) -> Any:
        keys = self._come(request)
        reply = self.backend.send(request)
        self._gone(keys)
        return reply

    async def asend(self, request: Any) -> Any:
        keys = self._come(request)
        reply = await self.backend.asend(request)
        self._gone(keys)
        return reply

    def close(self) -> None:
        pass

    def _come(self, request: Any) -> list[str] | None:
        """Return the keys a request writes, None if it is no write."""
        keys = None
        if isinstance(request, Commit):
            steps = [step for part in request.parts for step in part.operations]
            keys = [step.name for step in steps if isinstance(step, Put | PutDefault | Increment)]
        if self.dead or (keys and self.before in keys):
            self._die()
        return keys

    def _gone(self, keys: list[str] | None) -> None:
        if keys is not None:
            self.commits += 1
            self.written += keys
            if self.after in keys or self.after == self.commits:
                self._die()

    def _die(self) -> None:
        self.dead = True
        raise Killed

    def must_have_died(self, outcome: TaskOutcome) -> None:
        """Raise AssertionError if the task was to be killed and was not."""
        if self.dead or (self.after is None and self.before is None):
            return
        if isinstance(self.after, int):
            wanted = f"only {self.commits} of {self.after} writes"
        else:
            wanted = f"no write of {self.after or self.before!r}, only of {', '.join(self.written) or 'nothing'}"
        raise AssertionError(f"{outcome!r} was not killed: {wanted}") from outcome.exception


#: What tasks have returned and pushed, by store: (dag id, run id, task id, map index, name).
_left: WeakKeyDictionary[Store, dict[tuple[str, str, str, int, str], Any]] = WeakKeyDictionary()


class _Results:
    """Results of the tasks of one run, kept from one call of `run_task` to the next."""

    def __init__(self, rows: dict[tuple[str, str, str, int, str], Any], dag_id: str, run_id: str) -> None:
        self.rows, self.run = rows, (dag_id, run_id)
        self.own: tuple[str, int] = "", -1

    def begin(self, scope: TaskScope) -> None:
        """Forget what earlier attempts have left."""
        self.own = scope.task_id, scope.map_index
        for key in [key for key in self.rows if key[:4] == (*self.run, *self.own)]:
            del self.rows[key]

    def seed(self, results: Mapping[str, Any]) -> None:
        for task_id, value in results.items():
            self.rows[*self.run, task_id, -1, "return_value"] = value

    def push(self, name: str, value: Any) -> None:
        self.rows[*self.run, *self.own, name] = codec.load(result_text(value, f"what is pushed under {name!r}"))

    def pull(self, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None) -> list[tuple[str, int, Any]]:
        return [
            (task_id, index, value)
            for (*run, task_id, index, key), value in sorted(self.rows.items(), key=lambda row: row[0])
            if tuple(run) == self.run and task_id in task_ids and key == name
            if map_indexes is None or index in map_indexes
        ]
