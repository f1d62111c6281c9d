"""Tokens and what each stands for: random ones of people and programs, signed ones of attempts, sessions of the page.

A random token is looked up by its digest, a signed one (JWT, HS256, `kid` the secret's id) proves itself. A session is
both: its cookie is signed, and its digest is with the tokens. What the store says of either is remembered for a second,
so that a revocation holds on every server within that time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import jwt
import msgspec

from ..errors import BackendError, InvalidValue, NotFound, Unauthorized
from ..requests import LIBRARY, Fence, Once, Open, Read
from ..run_requests import Attempts, Begin, ListAttempts, NoteAftermath
from ..token_requests import (
    BYTES,
    CreateToken,
    FindToken,
    ListSecrets,
    ListTokens,
    MakeSecret,
    RevokeToken,
    SecretRow,
    Secrets,
    TokenPage,
    TokenRow,
    TouchToken,
    digest_of,
    is_token,
    token_text,
)
from ..values import AssetScope, Clock, TaskScope, Writer
from .identity import Who
from .lately import Lately

if TYPE_CHECKING:
    from ..backends import Backend
    from ..store import Store

__all__ = ["AFTERMATH_SECONDS", "ATTEMPT_SECONDS", "LINK_SECONDS", "SESSION_SECONDS", "Tokens", "any_exist"]

#: How long an attempt's token is good; a renewal of the lease, or any use, in its second half gives a new one.
ATTEMPT_SECONDS: Final = 24 * 3600
#: How long the token is good of what is due after an attempt, which takes two minutes at most.
AFTERMATH_SECONDS: Final = 3600
#: How long the page's session lasts.
SESSION_SECONDS: Final = 12 * 3600
#: How long the link to the page is good.
LINK_SECONDS: Final = 600
#: Seconds for which what the store said of a token or of the secrets is taken to hold.
REMEMBERED = 1.0
#: Answers, and proven tokens, remembered at most.
MOST = 4096
#: Microseconds after which the use of a token is noted again.
_TOUCH_EVERY = 60 * 1_000_000
_SECOND = 1_000_000
#: Characters of a token's name at most.
_NAME = 1500
#: Bytes of a signed token at most: it travels in a header.
_LONGEST = 24 * 1024

_ISSUER, _ATTEMPTS, _SESSIONS = "outlast", "outlast attempt", "outlast page"
#: What a session is called among the tokens, before whose it is.
_SESSION: Final = "page of "
_UNKNOWN = "this token is not known here, or is not good any more; `outlast token create` makes a new one"


class _AttemptClaims(msgspec.Struct, frozen=True):
    """What an attempt's token says: the scope's fields, its id, the attempt, its assets, and the token it is for.

    `outlets` are those it may report as updated (None: any), `over` says that it is for what is due afterwards.
    """

    exp: int
    scope: tuple[str, str, str, int, str | None]
    scope_id: int
    attempt: int
    assets: tuple[tuple[str | None, str | None], ...] = ()
    by: int | None = None
    outlets: tuple[tuple[str | None, str | None], ...] | None = ()
    over: bool = False


class _SessionClaims(msgspec.Struct, frozen=True):
    """What the page's cookie says: the token it was given for. As whom, and until when, is with the tokens."""

    exp: int
    by: int | None = None


