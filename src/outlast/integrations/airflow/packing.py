"""JSON text as packed bytes and back: compressed where that is shorter, encrypted where there are keys.

Packed bytes begin with `o1` and a letter: `j` JSON as it is, `z` JSON deflated, `e` a Fernet token whose plain text
is one of the other two. As text (in a database's row) deflated bytes are in base64; the rest is text anyhow.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import BackendError, ConfigError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet, MultiFernet

__all__ = ["COMPRESS_ABOVE", "Packer", "as_bytes", "as_text", "digest", "is_packed", "is_text"]

#: Bytes of JSON up to which compressing is not worth its time.
COMPRESS_ABOVE = 1024

_JSON, _DEFLATED, _ENCRYPTED = b"o1j", b"o1z", b"o1e"
_MARKS = (_JSON, _DEFLATED, _ENCRYPTED)


class Packer:
    """Packs with one set of settings: `compress_above` bytes (negative: never), the first key encrypts, all decrypt."""

    def __init__(self, compress_above: int = COMPRESS_ABOVE, keys: Sequence[str] = ()) -> None:
        self.compress_above = compress_above
        self._keys = [_fernet(key, place) for place, key in enumerate(keys, 1)]
        self._all = _any_of(self._keys)

    @property
    def encrypts(self) -> bool:
        """Whether what it packs is encrypted."""
        return self._all is not None

    def pack(self, text: bytes) -> bytes:
        """Return JSON text, packed."""
        plain = self._compressed(text)
        return plain if self._all is None else _ENCRYPTED + self._all.encrypt(plain)

    def unpack(self, packed: bytes) -> bytes:
        """Return the JSON text of packed bytes; BackendError when they are damaged or no key opens them."""
        match packed[:3]:
            case b"o1e":
                return self.unpack(self._decrypted(packed[3:]))
            case b"o1z":
                return _inflated(packed[3:])
            case b"o1j":
                return packed[3:]
        raise BackendError(f"{packed[:12]!r}… is not packed by outlast, or by a later version; upgrade outlast here")

    def is_current(self, packed: bytes) -> bool:
        """Say whether packing anew would change how it is kept: it is encrypted with the first key, or need not be."""
        from cryptography.fernet import InvalidToken

        if not self._keys:
            return packed[:3] != _ENCRYPTED
        if packed[:3] != _ENCRYPTED:
            return False
        try:
            self._keys[0].decrypt(packed[3:])
        except InvalidToken:
            return False
        return True

    def _compressed(self, text: bytes) -> bytes:
        if 0 <= self.compress_above < len(text):
            deflated = zlib.compress(text, 6)
            if len(deflated) * 4 < len(text) * 3:  # base64 must not eat up what was saved
                return _DEFLATED + deflated
        return _JSON + text

    def _decrypted(self, token: bytes) -> bytes:
        if self._all is None:
            raise BackendError(
                "a stored value is encrypted, and this process has no key: set [outlast] state_encryption_keys"
            )
        from cryptography.fernet import InvalidToken

        try:
            return self._all.decrypt(token)
        except InvalidToken:
            several = f"none of the {len(self._keys)} keys in [outlast] state_encryption_keys opens"
            tried = several if self._keys[1:] else "the key in [outlast] state_encryption_keys does not open"
            raise BackendError(
                f"{tried} a stored value: add the key it was written with to the end of the list; if that is there, "
                "the value is damaged"
            ) from None


def as_text(packed: bytes) -> str:
    """Return packed bytes as text that fits into JSON."""
    if packed[:3] == _DEFLATED:
        return (_DEFLATED + base64.b64encode(packed[3:])).decode("ascii")
    return packed.decode()


def as_bytes(text: str) -> bytes:
    """Return what `as_text` made into text; BackendError when it is damaged."""
    packed = text.encode("utf-8", "surrogatepass")
    if packed[:3] != _DEFLATED:
        return packed
    try:
        return _DEFLATED + base64.b64decode(packed[3:], validate=True)
    except ValueError:
        raise BackendError("a stored value is damaged: what was compressed is not base64") from None


def is_packed(packed: bytes) -> bool:
    """Say whether bytes begin as packed ones do."""
    return packed[:3] in _MARKS


def is_text(text: object) -> bool:
    """Say whether something is packed bytes as text."""
    return isinstance(text, str) and text[:3].encode("utf-8", "replace") in _MARKS


def digest(data: bytes) -> str:
    """Return the 32 hexadecimal digits by which bytes are checked when they are read."""
    return hashlib.sha256(data).hexdigest()[:32]


def _inflated(body: bytes) -> bytes:
    try:
        return zlib.decompress(body)
    except zlib.error:
        raise BackendError("a stored value is damaged: it cannot be decompressed") from None


def _fernet(key: str, place: int) -> Fernet:
    try:
        from cryptography.fernet import Fernet
    except ImportError:
        raise ConfigError(
            "[outlast] state_encryption_keys needs the cryptography package; pip install 'cryptography'"
        ) from None
    try:
        return Fernet(key)
    except ValueError:
        raise ConfigError(
            f"key {place} of [outlast] state_encryption_keys is not a Fernet key (32 bytes in URL-safe base64); make "
            'one with: python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
        ) from None


def _any_of(keys: Sequence[Fernet]) -> MultiFernet | None:
    if not keys:
        return None
    from cryptography.fernet import MultiFernet

    return MultiFernet(keys)
