"""A run's id is used again: the new run does not see what the old one has left, and refuses what of it still runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outlast import StaleAttempt, TaskState, connect
from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow(below="3.3")
ANEW = "is a new run of that name; the state of the earlier one is removed"


def test_a_new_run_of_that_name_begins_with_nothing(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db")
    with connect(home.folder / "outlast.db") as store:

        def still_running() -> TaskState:
            [(run_id,)] = home.rows("select run_id from dag_run")
            job = store.task(f"again/{run_id}/job", attempt=2)
            assert job.get("job") == home.noted()[1]["made"]
            return job

        if home.installed.since < (3,):
            home.dags_test("again", "2024-01-01")
            zombie = still_running()
            for day in (2, 1):  # the run between, or SQLite would use the number of the run again
                log = home.dags_test("again", f"2024-01-0{day}")
            assert log.count(ANEW) == 1, log[-5000:]
        else:  # here, the id of a run tested is always another one
            with home.running() as stack:
                assert stack.trigger("again", "r1") == "failed"
                zombie = still_running()
                assert stack.api("DELETE", "/api/v2/dags/again/dagRuns/r1")[0] == 204
                assert stack.trigger("again", "r1") == "failed"
            assert ANEW in (home.folder / "logs/dag_id=again/run_id=r1/task_id=job/attempt=1.log").read_text()
        with pytest.raises(StaleAttempt):
            zombie.get("job")
        with pytest.raises(StaleAttempt):
            zombie.set("job", "late")
    first, second = home.noted()[:2], home.noted()[-2:]
    assert [row["try"] for row in (*first, *second)] == [1, 2, 1, 2]
    assert [row["found"] for row in (*first, *second)] == [None, first[0]["made"], None, second[0]["made"]]
    with connect(home.folder / "outlast.db") as store:
        assert len(store.scopes()) == len(home.rows("select run_id from dag_run"))
