"""Airflow's lists of dags, runs, task instances and assets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.run_requests import TaskSpec
from support.public import V2, Door, open_door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        for number in range(3):
            door.clock.move(hours=1)
            desk = door.desk(f"r{number}")
            desk.start("load", TaskSpec("each", 0), TaskSpec("each", 1), params='{"n":1180591620717411303424}')
        door.desk("r0").ran("load")
        door.desk("r1").ran("load", "failed")
        door.desk("r0").release("success")
        door.task("script", dag_id="Other")
        yield door


def dag_ids(door: Door, query: str = "") -> list[str]:
    return [dag["dag_id"] for dag in door.get(V2 + "/dags" + query).json()["dags"]]


def run_ids(door: Door, query: str = "", dag_id: str = "etl") -> list[str]:
    return [run["dag_run_id"] for run in door.get(f"{V2}/dags/{dag_id}/dagRuns{query}").json()["dag_runs"]]


def test_dags_have_runs_or_state(door: Door) -> None:
    assert dag_ids(door) == ["Other", "etl"]
    assert dag_ids(door, "?limit=1&offset=1") == ["etl"]
    assert dag_ids(door, "?dag_id_pattern=THE") == ["Other"]
    assert dag_ids(door, "?dag_id_prefix_pattern=e%7Cx") == ["etl"]
    assert door.get(V2 + "/dags/none").status == 404
    assert door.get(V2 + "/dags/Other").json()["dag_display_name"] == "Other"


def test_runs_come_newest_first_in_airflows_states(door: Door) -> None:
    assert run_ids(door) == ["r2", "r1", "r0"]
    assert run_ids(door, "?limit=1&offset=1") == ["r1"]
    assert run_ids(door, "?state=success&state=queued") == ["r0"]
    assert run_ids(door, dag_id="~") == ["r2", "r1", "r0"]
    assert run_ids(door, dag_id="Other") == []
    assert door.get(V2 + "/dags/none/dagRuns").status == 404
    raw = door.get(V2 + "/dags/etl/dagRuns/r0").content
    assert b'"conf":{"n":1180591620717411303424}' in raw
    absent = door.get(V2 + "/dags/etl/dagRuns/none")
    assert (absent.status, absent.json()["detail"]) == (
        404,
        "The DagRun with dag_id: `etl` and run_id: `none` was not found",
    )


@pytest.mark.parametrize(
    ("query", "number"),
    [("", 3), ("?task_id=each", 2), ("?map_index=1", 1), ("?state=success", 1), ("?state=none", 2), ("?limit=1", 1)],
)
def test_task_instances_of_a_run(door: Door, query: str, number: int) -> None:
    found = door.get(f"{V2}/dags/etl/dagRuns/r0/taskInstances{query}").json()
    assert len(found["task_instances"]) == number


@pytest.mark.parametrize(("state", "number"), [("no_status", 2), ("restarting", 0), ("success&state=none", 3)])
def test_task_instances_by_any_of_airflows_states(door: Door, state: str, number: int) -> None:
    found = door.get(f"{V2}/dags/etl/dagRuns/r0/taskInstances?state={state}").json()
    assert len(found["task_instances"]) == number


@pytest.mark.parametrize("path", ["/dags/etl/dagRuns?state=done", "/dags/etl/dagRuns/r0/taskInstances?state=done"])
def test_a_state_airflow_does_not_know_is_422(door: Door, path: str) -> None:
    assert door.get(V2 + path).status == 422


def test_the_number_of_runs_is_of_all_that_fit_and_may_be_seen(door: Door) -> None:
    for number in range(4):
        door.desk(f"x{number}", "secret").start("load")
    for asker, everywhere in ((door, 7), (door.as_role("viewer", "e*"), 3), (door.as_role("viewer", "none"), 0)):
        page = asker.get(f"{V2}/dags/~/dagRuns?limit=2&offset=1").json()
        assert (page["total_entries"], len(page["dag_runs"])) == (everywhere, min(2, everywhere))
        assert asker is door or not [run for run in page["dag_runs"] if run["dag_id"] == "secret"]
        whole = asker.get(f"{V2}/dags/~/dagRuns?limit=100").json()["dag_runs"]
        assert whole[1:3] == page["dag_runs"]
    page = door.get(f"{V2}/dags/etl/dagRuns?state=queued&limit=0").json()
    assert (page["dag_runs"], page["total_entries"]) == ([], 1)
    assert door.as_role("viewer", "e*").get(f"{V2}/dags/secret/dagRuns").status == 404


def test_a_dags_file_is_that_of_its_newest_run(door: Door) -> None:
    found = {dag["dag_id"]: dag["fileloc"] for dag in door.get(V2 + "/dags").json()["dags"]}
    assert found == {"Other": "", "etl": "/dags/nightly.py"}


def test_a_task_instance_has_an_id_that_stays(door: Door) -> None:
    path = V2 + "/dags/etl/dagRuns/r1/taskInstances/"
    first, again = (door.get(path + "load").json() for _ in range(2))
    assert first == again
    assert (first["state"], first["try_number"], first["hostname"]) == ("failed", 1, "here.test")
    assert door.get(path + "each/1").json()["map_index"] == 1
    assert door.get(path + "each/listMapped").json()["total_entries"] == 2
    for unknown in ("none", "each", "each/7", "each/x", "load/listMapped"):
        assert door.get(path + unknown).status == 404


def test_runs_and_dags_that_may_not_be_seen_are_not_there(door: Door) -> None:
    other = door.as_role("viewer", "Oth*")
    assert dag_ids(other) == ["Other"]
    assert run_ids(other, dag_id="~") == []
    for path in ("", "/dagRuns", "/dagRuns/r0", "/dagRuns/r0/taskInstances", "/dagRuns/r0/taskInstances/load"):
        assert other.get(f"{V2}/dags/etl{path}").status == 404
    everywhere: Any = other.get(V2 + "/dags/~/dagRuns/~/taskInstances").json()
    assert everywhere["total_entries"] == 0


def test_assets_have_an_id_that_stays(door: Door) -> None:
    door.store.asset("orders").set("a", 1)
    door.store.asset(uri="s3://b/x").set("a", 1)
    found = door.get(V2 + "/assets").json()
    assert [(asset["name"], asset["uri"]) for asset in found["assets"]] == [
        ("orders", "orders"),
        ("s3://b/x", "s3://b/x"),
    ]
    assert found["total_entries"] == 2
    door.store.asset("orders").clear()
    for asset in found["assets"]:
        assert door.get(f"{V2}/assets/{asset['id']}").json()["name"] == asset["name"]
    assert door.get(V2 + "/assets?limit=1&offset=1").json()["assets"] == found["assets"][1:]
    assert door.get(V2 + "/assets/1").status == 404
