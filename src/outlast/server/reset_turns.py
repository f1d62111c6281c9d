"""Whose turn it is to be sent the present state: few at a time, and whoever has many streams waits behind others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

__all__ = ["Turns"]


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
