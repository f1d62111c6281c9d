"""`[workers] state_store_backend` of Airflow 3.3: values compressed, encrypted, and kept outside when large."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from airflow.sdk.state import AssetScope, BaseStoreBackend, TaskScope

from ...errors import ConfigError, OutlastError
from ...values import JsonValue
from .backend_settings import clears_on_success, read_settings
from .references import Current, References
from .rows import reference_in

__all__ = ["WorkerBackend", "after_success"]

logger = logging.getLogger("outlast.airflow")

_made: list[WorkerBackend] = []


def after_success(ti: Any) -> None:
    """Remove the payloads that a task which has succeeded no longer needs, where Airflow has recorded its success.

    Airflow calls the listeners also of a try that it has given up, and whose success it has refused: then another try
    may be using the payloads, and all are left as they are.
    """
    for backend in _made:
        backend.after_success(lambda: _is_recorded(ti))


class WorkerBackend(BaseStoreBackend):  # type: ignore[misc]
    """What Airflow asks on a worker before a value goes to the API server, and after it has come from there.

    Set in Airflow's configuration: `[workers] state_store_backend = outlast.integrations.airflow.WorkerBackend`.
    """

    def __init__(self) -> None:
        """Read nothing yet: a wrong setting must not fail a task that has succeeded, which Airflow then has cleared."""
        self._found: References | None = None
        _made.append(self)

    @property
    def _references(self) -> References:
        if self._found is None:
            self._found = read_settings().references()
        return self._found

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
        self._forget(scope, key, threading.get_ident())

    def clear(self, scope: Any, **_: Any) -> None:
        """Remove the payloads of a scope that is cleared; never raises.

        With `[state_store] clear_on_success` Airflow calls this before it reports the success. Payloads are then
        kept until that is done (`after_success`), so that a worker that dies in between has lost nothing.
        """
        self._forget(scope, None, threading.get_ident())

    async def adelete(self, scope: Any, key: str, **_: Any) -> None:
        """Do as `delete`, in a thread."""
        import asyncio

        await asyncio.to_thread(self._forget, scope, key, threading.get_ident())

    async def aclear(self, scope: Any, **_: Any) -> None:
        """Do as `clear`, in a thread."""
        import asyncio

        await asyncio.to_thread(self._forget, scope, None, threading.get_ident())

    def after_success(self, is_recorded: Callable[[], bool]) -> None:
        """Remove what `clear` has left, and payloads whose key has been set anew; never raises."""
        if self._found is not None:
            self._found.after_success(is_recorded)

    def _forget(self, scope: Any, key: str | None, thread: int) -> None:
        try:
            if key is not None:
                self._references.forget(scope, key, thread)
            else:
                later = isinstance(scope, TaskScope) and clears_on_success()
                self._references.forget_all(scope, thread, later=later)
        except OutlastError as error:
            logger.warning("payloads are left to `outlast airflow sweep`: %s", error.message)

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


def _is_recorded(ti: Any) -> bool:
    """Say whether Airflow holds a task instance for a success; LookupError if it does not say."""
    index = -1 if ti.map_index is None else ti.map_index
    try:
        told = ti.get_task_states(dag_id=ti.dag_id, map_index=index, task_ids=[ti.task_id], run_ids=[ti.run_id])
    except Exception as error:
        raise LookupError(f"the supervisor did not answer: {error}") from error
    return list(told.get(ti.run_id, {}).values()) == ["success"]


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
