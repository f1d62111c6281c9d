"""Whatever way a task uses its state, its second try finds what the first one wrote: `airflow dags test`.

The same on 3.3, whose own store it then is, outlast being installed and switched on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlast import connect
from support.airflow_home import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.fast]
SEEN = 41

RETRIED = {
    *(("keyword", -1), ("without_default", -1), ("current", -1), ("everything", -1), ("classic", -1), ("operator", -1)),
    *(("mapped", 0), ("mapped", 1), ("mapped", 2), ("mapped_operator", 0), ("mapped_operator", 1)),
}


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    """A home in which the DAG has run, once for all of these tests."""
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db")
    if home.installed.since < (3, 3):
        with connect(home.folder / "outlast.db") as store:
            store.asset(uri="test://orders/table").set("seen", SEEN)  # as Airflow 2.x left it, which knows no names
    home.log = home.dags_test("survives")  # type: ignore[attr-defined]
    return home


@pytest.fixture
def noted(home: Airflow) -> Callable[[str], list[dict[str, Any]]]:
    """Return what a task has noted, in order, without what says which task it was."""

    def of(task: str) -> list[dict[str, Any]]:
        rows = [dict(row) for row in home.noted() if row.pop("task") == task]
        return [{key: value for key, value in row.items() if key not in ("index", "try")} for row in rows]

    return of


def test_the_run_succeeds(home: Airflow) -> None:
    assert home.rows("select state from dag_run") == [("success",)], home.log[-5000:]  # type: ignore[attr-defined]


def test_each_second_try_finds_what_the_first_wrote(home: Airflow) -> None:
    tries = [row for row in home.noted() if "expected" in row]
    assert [row for row in tries if row["found"] != row["expected"]] == []
    assert {(row["task"], row["index"]) for row in tries if row["try"] == 2} == RETRIED


def test_a_deferred_task_finds_its_state_when_it_goes_on(noted: Callable[[str], list[dict[str, Any]]]) -> None:
    assert noted("deferring") == [
        {"phase": "execute"},
        {"phase": "resume", "found": "deferred", "event": "it is later"},
    ]


@pytest.mark.airflow(below="3.3")  # 3.3's own store answers a retry callback with the default, under `dags test`
def test_callbacks_see_the_state_after_a_failed_try_after_success_and_after_the_last_try(
    noted: Callable[[str], list[dict[str, Any]]],
) -> None:
    called = [row["callback"] for row in noted("keyword") if "callback" in row]
    assert called == ["keyword--1", "keyword--1"]
    assert noted("failing") == [{"callback": "lost"}]
    assert noted("afterwards") == [{"reached": True}]


def test_a_task_has_the_state_of_its_assets_and_without_assets_no_such_key(
    home: Airflow, noted: Callable[[str], list[dict[str, Any]]]
) -> None:
    before = SEEN if home.installed.since < (3, 3) else 0
    assert noted("one_asset") == [{"before": before, "after": before + 1}]
    [two] = noted("two_assets")
    assert two["cursor"] == {"id": 7}
    assert "has 2" in two["refused"]
    assert noted("no_asset") == [{"keys": ["task_state_store"]}]


def test_templates_render_as_before(home: Airflow, noted: Callable[[str], list[dict[str, Any]]]) -> None:
    defined = home.installed.since >= (3, 3)
    assert {row["text"] for row in noted("operator") if "text" in row} == {f"operator {defined}"}
    assert {row["text"] for row in noted("mapped_operator") if "text" in row} == {"a 0", "b 1"}


def test_branches_sensors_and_other_interpreters(noted: Callable[[str], list[dict[str, Any]]]) -> None:
    assert noted("branch") == [{"taken": "left"}]
    assert (noted("left"), noted("right")) == ([{"reached": True}], [])
    assert noted("poked") == [{"pokes": 1}, {"pokes": 2}, {"pokes": 3}]
    assert noted("told") == [{"answer": "None"}]


def test_airflows_own_variables_are_still_set(noted: Callable[[str], list[dict[str, Any]]]) -> None:
    assert noted("bash") == [{"id": "bash"}]


@pytest.mark.airflow(since="3.3")
def test_from_3_3_on_nothing_is_kept_here(home: Airflow) -> None:
    assert not (home.folder / "outlast.db").exists()


@pytest.mark.airflow(below="3.3")
def test_what_was_written_is_there_for_a_plain_program(home: Airflow) -> None:
    [(run_id,)] = home.rows("select run_id from dag_run")
    told = {"OUTLAST_URL": str(home.folder / "outlast.db")}
    assert home.run("outlast", "state", "get", f"survives/{run_id}/keyword", "job", env=told) == '"keyword--1"\n'
