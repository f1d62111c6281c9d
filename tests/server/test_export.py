"""State out of one store and into another, as one JSON stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.requests import LIBRARY
from outlast.values import TaskScope
from support.public import V1, Door, open_door

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
