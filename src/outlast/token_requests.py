"""Access tokens: what one looks like, and what a backend is asked about them and about the secrets that sign.

A token is made where it is shown, `outl_<letter of its role>_<32 random bytes in base 62>`; a store is told its SHA-256
only. Moments are microseconds since the epoch.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, TypeAlias

import msgspec

from .requests import Asked
from .values import Writer

__all__ = [
    "ROLES",
    "CreateToken",
    "FindToken",
    "ListSecrets",
    "ListTokens",
    "MakeSecret",
    "RevokeToken",
    "SecretMade",
    "SecretRow",
    "Secrets",
    "TokenPage",
    "TokenRole",
    "TokenRow",
    "TouchToken",
    "digest_of",
    "is_token",
    "role_of",
    "token_text",
]

TokenRole: TypeAlias = Literal["viewer", "editor", "admin", "worker", "runner"]
ROLES: Final[tuple[TokenRole, ...]] = ("viewer", "editor", "admin", "worker", "runner")

#: Random bytes of a token, and of a secret that signs.
BYTES = 32
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WIDTH = 43  # base 62 digits that 32 bytes need
_SHAPE = re.compile(rf"outl_[{''.join(role[0] for role in ROLES)}]_[0-9A-Za-z]{{{_WIDTH}}}", re.ASCII)


def token_text(role: TokenRole, randomness: bytes) -> str:
    """Return the token of a role that 32 random bytes make."""
    if len(randomness) != BYTES:
        raise ValueError(f"a token is made of {BYTES} random bytes, not {len(randomness)}; use os.urandom({BYTES})")
    number, digits = int.from_bytes(randomness, "big"), ""
    for _ in range(_WIDTH):
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return f"outl_{role[0]}_{digits}"


def role_of(text: str) -> TokenRole | None:
    """Return the role a token is made out for, by its text alone; None for what is no token."""
    return next((role for role in ROLES if role[0] == text[5]), None) if is_token(text) else None


def is_token(text: str) -> bool:
    """Say whether a text has the shape of a token."""
    return _SHAPE.fullmatch(text) is not None


def digest_of(token: str) -> bytes:
    """Return what a store keeps of a token."""
    return hashlib.sha256(token.encode()).digest()


class TokenRow(msgspec.Struct, frozen=True):
    """One token as stored, without what it is found by. `dags` are patterns of the DAGs it reaches."""

    id: int
    role: TokenRole
    name: str
    dags: tuple[str, ...]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    used_at: int | None = None

    def good(self, now: int) -> bool:
        """Say whether the token is neither revoked nor expired at a moment."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class CreateToken(Asked, frozen=True, tag="create_token"):
    """Keep a token by its digest; answers its TokenRow."""

    digest: bytes
    role: TokenRole
    name: str
    writer: Writer
    dags: tuple[str, ...] = ("*",)
    expires_at: int | None = None


class ListTokens(Asked, frozen=True, tag="list_tokens"):
    """Page through tokens, oldest first; `after` is the id the page begins above."""

    after: int = 0
    limit: int = 1000


class TokenPage(msgspec.Struct, frozen=True, tag="token_page"):
    rows: tuple[TokenRow, ...]
    after: int | None = None


class RevokeToken(Asked, frozen=True, tag="revoke_token"):
    """End a token for good; NotFound if there is none of that id, no change if it is revoked already."""

    id: int
    writer: Writer


class FindToken(Asked, frozen=True, tag="find_token"):
    """Ask, as a server, for the token of a digest or of an id (answer: a TokenPage with it or with nothing)."""

    digest: bytes | None = None
    id: int | None = None


class TouchToken(Asked, frozen=True, tag="touch_token"):
    """Note, as a server, that a token was used; written at most once a minute (answer: its TokenPage)."""

    id: int


class MakeSecret(Asked, frozen=True, tag="make_secret"):
    """Sign with a new secret from now on; the one before stays good, older ones are removed.

    With `first` nothing happens where there is one already.
    """

    writer: Writer
    first: bool = False


class SecretMade(msgspec.Struct, frozen=True, tag="secret_made"):
    """The secret that signs from now on, by its id."""

    id: int


class ListSecrets(Asked, frozen=True, tag="list_secrets"):
    """Ask, as a server, for the secrets that are good, newest first. No one is told them over a network."""


class SecretRow(msgspec.Struct, frozen=True):
    id: int
    content: bytes
    created_at: int


class Secrets(msgspec.Struct, frozen=True, tag="secrets"):
    rows: tuple[SecretRow, ...]
