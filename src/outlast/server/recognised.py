"""Who is asking how the server does: also while its store is away, which is when that is asked for.

A token is looked up in the store, so without one nobody is known. Whoever has shown the same credential here before is
taken to be who they were then; what they are told is how this server does, and nothing that is read from the store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import BackendError, Unauthorized
from .identity import Who, identify, shown

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from ..values import Clock
    from .tokens import Tokens

__all__ = ["PATIENCE", "Recognised"]

#: Seconds after which a store that does not say whose a token is counts as away.
PATIENCE = 2.0
#: Credentials remembered at most.
MOST = 1024


class Recognised:
    """Remembers who has asked; one a server process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._known: dict[str, Who] = {}

    async def who(self, request: HTTPConnection) -> Who:
        """Return who sent a request, as `identify` does; BackendError if the store is away and this is a stranger."""
        tokens: Tokens = request.app.state.tokens
        credential = shown(request)
        try:
            async with asyncio.timeout(PATIENCE):
                who = await identify(request)
        except Unauthorized:
            self._known.pop(credential, None)
            raise
        except (BackendError, TimeoutError):
            known = None if tokens.was_refused(credential) else self._known.get(credential)
            if known is not None and (known.until is None or self.clock() < known.until):
                return known
            raise BackendError(
                "the database does not answer, so nobody can say whose token this is; look whether the database runs"
            ) from None
        self._known.pop(credential, None)
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]  # of whom nothing has been heard for longest
        self._known[credential] = who
        return who
