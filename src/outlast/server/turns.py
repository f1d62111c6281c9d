"""Whose turn it is to have what costs a server much: few at a time, and whoever asks for much waits behind others.

So streams are sent the present state, and searches look at values.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from .operations import Call

__all__ = ["Turns", "asker_of", "turns_of"]


def turns_of(call: Call, what: str, most: int) -> Turns:
    """Return what gives out the turns at something in this server."""
    state = call.request.app.state
    if not hasattr(state, f"{what}_turns"):
        setattr(state, f"{what}_turns", Turns(most))
    turns: Turns = getattr(state, f"{what}_turns")
    return turns


def asker_of(call: Call) -> Hashable:
    """Return what all that one token asks for has in common."""
    return call.who.role, call.who.name, call.who.token_id


class Turns:
    """Gives out turns, `most` at a time and one to each asker; among those who wait, round and round."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._busy: set[Hashable] = set()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, who: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and have it as long as the block lasts."""
        await self._wait(who)
        try:
            yield
        finally:
            self._busy.discard(who)
            self._call_next()

    async def _wait(self, who: Hashable) -> None:
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(called)
        self._call_next()
        try:
            await called
        except asyncio.CancelledError:
            self._give_up(who, called)
            raise

    def _give_up(self, who: Hashable, called: asyncio.Future[None]) -> None:
        if called.done() and not called.cancelled():  # it was called, and has gone meanwhile
            self._busy.discard(who)
        elif who in self._waiting:
            self._waiting[who].remove(called)
        self._call_next()

    def _call_next(self) -> None:
        for who in list(self._waiting):
            if len(self._busy) >= self.most:
                return
            if who not in self._busy:
                self._call(who)

    def _call(self, who: Hashable) -> None:
        waiting = self._waiting.pop(who)
        while waiting:
            called = waiting.popleft()
            if not called.done():
                self._busy.add(who)
                called.set_result(None)
                break
        if waiting:
            self._waiting[who] = waiting  # behind the others
