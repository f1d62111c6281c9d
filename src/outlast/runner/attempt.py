"""Run one attempt's user code in this process, and say how it ended."""

from __future__ import annotations

import operator
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .. import codec
from ..deferral_requests import Deferral, GetDeferral, Resumption
from ..errors import InvalidValue, NotFound
from ..requests import Fence
from ..run_requests import NewEvent, PullResults, PushResult, Results, TaskRow
from ..state import TaskState
from ..store import Store
from ..values import Writer, moment, to_micros
from .job import Job, Told

if TYPE_CHECKING:
    from ..dags.operators import BaseOperator

__all__ = ["Attempt", "AttemptResults", "Interrupted", "result_text"]

#: Bytes of JSON a task's result may take.
RESULT_LIMIT = 1024 * 1024


class Interrupted(BaseException):
    """Raised in the user's code when the attempt must stop; not to be caught. `kill`: for good, not for a pause."""

    def __init__(self, kill: bool) -> None:
        super().__init__(f"the attempt was asked to stop ({'SIGTERM' if kill else 'SIGINT'})")
        self.kill = kill


class Attempt:
    """One attempt of one task instance, from loading its file to the message that says how it ended."""

    def __init__(self, store: Store, job: Job, task: TaskRow, fence: Fence) -> None:
        self.store, self.job, self.task, self.fence = store, job, task, fence
        self.operator: BaseOperator | None = None
        self.context: dict[str, Any] = {}

    def run(self) -> Told:
        """Run the user's code; whatever it raises is in the log and in the message."""
        from ..dags.outcomes import FailTask, SkipTask, TaskDeferred, TaskRescheduled

        try:
            return self._succeeded(self._execute())
        except TaskDeferred as deferred:
            return self._deferred(deferred)
        except TaskRescheduled as put_off:
            return Told("rescheduled", retry_at=to_micros(put_off.at))
        except SkipTask as skip:
            print(f"outlast: skipped: {skip}", file=sys.stderr)
            self._call("on_skipped_callback", "skipped")
            return Told("skipped", error=str(skip) or None)
        except Interrupted as stop:
            return self._interrupted(stop)
        except SystemExit as stop:  # with 0 as well: who leaves half way has not returned
            return self._failed(stop, f"SystemExit: {stop.code}")
        except FailTask as error:
            return self._failed(error, _in_short(error), retry=False)
        except BaseException as error:
            return self._failed(error, _in_short(error))

    # --- the user's code ---------------------------------------------------------------------------------------

    def _execute(self) -> Any:
        from ..dags import context as contexts

        self._prepare()
        assert self.operator is not None
        if self.task.next_method is None:
            self._call("on_execute_callback")
            return contexts.execute(self.operator, self.context)
        return contexts.execute(self.operator, self.context, self._resumption())

    def _prepare(self) -> None:
        """Load the DAG file, find the task, and build its context."""
        from ..dags import assets, mapping
        from ..dags import context as contexts
        from ..dags.loading import load_file

        scope, job = self.task.scope, self.job
        dag = load_file(job.file).dags.get(scope.dag_id)
        if dag is None or scope.task_id not in dag.tasks:
            raise NotFound(f"{job.file} has no task {scope.dag_id}/{scope.task_id} any more; put it back")
        writer = Writer("task", self.fence.attempt, None, self.fence.scope)
        state = TaskState(self.store.backend, scope, self.store.config, self.store.clock, writer, self.fence)
        operator: Any = dag.tasks[scope.task_id]
        self.context = contexts.build_context(
            dag=dag,
            task=operator,
            run_id=scope.run_id,
            map_index=scope.map_index,
            try_number=self.fence.attempt,
            logical_date=moment(job.logical_date),
            start_date=moment(self.task.started_at or self.store.clock()),
            params=msgspec.json.decode(job.params),
            task_state_store=state,
            results=AttemptResults(self.store, self.fence),
        )
        if operator.mapped:
            ti, digest = self.context["ti"], self.task.item_digest
            operator = mapping.instance(operator, scope.map_index, ti, key=scope.item, digest=digest)
            contexts.replace_task(self.context, operator)
        self.operator = operator
        assets.provide(self.context, state, job.events)

    def _resumption(self) -> tuple[str, dict[str, Any]]:
        """Return the method a deferred attempt goes on with, and its arguments; raises what became of the trigger."""
        from ..dags.outcomes import TaskDeferralError, TaskDeferralTimeout

        found: Resumption = self.store.backend.send(GetDeferral(self.fence))
        assert found.deferral is not None
        came = {} if found.event is None else msgspec.json.decode(found.event)
        if came.get("timeout"):
            raise TaskDeferralTimeout(f"the trigger {found.deferral.trigger_path} has not fired in time")
        if "error" in came:
            print(came["error"], file=sys.stderr)
            raise TaskDeferralError(f"the trigger {found.deferral.trigger_path} failed: {_last_line(came['error'])}")
        arguments = {**msgspec.json.decode(found.deferral.next_kwargs), "event": came.get("event")}
        return found.deferral.next_method, arguments

    def _call(self, name: str, state: str = "running") -> None:
        """Call the operator's callbacks of one kind, to whom the task is in a state.

        One that fails is in the log and changes nothing.
        """
        if "ti" in self.context:
            self.context["ti"].state = state
        callbacks = getattr(self.operator, name, None)
        listed: Iterable[Any] = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        for callback in listed:
            if callback is None:
                continue
            try:
                callback(self.context)
            except Exception as error:
                print(f"outlast: {name} failed:", file=sys.stderr)
                _print_trace(error)

    # --- how it ended ------------------------------------------------------------------------------------------

    def _succeeded(self, value: Any) -> Told:
        try:
            result = result_text(value, f"the result of task {self.task.scope.task_id}")
            events = self._events()
        except Exception as error:
            return self._failed(error, _in_short(error))
        self._call("on_success_callback", "success")
        return Told("success", result=result, events=events)

    def _events(self) -> tuple[NewEvent, ...]:
        from ..dags import assets

        return tuple(NewEvent(*event) for event in assets.events_of(self.context["task"], self.context))

    def _deferred(self, deferred: Any) -> Told:
        from ..dags.deferral import stored_deferral

        try:
            stored = stored_deferral(self.context["task"], deferred)
        except Exception as error:
            return self._failed(error, _in_short(error))
        return Told("deferred", deferral=Deferral(*msgspec.structs.astuple(stored)))

    def _interrupted(self, stop: Interrupted) -> Told:
        print(f"outlast: {stop}", file=sys.stderr)
        if stop.kill and self.operator is not None:
            try:
                self.operator.on_kill()
            except Exception as error:
                print("outlast: on_kill failed:", file=sys.stderr)
                _print_trace(error)
        return Told("crashed", error=str(stop))

    def _failed(self, error: BaseException, text: str, retry: bool = True) -> Told:
        _print_trace(error)
        again = retry and self.task.failures + 1 <= self.job.retries
        self.context["exception"] = error
        self._call(*(("on_retry_callback", "up_for_retry") if again else ("on_failure_callback", "failed")))
        return Told("failed", error=text, retry=retry)


