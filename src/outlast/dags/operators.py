"""Operators: tasks as classes with `execute(context)`, and what every kind of task can be told."""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never, TypeVar

from ..errors import DagError
from ..values import check_id
from .arguments import callbacks, count, duration, parameters_of, refuse_unknown
from .asset_definitions import listed_assets
from .context import Context
from .graph import DAG, dag_or_current
from .links import Linked, link
from .references import Result, references

if TYPE_CHECKING:
    from logging import Logger

    from .partials import OperatorPartial
    from .triggers import BaseTrigger

__all__ = ["TRIGGER_RULES", "BaseOperator", "accepted"]

#: When a task may run: all above succeeded (or it is skipped, or fails with them); all have ended; none has failed.
TRIGGER_RULES = ("all_success", "all_done", "none_failed")

T = TypeVar("T")
_MICROSECOND = timedelta(microseconds=1)


class _Definition(ABCMeta):
    """Makes a task: fills in its DAG's default_args, and adds it to the DAG once its constructor has run."""

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        dag = dag_or_current(kwargs.get("dag"))
        task: Any = type.__call__(cls, *args, **_with_defaults(cls, args, kwargs, dag))
        _check_made(task)
        if dag is not None:
            dag.add_task(task)
        for reference in references(vars(task)):
            if isinstance(reference, Result):
                link(reference, task)
        return task  # type: ignore[no-any-return]


def _with_defaults(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], dag: DAG | None) -> dict[str, Any]:
    if dag is None or not dag.default_args:
        return kwargs
    names = accepted(cls)
    defaults = {name: value for name, value in dag.default_args.items() if name in names[len(args) :]}
    return defaults | kwargs


def _check_made(task: Any) -> None:
    kind = type(task)
    if "task_id" not in vars(task):
        raise DagError(
            f"{kind.__name__}.__init__ does not call super().__init__(**kwargs), so it is no task yet; add that"
        )
    if kind.execute is BaseOperator.execute:
        raise DagError(f"{kind.__name__} has no work to do; define execute(self, context) in it")


@functools.cache
def accepted(cls: type) -> tuple[str, ...]:
    """Return what an operator class takes as arguments: its own, then those of the classes its **kwargs reach."""
    names: list[str] = []
    for base in cls.__mro__:
        if "__init__" in vars(base):
            parameters = parameters_of(vars(base)["__init__"])
            names += parameters.positional[1:] + parameters.keyword_only
            if base is BaseOperator or not parameters.any_keyword:
                break
    return tuple(dict.fromkeys(names))


