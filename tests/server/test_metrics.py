"""`/metrics` tells true numbers, to those who may see all of them, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outlast import StaleAttempt, connect
from outlast.config import ClientSettings, Config
from outlast.server import survey
from support.breaking import rename_table
from support.public import Door, open_door, state_path
from support.streams import EventStream


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        yield door


def told(door: Door) -> dict[str, float]:
    """Return each number under its name and labels, as a scrape has it."""
    answer = door.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        " ".join([sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_requests_are_counted_by_route_and_status_not_by_what_was_sent(door: Door) -> None:
    door.task()
    for number in range(3):
        door.put(state_path(key=f"k{number}"), value=number)
    door.get(state_path(key="absent"))
    door.get("/no/such/thing")
    door.ask("PROPFIND", "/no/such/other/thing")
    numbers = told(door)
    route = "/api/v2/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/state-store/{key:path}"
    assert numbers[f"outlast_requests_total method=PUT route={route} status=204"] == 3
    assert numbers[f"outlast_requests_total method=GET route={route} status=404"] == 1
    assert numbers["outlast_requests_total method=GET route=(none) status=404"] == 1
    assert numbers["outlast_requests_total method=other route=(none) status=404"] == 1
    assert numbers[f"outlast_request_seconds_count route={route}"] == 4
    assert 0 < numbers[f"outlast_request_seconds_sum route={route}"] < 10
    assert numbers["outlast_commits_total"] == 3
    assert 1 <= numbers["outlast_batches_total"] <= 3


def test_what_the_workers_door_did_is_counted_and_fenced_calls_are(door: Door) -> None:
    with connect(door.url, config=_with_token(door)) as store:
        state = store.task("etl/r1/load", attempt="new")
        store.task("etl/r1/load", attempt="new")
        for _ in range(2):
            with pytest.raises(StaleAttempt):
                state.set("a", 1)
    numbers = told(door)
    assert numbers["outlast_requests_total method=POST route=/execution/call status=200"] == 2
    assert numbers["outlast_requests_total method=POST route=/execution/call status=409"] == 2
    assert numbers["outlast_fenced_calls_total"] == 2


def _with_token(door: Door) -> Config:
    return Config(client=ClientSettings(token=door.token))


def test_what_the_store_holds_is_told_by_dag(door: Door) -> None:
    door.task().set_many({"a": 1, "b": "xyz"})
    door.task(dag_id="other").set("c", [1, 2])
    door.store.asset("orders").set("d", 1)
    numbers = told(door)
    assert numbers["outlast_entries dag=etl"] == 2
    assert numbers["outlast_bytes dag=etl"] == len("1") + len('"xyz"')
    assert numbers["outlast_entries dag=other"] == 1
    assert numbers["outlast_asset_entries"] == 1
    assert numbers["outlast_survey_up"] == 1


def test_of_many_dags_the_largest_are_told_apart(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MOST_DAGS", 2)
    for number in range(5):
        door.task(dag_id=f"dag{number}").set("a", "x" * number)
    numbers = told(door)
    assert {name for name in numbers if name.startswith("outlast_bytes")} == {
        "outlast_bytes dag=dag4",
        "outlast_bytes dag=dag3",
        "outlast_bytes dag=(other)",
    }
    assert numbers["outlast_entries dag=(other)"] == 3


def test_expired_entries_claims_and_runs_without_a_runner_are_told(door: Door) -> None:
    door.task().set("short", 1, retention=timedelta(seconds=10))
    desk = door.desk("r7")
    desk.start("load", "sum", lease=100)
    desk.begin("load", lease=30)
    desk.begin("sum", lease=90)
    door.clock.move(seconds=40)
    numbers = told(door)
    assert numbers["outlast_expired_entries"] == 1
    assert numbers["outlast_sweep_lag_seconds"] == 30
    assert numbers["outlast_leases"] == 1
    assert numbers["outlast_leases_lapsed"] == 1
    assert numbers["outlast_runs_without_runner"] == 0


def test_how_often_keys_are_written_is_told_by_rank_and_not_by_name(door: Door) -> None:
    door.task()
    for number in range(12):
        for _ in range(2 if number == 5 else 1):
            door.put(state_path(key=f"k{number}"), value=number)
    numbers = told(door)
    assert numbers["outlast_written_entries_total"] == 13
    ranks = {name: value for name, value in numbers.items() if name.startswith("outlast_hottest")}
    assert list(ranks) == [f"outlast_hottest_writes_per_second rank={rank}" for rank in range(1, 11)]
    first, second = list(ranks.values())[:2]
    assert first == 2 * second > 0


def test_uncertain_submissions_are_told_as_found_and_as_open_now(door: Door) -> None:
    door.task().set("remote_job_id.intent", {"token": "t"})
    door.clock.move(hours=1)
    with connect(door.url, config=_with_token(door)) as store:
        state = store.task("etl/r1/sum", attempt="new")
        state.set("remote_job_id.intent", {"token": "u", "uncertain": 1})
        state.set("remote_job_id.intent", {"token": "u", "uncertain": 2})
        state.set("remote_job_id", 7)
    numbers = told(door)
    assert numbers["outlast_uncertain_submits_total"] == 2
    assert numbers["outlast_uncertain_submits_open"] == 1


def test_open_streams_are_told_and_do_not_count_as_slow_requests(door: Door) -> None:
    with EventStream(door.url, door.token) as stream:
        stream.take(1)
        assert told(door)["outlast_event_streams"] == 1
    while (numbers := told(door))["outlast_event_streams"]:
        pass
    assert numbers["outlast_requests_total method=GET route=/api/outlast/v1/events status=200"] == 1
    assert "outlast_request_seconds_count route=/api/outlast/v1/events" not in {
        name for name, value in numbers.items() if value
    }


def test_a_store_that_fails_does_not_fail_a_scrape(door: Door, tmp_path: Path) -> None:
    rename_table(tmp_path / "served.db", "entry", "gone")
    numbers = told(door)
    rename_table(tmp_path / "served.db", "gone", "entry")
    assert numbers["outlast_survey_up"] == 0
    assert numbers["outlast_commits_total"] == 0
    assert "outlast_expired_entries" not in numbers


def test_metrics_are_for_those_who_may_see_every_dag(door: Door) -> None:
    assert Door(door.url, door.store, door.clock, None).get("/metrics").status == 401
    assert door.as_role("viewer").get("/metrics").status == 200
    assert door.as_role("viewer", "etl").get("/metrics").status == 401
    assert door.as_role("worker").get("/metrics").status == 401
