"""The rows of Airflow's own database in which state is kept, read and replaced one by one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from ...errors import ConfigError
from .references import place_of

__all__ = ["AirflowRows", "Row", "Rows"]

#: Rows read at a time.
PAGE = 500


class Row(msgspec.Struct, frozen=True):
    """A row: where it is (`task` with its id, `asset` with id and key), what people call it, and its JSON text.

    `places` are where a worker keeps the payloads of this key (`SCOPE/KEY`): an asset's by its name or by its URI.
    """

    table: str
    id: Any
    name: str
    text: str
    is_expired: bool = False
    places: tuple[str, ...] = ()


class _Asset(msgspec.Struct, frozen=True):
    """What a worker's scope of an asset has."""

    name: str | None
    uri: str | None


class Rows(Protocol):
    """The rows of a database; a row that has changed since it was read is left alone."""

    def all(self) -> Iterator[Row]:
        """Read every row."""

    def replace(self, row: Row, text: str) -> bool:
        """Put another text in a row's place; say whether the row still was as it was read."""

    def remove(self, row: Row) -> bool:
        """Delete a row; say whether it still was as it was read."""


class AirflowRows:
    """The rows of the database that Airflow's configuration names."""

    def __init__(self) -> None:
        try:
            from airflow.models.asset import AssetModel
            from airflow.models.asset_state_store import AssetStateStoreModel
            from airflow.models.task_state_store import TaskStateStoreModel
        except ImportError:
            raise ConfigError(
                "this needs Airflow 3.3 or later beside outlast, with access to its database: run it where "
                "`airflow db check` works"
            ) from None
        self._task: Any = TaskStateStoreModel
        self._asset: Any = AssetStateStoreModel
        self._assets_named: Any = AssetModel

    def all(self) -> Iterator[Row]:
        """Read every row, in pages, so that nobody is kept waiting."""
        yield from self._tasks()
        yield from self._assets()

    def newest(self, number: int) -> list[Row]:
        """Read the rows that outlast has packed, or whose value it keeps: the last written of tasks, and of assets."""
        from sqlalchemy import select

        tasks, assets = (
            self._page(select(model).where(model.value.contains('"o1')).order_by(model.updated_at.desc()).limit(number))
            for model in (self._task, self._asset)
        )
        now = datetime.now(UTC)
        return [*(_of_task(row, now) for row in tasks), *self._of_assets(assets)]

    def replace(self, row: Row, text: str) -> bool:
        """Put another text in a row's place; who has written it and when stays as it is."""
        from sqlalchemy import update

        model, conditions = self._as_read(row)
        return self._change(update(model).where(*conditions).values(value=text, updated_at=model.updated_at))

    def remove(self, row: Row) -> bool:
        """Delete a row."""
        from sqlalchemy import delete

        model, conditions = self._as_read(row)
        return self._change(delete(model).where(*conditions))

    def _tasks(self) -> Iterator[Row]:
        from sqlalchemy import select

        model, last, now = self._task, -1, datetime.now(UTC)
        while page := self._page(select(model).where(model.id > last).order_by(model.id).limit(PAGE)):
            yield from (_of_task(row, now) for row in page)
            last = page[-1].id

    def _assets(self) -> Iterator[Row]:
        from sqlalchemy import and_, or_, select

        model, at = self._asset, (-1, "")
        while True:
            further = or_(model.asset_id > at[0], and_(model.asset_id == at[0], model.key > at[1]))
            page = self._page(select(model).where(further).order_by(model.asset_id, model.key).limit(PAGE))
            if not page:
                return
            yield from self._of_assets(page)
            at = (page[-1].asset_id, page[-1].key)

    def _of_assets(self, page: list[Any]) -> Iterator[Row]:
        scopes = self._scopes({row.asset_id for row in page})
        for row in page:
            known = scopes.get(row.asset_id, ())
            places = tuple(place_of(scope, row.key) for scope in known)
            called = known[0].name if known else row.asset_id
            yield Row("asset", (row.asset_id, row.key), f"asset {called} {row.key}", row.value, False, places)

    def _scopes(self, ids: set[int]) -> dict[int, tuple[_Asset, _Asset]]:
        """Return the scopes by which workers know assets; of one that is gone nobody reads the state."""
        from sqlalchemy import select

        model = self._assets_named
        found = self._page(select(model).where(model.id.in_(ids)))
        return {asset.id: (_Asset(asset.name, None), _Asset(None, asset.uri)) for asset in found}

    def _page(self, statement: Any) -> list[Any]:
        from airflow.utils.session import create_session

        with create_session() as session:
            rows = list(session.scalars(statement).all())
            session.expunge_all()
            return rows

    def _as_read(self, row: Row) -> tuple[Any, tuple[Any, ...]]:
        if row.table == "task":
            return self._task, (self._task.id == row.id, self._task.value == row.text)
        asset, key = row.id
        return self._asset, (self._asset.asset_id == asset, self._asset.key == key, self._asset.value == row.text)

    def _change(self, statement: Any) -> bool:
        from airflow.utils.session import create_session

        with create_session() as session:
            changed = session.execute(statement.execution_options(synchronize_session=False)).rowcount
        return bool(changed)


def _of_task(row: Any, now: datetime) -> Row:
    index = "" if row.map_index < 0 else f"/{row.map_index}"
    name = f"{row.dag_id}/{row.run_id}/{row.task_id}{index} {row.key}"
    is_expired = row.expires_at is not None and row.expires_at <= now
    return Row("task", row.id, name, row.value, is_expired, (place_of(row, row.key),))
