"""State from a store into a real Airflow 3.3 over its REST API, and back: exact, resumable, and told what is left."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast import NEVER_EXPIRE, connect
from outlast.integrations.airflow.airflow_rest import AirflowApi, Stored
from outlast.integrations.airflow.export_journal import Journal
from outlast.integrations.airflow.transfer import Outcome, export_state, import_state
from outlast.values import TaskScope, Writer
from support.airflow_home import Airflow, Stack

pytestmark = pytest.mark.airflow(since="3.3")

DAGS = Path(__file__).parent / "dags_backends"
VALUE = {"job": 17, "exact": [2**60, 0.1, "ü", None, True]}
MANY = 400
ANN = Writer("person", name="ann@desk")


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    home = airflow_home(dags=DAGS, FAILING="{home}/failing")
    home.command("dags", "reserialize")
    return home


@pytest.fixture(scope="module")
def stack(home: Airflow) -> Iterator[Stack]:
    """The API server alone, with a run that nobody carries out yet."""
    stack = Stack(home)
    try:
        stack.component("api-server")
        stack.wait("the API server", stack.answers, 120)
        assert stack.api("PATCH", "/api/v2/dags/reads", {"is_paused": False})[0] == 200
        body = {"dag_run_id": "manual__1+a", "logical_date": None}
        assert stack.api("POST", "/api/v2/dags/reads/dagRuns", body)[0] == 200
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with what Airflow can hold, and with what it cannot."""
    path = str(tmp_path_factory.mktemp("store") / "outlast.db")
    with connect(path) as store:
        task = store.task("reads/manual__1+a/read")
        task.set("told", VALUE, retention=timedelta(days=7))
        task.set("exact", 2**60, retention=NEVER_EXPIRE)
        task.set("huge", 2**70, retention=NEVER_EXPIRE)
        task.set("jobs/2026 11?x#1 ü%", "odd", retention=NEVER_EXPIRE)
        task.set("too large", "x" * 70_000)
        store.task("reads/no such run/read").set("told", 1)
        store.task(dag_id="reads", run_id="manual__1+a", task_id="read", item="DE").set("told", 1)
        store.asset("orders", uri="test://orders").set("watermark", 41)
        store.asset("unknown").set("watermark", 1)
    return path


def outlast(home: Airflow, *arguments: str, status: int = 0) -> Any:
    done = home.attempt("outlast", "airflow", *arguments, "--json")
    assert done.returncode == status, done.stdout
    return json.loads(done.stdout.strip().splitlines()[-1])


def held(stack: Stack, query: str = "") -> dict[str, Any]:
    path = f"/api/v2/dags/reads/dagRuns/manual__1%2Ba/taskInstances/read/state-store?limit=100{query}"
    status, told = stack.api("GET", path)
    assert status == 200
    return {row["key"]: row for row in told["task_state_store"]}


def test_an_export_takes_over_everything_airflow_can_hold(home: Airflow, stack: Stack, store: str) -> None:
    journal = str(home.folder / "journal")
    told = outlast(home, "export", store, "--to", home.url, "--journal", journal, status=65)
    assert told["written"] == 4
    reasons = {skipped["what"]: skipped["why"] for skipped in told["skipped"]}
    assert len(reasons) == 5
    assert "max_value_storage_bytes" in reasons["reads/manual__1+a/read too large"]
    assert "Task instance not found" in reasons["reads/no such run/read told"]
    assert "more than 64 bits" in reasons["reads/manual__1+a/read huge"]
    assert "by its key (map_key)" in reasons["reads/manual__1+a/read --item DE told"]
    assert "no such asset" in reasons["asset unknown watermark"]

    there = held(stack)
    assert there.keys() == {"told", "exact", "jobs/2026 11?x#1 ü%"}
    assert there["told"]["value"] == VALUE
    expires = datetime.fromisoformat(there["told"]["expires_at"])
    with connect(store) as own:
        entry = own.task("reads/manual__1+a/read").entry("told")
    assert entry is not None
    assert expires == entry.expires_at
    assert (there["exact"]["value"], there["exact"]["expires_at"]) == (2**60, None)


def test_done_twice_nothing_changes(home: Airflow, stack: Stack, store: str) -> None:
    before = held(stack)
    for journal in ("journal", "another journal"):
        arguments = ("export", store, "--to", home.url, "--journal", str(home.folder / journal))
        told = outlast(home, *arguments, status=65)
        assert (told["written"], told["same"]) == (0, 4)
    assert held(stack) == before


