"""The policy hook where outlast has nothing to do, and a worker's backend with a wrong setting, are in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow()

HOOK = """
import json, sys
import airflow
from outlast.integrations.airflow import policy
class Thing:
    dag_id, run_id, task_id, map_index, try_number, inlets, outlets = "dag", "run", "task", -1, 1, [], []
before = set(sys.modules)
context = {"ti": Thing(), "task": Thing()}
policy.get_airflow_context_vars(context)
policy.get_dagbag_import_timeout("file.py")
loaded = sorted(name for name in set(sys.modules) - before if name.startswith("outlast"))
for odd in (None, {}, {"ti": None}, 5, {"ti": Thing(), "task": None}):
    policy.get_airflow_context_vars(odd)
print(json.dumps({"keys": sorted(context), "loaded": loaded}))
"""
SUCCEEDS = """
from airflow.sdk.state import TaskScope
from outlast.errors import ConfigError
from outlast.integrations.airflow import WorkerBackend
scope = TaskScope(dag_id="dag", run_id="run", task_id="task", map_index=-1)
backend = WorkerBackend()
backend.clear(scope)
backend.delete(scope, "key")
try:
    backend.deserialize_task_state_store_from_ref('o1j1')
except ConfigError as error:
    print("refused:", error.message)
"""


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    return airflow_home()


def hooked(home: Airflow, **settings: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(home.run("python", "-c", HOOK, env=settings).strip().splitlines()[-1])
    return told


def test_without_a_store_nothing_is_changed_and_hardly_anything_loaded(home: Airflow) -> None:
    told = hooked(home)
    assert told["keys"] == ["task", "ti"]
    assert set(told["loaded"]) <= {
        "outlast.errors",
        "outlast.integrations.airflow.where",
        "outlast.integrations.airflow.parsing",
        "outlast.integrations.airflow.resumable",
    }


def test_with_one_a_task_has_its_state_below_3_3_and_odd_contexts_raise_nothing(home: Airflow) -> None:
    store = home.folder / "hooked.db"
    told = hooked(home, AIRFLOW__OUTLAST__URL=str(store))
    own = ["task_state_store"] if home.installed.since < (3, 3) else []
    assert told["keys"] == ["task", *own, "ti"]
    assert not store.exists()


@pytest.mark.airflow(since="3.3")
def test_a_wrong_setting_fails_no_task_that_has_succeeded(home: Airflow) -> None:
    said = home.run("python", "-c", SUCCEEDS, env={"AIRFLOW__OUTLAST__STATE_ENCRYPTION_KEYS": "no key"})
    assert "refused: key 1 of [outlast] state_encryption_keys is not a Fernet key" in said
    assert said.count("left to `outlast airflow sweep`") == 2
