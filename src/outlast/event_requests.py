"""What a backend is asked about events of assets: those there are, and who watches and waits for them."""

from __future__ import annotations

import msgspec

from .requests import Asked
from .run_requests import NewEvent, ProcessRef
from .values import TaskScope


class AddEvents(Asked, frozen=True, tag="add_events"):
    """Record that assets were updated, by a trigger or a person."""

    events: tuple[NewEvent, ...]


class ListEvents(Asked, frozen=True, tag="list_events"):
    """Page through events of assets after an id, oldest first; with `before`, those below that id, newest first.

    With `name` or `uri` only events of assets that have that name or that URI.
    """

    after: int = 0
    limit: int = 1000
    before: int | None = None
    name: str | None = None
    uri: str | None = None


class EventRow(msgspec.Struct, frozen=True):
    """One event of an asset, and the task it came from; None for a trigger or a person."""

    id: int
    name: str | None
    uri: str | None
    at: int
    source: TaskScope | None
    extra: str


class Events(msgspec.Struct, frozen=True, tag="events"):
    """One page, with the id of the newest event there is."""

    rows: tuple[EventRow, ...]
    newest: int


class ConsumedUntil(Asked, frozen=True, tag="consumed_until"):
    """Ask for the newest event that runs of a DAG were started for (answer: Events without rows).

    Asked for the first time, that is the newest there is: what was before is not for this DAG. `passed_over` counts
    the events up to that id as consumed as well: none of them is of an asset the DAG waits for.
    """

    dag_id: str
    passed_over: int = 0


class HoldWatchers(Asked, frozen=True, tag="hold_watchers"):
    """Take watchers of assets (their digests) for a process, or renew that; those another process has are refused.

    A lease of 0 seconds gives them up. `dead` are holders known to be dead: their leases do not count.
    """

    watchers: tuple[str, ...]
    holder: ProcessRef
    lease: float
    dead: tuple[ProcessRef, ...] = ()


class HeldWatchers(msgspec.Struct, frozen=True, tag="held_watchers"):
    """Those of the watchers asked for that the process has now, and who has the others."""

    held: tuple[str, ...]
    others: tuple[ProcessRef, ...]
