"""`outlast.testing` with the tasks of a DAG: results of tasks above, mapped instances, assets, and DAG files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import outlast
from outlast import DAG, task
from outlast.testing import load_dag, run_task
from support.airflow import forgotten


@pytest.fixture
def no_airflow() -> Iterator[None]:
    with forgotten():
        yield


@pytest.fixture
def dag() -> DAG:
    with DAG("nightly", params={"limit": 10}) as made:

        @task
        def extract(params):
            return list(range(params["limit"]))

        @task
        def double(row, ti=None, task_state_store=None):
            task_state_store.set("row", row)
            return [ti.map_index, 2 * row]

        @task
        def report(rows, doubled, day="today"):
            return [len(rows), doubled, day]

        rows = extract()
        report(rows, double.expand(row=rows), "monday")
    return made


def test_results_go_from_one_call_to_the_next(dag: DAG, store: outlast.Store) -> None:
    assert run_task(dag.tasks["extract"], store=store, params={"limit": 2}).result == [0, 1]
    assert run_task(dag.tasks["double"], store=store, map_index=1).result == [1, 2]
    assert run_task(dag.tasks["double"], store=store, map_index=0).result == [0, 0]
    assert run_task(dag.tasks["report"], store=store).result == [2, [[0, 0], [1, 2]], "monday"]
    assert store.task("nightly/test/double", map_index=1).get("row") == 1


def test_results_of_other_tasks_can_be_given(dag: DAG) -> None:
    given = {"extract": [1, 2, 3], "double": ["x"]}
    assert run_task(dag.tasks["report"], upstream=given).result == [3, ["x"], "monday"]
    failed = run_task(dag.tasks["report"])
    assert isinstance(failed.exception, outlast.DagError)


@pytest.mark.parametrize(
    ("task_id", "name", "told"),
    [
        ("report", "extarct", r"no task above 'report'; did you mean 'extract'\?; above 'report' are double, extract"),
        ("double", "report", "no task above 'double'; above 'double' are extract"),
        ("double", "double", "no task above 'double'"),
        ("extract", "double", "no task above 'extract'; it has none"),
    ],
)
def test_a_result_of_a_task_that_is_not_above_is_refused(
    dag: DAG, store: outlast.Store, task_id: str, name: str, told: str
) -> None:
    with pytest.raises(ValueError, match=f"upstream has '{name}', which is {told}"):
        run_task(dag.tasks[task_id], store=store, upstream={name: [1]}, map_index=0 if task_id == "double" else -1)
    assert store.scopes() == []


def test_a_function_of_no_dag_has_no_tasks_above_it() -> None:
    with pytest.raises(ValueError, match="upstream has 'extract', which is no task above '"):
        run_task(lambda: 1, upstream={"extract": 1})


def test_a_result_from_further_above_can_be_given() -> None:
    with DAG("chain") as chain:
        first = task(lambda: 1, task_id="first")()
        second = task(lambda: 2, task_id="second")()
        third = task(lambda ti: ti.xcom_pull(task_ids="first"), task_id="third")()
        first >> second >> third
    assert run_task(chain.tasks["third"], upstream={"first": 7}).result == 7


def test_a_result_that_is_given_goes_the_way_a_real_one_does(dag: DAG) -> None:
    rows = [1]
    assert run_task(dag.tasks["report"], upstream={"extract": rows, "double": []}).result[0] == 1
    with pytest.raises(outlast.InvalidValue, match="tuple"):
        run_task(dag.tasks["report"], upstream={"extract": (1, 2)})


def test_an_instance_of_a_mapped_task_has_to_be_named(dag: DAG) -> None:
    with pytest.raises(IndexError, match="map_index=0"):
        run_task(dag.tasks["double"], upstream={"extract": [1]})


def test_arguments_are_for_functions_only(dag: DAG) -> None:
    with pytest.raises(TypeError, match="has its arguments already"):
        run_task(dag.tasks["extract"], arguments={"x": 1})
    with pytest.raises(TypeError, match="is no task"):
        run_task("extract")


def test_the_state_of_assets_is_there_and_dies_with_the_task(store: outlast.Store) -> None:
    from outlast.dags.assets import Asset

    orders = Asset("orders")

    @task(outlets=[orders])
    def move(asset_state_store=None, task_state_store=None):
        asset_state_store.set("watermark", 7)
        task_state_store.set("moved", True)

    killed = run_task(move, store=store, crash_after="watermark")
    assert (killed.crashed, killed.state, store.asset("orders").get("watermark")) == (True, {}, 7)


def test_the_events_a_run_is_started_for_can_be_given_and_those_it_makes_be_seen(
    store: outlast.Store,
) -> None:
    orders, report = outlast.Asset("orders", "s3://orders"), outlast.Asset("report")

    @task(inlets=[orders], outlets=[report])
    def sum_up(triggering_asset_events=None, outlet_events=None):
        rows = [event.extra["rows"] for event in triggering_asset_events[orders]]
        outlet_events[report].extra = {"rows": sum(rows)}
        return rows

    for asset in (orders, outlast.Asset.ref(name="orders"), outlast.Asset.ref(uri="s3://orders")):
        done = run_task(sum_up, store=store, triggering_events={asset: [{"rows": 3}, {"rows": 4}]})
        assert done.result == [3, 4]
        (made,) = done.events
        assert (made.asset, made.extra, made.source_task_id) == (report, {"rows": 7}, "sum_up")
    none = run_task(sum_up, store=store)
    assert isinstance(none.exception, KeyError)
    assert none.events == []


def test_events_given_wrongly_are_refused() -> None:
    orders = outlast.Asset("orders")
    with pytest.raises(TypeError, match="triggering_events has 'orders', which is no asset"):
        run_task(lambda: 1, triggering_events={"orders": [{}]})
    with pytest.raises(TypeError, match="use a list, one extra an event"):
        run_task(lambda: 1, triggering_events={orders: {"rows": 3}})
    with pytest.raises(outlast.InvalidValue, match="datetime"):
        run_task(lambda: 1, triggering_events={orders: [{"at": datetime(2026, 1, 1, tzinfo=UTC)}]})


def test_an_event_whose_extra_is_no_json_fails_the_task_as_in_a_run() -> None:
    orders = outlast.Asset("orders")

    @task(outlets=[orders])
    def move(outlet_events=None):
        outlet_events[orders].extra = {"rows": {1, 2}}

    failed = run_task(move)
    assert failed.failed
    assert isinstance(failed.exception, outlast.InvalidValue)


def test_what_a_dag_file_uses_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fetching.py").write_text(
        "from outlast import DAG, task\n\ndef fetch():\n    raise OSError('no network')\n\n"
        "with DAG('fetching'):\n    @task\n    def load():\n        return fetch()\n    load()\n"
    )
    dag = load_dag(tmp_path / "fetching.py")
    monkeypatch.setattr(sys.modules[dag.module], "fetch", lambda: ["row"])
    assert run_task(dag.tasks["load"]).result == ["row"]
    monkeypatch.undo()
    assert isinstance(run_task(dag.tasks["load"]).exception, OSError)


def test_the_dag_of_a_file_can_be_tried_also_one_written_for_airflow(
    tmp_path: Path, no_airflow: None, store: outlast.Store
) -> None:
    (tmp_path / "orders.py").write_text(
        "from airflow.sdk import DAG, task\n\n"
        "with DAG('orders'):\n    @task\n    def count(task_state_store=None):\n"
        "        task_state_store.set('seen', 3)\n        return 3\n\n    count()\n"
    )
    counted = run_task(load_dag(tmp_path / "orders.py").tasks["count"], store=store)
    assert (counted.result, counted.state) == (3, {"seen": 3})
