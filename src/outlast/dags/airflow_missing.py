"""What DAG files written for Airflow ask of a context, a decorator or a DAG and outlast lacks, with what it has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import FrameType
from typing import Any

from ..errors import DagError
from .arguments import Parameters, did_you_mean

__all__ = [
    "CONNECTION",
    "TEMPLATES",
    "VARIABLE",
    "NoSuchName",
    "NotInContext",
    "explained",
    "instead_of_argument",
    "no_attribute",
    "no_decorator",
    "no_part",
    "refuse_absent",
    "refuse_without_assets",
]

CONNECTION = "it keeps no connections; make the client in the task, with secrets from the environment"
TEMPLATES = "it has no templates; use datetime in the task"
VARIABLE = "it keeps no variables; use the DAG's params (--param), the environment, or an asset's state"
_BRANCH = "raise AirflowSkipException in the tasks that are not to run"
_BEFORE = "it looks up nothing of earlier runs; keep what the next run needs in the state of an asset"
_DATE = "use logical_date"
_ELSEWHERE = "submit the work as a job, with ResumableJobMixin or ProcessJobOperator"
_INTERPRETER = "run the other interpreter with BashOperator"

#: What Airflow's contexts have besides, and what there is instead.
_NOT_IN_CONTEXT = {
    "conn": CONNECTION,
    "execution_date": _DATE,
    "expanded_ti_count": "give the length of the list to the task as an argument",
    "inlet_events": "what was known of an inlet is in its state, asset_state_store[asset], and the events the run was "
    "started for are in triggering_asset_events",
    "macros": TEMPLATES,
    "next_ds": _DATE,
    "prev_data_interval_end_success": _BEFORE,
    "prev_data_interval_start_success": _BEFORE,
    "prev_ds": _DATE,
    "prev_end_date_success": _BEFORE,
    "prev_start_date_success": _BEFORE,
    "templates_dict": "it has no templates; give the values to the task as arguments",
    "tomorrow_ds": _DATE,
    "triggering_dataset_events": "use triggering_asset_events",
    "var": VARIABLE,
    "yesterday_ds": _DATE,
}
_NO_ASSETS = "there is no asset_state_store in a task without assets; add inlets=[asset] or outlets=[asset] to it"

_DECORATORS = {
    "bash": "use BashOperator",
    "branch": _BRANCH,
    "branch_external_python": _BRANCH,
    "branch_virtualenv": _BRANCH,
    "docker": _ELSEWHERE,
    "external_python": _INTERPRETER,
    "kubernetes": _ELSEWHERE,
    "kubernetes_cmd": _ELSEWHERE,
    "pyspark": _ELSEWHERE,
    "run_if": _BRANCH,
    "short_circuit": _BRANCH,
    "skip_if": _BRANCH,
    "stub": "run the other program with BashOperator",
    "virtualenv": _INTERPRETER,
}

_ATTRIBUTES = {
    "cli": "use the outlast command",
    "test": "`outlast run FILE` runs it, and outlast.testing.run_task an attempt of one task in a test",
}

_LOGS = "`outlast logs DAG/RUN/TASK` prints the log of a task"
_STATES = "`outlast tasks ls DAG/RUN` tells of the other tasks; in one, use their results or a trigger_rule"

#: What Airflow's task instances and runs have besides.
_PARTS = {
    "are_dependencies_met": _STATES,
    "clear_task_instances": "clear it from outside: outlast tasks clear",
    "current_state": "use state",
    "external_executor_id": "attempts are processes of the host; use hostname and pid",
    "external_trigger": "use run_type",
    "execution_date": _DATE,
    "duration": "it is known when the attempt is over, from `outlast tasks show`; start_date is known now",
    "get_dagrun": "use dag_run",
    "get_previous_dagrun": _BEFORE,
    "get_previous_start_date": _BEFORE,
    "get_task_instance": _STATES,
    "get_task_instances": _STATES,
    "get_task_states": _STATES,
    "get_ti_count": _STATES,
    "log_filepath": _LOGS,
    "log_url": _LOGS,
    "mark_success_url": "`outlast tasks mark success DAG/RUN/TASK` does that",
    "next_kwargs": "the method a deferred task goes on with is given them",
    "next_method": "it is the method that runs",
    "prev_attempted_tries": "use try_number",
    "previous_ti": _BEFORE,
    "previous_ti_success": _BEFORE,
    "queued_at": "use start_date of ti",
    "queued_dttm": "use start_date",
    "start_date": "use start_date of ti",
    "end_date": "a run that has a task running has not ended",
}

_ARGUMENTS = {
    "end_date": "give it to the DAG",
    "multiple_outputs": 'it is for functions under @task; result["key"] is a part of what any task returns',
    "params": "give them to the DAG",
    "resume_on_retry": "in Airflow 3.3, and here, it is called durable",
    "retry_policy": "use retries=, retry_delay= and, to give up at once, AirflowFailException",
    "sla_miss_callback": "use execution_timeout= and on_failure_callback= of the tasks",
    "start_date": "give it to the DAG",
    "task_group": "tasks are not grouped; use `a >> [b, c] >> d`, and a prefix in the task_id",
    "templates_dict": _NOT_IN_CONTEXT["templates_dict"],
}


class NoSuchName(DagError, AttributeError):
    """A module, a decorator or a DAG is asked for something of Airflow's that outlast does not have."""


