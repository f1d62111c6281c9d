"""`@asset`: a function that makes an asset, as a DAG with one task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from ..errors import DagError
from .arguments import Parameters, parameters_of, refuse_unknown
from .asset_definitions import Asset, AssetAlias, AssetAll, AssetNameRef, listed_assets
from .context import CONTEXT_KEYS, Context
from .graph import DAG
from .operators import BaseOperator, accepted
from .task_functions import FunctionTask, TaskFunction

__all__ = ["AssetFunction", "MultiAssetFunction", "asset"]

_DAG_OPTIONS = parameters_of(DAG.__init__).keyword_only
_ASSET_OPTIONS = ("extra", "group", "name", "uri", "watchers")


class AssetFunction(Asset):
    """A function under `@asset`: an asset, whose `dag` calls the `function` that makes it."""

    def __init__(self, function: Callable[..., Any] | TaskFunction, options: dict[str, Any]) -> None:
        refuse_unknown("@asset", options, [*_ASSET_OPTIONS, "dag_id", *_DAG_OPTIONS])
        given = {option: options[option] for option in _ASSET_OPTIONS if options.get(option) is not None}
        super().__init__(**{"name": _name(function), **given})
        self.function, self.dag = _made(function, self, [self], self.name, options)


class MultiAssetFunction(AssetAll):
    """A function under `@asset.multi`: all its assets, whose `dag` calls the `function` that makes them."""

    def __init__(self, function: Callable[..., Any] | TaskFunction, outlets: Any, options: dict[str, Any]) -> None:
        refuse_unknown("@asset.multi", options, ["outlets", "dag_id", *_DAG_OPTIONS])
        made = listed_assets("outlets", outlets)
        if not made:
            raise DagError("@asset.multi makes no asset; write @asset.multi(outlets=[Asset(...), Asset(...)])")
        super().__init__(*[item for item in made if not isinstance(item, AssetAlias)])
        self.function, self.dag = _made(function, self, made, _name(function), options)


class _AssetTask(FunctionTask):
    """Calls the function of an asset: its parameters are assets it reads, `self`, or names of the context."""

    def __init__(self, *, definition: Any, **options: Any) -> None:
        super().__init__(args=(), kwargs={}, **options)
        self.definition = definition

    def _from_context(self, context: Context) -> Mapping[str, Any]:
        known = {name: context[name] for name in CONTEXT_KEYS if name in context}
        known |= {"self": self.definition, "context": context}
        known |= {name: _known_asset(self.function, name) for name in _inlets(self.parameters)}
        named = {name: known[name] for name in self.parameters.by_keyword if name in known}
        return {**context, **named} if self.parameters.any_keyword else named


def _made(
    function: Callable[..., Any] | TaskFunction, definition: Any, outlets: Iterable[Any], dag_id: str, options: Any
) -> tuple[Callable[..., Any], DAG]:
    """Make the DAG and its task; a function under `@task` brings that one's options."""
    task_options = dict(function.options) if isinstance(function, TaskFunction) else {}
    plain = function.function if isinstance(function, TaskFunction) else function
    if isinstance(function, TaskFunction):
        function.origin.called = True
    parameters = parameters_of(plain)
    _refuse_shapeless(_name(plain), parameters)
    dag_options = {option: value for option, value in options.items() if option in _DAG_OPTIONS}
    refuse_unknown("@task", task_options, accepted(BaseOperator))
    with DAG(options.get("dag_id") or dag_id, **{"doc_md": plain.__doc__, **dag_options}) as dag:
        _AssetTask(
            function=plain,
            parameters=parameters,
            definition=definition,
            inlets=[AssetNameRef(name) for name in _inlets(parameters)],
            outlets=list(outlets),
            **{"task_id": _name(plain), "doc_md": plain.__doc__, **task_options},
        )
    return plain, dag


def _name(function: Any) -> str:
    name = getattr(function, "name" if isinstance(function, TaskFunction) else "__name__", None)
    if not callable(function) or name is None:
        raise DagError(f"@asset was given {function!r}; put it above a function, its options by keyword")
    return str(name)


def _refuse_shapeless(name: str, parameters: Parameters) -> None:
    if parameters.any_positional:
        raise DagError(f"{name}() under @asset takes *args; name the assets, and `context` for all else")
    if parameters.required.intersection(parameters.positional[: parameters.positional_only]):
        raise DagError(f"{name}() under @asset has a positional-only parameter; leave out the '/'")


def _inlets(parameters: Parameters) -> list[str]:
    """Return the parameters that name assets: those without a default that the context does not give."""
    names = [name for name in parameters.by_keyword if name in parameters.required]
    return [name for name in names if name not in CONTEXT_KEYS and name not in ("self", "context")]


def _known_asset(function: Callable[..., Any], name: str) -> Asset:
    """Return the asset of a name that the function's module has, else one that is only a name."""
    for value in getattr(function, "__globals__", {}).values():
        if isinstance(value, Asset) and value.name == name:
            return value
    return Asset(name)


class _Asset:
    """Make a function the maker of an asset: `@asset`, or `@asset(schedule=…, name=…, uri=…, ...)`.

    It becomes a DAG with one task; asset, DAG and task are named after the function. A parameter without a default
    is an asset it reads (an inlet) by that name; `self` is the asset, `context` the context, and other names of the
    context are filled in as under `@task`. Beside the arguments of Asset it takes `dag_id` and those of DAG.

    >>> @asset(schedule=orders, uri="s3://bucket/report")
    ... def report(orders):
    ...     return orders.uri
    """

    @overload
    def __call__(self, function: Callable[..., Any] | TaskFunction, /) -> AssetFunction: ...

    @overload
    def __call__(
        self, function: None = None, /, **options: Any
    ) -> Callable[[Callable[..., Any] | TaskFunction], AssetFunction]: ...

    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        if function is not None:
            return AssetFunction(function, options)
        return lambda function: AssetFunction(function, options)

    def multi(
        self, *, outlets: Any, **options: Any
    ) -> Callable[[Callable[..., Any] | TaskFunction], MultiAssetFunction]:
        """Make a function the maker of several assets: `@asset.multi(outlets=[a, b], schedule=None)`."""
        return functools.partial(MultiAssetFunction, outlets=outlets, options=options)


asset = _Asset()
