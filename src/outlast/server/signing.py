"""Signed tokens (JWT, HS256, `kid` the secret's id): what each kind says, made and proven by the secrets of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import jwt
import msgspec

from ..backends import Backend
from ..errors import Unauthorized
from ..requests import LIBRARY
from ..token_requests import ListSecrets, MakeSecret, SecretRow, Secrets
from ..values import Clock
from .lately import Lately

__all__ = ["LONGEST", "SECOND", "UNKNOWN", "AttemptClaims", "SessionClaims", "Signing", "TriggersClaims"]

#: Bytes of a signed token at most: it travels in a header.
LONGEST: Final = 24 * 1024
#: Microseconds.
SECOND: Final = 1_000_000
UNKNOWN: Final = "this token is not known here, or is not good any more; `outlast token create` makes a new one"

_ISSUER: Final = "outlast"


class AttemptClaims(msgspec.Struct, frozen=True):
    """What an attempt's token says: the scope's fields, its id, the attempt, its assets, and the token it is for.

    `outlets` are those it may report as updated (None: any), `over` says that it is for what is due afterwards.
    """

    audience: ClassVar[str] = "outlast attempt"

    exp: int
    scope: tuple[str, str, str, int, str | None]
    scope_id: int
    attempt: int
    assets: tuple[tuple[str | None, str | None], ...] = ()
    by: int | None = None
    outlets: tuple[tuple[str | None, str | None], ...] | None = ()
    over: bool = False


class TriggersClaims(msgspec.Struct, frozen=True):
    """What a triggerer's token says: the DAGs whose deferred tasks it wakes, and the token it was given for."""

    audience: ClassVar[str] = "outlast triggers"

    exp: int
    dags: tuple[str, ...]
    by: int | None = None


class SessionClaims(msgspec.Struct, frozen=True):
    """What the page's cookie says: the token it was given for. As whom, and until when, is with the tokens."""

    audience: ClassVar[str] = "outlast page"

    exp: int
    by: int | None = None


class Signing:
    """Signs what a token says, and finds out what one says that is shown."""

    def __init__(self, backend: Backend, clock: Clock, ticks: Callable[[], float], lately: Lately, most: int) -> None:
        self.backend, self.clock, self.ticks = backend, clock, ticks
        self._lately, self._most = lately, most
        self._known: dict[tuple[str, tuple[type, ...]], tuple[SecretRow, Any]] = {}

    async def signed(self, kind: type[Any], seconds: int, **claims: Any) -> str:
        """Return a token of a kind that is good for so long."""
        secret = (await self._secrets(first=True))[0]
        now = self.clock() // SECOND
        said = {"iss": _ISSUER, "aud": kind.audience, "iat": now, "exp": now + seconds, **claims}
        return jwt.encode(said, secret.content, "HS256", {"kid": str(secret.id)})

    async def claims(self, token: str, *kinds: type[Any], newest: bool = False) -> Any:
        """Return what a token of one of these kinds says, whatever its expiry.

        Unauthorized if none of the secrets has signed it; or, with `newest`, not the newest.
        """
        secrets = (await self._secrets())[: 1 if newest else None]
        signer, claims = self._known.get((token, kinds), (None, None))
        if signer is not None and signer in secrets:
            return claims
        if len(token) > LONGEST:
            raise Unauthorized(UNKNOWN)
        signer, claims = _proven(token, kinds, secrets)
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[token, kinds] = (signer, claims)
        return claims

    async def _secrets(self, first: bool = False) -> tuple[SecretRow, ...]:
        """Return the secrets that are good, newest first; `first` makes one where there is none."""
        found: Secrets = await self._lately.answer(ListSecrets())
        if first and not found.rows:
            await self.backend.asend(MakeSecret(LIBRARY, first=True))
            found = self._lately.note(ListSecrets(), self.ticks(), await self.backend.asend(ListSecrets()))
        return found.rows


def _proven(token: str, kinds: tuple[type[Any], ...], secrets: tuple[SecretRow, ...]) -> tuple[SecretRow, Any]:
    """Check a signed token; its expiry is checked by the caller, by the store's clock and at each use."""
    options: Any = {"verify_exp": False, "verify_iat": False, "require": ["exp", "iss", "aud"]}
    audiences: dict[Any, type[Any]] = {kind.audience: kind for kind in kinds}
    try:
        key = jwt.get_unverified_header(token).get("kid")
        secret = next((known for known in secrets if str(known.id) == key), None)
        if secret is None:
            raise Unauthorized(UNKNOWN)
        said = jwt.decode(token, secret.content, ["HS256"], options, audience=[*audiences], issuer=_ISSUER)
        return secret, msgspec.convert(said, audiences[said["aud"]])
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, TypeError, RecursionError):
        raise Unauthorized(UNKNOWN) from None
