"""What one client sees of the feed: its filter, its token's rights, and events as text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from ..requests import Happened, Row
from ..values import Scope, TaskScope, moment
from .bodies import shown
from .entries import WriterShape, etag, writer_shape
from .feed_reader import Sorted
from .identity import Who
from .masking import is_secret
from .outlast_shapes import ScopeShape
from .outlast_state import scope_shape

__all__ = ["EntryEvent", "RunEvent", "Seen", "event", "id_of"]


class EntryEvent(msgspec.Struct):
    """An entry was written, or (`deleted`) is there no more; of a masked one the value is null."""

    scope: ScopeShape
    key: str
    value: Any
    masked: bool
    deleted: bool
    revision: int
    etag: str
    updated_at: datetime
    expires_at: datetime | None
    writer: WriterShape


class RunEvent(msgspec.Struct):
    """A run, or one of its task instances, is not as it was (or is no more)."""

    dag_id: str
    run_id: str


class Seen(msgspec.Struct, frozen=True):
    """What one client sees: its filter, and what its token lets it see. Equal ones share the text of their events."""

    who: Who
    secret_keys: tuple[str, ...]
    dag: str | None = None
    run: str | None = None
    task: str | None = None
    map_index: int | None = None
    asset: str | None = None
    key: str = ""
    runs: bool = True
    entries: bool = True

    @property
    def is_of_tasks(self) -> bool:
        """Whether something is asked for that only a task's state has."""
        return any(given is not None for given in (self.dag, self.run, self.task, self.map_index))

    def chosen(self, page: Sorted) -> list[Happened]:
        """Return what is to be seen of a page, in its order."""
        rows = page.rows
        if self.asset is not None:
            rows = page.by_dag.get(None, ())
        elif self.dag is not None and self.run is not None:
            rows = page.by_run.get((self.dag, self.run), ())
        elif self.dag is not None:
            rows = page.by_dag.get(self.dag, ())
        return [row for row in rows if self.sees(row)]

    def sees(self, happened: Happened) -> bool:
        """Say whether something that happened is to be seen."""
        if happened.run is not None:
            narrower = self.task is not None or self.map_index is not None or self.asset is not None or self.key
            return self.runs and not narrower and self._is_run(*happened.run)
        scope, row = happened.scope, happened.row
        if not self.entries or scope is None or row is None or not row.name.startswith(self.key):
            return False
        if isinstance(scope, TaskScope):
            return self.asset is None and self._is_task(scope)
        return not self.is_of_tasks and self.asset in (None, scope.name, scope.uri)

    def _is_task(self, scope: TaskScope) -> bool:
        return (
            self.task in (None, scope.task_id)
            and self.map_index in (None, scope.map_index)
            and self._is_run(scope.dag_id, scope.run_id)
        )

    def _is_run(self, dag_id: str, run_id: str) -> bool:
        return self.dag in (None, dag_id) and self.run in (None, run_id) and self.who.may_see(dag_id)

    # --- as text -------------------------------------------------------------------------------------------

    def text(self, rows: Iterable[Happened], known: dict[Any, bytes]) -> bytes:
        """Return rows as the text of events; `known` keeps what other views have made of the same rows."""
        return b"".join([self._text(row, known) for row in rows])

    def without_positions(self, rows: Iterable[Happened]) -> bytes:
        """Return rows as the text of events that belong to the present state."""
        return b"".join([event(*self._shape(row)) for row in rows])

    def _text(self, happened: Happened, known: dict[Any, bytes]) -> bytes:
        if happened.run is not None:
            which: tuple[Any, ...] = (happened.position,)
        else:
            assert happened.row is not None
            which = happened.position, self._hides_value(happened.row), self._hides_writer(happened.row)
        text = known.get(which)
        if text is None:
            text = known[which] = event(*self._shape(happened), happened.position)
        return text

    def _hides_value(self, row: Row) -> bool:
        return row.text is not None and is_secret(row.name, self.secret_keys)

    def _hides_writer(self, row: Row) -> bool:
        return isinstance(row.writer.scope, TaskScope) and not self.who.may_see(row.writer.scope.dag_id)

    def _shape(self, happened: Happened) -> tuple[str, EntryEvent | RunEvent]:
        if happened.run is not None:
            return "run", RunEvent(*happened.run)
        assert happened.row is not None
        assert happened.scope is not None
        return "entry", self.entry(happened.scope_id, happened.scope, happened.row)

    def entry(self, scope_id: int, scope: Scope, row: Row) -> EntryEvent:
        """Return a row as a client sees it."""
        hidden = self._hides_value(row)
        writer = row.writer
        if self._hides_writer(row):
            writer = msgspec.structs.replace(writer, scope=None)
        return EntryEvent(
            scope_shape(scope),
            row.name,
            None if hidden or row.text is None else shown(row),
            hidden,
            row.text is None,
            row.revision,
            etag(scope_id, row.revision),
            moment(row.updated_at),
            None if row.expires_at is None else moment(row.expires_at),
            writer_shape(writer),
        )


def event(name: str, content: Any, position: str | None = None) -> bytes:
    """Return the text of one event; what has no position does not move a client on."""
    place = b"" if position is None else b"id: %s\n" % id_of(position)
    return b"event: %s\n%sdata: %s\n\n" % (name.encode(), place, msgspec.json.encode(content))


def id_of(position: str) -> bytes:
    """Return a position as it is sent: a key may have blanks at its ends, which a header would lose."""
    return quote(position, safe=":.").encode()