def test_what_airflow_was_given_since_is_left_alone(home: Airflow, stack: Stack, store: str) -> None:
    path = "/api/v2/dags/reads/dagRuns/manual__1%2Ba/taskInstances/read/state-store/exact"
    assert stack.api("PUT", path, {"value": "newer", "expires_at": None})[0] == 204
    arguments = ("export", store, "--to", home.url, "--journal", str(home.folder / "third journal"))
    told = outlast(home, *arguments, status=65)
    assert {
        "what": "reads/manual__1+a/read exact",
        "why": "Airflow has another value, written later; --overwrite-newer replaces it",
    } in told["skipped"]
    assert outlast(home, *arguments, "--overwrite", status=65)["written"] == 0
    assert held(stack)["exact"]["value"] == "newer"
    told = outlast(home, *arguments, "--overwrite-newer", status=65)
    assert (told["written"], told["replaced"]) == (1, ["reads/manual__1+a/read exact"])
    assert held(stack)["exact"]["value"] == 2**60


def test_an_export_that_is_done_again_rolls_nothing_back(home: Airflow, stack: Stack, store: str) -> None:
    """The first ended with what Airflow refused; a task has moved an asset's state before the second."""
    path, journal = str(home.folder / "again.db"), str(home.folder / "journal of again")
    asset = stack.api("GET", "/api/v2/assets?name_pattern=orders")[1]["assets"][0]["id"]
    place = f"/api/v2/assets/{asset}/state-store/position"
    assert stack.api("PUT", place, {"value": 1})[0] == 204
    with connect(path) as own:
        own.asset("orders", uri="test://orders").set("position", 10)
        own.asset("orders").set("too large", "x" * 70_000)
    command = ("export", path, "--to", home.url, "--journal", journal, "--overwrite")
    told = outlast(home, *command, status=65)
    assert (told["written"], told["replaced"], len(told["skipped"])) == (1, ["asset orders position"], 1)
    assert stack.api("PUT", place, {"value": 17})[0] == 204
    for _ in range(2):
        told = outlast(home, *command, status=65)
        assert (told["written"], told["left"]) == (0, ["asset orders position"])
        assert stack.api("GET", place)[1]["value"] == 17
    assert stack.api("DELETE", place)[0] == 204
    assert outlast(home, *command, status=65)["written"] == 0


def test_an_import_brings_back_what_was_exported(home: Airflow, stack: Stack, store: str) -> None:
    back = str(home.folder / "back.db")
    told = outlast(home, "import", "--from", home.url, "--store", back)
    assert (told["written"], told["same"], told["skipped"]) == (4, 0, [])
    with connect(store) as first, connect(back) as second:
        for key in ("told", "exact", "jobs/2026 11?x#1 ü%"):
            one, other = (opened.task("reads/manual__1+a/read").entry(key) for opened in (first, second))
            assert one is not None
            assert other is not None
            assert (one.value, one.expires_at) == (other.value, other.expires_at)
        assert second.asset("orders").get("watermark") == 41
    assert outlast(home, "import", "--from", home.url, "--store", back)["same"] == 4


def test_an_import_leaves_what_the_store_has_otherwise(home: Airflow, stack: Stack) -> None:
    back = str(home.folder / "back.db")
    with connect(back) as store:
        store.task("reads/manual__1+a/read").set("exact", "newer")
    told = outlast(home, "import", "--from", home.url, "--store", back, status=65)
    assert [skipped["what"] for skipped in told["skipped"]] == ["reads/manual__1+a/read exact"]
    command = ("import", "--from", home.url, "--store", back)
    told = outlast(home, *command, "--overwrite", status=65)
    assert "the store has another value, written later; --overwrite-newer" in told["skipped"][0]["why"]
    assert outlast(home, *command, "--overwrite-newer")["replaced"] == ["reads/manual__1+a/read exact"]


