"""Real processes: a scheduler, a process for each try, one that kills itself, a triggerer, and a clear afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from outlast import connect
from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow(below="3.3")

RETRIED = {("killed", -1), ("mapped", 0), ("mapped", 1), ("operator", -1)}


def run(home: Airflow) -> None:
    """Run the DAG to its end, also on 3.0, which tries a killed task again only when it is cleared."""
    with home.running() as stack:
        state = stack.trigger("dies", timeout=400)
        if home.installed.since[:2] == (3, 0):
            assert state == "failed", stack.logs()
            cleared = {"dag_run_id": "run1", "task_ids": ["killed"], "dry_run": False}
            assert stack.api("POST", "/api/v2/dags/dies/clearTaskInstances", cleared)[0] == 200
            state = stack.ended("dies", timeout=400)
        assert state == "success", stack.logs()


def by_task(home: Airflow, task: str) -> list[dict[str, Any]]:
    return [row for row in home.noted() if row["task"] == task]


def index(row: dict[str, Any]) -> int:
    return -1 if row["index"] is None else int(row["index"])


def every_task_has_gone_on(home: Airflow) -> None:
    tries = [row for row in home.noted() if "expected" in row]
    assert [row for row in tries if row["found"] != row["expected"]] == []
    assert {(row["task"], index(row)) for row in tries if row["try"] == 2} == RETRIED
    assert [(row["phase"], row["try"]) for row in by_task(home, "deferring")] == [("execute", 1), ("resume", 1)]
    assert [(row["pokes"], row["try"]) for row in by_task(home, "rescheduled")] == [(1, 1), (2, 1)]
    assert [(row["before"], row["after"]) for row in by_task(home, "one_asset")] == [(0, 1)]


def test_a_killed_task_goes_on_where_it_was_and_is_cleared_when_it_has_succeeded(
    airflow_home: Callable[..., Airflow],
) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db", AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS="True")
    run(home)
    every_task_has_gone_on(home)
    with connect(home.folder / "outlast.db") as store:
        assert [info for info in store.scopes() if info.entries] == []
        assert [info.entries for info in store.scopes(assets=True)] == [1]


@pytest.mark.fast
@pytest.mark.airflow(since="3.3")
def test_the_same_dag_with_every_value_outside_airflows_database(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(
        AIRFLOW__OUTLAST__URL="{home}/outlast.db",  # as it was set before Airflow was upgraded
        AIRFLOW__WORKERS__STATE_STORE_BACKEND="outlast.integrations.airflow.WorkerBackend",
        AIRFLOW__OUTLAST__STATE_OFFLOAD_URL="{home}/payloads",
        AIRFLOW__OUTLAST__STATE_OFFLOAD_ABOVE="0",
    )
    run(home)
    every_task_has_gone_on(home)
    assert not (home.folder / "outlast.db").exists()
    kept = home.rows("select value from task_state_store union all select value from asset_state_store")
    references = [json.loads(value)["__airflow_state_ref__"] for (value,) in kept]
    assert {reference[:3] for reference in references} == {"o1p"}
    place = home.folder / "payloads"
    payloads = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert payloads == {reference[3:] for reference in references} | {"outlast-payloads.txt"}
