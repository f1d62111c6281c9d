"""Access tokens and signing secrets as portable SQL; what people do to them is audited."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import Conflict, InvalidValue, NotFound
from ..token_requests import (
    BYTES,
    CreateToken,
    FindToken,
    ListSecrets,
    ListTokens,
    MakeSecret,
    RevokeToken,
    SecretMade,
    SecretRow,
    Secrets,
    TokenPage,
    TokenRow,
    TouchToken,
)
from ..values import Writer, check_asset
from .audit import Audit
from .execute import Execute

__all__ = ["TokensSQL"]

#: Secrets that are good at the same time: the one that signs, and the one before it.
GOOD_SECRETS = 2
#: The use of a token is noted at most this often, in microseconds.
TOUCH_EVERY = 60 * 1_000_000

_COLUMNS = "id, role, name, dags, created_at, expires_at, revoked_at, used_at"
_patterns = msgspec.json.Decoder(tuple[str, ...]).decode


class TokensSQL:
    """Writes and reads tokens and secrets through one connection."""

    def __init__(self, execute: Execute, audit: Audit, random: Callable[[int], bytes] = os.urandom) -> None:
        self.execute, self.audit, self.random = execute, audit, random

    # --- tokens --------------------------------------------------------------------------------------------

    def create(self, request: CreateToken, now: int) -> TokenRow:
        """Keep a new token; InvalidKey or InvalidValue for one that is of no use, Conflict for one that is known."""
        _refuse_useless(request)
        dags = msgspec.json.encode(request.dags).decode()
        rows = self.execute(
            "insert into token (digest, role, name, dags, created_at, expires_at) values (?, ?, ?, ?, ?, ?)"
            f" on conflict do nothing returning {_COLUMNS}",
            (request.digest, request.role, request.name, dags, now, request.expires_at),
        )
        if not rows:
            raise Conflict("there is a token of this digest already; make a new one of 32 fresh random bytes")
        made = _token(rows[0])
        self._record(request.writer, "create token", made, None, _facts(made), now)
        return made

    def list(self, request: ListTokens, now: int) -> TokenPage:
        """Return one page, oldest first."""
        rows = self.execute(
            f"select {_COLUMNS} from token where id > ? order by id limit ?", (request.after, request.limit)
        )
        return TokenPage(tuple(_token(row) for row in rows), rows[-1][0] if len(rows) == request.limit else None)

    def revoke(self, request: RevokeToken, now: int) -> TokenRow:
        """End a token; one that is revoked already stays as it is."""
        known = self._by_id(request.id)
        if known is None:
            raise NotFound(f"there is no token {request.id}; `outlast token ls` lists those there are")
        if known.revoked_at is not None:
            return known
        self.execute("update token set revoked_at = ? where id = ?", (now, request.id))
        self._record(request.writer, "revoke token", known, _facts(known), None, now)
        return msgspec.structs.replace(known, revoked_at=now)

    def find(self, request: FindToken, now: int) -> TokenPage:
        """Return the token of a digest or of an id, if there is one."""
        if request.digest is None:
            found = None if request.id is None else self._by_id(request.id)
            return TokenPage(() if found is None else (found,))
        rows = self.execute(f"select {_COLUMNS} from token where digest = ?", (request.digest,))
        return TokenPage(tuple(_token(row) for row in rows))

    def touch(self, request: TouchToken, now: int) -> TokenPage:
        """Note that a token was used, unless that was noted within the last minute."""
        self.execute(
            "update token set used_at = ? where id = ? and (used_at is null or used_at <= ?)",
            (now, request.id, now - TOUCH_EVERY),
        )
        return self.find(FindToken(id=request.id), now)

    def _by_id(self, id: int) -> TokenRow | None:
        rows = self.execute(f"select {_COLUMNS} from token where id = ?", (id,))
        return _token(rows[0]) if rows else None

    def _record(
        self, writer: Writer, action: str, token: TokenRow, before: str | None, after: str | None, now: int
    ) -> None:
        who = writer.name or writer.kind
        self.audit.record(now, who, action, f"token {token.id}", before=before, after=after)

    # --- secrets -------------------------------------------------------------------------------------------

    def make_secret(self, request: MakeSecret, now: int) -> SecretMade:
        """Add a secret and remove those that are not good any more.

        Its id is worked out here and never a database's own, so that of two servers that make the first one at
        the same time, one does nothing.
        """
        newest = self._newest()
        if newest and request.first:
            return SecretMade(newest)
        self.execute(
            "insert into secret (id, content, created_at) values (?, ?, ?) on conflict do nothing",
            (newest + 1, self.random(BYTES), now),
        )
        self.execute("delete from secret where id <= ?", (newest + 1 - GOOD_SECRETS,))
        if not request.first:
            who = request.writer.name or request.writer.kind
            self.audit.record(now, who, "rotate secret", f"secret {newest + 1}")
        return SecretMade(self._newest())

    def _newest(self) -> int:
        newest: int = self.execute("select coalesce(max(id), 0) from secret", ())[0][0]
        return newest

    def secrets(self, request: ListSecrets, now: int) -> Secrets:
        """Return the secrets that are good, newest first."""
        rows = self.execute("select id, content, created_at from secret order by id desc limit ?", (GOOD_SECRETS,))
        return Secrets(tuple(SecretRow(id, bytes(content), at) for id, content, at in rows))


def _refuse_useless(request: CreateToken) -> None:
    check_asset(request.name, "name of a token")
    if len(request.digest) != 32 or not request.dags or not all(request.dags):
        raise InvalidValue("a token needs a SHA-256 digest and the patterns of its dags; * is every dag")


def _token(row: Any) -> TokenRow:
    id, role, name, dags, *moments = row
    return TokenRow(id, role, name, _patterns(dags), *moments)


def _facts(token: TokenRow) -> str:
    """Return what the audit log says of a token."""
    facts = {"role": token.role, "name": token.name, "dags": token.dags, "expires_at": token.expires_at}
    return msgspec.json.encode(facts).decode()
