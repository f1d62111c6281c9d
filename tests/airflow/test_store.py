"""Where the store is: a file, a server, a connection of Airflow's, PostgreSQL; and what happens where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.config import ClientSettings, Config
from support.airflow_home import Airflow
from support.postgres import server
from support.servers import ServerProcess

pytestmark = pytest.mark.airflow(below="3.3")

LISTENING = """
import json, os, sys
from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

@hookimpl
def on_task_instance_success(task_instance):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps({"heard": task_instance.task_id}) + "\\n")

class Heard(AirflowPlugin):
    name = "heard"
    listeners = [sys.modules[__name__]]
"""
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def counted(home: Airflow) -> list[int]:
    return [row["number"] for row in home.noted() if row["task"] == "count"]


def state(home: Airflow) -> str:
    return str(home.rows("select state from dag_run")[0][0])


def token(store: Path) -> str:
    """Return a token for workers, as a person makes one."""
    command = [sys.executable, "-m", "outlast.cli", "token", "create", "--role", "worker"]
    env = {**os.environ, "OUTLAST_URL": str(store)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """An outlast server on a file, and a worker's token for it."""
    connect(tmp_path / "served.db").task("a/b/c").clear()
    secret = token(tmp_path / "served.db")
    with ServerProcess(tmp_path / "served.db") as process:
        yield process, secret


def test_a_server_serves_a_dag_and_a_plain_program(airflow_home: Callable[..., Airflow], served: Any) -> None:
    process, secret = served
    home = airflow_home(
        AIRFLOW__OUTLAST__URL=process.url, AIRFLOW__OUTLAST__TOKEN=secret, AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS="True"
    )
    home.dags_test("counts")
    assert (state(home), counted(home)) == ("success", [1])
    [(run_id,)] = home.rows("select run_id from dag_run")
    with connect(process.url, config=Config(client=ClientSettings(token=secret))) as store:
        plain = store.task(f"counts/{run_id}/count", attempt=2)
        assert plain.items() == []
        plain.set("number", 7)
        assert plain.increment("number") == 8


def test_a_connection_of_airflows_names_the_server_and_its_token(
    airflow_home: Callable[..., Airflow], served: Any
) -> None:
    process, secret = served
    place = process.url.removeprefix("http://")
    home = airflow_home(AIRFLOW__OUTLAST__CONN_ID="state", AIRFLOW_CONN_STATE=f"http://:{secret}@{place}")
    log = home.dags_test("counts")
    assert (state(home), counted(home)) == ("success", [1])
    told = [line for line in log.splitlines() if "MaskSecret" not in line]  # 3.0 logs what it is told to mask
    assert [line for line in told if secret in line] == []


@pytest.mark.parametrize("on_error", ["fail", "disable"])
def test_a_connection_is_opened_and_closed_after_five_idle_seconds(
    airflow_home: Callable[..., Airflow], on_error: str
) -> None:
    url = f"{server().url}?schema=airflow_idle_{on_error}"
    home = airflow_home(AIRFLOW__OUTLAST__URL=url, AIRFLOW__OUTLAST__ON_ERROR=on_error)
    log = home.dags_test("idles")
    assert home.noted() == [{"task": "idle", "try": 1, "seen": [0, 1, 0], "n": 1}], log[-5000:]


def test_a_store_out_of_reach_fails_the_task_that_wants_it_and_no_other(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL=NOWHERE, OUTLAST__CLIENT__RETRY_FOR="0")
    log = home.dags_test("counts")
    assert [row["task"] for row in home.noted()] == ["plain"]
    assert "cannot reach postgresql://" in log
    assert "[outlast] on_error = disable runs tasks without it" in log
    assert state(home) == "failed"


def test_a_store_out_of_reach_can_be_done_without(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(
        AIRFLOW__OUTLAST__URL=NOWHERE, OUTLAST__CLIENT__RETRY_FOR="0", AIRFLOW__OUTLAST__ON_ERROR="disable"
    )
    log = home.dags_test("counts")
    assert (state(home), counted(home)) == ("success", [1])
    assert "the state of this try is not kept" in log


@pytest.mark.parametrize("url", ["outlast.db", "sqlite:///outlast.db"])
def test_a_path_that_means_another_file_in_each_folder_is_refused(
    airflow_home: Callable[..., Airflow], url: str
) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL=url)
    assert "write an absolute one" in home.dags_test("counts")
    assert [row["task"] for row in home.noted()] == ["plain"]


@pytest.mark.fast
def test_verbs_of_airflows_and_of_outlasts_own_and_what_is_refused(
    airflow_home: Callable[..., Airflow],
) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db")
    log = home.dags_test("verbs")
    told = [row for row in home.noted() if row["task"] == "verb"]
    assert len(told) == 4, log[-5000:]
    row, written, read, fallback = told
    assert row["shown"] == [1, 2, True, ["a", "b", "n"], False, 3]
    assert row["refused"] == ["InvalidValue", "InvalidValue", "TypeError"]
    assert row["dir"] is True
    assert (row["versions"], row["done"]) == ([2, 1], ["p", "q"])
    assert all("was superseded by attempt 2" in refused["stale"] for refused in (written, read))
    assert fallback["fallback"] == [True, True]
    plain = [row for row in home.noted() if row["task"] == "plain"]
    assert [row["seen"] for row in plain] == [[1, None, "cleared", 2, None, "cleared"]] * 3, log[-5000:]
    assert {row["never"] for row in plain} == {None}


def test_a_sites_own_policy_and_listener_are_called_and_see_the_store(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db")
    (home.dags / "airflow_local_settings.py").write_text(
        "def get_airflow_context_vars(context):\n"
        "    return {'site': 'own', 'stored': str('task_state_store' in context)}\n"
    )
    plugins = home.folder / "plugins"
    plugins.mkdir()
    (plugins / "heard.py").write_text(LISTENING)
    home.dags_test("counts")
    assert {row["heard"] for row in home.noted() if "heard" in row} == {"count", "plain"}
    [row] = [row for row in home.noted() if row.get("task") == "count"]
    assert (row["number"], row["site"], row["stored"]) == (1, "own", "True")
