"""Events of assets as portable SQL: what has been updated, by which task, and for which a DAG was started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..run_requests import AddEvents, ConsumedUntil, EventRow, Events, ListEvents, NewEvent
from ..values import TaskScope
from .execute import Execute

__all__ = ["EventsSQL"]


class EventsSQL:
    """Writes and reads events of assets through one connection."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute

    def add(self, events: Sequence[NewEvent], source: TaskScope | None, now: int) -> None:
        """Record events that come from one task (None: from a trigger or a person)."""
        place = (None,) * 4 if source is None else (source.dag_id, source.run_id, source.task_id, source.map_index)
        for event in events:
            self.execute(
                "insert into asset_event (asset_name, asset_uri, at, extra, dag_id, run_id, task_id, map_index)"
                " values (?, ?, ?, ?, ?, ?, ?, ?)",
                (event.name, event.uri, now, event.extra, *place),
            )

    def record(self, request: AddEvents, now: int) -> Events:
        """Record events that do not come from a task."""
        self.add(request.events, None, now)
        return Events((), self._newest())

    def list(self, request: ListEvents, now: int) -> Events:
        """Return one page of events, oldest first."""
        rows = self.execute(
            "select id, asset_name, asset_uri, at, dag_id, run_id, task_id, map_index, extra from asset_event"
            " where id > ? order by id limit ?",
            (request.after, request.limit),
        )
        return Events(tuple(_event(*row) for row in rows), self._newest())

    def consumed(self, request: ConsumedUntil, now: int) -> Events:
        """Return the newest event that a run of a DAG was started for; who asks first begins with what comes next."""
        first = (request.dag_id, self._newest())
        self.execute("insert into consumer (dag_id, seen) values (?, ?) on conflict do nothing", first)
        return Events((), self.execute("select seen from consumer where dag_id = ?", (request.dag_id,))[0][0])

    def _newest(self) -> int:
        newest: int = self.execute("select coalesce(max(id), 0) from asset_event", ())[0][0]
        return newest


def _event(id: int, name: str | None, uri: str | None, at: int, *place: Any) -> EventRow:
    source = None if place[0] is None else TaskScope(*place[:4])
    return EventRow(id, name, uri, at, source, place[4])
