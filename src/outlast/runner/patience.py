"""Ask a server on behalf of a runner, and wait for as long as it is away: the run goes on when it is back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..backends import Backend, open_backend
from ..errors import BackendError
from ..requests import Fence, Once
from ..store import Store
from .remote import ONE_TRY, is_remote

__all__ = ["Patient", "patient"]

#: Seconds for which one call is tried again before somebody may interrupt the waiting.
RETRY_FOR = 1.0


def patient(store: Store) -> Store:
    """Return a store as a runner needs it: behind a server that may be away for a while; others as they are."""
    if not is_remote(store):
        return store
    client = store.config.client
    short = msgspec.structs.replace(
        client, retry_for=min(client.retry_for, RETRY_FOR), timeout=min(client.timeout, ONE_TRY)
    )
    inner = open_backend(store.url, msgspec.structs.replace(store.config, client=short), store.clock)
    return Store(Patient(inner, client.retry_for), store.url, store.origin, store.config, store.clock)


class Patient(Backend):
    """Waits for a server that has answered before; one that never has, for as long as any client does.

    Nobody is asked twice: what is sent again has the call id it had before.
    """

    keeps_replies = True

    def __init__(self, inner: Backend, first_for: float) -> None:
        self.inner, self.first_for = inner, first_for
        self._has_answered = False
        self._away_since: float | None = None
        self._say: Callable[[str], None] = lambda line: None
        self._is_stopping: Callable[[], bool] = lambda: False
        self._is_back: Callable[[], None] = lambda: None

    def heed(self, say: Callable[[str], None], is_stopping: Callable[[], bool], is_back: Callable[[], None]) -> None:
        """Tell `say` what a person should know, wait no longer when it `is_stopping`, and call `is_back` after that."""
        self._say, self._is_stopping, self._is_back = say, is_stopping, is_back

    def send(self, request: Any) -> Any:
        asked = request if type(request) is Once else Once(os.urandom(16).hex(), request)
        while True:
            try:
                reply = self.inner.send(asked)
            except BackendError as error:
                if not self._may_wait(error):
                    raise
                continue
            self._answered()
            return reply

    async def asend(self, request: Any) -> Any:
        return await self.inner.asend(request)

    def close(self) -> None:
        self.inner.close()

    def attempt_token(self, fence: Fence) -> str | None:
        """Return the token the server has given for an attempt."""
        inner: Any = self.inner
        token: str | None = inner.attempt_token(fence)
        return token

    def aftermath_token(self, scope_id: int, attempt: int) -> str | None:
        """Return the token the server has given for what is due after an attempt."""
        inner: Any = self.inner
        token: str | None = inner.aftermath_token(scope_id, attempt)
        return token

    def triggers_token(self) -> str | None:
        """Return the token the server has given for triggers."""
        inner: Any = self.inner
        token: str | None = inner.triggers_token()
        return token

    def _may_wait(self, error: BackendError) -> bool:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            if self._has_answered and not self._is_stopping():
                self._say(f"{error.message}; waiting for it: what runs goes on")
        if self._is_stopping():
            return False
        if not self._has_answered and now - self._away_since > self.first_for:
            return False
        time.sleep(0.1)
        return True

    def _answered(self) -> None:
        self._has_answered = True
        if self._away_since is not None:
            away, self._away_since = time.monotonic() - self._away_since, None
            self._say(f"the server is back after {away:.0f} s")
            self._is_back()
