"""Resumable operators of providers find their job again below 3.3, where their stand-in submits at every try."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import airflow_install
from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow(since="2.11", below="3.3")

JOBS = Path(__file__).parent / "jobs"


def ran(folder: Path, **settings: str) -> Callable[[str], list[tuple[Any, ...]]]:
    """Run the DAG; return what a task's calls were."""
    home = Airflow(airflow_install.installed(mixin=True), folder, JOBS, settings)
    home.log = home.dags_test("jobs")  # type: ignore[attr-defined]
    noted = home.noted()
    assert noted, home.log[-5000:]  # type: ignore[attr-defined]

    def calls(task: str) -> list[tuple[Any, ...]]:
        return [
            (row["try"], row["call"], *((row[key]) for key in ("id", "result") if key in row))
            for row in noted
            if row["task"] == task
        ]

    return calls


def test_a_job_is_found_again(tmp_path: Path) -> None:
    calls = ran(tmp_path, AIRFLOW__OUTLAST__URL=str(tmp_path / "outlast.db"))
    again = [(1, "submit"), (2, "submit"), (2, "poll", "job-2"), (2, "result", "job-2")]
    found = [(1, "submit"), (2, "status", "job-1"), (2, "poll", "job-1"), (2, "result", "job-1")]
    assert calls("active") == found
    assert calls("not_durable") == again
    assert sorted(calls("mapped")) == sorted([*found, *again])
    assert calls("done") == [(1, "submit"), (2, "status", "job-1"), (2, "result", "job-1")]
    assert calls("failed") == [(1, "submit"), (2, "status", "job-1"), *again[1:]]
    assert calls("refused") == [(1, "submit"), (2, "status", "job-1")]


def test_a_store_that_can_be_done_without_has_no_second_job_submitted(tmp_path: Path) -> None:
    nowhere = {"AIRFLOW__OUTLAST__URL": "postgresql://127.0.0.1:1/state", "OUTLAST__CLIENT__RETRY_FOR": "0"}
    calls = ran(tmp_path, AIRFLOW__OUTLAST__ON_ERROR="disable", **nowhere)
    assert calls("active") == [(1, "submit")]
    assert [call[:2] for call in calls("not_durable")] == [(1, "submit"), (2, "submit"), (2, "poll"), (2, "result")]


def test_without_outlast_every_try_submits(tmp_path: Path) -> None:
    assert [call[:2] for call in ran(tmp_path)("active")] == [(1, "submit"), (2, "submit"), (2, "poll"), (2, "result")]


@pytest.mark.airflow(since="3.0", below="3.3")
def test_an_operator_of_ones_own_has_the_mixin_from_where_3_3_has_it(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db")
    log = home.dags_test("resumes")
    calls = [(row["try"], row["call"], row.get("id")) for row in home.noted()]
    assert calls == [(1, "submit", None), (2, "status", 0)], log[-5000:]
