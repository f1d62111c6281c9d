"""Reads the feed once for all open streams of this process, and hands each what it asked to see.

Streams that see the same share one piece of text. A stream that does not keep up is dropped: what it waits for is
bounded, and it comes back with the position it has got to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from .. import rules
from ..backends import Backend
from ..errors import BackendError, OutlastError
from ..requests import Feed, FeedPage, Happened
from ..values import Clock, TaskScope
from .execution import LONG

__all__ = ["Batch", "FeedReader", "Inbox", "Order", "Sorted", "View", "length", "order_of", "present"]

logger = logging.getLogger("outlast.server")

#: Seconds between two readings while streams are open and nobody on this server writes.
POLL = 0.2
#: Commits read at once.
PAGE = 256
#: Seconds between two signs of life, and between two looks at whether streams' tokens are still good.
HEARTBEAT, CHECK_EVERY = 15.0, 2.0
#: Bytes, and pieces, that may wait for one stream.
MOST_BYTES, MOST_PIECES = 1024 * 1024, 1024
#: Streams served before others get their turn: the seconds of a rest, and of all rests while callers still wait. What
#: serves a caller takes this thread, another one, and the caller's own process; on a small machine all want one core.
SLICE, REST, TURN = 5, 0.001, 0.005
#: Seconds of rests for all that is handed out at a time: who listens waits no longer for callers than that.
RESTS = 0.4
#: The pause after a reading that each stream it was served to is worth, and the longest.
PAUSE, LONGEST_PAUSE = 0.00025, 0.1

Order: TypeAlias = tuple[tuple[int, ...], bool, str]


def order_of(position: str) -> Order:
    """Return what positions of one epoch are sorted by; one without a key's name is past all of its commit."""
    _, number, *name = position.split(":", 2)
    return tuple(map(int, number.split("."))), not name, name[0] if name else ""


def present(rows: Iterable[Happened], now: int) -> list[Happened]:
    """Return rows as they are to be seen now: what has expired is gone, as at every door."""
    return [_gone(row) if row.row is not None and rules.expired(row.row, now) else row for row in rows]


def length(happened: Happened) -> int:
    """Return about how many bytes it takes to tell what happened."""
    return 0 if happened.row is None else len(happened.row.text or "")


def _gone(happened: Happened) -> Happened:
    assert happened.row is not None
    return msgspec.structs.replace(happened, row=msgspec.structs.replace(happened.row, text=None))


class View(Protocol):
    """What some streams see of the feed; equal ones share their text."""

    def chosen(self, page: Sorted) -> list[Happened]:
        """Return what is to be seen of a page, in its order."""

    def text(self, rows: Iterable[Happened], known: dict[Any, bytes]) -> bytes:
        """Return it as the text of events; `known` keeps what other views have made of the same rows."""


class Batch(msgspec.Struct, frozen=True):
    """What one reading brought for a view (nothing: a sign of life), and the position it was read up to.

    `first` and `order` are what its beginning and its position are sorted by, worked out once for all streams.
    """

    rows: Sequence[Happened]
    text: bytes
    position: str
    first: Order
    order: Order

    @staticmethod
    def of(rows: Sequence[Happened], text: bytes, position: str) -> Batch:
        """Return a batch of rows in their order."""
        order = order_of(position)
        return Batch(rows, text, position, order_of(rows[0].position) if rows else order, order)


class Sorted:
    """The rows of a page by where they belong, so that a stream of one run does not look at all the others."""

    def __init__(self, rows: Sequence[Happened]) -> None:
        self.rows = rows
        self.by_dag: dict[str | None, list[Happened]] = {}
        self.by_run: dict[tuple[str, str], list[Happened]] = {}
        for row in rows:
            place = _place(row)
            self.by_dag.setdefault(None if place is None else place[0], []).append(row)
            if place is not None:
                self.by_run.setdefault(place, []).append(row)