class NotInContext(DagError, KeyError):
    """A task looks up something in its context that is not there; says what there is instead."""

    def __str__(self) -> str:
        return self.message


def instead_of_argument(name: str) -> str:
    """Say what to do about an argument of Airflow's, "; " before it; an empty text where that is not known."""
    return f"; {_ARGUMENTS[name]}" if name in _ARGUMENTS else ""


def no_decorator(name: str, known: Iterable[str]) -> NoSuchName:
    """Return the error for `@task.name`."""
    hint = f"; {_DECORATORS[name]}" if name in _DECORATORS else did_you_mean(name, known)
    return NoSuchName(f"outlast has no @task.{name}{hint or '; put the work into a function under @task'}")


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that a DAG does not have."""
    if name not in _ATTRIBUTES:
        return AttributeError(f"{owner!r} has no attribute {name!r}")
    return NoSuchName(f"outlast has no dag.{name}(); {_ATTRIBUTES[name]}")


def no_part(what: str, owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that a task instance or a run does not have."""
    if name.startswith("_"):
        return AttributeError(f"{type(owner).__name__} has no attribute {name!r}")
    known = [part for part in dir(owner) if not part.startswith("_")]
    hint = f"; {_PARTS[name]}" if name in _PARTS else did_you_mean(name, known)
    hint = hint or f"; it has {', '.join(known)}"
    return NoSuchName(f"outlast's {what} has no {name!r}{hint}")


# --- Contexts --------------------------------------------------------------------------------------------


def refuse_absent(name: str, function: Callable[..., Any], wanted: Parameters, given: Collection[str]) -> None:
    """Raise DagError if a function names what Airflow's context would give it and outlast's does not.

    A parameter with a default of its own other than None is no request, and neither is one that is given a value.
    """
    for parameter in wanted.by_keyword:
        if parameter in _NOT_IN_CONTEXT and parameter not in given and _asks_for(function, wanted, parameter):
            hint = _NOT_IN_CONTEXT[parameter]
            raise DagError(f"{name}() asks for {parameter!r}, which outlast's context does not have; {hint}")


def refuse_without_assets(
    name: str, function: Callable[..., Any], wanted: Parameters, given: Collection[str], assets: Collection[Any]
) -> None:
    """Raise DagError if a function names `asset_state_store` and its task has neither inlets nor outlets."""
    asked = "asset_state_store" in wanted.by_keyword and "asset_state_store" not in given
    if asked and not assets and _asks_for(function, wanted, "asset_state_store"):
        raise DagError(f"{name}() asks for 'asset_state_store'; {_NO_ASSETS}")


def _asks_for(function: Callable[..., Any], wanted: Parameters, parameter: str) -> bool:
    import inspect  # only for a function that has such a parameter

    return parameter in wanted.required or inspect.signature(function).parameters[parameter].default is None


def explained(error: KeyError, context: dict[str, Any]) -> NotInContext | None:
    """Return what to raise in place of a KeyError if it came of a look-up in a context, None for any other."""
    name = error.args[0] if len(error.args) == 1 else None
    if not isinstance(name, str) or name in context:
        return None
    hint = _NO_ASSETS if name == "asset_state_store" else _NOT_IN_CONTEXT.get(name)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if hint is None or trace is None or not _has_context(trace.tb_frame, context):
        return None
    if name == "asset_state_store":
        return NotInContext(hint)
    return NotInContext(f"outlast's context has no {name!r}; {hint}")


def _has_context(frame: FrameType, context: dict[str, Any]) -> bool:
    """Say whether code can have had a context in hand: as a local, **context included, or from a call."""
    if "get_current_context" in frame.f_code.co_names:
        return True
    return any(isinstance(value, dict) and value.get("ti") is context["ti"] for value in frame.f_locals.values())
