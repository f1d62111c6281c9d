"""What the processes of a run know whose store is behind a server: its URL, and the token of one attempt."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..backends import is_server
from ..config import ClientSettings, Config, RunnerSettings, StateStoreSettings
from ..deferral_requests import ListDeferred
from ..errors import NotFound
from ..requests import Fence
from ..run_requests import Begin, NoteAftermath, ProcessRef, TaskRow
from ..store import Store, connect
from ..values import AssetScope, TaskScope

if TYPE_CHECKING:
    from ..dags.operators import BaseOperator
    from .aftermath import Aftermath
    from .job import Job

__all__ = [
    "Entrusted",
    "Renewed",
    "begin",
    "entrusted",
    "in_its_name",
    "is_remote",
    "opened",
    "opened_by_triggerer",
    "to_triggerer",
    "triggers_token",
]

#: Seconds one try of a call may take where something else has to be looked after meanwhile.
ONE_TRY = 10.0


def is_remote(store: Store) -> bool:
    """Say whether a store is behind a server, so that what runs user code gets a token of its own."""
    return store.config.state_store.backend is None and is_server(store.url)


def opened(job: Job, retry_for: float | None = None) -> Store:
    """Open the store of a job, with nothing but what that says if it is behind a server.

    `retry_for` are the seconds for which calls are tried again at most.
    """
    if job.client is None:
        return connect(job.url)
    client = job.client
    if retry_for is not None:
        shorter = min(client.retry_for, retry_for), min(client.timeout, ONE_TRY)
        client = msgspec.structs.replace(client, retry_for=shorter[0], timeout=shorter[1])
    return connect(job.url, config=Config(client=client, state_store=job.state_store or StateStoreSettings()))


class Entrusted(msgspec.Struct, frozen=True):
    """All the settings of a triggerer whose store is behind a server: with a token that is good for triggers only."""

    client: ClientSettings
    state_store: StateStoreSettings
    lease: float


def to_triggerer(store: Store) -> Entrusted:
    """Return what a triggerer is given of a runner's store."""
    client = msgspec.structs.replace(store.config.client, token=triggers_token(store), find_token=False)
    return Entrusted(client, store.config.state_store, store.config.runner.lease_seconds)


def triggers_token(store: Store) -> str | None:
    """Return a new token for a triggerer, from the server."""
    store.backend.send(ListDeferred((), entrust=True))
    backend: Any = store.backend
    token: str | None = backend.triggers_token()
    return token


def opened_by_triggerer(url: str, given: Entrusted | None) -> Store:
    """Open the store in a triggerer, with nothing but what it was given if that is behind a server."""
    if given is None:
        return connect(url)
    runner = RunnerSettings(lease_seconds=given.lease)
    return connect(url, config=Config(client=given.client, state_store=given.state_store, runner=runner))


class Renewed:
    """The younger tokens a supervisor gets with its lease, for a child that may ask for nothing for days."""

    def __init__(self, store: Store) -> None:
        backend: Any = store.backend
        self._backend = backend
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._noted: str | None = backend.own_token()

    def note(self) -> None:
        """Write down the token where it is another than before."""
        token: str | None = self._backend.own_token()
        if token is not None and token != self._noted:
            self._noted = token
            os.write(self._file.fileno(), token.encode() + b"\n")

    def close(self) -> None:
        """Forget them: the child has ended."""
        self._file.close()

    def opened(self, job: Job) -> Store:
        """Open the store in the child."""
        store = opened(job)
        backend: Any = store.backend
        backend.take_renewed_from(self._file.fileno())
        return store


def begin(store: Store, job: Job, operator: BaseOperator, supervisor: ProcessRef) -> Job:
    """Claim an attempt for a supervisor; return its job with what was begun and its token. Raises as `Begin`."""
    request = Begin(job.scope, job.after, supervisor, job.lease, _assets(operator), _outlets(operator))
    task: TaskRow = store.backend.send(request)
    backend: Any = store.backend
    token = backend.attempt_token(Fence(task.scope, task.attempt, task.scope_id))
    return msgspec.structs.replace(_with_token(job, store.config.client, store, token), begun=task)


def entrusted(
    store: Store, aftermath: Aftermath, client: ClientSettings, operator: BaseOperator | None = None
) -> Aftermath:
    """Count that an aftermath is tried, and return it with a token of its own; NotFound where nothing is due."""
    scope: TaskScope = aftermath.job.scope
    assets = () if operator is None else _assets(operator)
    task: TaskRow = store.backend.send(NoteAftermath(scope, aftermath.attempt, assets=assets))
    backend: Any = store.backend
    token = backend.aftermath_token(task.scope_id, aftermath.attempt)
    if token is None:
        raise NotFound(f"nothing is due any more after attempt {aftermath.attempt} of {scope}")
    return msgspec.structs.replace(aftermath, job=_with_token(aftermath.job, client, store, token))


def in_its_name(store: Store, job: Job) -> Job:
    """Return the job of an attempt that runs, with the token its supervisor has now."""
    if job.client is None:
        return job
    backend: Any = store.backend
    return _with_token(job, job.client, store, backend.own_token())


def _with_token(job: Job, client: ClientSettings, store: Store, token: str | None) -> Job:
    settings = msgspec.structs.replace(client, token=token, find_token=False)
    return msgspec.structs.replace(job, client=settings, state_store=store.config.state_store)


def _assets(operator: BaseOperator) -> tuple[AssetScope, ...]:
    """Return the assets an attempt's token is good for: its inlets and outlets."""
    from ..dags.asset_definitions import distinct

    return tuple(scope for _, scope in distinct([*operator.inlets, *operator.outlets]))


def _outlets(operator: BaseOperator) -> tuple[tuple[str | None, str | None], ...] | None:
    """Return the assets of which an attempt may say that it has updated them; with an alias that can be any."""
    from ..dags.asset_definitions import AssetAlias, distinct

    outlets: Iterable[Any] = operator.outlets
    if any(isinstance(item, AssetAlias) for item in outlets):
        return None
    return tuple((asset.name, asset.uri) for asset, _ in distinct(outlets))
