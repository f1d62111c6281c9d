"""Airflow's own REST client, as it comes from its package, against this server: nothing in it knows of outlast."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlast.run_requests import TaskSpec
from support.public import Door, open_door

client = pytest.importorskip("airflow_client.client", reason="optional: apache-airflow-client is not installed")
api, models = client.api, client.models

pytestmark = [pytest.mark.http, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        desk = door.desk()
        desk.start("load", TaskSpec("each", 0), TaskSpec("each", 1), params='{"day":1}')
        desk.ran("load", "failed", error="no")
        door.store.asset("orders", uri="s3://b/orders").set("watermark", 1)
        yield door


@pytest.fixture
def airflow(door: Door) -> Iterator[Any]:
    settings = client.Configuration(host=door.url, access_token=door.token)
    with client.ApiClient(settings) as made:
        yield made


def test_task_state(door: Door, airflow: Any) -> None:
    store, place = api.TaskStateStoreApi(airflow), ("etl", "r1", "load")
    body = models.TaskStateStoreBody(value={"rows": [1, None]})
    assert store.set_task_state_store("a/b c%?#é", *place, body) is None
    until = models.ExpiresAt(datetime(2027, 1, 1, tzinfo=UTC))
    store.set_task_state_store("page", *place, models.TaskStateStoreBody(value=7, expires_at=until))
    assert store.patch_task_state_store("page", *place, models.TaskStateStorePatchBody(value=8)) is None
    found = store.get_task_state_store("page", *place)
    assert (found.value, found.expires_at) == (8, datetime(2027, 1, 1, tzinfo=UTC))
    page = store.list_task_state_store(*place, limit=1)
    assert (page.total_entries, page.task_state_store[0].key) == (2, "a/b c%?#é")
    store.delete_task_state_store("page", *place)
    store.clear_task_state_store(*place)
    assert store.list_task_state_store(*place).total_entries == 0
    with pytest.raises(client.exceptions.NotFoundException) as refused:
        store.get_task_state_store("page", *place)
    assert "Task state store key 'page' not found" in str(refused.value)


def test_asset_state(door: Door, airflow: Any) -> None:
    asset = api.AssetApi(airflow).get_assets().assets[0]
    assert (asset.name, asset.uri) == ("orders", "s3://b/orders")
    store = api.AssetStateStoreApi(airflow)
    store.set_asset_state_store("cursor", asset.id, models.AssetStateStoreBody(value=[2]))
    page = store.list_asset_state_store(asset.id)
    assert [(entry.key, entry.value) for entry in page.asset_state_store] == [("cursor", [2]), ("watermark", 1)]
    assert page.asset_state_store[0].last_updated_by.kind.value == "api"
    store.delete_asset_state_store("cursor", asset.id)
    store.clear_asset_state_store(asset.id)
    assert door.store.asset("orders").keys() == []


def test_lists_to_find_ids_in(door: Door, airflow: Any) -> None:
    assert [dag.dag_id for dag in api.DAGApi(airflow).get_dags().dags] == ["etl"]
    assert api.DAGApi(airflow).get_dag("etl").fileloc == "/dags/nightly.py"
    runs = api.DagRunApi(airflow).get_dag_runs("etl")
    assert (runs.total_entries, runs.dag_runs[0].dag_run_id, runs.dag_runs[0].conf) == (1, "r1", {"day": 1})
    assert api.DagRunApi(airflow).get_dag_run("etl", "r1").state.value == "running"
    instances = api.TaskInstanceApi(airflow).get_task_instances("etl", "r1")
    assert {(one.task_id, one.map_index): one.state and one.state.value for one in instances.task_instances} == {
        ("load", -1): "failed",
        ("each", 0): None,
        ("each", 1): None,
    }
    everywhere = api.TaskInstanceApi(airflow).get_task_instances("~", "~", state=["failed"])
    assert [one.task_id for one in everywhere.task_instances] == ["load"]
    assert api.TaskInstanceApi(airflow).get_task_instance("etl", "r1", "load").try_number == 1
    assert api.TaskInstanceApi(airflow).get_mapped_task_instance("etl", "r1", "each", 1).map_index == 1
    assert api.TaskInstanceApi(airflow).get_mapped_task_instances("etl", "r1", "each").total_entries == 2


def test_clear_task_instances(door: Door, airflow: Any) -> None:
    instances = api.TaskInstanceApi(airflow)
    body = models.ClearTaskInstancesBody(dag_run_id="r1", task_ids=[models.ClearTaskInstancesBodyTaskIdsInner("load")])
    assert instances.post_clear_task_instances("etl", body).total_entries == 1
    assert door.desk().states()["load"] == "failed"  # dry_run is the default
    body.dry_run = False
    assert instances.post_clear_task_instances("etl", body).total_entries == 1
    assert door.desk().states()["load"] == "waiting"
