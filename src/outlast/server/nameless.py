"""Errors of the database as they are told over HTTP: where it is, and what it is called, is the server's own affair."""

from __future__ import annotations

import re
from typing import Final

from ..config import without_password
from ..errors import BackendError, ConfigError, OutlastError, rebuild
from ..store import Store

__all__ = ["nameless", "nameless_text"]

#: What a driver says of where it has connected to, and as whom.
_QUOTED: Final = re.compile(r'\b(server at|host|host name|database|user|role|socket) "[^"]*"')
_ADDRESS: Final = re.compile(r"\(\d+\.\d+\.\d+\.\d+\)|, port \d+|\((?:::|[0-9a-f]+:)[0-9a-f:]*\)")


def nameless(error: OutlastError, store: Store) -> OutlastError:
    """Return an error as anybody may be told it."""
    if not isinstance(error, BackendError | ConfigError):
        return error
    return rebuild(error.code, nameless_text(error.message, store), error.fields())


def nameless_text(text: str, store: Store) -> str:
    """Return a text without what the store is called."""
    backend = store.backend
    known = {store.url, without_password(store.url), *(str(getattr(backend, name, "")) for name in ("path", "place"))}
    for name in sorted(known, key=len, reverse=True):
        if len(name) > 3:
            text = text.replace(name, "the store")
    return _ADDRESS.sub("", _QUOTED.sub(r'\1 "…"', text))
