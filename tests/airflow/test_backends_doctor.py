"""`outlast airflow doctor` beside an Airflow below 3.3: what it finds, and that it creates nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.settings import ServerSettings
from outlast.token_requests import CreateToken, digest_of, token_text
from outlast.values import Writer
from support.airflow_home import Airflow
from support.servers import house

pytestmark = pytest.mark.airflow(below="3.3")

URL = "AIRFLOW__OUTLAST__URL"


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    return airflow_home()


def doctor(home: Airflow, status: int, **settings: str) -> dict[str, Any]:
    done = home.attempt("outlast", "airflow", "doctor", "--json", env=settings)
    assert done.returncode == status, done.stdout
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def test_all_is_well_and_nothing_is_created(home: Airflow) -> None:
    store = home.folder / "outlast.db"
    told = doctor(home, 0, **{URL: str(store)})
    assert told["facts"]["airflow"].startswith(home.installed.version)
    assert told["facts"]["mechanism"].startswith("outlast puts task_state_store into the context")
    assert told["facts"]["airflow.policy"] == "outlast.integrations.airflow.policy"
    assert told["facts"]["airflow.plugins"] == "outlast.integrations.airflow.plugin:OutlastPlugin"
    assert told["facts"]["policy"] == "taken up"
    assert "not created yet" in told["facts"]["store"]
    assert not store.exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "no store is named, so tasks get no task_state_store: set [outlast] url"),
        ({URL: "outlast.db"}, "write an absolute one"),
        ({URL: "/nowhere/outlast.db"}, "the folder /nowhere does not exist"),
        ({URL: "/tmp/outlast.db", "AIRFLOW__OUTLAST__ON_ERROR": "perhaps"}, "write fail or disable"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(home: Airflow, settings: dict[str, str], problem: str) -> None:
    told = doctor(home, 78, **settings)
    assert any(problem in found for found in told["problems"]), told


def test_a_token_that_no_task_can_use_is_told(home: Airflow, tmp_path: Path) -> None:
    store = connect(tmp_path / "store.db")
    url, _ = house().move_in(store, ServerSettings())
    try:
        for role, status in (("viewer", 78), ("worker", 0)):
            text = token_text(role, os.urandom(32))  # type: ignore[arg-type]
            store.backend.send(CreateToken(digest_of(text), role, role, Writer("person", name="ann")))
            told = doctor(home, status, **{URL: url, "AIRFLOW__OUTLAST__TOKEN": text})
            assert any("the token is a viewer's" in found for found in told["problems"]) is (role == "viewer"), told
    finally:
        house().move_out(url)
        store.close()


def test_the_sweep_says_that_it_is_for_a_later_airflow(home: Airflow) -> None:
    done = home.attempt("outlast", "airflow", "sweep", env={"AIRFLOW__OUTLAST__STATE_OFFLOAD_URL": str(home.folder)})
    assert done.returncode == 78
    assert "this needs Airflow 3.3 or later" in done.stdout
