"""Run a plan, blocking or awaiting, and make the two twins of a verb from one body.

A plan is a generator that yields requests and returns an answer; a backend's replies come back as
the value of the yield and its errors are raised there. The idea of logic as generators, driven in
two colours, is psycopg 3's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from .requests import Pause

__all__ = ["Answers", "Plan", "arun", "awaiting", "blocking", "run"]

P = ParamSpec("P")
T = TypeVar("T")

#: Yields requests (or a `Pause`), is sent replies, returns the answer.
Plan: TypeAlias = Generator[Any, Any, T]


class Answers(Protocol):
    """What answers requests: a backend."""

    def send(self, request: Any) -> Any: ...

    def asend(self, request: Any) -> Awaitable[Any]: ...


class Planner(Protocol):
    """An object whose verbs are plans: it knows the backend they are asked of."""

    backend: Any


S = TypeVar("S", bound=Planner)


def run(plan: Plan[T], backend: Answers) -> T:
    """Drive a plan to its answer, blocking."""
    step: Callable[[Any], Any] = plan.send
    argument: Any = None
    try:
        while True:
            request = step(argument)
            try:
                argument, step = _answer(request, backend), plan.send
            except Exception as error:
                argument, step = error, plan.throw
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _answer(request: Any, backend: Answers) -> Any:
    if type(request) is Pause:
        return time.sleep(request.seconds)
    return backend.send(request)


async def arun(plan: Plan[T], backend: Answers) -> T:
    """Drive a plan to its answer, awaiting; a cancelled await closes the plan."""
    step: Callable[[Any], Any] = plan.send
    argument: Any = None
    try:
        while True:
            request = step(argument)
            try:
                argument, step = await _aanswer(request, backend), plan.send
            except Exception as error:
                argument, step = error, plan.throw
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        plan.close()


async def _aanswer(request: Any, backend: Answers) -> Any:
    if type(request) is Pause:
        import asyncio  # 30 ms that a blocking program need not pay

        return await asyncio.sleep(request.seconds)
    return await backend.asend(request)


def _as_called(verb: Callable[..., Any]) -> None:
    """Let errors and `help()` speak of a verb as people call it, not of the plan it is made from."""
    verb.__qualname__ = verb.__qualname__.replace("._", ".")
    returned = verb.__annotations__.get("return")
    if isinstance(returned, str):
        verb.__annotations__["return"] = returned.removeprefix("Plan[").removesuffix("]")


def blocking(verb: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[S, P], T]:
    """Make the blocking twin of a verb from its plan."""

    @functools.wraps(verb)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(verb(self, *args, **kwargs), self.backend)

    _as_called(verb)
    call.__name__, call.__qualname__ = verb.__name__.lstrip("_"), verb.__qualname__
    return call


def awaiting(verb: Callable[Concatenate[S, P], Plan[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make the awaiting twin of a verb from its plan."""

    @functools.wraps(verb)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(verb(self, *args, **kwargs), self.backend)

    _as_called(verb)
    call.__name__ = "a" + verb.__name__.lstrip("_")
    call.__qualname__ = verb.__qualname__.rpartition(".")[0] + "." + call.__name__
    return call
