"""Kept-alive connections to one server, a stack that threads take from: opened when needed, closed after a fork."""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections import deque
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import Any

import msgspec

from ..config import without_password
from ..errors import ConfigError

__all__ = ["Lost", "Place", "Pool"]

#: Seconds after which an unused connection is closed; a server keeps it for longer.
IDLE_SECONDS = 30.0
#: Seconds a connection may take to be made.
CONNECT_SECONDS = 10.0
#: Seconds to find out whether a server that hung up speaks TLS.
PROBE_SECONDS = 2.0
PORTS = {"http": 80, "https": 443}
#: What a handshake ends with where the other side answers in plain text.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})


class Lost(Exception):
    """A try that brought no answer.

    `sent`: the server may have carried it out all the same. `stale`: the connection had been kept and was closed
    meanwhile. `again`: another try may do better.
    """

    def __init__(self, message: str, *, sent: bool, stale: bool = False, again: bool = True) -> None:
        super().__init__(message)
        self.sent, self.stale, self.again = sent, stale, again


class Place(msgspec.Struct, frozen=True):
    """Where a server listens: a host and port or a Unix socket, and the path it is shown under."""

    scheme: str
    host: str
    port: int
    root: str

    def __str__(self) -> str:
        return f"unix://{self.host}" if self.scheme == "unix" else f"{self.scheme}://{self.authority}{self.root}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """What a token for this place is filed under."""
        return self.host if self.scheme == "unix" else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: str) -> Place:
        """Read `http://HOST:PORT`, `https://HOST/PATH` or `unix:///PATH`; ConfigError for anything else."""
        from urllib.parse import unquote, urlsplit

        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{without_password(url)!r} is not a server's URL: {error}") from None
        if "@" in parts.netloc:
            raise ConfigError(
                f"the URL of the server at {parts.netloc.rpartition('@')[2]} has a user or a token before its host; "
                "leave that out, and give the token in OUTLAST_TOKEN or [client] token"
            )
        if parts.query or parts.fragment:
            raise ConfigError(
                f"{without_password(url)!r} has more than a place in it; write http://HOST:PORT, and give the token "
                "in OUTLAST_TOKEN or [client] token"
            )
        if parts.scheme == "unix":
            if parts.netloc or not parts.path.strip("/"):
                raise ConfigError(f"{url!r} names no Unix socket; write unix:///PATH, with three slashes")
            return cls("unix", unquote(parts.path), 0, "")
        if not parts.hostname:
            raise ConfigError(f"{url!r} names no host; write {parts.scheme}://HOST:PORT")
        return cls(parts.scheme, parts.hostname, port or PORTS[parts.scheme], parts.path.rstrip("/"))


class Pool:
    """Posts bodies to one server's door; safe to share between threads."""

    def __init__(self, place: Place, timeout: float, ca_file: str | None = None) -> None:
        self.place, self.timeout, self.ca_file = place, timeout, ca_file
        host = "localhost" if place.scheme == "unix" else place.authority
        self._head = (
            f"POST {place.root}/execution/call HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        ).encode()
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._tls: Any = None
        self._closed = self._probed = False
        _all.add(self)

    def post(self, body: bytes, token: str | None) -> tuple[int, bytes]:
        """Return the status and body answered; Lost when there was no answer."""
        if self._closed:
            raise Lost(f"the store {self.place} was closed; connect again", sent=False, again=False)
        connection, kept = self._take()
        authorization = b"" if token is None else b"Authorization: Bearer %b\r\n" % token.encode()
        try:
            connection.sendall(b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, authorization, len(body), body))
            answer = _read(connection)
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            timed_out = isinstance(error, TimeoutError)
            if not kept and not timed_out:
                self._refuse_tls_port()
            why = f"no answer within {self.timeout:g} s" if timed_out else str(error) or type(error).__name__
            raise Lost(f"{self.place}: {why}", sent=True, stale=kept and not timed_out) from error
        except BaseException:  # an interrupt: what is still to come belongs to nobody
            connection.close()
            raise
        self._give(connection, answer[2])
        return answer[0], answer[1]

    def close(self) -> None:
        """Close what is idle; a connection in use is closed when its call ends."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Close every idle connection; the next call opens another."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop()[0].close()

    def __del__(self) -> None:
        try:
            self.drop()
        except Exception:  # at the interpreter's end its own names may be gone, those of contextlib included
            pass

    def _take(self) -> tuple[socket.socket, bool]:
        """Return a connection, and whether it has been used before."""
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if time.monotonic() - since < IDLE_SECONDS and not _has_news(connection):
                return connection, True
            connection.close()
        try:
            return self._connect(), False
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> Exception:
        """Return what is to be raised where no connection could be made."""
        reason = getattr(error, "reason", None)
        if reason in _NO_TLS:
            return ConfigError(f"{self.place} answers without TLS; write http:// in the place of https://")
        distrusted = "CERTIFICATE" in str(error)
        hint = "; name the authority that has signed it in [client] ca_file" if distrusted else ""
        again = not isinstance(error, PermissionError) and not distrusted
        return Lost(f"{self.place} cannot be reached: {error}{hint}", sent=False, again=again)

    def _refuse_tls_port(self) -> None:
        """Raise ConfigError where a server hangs up because it is spoken to without TLS; looked at once."""
        if self.place.scheme != "http" or self._probed:
            return
        self._probed = True
        if _speaks_tls(self.place):
            raise ConfigError(f"{self.place} expects TLS; write https:// in the place of http://")

    def _give(self, connection: socket.socket, last: bool) -> None:
        if last or self._closed:
            connection.close()
            return
        now = time.monotonic()
        self._idle.append((connection, now))
        while self._idle and now - self._idle[0][1] > IDLE_SECONDS:
            with suppress(IndexError):
                self._idle.popleft()[0].close()

    def _connect(self) -> socket.socket:
        place, patience = self.place, min(CONNECT_SECONDS, self.timeout)
        if place.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(patience)
                connection.connect(place.host)
            except BaseException:
                connection.close()
                raise
        else:
            connection = socket.create_connection((place.host, place.port), patience)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if place.scheme == "https":
            connection = self._wrapped(connection)
        connection.settimeout(self.timeout)
        return connection

    def _wrapped(self, connection: socket.socket) -> socket.socket:
        if self._tls is None:
            import ssl  # 10 ms at import, and reading the system's certificates

            self._tls = ssl.create_default_context()
            if self.ca_file is not None:
                self._tls.load_verify_locations(self.ca_file)
        try:
            wrapped: socket.socket = self._tls.wrap_socket(connection, server_hostname=self.place.host)
        except BaseException:
            connection.close()
            raise
        return wrapped


def _speaks_tls(place: Place) -> bool:
    """Say whether TLS is spoken at a place, whoever vouches for it: what begins a handshake is answered by a record."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    told, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(told, hello).do_handshake()
    try:
        with socket.create_connection((place.host, place.port), PROBE_SECONDS) as plain:
            plain.sendall(hello.read())
            return plain.recv(1) in (b"\x15", b"\x16")  # an alert, or its part of the handshake
    except OSError:
        return False


def _read(connection: socket.socket) -> tuple[int, bytes, bool]:
    """Return status and body of an answer, and whether the connection ends with it."""
    response = HTTPResponse(connection, method="POST")
    try:
        response.begin()
        return response.status, response.read(), response.will_close
    finally:
        response.close()


def _has_news(connection: socket.socket) -> bool:
    """Say whether an idle connection has something to read: its end, since nobody has asked anything."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(0))


_all: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_all):
        pool.drop()  # only this process's copies of the descriptors: the parent's connections live on


os.register_at_fork(after_in_child=_after_fork)