class BaseOperator(Linked, metaclass=_Definition):
    """A task. Derive from it, take your own keyword arguments and **kwargs, and define `execute(self, context)`.

    >>> class Copy(BaseOperator):
    ...     def __init__(self, *, source, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.source = source
    ...
    ...     def execute(self, context):
    ...         context["task_state_store"].set("copied", self.source)

    What `execute` returns is the task's result; it may be `async def`. A result of another task given as an
    argument is replaced by its value before `execute` is called. Durations are timedeltas or seconds.
    """

    #: Whether this stands for instances, one an item.
    mapped = False
    dag: DAG | None

    def __init__(
        self,
        task_id: str,
        *,
        retries: int = 0,
        retry_delay: timedelta | float = timedelta(0),
        retry_exponential_backoff: bool = False,
        max_retry_delay: timedelta | float | None = None,
        execution_timeout: timedelta | float | None = None,
        trigger_rule: str = "all_success",
        doc_md: str | None = None,
        clear_state_on_success: bool | None = None,
        discard_state_on_clear: bool | None = None,
        inlets: Any = (),
        outlets: Any = (),
        on_execute_callback: Any = None,
        on_success_callback: Any = None,
        on_failure_callback: Any = None,
        on_retry_callback: Any = None,
        on_skipped_callback: Any = None,
        max_active_tis_per_dag: int | None = None,
        max_active_tis_per_dagrun: int | None = None,
        map_index_template: str | None = None,
        map_key: Callable[[Any], str | int] | str | None = None,
        dag: DAG | None = None,
        **unknown: Never,
    ) -> None:
        """Define a task: how often and when it is tried again, how long it may take, what it waits for.

        `retries` counts exceptions; a death of its process is retried besides (`[runner] crash_retries`). The
        delay doubles each time with `retry_exponential_backoff`, up to `max_retry_delay`. `execution_timeout`
        is that of one attempt. `clear_state_on_success` and `discard_state_on_clear` are, when None, as in the
        settings. A callback is a function of the context, or a list of them: before the first attempt's code runs,
        after success, after the last failure, after one that is tried again, after a skip. `max_active_tis_per_dag`
        and `max_active_tis_per_dagrun` limit how many instances run at once in one run. `map_key`, a function of
        the item or a template of `str.format`, lets the state of a mapped instance follow its item. Raises DagError
        for a wrong argument, InvalidKey for a bad task_id.
        """
        refuse_unknown(type(self).__name__, unknown, accepted(type(self)))
        self.task_id = check_id(task_id, "task_id")
        self.retries = count("retries", retries)
        self.retry_delay = duration("retry_delay", retry_delay)
        self.retry_exponential_backoff = _flag("retry_exponential_backoff", retry_exponential_backoff) or False
        self.max_retry_delay = None if max_retry_delay is None else duration("max_retry_delay", max_retry_delay)
        self.execution_timeout = (
            None if execution_timeout is None else duration("execution_timeout", execution_timeout, _MICROSECOND)
        )
        self.trigger_rule = _rule(trigger_rule)
        self.doc_md = doc_md
        self.clear_state_on_success = _flag("clear_state_on_success", clear_state_on_success)
        self.discard_state_on_clear = _flag("discard_state_on_clear", discard_state_on_clear)
        self.inlets, self.outlets = listed_assets("inlets", inlets), listed_assets("outlets", outlets)
        self.on_execute_callback = callbacks("on_execute_callback", on_execute_callback)
        self.on_success_callback = callbacks("on_success_callback", on_success_callback)
        self.on_failure_callback = callbacks("on_failure_callback", on_failure_callback)
        self.on_retry_callback = callbacks("on_retry_callback", on_retry_callback)
        self.on_skipped_callback = callbacks("on_skipped_callback", on_skipped_callback)
        self.max_active_tis_per_dag = _limit("max_active_tis_per_dag", max_active_tis_per_dag)
        self.max_active_tis_per_dagrun = _limit("max_active_tis_per_dagrun", max_active_tis_per_dagrun)
        self.map_index_template = _text("map_index_template", map_index_template)
        self.map_key = _map_key(map_key)
        self.dag = None
        self._upstream: dict[str, BaseOperator] = {}
        self._downstream: dict[str, BaseOperator] = {}

    @classmethod
    def partial(cls, **arguments: Any) -> OperatorPartial:
        """Give what all instances of a mapped task have in common; `.expand(x=[…])` of it makes the task."""
        from .partials import OperatorPartial

        return OperatorPartial(cls, arguments)

    @classmethod
    def _refuse_argument(cls, name: str, value: Any) -> None:
        """Raise DagError for a value no instance can be made with, while the DAG is defined."""

    def execute(self, context: Context) -> Any:
        """Do the work and return the result: a JSON value, or None. Yours to define."""
        raise NotImplementedError

    def on_kill(self) -> None:
        """Clean up when an attempt is cancelled or has run out of time; not called for a pause. Yours to define."""

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> Never:
        """Wait for a trigger without a process: this one ends, and its slot is free.

        Once the trigger has fired, the same attempt goes on in a new process with `method_name(context, event=…,
        **kwargs)`, `event` being the payload. Within it TaskDeferralError is raised if the trigger fails, and
        TaskDeferralTimeout if it has not fired when `timeout` is over. `kwargs` are JSON values. Raises TaskDeferred;
        DagError or InvalidValue for what could not be stored, or not be called.
        """
        from .deferral import stored_deferral
        from .outcomes import TaskDeferred

        deferred = TaskDeferred(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)
        stored_deferral(self, deferred)
        raise deferred

    @property
    def output(self) -> Result:
        """What this task will return, to pass to another task."""
        return Result(self)

    @property
    def upstream_task_ids(self) -> tuple[str, ...]:
        """The ids of the tasks this one waits for, in the order they were named."""
        return tuple(self._upstream)

    @property
    def downstream_task_ids(self) -> tuple[str, ...]:
        """The ids of the tasks that wait for this one."""
        return tuple(self._downstream)

    @property
    def log(self) -> Logger:
        """A logger named after the operator's class; what it logs is in the task's log."""
        import logging

        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    def linked(self) -> BaseOperator:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"


def _rule(rule: object) -> str:
    for known in TRIGGER_RULES:
        if rule == known:  # an enum's str too
            return known
    raise DagError(f"trigger_rule is {rule!r}; use one of {', '.join(TRIGGER_RULES)}")


def _flag(what: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise DagError(f"{what} is {value!r}; use True or False")
    return value


def _limit(what: str, value: object) -> int | None:
    return None if value is None else count(what, value, 1)


def _text(what: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise DagError(f"{what} is {value!r}; use a text")
    return value


def _map_key(value: Any) -> Any:
    if not (value is None or isinstance(value, str) or callable(value)):
        raise DagError(f"map_key is {value!r}; use a function of the item, or a template such as '{{x[id]}}'")
    return value
