"""Calls the verbs of a store, a state or a transaction by their plain name, as the blocking or the awaiting twin.

A test body is written once against `Verbs`; which twin runs is decided where the store is opened.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from outlast import Store
from outlast.checkpoint import Checkpoint
from outlast.state import State
from outlast.transaction import Transaction
from outlast.watch import Watch


class Verbs:
    """Stands for an object of the public API; with a runner its awaiting verbs are called, else the blocking ones."""

    def __init__(self, real: Any, runner: asyncio.Runner | None = None) -> None:
        self.real, self.runner = real, runner

    def __repr__(self) -> str:
        return f"{self.real!r}, {'awaiting' if self.runner else 'blocking'}"

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.real, name)
        twin = getattr(self.real, "a" + name, None)
        if self.runner is not None and twin is not None:
            return functools.partial(self._call, functools.partial(_await, self.runner, twin))
        return functools.partial(self._call, verb) if callable(verb) else verb

    def _call(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(
            verb(*(argument.real if isinstance(argument, Verbs) else argument for argument in args), **kwargs)
        )

    def _wrapped(self, result: Any) -> Any:
        match result:
            case Store() | State():
                return Verbs(result, self.runner)
            case Transaction():
                return Block(result, self.runner)
            case Watch() | Checkpoint():
                return Loop(result, self.runner)
        return result


class Block:
    """A transaction as a `with` block, entered and left in the colour of its store."""

    def __init__(self, real: Any, runner: asyncio.Runner | None) -> None:
        self.real, self.runner = real, runner

    def __enter__(self) -> Verbs:
        view = self.real.__enter__() if self.runner is None else _await(self.runner, self.real.__aenter__)
        return Verbs(view, self.runner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.runner is None:
            self.real.__exit__(kind, error, trace)
        else:
            _await(self.runner, self.real.__aexit__, kind, error, trace)


class Loop:
    """Something to iterate over, with `for` or (step by step) with `async for`; closed when the loop is left."""

    def __init__(self, real: Any, runner: asyncio.Runner | None) -> None:
        self.real, self.runner = real, runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __iter__(self) -> Iterator[Any]:
        if self.runner is None:
            yield from self.real
            return
        steps = aiter(self.real)
        try:
            while True:
                try:
                    item = _await(self.runner, functools.partial(anext, steps))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            _await(self.runner, steps.aclose)


def _await(runner: asyncio.Runner, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    async def call() -> Any:
        return await verb(*args, **kwargs)

    return runner.run(call())


#: How to call each verb of a state once, by name: what a test that goes through all of them uses.
CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda state: state.get("key"),
    "entry": lambda state: state.entry("key"),
    "keys": lambda state: state.keys(),
    "items": lambda state: state.items(),
    "entries": lambda state: state.entries(),
    "history": lambda state: state.history("key"),
    "set": lambda state: state.set("key", 1),
    "set_many": lambda state: state.set_many({"key": 1, "other": 2}),
    "set_default": lambda state: state.set_default("key", 1),
    "compare_and_set": lambda state: state.compare_and_set("key", 1, revision=None),
    "increment": lambda state: state.increment("number"),
    "update": lambda state: state.update("key", lambda value: 1),
    "restore": lambda state: state.restore("key", 1),
    "delete": lambda state: state.delete("key"),
    "clear": lambda state: state.clear(),
}


def in_transaction(state: Any) -> None:
    """Write in a transaction."""
    with state.transaction() as tx:
        tx.set("key", 1)


def reading_transaction(state: Any) -> None:
    """Only read in a transaction."""
    with state.transaction() as tx:
        tx.get("key")


def through_watch(state: Any) -> None:
    """Watch until nothing more has changed."""
    list(state.watch(timeout=0))


def through_checkpoint(state: Any) -> None:
    """Go through a list with a checkpoint."""
    list(state.checkpoint([1, 2]))


#: What goes beyond one call.
LONGER: dict[str, Callable[[Any], None]] = {
    "transaction": in_transaction,
    "reading transaction": reading_transaction,
    "watch": through_watch,
    "checkpoint": through_checkpoint,
}
