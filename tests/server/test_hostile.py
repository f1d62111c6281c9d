"""What a hostile or careless client may do and what not: bodies, imports, call ids, parameters, names, crowds."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import BackendError, connect
from outlast.config import ServerSettings
from outlast.requests import Commit, Find, Part, Put, Read
from outlast.run_requests import ListRuns, StartRun, TaskSpec
from outlast.server.checking import refuse_many
from outlast.server.nameless import nameless
from outlast.server.turns import Turns
from outlast.values import TaskScope
from support.homes import settings
from support.public import V1, Door, open_door
from support.runs import RUNNER
from support.servers import house

pytestmark = pytest.mark.http

SCOPE = TaskScope("etl", "r1", "load")
PLACE = V1 + "/runs/etl/r1/tasks/load/state/key"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        door.task()
        yield door


def call(door: Door, request: Any, call_id: str | None = None) -> tuple[int, Any]:
    """Ask at the workers' door; return the status and the error's code or the reply."""
    from outlast import wire

    answer = door.post("/execution/call", text=wire.encode_call(request, call_id))
    told = answer.json()
    return answer.status, told["error"]["code"] if "error" in told else told["reply"]


# --- Bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "worker"])
@pytest.mark.parametrize("path", [PLACE, V1 + "/commit", V1 + "/import", V1 + "/runs/etl/r1/clear"])
def test_who_may_not_write_at_all_is_refused_before_the_body_has_come(door: Door, role: str, path: str) -> None:
    stranger = door.as_role(role)
    host, _, root = stranger.url.removeprefix("http://").partition("/")
    head = (
        f"{'PUT' if path == PLACE else 'POST'} /{root}{path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {stranger.token}\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection(host.split(":")) as connection:  # type: ignore[arg-type]
        connection.sendall(head.encode())
        connection.settimeout(5)
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_a_value_of_many_parts_is_refused_at_every_door_and_text_that_looks_like_one_is_not(door: Door) -> None:
    many = b"[" + b"[]," * 1_100_000 + b"1]"
    assert door.put(PLACE, text=b'{"value":' + many + b"}").status == 422
    assert call(door, Commit((Part(SCOPE, (Put("key", many.decode(), None),)),))) == (422, "invalid_value")
    refuse_many(b'["' + b'[],\\"' * 1_100_000 + b'"]')


def test_a_value_above_the_limit_is_refused_by_its_size(door: Door) -> None:
    answer = door.put(PLACE, text=b'{"value":"' + b"\\u0041" * 100_000 + b'"}')
    assert answer.status == 422
    assert "max_value_storage_bytes" in answer.text


def test_others_are_answered_while_a_large_body_is_looked_at(door: Door) -> None:
    body = b'{"value":[' + b"[]," * 900_000 + b"1]}"
    answered, done = 0, threading.Event()

    def watch() -> None:
        nonlocal answered
        while not done.is_set():
            door.get("/api/v2/monitor/health")
            answered += not done.is_set()

    thread = threading.Thread(target=watch)
    thread.start()
    assert door.put(PLACE, text=body).status == 422
    done.set()
    thread.join()
    assert answered >= 3  # who is kept waiting until the body has been read gets one answer before, at most


# --- Import ------------------------------------------------------------------------------------------------------


def test_an_import_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    store = connect(tmp_path / "store.db", config=settings())
    url, token = house().move_in(store, ServerSettings(request_seconds=0.3))
    host, _, root = url.removeprefix("http://").partition("/")
    head = (
        f"POST /{root}{V1}/import HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/x-ndjson\r\nContent-Length: 1000000\r\n\r\n"
    )
    try:
        with socket.create_connection(host.split(":")) as connection:  # type: ignore[arg-type]
            connection.sendall(head.encode() + b'{"outl')
            connection.settimeout(5)
            heard = b""
            while b"}" not in heard:
                heard += connection.recv(4096)
            assert heard.startswith(b"HTTP/1.1 422")
            assert b"too slowly" in heard
    finally:
        house().move_out(url)


def test_an_import_larger_than_a_commit_arrives_whole(door: Door) -> None:
    place = {"kind": "task", "dag_id": "etl", "run_id": "r1", "task_id": "load"}
    lines = [{"outlast_export": 1, "made_at": "2026-01-01T00:00:00Z"}]
    lines += [{"scope": place, "key": f"k{number}", "value": number} for number in range(2500)]
    lines += [{"end": True, "entries": 2500, "left_out": 0}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    answer = door.post(V1 + "/import", text=text, headers={"Content-Type": "application/x-ndjson"})
    assert (answer.status, answer.json()) == (200, {"scopes": 1, "entries": 2500, "expired": 0})
    assert door.store.task(SCOPE).get("k2499") == 2499


# --- Calls -------------------------------------------------------------------------------------------------------


def test_a_call_id_used_for_another_request_is_a_conflict(door: Door) -> None:
    def put(text: str) -> Commit:
        return Commit((Part(SCOPE, (Put("key", text, None),)),), sent_at=door.clock.now)

    assert call(door, put("1"), "one")[0] == 200
    door.clock.move(seconds=5)
    assert call(door, put("1"), "one")[0] == 200
    assert call(door, put("2"), "one") == (409, "conflict")
    start = StartRun("etl", "r7", (TaskSpec("load"),), "{}", "f", "d", 0, RUNNER, 30.0)
    assert call(door, start, "one") == (409, "conflict")
    assert call(door, start, "two")[0] == 200
    assert call(door, start, "two")[0] == 200
    assert call(door, put("3"), "two") == (409, "conflict")
    assert door.store.task(SCOPE).get("key") == 1


@pytest.mark.parametrize("call_id", ["x" * 4000, "a\0b"])
def test_a_call_id_no_database_keeps_is_refused(door: Door, call_id: str) -> None:
    assert call(door, Commit((Part(SCOPE, (Put("key", "1", None),)),)), call_id) == (422, "invalid_value")
    scope = {"kind": "task", "dag_id": "etl", "run_id": "r1", "task_id": "load"}
    part = {"scope": scope, "operations": [{"op": "set", "key": "key", "value": 1}]}
    assert door.post(V1 + "/commit", json={"parts": [part], "commit_id": call_id + "-" * 8}).status == 422


@pytest.mark.parametrize(
    "request_",
    [
        Find(dag_id="a\0b"),
        Find(limit=-1),
        Read(SCOPE, None, limit=-1),
        Read(SCOPE, None, offset=-5),
        Read(SCOPE, None, limit=10**30),
        ListRuns(among=("a",) * 200_000),
        ListRuns(among=("a" * 5000,)),
    ],
    ids=["nul", "limit", "read limit", "offset", "huge", "many", "long"],
)
def test_a_mistake_in_what_is_read_is_the_clients(door: Door, request_: Any) -> None:
    assert call(door, request_) == (422, "invalid_value")


@pytest.mark.parametrize("query", ["/find?dag=%00", "/runs?dag_id=a%00b", "/audit?dag_id=%00"])
def test_a_nul_in_a_parameter_is_the_clients_mistake(door: Door, query: str) -> None:
    assert door.get(V1 + query).status == 422


def test_the_workers_door_answers_to_its_own_names_only(door: Door) -> None:
    answer = door.post("/execution/call", text=b"{}", headers={"Host": "evil.example"})
    assert answer.status == 421
    assert answer.json()["error"]["code"] == "not_found"


# --- What is not told --------------------------------------------------------------------------------------------


def test_where_the_database_is_is_not_told(tmp_path: Path) -> None:
    store = connect(tmp_path / "secret place.db", config=settings())
    said = f'PostgreSQL failed on {store.url}: connection to server at "db7", port 5432 failed: database "pay" is gone'
    told = nameless(BackendError(said, "unknown"), store)
    assert isinstance(told, BackendError)
    assert told.outcome == "unknown"
    assert not any(name in told.message for name in ("secret place", "db7", "5432", "pay"))
    store.close()


def test_a_write_that_fails_makes_the_server_unhealthy_until_one_succeeds(door: Door) -> None:
    path, aside = door.store.backend.path, door.store.backend.path + ".aside"  # type: ignore[attr-defined]
    Path(path).rename(aside)
    assert door.put(PLACE, value=1).status == 503
    Path(aside).rename(path)
    told = door.get(V1 + "/health").json()
    assert told["status"] == "unhealthy"
    assert "the last write failed" in told["problems"][0]
    assert path not in told["problems"][0]
    assert door.put(PLACE, value=1).status == 200
    assert door.get(V1 + "/health").json()["problems"] == []


def test_what_is_counted_over_all_dags_is_for_those_who_see_all(door: Door) -> None:
    some = door.as_role("viewer", "etl").get(V1 + "/health").json()
    names = ("leases", "expired_unswept", "fenced_calls", "event_streams")
    assert [some[name] for name in names] == [None] * 4
    assert [door.get(V1 + "/health").json()[name] for name in names] == [0] * 4


def test_who_goes_away_in_the_middle_leaves_no_traceback(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    host, _, root = door.url.removeprefix("http://").partition("/")
    for path in (f"PUT /{root}{PLACE}", f"POST /{root}{V1}/import", f"POST /{root}/execution/call"):
        with socket.create_connection(host.split(":")) as connection:  # type: ignore[arg-type]
            head = f"{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {door.token}\r\n"
            connection.sendall(head.encode() + b"Content-Type: application/x-ndjson\r\nContent-Length: 99\r\n\r\n{")
            time.sleep(0.1)
    assert door.get("/api/v2/monitor/health").status == 200
    assert [record for record in caplog.records if record.exc_info] == []


# --- Crowds ------------------------------------------------------------------------------------------------------


def test_who_waits_for_many_turns_does_not_keep_others_waiting() -> None:
    async def crowd() -> list[str]:
        turns, order = Turns(2), list[str]()

        async def one(who: str) -> None:
            async with turns.turn(who):
                order.append(who)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(one("many") for _ in range(5)), one("ann"), one("bob"))
        gone = asyncio.create_task(one("gone"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await asyncio.wait_for(one("late"), 1)
        return order

    order = asyncio.run(crowd())
    assert order[:2] == ["many", "ann"]
    assert order.index("bob") <= 3
    assert order[-1] == "late"


def test_streams_that_are_not_read_keep_nobody_elses_reset_waiting(door: Door) -> None:
    for number in range(40):
        door.store.task(SCOPE).set(f"big{number:02}", "y" * 60_000)
    many, other = door.as_role("viewer"), door.as_role("viewer")
    crowd = [_stream(many) for _ in range(40)]
    time.sleep(0.5)
    began = time.monotonic()
    with _stream(other) as stream:
        stream.settimeout(10)
        heard = b""
        while b"event: position" not in heard:
            heard = heard[-100:] + stream.recv(1 << 20)
    assert time.monotonic() - began < 5
    for each in crowd:
        each.close()


def _stream(door: Door) -> socket.socket:
    host, _, root = door.url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.connect((name, int(port)))
    head = (
        f"GET /{root}{V1}/events?after=start HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {door.token}\r\n\r\n"
    )
    stream.sendall(head.encode())
    return stream


def test_a_session_that_was_left_is_good_for_nothing(door: Door) -> None:
    host, _, root = door.url.removeprefix("http://").partition("/")

    def ask(method: str, path: str, body: str | None = None, **headers: str) -> Any:
        connection = http.client.HTTPConnection(host)
        connection.request(method, f"/{root}{path}", body, {"Origin": f"http://{host}", **headers})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    viewer = door.as_role("viewer")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    cookie = ask("POST", "/login", f"token={viewer.token}", **form).headers["Set-Cookie"].partition(";")[0]
    assert ask("GET", V1 + "/health", Cookie=cookie).status == 200
    assert ask("POST", "/logout", Cookie=cookie).status == 200
    assert ask("GET", V1 + "/health", Cookie=cookie).status == 401
