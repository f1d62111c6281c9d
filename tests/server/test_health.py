"""Health says what is wrong to those with a token, and to others only whether the database answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from outlast import connect
from outlast.requests import LIBRARY
from outlast.token_requests import ListTokens, RevokeToken
from support.breaking import rename_table
from support.clock import Clock
from support.homes import settings
from support.postgres import Server, made
from support.public import V1, V2, Door, open_door, state_path
from support.servers import house

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


def test_sizes_do_not_tell_the_length_of_a_secret(tmp_path: Path) -> None:
    with open_door(tmp_path, secret_keys=("secret*",)) as door:
        door.task().set("secret", "hunter2")
        told = door.get(HEALTH).json()
        metrics = door.get("/metrics").text
    assert told["dags"] == [{"dag_id": "etl", "entries": 1, "bytes": 1024}]
    assert [each["bytes"] for each in told["largest"] + told["busiest"]] == [1024, 1024]
    assert 'outlast_bytes{dag="etl"} 1024.0' in metrics


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


# --- while the database is away ----------------------------------------------------------------------------------


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Door]]:
    """A PostgreSQL that can be stopped, and a door to a store on it."""
    database, clock = made(), Clock()
    store = connect(database.url, config=settings(), clock=clock)
    url, token = house().move_in(store)
    monkeypatch.setattr("outlast.server.recognised.PATIENCE", 0.3)
    monkeypatch.setattr("outlast.server.health.PATIENCE", 0.3)
    monkeypatch.setattr("outlast.server.survey.PATIENCE", 0.3)
    monkeypatch.setattr("outlast.server.survey.FRESH", 0.5)
    try:
        yield database, Door(url, store, clock, token)
    finally:
        if database.process is None:
            database.start()
        house().move_out(url)
        database.remove()


@pytest.mark.postgres
def test_whoever_was_known_is_told_soon_that_the_database_is_away(away: tuple[Server, Door]) -> None:
    """Looking the token up waits for the database as long as a call does, 30 s; a probe gives up before."""
    database, door = away
    door.task().set("key", 1)
    narrow = door.as_role("viewer", "other")
    known, stranger, leaver = (door.as_role("viewer") for _ in range(3))
    assert [each.get(HEALTH).status for each in (known, leaver)] == [200, 200]
    assert "outlast_survey_up 1.0" in known.get("/metrics").text
    [last] = [row.id for row in door.store.backend.send(ListTokens()).rows[-1:]]
    door.store.backend.send(RevokeToken(last, LIBRARY))
    _wait_a_second()
    assert leaver.get(f"{V1}/runs").status == 401
    for number in range(1100):  # a header counts, whatever cookies come with it
        narrow.get(HEALTH, headers={"Cookie": f"outlast_session={number}"})
    database.stop("immediate")
    _wait_a_second()
    began = time.monotonic()
    told, unknown, left = known.get(HEALTH), stranger.get(HEALTH), leaver.get(HEALTH)
    metrics, refused = known.get("/metrics"), stranger.get("/metrics")
    assert time.monotonic() - began < 15
    assert (told.status, unknown.status, left.status) == (503, 503, 503)
    assert told.json()["problems"][0].startswith("the database cannot be read: no answer within 0.3 s")
    assert unknown.json()["detail"].startswith("the database does not answer, so nobody can say whose token this is")
    assert left.json() == unknown.json()
    assert (metrics.status, refused.status) == (200, 503)
    assert "outlast_survey_up 0.0" in metrics.text
    assert 'outlast_entries{dag="etl"} 1.0' in metrics.text
    database.start()
    until = time.monotonic() + 20
    while known.get(HEALTH).json()["status"] != "healthy" and time.monotonic() < until:
        time.sleep(0.2)
    assert known.get(HEALTH).json()["problems"] == []
    assert stranger.get(HEALTH).status == 200
