"""The workers' door, from outside: what it takes, what it refuses, and with which status."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast import Store, connect
from outlast.config import ServerSettings
from outlast.requests import Commit, Find, Increment, Inspect, Open, Part, Put, Read
from outlast.run_requests import ListRuns
from outlast.server.connections import HEAD_BYTES
from outlast.server.execution import _Whole
from outlast.token_requests import CreateToken, digest_of, token_text
from outlast.values import TaskScope, Writer
from outlast.wire import decode_answer, encode_call
from support.homes import settings
from support.servers import house

pytestmark = pytest.mark.http

SCOPE = TaskScope("dag", "run", "task")
CANONICAL = ["0", "-0.0", "1.0", str(2**70), "9" * 4000, '"\\u0000é😀"', "[" * 99 + "]" * 99, '{"b":1,"a":[null,true]}']
NOT_CANONICAL = ["null", "{", "[1, 2]", '{"a":1,"a":2}', "1e400", "NaN", "1.50", "[" * 200 + "]" * 200, "9" * 4001]


class Door:
    """Knocks with raw bytes."""

    def __init__(self, store: Store, url: str, token: str) -> None:
        self.store, self.url, self.token = store, url, token
        self.host, _, self.root = url.removeprefix("http://").partition("/")

    def post(self, body: bytes, token: str | None = "", **headers: str) -> tuple[int, Any]:
        shown = self.token if token == "" else token
        if shown is not None:
            headers["Authorization"] = f"Bearer {shown}"
        connection = http.client.HTTPConnection(self.host, timeout=20)
        try:
            connection.request("POST", f"/{self.root}/execution/call", body, headers)
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read())
        finally:
            connection.close()

    def ask(self, request: Any, token: str | None = "") -> tuple[int, Any]:
        return self.post(encode_call(request, "id"), token)

    def made(self, role: Any, *dags: str) -> str:
        """Return a token of a role."""
        token = token_text(role, role.encode().ljust(32, b"."))
        self.store.backend.send(CreateToken(digest_of(token), role, "program", Writer("person", name="ann"), dags))
        return token


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    store = connect(tmp_path / "store.db", config=settings())
    url, token = house().move_in(store)
    yield Door(store, url, token)
    house().move_out(url)


def put(text: str, key: str = "key", expires_at: int | None = None) -> Commit:
    return Commit((Part(SCOPE, (Put(key, text, expires_at),)),))


def test_one_request_in_one_reply_out(door: Door) -> None:
    status, answer = door.ask(put("[1]"))
    assert (status, answer["reply"]["type"], answer["token"]) == (200, "receipt", None)
    assert door.store.task(SCOPE).get("key") == [1]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_value"),
        (b"{", "invalid_value"),
        (b'{"request": {"type": "nonsense"}}', "invalid_value"),
        (b'{"request": {"type": "inspect", "deeper": 1}}', "invalid_value"),
        (b"[" * 200_000, "invalid_value"),
    ],
)
def test_what_is_no_call_is_unprocessable(door: Door, body: bytes, code: str) -> None:
    status, answer = door.post(body)
    assert (status, answer["error"]["code"]) == (422, code)


@pytest.mark.parametrize(
    "text", ["null", "{", "[1, 2]", '{"a":1,"a":2}', "1e400", "NaN", "1.50", "[" * 200 + "]" * 200, "9" * 4001]
)
def test_a_value_that_could_not_be_read_back_as_it_is_is_refused(door: Door, text: str) -> None:
    """Contract 2.2: no stored value can make a later read, list or search fail."""
    status, answer = door.ask(put(text))
    assert (status, answer["error"]["code"]) == (422, "invalid_value"), answer
    assert door.store.task(SCOPE).items() == []


@pytest.mark.parametrize(
    "text", ["0", "-0.0", "1.0", str(2**70), "9" * 4000, '"\\u0000é😀"', "[" * 99 + "]" * 99, '{"b":1,"a":[null,true]}']
)
def test_any_other_is_kept_as_it_is(door: Door, text: str) -> None:
    assert door.ask(put(text))[0] == 200
    found = door.store.backend.send(Read(SCOPE, ("key",)))
    assert found.rows[0].text == text


@pytest.mark.parametrize("key", ["", ".", "a/../b", "a\nb", "x" * 513])
def test_a_bad_key_is_refused(door: Door, key: str) -> None:
    status, answer = door.ask(put("1", key))
    assert (status, answer["error"]["code"]) == (422, "invalid_key")


@pytest.mark.parametrize("scope", [TaskScope("", "r", "t"), TaskScope("a/b", "r", "t"), TaskScope("d", "r", "t", -2)])
def test_a_bad_scope_is_refused(door: Door, scope: TaskScope) -> None:
    for request in (Open(scope, None), Commit((Part(scope, (Put("key", "1", None),)),))):
        status, answer = door.ask(request)
        assert (status, answer["error"]["code"]) == (422, "invalid_key")
    assert door.store.scopes() == []


@pytest.mark.parametrize("moment", [2**62, -(2**70)])
def test_an_expiry_no_calendar_has_is_refused(door: Door, moment: int) -> None:
    status, answer = door.ask(put("1", expires_at=moment))
    assert (status, answer["error"]["code"]) == (422, "invalid_value")


@pytest.mark.parametrize("request_", [ListRuns(limit=2**70), Find(limit=2**70), Open(SCOPE, 2**70)])
def test_a_number_no_database_has_is_refused(door: Door, request_: Any) -> None:
    status, answer = door.ask(request_)
    assert (status, answer["error"]["code"]) == (422, "invalid_value")


def test_an_increment_of_too_many_digits_is_refused(door: Door) -> None:
    status, answer = door.ask(Commit((Part(SCOPE, (Increment("key", 10**4000, None),)),)))
    assert (status, answer["error"]["code"]) == (422, "invalid_value")


def test_without_a_token_nothing_is_read_not_even_the_call(door: Door) -> None:
    for token in (None, "nonsense"):
        status, answer = door.post(b"{", token)
        assert (status, answer["error"]["code"]) == (401, "unauthorized")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    store = connect(tmp_path / "store.db", config=settings())
    url, token = house().move_in(store, ServerSettings(max_body_bytes=2048))
    door = Door(store, url, token)
    try:
        assert door.ask(put('"' + "x" * 3000 + '"'))[0] == 200  # the workers' door takes twice as much
        status, answer = door.ask(put('"' + "x" * 5000 + '"'))
        assert (status, answer["error"]["code"]) == (413, "value_too_large")
        with socket.create_connection(door.host.split(":")) as connection:  # type: ignore[arg-type]
            connection.sendall(_head(door, "Content-Length: 9000000"))
            assert b"413" in connection.recv(4096)
    finally:
        house().move_out(url)


def test_a_value_of_sixteen_megabytes_passes_and_a_larger_one_does_not(door: Door) -> None:
    """Contract 2.4; every quotation mark doubles on the wire."""
    items = (16 * 1024 * 1024 - 2) // 5
    text = "[" + ",".join(['"\\""'] * items) + "]"
    assert door.ask(put(text))[0] == 200
    status, answer = door.ask(put('"' + "x" * (16 * 1024 * 1024) + '"'))
    assert (status, answer["error"]["code"]) == (413, "value_too_large")


def test_a_body_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    store = connect(tmp_path / "store.db", config=settings())
    url, token = house().move_in(store, ServerSettings(request_seconds=0.2))
    door = Door(store, url, token)
    try:
        with socket.create_connection(door.host.split(":")) as connection:  # type: ignore[arg-type]
            connection.sendall(_head(door, "Content-Length: 100") + b"{")
            connection.settimeout(10)
            answer = b""
            while chunk := connection.recv(4096):  # until the server closes it
                answer += chunk
            assert b"did not arrive" in answer
    finally:
        house().move_out(url)


def test_a_head_without_an_end_is_cut_off(door: Door) -> None:
    with socket.create_connection(door.host.split(":")) as connection:  # type: ignore[arg-type]
        connection.settimeout(10)
        connection.sendall(f"POST /{door.root}/execution/call HTTP/1.1\r\n".encode())
        answer = b""
        try:
            for number in range(2 * HEAD_BYTES // 1000):
                connection.sendall(f"X-Header-{number}: {'x' * 1000}\r\n".encode())
                time.sleep(0.001)
            answer = connection.recv(4096)
        except ConnectionError:
            return
        assert b"431" in answer


def _head(door: Door, *more: str) -> bytes:
    lines = [f"POST /{door.root}/execution/call HTTP/1.1", f"Host: {door.host}", f"Authorization: Bearer {door.token}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


# --- attempts' tokens --------------------------------------------------------------------------------------


def test_a_worker_gets_its_attempts_token_at_open_and_nothing_else_without_it(door: Door) -> None:
    worker = door.made("worker", "dag")
    status, answer = door.ask(Open(SCOPE, None), worker)
    assert status == 200
    own = answer["token"]
    assert decode_answer(Open, msgspec.json.encode(answer)).reply.attempt == 1
    assert door.ask(put("1"), worker)[0] == 401
    assert door.ask(put("1"), own)[0] == 200
    assert door.ask(Open(TaskScope("other", "run", "task"), None), worker)[0] == 404
    assert door.ask(Inspect(), own)[0] == 401


def test_a_newer_attempt_makes_the_older_ones_token_stale(door: Door) -> None:
    """Contract 5.3."""
    worker = door.made("worker", "dag")
    old = door.ask(Open(SCOPE, None), worker)[1]["token"]
    door.post(encode_call(Open(SCOPE, None), "another"), worker)
    status, answer = door.ask(put("1"), old)
    assert (status, answer["error"]["code"]) == (409, "stale_attempt")


def test_the_client_shows_an_attempts_token_by_itself(door: Door) -> None:
    from outlast.config import ClientSettings, Config

    with connect(door.url, config=Config(client=ClientSettings(token=door.made("worker", "dag")))) as store:
        state = store.task("dag/run/task", attempt="new")
        state.set("key", 1)
        assert state.get("key") == 1
        entry = state.entry("key")
    assert entry is not None
    assert entry.writer.kind == "task"


def test_there_is_nothing_on_other_paths_and_methods(door: Door) -> None:
    connection = http.client.HTTPConnection(door.host, timeout=20)
    for method, path, status in (
        ("GET", "/execution/call", 404),
        ("POST", "/execution/call/", 404),
        ("GET", "/nowhere", 404),
    ):
        connection.request(method, f"/{door.root}{path}")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


# --- what only uvicorn knows -------------------------------------------------------------------------------


class Sending:
    """What a server is to send: pieces that have left."""

    def __init__(self) -> None:
        self.left: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.left.append(data)

    def close(self) -> None:
        self.closed = True


def test_an_answer_leaves_in_one_piece() -> None:
    sending = Sending()
    whole = _Whole(sending)
    whole.write(b"head ")
    assert sending.left == []
    whole.write(b"body")
    whole.close()
    assert (sending.left, sending.closed) == ([b"head body"], True)


def test_a_call_in_pieces_and_a_chunked_one_are_read_to_the_end(door: Door) -> None:
    body = encode_call(put('"' + "x" * 300_000 + '"'), "pieces")
    heads = (b"Content-Length: %d\r\n" % len(body), b"Transfer-Encoding: chunked\r\n")
    for head in heads:
        with socket.create_connection((door.host.partition(":")[0], int(door.host.partition(":")[2])), 20) as caller:
            start = f"POST /{door.root}/execution/call HTTP/1.1\r\nHost: {door.host}\r\n"
            caller.sendall(
                f"{start}Authorization: Bearer {door.token}\r\nConnection: close\r\n".encode() + head + b"\r\n"
            )
            for place in range(0, len(body), 100_000):
                piece = body[place : place + 100_000]
                caller.sendall(piece if head is heads[0] else b"%x\r\n%b\r\n" % (len(piece), piece))
                time.sleep(0.02)
            caller.sendall(b"" if head is heads[0] else b"0\r\n\r\n")
            answer = b"".join(iter(lambda: caller.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
    assert len(door.store.task(SCOPE).get("key")) == 300_000
