"""Connections end: those whose requests do not, those that grow, and those that are too many."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from outlast import connect
from outlast.config import ServerSettings
from outlast.server.connections import HEAD_BYTES
from support.servers import ServerProcess

pytestmark = pytest.mark.http

GET = b"GET /api/v2/monitor/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LOGIN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length: 1000\r\n\r\ntoken="


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server that waits a second for what a client has begun."""
    monkeypatch.setenv("OUTLAST__SERVER__REQUEST_SECONDS", "1")
    with ServerProcess(tmp_path / "store.db") as server:
        yield "127.0.0.1", int(server.url.rpartition(":")[2])


def said(connection: socket.socket) -> bytes:
    """Return everything the server says until it closes the connection."""
    heard = b""
    connection.settimeout(6)
    try:
        while chunk := connection.recv(65536):
            heard += chunk
    except ConnectionResetError:
        pass
    return heard


@pytest.mark.parametrize(
    ("first", "then", "status"),
    [
        (b"", b"", b""),
        (b"\r\n", b"", b""),
        (b"GET / HT", b"", b""),
        (GET, b"\r\n", b"200"),
        (GET, b"GET / HT", b"200"),
        (GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000\r\n\r\n"), b"x", b"200"),
        (GET.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), b"1\r\nx\r\n", b"200"),
        (LOGIN, b"", b"401"),
    ],
)
def test_what_is_not_finished_is_waited_for_and_then_closed(
    place: tuple[str, int], first: bytes, then: bytes, status: bytes
) -> None:
    with socket.create_connection(place) as connection:
        began = time.monotonic()
        connection.sendall(first)
        if then:
            assert connection.recv(12) == b"HTTP/1.1 " + status
            connection.sendall(then)
        assert status in said(connection)[:12] + (status if then else b"")
        assert time.monotonic() - began < 4


def test_a_body_that_is_refused_is_taken_off_the_wire_and_the_connection_goes_on(place: tuple[str, int]) -> None:
    body = b"x" * 3_000_000
    post = b"POST /execution/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(place) as connection:
        connection.sendall(post + body)
        connection.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        heard = said(connection)
    assert heard.startswith(b"HTTP/1.1 401")
    assert heard.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize("begin", [b"X: ", b"X: 1\r\nY: "])
def test_what_follows_the_last_chunk_has_an_end(place: tuple[str, int], begin: bytes) -> None:
    head = b"POST /execution/call HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with socket.create_connection(place) as connection:
        connection.sendall(head + begin)
        sent = 0
        with suppress(ConnectionError):
            while sent < 100 * HEAD_BYTES:
                sent += connection.send(b"a" * 1000)
                time.sleep(0.0005)
    assert sent < 40 * HEAD_BYTES  # most of it in the buffers of the sockets


def test_refusals_of_what_is_no_request_are_json(place: tuple[str, int]) -> None:
    for sent, status in ((b"\x16\x03\x01\r\n\r\n", b"400"), (GET[:-2] + b"X: " + b"a" * 400_000, b"431")):
        with socket.create_connection(place) as connection:
            connection.sendall(sent)
            head, _, body = said(connection).partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert b"application/json" in head
        assert msgspec.json.decode(body)["code"] == "invalid_value"


def test_there_are_as_many_connections_as_files_allow_and_one_more_is_refused(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -n 128; exec "$0" "$@"']
    server = ServerProcess(tmp_path / "store.db")
    server.command = limited + server.command
    with server:
        place = "127.0.0.1", int(server.url.rpartition(":")[2])
        crowd = [socket.create_connection(place) for _ in range(70)]
        heard = said(crowd[-1])
        assert heard.startswith(b"HTTP/1.1 503")
        assert b'"code":"backend_error"' in heard
        for one in crowd:
            one.close()
        connect(server.url).task("d/r/t").set("k", 1)
        assert server.stop()[2].count("connections are open") == 1


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store.db")
    server.command = ["sh", "-c", 'ulimit -Sn 128; exec "$0" "$@"', *server.command]
    with server:
        assert server.process is not None
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
        soft, hard = line.split()[3:5]
        assert soft == hard


def test_the_default_wait_is_that_of_the_settings() -> None:
    assert ServerSettings().request_seconds == 30