def test_an_export_that_was_killed_goes_on(home: Airflow, stack: Stack) -> None:
    path, journal = str(home.folder / "many.db"), home.folder / "journal of many"
    with connect(path) as store:
        store.task("reads/manual__1+a/read").set_many({f"many/{number:03}": number for number in range(MANY)})
    command = ["outlast", "airflow", "export", path, "--to", home.url, "--journal", str(journal)]
    program = str(home.installed.programs / command[0])
    process = subprocess.Popen([program, *command[1:]], env=home.env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_text().count("\n") < 20:
        assert process.poll() is None, "it was done before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = journal.read_text().count("\n")
    told = outlast(home, *command[2:])
    assert told["written"] + told["same"] == MANY
    assert told["same"] >= done
    keys = home.rows("select count(*) from task_state_store where key like 'many/%'")
    assert keys == [(MANY,)]


def test_an_entry_past_its_time_is_not_taken_over_though_airflow_still_shows_it(home: Airflow, stack: Stack) -> None:
    path = str(home.folder / "short.db")
    with connect(path) as store:
        task = store.task("reads/manual__1+a/read")
        task.set("short", "from outlast", retention=timedelta(hours=1))
        arguments = ("export", path, "--to", home.url, "--journal", str(home.folder / "journal of short"))
        assert outlast(home, *arguments)["written"] == 1

        body = {"value": "airflow's", "expires_at": (datetime.now(UTC) - timedelta(seconds=1)).isoformat()}
        place = "/api/v2/dags/reads/dagRuns/manual__1%2Ba/taskInstances/read/state-store/short"
        assert stack.api("PUT", place, body)[0] == 204
        assert stack.api("GET", place)[1]["value"] == "airflow's"
        api = AirflowApi(home.url)
        assert "short" in api.stored(task.scope)
        with connect(home.folder / "of short.db") as back:
            import_state(api, back, writer=ANN, dag_id="reads")
            assert back.task(task.scope).get("short") is None

        task.set("short", "newer", retention=timedelta(hours=1))
        assert outlast(home, *arguments)["written"] == 1  # what is over is not another value
        assert api.stored(task.scope)["short"].value == "newer"


def test_a_short_retention_that_was_exported_ends_at_its_moment(home: Airflow, stack: Stack) -> None:
    api, journal = AirflowApi(home.url), Journal(str(home.folder / "journal of brief"), home.url)
    with connect(home.folder / "brief.db") as store, connect(home.folder / "of brief.db") as back:
        task = store.task("reads/manual__1+a/read")
        task.set("brief", 1, retention=timedelta(seconds=2))
        entry = task.entry("brief")
        assert entry is not None
        assert entry.expires_at is not None
        assert export_state(store, api, journal).written == 1
        journal.close()
        shown = api.stored(task.scope)["brief"].expires_at
        assert shown is not None
        assert datetime.fromisoformat(shown) == entry.expires_at
        time.sleep(max(0.0, (entry.expires_at - datetime.now(UTC)).total_seconds()))
        import_state(api, back, writer=ANN, dag_id="reads")
        assert back.task(task.scope).get("brief") is None


def test_an_import_misses_no_run_while_more_than_a_page_of_others_are_deleted(home: Airflow, stack: Stack) -> None:
    """In the list, which is read in pages of a hundred, all rows behind a deleted one move forward."""
    api = AirflowApi(home.url)
    runs = [f"many{number:03}" for number in range(215)]
    for run_id in runs:
        body = {"dag_run_id": run_id, "logical_date": None}
        assert stack.api("POST", "/api/v2/dags/succeeds/dagRuns", body)[0] == 200
        api.put(TaskScope("succeeds", run_id, "work"), "number", Stored(run_id))
    going = iter([runs[:110]])

    def delete_some(outcome: Outcome) -> None:
        if outcome.written == 20:
            for run_id in next(going, []):
                assert stack.api("DELETE", f"/api/v2/dags/succeeds/dagRuns/{run_id}")[0] == 204

    with connect(home.folder / "shifted.db") as store:
        told = import_state(api, store, writer=ANN, dag_id="succeeds", progress=delete_some)
        assert told.skipped == []
        found = {info.scope.run_id for info in store.scopes(dag_id="succeeds") if isinstance(info.scope, TaskScope)}
    assert next(going, None) is None
    assert found == {*runs[:20], *runs[110:]}


def test_nor_a_key_while_others_are_deleted(home: Airflow, stack: Stack) -> None:
    place = "/api/v2/dags/reads/dagRuns/manual__1%2Ba/taskInstances/read/state-store"
    api, token = AirflowApi(home.url), stack.token()
    is_deleted = threading.Event()

    def delete_some() -> None:
        for number in range(150):
            address = f"{home.url}{place}/many/{number:03}"
            request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"}, method="DELETE")
            urllib.request.urlopen(request, timeout=60).close()
        is_deleted.set()

    deleting = threading.Thread(target=delete_some)
    deleting.start()
    keys, rounds = set[str](), 0
    while not is_deleted.is_set():
        keys, rounds = {*api.stored(TaskScope("reads", "manual__1+a", "read"))}, rounds + 1
        assert {f"many/{number:03}" for number in range(150, MANY)} <= keys
    deleting.join()
    assert rounds > 1


def test_without_a_token_where_one_is_needed_it_says_so(home: Airflow, stack: Stack, store: str) -> None:
    done = home.attempt("outlast", "airflow", "export", store, "--to", home.url, "--token", "wrong")
    assert done.returncode == 77
    assert "give a token of somebody who may" in done.stdout
    assert not Path("outlast-to-airflow.journal").exists()


def test_an_address_where_no_airflow_is_is_refused(home: Airflow, store: str) -> None:
    done = home.attempt("outlast", "airflow", "export", store, "--to", "ftp://airflow")
    assert done.returncode == 78
    assert "is not the URL of an Airflow" in done.stdout


def test_a_task_in_airflow_reads_what_was_exported(home: Airflow, stack: Stack) -> None:
    stack.component("dag-processor")
    stack.component("scheduler", "--skip-serve-logs")
    assert stack.ended("reads", "manual__1+a", timeout=240) == "success", stack.logs()
    (seen,) = home.noted()
    assert seen["told"] == VALUE
    assert seen["exact"] == 2**60
