"""Which store a command means, opened: only a write creates one that is not there yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from .. import config as configuration
from ..backends import file_of
from ..errors import BackendError, NotFound
from ..plans import run
from ..state import AssetState, TaskState
from ..store import Store, connect
from ..values import Scope, TaskScope
from .person import person

__all__ = ["fixed_url", "is_there", "opened", "refuse_lost", "stands_at", "state_of"]


def fixed_url(url: str | None) -> str:
    """Return the store's URL as it is meant here and now, whatever changes the working directory later."""
    settings = configuration.load()
    resolved, origin = configuration.resolve_url(url, settings)
    if origin == configuration.DEFAULT_ORIGIN:  # named from here on, so that opening it does not make its folder
        with suppress(OSError):
            os.makedirs(os.path.dirname(resolved), mode=0o700, exist_ok=True)
    return file_of(resolved, settings) or resolved


@contextmanager
def opened(url: str | None, *, create: bool, reveal: bool | None = None) -> Iterator[Store]:
    """Open the store a command means for the length of a block; NotFound if it would have to be created first.

    A server is asked for the values of secret keys if the command was given --reveal, or says so by `reveal`.
    """
    settings = configuration.load()
    resolved, _ = configuration.resolve_url(url, settings)
    path = file_of(resolved, settings)
    if path is not None:
        refuse_lost(path)
        if not create and not stands_at(path):
            raise NotFound(
                f"there is no store at {path} yet: the first write creates it; "
                "`outlast doctor` says why this one is meant"
            )
    with connect(url, config=settings) as store:
        backend: Any = store.backend
        if hasattr(backend, "reveals"):
            backend.reveals = _is_revealing() if reveal is None else reveal
        yield store


def _is_revealing() -> bool:
    """Say whether the command that runs was given --reveal."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("reveal"))


def stands_at(path: str) -> bool:
    """Say whether there is anything at a path that opening a store there would not have to make."""
    return os.path.exists(path) and os.path.getsize(path) > 0


def refuse_lost(path: str) -> None:
    """Raise BackendError where a store has been, as its lock file tells, and is no more."""
    lock = path + ".lock"
    if not stands_at(path) and os.path.exists(lock) and os.path.getsize(lock) > 0:
        raise BackendError(
            f"the store that was at {path} is gone or empty, though its lock file is still there: "
            f"restore it from a backup, or remove {lock} to begin a new store"
        )


def state_of(store: Store, scope: Scope) -> TaskState | AssetState:
    """Return the state of a scope as the person at this command line reads and writes it: unfenced."""
    if isinstance(scope, TaskScope):
        return store.task(scope, writer=person())
    return store.asset(scope.name, uri=scope.uri, writer=person())


def is_there(state: TaskState | AssetState) -> bool:
    """Say whether anything was ever opened or written in a scope."""
    return run(state._find(()), state.backend).scope_id != 0
