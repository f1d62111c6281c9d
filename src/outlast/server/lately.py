"""What the store has said lately: it is asked once by all who want to know the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..backends import Backend

__all__ = ["Lately"]

_NEVER = float("-inf")


class Lately:
    """Answers requests as the store did within so many seconds, or asks it; remembers at most so many answers."""

    def __init__(self, backend: Backend, ticks: Callable[[], float], seconds: float, most: int) -> None:
        self.backend, self.ticks, self.seconds, self.most = backend, ticks, seconds, most
        self._said: dict[Any, tuple[float, Any]] = {}
        self._asking: dict[Any, tuple[float, asyncio.Future[Any]]] = {}

    async def answer(self, request: Any) -> Any:
        """Return what the store says; what was asked longer ago than that does not count, answered or not."""
        (at, reply), now = self._said.get(request, (_NEVER, None)), self.ticks()
        if now - at < self.seconds:
            return reply
        at, asking = self._asking.get(request, (_NEVER, None))
        if asking is None or now - at >= self.seconds:
            asking = asyncio.ensure_future(self.backend.asend(request))
            asking.add_done_callback(lambda asked: self._take(request, now, asked))
            self._asking[request] = now, asking
        return await asyncio.shield(asking)

    def note(self, request: Any, asked_at: float, reply: Any) -> Any:
        """Remember an answer, and return it."""
        if len(self._said) >= self.most:
            self._said.clear()
        self._said[request] = asked_at, reply
        return reply

    def last(self, request: Any) -> Any:
        """Return what the store said last, however long ago; None if it was never asked."""
        return self._said.get(request, (_NEVER, None))[1]

    def forget(self, request: Any) -> None:
        """Have the store asked anew: it was changed."""
        self._said.pop(request, None)
        self._asking.pop(request, None)

    def asked_at(self, *requests: Any) -> float:
        """Return when the oldest of what is known of some requests was asked."""
        return min(self._said.get(request, (_NEVER, None))[0] for request in requests)

    def _take(self, request: Any, asked_at: float, asked: asyncio.Future[Any]) -> None:
        is_newest = self._asking.get(request, (_NEVER, None))[1] is asked
        if is_newest:
            del self._asking[request]
        if not asked.cancelled() and asked.exception() is None and is_newest:
            self.note(request, asked_at, asked.result())
