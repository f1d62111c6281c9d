"""State out of one store and into another, as one JSON stream."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.requests import LIBRARY
from outlast.token_requests import RevokeToken
from outlast.values import TaskScope
from support.public import V1, Door, open_door
from support.servers import house

SCOPE = {"type": "task", "dag_id": "etl", "run_id": "r1", "task_id": "load"}
EXPORT, IMPORT = V1 + "/export", V1 + "/import"
BIG = 2**70


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    (tmp_path / "one").mkdir()
    with open_door(tmp_path / "one", secret_keys=("*token*",)) as door:
        door.task().set_many({"page": BIG, "ä/b": [1.0, -0.0, "\0"]})
        door.task("each", 0).set("page", 0)
        door.store.task(TaskScope("etl", "r1", "each", -1, "blue")).set("page", "blue")
        door.task(run_id="r2").set("page", 2)
        door.task(dag_id="other").set("page", 3)
        door.store.asset("orders", uri="s3://o").set("watermark", "w")
        yield door


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Door]:
    (tmp_path / "two").mkdir()
    with open_door(tmp_path / "two", secret_keys=("*token*",)) as door:
        yield door


def lines(door: Door, query: str = "") -> list[str]:
    answer = door.get(EXPORT + query)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-ndjson")
    return answer.text.splitlines()


def everything(door: Door) -> list[tuple[str, object, object]]:
    found = [*door.store.find(), *door.store.find(assets=True)]
    return sorted(
        (str(match.scope) + " " + match.entry.key, match.entry.value, match.entry.expires_at) for match in found
    )


def test_everything_goes_over_exactly(door: Door, other: Door) -> None:
    stream = door.get(EXPORT).content
    assert f'"value":{BIG}'.encode() in stream
    assert b'"value":[1.0,-0.0,"\\u0000"]' in stream
    answer = other.post(IMPORT, text=stream, headers={"Content-Type": "application/x-ndjson"})
    assert (answer.status, answer.json()) == (200, {"entries": 7, "scopes": 6, "expired": 0})
    assert everything(other) == everything(door)
    assert {row.who for row in other.store.runs_as(LIBRARY).audit()} == {"ann@desk"}
    assert other.post(IMPORT, text=stream).status == 200  # again: the same
    assert everything(other) == everything(door)


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("", 7),
        ("?dag_id=etl", 5),
        ("?dag_id=etl&run_id=r1", 4),
        ("?dag_id=etl&run_id=r1&task_id=each", 2),
        ("?dag_id=etl&run_id=r1&task_id=each&map_index=0", 1),
        ("?dag_id=none", 0),
        ("?asset=orders", 1),
        ("?asset=s3://o", 1),
        ("?asset=none", 0),
    ],
)
def test_a_scope_a_run_a_dag_or_an_asset(door: Door, query: str, number: int) -> None:
    found = lines(door, query)
    assert len(found) == number + 2
    assert found[0].startswith('{"outlast_export":1,"made_at":"2026-11-29T12:00:00Z"')
    assert found[-1] == f'{{"end":true,"entries":{number},"left_out":0}}'


@pytest.mark.parametrize("query", ["?run_id=r1", "?dag_id=etl&map_index=1", "?asset=orders&dag_id=etl"])
def test_a_place_that_is_not_whole_is_422(door: Door, query: str) -> None:
    assert door.get(EXPORT + query).status == 422


def test_more_entries_than_a_page(door: Door, other: Door) -> None:
    door.task("many").set_many({f"key{number:04}": number for number in range(1700)})
    stream = door.get(EXPORT + "?dag_id=etl&run_id=r1&task_id=many").content
    assert other.post(IMPORT, text=stream).json() == {"entries": 1700, "scopes": 1, "expired": 0}
    assert len(other.task("many").keys()) == 1700


def test_secret_keys_are_left_out_unless_an_admin_asks(door: Door, other: Door) -> None:
    door.task().set("token", "hunter2")
    for asker, query in ((door, ""), (door.as_role("viewer"), "?reveal=true")):
        found = lines(asker, query)
        assert not any("token" in line for line in found)
        assert '"left_out":1' in found[-1]
    stream = door.get(EXPORT + "?reveal=true").content
    assert other.post(IMPORT, text=stream).status == 200
    assert other.task().get("token") == "hunter2"


def test_a_mask_is_refused_before_anything_is_written(door: Door, other: Door) -> None:
    door.task("zzz").set("token", "***")
    answer = other.post(IMPORT, text=door.get(EXPORT + "?reveal=true").content)
    assert answer.status == 422
    assert "mask" in answer.json()["detail"]
    assert other.store.scopes() == []


def test_a_stream_that_broke_off_or_was_changed_is_refused_before_anything_is_written(door: Door, other: Door) -> None:
    good = door.get(EXPORT).content
    parts = good.splitlines(keepends=True)
    for stream in (
        b"",
        b"x",
        b"".join(parts[:-1]),
        good[:-20],
        b"".join(parts[1:]),
        b"".join(parts[:2] + parts[3:]),
        good + parts[1],
        good + good,
        b"".join([parts[0], b'{"scope":{"kind":"task"}}\n', *parts[1:]]),
        b"".join([parts[0], b"\xff\n", parts[-1]]),
        good.replace(b'"outlast_export":1', b'"outlast_export":2'),
        good.replace(b'"value":"w"', b'"value":null'),
        good.replace(b'"value":"w"', b'"value":NaN'),
        good.replace(b'"key":"watermark"', b'"key":".."'),
    ):
        assert other.post(IMPORT, text=stream).status == 422, stream[:200]
        assert other.store.scopes() == []
        assert other.store.scopes(assets=True) == []


def test_what_has_expired_meanwhile_is_left_out(door: Door, other: Door) -> None:
    stream = door.get(EXPORT + "?dag_id=other").content
    other.clock.move(days=30)
    assert other.post(IMPORT, text=stream).json() == {"entries": 0, "scopes": 1, "expired": 1}
    assert other.store.find() == []


def test_nobody_exports_or_imports_what_they_may_not_see(door: Door, other: Door) -> None:
    viewer = door.as_role("viewer", "oth*")
    assert [line for line in lines(viewer)[1:-1] if '"dag_id":"etl"' in line] == []
    stream = door.get(EXPORT + "?dag_id=etl").content
    assert other.as_role("viewer").post(IMPORT, text=stream).status == 401
    assert other.as_role("editor", "oth*").post(IMPORT, text=stream).status == 404
    assert other.store.scopes() == []


# --- Who may import, and what ------------------------------------------------------------------------------------


def stream_of(*entries: dict[str, Any]) -> bytes:
    lines: list[Any] = [{"outlast_export": 1, "made_at": "2026-11-29T12:00:00Z"}, *entries]
    lines.append({"end": True, "entries": len(entries), "left_out": 0})
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def entry_of(value: Any, dag_id: str = "etl", **more: Any) -> dict[str, Any]:
    scope = {"kind": "task", "dag_id": dag_id, "run_id": "r1", "task_id": "load"}
    return {"scope": scope, "key": "page", "value": value, **more}


def test_an_assets_entries_get_no_expiry(other: Door) -> None:
    entry = {"scope": {"kind": "asset", "name": "orders"}, "key": "watermark", "value": 1}
    answer = other.post(IMPORT, text=stream_of({**entry, "expires_at": "2027-01-01T00:00:00Z"}))
    assert answer.status == 422
    assert "line 2: an asset's entries do not expire" in answer.text
    assert other.store.scopes(assets=True) == []
    assert other.post(IMPORT, text=stream_of({**entry, "expires_at": None})).status == 200
    assert other.store.asset("orders").entry("watermark").expires_at is None


def test_nothing_is_written_when_one_of_the_scopes_may_not_be(other: Door) -> None:
    answer = other.as_role("editor", "etl").post(IMPORT, text=stream_of(entry_of(1), entry_of(2, "other")))
    assert (answer.status, other.store.scopes()) == (404, [])
    asset = {"scope": {"kind": "asset", "name": "orders"}, "key": "watermark", "value": 1}
    assert other.as_role("editor", "etl").post(IMPORT, text=stream_of(entry_of(1), asset)).status == 401
    assert (other.store.scopes(), other.store.scopes(assets=True)) == ([], [])
    assert other.as_role("editor", "etl").post(IMPORT, text=stream_of(entry_of(1))).status == 200


def test_only_an_admin_imports_values_above_what_the_api_takes(other: Door) -> None:
    large = stream_of(entry_of("x" * 65_535))  # and two quotation marks
    answer = other.as_role("editor").post(IMPORT, text=large)
    assert (answer.status, other.store.scopes()) == (422, [])
    assert "max_value_storage_bytes = 65,535" in answer.text
    assert other.as_role("editor").post(IMPORT, text=stream_of(entry_of("x" * 65_533))).status == 200
    assert other.post(IMPORT, text=large).status == 200
    assert other.task().get("page") == "x" * 65_535


class Half:
    """An import of which the rest is still to come."""

    def __init__(self, door: Door, begin: bytes = b'{"outl') -> None:
        host, _, root = door.url.removeprefix("http://").partition("/")
        head = f"POST /{root}{IMPORT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {door.token}\r\n"
        self.connection = socket.create_connection(host.split(":"), timeout=5)  # type: ignore[arg-type]
        self.connection.sendall(head.encode() + b"Content-Length: 1000000\r\n\r\n" + begin)

    def answer(self) -> bytes:
        heard = b""
        while b'"}' not in heard:
            part = self.connection.recv(4096)
            assert part, heard
            heard += part
        return heard

    def __enter__(self) -> Half:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


@pytest.mark.parametrize("role", ["viewer", "worker", "runner"])
def test_whoever_may_not_import_is_refused_before_the_stream_comes(other: Door, role: str) -> None:
    with Half(other.as_role(role)) as half:
        heard = half.answer()
    assert heard.startswith(b"HTTP/1.1 401")
    assert b"it takes an editor's or admin's" in heard or b"good" in heard


def test_an_attempt_may_not_import(other: Door) -> None:
    opened = other.as_role("worker").post(
        "/execution/call", json={"request": {"type": "open", "scope": SCOPE, "attempt": None}}
    )
    attempt = Door(other.url, other.store, other.clock, opened.json()["token"])
    with Half(attempt) as half:
        heard = half.answer()
    assert heard.startswith(b"HTTP/1.1 401")
    assert b"it takes an editor's or admin's" in heard


def test_one_token_imports_one_stream_at_a_time_and_leaves_others_theirs(other: Door) -> None:
    editor, third = other.as_role("editor"), other.as_role("admin")
    with Half(editor):
        until_under_way(other, 1)
        answer = editor.post(IMPORT, text=stream_of(entry_of(1)))
        assert (answer.status, "an import with this token is not done yet" in answer.text) == (503, True)
        assert other.post(IMPORT, text=stream_of(entry_of(1))).status == 200
        with Half(other):
            until_under_way(other, 2)
            answer = third.post(IMPORT, text=stream_of(entry_of(1)))
            assert (answer.status, "has 2 imports to do" in answer.text) == (503, True)
    until_under_way(other, 0)
    assert third.post(IMPORT, text=stream_of(entry_of(1))).status == 200


def until_under_way(door: Door, number: int) -> None:
    """Wait until a server has so many imports to do."""
    state, end = house().apps[door.url.rpartition("/")[2]].state, time.monotonic() + 10
    while len(getattr(state, "imports", ())) != number:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("begin", [b'{"outlast_export":2}\n', b"[]\n", b"x" * 70_000])
def test_a_stream_that_begins_wrong_is_refused_before_the_rest_comes(other: Door, begin: bytes) -> None:
    with Half(other, begin) as half:
        assert half.answer().startswith(b"HTTP/1.1 422")


def test_the_export_of_a_token_that_was_revoked_breaks_off(door: Door) -> None:
    for number in range(12):
        door.task("big").set(f"k{number:02}", "x" * 4_000_000)
    viewer = door.as_role("viewer")
    host, _, root = door.url.removeprefix("http://").partition("/")
    with socket.create_connection(host.split(":"), timeout=10) as connection:  # type: ignore[arg-type]
        query = f"GET /{root}{EXPORT}?dag_id=etl HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        connection.sendall(query.encode() + f"Authorization: Bearer {viewer.token}\r\n\r\n".encode())
        heard = connection.recv(4096)
        assert heard.startswith(b"HTTP/1.1 200")
        door.store.backend.send(RevokeToken(1, LIBRARY))
        while viewer.get(V1 + "/runs").status != 401:
            time.sleep(0.05)
        door.task("big").set("k99", "written since")
        while part := connection.recv(1 << 20):
            heard = heard[-100:] + part
            assert b"written since" not in heard
    assert heard.endswith(b"\r\n0\r\n\r\n")  # it has ended as HTTP has it, and without its last line
    assert b'"end":true' not in heard
