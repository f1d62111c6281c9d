"""Which token a client shows for which request: its own, or that of the attempt the request is made through."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ..config import TOKEN_VARIABLE, Config, local_token_file
from ..deferral_requests import ListDeferred
from ..errors import ConfigError
from ..requests import Fence, Open
from ..run_requests import NoteAftermath, Renew, Report
from ..wire import Answer

__all__ = ["Credentials"]

#: Attempts whose tokens are remembered.
MOST_TOKENS = 4096
#: Requests of an attempt that its supervisor makes, by its own token.
SUPERVISED = frozenset({Renew, Report})


class Credentials:
    """The tokens of one client. A server of one's own leaves one in a file, read where no setting has one."""

    def __init__(self, config: Config, place: str) -> None:
        self._given = _checked(config.client.token)
        may_look = self._given is None and config.client.find_token
        self._file = local_token_file(config, place) if may_look else None
        self._own = self._given
        self._renewed: int | None = None
        self._is_attempt = self._given is not None and not self._given.startswith("outl_")
        self._attempts: dict[tuple[int, int], str] = {}
        self._afterwards: dict[tuple[int, int], str] = {}
        self._triggers: str | None = None
        self._opened: dict[tuple[int, int], Open] = {}

    def own(self) -> str | None:
        """Return the client's own token."""
        if self._own is None:
            self.read_again()
        return self._own

    def take_renewed_from(self, file: int) -> None:
        """Look in an open file when the token is refused: others who have it too write younger ones there."""
        self._renewed = file

    def read_again(self) -> bool:
        """Read the local server's file, or that of younger tokens; say whether it has another one than was known."""
        found = None if self._file is None else _read_private(self._file)
        if self._renewed is not None:
            found = _last_line(self._renewed)
        if found is None or found == self._own:
            return False
        self._own = found
        return True

    def of_attempt(self, fence: Fence) -> str | None:
        """Return the token the server has given for an attempt."""
        return self._attempts.get((fence.scope_id, fence.attempt))

    def of_aftermath(self, scope_id: int, attempt: int) -> str | None:
        """Return the token the server has given for what is due after an attempt, once."""
        return self._afterwards.pop((scope_id, attempt), None)

    def of_triggers(self) -> str | None:
        """Return the token the server has given for triggers, once."""
        token, self._triggers = self._triggers, None
        return token

    def show(self, token: str) -> None:
        """Have another token take the place of the client's own."""
        self._own = _checked(token)

    def for_request(self, request: Any) -> str | None:
        """Return the token to show for a request."""
        fence = getattr(request, "fence", None)
        if fence is None or self._is_attempt or type(request) in SUPERVISED:
            return self.own()
        return self.of_attempt(fence) or self.own()

    def keep(self, request: Any, answer: Answer) -> None:
        """Remember the token an answer carries, for what was opened, begun, renewed, spoken for or asked for."""
        if answer.token is None:
            return
        if type(request) is NoteAftermath:
            self._afterwards[answer.reply.scope_id, request.attempt] = answer.token
            return
        if type(request) is ListDeferred:
            self._triggers = answer.token
            return
        if self._is_attempt:  # a younger one in the place of its own
            self._own = answer.token
            return
        about = getattr(request, "fence", None) or answer.reply
        which = about.scope_id, about.attempt
        while len(self._attempts) >= MOST_TOKENS:
            oldest = next(iter(self._attempts))
            self._attempts.pop(oldest, None)
            self._opened.pop(oldest, None)
        self._attempts[which] = answer.token
        if type(request) is Open:
            self._opened[which] = msgspec.structs.replace(request, attempt=about.attempt)

    def forget(self, fence: Fence) -> Open | None:
        """Drop an attempt's token; return the request that gets another, if the attempt was opened by this client."""
        which = fence.scope_id, fence.attempt
        self._attempts.pop(which, None)
        return self._opened.get(which)


def _checked(token: str | None) -> str | None:
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"the token in {TOKEN_VARIABLE} or [client] token has characters no token has; copy it again")
    return token


def _last_line(file: int) -> str | None:
    """Return the last whole line of an open file."""
    lines = os.pread(file, os.fstat(file).st_size, 0).decode().split("\n")
    return lines[-2] if len(lines) > 1 else None


def _read_private(path: str) -> str | None:
    """Return a file's text if it is this user's own and nobody else can read it."""
    try:
        with open(path, encoding="ascii") as file:
            known = os.fstat(file.fileno())
            if known.st_uid != os.geteuid() or known.st_mode & 0o077:
                return None
            return file.read().strip() or None
    except (OSError, ValueError):
        return None
