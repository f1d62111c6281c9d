"""Tokens and what each stands for: random ones of people and programs, signed ones, sessions of the page.

A random token is looked up by its digest, a signed one proves itself: it is an attempt's, or that of the process that
runs a runner's triggers. A session is both: its cookie is signed, and its digest is with the tokens. What the store
says of either is remembered for a second, so that a revocation holds on every server within that time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from ..deferral_requests import ListDeferred
from ..errors import BackendError, InvalidValue, NotFound, Unauthorized
from ..requests import Fence, Once, Open, Read
from ..run_requests import Attempts, Begin, ListAttempts, NoteAftermath
from ..token_requests import (
    BYTES,
    CreateToken,
    FindToken,
    ListSecrets,
    ListTokens,
    RevokeToken,
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
from .signing import LONGEST, SECOND, UNKNOWN, AttemptClaims, SessionClaims, Signing, TriggersClaims

if TYPE_CHECKING:
    from ..backends import Backend
    from ..store import Store

__all__ = [
    "AFTERMATH_SECONDS",
    "ATTEMPT_SECONDS",
    "LINK_SECONDS",
    "SESSION_SECONDS",
    "TRIGGERS_SECONDS",
    "UNLISTED_SECONDS",
    "Tokens",
    "any_exist",
]

#: How long an attempt's token is good; a renewal of the lease, or any use, in its second half gives a new one.
ATTEMPT_SECONDS: Final = 24 * 3600
#: How long the token of a triggerer is good; its runner asks for another in the second half of that.
TRIGGERS_SECONDS: Final = 24 * 3600
#: How long it is good if whoever it is given to has no token that could be revoked: theirs ends with this process.
UNLISTED_SECONDS: Final = 3600
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
#: Characters of a token's name at most.
_NAME = 1500
#: What a session is called among the tokens, before whose it is.
_SESSION: Final = "page of "


class Tokens:
    """Says who shows a token, and gives out signed ones; one a server process."""

    def __init__(self, backend: Backend, clock: Clock, ticks: Callable[[], float] = time.monotonic) -> None:
        self.backend, self.clock, self.ticks = backend, clock, ticks
        self._local: dict[bytes, Who] = {}
        self._lately = Lately(backend, ticks, REMEMBERED, MOST)
        self._signing = Signing(backend, clock, ticks, self._lately, MOST)
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
            return await self._signer_known(token)
        if not is_token(token):
            raise Unauthorized(UNKNOWN)
        digest = digest_of(token)
        for known, who in self._local.items():
            if compare_digest(known, digest):
                return who
        row = await self._row(FindToken(digest))
        if row is None:
            raise Unauthorized(UNKNOWN)
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

    async def _session_claims(self, cookie: str) -> SessionClaims | None:
        """Return what a cookie says, None if it is none of ours: only the newest secret is good for one."""
        with suppress(Unauthorized):
            claims: SessionClaims = await self._signing.claims(cookie, SessionClaims, newest=True)
            return claims
        return None

    async def _session_of(self, cookie: str, claims: SessionClaims) -> Who | None:
        digest = digest_of(cookie)
        row = await self._row(FindToken(digest))
        if row is None:
            return self._unwritten.get(digest)
        if not row.good(self.clock()):
            return None
        return Who(row.role, row.name.removeprefix(_SESSION), row.dags, claims.by, until=row.expires_at)

    async def _signer_known(self, token: str) -> Who:
        claims: AttemptClaims | TriggersClaims = await self._signing.claims(token, AttemptClaims, TriggersClaims)
        who = await (self._attempt(claims) if isinstance(claims, AttemptClaims) else self._triggers(claims))
        return self._keep(token, who, ListSecrets(), *([] if claims.by is None else [FindToken(id=claims.by)]))

    async def _attempt(self, claims: AttemptClaims) -> Who:
        fence = Fence(TaskScope(*claims.scope), claims.attempt, claims.scope_id)
        if self._is_over(claims.exp):
            await self.backend.asend(Read(fence.scope, (), fence=fence))  # StaleAttempt, which matters more
            raise Unauthorized(f"the token of attempt {fence.attempt} of {fence.scope} has expired; open it again")
        await self._refuse_without(claims.by)
        assets = tuple(AssetScope(*names) for names in claims.assets)
        dags, name = (escape(fence.scope.dag_id),), f"{fence.scope} attempt {fence.attempt}"
        until = claims.exp * SECOND
        return Who("attempt", name, dags, claims.by, fence, assets, until, claims.outlets, claims.over)

    async def _triggers(self, claims: TriggersClaims) -> Who:
        if self._is_over(claims.exp):
            raise Unauthorized("the token of the triggers has expired; the runner that started them gets another")
        await self._refuse_without(claims.by, also_expired=True)
        return Who("triggers", "triggers", claims.dags, claims.by, until=claims.exp * SECOND)

    def _is_over(self, seconds: int) -> bool:
        return self.clock() >= seconds * SECOND

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

    def was_refused(self, credential: str) -> bool:
        """Say whether the store said last that a token or a cookie is not good; False where it was never asked."""
        page: TokenPage | None = self._lately.last(FindToken(digest_of(credential)))
        return page is not None and not any(row.good(self.clock()) for row in page.rows)

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
        until = self.clock() + SESSION_SECONDS * SECOND
        jti = os.urandom(BYTES).hex()
        cookie = await self._signing.signed(SessionClaims, SESSION_SECONDS, by=who.token_id, jti=jti)
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
        """Return the token that goes with a reply: of an attempt begun, in place of one that ages, or of triggers."""
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
            case ListDeferred(entrust=True):
                return await self._of_triggers(who)
        if who.fence is None or who.until is None or who.over:
            return None
        aged = self.clock() > who.until - ATTEMPT_SECONDS * SECOND // 2
        if not aged or await self._has_ended(who.fence):
            return None
        return await self._of_attempt(who.fence, who.assets, who, outlets=who.outlets)

    async def _of_triggers(self, who: Who) -> str:
        """Return a token for the triggers of somebody, which ends no later than theirs does."""
        seconds = UNLISTED_SECONDS if who.token_id is None else TRIGGERS_SECONDS
        if who.until is not None:
            seconds = min(seconds, (who.until - self.clock()) // SECOND)
        return await self._signing.signed(TriggersClaims, seconds, dags=who.dags, by=who.token_id)

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
        token = await self._signing.signed(
            AttemptClaims,
            AFTERMATH_SECONDS if over else ATTEMPT_SECONDS,
            scope=msgspec.structs.astuple(fence.scope),
            scope_id=fence.scope_id,
            attempt=fence.attempt,
            assets=[(asset.name, asset.uri) for asset in assets],
            by=who.token_id,
            outlets=outlets,
            over=over,
        )
        if len(token) > LONGEST:
            raise InvalidValue(f"{fence.scope} has {len(assets)} inlets and outlets, too many for a token; use fewer")
        return token


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