def _place(row: Happened) -> tuple[str, str] | None:
    if row.run is not None:
        return row.run
    return (row.scope.dag_id, row.scope.run_id) if isinstance(row.scope, TaskScope) else None


class Inbox:
    """What waits to be sent to one stream."""

    def __init__(
        self, view: View, check: Callable[[], Any], credential: Any, drop: Callable[[], None], asker: Hashable = None
    ) -> None:
        self.view, self.check, self.credential, self._drop = view, check, credential, drop
        self.asker = asker
        self.waiting: deque[Batch] = deque()
        self.bytes = 0
        self.ended = self.stale = self.sending = False
        self.woken = asyncio.Event()

    def put(self, batch: Batch) -> None:
        """Add a batch, unless too much waits already: then the stream is dropped."""
        if self.waiting and (self.bytes + len(batch.text) > MOST_BYTES or len(self.waiting) >= MOST_PIECES):
            logger.warning("an event stream was dropped: its client does not keep up")
            self.end()
            return
        self.waiting.append(batch)
        self.bytes += len(batch.text)
        self.woken.set()

    async def take(self) -> Batch | None:
        """Return the next batch, None when the stream has ended or has to begin anew."""
        while not (self.waiting or self.ended or self.stale):
            self.woken.clear()
            await self.woken.wait()
        if self.ended or self.stale:
            return None
        batch = self.waiting.popleft()
        self.bytes -= len(batch.text)
        return batch

    def end(self) -> None:
        """End the stream; one whose client takes nothing cannot be told, and loses its connection."""
        self.ended = True
        self._forget()
        if self.sending:
            self._drop()

    def begin_anew(self) -> None:
        """Have the stream find out for itself what has happened since it last knew."""
        self.stale = True
        self._forget()

    def _forget(self) -> None:
        self.waiting.clear()
        self.bytes = 0
        self.woken.set()


