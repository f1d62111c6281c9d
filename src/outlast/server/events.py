"""`GET /api/outlast/v1/events`: what changes in the store, as server-sent events, from where a client left off.

A stream first reads for itself what has happened since its position, then joins the one reader of this process. What
it has sent so, or as the present state after a `reset`, is not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..errors import BackendError, InvalidValue, OutlastError
from ..requests import Feed, FeedPage, Find, FindPage, FoundRow, Happened
from ..values import check_prefix
from . import rights
from .bodies import in_thread, size
from .checking import checked
from .event_views import EntryEvent, Seen, event, id_of
from .feed_reader import MOST_BYTES, Batch, FeedReader, Inbox, Order, length, order_of, present
from .identity import Who, identify
from .masking import may_reveal
from .operations import Call, Parameter
from .outlast_state import OPERATIONS, REFUSALS, REVEAL
from .turns import asker_of, turns_of

__all__ = ["RETRY", "Stream"]

#: Milliseconds after which a client whose stream has ended connects again.
RETRY = 2000
#: Streams one process has open at most, and how many of them may be reading the present state, one of each asker.
MOST_STREAMS, MOST_RESETS = 4096, 8
#: Seconds for which a client may leave the present state lying in all, while others wait; what it takes in a second.
PATIENCE, SLOWEST = 5.0, 256 * 1024
#: Bytes given to a connection at once.
PIECE = 64 * 1024

_EVENT_STREAM = "text/event-stream"
_ALIVE = b": alive\n\n"


# --- One stream ------------------------------------------------------------------------------------------------


class Stream(Response):
    """The answer that goes on until its client has gone, its token has ended, or the server stops."""

    media_type = _EVENT_STREAM

    def __init__(self, call: Call, view: Seen, after: str | None) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.call, self.view, self.after = call, view, after
        self.reader: FeedReader = call.request.app.state.feed_reader
        self.order: Order | None = None
        self.seen: dict[int, list[tuple[str, int]]] = {}
        self.settled: Order | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = self.call.request
        credential = request.headers.get("authorization"), request.headers.get("cookie")
        self.send = send
        self.inbox = Inbox(self.view, lambda: identify(request), credential, lambda: _cut(receive), asker_of(self.call))
        self.reader.enter(self.inbox)
        leaving = asyncio.create_task(_gone(receive, self.inbox))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                await self._write(b"retry: %d\n\n" % RETRY)
                with suppress(OutlastError):  # the client comes back to where it was, and is told why then
                    await self._go_on()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (OSError, RuntimeError):  # what a transport says that was closed while it was written to
            if not self.inbox.ended:
                raise
        finally:
            self.reader.leave(self.inbox)
            leaving.cancel()

    async def _go_on(self) -> None:
        position = await self._begin()
        while not self.inbox.ended:
            batch = await self.inbox.take()
            if batch is not None:
                await self._write(self._remaining(batch))
                if self.order is None or batch.order > self.order:
                    position = self._reached(batch.position, batch.order)
            elif self.inbox.stale:
                position = await self._catch_up(position)

    async def _write(self, text: bytes) -> None:
        self.inbox.sending = True
        for start in range(0, len(text), PIECE):
            if self.inbox.ended:
                break
            await self.send({"type": "http.response.body", "body": text[start : start + PIECE], "more_body": True})
        self.inbox.sending = False

    # --- from the reader of this process -------------------------------------------------------------------

    def _remaining(self, batch: Batch) -> bytes:
        """Return the text of what this stream has not sent yet."""
        ahead = self.order is not None and batch.order < self.order
        if not batch.rows:
            return _ALIVE if ahead else b"id: %s\n%s" % (id_of(batch.position), _ALIVE)
        if not self.seen and (self.order is None or batch.first > self.order):
            return batch.text
        return self.view.text(self._new(batch.rows), {})

    def _new(self, rows: Iterable[Happened]) -> list[Happened]:
        return [
            row
            for row in rows
            if (self.order is None or order_of(row.position) > self.order) and not self._was_present(row)
        ]

    # --- from the store itself -----------------------------------------------------------------------------

    async def _begin(self) -> str:
        here = await self.reader.join(self.inbox)
        if self.after in (None, here):
            self.order = order_of(here)
            if self.after is None:
                await self._write(event("position", {"position": id_of(here).decode()}, here))
            return here
        self.reader.part(self.inbox)
        assert self.after is not None
        return await self._catch_up(self.after)

    async def _catch_up(self, position: str) -> str:
        """Send what has happened after a position, and join the reader; return the position reached."""
        joined = False
        while not self.inbox.ended:
            page: FeedPage = await self.call.ask(Feed(position, 256), reveal=True)
            if page.reset:
                position, joined = await self._reset(page.position), False
                continue
            if sum(map(length, page.rows)) > MOST_BYTES:
                position, joined = await self._catch_up_in_turn(position), False
                continue
            await self._write(await self._told(page, self.view.text, {}))
            position = self._reached(page.position, order_of(page.position))
            if page.more:
                continue
            if joined:
                break
            await self.reader.join(self.inbox)  # what comes while this reads once more waits in the inbox
            joined = True
        return position

    async def _catch_up_in_turn(self, position: str) -> str:
        """Send one page that is large, so that only few are in memory, and none for long."""
        self.reader.part(self.inbox)
        async with turns_of(self.call, "reset", MOST_RESETS).turn(asker_of(self.call)):
            page: FeedPage = await self.call.ask(Feed(position, 256), reveal=True)
            if page.reset:  # once more: whoever asks next is told
                return position
            await self._offer(await self._told(page, self.view.text, {}), PATIENCE)
        return self._reached(page.position, order_of(page.position))

    async def _told(self, page: FeedPage, as_text: Callable[..., bytes], *known: Any) -> bytes:
        """Return the text of what is to be told of a page."""
        rows = [row for row in page.rows if self.view.sees(row) and not self._was_present(row)]
        now_seen = present(rows, self.call.now())
        return await in_thread(sum(map(length, now_seen)), as_text, now_seen, *known)

    def _reached(self, position: str, order: Order) -> str:
        """Note how far the stream has got: past what was part of the present state, that need not be known any more."""
        self.order = order
        if self.settled is not None and order >= self.settled:
            self.seen, self.settled = {}, None
        return position

    async def _reset(self, position: str) -> str:
        """Send the present state, with what has changed meanwhile; return the position it is the state of."""
        self.reader.part(self.inbox)
        self.order, self.seen, self.settled = None, {}, None
        async with turns_of(self.call, "reset", MOST_RESETS).turn(asker_of(self.call)):
            patience = await self._offer(event("reset", {}), PATIENCE)
            async for page in self._present():
                patience = await self._offer(page, patience)
            position, patience = await self._meanwhile(position, patience)
            await self._offer(event("position", {"position": id_of(position).decode()}, position), patience)
        return position

    async def _meanwhile(self, position: str, patience: float) -> tuple[str, float]:
        """Send what has changed since a position and was not present yet, as far as all of it is told by now."""
        newest: FeedPage = await self.call.ask(Feed())
        self.settled, more = order_of(newest.latest or newest.position), True
        while more and self.settled is not None and not self.inbox.ended:
            page: FeedPage = await self.call.ask(Feed(position, 256), reveal=True)
            if page.reset:  # once more: whoever asks next is told
                break
            patience = await self._offer(await self._told(page, self.view.without_positions), patience)
            position, more = self._reached(page.position, order_of(page.position)), page.more
        return position, patience

    async def _offer(self, text: bytes, patience: float) -> float:
        """Write as long as there is patience with the client, else end its stream; return how much is left."""
        loop = asyncio.get_running_loop()
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            began, stalled = loop.time(), loop.call_later(max(patience, 0.0), self.inbox.end)
            await self._write(piece)
            stalled.cancel()
            patience = min(PATIENCE, patience - (loop.time() - began) + len(piece) / SLOWEST)
        return patience

    async def _present(self) -> AsyncIterator[bytes]:
        view = self.view
        for assets in (False, True) if view.entries else ():
            if (view.asset is not None and not assets) or (view.is_of_tasks and assets):
                continue
            after: tuple[int, str] | None = (0, "")
            while after is not None and not self.inbox.ended:
                asked = Find(view.dag, view.run, view.task, assets, after, 256)
                page: FindPage = await self.call.ask(asked, reveal=True)
                rows = [found for found in page.rows if view.sees(_happened(found))]
                self._note(rows)
                yield await in_thread(sum(size(found.row) for found in rows), self._entries, rows)
                after = page.after

    def _entries(self, rows: list[FoundRow]) -> bytes:
        return b"".join([event("entry", self.view.entry(found.scope_id, found.scope, found.row)) for found in rows])

    def _note(self, rows: list[FoundRow]) -> None:
        """Remember how new the present state was that is sent, by scope and the last of its keys that a page had."""
        newest: dict[int, tuple[str, int]] = {}
        for found in rows:
            revision = max(newest.get(found.scope_id, ("", 0))[1], found.row.revision)
            newest[found.scope_id] = (found.row.name, revision)
        for scope_id, noted in newest.items():
            self.seen.setdefault(scope_id, []).append(noted)

    def _was_present(self, happened: Happened) -> bool:
        """Say whether something was part of the present state that was sent."""
        row = happened.row
        if not self.seen or row is None:
            return False
        for last, revision in self.seen.get(happened.scope_id, ()):
            if row.name <= last:
                return row.revision <= revision
        return False


def _happened(found: Any) -> Happened:
    return Happened("", found.scope_id, found.scope, found.row)


async def _gone(receive: Any, inbox: Inbox) -> None:
    """End a stream when its client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    inbox.end()


