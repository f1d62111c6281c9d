"""Logs what was refused or could not be answered: every 401, and of 503s in a row the first."""

from __future__ import annotations

import logging
import time
from typing import Any

__all__ = ["Refusals"]

logger = logging.getLogger("outlast.server")

#: Seconds without a 503 after which the next one is news again.
QUIET = 60.0


class Refusals:
    """What one server process has logged of its refusals."""

    def __init__(self) -> None:
        self._failed_at: float | None = None

    def noting(self, scope: Any, send: Any) -> Any:
        """Return a `send` that has the answer's status logged where somebody should know of it."""

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message["status"])
            await send(message)

        return noted

    def _note(self, scope: Any, status: int) -> None:
        if status == 401:
            logger.warning("401: %s has shown no token that is good for this", _asked(scope))
        elif status == 503:
            now = time.monotonic()
            if self._failed_at is None or now - self._failed_at > QUIET:
                logger.warning("503: %s could not be answered; others that follow are not logged", _asked(scope))
            self._failed_at = now


def _asked(scope: Any) -> str:
    """Return who has asked for what: the path as it was sent, without the query, which may hold a link's code."""
    path = scope.get("raw_path") or b""
    host = (scope.get("client") or ("a local socket",))[0]
    return f"{scope['method']} {path.partition(b'?')[0].decode('latin-1')[:200]} from {host}"
