"""Defining mapped tasks: `.partial()` says what all instances are given, `.expand()` what each is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..errors import DagError
from .airflow_missing import refuse_without_assets
from .arguments import check_call, parameters_of, refuse_unknown
from .context import CONTEXT_KEYS
from .graph import DAG, current_dag, dag_or_current
from .links import Linked
from .mapping import MappedTask, check_item, check_length, in_short
from .operators import BaseOperator, accepted
from .references import Reference, Result
from .task_functions import TaskFunction

__all__ = ["FunctionPartial", "OperatorPartial", "Partial"]


class Partial(Linked):
    """What all instances of a mapped task have in common: `constant` arguments, and `options` of BaseOperator."""

    def __init__(self, name: str, kind: type[BaseOperator], constant: dict[str, Any], options: dict[str, Any]) -> None:
        self.name, self.operator_class, self.constant, self.options = name, kind, constant, options
        self.used = False
        dag = current_dag()
        if dag is not None:
            dag.partials.append(self)

    def expand(self, **values: Any) -> Any:
        """Map over a list, a dict (whose items are pairs) or a result; over several as over their cross product.

        Raises DagError for anything else, for what the task does not take, and for what it was given already.
        """
        if not values:
            raise DagError(f"{self.name}.expand() was given nothing to map over; give a list: expand(x=[1, 2, 3])")
        self.refuse_twice(values, "expand()")
        dag = self._dag()
        self.check({**self._defaults(dag), **self.constant, **values})
        lists = {name: _listed(f"{self.name}.expand({name}=…)", value) for name, value in values.items()}
        known = [len(value) for value in lists.values() if not isinstance(value, Reference)]
        check_length(f"{self.name}.expand()", math.prod(known))
        return self._expanded(dag, lists, True)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        """Map over a list of dicts, or a result that is one: the arguments of each instance.

        Of what is in partial() too, the dict's counts; with `strict` that is a DagError.
        """
        dag = self._dag()
        dicts = _listed(f"{self.name}.expand_kwargs()", kwargs)
        if isinstance(dicts, dict):
            raise DagError(f"{self.name}.expand_kwargs() was given a dict; it takes a list of dicts, one an instance")
        expanded = self._expanded(dag, dicts, strict)
        if isinstance(dicts, list):
            check_length(f"{self.name}.expand_kwargs()", len(dicts))
            for index, item in enumerate(dicts):
                if not isinstance(item, Reference):
                    check_item(expanded.linked(), index, item)
        return expanded

    def refuse_twice(self, values: Mapping[str, Any], where: str) -> None:
        """Raise DagError for an argument that all instances have been given."""
        for name in values:
            if name in self.constant:
                raise DagError(f"{self.name} was given {name!r} twice, by partial() and by {where}; give it once")

    def _dag(self) -> DAG:
        dag = dag_or_current(self.options.get("dag"))
        if dag is None:
            raise DagError(f"{self.name} was mapped outside a DAG; do it inside `with DAG(...)`, or give it dag=")
        return dag

    def _expanded(self, dag: DAG, values: Any, strict: bool) -> Any:
        self.used = True
        constant = {**self._defaults(dag), **self.constant}
        for name, value in _each_argument(constant, values):
            self.operator_class._refuse_argument(name, value)
        options = self._options(dag)
        common = {name: value for name, value in options.items() if name in accepted(BaseOperator)}
        made_with = {name: value for name, value in options.items() if name != "dag"}
        task = MappedTask(
            partial_of=self, constant=constant, values=values, strict=strict, made_with=made_with, **common
        )
        return self.outcome(task)

    def linked(self) -> BaseOperator:
        raise DagError(f"{self.name}.partial() is no task before it is expanded; write {self.line_to_add}")

    @property
    def line_to_add(self) -> str:
        """An expansion as it could stand in the DAG file."""
        return f"{self.name}.partial(...).expand(x=[...])"

    def __repr__(self) -> str:
        return f"<partial {self.name}>"

    # --- what differs between functions and operators ---------------------------------------------------------

    def _defaults(self, dag: DAG) -> dict[str, Any]:
        """Return what the DAG's default_args have for an instance's own arguments."""
        return {}

    def _options(self, dag: DAG) -> dict[str, Any]:
        """Return the options of all instances, those in the DAG's default_args included."""
        return {**_chosen(dag.default_args, accepted(BaseOperator)), **self.options}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise DagError unless an instance takes these arguments, and needs no others."""
        raise NotImplementedError

    def make(self, options: dict[str, Any], arguments: dict[str, Any]) -> BaseOperator:
        """Return an instance."""
        raise NotImplementedError

    def outcome(self, task: MappedTask) -> Any:
        """Return what `expand` returns."""
        raise NotImplementedError


class OperatorPartial(Partial):
    """`MyOperator.partial(task_id=…)`, to be expanded over the operator's own arguments."""

    def __init__(self, kind: type[BaseOperator], arguments: dict[str, Any]) -> None:
        name = kind.__name__
        refuse_unknown(f"{name}.partial()", arguments, accepted(kind))
        if "task_id" not in arguments:
            raise DagError(f"{name}.partial() lacks 'task_id'; add task_id='…'")
        if kind.execute is BaseOperator.execute or getattr(kind, "__abstractmethods__", None):
            raise DagError(f"{name} has no work to do; define execute(self, context) in it")
        common = accepted(BaseOperator)
        constant = _chosen(arguments, arguments.keys() - set(common))
        super().__init__(name, kind, constant, _chosen(arguments, common))

    def _defaults(self, dag: DAG) -> dict[str, Any]:
        return _chosen(dag.default_args, set(accepted(self.operator_class)) - set(accepted(BaseOperator)))

    def check(self, arguments: Mapping[str, Any]) -> None:
        common, kind = set(accepted(BaseOperator)), self.operator_class
        for name in arguments:
            if name in common:
                raise DagError(f"{self.name} cannot be mapped over {name!r}; give it to partial(), for all instances")
        refuse_unknown(self.name, arguments, set(accepted(kind)) - common)
        if lacking := sorted(_required(kind) - arguments.keys() - common):
            names = ", ".join(map(repr, lacking))
            raise DagError(f"{self.name} lacks {names}; give it to partial() for all instances, or map over it")

    def make(self, options: dict[str, Any], arguments: dict[str, Any]) -> BaseOperator:
        return self.operator_class(**options, **arguments)

    def outcome(self, task: MappedTask) -> MappedTask:
        return task