class FeedReader:
    """The one reader of the feed in a server process; belongs to one event loop, and works while streams are open."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.backend, self.clock = backend, clock
        self.open: set[Inbox] = set()
        self.closed = False
        self.is_busy: Callable[[], bool] = lambda: False  # with callers who wait
        self._views: dict[View, set[Inbox]] = {}
        self._position: str | None = None
        self._given = ""  # every stream that has joined has been given what is up to here
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._joining = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "outlast-feed")

    # --- streams -------------------------------------------------------------------------------------------

    def enter(self, inbox: Inbox) -> None:
        """Count a stream as open: it ends when its token does, and at the end of the server."""
        if self.closed:
            raise BackendError("this server is being stopped; connect again in a moment")
        self.open.add(inbox)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def leave(self, inbox: Inbox) -> None:
        """Count a stream as open no more."""
        self.part(inbox)
        self.open.discard(inbox)

    async def join(self, inbox: Inbox) -> str:
        """Have a stream get what happens from now on; return the position "now" is."""
        async with self._joining:
            if self._reading is None:
                self._position = self._given = (await self._ask(Feed())).position
                self._reading = asyncio.create_task(self._read())
            assert self._position is not None
            inbox.stale = False
            self._views.setdefault(inbox.view, set()).add(inbox)
            return self._position

    def part(self, inbox: Inbox) -> None:
        """Have a stream get nothing for the time being."""
        inboxes = self._views.get(inbox.view)
        if inboxes is not None:
            inboxes.discard(inbox)
            if not inboxes:
                del self._views[inbox.view]

    def wake(self) -> None:
        """Read at once: something was written through this server."""
        if self._views:
            self._news.set()

    async def close(self) -> None:
        """End every stream, and open none any more."""
        self.closed = True
        for inbox in list(self.open):
            inbox.end()
        tasks = [task for task in (self._reading, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)

    # --- reading -------------------------------------------------------------------------------------------

    async def _ask(self, request: Feed) -> FeedPage:
        loop = asyncio.get_running_loop()
        page: FeedPage = await loop.run_in_executor(self._thread, self.backend.send, request)
        return page

    async def _read(self) -> None:
        try:
            while self._views:
                self._news.clear()
                pause, more = await self._read_page()
                await asyncio.sleep(pause)
                if not more:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), POLL)
        except Exception:
            logger.exception("event streams end: what happened could not be handed out")
            for inbox in list(self.open):
                inbox.end()
        finally:
            self._reading = None

    async def _read_page(self) -> tuple[float, bool]:
        """Read a page and hand it out; return for how long to let others work, and whether there is more."""
        try:
            page = await self._ask(Feed(self._position, PAGE))
        except OutlastError as error:
            logger.warning("the feed could not be read; trying again: %s", error.message)
            return 1.0, False
        except Exception:
            logger.exception("the feed could not be read; trying again")
            return 1.0, False
        inboxes = [(view, list(inboxes)) for view, inboxes in self._views.items()]
        self._position = page.position  # who joins from here on is past this page
        served = await self._hand_out(page, inboxes)
        self._given = page.position
        return 0.005 if page.more else min(LONGEST_PAUSE, 0.005 + served * PAUSE), page.more

    async def _hand_out(self, page: FeedPage, views: list[tuple[View, list[Inbox]]]) -> int:
        if page.reset:
            for _, inboxes in views:
                for inbox in inboxes:
                    self.part(inbox)
                    inbox.begin_anew()
            return 0
        served, left, rows, known = 0, RESTS, Sorted(present(page.rows, self.clock())), dict[Any, bytes]()
        is_large = sum(map(length, page.rows)) > LONG
        for looked, (view, inboxes) in enumerate(views if page.rows else (), 1):
            if looked % SLICE == 0:
                left -= await self._give_way(left)
            chosen = view.chosen(rows)
            if not chosen:
                continue
            text = await asyncio.to_thread(view.text, chosen, known) if is_large else view.text(chosen, known)
            batch = Batch.of(chosen, text, page.position)
            for inbox in inboxes:
                served += 1
                if not inbox.stale:
                    inbox.put(batch)
                if served % SLICE == 0:
                    left -= await self._give_way(left)
        return served

    async def _give_way(self, left: float) -> float:
        """Let streams send what they were given, and callers who wait be answered, unless there is no end of them.

        Returns how many seconds of rest it took, of the `left` ones.

        The rest is a real one: who serves a thousand streams in one go has a core to itself for 40 ms, and a thread or
        a process that is woken on that core meanwhile waits for as long as the system lets it have the core.
        """
        began = time.monotonic()
        await asyncio.sleep(REST if left > 0 else 0)
        while self.is_busy() and time.monotonic() - began < min(TURN, left):
            await asyncio.sleep(REST)
        return time.monotonic() - began

    # --- what is to be done now and then -------------------------------------------------------------------

    async def _watch(self) -> None:
        """Send signs of life, and end streams whose token is not good any more."""
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + HEARTBEAT
        try:
            while self.open:
                await asyncio.sleep(CHECK_EVERY)
                await self._check()
                if loop.time() >= beat_at:
                    beat_at = loop.time() + HEARTBEAT
                    await self._beat()
        finally:
            self._watching = None

    async def _beat(self) -> None:
        joined = [inbox for inboxes in self._views.values() for inbox in inboxes]
        for number, inbox in enumerate(joined, 1):
            if not inbox.waiting:
                inbox.put(Batch.of((), b"", self._given))
            if number % SLICE == 0:
                await self._give_way(TURN)

    async def _check(self) -> None:
        by_credential: dict[Any, list[Inbox]] = {}
        for inbox in self.open:
            by_credential.setdefault(inbox.credential, []).append(inbox)
        for inboxes in by_credential.values():
            try:
                await inboxes[0].check()
            except BackendError:
                continue  # whether it is still good is not known
            except OutlastError:
                for inbox in inboxes:
                    inbox.end()
            except Exception:
                logger.exception("a stream's token could not be checked")
