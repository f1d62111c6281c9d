"""A task in a run that exists only in a test, and the attempts of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from .. import codec
from ..dags import assets, mapping
from ..dags.context import build_context, execute, replace_task
from ..dags.graph import DAG
from ..dags.links import Linked
from ..dags.operators import BaseOperator, TaskFunction
from ..dags.operators import task as decorator
from ..dags.outcomes import SkipTask, TaskDeferred, TaskRescheduled, TaskTimeout
from ..dags.triggers import trigger_text
from ..requests import Commit, Increment, Put, PutDefault
from ..runner.attempt import RESULT_LIMIT
from ..state import TaskState
from ..store import Store
from ..values import TaskScope, Writer, moment
from .outcome import Killed, TaskOutcome

__all__ = ["Trial", "task_of"]

#: What a run is about where the test does not say; the same for all its attempts.
_WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def task_of(task: Any, arguments: dict[str, Any], params: dict[str, Any]) -> tuple[DAG, BaseOperator]:
    """Return the task meant with its DAG, which is made for one that has none."""
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
        mortal = _Mortal(self.store.backend, crash_after, crash_before)
        outcome = TaskOutcome(self)
        try:
            self._execute(mortal, resumption, outcome)
        except Killed:
            outcome.outcome = "crashed"
        if mortal.dead:  # also where the code has caught the kill
            outcome.outcome, outcome._result, outcome.exception = "crashed", None, None
        outcome.state = dict(self.store.task(self.scope).items())
        mortal.must_have_died(outcome)
        return outcome

    def _execute(self, mortal: _Mortal, resumption: Any, outcome: TaskOutcome) -> None:
        try:
            value = self._called(mortal, resumption)
            if mortal.dead:
                raise Killed
            outcome._result = self._value(value)
            self._succeed(outcome._result)
        except TaskDeferred as deferral:
            self._check(deferral, outcome)
        except TaskRescheduled as put_off:
            outcome.outcome, outcome.at = "rescheduled", put_off.at
        except SkipTask as skip:
            outcome.outcome, outcome.exception = "skipped", skip
        except SystemExit as stop:
            if stop.code not in (None, 0):
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
        assets.provide(context, state)
        return execute(operator, context, resumption)

    def _state(self, mortal: _Mortal) -> TaskState:
        backend: Any = mortal
        writer = Writer("task", self.attempt, None, self.scope)
        return TaskState(backend, self.scope, self.store.config, self.store.clock, writer, self.fence)

    def _value(self, value: Any) -> Any:
        """Return a result as the tasks below get it; InvalidValue for one that is no JSON value."""
        return codec.load(codec.dump(value, allow_none=True, limit=RESULT_LIMIT).decode())

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
        codec.dump(value, allow_none=True)
        self.rows[*self.run, *self.own, name] = value

    def pull(self, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None) -> list[tuple[str, int, Any]]:
        return [
            (task_id, index, value)
            for (*run, task_id, index, key), value in sorted(self.rows.items(), key=lambda row: row[0])
            if tuple(run) == self.run and task_id in task_ids and key == name
            if map_indexes is None or index in map_indexes
        ]
