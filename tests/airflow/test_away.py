"""A store that is out of reach: how long it is waited for, and that only a task that wants it ever asks for it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.token_requests import CreateToken, digest_of, token_text
from outlast.values import Writer
from support.airflow_home import Airflow
from support.peers import Listener
from support.servers import ServerProcess, free_port

pytestmark = pytest.mark.airflow(below="3.3")

HERE = Path(__file__).parent
URL, ON_ERROR = "AIRFLOW__OUTLAST__URL", "AIRFLOW__OUTLAST__ON_ERROR"
#: What a call is waited for where the store cannot be done without: longer than `disable` waits.
WAITS = {"OUTLAST__CLIENT__RETRY_FOR": "8", "OUTLAST__CLIENT__TIMEOUT": "8"}

BEGIN = """
import asyncio, json, time
import airflow
from outlast.integrations.airflow import listener
from outlast.integrations.airflow.accessors import TaskStateStore
from outlast.integrations.airflow.identity import Identity

def store(task, attempt=1):
    return TaskStateStore(Identity("dag", "run", task, -1, attempt, None, None))

def timed(call):
    began = time.monotonic()
    try:
        said = call()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return time.monotonic() - began, said

class Instance:
    dag_id, run_id, task_id, map_index, try_number, dag_run = "dag", "run", "a", -1, 1, None

a, b = store("a"), store("b")
"""


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    return airflow_home()


def told(home: Airflow, calls: str, **settings: str) -> list[tuple[float, Any]]:
    """Return how many seconds each call took in one process, and what came of it."""
    said = home.run("python", "-W", "ignore", "-c", f"{BEGIN}\nprint('ANSWER', json.dumps([{calls}]))", env=settings)
    found: list[tuple[float, Any]] = json.loads(said.rpartition("ANSWER ")[2].splitlines()[0])
    return found


@contextmanager
def away(url: str) -> Iterator[str]:
    """Fill in a port that nobody listens at, or one that takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        yield url.format(closed=free_port(), silent=silent.getsockname()[1])


def worker_token(file: Path) -> str:
    """Make a store where there is none, and in it a token for workers."""
    text = token_text("worker", os.urandom(32))
    with connect(file) as store:
        store.backend.send(CreateToken(digest_of(text), "worker", "worker", Writer("person", name="ann")))
    return text


PLACES = [
    "http://127.0.0.1:{closed}",
    "http://127.0.0.1:{silent}",
    "postgresql://nobody@127.0.0.1:{closed}/nothing",
    "postgresql://nobody@127.0.0.1:{silent}/nothing",
]


@pytest.mark.parametrize("url", PLACES)
def test_what_can_be_done_without_is_waited_for_once_and_shortly(home: Airflow, url: str) -> None:
    calls = """timed(lambda: a.set("n", 1)), timed(lambda: a.get("n")), timed(lambda: b.get("n", "none")),
        timed(lambda: listener.on_task_instance_success(Instance()))"""
    with away(url) as place:
        settings = {URL: place, ON_ERROR: "disable", "AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS": "True"}
        first, *others = told(home, calls, **settings)
    assert 2 < first[0] < 12
    assert max(seconds for seconds, _ in others) < 1
    assert [said for _, said in (first, *others)] == [None, 1, "none", None]


@pytest.mark.parametrize("url", PLACES)
def test_what_cannot_be_done_without_is_waited_for_as_it_is_set(home: Airflow, url: str) -> None:
    with away(url) as place:
        [(seconds, said)] = told(home, 'timed(lambda: a.set("n", 1))', **{URL: place, **WAITS})
    assert 7 < seconds < 25
    assert said.startswith("BackendError: ")


def test_awaiting_calls_that_begin_at_once_are_given_the_same_store(home: Airflow) -> None:
    calls = """timed(lambda: asyncio.run(both())), timed(lambda: [a.get("x"), a.get("y")])"""
    both = "async def both():\n    await asyncio.gather(a.aset('x', 1), a.aset('y', 2))\n    return await a.aget('x')\n"
    with away(PLACES[0]) as place:
        command = f"{BEGIN}\n{both}\nprint('ANSWER', json.dumps([{calls}]))"
        said = home.run("python", "-W", "ignore", "-c", command, env={URL: place, ON_ERROR: "disable"})
    first, after = json.loads(said.rpartition("ANSWER ")[2].splitlines()[0])
    assert 2 < first[0] < 12
    assert (first[1], after[1]) == (1, [1, 2])


