"""How far the task instances of a run are, in outlast's own API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.run_requests import TaskSpec
from support.public import V1, Door, open_door

PATH = V1 + "/runs/etl/r1/progress"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        door.desk().start("load", *[TaskSpec("copy", index) for index in range(3)])
        yield door


def told(door: Door, query: str = "") -> list[dict[str, Any]]:
    progress: list[dict[str, Any]] = door.get(PATH + query).json()["progress"]
    return progress


def test_what_checkpoints_keep_is_told_of_each_task_instance(door: Door) -> None:
    for _ in door.task().checkpoint("abc"):
        door.clock.move(seconds=1)
    door.store.task("etl/r1/copy/2").set("progress", {"done": 7})
    assert [(each["task_id"], each["map_index"], each["done"], each["total"]) for each in told(door)] == [
        ("load", -1, 3, 3),
        ("copy", 2, 7, None),
    ]
    assert (told(door)[0]["from"], told(door)[0]["rate"]) == (0, 1.0)
    assert [each["task_id"] for each in told(door, "?task_id=copy")] == ["copy"]


def test_other_runs_other_keys_and_other_values_are_left_out(door: Door) -> None:
    for address in ("etl/r2/load", "etl/r/load", "other/r1/load"):
        door.store.task(address).set("progress", {"done": 1})
    door.task().set_many({"progress": "half way", "progress2": {"done": 1}, "a/progress": {"done": 1}})
    assert told(door) == []


def test_more_than_a_page_is_told_whole(door: Door) -> None:
    for number in range(1100):
        door.store.task(f"etl/r1/many/{number}").set("progress", {"done": number})
    assert sorted(each["done"] for each in told(door)) == list(range(1100))


def test_a_run_that_is_not_to_be_seen_has_none(door: Door) -> None:
    door.task().set("progress", {"done": 1})
    assert door.as_role("viewer", "train").get(PATH).status == 404
    assert told(door.as_role("viewer", "etl"))[0]["done"] == 1
    door.token = None
    assert door.get(PATH).status == 401


def test_it_is_not_told_where_the_key_is_secret(tmp_path: Path) -> None:
    with open_door(tmp_path, secret_keys=("prog*",)) as door:
        door.task().set("progress", {"done": 1})
        assert told(door) == []