def result_text(value: Any, what: str) -> str:
    """Return a value as the JSON that is kept of it, tuples as lists; InvalidValue saying `what` cannot be kept."""
    try:
        return codec.dump(_without_tuples(value, {}), allow_none=True, limit=RESULT_LIMIT).decode()
    except InvalidValue as error:
        raise type(error)(f"{what}: {error.message}") from None


def _without_tuples(value: Any, known: dict[int, Any]) -> Any:
    """Return a value with lists in the place of tuples; a copy only where there are any. `known` has what was seen."""
    if not isinstance(value, tuple) and type(value) not in (list, dict):
        return value
    if id(value) in known or len(known) > RESULT_LIMIT:  # which is too much in any case
        return known.get(id(value), value)
    known[id(value)] = value
    try:
        known[id(value)] = _converted(value, known)
    except RecursionError:
        pass  # what keeps it says so better
    return known[id(value)]


def _converted(value: Any, known: dict[int, Any]) -> Any:
    if type(value) is dict:
        parts = {key: _without_tuples(item, known) for key, item in value.items()}
        return value if all(parts[key] is item for key, item in value.items()) else parts
    items = [_without_tuples(item, known) for item in value]
    return value if type(value) is list and all(map(operator.is_, items, value)) else items


def _print_trace(error: BaseException) -> None:
    from .traces import trace_of

    sys.stderr.write(trace_of(error))


def _in_short(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files may hold lone surrogates
    return text if len(text) <= 2000 else text[:2000] + "…"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


class AttemptResults:
    """What tasks of one run hand to each other, as the running attempt sees it."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self.store, self.fence = store, fence

    def push(self, name: str, value: Any) -> None:
        """Keep a value for the tasks downstream; it follows the same rules as a result."""
        text = result_text(value, f"what task {self.fence.scope.task_id} pushes under {name!r}")
        self.store.backend.send(PushResult(self.fence, name, text))

    def pull(self, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None) -> list[tuple[str, int, Any]]:
        """Return (task id, map index, value) of what was pushed, by task id and map index."""
        return pull_results(self.store, self.fence.scope.dag_id, self.fence.scope.run_id, task_ids, name, map_indexes)


def pull_results(
    store: Store, dag_id: str, run_id: str, task_ids: Sequence[str], name: str, map_indexes: Sequence[int] | None
) -> list[tuple[str, int, Any]]:
    """Return (task id, map index, value) of results of one run, by task id and map index."""
    wanted = None if map_indexes is None else tuple(map_indexes)
    found: Results = store.backend.send(PullResults(dag_id, run_id, tuple(task_ids), name, wanted))
    return [(task_id, map_index, codec.load(text)) for task_id, map_index, text in found.rows]
