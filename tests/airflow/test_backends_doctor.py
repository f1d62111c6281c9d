"""`outlast airflow doctor` beside an Airflow below 3.3: what it finds, and that it creates nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.settings import ServerSettings
from outlast.token_requests import CreateToken, digest_of, token_text
from outlast.values import Writer
from support.airflow_home import Airflow
from support.servers import ServerProcess, house

pytestmark = pytest.mark.airflow(below="3.3")

URL, TOKEN = "AIRFLOW__OUTLAST__URL", "AIRFLOW__OUTLAST__TOKEN"


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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A server, and a token of each of some roles."""
    store = connect(tmp_path_factory.mktemp("server") / "store.db")
    url, _ = house().move_in(store, ServerSettings())
    tokens = {}
    try:
        for role in ("viewer", "worker"):
            tokens[role] = token_text(role, os.urandom(32))  # type: ignore[arg-type]
            store.backend.send(CreateToken(digest_of(tokens[role]), role, role, Writer("person", name="ann")))
        yield url, tokens
    finally:
        house().move_out(url)
        store.close()


def test_a_token_that_no_task_can_use_is_told_once(home: Airflow, server: tuple[str, dict[str, str]]) -> None:
    url, tokens = server
    told = doctor(home, 0, **{URL: url, TOKEN: tokens["worker"]})
    assert told["facts"]["store reachable"].startswith("yes, with a token")
    (problem,) = doctor(home, 78, **{URL: url, TOKEN: tokens["viewer"]})["problems"]
    assert "the token is a viewer's" in problem
    assert "`outlast token create --role worker` makes one for Airflow" in problem


def test_a_server_that_wants_a_token_is_told_with_the_setting(
    home: Airflow, server: tuple[str, dict[str, str]]
) -> None:
    (problem,) = doctor(home, 78, **{URL: server[0]})["problems"]
    assert "wants a token, and none is set: `outlast token create --role worker`" in problem
    assert "set [outlast] token in airflow.cfg, AIRFLOW__OUTLAST__TOKEN or OUTLAST_TOKEN" in problem


def test_a_connection_in_airflows_database_is_found_outside_a_task(home: Airflow, tmp_path: Path) -> None:
    token = token_text("worker", os.urandom(32))
    with connect(tmp_path / "store.db") as store:
        store.backend.send(CreateToken(digest_of(token), "worker", "worker", Writer("person", name="ann")))
    with ServerProcess(tmp_path / "store.db") as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        home.command("connections", "add", "by-uri", "--conn-uri", f"http://:{token}@{host}:{port}")
        parts = ("--conn-host", host, "--conn-port", port, "--conn-password", token)
        home.command("connections", "add", "by-parts", "--conn-type", "generic", *parts)
        for name in ("by-uri", "by-parts"):
            told = doctor(home, 0, AIRFLOW__OUTLAST__CONN_ID=name)
            assert told["facts"]["store"] == server.url
            assert told["facts"]["store reachable"] == "yes, with a token that may not look into the store as a whole"
    (problem,) = doctor(home, 78, AIRFLOW__OUTLAST__CONN_ID="nothing")["problems"]
    assert problem == "there is no connection 'nothing', which [outlast] conn_id names; create it, or name another"


def test_where_the_database_is_out_of_reach_a_connection_is_a_tasks_to_see(home: Airflow) -> None:
    elsewhere = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nowhere/airflow.db"}
    told = doctor(home, 0, AIRFLOW__OUTLAST__CONN_ID="by-uri", **elsewhere)
    assert "can only be seen from inside a task" in told["facts"]["store"]


def test_the_sweep_says_that_it_is_for_a_later_airflow(home: Airflow) -> None:
    for settings in ({}, {"AIRFLOW__OUTLAST__STATE_OFFLOAD_URL": str(home.folder)}):
        done = home.attempt("outlast", "airflow", "sweep", env=settings)
        assert done.returncode == 78
        assert "this needs Airflow 3.3 or later" in done.stdout
