"""`[state_store] backend` of Airflow 3.3: its own, with rows compressed and encrypted, and expiry that holds.

Rows stay where they are and stay JSON documents, so that the list in the UI, REST, `airflow state-store clean` and
the deletion of a DAG run go on working. What outlast has packed is `{"__outlast__": "…"}`; every other row is as
REST or Airflow itself has written it, and is returned as it is.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.state import AssetScope, TaskScope
from airflow.state.metastore import MetastoreBackend
from airflow.utils.session import NEW_SESSION, provide_session

from .backend_settings import read_settings
from .rows import pack_row, unpack_row

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

__all__ = ["MetastorePlusBackend"]


class MetastorePlusBackend(MetastoreBackend):  # type: ignore[misc]
    """Airflow's default backend, with `[outlast] state_compress_above` and `state_encryption_keys`.

    Set in Airflow's configuration: `[state_store] backend = outlast.integrations.airflow.MetastorePlusBackend`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._packer = read_settings().packer()

    @provide_session  # type: ignore[untyped-decorator,unused-ignore]
    def get(self, scope: Any, key: str, *, session: Any = NEW_SESSION) -> str | None:
        """Return a key's JSON text; None when there is none or its time is over."""
        if isinstance(scope, TaskScope) and session.scalar(_expired(scope, key)) is not None:
            return None
        return self._unpacked(super().get(scope, key, session=session))

    async def aget(self, scope: Any, key: str, *, session: Any = None) -> str | None:
        """Do as `get`, awaiting."""
        from airflow.state.metastore import _async_session

        async with _async_session(session) as opened:
            if isinstance(scope, TaskScope) and await opened.scalar(_expired(scope, key)) is not None:
                return None
            return self._unpacked(await super().aget(scope, key, session=opened))

    def set(self, scope: Any, key: str, value: str, *, expires_at: datetime | None = None, **session: Any) -> None:
        """Write a key's JSON text, packed."""
        super().set(scope, key, self._packed(value), expires_at=expires_at, **session)

    async def aset(
        self, scope: Any, key: str, value: str, *, expires_at: datetime | None = None, **session: Any
    ) -> None:
        """Do as `set`, awaiting."""
        await super().aset(scope, key, self._packed(value), expires_at=expires_at, **session)

    def set_asset_state_store(self, scope: AssetScope, key: str, value: str, **writer: Any) -> None:
        """Write an asset's JSON text, packed, with who has written it."""
        super().set_asset_state_store(scope, key, self._packed(value), **writer)

    async def aset_asset_state_store(self, scope: AssetScope, key: str, value: str, **writer: Any) -> None:
        """Do as `set_asset_state_store`, awaiting."""
        await super().aset_asset_state_store(scope, key, self._packed(value), **writer)

    def _packed(self, value: str) -> str:
        return pack_row(self._packer, value)

    def _unpacked(self, value: str | None) -> str | None:
        return None if value is None else unpack_row(self._packer, value)


def _expired(scope: TaskScope, key: str) -> Any:
    """Select the row of a key if its time is over."""
    from airflow.models.task_state_store import TaskStateStoreModel as Row
    from sqlalchemy import select

    of_key: tuple[ColumnElement[bool], ...] = (
        Row.dag_id == scope.dag_id,
        Row.run_id == scope.run_id,
        Row.task_id == scope.task_id,
        Row.map_index == scope.map_index,
        Row.key == key,
    )
    return select(Row.id).where(*of_key, Row.expires_at <= datetime.now(UTC))
