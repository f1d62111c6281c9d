"""`[workers] state_store_backend` of Airflow 3.3: values compressed, encrypted, and kept outside when large."""

from __future__ import annotations

from typing import Any, NoReturn

from airflow.sdk.state import AssetScope, BaseStoreBackend, TaskScope

from ...errors import ConfigError
from ...values import JsonValue
from .backend_settings import clears_on_success, read_settings
from .references import Current
from .rows import reference_in

__all__ = ["WorkerBackend", "after_success"]

_made: list[WorkerBackend] = []


def after_success() -> None:
    """Remove the payloads that a task which has succeeded, and is recorded so, no longer needs; never raises."""
    for backend in _made:
        backend.after_success()


class WorkerBackend(BaseStoreBackend):  # type: ignore[misc]
    """What Airflow asks on a worker before a value goes to the API server, and after it has come from there.

    Set in Airflow's configuration: `[workers] state_store_backend = outlast.integrations.airflow.WorkerBackend`.
    """

    def __init__(self) -> None:
        self._references = read_settings().references()
        _made.append(self)

    def serialize_task_state_store_to_ref(self, *, value: JsonValue, key: str, scope: TaskScope) -> str:
        """Return what is stored in place of a task's value."""
        return self._references.refer(value, scope, key, _task_asker(scope, key))

    def deserialize_task_state_store_from_ref(self, stored: str) -> JsonValue:
        """Return the value of what was stored; None when its payload is lost."""
        return self._references.resolve(stored)

    def serialize_asset_state_store_to_ref(self, *, value: JsonValue, key: str, scope: AssetScope) -> str:
        """Return what is stored in place of an asset's value."""
        return self._references.refer(value, scope, key, _asset_asker(scope, key))

    def deserialize_asset_state_store_from_ref(self, stored: str) -> JsonValue:
        """Return the value of what was stored; None when its payload is lost."""
        return self._references.resolve(stored)

    def delete(self, scope: Any, key: str, **_: Any) -> None:
        """Remove the payloads of a key, which Airflow has deleted already; never raises."""
        self._references.forget(scope, key)

    def clear(self, scope: Any, **_: Any) -> None:
        """Remove the payloads of a scope that is cleared; never raises.

        With `[state_store] clear_on_success` Airflow calls this before it reports the success. Payloads are then
        kept until that is done (`after_success`), so that a worker that dies in between has lost nothing.
        """
        is_task = isinstance(scope, TaskScope)
        self._references.forget_all(scope, later=is_task and clears_on_success())

    async def adelete(self, scope: Any, key: str, **_: Any) -> None:
        """Do as `delete`, in a thread."""
        import asyncio

        await asyncio.to_thread(self.delete, scope, key)

    async def aclear(self, scope: Any, **_: Any) -> None:
        """Do as `clear`, in a thread."""
        import asyncio

        await asyncio.to_thread(self.clear, scope)

    def after_success(self) -> None:
        """Remove what `clear` has left, and payloads whose key has been set anew; never raises."""
        self._references.after_success()

    def get(self, scope: Any, key: str, **_: Any) -> NoReturn:
        """Refuse: a worker's backend is asked for references only."""
        raise ConfigError(
            "WorkerBackend belongs in [workers] state_store_backend; for [state_store] backend use "
            "outlast.integrations.airflow.MetastorePlusBackend"
        )

    def set(self, scope: Any, key: str, value: str, **_: Any) -> NoReturn:
        """Refuse: a worker's backend is asked for references only."""
        self.get(scope, key)

    async def aget(self, scope: Any, key: str, **_: Any) -> NoReturn:
        """Refuse: a worker's backend is asked for references only."""
        self.get(scope, key)

    async def aset(self, scope: Any, key: str, value: str, **_: Any) -> NoReturn:
        """Refuse: a worker's backend is asked for references only."""
        self.get(scope, key)


def _task_asker(scope: TaskScope, key: str) -> Current:
    """Return what asks the database for the reference it holds for a key of the task that is running."""
    from airflow.sdk import get_current_context
    from airflow.sdk.execution_time.comms import GetTaskStateStore

    try:
        ti = get_current_context()["ti"]
    except (KeyError, RuntimeError):  # a callback
        return _nobody
    index = -1 if ti.map_index is None else ti.map_index
    if (ti.dag_id, ti.run_id, ti.task_id, index) != (scope.dag_id, scope.run_id, scope.task_id, scope.map_index):
        return _nobody
    return lambda: _ask(GetTaskStateStore(ti_id=ti.id, key=key))


def _asset_asker(scope: AssetScope, key: str) -> Current:
    """Return what asks the database for the reference it holds for an asset's key."""
    from airflow.sdk.execution_time.comms import GetAssetStateStoreByName, GetAssetStateStoreByUri

    if scope.name:
        return lambda: _ask(GetAssetStateStoreByName(name=scope.name, key=key))
    return lambda: _ask(GetAssetStateStoreByUri(uri=scope.uri, key=key))


def _nobody() -> NoReturn:
    raise LookupError("no task is running here")


def _ask(question: Any) -> str | None:
    """Return the database's answer, unless waiting for it would hold up an event loop."""
    import asyncio

    from airflow.sdk.execution_time.comms import ErrorResponse
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise LookupError("an event loop is running here")
    try:
        answer = SUPERVISOR_COMMS.send(question)
    except Exception as error:
        raise LookupError(f"the supervisor did not answer: {error}") from error
    if isinstance(answer, ErrorResponse) and not answer.error.value.endswith("_STORE_NOT_FOUND"):
        raise LookupError(f"the supervisor answered {answer.error}")
    return reference_in(getattr(answer, "value", None))
