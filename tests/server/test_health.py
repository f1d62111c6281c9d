"""Health says what is wrong to those with a token, and to others only whether the database answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from support.breaking import rename_table
from support.public import V1, V2, Door, open_door, state_path

HEALTH, MONITOR = f"{V1}/health", f"{V2}/monitor/health"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        yield door


def test_anybody_is_told_what_airflow_would_tell_them(door: Door) -> None:
    answer = Door(door.url, door.store, door.clock, None).get(MONITOR)
    assert answer.status == 200
    assert answer.json() == {
        "metadatabase": {"status": "healthy"},
        "scheduler": {"status": "healthy", "latest_scheduler_heartbeat": None},
        "triggerer": {"status": None, "latest_triggerer_heartbeat": None},
        "dag_processor": {"status": None, "latest_dag_processor_heartbeat": None},
    }


def test_a_store_that_cannot_be_read_is_unhealthy_and_the_reason_is_for_those_with_a_token(
    door: Door, tmp_path: Path
) -> None:
    rename_table(tmp_path / "served.db", "feed", "gone")
    open_to_all = Door(door.url, door.store, door.clock, None).get(MONITOR)
    told = door.get(HEALTH)
    rename_table(tmp_path / "served.db", "gone", "feed")
    assert open_to_all.status == 200
    assert open_to_all.json()["metadatabase"] == {"status": "unhealthy"}
    assert "feed" not in open_to_all.text
    assert told.status == 503
    assert told.json()["status"] == "unhealthy"
    assert told.json()["problems"][0].startswith("the database cannot be read: ")
    _wait_a_second()
    assert door.get(HEALTH).json()["status"] == "healthy"


def _wait_a_second() -> None:
    """The database is asked once a second, however many want to know."""
    time.sleep(1.05)


def test_size_and_speed_are_told(door: Door) -> None:
    door.task().set_many({"a": 1, "b": 2})
    door.task(dag_id="other").set("c", "long" * 100)
    told = door.get(HEALTH).json()
    assert told["status"] == "healthy"
    assert told["problems"] == []
    assert told["dags"] == [
        {"dag_id": "other", "entries": 1, "bytes": 402},
        {"dag_id": "etl", "entries": 2, "bytes": 2},
    ]
    assert [each["scope"]["dag_id"] for each in told["largest"]] == ["other", "etl"]
    assert [each["commits"] for each in told["busiest"]] == [1, 1]
    assert 0 < told["read_seconds"] < 5
    assert told["schema_version"] == "6"
    assert told["expired_unswept"] == 0


def test_what_is_wrong_is_told_with_what_to_do(door: Door) -> None:
    door.task().set("short", 1, retention=timedelta(seconds=10))
    desk = door.desk("r7")
    desk.start("load")
    desk.begin("load")
    door.clock.move(hours=2)
    swept, runner, claim = door.get(HEALTH).json()["problems"]
    assert swept.startswith("1 expired entries are not swept, the oldest since 2026-11-29 12:00:10")
    assert "outlast state-store clean" in swept
    assert runner.startswith("the runner of etl/r7 has gone; `outlast run`")
    assert claim.startswith("nobody renews the claim of etl/r7/load: ")


def test_what_is_written_most_is_told_without_its_value(tmp_path: Path) -> None:
    with open_door(tmp_path, secret_keys=("secret*",)) as door:
        door.task()
        door.task(dag_id="other")
        for number in range(3):
            door.put(state_path(key="secret-word"), value=f"hidden {number}")
        door.put(state_path(key="page", dag_id="other"), value=1)
        told = door.get(HEALTH)
        narrow = door.as_role("viewer", "other").get(HEALTH).json()
    first, second = told.json()["hottest"]
    assert (first["scope"]["address"], first["key"], first["writes"]) == ("etl/r1/load", "secret-word", 3)
    assert (second["scope"]["address"], second["key"], second["writes"]) == ("other/r1/load", "page", 1)
    assert first["writes_per_second"] == 3 * second["writes_per_second"] > 0
    assert told.json()["writes_per_second"] > 0
    assert "hidden" not in told.text
    assert [each["key"] for each in narrow["hottest"]] == ["page"]
    assert narrow["writes_per_second"] is None


def test_a_submission_nobody_knows_the_outcome_of_is_a_problem_when_no_attempt_will_find_out(door: Door) -> None:
    desk = door.desk("r7")
    desk.start("load", "sum")
    for task_id in ("load", "sum"):
        desk.begin(task_id)
        door.store.task(desk.scope(task_id)).set("remote_job_id.intent", {"token": "t", "uncertain": 1})
    desk.report(desk.fence("load"), "failed")
    desk.report(desk.fence("sum"), "crashed", crash_retries=3)
    told = door.get(HEALTH).json()
    assert told["uncertain_submits"] == 2
    (problem,) = told["problems"]
    assert problem.startswith("nobody knows whether a job was started for etl/r7/load, and no attempt will find out")
    assert "outlast tasks explain" in problem
    assert door.as_role("viewer", "other").get(HEALTH).json()["uncertain_submits"] == 0


def test_a_token_for_some_dags_is_told_of_those_only(door: Door) -> None:
    door.task().set("a", 1)
    door.task(dag_id="other").set("b", 2)
    desk = door.desk("r7")
    desk.start("load")
    door.clock.move(hours=1)
    told = door.as_role("viewer", "other").get(HEALTH).json()
    assert [each["dag_id"] for each in told["dags"]] == ["other"]
    assert [each["scope"]["dag_id"] for each in told["largest"]] == ["other"]
    assert told["problems"] == []
    assert "etl" not in str(told)


@pytest.mark.parametrize("role", ["worker", None])
def test_who_may_not_read_is_not_told(door: Door, role: str | None) -> None:
    asker = door.as_role(role) if role else Door(door.url, door.store, door.clock, None)
    assert asker.get(HEALTH).status == 401
