"""Events of assets as portable SQL: what has been updated, by which task, for which a DAG was started; pruning them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..event_requests import AddEvents, ConsumedUntil, EventRow, Events, ListEvents
from ..run_requests import NewEvent
from ..values import TaskScope
from .sql import StateSQL

__all__ = ["EventsSQL"]

_ids = msgspec.json.Decoder(tuple[int, ...]).decode


class EventsSQL:
    """Writes and reads events of assets through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL) -> None:
        self.state, self.execute = state, state.execute

    def add(self, events: Sequence[NewEvent], source: TaskScope | None, now: int) -> None:
        """Record events that come from one task (None: from a trigger or a person)."""
        if events:  # or a reader might see a later one before it sees an earlier one
            self.state.stand_alone("asset events")
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
        """Return one page of events."""
        where, values, order = "id > ?", [request.after], "id"
        if request.before is not None:
            where, values, order = f"{where} and id < ?", [*values, request.before], "id desc"
        named = [(column, value) for column, value in _names(request) if value is not None]
        if named:
            where += f" and ({' or '.join(f'{column} = ?' for column, _ in named)})"
        rows = self.execute(
            "select id, asset_name, asset_uri, at, dag_id, run_id, task_id, map_index, extra from asset_event"
            f" where {where} order by {order} limit ?",
            (*values, *(value for _, value in named), request.limit),
        )
        return Events(tuple(_event(*row) for row in rows), self._newest())

    def consumed(self, request: ConsumedUntil, now: int) -> Events:
        """Return the newest event that a run of a DAG was started for; who asks first begins with what comes next."""
        first = (request.dag_id, self._newest())
        self.execute("insert into consumer (dag_id, seen) values (?, ?) on conflict do nothing", first)
        if request.passed_over:
            past = (request.passed_over, request.dag_id, request.passed_over)
            self.execute("update consumer set seen = ? where dag_id = ? and seen < ?", past)
        return Events((), self.execute("select seen from consumer where dag_id = ?", (request.dag_id,))[0][0])

    def prune(self, ended_before: int, limit: int) -> bool:
        """Remove events, oldest first, at most `limit`; say whether there may be more.

        What stays: an event that a DAG is still to be started for, and one of a run that is still there, whether that
        run made it or was started for it.
        """
        wanted = self._started_for()
        after, old = 0, self._old(0, ended_before)
        found: list[int] = []
        while old and len(found) < limit:
            found += [id for id in old if id not in wanted]
            after = old[-1]
            old = self._old(after, ended_before)
        for id in found[:limit]:
            self.execute("delete from asset_event where id = ?", (id,))
        return len(found) >= limit

    def _started_for(self) -> set[int]:
        rows = self.execute("select events from run where events <> '[]'", ())
        return {id for (text,) in rows for id in _ids(text)}

    def _old(self, after: int, ended_before: int) -> Sequence[int]:
        """Return the ids of some old events that no DAG waits for and whose run is gone."""
        rows = self.execute(
            "select id from asset_event where id > ? and at <= ?"
            " and not exists (select 1 from consumer where seen < asset_event.id)"
            " and not exists (select 1 from run where run.dag_id = asset_event.dag_id"
            " and run.run_id = asset_event.run_id) order by id limit 1000",
            (after, ended_before),
        )
        return [id for (id,) in rows]

    def _newest(self) -> int:
        newest: int = self.execute("select coalesce(max(id), 0) from asset_event", ())[0][0]
        return newest


def _names(request: ListEvents) -> tuple[tuple[str, str | None], ...]:
    return ("asset_name", request.name), ("asset_uri", request.uri)


def _event(id: int, name: str | None, uri: str | None, at: int, *place: Any) -> EventRow:
    source = None if place[0] is None else TaskScope(*place[:4])
    return EventRow(id, name, uri, at, source, place[4])