def test_an_operator_that_resumes_waits_longer_and_does_not_go_on_without_its_state(home: Airflow) -> None:
    calls = """timed(lambda: a.get("n", "none")), timed(store("c", 2).require), timed(store("d", 1).require)"""
    with away(PLACES[0]) as place:
        without, second, first = told(home, calls, **{URL: place, ON_ERROR: "disable", **WAITS})
    assert (2 < without[0] < 7, without[1]) == (True, "none")
    assert 7 < second[0] < 25
    assert second[1].startswith("BackendError: ")
    assert (7 < first[0] < 25, first[1]) == (True, None)


def test_an_operator_that_resumes_finds_its_job_when_a_server_is_back_after_a_while(
    home: Airflow, tmp_path: Path
) -> None:
    file, port = tmp_path / "served.db", free_port()
    connect(file).task("dag/run/a").set("job", 7)
    secret = worker_token(file)
    calls = 'timed(store("a", 2).require), timed(lambda: store("a", 2).get("job"))'
    found: list[tuple[float, Any]] = []
    settings = {URL: f"http://127.0.0.1:{port}", ON_ERROR: "disable", "AIRFLOW__OUTLAST__TOKEN": secret}
    with Listener(port) as asked:
        waiting = threading.Thread(target=lambda: found.extend(told(home, calls, **settings)))
        waiting.start()
        asked.wait(60)
    time.sleep(4)  # longer than `disable` waits
    with ServerProcess(file, port=port):
        waiting.join(60)
    assert (found[0][0] > 4, found[0][1], found[1][1]) == (True, None, 7)


def test_a_store_that_is_there_is_used_whatever_could_be_done_without(home: Airflow, tmp_path: Path) -> None:
    file = tmp_path / "served.db"
    secret = worker_token(file)
    with ServerProcess(file) as process:
        calls = 'timed(lambda: a.set("n", 1)), timed(lambda: store("a", 2).get("n")), timed(lambda: a.get("n"))'
        done = told(home, calls, **{URL: process.url, ON_ERROR: "disable", "AIRFLOW__OUTLAST__TOKEN": secret})
    assert [said for _, said in done[:2]] == [None, 1]
    assert done[2][1].startswith("StaleAttempt: ")


@pytest.mark.parametrize("on_error", ["fail", "disable"])
def test_a_connection_that_is_missing_is_a_store_that_is_missing(home: Airflow, on_error: str) -> None:
    settings = {"AIRFLOW__OUTLAST__CONN_ID": "nothing", ON_ERROR: on_error}
    [(_, said)] = told(home, 'timed(lambda: a.get("n", "none"))', **settings)
    missing = "ConfigError: there is no connection 'nothing', which [outlast] conn_id names; create it, or name another"
    assert said == {"fail": missing, "disable": "none"}[on_error]


@pytest.mark.parametrize(("url", "problem"), [(PLACES[0], "tried for 3 s"), (PLACES[1], "no answer within 3 s")])
def test_doctor_waits_three_seconds(home: Airflow, url: str, problem: str) -> None:
    with away(url) as place:
        done = home.attempt("outlast", "airflow", "doctor", "--json", env={URL: place})
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 78
    assert any(problem in found for found in answer["problems"]), answer


# --- Nobody else asks for it -----------------------------------------------------------------------------------


def test_only_a_task_that_wants_the_store_connects_to_it_and_a_scheduler_lives_on(
    airflow_home: Callable[..., Airflow],
) -> None:
    with Listener() as asked:
        settings = {URL: f"http://127.0.0.1:{asked.port}", "OUTLAST__CLIENT__RETRY_FOR": "1"}
        home = airflow_home(HERE / "dags_away", **settings)
        with home.running() as stack:
            assert stack.trigger("without", "before") == "success", stack.logs()
            assert asked.pids == set()
            assert stack.trigger("wanting") == "failed", stack.logs()
            assert stack.trigger("without", "after") == "success", stack.logs()
            assert home.rows("select filename from import_error") == []
    noted = home.noted()
    assert [(row["task"], row.get("given")) for row in noted] == [
        ("wants_none", True),
        ("wants_it", None),
        ("wants_none", True),
    ]
    assert asked.pids == {noted[1]["pid"]}
    logs = "".join(path.read_text() for path in (home.folder / "logs").rglob("*.log") if "wants_it" in str(path))
    assert "(the write may have happened; tried for 1 s); is the server running?" in logs
    assert "[outlast] on_error = disable runs tasks without it" in logs


def test_dag_files_are_parsed_with_the_store_out_of_reach(airflow_home: Callable[..., Airflow]) -> None:
    with Listener() as asked:
        home = airflow_home(HERE / "dags_away", **{URL: f"http://127.0.0.1:{asked.port}"})
        said = home.command("dags", "list-import-errors", "--output", "json")
        assert asked.pids == set()
    assert json.loads(said.strip().splitlines()[-1] if said.strip() else "[]") == [] or "No data found" in said
