"""Real processes: a scheduler, a process for each try, one that kills itself, a triggerer, and a clear afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlast import connect
from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow(below="3.3")

RETRIED = {("killed", -1), ("mapped", 0), ("mapped", 1), ("operator", -1)}


def ran(home: Airflow) -> str:
    with home.running() as stack:
        return stack.trigger("dies", timeout=400)


def after_a_kill(home: Airflow) -> set[tuple[str, int]]:
    """Return those with a second try; 3.0 does not try a task again whose process was killed."""
    return RETRIED - {("killed", -1)} if home.installed.since[:2] == (3, 0) else RETRIED


def by_task(home: Airflow, task: str) -> list[dict[str, Any]]:
    return [row for row in home.noted() if row["task"] == task]


def index(row: dict[str, Any]) -> int:
    return -1 if row["index"] is None else int(row["index"])


def test_a_killed_task_goes_on_where_it_was_and_is_cleared_when_it_has_succeeded(
    airflow_home: Callable[..., Airflow],
) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db", AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS="True")
    state = ran(home)
    retried = after_a_kill(home)
    tries = [row for row in home.noted() if "expected" in row]
    assert [row for row in tries if row["found"] != row["expected"]] == []
    assert {(row["task"], index(row)) for row in tries if row["try"] == 2} == retried
    assert state == ("success" if retried == RETRIED else "failed")
    assert [(row["phase"], row["try"]) for row in by_task(home, "deferring")] == [("execute", 1), ("resume", 1)]
    assert [(row["pokes"], row["try"]) for row in by_task(home, "rescheduled")] == [(1, 1), (2, 1)]
    assert [(row["before"], row["after"]) for row in by_task(home, "one_asset")] == [(0, 1)]

    with connect(home.folder / "outlast.db") as store:
        left = {(info.scope.task_id, info.scope.map_index) for info in store.scopes() if info.entries}
        assert left == RETRIED - retried  # what never succeeded is kept
        assert [info.entries for info in store.scopes(assets=True)] == [1]