def _chosen(given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _required(kind: type[BaseOperator]) -> frozenset[str]:
    """Return what an operator's own constructor cannot do without."""
    constructor = next(vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base))
    parameters = parameters_of(constructor)
    return parameters.required - {*parameters.positional[:1]}


class FunctionPartial(Partial):
    """`function.partial(…)` of a function under `@task`, to be expanded over its other parameters."""

    def __init__(self, function: TaskFunction, constant: dict[str, Any]) -> None:
        self.function = function
        function.origin.called = True
        if constant:
            needed = dict.fromkeys(function.parameters.required - CONTEXT_KEYS)
            check_call(f"{function.name}.partial", function.parameters, (), {**needed, **constant}, CONTEXT_KEYS)
        super().__init__(function.name, function.operator_class, constant, function.options)

    def partial(self, **more: Any) -> FunctionPartial:
        """Return the same with more arguments for all instances."""
        self.refuse_twice(more, "partial() again")
        self.used = True
        return FunctionPartial(self.function, {**self.constant, **more})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise DagError(f"{self.name}.partial() is to be expanded, not called; write {self.line_to_add}")

    def _options(self, dag: DAG) -> dict[str, Any]:
        kept = set(accepted(self.operator_class)) - {"function", "parameters", "args", "kwargs", "multiple_outputs"}
        own = {**_chosen(dag.default_args, kept), "doc_md": self.function.function.__doc__, **self.options}
        return {**own, "task_id": dag.free_id(own.get("task_id", self.name))}

    def check(self, arguments: Mapping[str, Any]) -> None:
        self.function.check((), arguments)

    def make(self, options: dict[str, Any], arguments: dict[str, Any]) -> BaseOperator:
        return self.function.made(options, (), arguments)

    def outcome(self, task: MappedTask) -> Result:
        assets = (*task.inlets, *task.outlets)
        refuse_without_assets(self.name, self.function.function, self.function.parameters, self.constant, assets)
        return task.output


def _each_argument(constant: dict[str, Any], values: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is known of instances' arguments while the DAG is defined, with their names."""
    yield from constant.items()
    if isinstance(values, dict):
        for name, column in values.items():
            yield from ((name, value) for value in (column if isinstance(column, list) else ()))
    elif isinstance(values, list):
        for row in values:
            yield from (row.items() if isinstance(row, dict) else ())


def _listed(what: str, value: Any) -> Any:
    """Return what can be mapped over as a list, a dict or a reference; DagError for anything else."""
    match value:
        case Reference():
            return value
        case Mapping():
            return dict(value)
        case str() | bytes() | bytearray():
            hint = "write a list around it, or give what is the same for all instances to partial()"
        case Sequence():
            return list(value)
        case BaseOperator():
            hint = "give its .output"
        case Linked():
            hint = "call it, for its result"
        case set() | frozenset():
            hint = "a set has no order, so make it sorted(…)"
        case Iterator():
            hint = "make it list(…)"
        case _:
            hint = "give what is the same for all instances to partial()"
    raise DagError(f"{what} was given {in_short(value)}; it takes a list, a dict or a task's result: {hint}")
