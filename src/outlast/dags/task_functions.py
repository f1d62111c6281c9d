"""Tasks as functions: what `@task` makes of a function, and the task that calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, overload

from ..errors import DagError
from .airflow_missing import no_decorator, refuse_absent, refuse_without_assets
from .arguments import Parameters, check_call, parameters_of, refuse_unknown
from .asset_events import collected
from .context import CONTEXT_KEYS, Context
from .graph import current_dag, dag_or_current
from .links import Linked
from .operators import BaseOperator, accepted
from .references import Result
from .several_outputs import check_outputs, says_several

if TYPE_CHECKING:
    from .partials import FunctionPartial

__all__ = ["FunctionTask", "TaskFunction", "task"]


class FunctionTask(BaseOperator):
    """A task that calls a function, with arguments from the DAG file and from the context."""

    def __init__(
        self,
        *,
        function: Callable[..., Any],
        parameters: Parameters,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        multiple_outputs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.multiple_outputs = multiple_outputs
        self.function, self.parameters, self.args, self.kwargs = function, parameters, args, kwargs
        given = {*parameters.positional[: len(args)], *kwargs}
        refuse_without_assets(self.task_id, function, parameters, given, (*self.inlets, *self.outlets))

    def execute(self, context: Context, **resumed: Any) -> Any:
        """Call the function; going on after a deferral also with `event` and its kwargs, as far as it takes them."""
        taken = set(self.parameters.by_keyword) - {*self.parameters.positional[: len(self.args)]}
        known = {name: resumed[name] for name in resumed if name in taken or self.parameters.any_keyword}
        given = {**self.kwargs, **self._from_context(context), **known}
        answer = collected(self.function(*self.args, **given), context)
        if self.multiple_outputs and not isinstance(answer, Coroutine):
            check_outputs(self.task_id, answer)
        return answer

    def _from_context(self, context: Context) -> Mapping[str, Any]:
        """Return what the function takes from the context: everything with **context, else what it names.

        A parameter named `context` that no argument is given for is the whole of it, as Airflow's documentation has it.
        """
        wanted = self.parameters
        names = context if wanted.any_keyword else wanted.by_keyword
        taken = {name: context[name] for name in names if name in context and name not in self.kwargs}
        given = {*self.kwargs, *wanted.positional[: len(self.args)]}
        return taken | {"context": context} if "context" in {*wanted.by_keyword} - given else taken


class TaskFunction(Linked):
    """A function under `@task`. A call inside a DAG makes a task and returns its `Result`; it runs nothing yet."""

    function: Callable[..., Any]
    operator_class: type[FunctionTask] = FunctionTask
    #: Whose arguments are the options of the function.
    option_class: type[BaseOperator] = BaseOperator

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], origin: TaskFunction | None = None
    ) -> None:
        if not callable(function):
            raise DagError(f"@task was given {function!r}; use keyword arguments: @task(task_id={function!r})")
        kept = {name: value for name, value in options.items() if name != "multiple_outputs"}
        refuse_unknown("@task", kept, accepted(self.option_class))
        functools.update_wrapper(self, function)
        self.function, self.options, self._given = function, kept, options
        self.multiple_outputs = says_several(function, options.get("multiple_outputs"))
        self.parameters = parameters_of(function)
        self.name = getattr(function, "__name__", type(function).__name__)
        self.origin = self if origin is None else origin
        self.called = False
        dag = current_dag()
        if dag is not None and origin is None:
            dag.decorated.append(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        """Make a task of the current DAG that will call the function with these arguments; return its result.

        Arguments may be, or contain, results of other tasks, which it then waits for. A second call makes a
        second task, `name__1`. Raises DagError outside a DAG and for arguments the function does not take.
        """
        dag = dag_or_current(self.options.get("dag"))
        if dag is None:
            raise DagError(
                f"{self.name}() was called outside a DAG; call it inside `with DAG(...)`, "
                f"or {self.name}.function() to run the plain function"
            )
        self.origin.called = True
        self.check(args, kwargs)
        options = {"doc_md": self.function.__doc__} | self.options
        options["task_id"] = dag.free_id(options.get("task_id", self.name))
        return self.made(options, args, kwargs).output

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise DagError unless the function can be called with these arguments and what the context gives."""
        refuse_absent(self.name, self.function, self.parameters, {*self.parameters.positional[: len(args)], *kwargs})
        check_call(self.name, self.parameters, args, kwargs, CONTEXT_KEYS)

    def made(self, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseOperator:
        """Make the task of one call."""
        return self.operator_class(
            function=self.function,
            parameters=self.parameters,
            args=args,
            kwargs=kwargs,
            multiple_outputs=self.multiple_outputs,
            **options,
        )

    def partial(self, **arguments: Any) -> FunctionPartial:
        """Give the arguments all instances of a mapped task have in common; `.expand(x=[…])` of it makes the task."""
        from .partials import FunctionPartial

        return FunctionPartial(self, arguments)

    def expand(self, **values: Any) -> Result:
        """Make a task with an instance for each item of a list, a dict or a result, and return the list of results.

        Several are mapped over as their cross product, the first of which changes slowest. Raises DagError for
        anything else.
        """
        result: Result = self.partial().expand(**values)
        return result

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Result:
        """Make a task with an instance for each dict of a list, or of a result: its arguments."""
        result: Result = self.partial().expand_kwargs(kwargs, strict=strict)
        return result

    def override(self, **options: Any) -> TaskFunction:
        """Return the same function with other options: `extract.override(task_id="again", retries=5)()`."""
        return type(self)(self.function, self._given | options, self.origin)

    @property
    def line(self) -> int:
        """Where in its file the function is defined; 0 if that is not known."""
        code = getattr(self.function, "__code__", None)
        return code.co_firstlineno if code else 0

    @property
    def line_to_add(self) -> str:
        """A call as it could stand in the DAG file."""
        needed = self.parameters.required - CONTEXT_KEYS
        names = [name for name in self.parameters.positional if name in needed]
        names += [f"{name}=..." for name in self.parameters.keyword_only if name in needed]
        return f"{self.name}({', '.join(names)})"

    def linked(self) -> BaseOperator:
        raise DagError(f"{self.name} is not a task before it is called; write {self.line_to_add}")

    def __repr__(self) -> str:
        return f"<@task function {self.name}>"


class _Task:
    """Turn a function into a task: `@task`, or `@task(retries=3, ...)` with any argument of BaseOperator.

    The task is named after the function unless `task_id` is given. The function may be `async def`. What it
    needs of the context it names as parameters (`ti`, `params`, `task_state_store=None`), or takes `**context`.
    """

    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction: ...

    @overload
    def __call__(self, function: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], TaskFunction]: ...

    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        if function is not None:
            return TaskFunction(function, options)
        return lambda function: TaskFunction(function, options)

    def sensor(self, function: Any = None, /, **options: Any) -> Any:
        """Turn a function into a sensor, which is called until it returns True: `@task.sensor(poke_interval=60, ...)`.

        Takes any argument of BaseSensorOperator. The function returns a bool, or a PokeReturnValue with a result.
        """
        from .sensors import SensorFunction

        if function is not None:
            return SensorFunction(function, options)
        return lambda function: SensorFunction(function, options)

    def python(self, function: Any = None, /, **options: Any) -> Any:
        """Turn a function into a task, as `@task` does."""
        return self(function, **options)

    def __getattr__(self, name: str) -> Any:
        raise no_decorator(name, ("python", "sensor"))


task = _Task()
