"""The only way from a route to the backend: rights first, then commits and small reads in batches, the rest alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from .. import rules, wire
from ..backends import Backend
from ..errors import BackendError, ConfigError, Conflict, NotFound, StaleAttempt
from ..log_files import remove_logs
from ..people_requests import MarkTask
from ..requests import Commit, Once, Part, Read, Receipt, inner
from ..run_requests import GetRun, Pruned
from ..store import Store
from . import rights
from .batches import Batches
from .checking import check_call_id, checked
from .identity import Who
from .masking import visible, visible_error
from .traffic import Traffic

__all__ = ["Gate"]

logger = logging.getLogger("outlast.server")

#: A batch is at most so many commits or small reads; of commits, so many bytes of values.
MOST_TOGETHER, MOST_BYTES = 64, 1024 * 1024
#: Names that a small read asks for at most.
FEW_NAMES = 8
#: Threads that read and make other requests; reads do not wait behind the writing of commits.
THREADS = 8


class Gate:
    """Answers requests for whoever asks, as far as they may; belongs to one event loop.

    Commits share what a transaction costs, small reads what a thread and a journey to the database do.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.backend = store, store.backend
        self.secret_keys = store.config.state_store.secret_keys
        self.clear_on_success = store.config.state_store.clear_on_success
        self._threads = ThreadPoolExecutor(THREADS, "outlast-gate")
        self._commits = Batches(1, "outlast-writer", self._outcomes, MOST_TOGETHER, _bytes, MOST_BYTES, self._written)
        self._reads = Batches(THREADS, "outlast-reader", self._outcomes, MOST_TOGETHER)
        self.batches = self.commits = self.fenced = 0
        self.traffic = Traffic()
        self._told_of_skew = False
        self.write_problem: tuple[int, str] | None = None  # when the last write failed, and why
        self.on_commit: Callable[[], None] = lambda: None

    async def ask(self, request: Any, who: Who, call_id: str | None = None, *, reveal: bool = False) -> Any:
        """Answer a request as far as `who` may make it and see its reply; raises OutlastErrors.

        Under the same call id of the same asker, a request is carried out once. `reveal` asks for secret values.
        """
        permitted = rights.allowed(request, who, self.secret_keys)
        if type(permitted) is MarkTask:  # whether a success takes the state away is the server's to say, as over REST
            permitted = msgspec.structs.replace(permitted, clear_state=self.clear_on_success)
        is_write = type(permitted) in wire.WRITES
        if not is_write:
            checked(permitted)
        own_id = None if call_id is None else f"{_owner(who)}:{check_call_id(call_id)}"
        try:
            if type(permitted) is Commit:
                reply = await self._commit(self._by_our_clock(permitted, who), own_id)
            elif _is_small(permitted):
                reply = await self._reads.ask(permitted)
            else:
                reply = await self._in_thread(self._answer, self._once(permitted, own_id))
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

    def is_busy(self) -> bool:
        """Say whether a commit or a small read is being answered: what can wait goes after them."""
        return self._commits.busy or self._reads.busy

    async def close(self) -> None:
        """Let what is being written end, and give the threads back; the store stays open."""
        for batches in (self._commits, self._reads):
            await batches.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _once(self, request: Any, call_id: str | None) -> Any:
        if call_id is None or type(request) not in wire.WRITES or not self.backend.keeps_replies:
            return request
        return Once(call_id, request)

    async def _in_thread(self, call: Callable[[Any], Any], argument: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, argument)

    def _answer(self, request: Any) -> Any:
        reply = self.backend.send(request)
        if type(reply) is Pruned and not getattr(inner(request), "dry_run", False):
            remove_logs(self.store.config, self.store.url, [run for run in reply.runs if not self._is_there(*run)])
        return reply

    def _is_there(self, dag_id: str, run_id: str) -> bool:
        """Say whether there is a run: asked again, the first answer names runs that may have been made anew since."""
        try:
            self.backend.send(GetRun(dag_id, run_id))
        except NotFound:
            return False
        return True

    def _by_our_clock(self, commit: Commit, who: Who) -> Commit:
        """Return a commit whose expiry times are by our clock; now, for what it waits from here on is no skew."""
        if not commit.sent_at:
            return commit
        now = self.store.clock()
        corrected = rules.without_skew(commit, now)
        if corrected is not commit and not self._told_of_skew:
            self._told_of_skew = True
            logger.warning(
                "the clock of the machine of %s is %.1f s away from this server's; when entries expire is corrected",
                who.name,
                (commit.sent_at - now) / 1_000_000,
            )
        return corrected

    # --- in batches --------------------------------------------------------------------------------------

    async def _commit(self, commit: Commit, call_id: str | None) -> Any:
        if call_id is not None or commit.commit_id is not None:
            commit = msgspec.structs.replace(commit, commit_id=call_id)
        return await self._commits.ask(commit)

    def _outcomes(self, requests: list[Any]) -> list[Any]:
        """Return a reply or an error for each; a request that breaks the batch does not fail the others."""
        if len(requests) == 1:
            return [_outcome(self.backend.send, requests[0])]
        try:
            return self.backend.send_batch(requests)
        except Exception:
            return [_outcome(self.backend.send, request) for request in requests]

    def _written(self, commits: Sequence[Commit], outcomes: Sequence[Any]) -> None:
        self.batches, self.commits = self.batches + 1, self.commits + len(commits)
        for commit, outcome in zip(commits, outcomes, strict=True):
            if type(outcome) is Receipt:
                self.traffic.note(commit, outcome)
        self.on_commit()


def _outcome(call: Callable[[Any], Any], request: Any) -> Any:
    try:
        return call(request)
    except Exception as error:
        return error


def _is_small(request: Any) -> bool:
    """Say whether a request is answered at once, so that others can wait for it."""
    return type(request) is Read and request.names is not None and len(request.names) <= FEW_NAMES


def _bytes(commit: Commit) -> int:
    """Return about how much a commit writes."""
    return sum(_part_bytes(part) for part in commit.parts)


def _part_bytes(part: Part) -> int:
    return sum(len(getattr(operation, "text", "")) + 64 for operation in part.operations)


def _owner(who: Who) -> str:
    """Return what call ids of an asker begin with, so that nobody gets another's receipt."""
    if who.fence is not None:
        return f"attempt {who.fence.scope_id}.{who.fence.attempt}"
    if who.role == "triggers":  # not those of the token they were given for
        return f"triggers {who.token_id}"
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
