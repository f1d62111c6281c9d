"""The context's `task_state_store` and `asset_state_store` below Airflow 3.3: its surface, and outlast's own verbs.

Nothing is opened before a verb is called: the hook that makes them runs in every task, also those that want none.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...errors import BackendError, ConfigError, Unauthorized
from ...values import AssetScope, TaskScope
from . import where
from .identity import Identity, asset_of, assets_of, identity_of
from .reach import reach

if TYPE_CHECKING:
    from ...state import AssetState, TaskState
    from ...store import Store

__all__ = ["AssetStateStore", "AssetStateStores", "TaskStateStore", "add_to", "task_state_store"]

logger = logging.getLogger("outlast")

#: What a store that is missing or out of reach raises; that an attempt is stale is no such thing.
UNUSABLE = (BackendError, ConfigError, Unauthorized)


def add_to(context: Any) -> None:
    """Put the stores into a context that has none."""
    store = TaskStateStore(identity_of(context), assets_of(context["task"]))
    context["task_state_store"] = store
    if store.assets and "asset_state_store" not in context:
        context["asset_state_store"] = AssetStateStores(store)


def task_state_store(context: Any = None) -> Any:
    """Return the state of the running task, Airflow's own where it has one; for installations without the policy.

    `context` is the task's; None stands for that of the task running here and now.
    """
    found = _current_context() if context is None else context
    if "task_state_store" not in found:
        add_to(found)
    return found["task_state_store"]


class _Lazy:
    """Has the public verbs of a state of outlast's, and opens it when one is called."""

    def _verbs(self) -> type[TaskState | AssetState]:
        raise NotImplementedError

    def _state(self) -> Any:
        raise NotImplementedError

    async def _astate(self) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        verb = None if name.startswith("_") else getattr(self._verbs(), name, None)
        if verb is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if not inspect.iscoroutinefunction(verb):
            return getattr(self._state(), name)

        async def awaited(*arguments: Any, **named: Any) -> Any:
            return await getattr(await self._astate(), name)(*arguments, **named)

        return awaited

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._verbs()) if not name.startswith("_")]


class TaskStateStore(_Lazy):
    """`context["task_state_store"]`: the state of this task instance, which its next try finds again.

    `get(key, default=None)`, `set(key, value, *, retention=None)`, `delete(key)`, `clear()`, their awaiting twins and
    every other verb of `outlast.TaskState`. Raises StaleAttempt once a newer try of the task instance has used it.
    """

    def __init__(self, identity: Identity, assets: tuple[AssetScope, ...] = ()) -> None:
        self.identity, self.assets = identity, assets
        self._opened: TaskState | None = None
        self._unusable: Exception | None = None

    def require(self) -> None:
        """Open the store; raise its error where a later try would, without it, begin anew what one before it has begun.

        So `[outlast] on_error = disable` has no job submitted twice because a store was away for a moment, which is
        also why that is waited for as long as with `fail`.
        """
        if self._opened is None:
            self._open(patient=True)
        if self._unusable is not None and self.identity.attempt > 1:
            logger.error("outlast: this try may have a job to find again, so it does not run without its state")
            raise self._unusable

    @property
    def scope(self) -> TaskScope:
        """Where the state is kept."""
        return self.identity.scope

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskStateStore) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.identity, self.assets)

    def __repr__(self) -> str:
        who = self.identity
        return f"<TaskStateStore {who.dag_id}/{who.run_id}/{who.task_id} {who.map_index} try {who.attempt}>"

    def _verbs(self) -> type[TaskState]:
        from ...state import TaskState

        return TaskState

    def _state(self) -> TaskState:
        return self._open() if self._opened is None else self._opened

    async def _astate(self) -> TaskState:
        from ...backends import in_thread

        return await in_thread(self._open) if self._opened is None else self._opened

    def _open(self, patient: bool = False) -> TaskState:
        try:
            opened = reach.begun(self._begin, patient)
        except UNUSABLE as error:
            opened = self._begin(_in_memory(error))
            self._unusable = error
        self._opened = self._opened or opened  # another coroutine may have been first
        return self._opened

    def _begin(self, store: Store) -> TaskState:
        who = self.identity
        assets = [store.asset(scope.name, uri=scope.uri) for scope in self.assets]
        origin = None if who.origin is None else (who.origin, who.started)
        return store.task(self.scope, attempt=who.attempt, assets=assets, origin=origin)


class AssetStateStore(_Lazy):
    """The state of one asset, across runs: an `asset_state_store[asset]`; verbs as of `outlast.AssetState`."""

    def __init__(self, task: TaskStateStore, scope: AssetScope) -> None:
        self._task, self.scope = task, scope

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AssetStateStore) and self.scope == other.scope

    def __hash__(self) -> int:
        return hash(self.scope)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._task, self.scope)

    def __repr__(self) -> str:
        return f"<AssetStateStore {self.scope.name or self.scope.uri}>"

    def _verbs(self) -> type[AssetState]:
        from ...state import AssetState

        return AssetState

    def _state(self) -> AssetState:
        return self._task._state().asset(self.scope.name, uri=self.scope.uri)

    async def _astate(self) -> AssetState:
        return (await self._task._astate()).asset(self.scope.name, uri=self.scope.uri)


class AssetStateStores(_Lazy):
    """`context["asset_state_store"]`: by asset, the task's inlets and outlets; of one, the verbs as well."""

    def __init__(self, task: TaskStateStore) -> None:
        self._task = task

    def __getitem__(self, asset: Any) -> AssetStateStore:
        wanted = asset_of(asset)
        if wanted is None:
            raise TypeError(f"{asset!r} is no asset; use one of the task's inlets and outlets: {self._names()}")
        for scope in self._task.assets:
            if scope == wanted or None is not scope.name == wanted.name or None is not scope.uri == wanted.uri:
                return AssetStateStore(self._task, scope)
        raise KeyError(f"{asset!r} is not in this task's inlets or outlets, which are {self._names()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._task,)

    def __repr__(self) -> str:
        return f"<AssetStateStores {self._names()}>"

    def _names(self) -> str:
        return _listed(self._task.assets)

    def _verbs(self) -> type[AssetState]:
        from ...state import AssetState

        return AssetState

    def _one(self) -> AssetStateStore:
        if len(self._task.assets) != 1:
            raise ValueError(
                f"this task has {len(self._task.assets)} inlets and outlets; say which: asset_state_store[asset]"
            )
        return AssetStateStore(self._task, self._task.assets[0])

    def _state(self) -> AssetState:
        return self._one()._state()

    async def _astate(self) -> AssetState:
        return await self._one()._astate()


def _listed(assets: Iterable[AssetScope]) -> str:
    return ", ".join(scope.name or scope.uri or "" for scope in assets)


def _in_memory(error: Exception) -> Store:
    """Return a store for this try alone, where that is what a store out of reach is to mean; else raise its error."""
    if where.on_error() == "fail":
        # Not as the error's note: Airflow 3.0 does not show those.
        logger.error("outlast cannot open the store of this task; [outlast] on_error = disable runs tasks without it")
        raise error
    from ...store import connect

    logger.warning("outlast: the state of this try is not kept, since its store cannot be opened: %s", error)
    return connect("sqlite:///:memory:", config=where.settings(None))


def _current_context() -> Any:
    try:
        from airflow.sdk import get_current_context  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from airflow.operators.python import (  # type: ignore[import-not-found, no-redef, unused-ignore]
            get_current_context,
        )
    return get_current_context()