class Tokens:
    """Says who shows a token, and gives out signed ones; one a server process."""

    def __init__(self, backend: Backend, clock: Clock, ticks: Callable[[], float] = time.monotonic) -> None:
        self.backend, self.clock, self.ticks = backend, clock, ticks
        self._local: dict[bytes, Who] = {}
        self._lately = Lately(backend, ticks, REMEMBERED, MOST)
        self._proven: dict[tuple[str, str], tuple[SecretRow, Any]] = {}
        self._known: dict[str, tuple[float, Who]] = {}
        self._links: dict[bytes, tuple[float, Who]] = {}
        self._unwritten: dict[bytes, Who] = {}

    # --- who shows it --------------------------------------------------------------------------------------

    async def who(self, token: str) -> Who:
        """Return whom a bearer token stands for; Unauthorized, or StaleAttempt for an attempt that is superseded."""
        asked_at, known = self._known.get(token, (float("-inf"), None))
        if known is not None and self.ticks() - asked_at < REMEMBERED and not self._is_past(known.until):
            return known
        return await self._found_out(token)

    async def _found_out(self, token: str) -> Who:
        if not token.startswith("outl_"):
            return await self._attempt(token)
        if not is_token(token):
            raise Unauthorized(_UNKNOWN)
        digest = digest_of(token)
        for known, who in self._local.items():
            if compare_digest(known, digest):
                return who
        row = await self._row(FindToken(digest))
        if row is None:
            raise Unauthorized(_UNKNOWN)
        self._refuse_ended(row)
        await self._touch(row, FindToken(digest))
        who = Who(row.role, row.name, row.dags, row.id, until=row.expires_at)
        return self._keep(token, who, FindToken(digest))

    def _keep(self, token: str, who: Who, *asked: Any) -> Who:
        """Remember whom a token stands for, for no longer than what the store was asked for that holds."""
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[token] = self._lately.asked_at(*asked), who
        return who

    def _is_past(self, moment: int | None) -> bool:
        return moment is not None and self.clock() >= moment

    async def who_of_session(self, cookie: str) -> Who:
        """Return whom the page's cookie stands for; Unauthorized if it is not good any more."""
        claims = await self._session_claims(cookie)
        if claims is None or self._is_over(claims.exp) or (who := await self._session_of(cookie, claims)) is None:
            raise Unauthorized("the session has ended; open the link `outlast serve` prints, or log in again")
        await self._refuse_without(claims.by, also_expired=True)
        return who

    async def _session_claims(self, cookie: str) -> _SessionClaims | None:
        """Return what a cookie says, None if it is none of ours: only the newest secret is good for one."""
        with suppress(Unauthorized):
            claims: _SessionClaims = await self._claims(cookie, _SESSIONS, _SessionClaims)
            if self._proven[cookie, _SESSIONS][0] == (await self._secrets())[0]:
                return claims
        return None

    async def _session_of(self, cookie: str, claims: _SessionClaims) -> Who | None:
        digest = digest_of(cookie)
        row = await self._row(FindToken(digest))
        if row is None:
            return self._unwritten.get(digest)
        if not row.good(self.clock()):
            return None
        return Who(row.role, row.name.removeprefix(_SESSION), row.dags, claims.by, until=row.expires_at)

    async def _attempt(self, token: str) -> Who:
        claims = await self._claims(token, _ATTEMPTS, _AttemptClaims)
        fence = Fence(TaskScope(*claims.scope), claims.attempt, claims.scope_id)
        if self._is_over(claims.exp):
            await self.backend.asend(Read(fence.scope, (), fence=fence))  # StaleAttempt, which matters more
            raise Unauthorized(f"the token of attempt {fence.attempt} of {fence.scope} has expired; open it again")
        await self._refuse_without(claims.by)
        assets = tuple(AssetScope(*names) for names in claims.assets)
        dags, name = (escape(fence.scope.dag_id),), f"{fence.scope} attempt {fence.attempt}"
        until = claims.exp * _SECOND
        who = Who("attempt", name, dags, claims.by, fence, assets, until, claims.outlets, claims.over)
        return self._keep(token, who, ListSecrets(), *([] if claims.by is None else [FindToken(id=claims.by)]))

    def _is_over(self, seconds: int) -> bool:
        return self.clock() >= seconds * _SECOND

    def _refuse_ended(self, row: TokenRow) -> None:
        if row.revoked_at is not None:
            raise Unauthorized(f"token {row.id} was revoked; `outlast token create` makes a new one")
        if not row.good(self.clock()):
            raise Unauthorized(f"token {row.id} has expired; `outlast token create` makes a new one")

    async def _refuse_without(self, by: int | None, also_expired: bool = False) -> None:
        """Refuse what was given for a token that was revoked since (or has expired: an attempt may outlast that)."""
        row = None if by is None else await self._row(FindToken(id=by))
        if by is not None and (
            row is None or row.revoked_at is not None or (also_expired and not row.good(self.clock()))
        ):
            raise Unauthorized(f"token {by}, for which this one was given, is not good any more")

    async def _touch(self, row: TokenRow, asked: FindToken) -> None:
        if row.used_at is None or self.clock() - row.used_at >= _TOUCH_EVERY:
            with suppress(BackendError):  # whoever only reads goes on while the store cannot be written
                self._lately.note(asked, self.ticks(), await self.backend.asend(TouchToken(row.id)))

    async def _row(self, asked: FindToken) -> TokenRow | None:
        page: TokenPage = await self._lately.answer(asked)
        return page.rows[0] if page.rows else None

    # --- given out -----------------------------------------------------------------------------------------

    def local(self, name: str) -> str:
        """Return a new admin token that only this process knows and that ends with it."""
        token = token_text("admin", os.urandom(BYTES))
        self._local[digest_of(token)] = Who("admin", name)
        return token

    def link(self, name: str) -> str:
        """Return the code of a link that opens the page for this machine's own user, once and within ten minutes."""
        code = token_text("admin", os.urandom(BYTES)).rpartition("_")[2]
        self._links[digest_of(code)] = (self.ticks() + LINK_SECONDS, Who("admin", name))
        return code

    def redeem(self, code: str) -> Who:
        """Return whom a link's code stands for, and make it good for nothing more; Unauthorized if it is already."""
        until, who = self._links.pop(digest_of(code), (0.0, None))
        if who is None or self.ticks() >= until:
            raise Unauthorized(
                "this link was used before, is older than ten minutes, or is another server's; "
                "`outlast serve` prints a new one when it starts"
            )
        return who

    async def session(self, who: Who) -> str:
        """Return the cookie with which a browser goes on as somebody, at any server of this store.

        It is a token among the others, to be listed and revoked like one. Where the store cannot be written it is good
        at this server only: a full disk is what somebody logs in to look at.
        """
        until = self.clock() + SESSION_SECONDS * _SECOND
        cookie = await self._signed({"by": who.token_id, "jti": os.urandom(BYTES).hex()}, _SESSIONS, SESSION_SECONDS)
        digest, role = digest_of(cookie), cast(Literal["viewer", "editor", "admin"], who.role)
        name, by = f"{_SESSION}{who.name}"[:_NAME], Writer("person", name=who.name)
        try:
            await self.backend.asend(CreateToken(digest, role, name, by, who.dags, until))
        except BackendError:
            while len(self._unwritten) >= MOST:
                del self._unwritten[next(iter(self._unwritten))]
            self._unwritten[digest] = Who(role, who.name, who.dags, who.token_id, until=until)
        self._lately.forget(FindToken(digest))
        return cookie

    async def end_session(self, cookie: str) -> None:
        """Make a cookie good for nothing more, here at once and at other servers within a second."""
        digest = digest_of(cookie)
        self._unwritten.pop(digest, None)
        row = await self._row(FindToken(digest))
        if row is not None:
            name = row.name.removeprefix(_SESSION)
            await self.backend.asend(RevokeToken(row.id, Writer("person", name=name)))
            self._lately.forget(FindToken(digest))

    async def exchanged(self, request: Any, reply: Any, who: Who) -> str | None:
        """Return the attempt's token that goes with a reply: of an attempt just begun, or in place of one that ages."""
        if type(request) is Once:
            request = request.request
        match request:
            case Open():
                return await self._of_attempt(Fence(request.scope, reply.attempt, reply.scope_id), request.assets, who)
            case Begin():
                fence = Fence(reply.scope, reply.attempt, reply.scope_id)
                return await self._of_attempt(fence, request.assets, who, outlets=request.outlets)
            case NoteAftermath():
                return await self._of_aftermath(request, reply, who)
        if who.fence is None or who.until is None or who.over:
            return None
        aged = self.clock() > who.until - ATTEMPT_SECONDS * _SECOND // 2
        if not aged or await self._has_ended(who.fence):
            return None
        return await self._of_attempt(who.fence, who.assets, who, outlets=who.outlets)

    async def _has_ended(self, fence: Fence) -> bool:
        """Say whether an attempt of a run has ended; of a script nobody knows."""
        try:
            found: Attempts = await self.backend.asend(ListAttempts(fence.scope))
        except NotFound:
            return False
        return any(each.number == fence.attempt and each.ended_at is not None for each in found.attempts)

    async def _of_aftermath(self, request: NoteAftermath, reply: Any, who: Who) -> str | None:
        """Return a token for what is due after an attempt, when it is begun.

        There is none while the attempt runs, none where nothing is due after it, and none for a person, who goes on as
        what they are. An attempt gets none when a newer one has opened its scope.
        """
        if request.done or who.over or who.role == "editor":
            return None
        if who.fence is not None:
            await self.backend.asend(Read(who.fence.scope, (), fence=who.fence))  # StaleAttempt, if it is superseded
        if reply.aftermath is None or reply.attempt != (who.fence or request).attempt:
            return None
        fence = who.fence or Fence(reply.scope, request.attempt, reply.scope_id)
        return await self._of_attempt(fence, who.assets if who.fence else request.assets, who, over=True)

    async def _of_attempt(
        self,
        fence: Fence,
        assets: tuple[AssetScope, ...],
        who: Who,
        *,
        outlets: tuple[tuple[str | None, str | None], ...] | None = (),
        over: bool = False,
    ) -> str:
        token = await self._signed(
            {
                "scope": msgspec.structs.astuple(fence.scope),
                "scope_id": fence.scope_id,
                "attempt": fence.attempt,
                "assets": [(asset.name, asset.uri) for asset in assets],
                "by": who.token_id,
                "outlets": outlets,
                "over": over,
            },
            _ATTEMPTS,
            AFTERMATH_SECONDS if over else ATTEMPT_SECONDS,
        )
        if len(token) > _LONGEST:
            raise InvalidValue(f"{fence.scope} has {len(assets)} inlets and outlets, too many for a token; use fewer")
        return token

    # --- signed --------------------------------------------------------------------------------------------

    async def _signed(self, claims: dict[str, Any], audience: str, seconds: int) -> str:
        secret = (await self._secrets(first=True))[0]
        now = self.clock() // _SECOND
        claims = {"iss": _ISSUER, "aud": audience, "iat": now, "exp": now + seconds, **claims}
        return jwt.encode(claims, secret.content, "HS256", {"kid": str(secret.id)})

    async def _claims(self, token: str, audience: str, kind: type[Any]) -> Any:
        """Return what a signed token says, whatever its expiry; Unauthorized if none of the secrets signed it."""
        secrets = await self._secrets()
        signer, claims = self._proven.get((token, audience), (None, None))
        if signer is not None and signer in secrets:
            return claims
        if len(token) > _LONGEST:
            raise Unauthorized(_UNKNOWN)
        signer, claims = _proven(token, audience, kind, secrets)
        if len(self._proven) >= MOST:
            self._proven.clear()
        self._proven[token, audience] = (signer, claims)
        return claims

    async def _secrets(self, first: bool = False) -> tuple[SecretRow, ...]:
        """Return the secrets that are good, newest first; `first` makes one where there is none."""
        found: Secrets = await self._lately.answer(ListSecrets())
        if first and not found.rows:
            await self.backend.asend(MakeSecret(LIBRARY, first=True))
            found = self._lately.note(ListSecrets(), self.ticks(), await self.backend.asend(ListSecrets()))
        return found.rows


def _proven(token: str, audience: str, kind: type[Any], secrets: tuple[SecretRow, ...]) -> tuple[SecretRow, Any]:
    """Check a signed token; its expiry is checked by the caller, by the store's clock and at each use."""
    options: Any = {"verify_exp": False, "verify_iat": False, "require": ["exp", "iss", "aud"]}
    try:
        key = jwt.get_unverified_header(token).get("kid")
        secret = next((known for known in secrets if str(known.id) == key), None)
        if secret is None:
            raise Unauthorized(_UNKNOWN)
        said = jwt.decode(token, secret.content, ["HS256"], options, audience=audience, issuer=_ISSUER)
        return secret, msgspec.convert(said, kind)
    except (jwt.PyJWTError, msgspec.ValidationError, ValueError, RecursionError):
        raise Unauthorized(_UNKNOWN) from None


def any_exist(store: Store) -> bool:
    """Say whether a store has a token that is good: what a server needs before it listens to other machines."""
    now, after = store.clock(), 0
    while True:
        page: TokenPage = store.backend.send(ListTokens(after))
        if any(row.good(now) and not row.name.startswith(_SESSION) for row in page.rows):
            return True
        if page.after is None:
            return False
        after = page.after
