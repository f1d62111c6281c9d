"""Where a request comes from, and under which name: a page of this very server, or one of another origin that had it
sent; a name that is the server's, or one that was made to point here."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ..errors import Unauthorized

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from ..config import ServerSettings

__all__ = ["STRANGE_NAME", "hosts_of", "is_meant", "refuse_foreign"]

#: The names of a machine for itself.
OWN_NAMES: Final = ("localhost", "127.0.0.1", "::1")
#: What a request under a strange name is told, with 421: a page may have had the name point here (DNS rebinding).
STRANGE_NAME: Final = "this server does not go by that name; use localhost, or list the name in [server] names"

#: Methods that change nothing.
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS: Final = {"http": 80, "https": 443}


def refuse_foreign(request: HTTPConnection) -> None:
    """Raise Unauthorized where a browser may have been made to send a request by a page of another origin."""
    if request.scope.get("method", "GET") in SAFE:
        return
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is None or not _is_own(origin, host, request.url.scheme):
        raise Unauthorized(
            f"the request comes from {origin or 'nowhere known'}, not from a page of this server ({host}); "
            "a program sends a token instead of a cookie"
        )


@functools.lru_cache(64)
def hosts_of(settings: ServerSettings) -> tuple[str, ...] | None:
    """Return the names a server answers to; None: to any, since others than this machine are meant to reach it."""
    own = settings.uds is not None or settings.host in OWN_NAMES or settings.host.startswith("127.")
    if own or settings.names:
        return (*OWN_NAMES, settings.host, *settings.names)
    return None


def is_meant(hosts: Iterable[str] | None, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Say whether a request's one Host header is among the names."""
    if hosts is None:
        return True
    given = [value for name, value in headers if name == b"host"]
    return len(given) == 1 and _hostname(given[0]) in {host.lower() for host in hosts}


@functools.lru_cache(1024)
def _hostname(host: bytes) -> str | None:
    try:
        return urlsplit(f"//{host.decode('ascii')}").hostname
    except ValueError:
        return None


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Compare an origin with the Host header; behind a proxy that ends TLS, only the scheme may differ, upward."""
    try:
        parts = urlsplit(origin)
        theirs = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        own = urlsplit(f"//{host}")
        ours = own.hostname, own.port or _PORTS.get(parts.scheme)
    except ValueError:
        return False
    return parts.scheme in _PORTS and theirs == ours and (parts.scheme == "https" or scheme == "http")
