"""Watchers of assets: which there are in some DAGs, and running them; each of their events updates their assets."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from .. import codec
from ..dags.assets import Asset, AssetStates
from ..errors import BackendError
from ..event_requests import AddEvents
from ..run_requests import NewEvent
from ..state import AssetState
from ..values import AssetScope, Writer
from .board import Key

if TYPE_CHECKING:
    import asyncio

    from ..dags.graph import DAG
    from ..dags.triggers import BaseEventTrigger
    from ..store import Store
    from .trigger_loop import TriggerLoop
    from .watcher_lease import WatcherLease

__all__ = ["Watcher", "Watching", "start", "watchers_of"]

#: Seconds before an event that could not be recorded is recorded again: this many, doubled, at most.
PAUSE, LONGEST_PAUSE = 0.1, 10.0


class Watcher(msgspec.Struct, frozen=True):
    """One trigger and the assets it watches, as (name, URI); `file` is the DAG file that says so."""

    name: str
    path: str
    kwargs: str
    file: str
    assets: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """What it is known by in the store: the same trigger of the same assets, from whichever file or process."""
        file = self.file if self.path.startswith("file:") else ""
        facts = msgspec.json.encode((self.path, self.kwargs, file, sorted(self.assets)))
        return hashlib.blake2b(facts, digest_size=16).hexdigest()

    @property
    def key(self) -> Key:
        """What it is known by on the board of a triggerer."""
        return -1 - int(self.digest[:12], 16), 0, 0


def watchers_of(dags: Iterable[tuple[str, DAG]]) -> list[Watcher]:
    """Return the watchers of the assets that DAGs, given with their files, wait for.

    Two with the same class and arguments are one trigger, which watches the assets of both. Raises DagError or
    InvalidValue for a trigger that cannot be made again from what it says of itself.
    """
    from ..dags.triggers import trigger_text

    found: dict[tuple[str, ...], Watcher] = {}
    for file, dag in dags:
        waited_for = () if dag.asset_condition is None else dag.asset_condition.assets
        for asset in waited_for:
            for watcher in asset.watchers if isinstance(asset, Asset) else ():
                path, kwargs = trigger_text(watcher.trigger)
                key = (path, kwargs, file if path.startswith("file:") else "")
                one = found.setdefault(key, Watcher(watcher.name, path, kwargs, file, ()))
                assets = dict.fromkeys([*one.assets, (asset.name, asset.uri)])
                found[key] = msgspec.structs.replace(one, assets=tuple(assets))
    return list(found.values())


class Watching:
    """One watcher at work: the trigger gets the state of its assets, and its events become theirs."""

    def __init__(
        self,
        store: Store,
        watcher: Watcher,
        make: Callable[[], Awaitable[BaseEventTrigger]],
        lease: WatcherLease | None = None,
    ) -> None:
        """Prepare it; with a `lease`, which others may take over, it is made sure of before anything is written."""
        from .watcher_lease import Guarded

        self.store, self.watcher, self._make, self.lease = store, watcher, make, lease
        self.backend = store.backend if lease is None else Guarded(store.backend, lease, watcher)
        self.writer = Writer("trigger", name=watcher.path)

    async def make(self) -> BaseEventTrigger:
        """Make the trigger, which can be run then."""
        trigger = await self._make()
        trigger.asset_state_store = AssetStates([Asset(*asset) for asset in self.watcher.assets], self._state)
        return trigger

    def _state(self, scope: AssetScope) -> AssetState:
        backend: Any = self.backend
        return AssetState(backend, scope, self.store.config, self.store.clock, self.writer)

    async def happened(self, payload: Any) -> None:
        """Record that the assets have been updated, as long as it takes.

        InvalidValue if the payload is not JSON, NotOurs if another process runs this watcher now.
        """
        import asyncio

        extra = codec.dump({"from_trigger": True, "payload": payload}, allow_none=True).decode()
        request, pause = AddEvents(tuple(NewEvent(name, uri, extra) for name, uri in self.watcher.assets)), PAUSE
        while True:
            try:
                if self.lease is not None:
                    await self.lease.acheck(self.watcher)
                await self.store.backend.asend(request)
                return
            except BackendError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)


def start(triggers: TriggerLoop, watchers: Iterable[Watcher]) -> list[asyncio.Task[None]]:
    """Run watchers on the loop of a triggerer, for good or until a returned task is cancelled."""
    return [_start(triggers, watcher) for watcher in watchers]


def _start(triggers: TriggerLoop, watcher: Watcher) -> asyncio.Task[None]:
    from ..dags.triggers import made_arguments

    async def make() -> Any:
        kind = await triggers.class_of(watcher.path, watcher.file)
        return kind(**made_arguments(watcher.kwargs))

    watching = Watching(triggers.store, watcher, make, triggers.lease)
    return triggers.watch(watcher.name, watching.make, watching.happened, watcher.key)
