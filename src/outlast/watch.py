"""Watch one scope: what is there now, then every key's newest state as it changes.

Converges (contract 4.7): from a cursor on, at least the newest state of every key changed after it,
in order, never older after newer, nothing twice; or one `Reset` with everything when it is too old.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from . import codec
from .plans import Plan, arun, run
from .requests import Changed, Changes, Pause, Row
from .values import Change, Cursor, Reset

if TYPE_CHECKING:
    from .state import State

__all__ = ["Watch"]


class Watch:
    """Iterate with `for` or `async for`; `cursor` is where the iteration stands and may be kept.

    Without a cursor the first event is a `Reset` with the present entries. `timeout` ends the
    iteration after so many seconds without a change; `poll` is how often the store is asked, in seconds.
    """

    def __init__(self, state: State, cursor: Cursor | str | None, timeout: float | None, poll: float) -> None:
        self.cursor = Cursor.parse(cursor) if isinstance(cursor, str) else cursor
        self.state, self.timeout, self.poll = state, timeout, poll

    def __iter__(self) -> Iterator[Change | Reset]:
        while (events := run(self._next(), self.state.backend)) is not None:
            for event in events:
                self.cursor = event.cursor
                yield event

    async def __aiter__(self) -> AsyncIterator[Change | Reset]:
        while (events := await arun(self._next(), self.state.backend)) is not None:
            for event in events:
                self.cursor = event.cursor
                yield event

    def _next(self) -> Plan[list[Change | Reset] | None]:
        """Wait for changes; None once `timeout` seconds have passed without any."""
        began = time.monotonic()
        while True:
            reply: Changed = yield Changes(self.state.scope, self.cursor, self.state.fence)
            if reply.reset:
                entries = tuple(codec.entry_of(row) for row in reply.rows)
                return [Reset(entries, reply.cursor)]
            if reply.rows:
                return _events(reply)
            self.cursor = reply.cursor
            if self.timeout is not None and time.monotonic() - began >= self.timeout:
                return None
            yield Pause(self.poll)


def _events(reply: Changed) -> list[Change | Reset]:
    """Make rows events, each with the cursor from which the ones after it follow."""
    rows, scope_id = reply.rows, reply.cursor.scope_id
    events: list[Change | Reset] = []
    for place, row in enumerate(rows):
        ends = place + 1 == len(rows) or rows[place + 1].revision != row.revision
        events.append(_event(row, Cursor(scope_id, row.revision, None if ends else row.name)))
    return events


def _event(row: Row, cursor: Cursor) -> Change:
    return Change(row.name, None if row.text is None else codec.entry_of(row), row.revision, cursor)
