"""`MetastorePlusBackend` in a real Airflow 3.3: packed rows that REST still lists, expiry that holds, a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.errors import BackendError
from outlast.integrations.airflow.packing import Packer
from support.airflow_home import Airflow, Stack

pytestmark = pytest.mark.airflow(since="3.3")

DAGS = Path(__file__).parent / "dags_backends"
KEY = "b2xkIGtleSBmb3IgdGVzdHMgb25seSwgMzIgYnl0ZXM="
NEW_KEY = "bmV3IGtleSBmb3IgdGVzdHMgb25seSwgMzIgYnl0ZXM="
BACKEND = "outlast.integrations.airflow.MetastorePlusBackend"
KEYS = "AIRFLOW__OUTLAST__STATE_ENCRYPTION_KEYS"
PLAIN = {"AIRFLOW__STATE_STORE__BACKEND": "airflow.state.metastore.MetastoreBackend"}
STATE = "/api/v2/dags/{}/dagRuns/{}/taskInstances/{}/state-store"


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    return airflow_home(
        dags=DAGS,
        FAILING="{home}/failing",
        GO="{home}/go",
        AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS="100",
        AIRFLOW__STATE_STORE__BACKEND=BACKEND,
        AIRFLOW__OUTLAST__STATE_ENCRYPTION_KEYS=KEY,
    )


@pytest.fixture(scope="module")
def stack(home: Airflow) -> Iterator[Stack]:
    with home.running() as stack:
        assert stack.trigger("keeps", "run1") == "success", stack.logs()
        yield stack


def noted(home: Airflow, task: str, run: str = "run1") -> list[dict[str, Any]]:
    return [row for row in home.noted() if row["task"] == task and row["run"] == run]


def documents(home: Airflow, table: str = "task_state_store") -> list[Any]:
    return [json.loads(value) for (value,) in home.rows(f"select value from {table}")]


def test_a_task_that_was_killed_finds_everything_in_its_second_try(home: Airflow, stack: Stack) -> None:
    (seen,) = noted(home, "survive")
    assert seen["try"] == 2
    assert (seen["job"], seen["large"], seen["long"]) == ({"id": 17}, True, True)
    assert (seen["odd"], seen["gone"]) == ([1, 2**60, 0.1, "ü"], "default")


def test_rows_are_json_documents_that_only_a_key_opens(home: Airflow, stack: Stack) -> None:
    rows = documents(home) + documents(home, "asset_state_store")
    assert len(rows) > 5
    assert all(row.keys() == {"__outlast__"} and row["__outlast__"].startswith("o1e") for row in rows)
    lengths = dict(home.rows("select key, length(value) from task_state_store where dag_id = 'keeps'"))
    assert lengths["long"] < 1000  # of 26 kB


COMPRESSED = """
from airflow.state import TaskScope, get_state_backend
backend, scope = get_state_backend(), TaskScope("keeps", "run1", "survive")
backend.set(scope, "repeated", '"' + "all the same " * 2000 + '"')
backend.set(scope, "short", '{"a": 1}')
print("GOT", len(backend.get(scope, "repeated")), backend.get(scope, "short"))
"""


def test_without_keys_rows_are_compressed_where_that_is_shorter(home: Airflow, stack: Stack) -> None:
    assert 'GOT 26002 {"a": 1}' in home.run("python", "-c", COMPRESSED, env={KEYS: ""})
    rows = dict(home.rows("select key, value from task_state_store where key in ('repeated', 'short')"))
    assert rows["repeated"].startswith('{"__outlast__": "o1z')
    assert len(rows["repeated"]) < 300
    assert rows["short"] == '{"a": 1}'
    for key in rows:
        path = f"{STATE.format('keeps', 'run1', 'survive')}/{key}"
        assert stack.api("DELETE", path)[0] == 204


def test_an_asset_keeps_who_has_written_it(home: Airflow, stack: Stack) -> None:
    query = "select last_updated_by_kind, last_updated_by_task_id from asset_state_store where key = 'seen'"
    assert home.rows(query) == [("task", "asset")]


def test_the_list_over_rest_shows_rows_and_a_plain_one_written_there_passes_through(
    home: Airflow, stack: Stack
) -> None:
    path = STATE.format("keeps", "run1", "survive")
    status, told = stack.api("GET", path)
    assert (status, told["total_entries"]) == (200, 5)
    assert {"job", "large", "long", "shrinks"} <= {row["key"] for row in told["task_state_store"]}

    asset = stack.api("GET", "/api/v2/assets?name_pattern=orders")[1]["assets"][0]["id"]
    body = {"value": ["by hand"]}
    assert stack.api("PUT", f"/api/v2/assets/{asset}/state-store/seen", body)[0] == 204
    stack.restart("api-server")
    assert stack.trigger("keeps", "run2") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run2")
    assert seen["before"] == ["by hand"]


def test_a_task_goes_on_after_a_restart_with_what_was_changed_over_rest(home: Airflow, stack: Stack) -> None:
    """The API server dies while the task runs, and comes back with a key more."""
    stack.begin("across")
    stack.wait("the task", lambda: noted(home, "wait"), 120)
    path = STATE.format("across", "run1", "wait")
    told = {row["key"]: row for row in stack.api("GET", path)[1]["task_state_store"]}
    assert told.keys() == {"left", "patched", "deleted"}
    status, row = stack.api("GET", f"{path}/left")
    assert (status, row) == (200, told["left"])
    assert row["value"]["__outlast__"].startswith("o1e")

    assert stack.api("PATCH", f"{path}/patched", {"value": {"by": "hand"}})[0] == 200
    status, row = stack.api("GET", f"{path}/patched")
    assert (row["value"], row["expires_at"]) == ({"by": "hand"}, told["patched"]["expires_at"])
    assert stack.api("DELETE", f"{path}/deleted")[0] == 204
    assert stack.api("GET", f"{path}/deleted")[0] == 404
    assert stack.api("PUT", f"{path}/put", {"value": [1]})[0] == 204

    home.env[KEYS] = f"{KEY},{NEW_KEY}"
    stack.restart("api-server")
    (home.folder / "go").touch()
    assert stack.ended("across") == "success", stack.logs()
    _, seen = noted(home, "wait")
    assert (seen["left"], seen["patched"], seen["deleted"], seen["put"]) == (True, {"by": "hand"}, "default", [1])
    assert stack.api("GET", f"{path}/put")[1]["value"]["__outlast__"].startswith("o1e")
    assert stack.api("DELETE", path)[0] == 204
    assert stack.api("GET", path)[1]["total_entries"] == 0


def test_an_entry_is_gone_when_its_time_is_over_and_cleaned_up_by_airflow(home: Airflow, stack: Stack) -> None:
    """To tasks, that is: REST and the page read Airflow's table, and show the row with its time until it is cleaned."""
    assert stack.trigger("expires", "run1") == "success", stack.logs()
    (seen,) = noted(home, "short")
    assert (seen["short"], seen["stays"]) == ("default", True)
    expired = "select key from task_state_store where dag_id = 'expires' order by key"
    assert home.rows(expired) == [("large",), ("short",), ("stays",)]
    status, row = stack.api("GET", STATE.format("expires", "run1", "short") + "/short")
    assert (status, row["value"].keys()) == (200, {"__outlast__"})
    assert datetime.fromisoformat(row["expires_at"]) < datetime.now(UTC)
    assert "key 'short'" in home.command("state-store", "clean", "--dry-run")
    home.command("state-store", "clean")
    assert home.rows(expired) == [("stays",)]


