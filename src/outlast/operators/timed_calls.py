"""HTTP calls with one time limit for the whole of each: connecting, sending, and every byte of the reply."""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
import time
import urllib.request
from http.client import HTTPResponse
from typing import Any

__all__ = ["NotConnected", "open_within"]

#: Connections of one call share its deadline, a moment of `time.monotonic()`.
_FOREVER = float("inf")


class NotConnected(OSError):
    """No connection was made, so that nothing has been sent."""


def open_within(request: urllib.request.Request, seconds: float) -> HTTPResponse:
    """Make a call and return its reply, whose body is read against the same limit: TimeoutError once it is reached.

    A redirect is an error as other statuses are. Looking up the host's name counts, but is not interrupted.
    """
    reply: HTTPResponse = _opener().open(request, timeout=seconds)
    return reply


class _Timed:
    """Mixed into a socket: a call that waits may do so until `deadline`, however little arrives at a time."""

    deadline = _FOREVER

    def limit(self) -> None:
        """Let the next call wait for what is left; TimeoutError if nothing is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == _FOREVER else left)  # type: ignore[attr-defined]

    def recv_into(self, *arguments: Any) -> int:
        self.limit()
        return super().recv_into(*arguments)  # type: ignore[misc, no-any-return]

    def send(self, *arguments: Any) -> int:
        self.limit()
        return super().send(*arguments)  # type: ignore[misc, no-any-return]

    def sendall(self, *arguments: Any) -> None:
        self.limit()
        super().sendall(*arguments)  # type: ignore[misc]


class _Socket(_Timed, socket.socket):
    """A plain connection."""


class _SecureSocket(_Timed, ssl.SSLSocket):
    """A TLS connection. Its handshake, one call, takes the limit over from the connection below."""


class _Connecting(http.client.HTTPConnection):
    """Makes connections that are timed; `timeout` is for all it does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.deadline = time.monotonic() + (self.timeout or _FOREVER)
        self._create_connection = self._connected

    def connect(self) -> None:
        try:
            super().connect()
        except OSError as error:
            raise NotConnected(*error.args) from error
        assert isinstance(self.sock, _Timed)
        self.sock.deadline = self.deadline

    def _connected(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """Connect to the first address that answers; each may take its share of what is left."""
        error: OSError = OSError(f"{address[0]} has no address")
        places = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _name, place) in enumerate(places):
            made = _Socket(family, kind, protocol)
            try:
                made.deadline = time.monotonic() + (self.deadline - time.monotonic()) / (len(places) - number)
                made.limit()
                made.connect(place)
                made.deadline = self.deadline
                made.limit()
                return made
            except OSError as failed:
                made.close()
                error = failed
        raise error


class _Connection(_Connecting):
    """An HTTP connection."""


class _SecureConnection(_Connecting, http.client.HTTPSConnection):
    """An HTTPS connection."""


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req, context=_tls())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for the answer: followed, it would carry headers elsewhere and turn a submission into a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect, _Handler, _SecureHandler)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return how certificates are checked: as the system does; read once, for it takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = _SecureSocket
    return context
