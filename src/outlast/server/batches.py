"""Answers what is asked in batches: while one is on its way the next one gathers, so alone nobody waits for others."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

__all__ = ["Batches"]

logger = logging.getLogger("outlast.server")

#: Seconds after which a batch of reads is not waited for: what has gathered meanwhile goes its own way.
PATIENCE = 0.05

_Asked: TypeAlias = "tuple[Any, asyncio.Future[Any]]"


class Batches:
    """Has a thread answer requests, several at once; belongs to one event loop.

    `answer` returns a reply or an error for each, in order. A batch has at most `most` requests and, where `size` says
    the bytes of each, so many bytes (one request may have more). With several threads, a batch that takes long does
    not keep the next one waiting; with one thread they come one after the other. `done` is told what each has come to.
    """

    def __init__(
        self,
        threads: int,
        name: str,
        answer: Callable[[list[Any]], list[Any]],
        most: int,
        size: Callable[[Any], int] | None = None,
        most_bytes: int = 0,
        done: Callable[[list[Any], list[Any]], None] = lambda requests, outcomes: None,
    ) -> None:
        self._threads, self._lanes = ThreadPoolExecutor(threads, name), threads
        self._answer, self._done = answer, done
        self._most, self._size, self._most_bytes = most, size, most_bytes
        self._waiting: deque[_Asked] = deque()
        self._working: set[asyncio.Task[None]] = set()
        self._begun_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether anybody waits for an answer."""
        return bool(self._working)

    async def ask(self, request: Any) -> Any:
        """Return the reply to a request; raises the error it is answered by."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if not self._working:
            self._begin()
        elif len(self._waiting) == 1:
            self._look_later()
        return await answer

    async def close(self) -> None:
        """Let what is waiting be answered, and give the threads back."""
        while self._working:
            await asyncio.wait(self._working)
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._begun_at = loop.time()
        self._working.add(loop.create_task(self._work()))

    def _look_later(self) -> None:
        if self._lanes > 1:
            asyncio.get_running_loop().call_later(PATIENCE, self._look)

    def _look(self) -> None:
        """Wait no longer for what has been on its way for so long that nothing was begun since."""
        if not self._waiting or len(self._working) == self._lanes:
            return
        if asyncio.get_running_loop().time() - self._begun_at >= PATIENCE:
            self._begin()
        else:
            self._look_later()

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                requests = [request for request, _ in batch]
                outcomes = await self._outcomes(requests)
                for (_, answer), outcome in zip(batch, outcomes, strict=True):
                    _settle(answer, outcome)
                try:
                    self._done(requests, outcomes)
                except Exception:  # those who wait are to be answered all the same
                    logger.exception("what a batch has come to was not taken note of")
        finally:  # at once: whoever asks from here on has nobody to wait for
            self._working.discard(asyncio.current_task())

    async def _outcomes(self, requests: list[Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        self._begun_at = loop.time()
        try:
            return await loop.run_in_executor(self._threads, self._answer, requests)
        except Exception as error:
            return [error] * len(requests)

    def _take(self) -> list[_Asked]:
        waiting, size = self._waiting, self._size
        if size is None:
            return [waiting.popleft() for _ in range(min(len(waiting), self._most))]
        batch = [waiting.popleft()]
        total = size(batch[0][0])
        while waiting and len(batch) < self._most:
            total += size(waiting[0][0])
            if total > self._most_bytes:
                break
            batch.append(waiting.popleft())
        return batch


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():  # whoever asked has gone
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