def _cut(receive: Any) -> None:
    """Close the connection of a client that takes nothing, at once; only uvicorn knows its transport."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


# --- The route -------------------------------------------------------------------------------------------------

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Kind: TypeAlias = Literal["entry", "run"]

_FILTERS = (
    Parameter("dag", Text, "Only state and runs of this DAG.", None),
    Parameter("run", Text, "Only those of runs with this id.", None),
    Parameter("task", Text, "Only state of tasks with this id.", None),
    Parameter("map_index", Annotated[int, msgspec.Meta(ge=-1)], "Only state at this position; -1: not mapped.", None),
    Parameter("asset", Text, "Only state of the asset with this name or URI.", None),
    Parameter("key", str, "Only keys that begin with this.", ""),
    Parameter("kinds", Kind, "Only events of this kind; both may be given.", ("entry", "run"), many=True),
)
_OF_ENTRIES = ("task", "map_index", "asset")
_AFTER = Parameter("after", str, "The `id` of the last event seen; `start` for the present state first.", None)
_LAST = Parameter("Last-Event-ID", str, "As `after`, and before it: what a browser sends by itself.", None, "header")


@OPERATIONS.declare(
    "GET",
    "/events",
    tag="Events",
    parameters=(*_FILTERS, _AFTER, REVEAL, _LAST),
    answers={200: EntryEvent, **REFUSALS},
    gives=_EVENT_STREAM,
)
async def events(call: Call) -> Response:
    """Watch what changes, as server-sent events: `entry`, `run`, `position`, and `reset` before the present state.

    Without a position the stream begins now. Each event's `id` is where to go on from; a filter that a run does not
    have (task, map_index, asset, key) leaves runs out; `kinds=run` leaves entries out.
    """
    query, after = call.query, _after(call.request, call.query["after"])
    rights.allowed(Feed(), call.who)
    checked(Feed(after))
    _refuse_too_many(call)
    if query["asset"] is not None and any(query[name] is not None for name in ("dag", "run", "task", "map_index")):
        raise InvalidValue("`asset` goes with none of `dag`, `run`, `task`, `map_index`: an asset's state is no run's")
    kinds = query["kinds"]
    if "entry" not in kinds and (query["key"] or any(query[name] is not None for name in _OF_ENTRIES)):
        raise InvalidValue("`kinds=run` goes with `dag` and `run` only: a run has no task, position, asset or key")
    unmasked = query["reveal"] and may_reveal(call.who)
    view = Seen(
        _alike(call.who),
        () if unmasked else call.config.state_store.secret_keys,
        query["dag"],
        query["run"],
        query["task"],
        query["map_index"],
        query["asset"],
        check_prefix(query["key"]),
        "run" in kinds,
        "entry" in kinds,
    )
    return Stream(call, view, after)


def _refuse_too_many(call: Call) -> None:
    """Leave to others what one token may not have: more than half of the streams that nobody else has open."""
    streams: set[Inbox] = call.request.app.state.feed_reader.open
    if len(streams) >= MOST_STREAMS:
        raise BackendError(f"this server has {MOST_STREAMS} event streams open, which is all it takes; try again later")
    asker = asker_of(call)
    own = sum(inbox.asker == asker for inbox in streams)
    if own >= (MOST_STREAMS - (len(streams) - own)) // 2:
        raise BackendError(f"{own} event streams are open with this token, which is its share here; close one, or wait")


def _alike(who: Who) -> Who:
    """Return an asker without what does not matter to what is seen, so that equal views are equal."""
    return Who(who.role, "", who.dags)


def _after(request: Request, asked: str | None) -> str | None:
    sent = request.headers.get("last-event-id", asked)
    return unquote(sent) if sent else None