def test_doctor_finds_all_well_and_names_a_backend_in_the_wrong_place(home: Airflow, stack: Stack) -> None:
    told = json.loads(home.run("outlast", "airflow", "doctor", "--json").strip().splitlines()[-1])
    assert told["well"] is True, told
    assert told["facts"]["encryption"] == "2 keys"
    assert told["facts"]["packed values"].endswith("can be read")
    assert told["facts"]["[state_store] backend"] == BACKEND
    wrong = {"AIRFLOW__WORKERS__STATE_STORE_BACKEND": BACKEND, KEYS: "short"}
    done = home.attempt("outlast", "airflow", "doctor", env=wrong)
    assert done.returncode == 78
    assert "which is no backend for that place; use outlast.integrations.airflow.WorkerBackend" in done.stdout
    assert done.stdout.count("key 1 of [outlast] state_encryption_keys is not a Fernet key") == 1


@pytest.mark.parametrize(
    ("keys", "why"), [("", "this process has no key"), (NEW_KEY, "does not open a stored value: add the key")]
)
def test_doctor_says_that_the_key_is_not_the_one(home: Airflow, stack: Stack, keys: str, why: str) -> None:
    done = home.attempt("outlast", "airflow", "doctor", "--json", env={KEYS: keys})
    assert done.returncode == 78
    (problem,) = json.loads(done.stdout.strip().splitlines()[-1])["problems"]
    assert " packed values cannot be read: the row expires/run1/short stays cannot be read: " in problem
    assert why in problem
    done = home.attempt("outlast", "airflow", "doctor", "--json", env={**PLAIN, KEYS: keys})
    facts = json.loads(done.stdout.strip().splitlines()[-1])["facts"]
    assert "cannot be read here, where no backend of outlast's is set" in facts["packed values"]


