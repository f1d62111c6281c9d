"""The only way from a route to the backend: rights first, then commits in batches and everything else in threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from .. import wire
from ..backends import Backend
from ..errors import BackendError, ConfigError, Conflict, StaleAttempt
from ..requests import Commit, Once, Part
from ..store import Store
from . import rights
from .checking import check_call_id, checked
from .identity import Who
from .masking import visible, visible_error

__all__ = ["Gate"]

#: A batch is at most so many commits, or so many bytes of values.
MOST_COMMITS, MOST_BYTES = 64, 1024 * 1024
#: Threads that read and make other requests; reads do not wait behind the writing of commits.
THREADS = 8


class Gate:
    """Answers requests for whoever asks, as far as they may; belongs to one event loop.

    While one batch of commits is on its way to disk the next one gathers: no timer, and alone nobody waits.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.backend = store, store.backend
        self.secret_keys = store.config.state_store.secret_keys
        self._waiting: deque[tuple[Commit, asyncio.Future[Any]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(THREADS, "outlast-gate")
        self._writer = ThreadPoolExecutor(1, "outlast-writer")
        self.batches = self.commits = self.fenced = 0
        self.write_problem: tuple[int, str] | None = None  # when the last write failed, and why
        self.on_commit: Callable[[], None] = lambda: None

    async def ask(self, request: Any, who: Who, call_id: str | None = None, *, reveal: bool = False) -> Any:
        """Answer a request as far as `who` may make it and see its reply; raises OutlastErrors.

        Under the same call id of the same asker, a request is carried out once. `reveal` asks for secret values.
        """
        permitted = rights.allowed(request, who, self.secret_keys)
        is_write = type(permitted) in wire.WRITES
        if not is_write:
            checked(permitted)
        own_id = None if call_id is None else f"{_owner(who)}:{check_call_id(call_id)}"
        try:
            if type(permitted) is Commit:
                reply = await self._commit(permitted, own_id)
            else:
                reply = await self._in_thread(self.backend.send, self._once(permitted, own_id))
                if is_write:
                    self.on_commit()
        except StaleAttempt:
            self.fenced += 1
            raise
        except Conflict as error:
            raise visible_error(error, who, self.secret_keys, reveal) from error
        except (BackendError, ConfigError) as error:
            if is_write:
                self.write_problem = self.store.clock(), error.message
            raise
        if is_write:
            self.write_problem = None
        return visible(reply, who, self.secret_keys, reveal)

    def backend_for(self, who: Who, *, reveal: bool = False) -> Backend:
        """Return a backend through which the library's own verbs ask in the name of `who`."""
        return _AskedFor(self, who, reveal)

    async def close(self) -> None:
        """Let what is being written end, and give the threads back; the store stays open."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        for threads in (self._threads, self._writer):
            threads.shutdown(wait=True, cancel_futures=True)

    def _once(self, request: Any, call_id: str | None) -> Any:
        if call_id is None or type(request) not in wire.WRITES or not self.backend.keeps_replies:
            return request
        return Once(call_id, request)

    async def _in_thread(self, call: Callable[[Any], Any], argument: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, argument)

    # --- group commit ------------------------------------------------------------------------------------

    async def _commit(self, commit: Commit, call_id: str | None) -> Any:
        if call_id is not None or commit.commit_id is not None:
            commit = msgspec.structs.replace(commit, commit_id=call_id)
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((commit, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await answer

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                for (_, answer), outcome in zip(batch, await self._written(batch), strict=True):
                    _settle(answer, outcome)
                self.on_commit()
        finally:
            self._writing = None

    def _take(self) -> list[tuple[Commit, asyncio.Future[Any]]]:
        batch, size = [self._waiting.popleft()], 0
        size = _bytes(batch[0][0])
        while self._waiting and len(batch) < MOST_COMMITS:
            size += _bytes(self._waiting[0][0])
            if size > MOST_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _written(self, batch: list[tuple[Commit, asyncio.Future[Any]]]) -> list[Any]:
        self.batches, self.commits = self.batches + 1, self.commits + len(batch)
        commits = [commit for commit, _ in batch]
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._outcomes, commits)

    def _outcomes(self, commits: list[Commit]) -> list[Any]:
        """Return a reply or an error for each commit; one that breaks the batch does not fail the others."""
        if len(commits) == 1:
            return [_outcome(self.backend.send, commits[0])]
        try:
            return self.backend.send_batch(commits)
        except Exception:
            return [_outcome(self.backend.send, commit) for commit in commits]


def _outcome(call: Callable[[Any], Any], request: Any) -> Any:
    try:
        return call(request)
    except Exception as error:
        return error


def _settle(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():  # whoever asked has gone
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _bytes(commit: Commit) -> int:
    """Return about how much a commit writes."""
    return sum(_part_bytes(part) for part in commit.parts)


def _part_bytes(part: Part) -> int:
    return sum(len(getattr(operation, "text", "")) + 64 for operation in part.operations)


def _owner(who: Who) -> str:
    """Return what call ids of an asker begin with, so that nobody gets another's receipt."""
    if who.fence is not None:
        return f"attempt {who.fence.scope_id}.{who.fence.attempt}"
    return f"token {who.token_id}" if who.token_id is not None else f"{who.role} {who.name}"


class _AskedFor(Backend):
    """Passes on what the library's awaiting verbs ask."""

    def __init__(self, gate: Gate, who: Who, reveal: bool) -> None:
        self.gate, self.who, self.reveal = gate, who, reveal

    def send(self, request: Any) -> Any:
        raise TypeError("a route awaits: use the verb's awaiting twin (aget, aset, …)")

    async def asend(self, request: Any) -> Any:
        return await self.gate.ask(request, self.who, reveal=self.reveal)

    def close(self) -> None:
        pass
