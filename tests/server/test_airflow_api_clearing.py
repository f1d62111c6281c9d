"""`clearTaskInstances` with Airflow's defaults, and what becomes of the state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.requests import LIBRARY
from outlast.run_requests import TaskSpec
from support.public import V2, Answer, Door, open_door

PATH = V2 + "/dags/etl/clearTaskInstances"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        desk = door.desk()
        desk.start("a", ("b", "a"), ("c", "b"))
        desk.ran("a")
        desk.ran("b", "failed", error="no")
        door.store.task(desk.scope("a")).set("page", 1)
        door.store.task(desk.scope("b")).set("page", 2)
        yield door


def clear(door: Door, **body: Any) -> Answer:
    return door.post(PATH, json={"dag_run_id": "r1", **body})


def cleared(answer: Answer) -> list[tuple[str, int]]:
    assert answer.status == 200
    return [(task["task_id"], task["map_index"]) for task in answer.json()["task_instances"]]


def states(door: Door) -> str:
    return " ".join(state for _, state in sorted(door.desk().states().items()))


def test_by_default_nothing_happens_and_only_failed_ones_are_meant(door: Door) -> None:
    assert cleared(clear(door)) == [("b", -1)]
    assert cleared(door.post(PATH, json={})) == [("b", -1)]
    assert states(door) == "success failed waiting"


def test_the_state_is_kept_unless_told_otherwise(door: Door) -> None:
    assert cleared(clear(door, dry_run=False)) == [("b", -1)]
    assert states(door) == "success waiting waiting"
    assert door.store.task("etl/r1/b").get("page") == 2
    assert cleared(clear(door, dry_run=False, only_failed=False, task_ids=["a"], keep_task_state=False)) == [("a", -1)]
    assert door.store.task("etl/r1/a").keys() == []
    assert door.store.runs_as(LIBRARY).audit(limit=1)[0].who == "ann@desk"


def test_the_setting_discards_where_the_request_says_nothing(tmp_path: Path) -> None:
    with open_door(tmp_path, discard_on_clear=True) as door:
        door.desk().start("a")
        door.store.task("etl/r1/a").set("page", 1)
        clear(door, dry_run=False, only_failed=False, keep_task_state=True)
        assert door.store.task("etl/r1/a").keys() == ["page"]
        clear(door, dry_run=False, only_failed=False)
        assert door.store.task("etl/r1/a").keys() == []


@pytest.mark.parametrize(
    ("body", "tasks"),
    [
        ({"task_ids": ["b"]}, ["b"]),
        ({"task_ids": ["b"], "include_upstream": True}, ["a", "b"]),
        ({"task_ids": ["b"], "include_downstream": True}, ["b", "c"]),
        ({"task_ids": ["a"], "include_downstream": True}, ["a", "b", "c"]),
        ({"task_ids": [["c", -1]], "include_upstream": True}, ["a", "b", "c"]),
        ({"task_ids": ["a"], "include_downstream": True, "only_failed": True}, ["b"]),
        ({}, ["a", "b", "c"]),
        ({"only_running": True}, []),
    ],
)
def test_tasks_above_and_below_can_be_included(door: Door, body: dict[str, Any], tasks: list[str]) -> None:
    assert cleared(clear(door, **{"only_failed": False, **body})) == [(task, -1) for task in tasks]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"dag_run_id": "none"}, 404),
        ({"task_ids": ["none"]}, 404),
        ({"task_ids": []}, 422),
        ({"task_ids": [["a"]]}, 422),
        ({"task_ids": [["a", -2]]}, 422),
        ({"task_ids": "a"}, 422),
        ({"start_date": "2026-01-01T00:00:00Z"}, 422),
        ({"dag_run_id": None, "start_date": "2026-01-02T00:00:00Z", "end_date": "2026-01-01T00:00:00Z"}, 422),
        ({"dag_run_id": None, "start_date": "2026-01-02"}, 422),
        ({"dry_run": "no"}, 422),
        ({"unknown": 1}, 422),
        ({"note": "x" * 1001}, 422),
    ],
)
def test_what_makes_no_sense_is_refused(door: Door, body: dict[str, Any], status: int) -> None:
    assert clear(door, **{"dry_run": False, "only_failed": False, **body}).status == status
    assert states(door) == "success failed waiting"


def test_without_a_run_id_the_runs_between_two_dates_are_meant(door: Door) -> None:
    door.desk("r2").start("a")
    door.desk("r2").ran("a", "failed")
    body = {"dag_run_id": None, "only_failed": True}
    assert len(cleared(clear(door, **body))) == 2
    assert cleared(clear(door, **body, end_date="1969-12-31T00:00:00Z")) == []
    assert len(cleared(clear(door, **body, start_date="1970-01-01T00:00:00Z"))) == 2


def test_past_and_future_runs_can_be_included(door: Door) -> None:
    door.desk("r2").start("a")
    door.desk("r2").ran("a", "failed")
    assert len(cleared(clear(door, include_past=True))) == 2  # both have the same logical date


def test_all_indexes_of_a_mapped_task_are_refused_while_one_runs(door: Door) -> None:
    desk = door.desk("r2")
    desk.start(TaskSpec("each", 0), TaskSpec("each", 1))
    desk.begin("each", 1)
    body = {"dag_run_id": "r2", "dry_run": False, "only_failed": False}
    assert clear(door, **body).status == 409
    assert clear(door, **body, task_ids=["each"]).status == 409
    assert clear(door, **body, task_ids=[["each", 1]], prevent_running_task=True).status == 409
    assert desk.states()["each/1"] == "running"
    assert cleared(clear(door, **body, task_ids=[["each", 1]])) == [("each", 1)]
    assert desk.states()["each/1"] == "waiting"


def test_an_editor_may_and_a_viewer_may_not(door: Door) -> None:
    assert clear(door.as_role("viewer")).status == 401
    assert clear(door.as_role("editor", "other")).status == 404
    assert clear(door.as_role("editor", "e*")).status == 200


def test_an_unknown_dag_is_404(door: Door) -> None:
    assert door.post(V2 + "/dags/none/clearTaskInstances", json={}).status == 404
