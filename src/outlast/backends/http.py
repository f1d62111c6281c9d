"""Asks a server: one POST a request over kept-alive connections, repeated under the same call id until it is answered.

The standard library's HTTP, because a worker has nothing else to import and a call costs a third of the CPU. A
redirect is never followed: it would carry a token to a place nobody named.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from typing import Any, Literal

import msgspec

from .. import wire
from ..config import Config
from ..errors import BackendError, ConfigError, InvalidValue, OutlastError, Unauthorized
from ..requests import Commit, Fence, Once
from ..values import Clock
from . import Backend, in_thread
from .connections import Lost, Place, Pool
from .credentials import Credentials
from .outage import Outage

__all__ = ["HTTPBackend"]

#: Seconds between two tries: the first time, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class HTTPBackend(Backend):
    """A store behind a server. Nothing is opened before the first call, and nothing is shared with a forked child."""

    keeps_replies = True
    #: Whether values of secret keys are asked for: a program acts on them, a terminal only shows them.
    reveals = True

    def __init__(self, url: str, config: Config, clock: Clock) -> None:
        self.place = Place.of(url)
        self.clock, self.retry_for = clock, config.client.retry_for
        self.outage = Outage(str(self.place), self.retry_for)
        self._pool = Pool(self.place, config.client.timeout, config.client.ca_file)
        self._credentials = Credentials(config, self.place.name)

    def send(self, request: Any) -> Any:
        call = self._call(request)
        while (pause := call.step()) is not None:
            time.sleep(pause)
        return call.reply

    async def asend(self, request: Any) -> Any:
        import asyncio  # costs a blocking program 30 ms at import

        call = self._call(request)
        while (pause := await in_thread(call.step)) is not None:
            await asyncio.sleep(pause)
        return call.reply

    def close(self) -> None:
        self._pool.close()

    def attempt_token(self, fence: Fence) -> str | None:
        """Return the token the server has given for an attempt, for the process that carries it out."""
        return self._credentials.of_attempt(fence)

    def aftermath_token(self, scope_id: int, attempt: int) -> str | None:
        """Return the token the server has given for what is due after an attempt, for the process that does it."""
        return self._credentials.of_aftermath(scope_id, attempt)

    def triggers_token(self) -> str | None:
        """Return the token the server has given for triggers, for the process that runs them."""
        return self._credentials.of_triggers()

    def show(self, token: str) -> None:
        """Show another token from now on."""
        self._credentials.show(token)

    def own_token(self) -> str | None:
        """Return the token this client shows; an attempt's, which a younger one takes the place of."""
        return self._credentials.own()

    def take_renewed_from(self, file: int) -> None:
        """Look for a younger token in an open file when the one there is has expired."""
        self._credentials.take_renewed_from(file)

    def _call(self, request: Any) -> Call:
        call_id, inner = (request.call_id, request.request) if type(request) is Once else (None, request)
        if type(inner) not in wire.REPLIES:
            raise TypeError(f"{type(inner).__name__} is not a request this backend answers")
        return Call(self, inner, call_id)

    # --- one try -----------------------------------------------------------------------------------------

    def attempt(self, request: Any, call_id: str | None) -> Any:
        """Send a request once and return its reply; raises the server's error, or Lost."""
        if type(request) is Commit:
            request = msgspec.structs.replace(request, sent_at=self.clock(), commit_id=call_id)
        body = wire.encode_call(request, call_id, reveal=self.reveals)
        token = self._credentials.for_request(request)
        status, data = self._pool.post(body, token)
        if status == 401 and self._has_another(request, token):
            status, data = self._pool.post(body, self._credentials.for_request(request))
        return self._accepted(request, status, data)

    def _accepted(self, request: Any, status: int, data: bytes) -> Any:
        if status != 200:
            raise self._refusal(status, data)
        try:
            answer = wire.decode_answer(type(request), data)
        except InvalidValue as error:
            raise Lost(f"{self.place}: {error}", sent=True, again=False) from error
        if answer.token is not None:
            self._credentials.keep(request, answer)
        return answer.reply

    def _refusal(self, status: int, data: bytes) -> Exception:
        try:
            return wire.decode_error(data)
        except InvalidValue:
            pass
        if status in (502, 503, 504):  # of a proxy whose server is away or slow
            return Lost(f"{self.place} answered {status}", sent=status != 503)
        if 300 <= status < 400:
            return ConfigError(
                f"{self.place} answers with a redirect ({status}), which is not followed; use the URL it leads to"
            )
        return ConfigError(f"{self.place} answers {status}, and not as outlast does; check the store's URL")

    def _has_another(self, request: Any, refused: str | None) -> bool:
        """Say whether there is another token to try in the place of one that was refused."""
        if refused == self._credentials.own():
            return self._credentials.read_again()
        if getattr(request, "fence", None) is None:  # a younger one has taken the place of its own
            return True
        opening = self._credentials.forget(request.fence)
        if opening is not None:
            with suppress(Unauthorized):
                self.attempt(opening, _new_id())  # under the same number: stale if there is a newer attempt
        return True


class Call:
    """One request on its way: what is remembered between two tries."""

    def __init__(self, backend: HTTPBackend, request: Any, call_id: str | None) -> None:
        self.backend, self.request = backend, request
        self.writes = type(request) in wire.WRITES
        self.call_id = call_id or getattr(request, "commit_id", None) or (_new_id() if self.writes else None)
        self.until = time.monotonic() + backend.retry_for
        self.pause = FIRST_PAUSE
        self.unknown = False
        self.reply: Any = None

    def step(self) -> float | None:
        """Try once: None when there is a reply, else the seconds to wait before the next try."""
        try:
            self.reply = self.backend.attempt(self.request, self.call_id)
        except Lost as lost:
            self.unknown |= lost.sent and self.writes
            if lost.again and (lost.stale or self._has_time()):
                return 0.0 if lost.stale else self._next_pause()
            raise self._given_up(lost) from lost
        except BackendError as error:
            if error.outcome == "failed" and self._has_time():
                return self._next_pause()
            raise self._final(error) from error.__cause__
        self.backend.outage.over()
        return None

    def _has_time(self) -> bool:
        return time.monotonic() < self.until

    def _next_pause(self) -> float:
        self.backend.outage.goes_on()
        left = max(0.0, self.until - time.monotonic())
        pause, self.pause = self.pause, min(LONGEST_PAUSE, 2 * self.pause)
        return min(left, pause * random.uniform(0.5, 1.0))

    def _given_up(self, lost: Lost) -> OutlastError:
        outcome: Literal["failed", "unknown"] = "unknown" if self.unknown else "failed"
        if not lost.again:
            return BackendError(str(lost), outcome)
        became = "the write may have happened" if self.unknown else "nothing was written" if self.writes else "not read"
        return BackendError(
            f"{lost} ({became}; tried for {self.backend.retry_for:g} s); is the server running?", outcome
        )

    def _final(self, error: BackendError) -> BackendError:
        return BackendError(error.message, "unknown") if self.unknown else error


def _new_id() -> str:
    return os.urandom(16).hex()