ASYNC = """
import asyncio
from datetime import UTC, datetime, timedelta
from airflow.state import TaskScope, get_state_backend
from airflow.utils.session import create_session_async

async def main():
    backend, scope = get_state_backend(), TaskScope("keeps", "run1", "survive")
    async with create_session_async() as session:
        await backend.aset(scope, "awaited", '{"a": 1}', session=session)
        await backend.aset(scope, "over", "1", expires_at=datetime.now(UTC) - timedelta(seconds=1), session=session)
    print("GOT", await backend.aget(scope, "awaited"), await backend.aget(scope, "over"))

asyncio.run(main())
"""


def test_awaiting_callers_get_the_same(home: Airflow, stack: Stack) -> None:
    assert 'GOT {"a": 1} None' in home.run("python", "-c", ASYNC)
    rows = home.rows("select value from task_state_store where key = 'awaited'")
    assert '"__outlast__": "o1e' in rows[0][0]


def test_an_import_unpacks_rows(home: Airflow, stack: Stack) -> None:
    path = str(home.folder / "imported.db")
    said = home.run("outlast", "airflow", "import", "--from", home.url, "--store", path, "--dag", "keeps", "--json")
    assert json.loads(said.strip().splitlines()[-1])["skipped"] == []
    with connect(path) as store:
        assert store.task("keeps/run1/survive").get("job") == {"id": 17}
    done = home.attempt("outlast", "airflow", "import", "--from", home.url, "--store", path, env={KEYS: NEW_KEY})
    assert done.returncode == 65
    assert "the key in [outlast] state_encryption_keys does not open a stored value" in done.stdout


def opened_by(home: Airflow, key: str) -> int:
    packer, number = Packer(keys=[key]), 0
    for row in documents(home) + documents(home, "asset_state_store"):
        with suppress(BackendError):
            number += "__outlast__" in row and bool(packer.unpack(row["__outlast__"].encode()))
    return number


def test_keys_are_rotated(home: Airflow, stack: Stack) -> None:
    home.env[KEYS] = f"{NEW_KEY},{KEY}"
    stack.restart("api-server")
    assert stack.trigger("keeps", "run3") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run3")
    assert seen["before"] == ["by hand", "run2"]  # written under the old key
    old, new = opened_by(home, KEY), opened_by(home, NEW_KEY)
    assert old > 0
    assert new > 0

    times = home.rows("select updated_at from task_state_store order by id")
    said = home.run("outlast", "airflow", "rotate", "--json").strip().splitlines()[-1]
    assert json.loads(said) == {"rewritten": old, "current": new, "changed_meanwhile": 0, "plain": 0, "unreadable": []}
    assert home.rows("select updated_at from task_state_store order by id") == times
    assert (opened_by(home, KEY), opened_by(home, NEW_KEY)) == (0, old + new)

    home.env[KEYS] = NEW_KEY
    stack.restart("api-server")
    assert stack.trigger("keeps", "run4") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run4")
    assert seen["before"] == ["by hand", "run2", "run3"]


def test_rows_that_were_written_by_hand_are_encrypted_by_a_rotation(home: Airflow, stack: Stack) -> None:
    asset = stack.api("GET", "/api/v2/assets?name_pattern=orders")[1]["assets"][0]["id"]
    assert stack.api("PUT", f"/api/v2/assets/{asset}/state-store/seen", {"value": ["by hand"]})[0] == 204
    plain = json.loads(home.run("outlast", "airflow", "rotate", "--json", env=PLAIN).strip().splitlines()[-1])
    assert (plain["rewritten"], plain["plain"]) == (0, 1)
    said = home.run("outlast", "airflow", "rotate", env=PLAIN)
    assert "1 value left plain: no backend of outlast's is set here to write them" in said
    done = json.loads(home.run("outlast", "airflow", "rotate", "--json").strip().splitlines()[-1])
    assert (done["rewritten"], done["plain"]) == (1, 0)
    assert all(row["__outlast__"].startswith("o1e") for row in documents(home, "asset_state_store"))
    assert stack.trigger("keeps", "run5") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run5")
    assert seen["before"] == ["by hand"]
