"""`WorkerBackend` in a real Airflow 3.3: crash, restart, key rotation, sweep, and an object store that fails."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from support.airflow_home import Airflow, Stack

pytestmark = pytest.mark.airflow(since="3.3")

DAGS = Path(__file__).parent / "dags_backends"
OLD_KEY = "b2xkIGtleSBmb3IgdGVzdHMgb25seSwgMzIgYnl0ZXM="
NEW_KEY = "bmV3IGtleSBmb3IgdGVzdHMgb25seSwgMzIgYnl0ZXM="
BACKEND = "outlast.integrations.airflow.WorkerBackend"
PROGRAM = "import raising_files, sys; from outlast.cli import main; sys.exit(main(sys.argv[1:]))"
KEYS = "AIRFLOW__OUTLAST__STATE_ENCRYPTION_KEYS"
LARGE = f"{random.Random(1).getrandbits(40_000):x}"


@pytest.fixture(scope="module")
def home(airflow_home: Callable[..., Airflow]) -> Airflow:
    made = airflow_home(
        dags=DAGS,
        FAILING="{home}/failing",
        AIRFLOW__WORKERS__STATE_STORE_BACKEND=BACKEND,
        AIRFLOW__OUTLAST__STATE_OFFLOAD_URL="raising://{home}/payloads",
        AIRFLOW__OUTLAST__STATE_OFFLOAD_ABOVE="2000",
        AIRFLOW__OUTLAST__STATE_ENCRYPTION_KEYS=OLD_KEY,
    )
    failing(made, "")
    return made


@pytest.fixture(scope="module")
def stack(home: Airflow) -> Iterator[Stack]:
    with home.running() as stack:
        assert stack.trigger("keeps", "run1") == "success", stack.logs()
        yield stack


def failing(home: Airflow, calls: str) -> None:
    (home.folder / "failing").write_text(calls)


def noted(home: Airflow, task: str, run: str = "run1") -> list[dict[str, Any]]:
    return [row for row in home.noted() if row["task"] == task and row["run"] == run]


def outlast(home: Airflow, *arguments: str, status: int = 0) -> Any:
    """Run `outlast airflow …`, which knows the tests' file system by importing a DAG's module first."""
    done = home.attempt("python", "-W", "ignore", "-c", PROGRAM, "airflow", *arguments, "--json")
    assert done.returncode == status, done.stdout
    return json.loads(done.stdout.strip().splitlines()[-1])


def payloads(home: Airflow) -> set[str]:
    place = home.folder / "payloads"
    files = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)) for path in files} - {"outlast-payloads.txt"}


def references(home: Airflow) -> list[str]:
    query = "select value from task_state_store union all select value from asset_state_store"
    return [json.loads(value)["__airflow_state_ref__"] for (value,) in home.rows(query)]


def test_a_task_that_was_killed_finds_everything_in_its_second_try(home: Airflow, stack: Stack) -> None:
    (seen,) = noted(home, "survive")
    assert seen["try"] == 2
    assert seen["job"] == {"id": 17}
    assert seen["large"] is True
    assert seen["long"] is True
    assert seen["odd"] == [1, 2**70, 0.1, "ü"]
    assert seen["gone"] == "default"


def test_cleared_and_mapped_state_is_as_it_should_be(home: Airflow, stack: Stack) -> None:
    assert [row["large"] for row in noted(home, "clears")] == ["default"]
    assert sorted((row["index"], row["right"]) for row in noted(home, "mapped")) == [(0, True), (1, True)]


def test_nothing_is_readable_in_the_database_or_beside_it(home: Airflow, stack: Stack) -> None:
    assert {reference[:3] for reference in references(home)} == {"o1p", "o1e"}
    kept = [(home.folder / "payloads" / name).read_bytes() for name in payloads(home)]
    assert kept
    assert all(data.startswith(b"o1e") for data in kept)


def test_after_success_every_payload_has_its_reference(home: Airflow, stack: Stack) -> None:
    referred = {reference[3:] for reference in references(home) if reference.startswith("o1p")}
    assert payloads(home) == referred


def test_rows_past_their_time_go_and_their_payloads_after_them(home: Airflow, stack: Stack) -> None:
    assert stack.trigger("expires", "run1") == "success", stack.logs()
    query = "select value from task_state_store where dag_id = 'expires' and key = 'large'"
    name = json.loads(home.rows(query)[0][0])["__airflow_state_ref__"].removeprefix("o1p")
    assert name in payloads(home)
    assert outlast(home, "sweep", "--delete")["expired"] == ["expires/run1/short large"]
    assert home.rows(query) == []
    assert name not in payloads(home)


def test_the_list_over_rest_shows_the_keys(home: Airflow, stack: Stack) -> None:
    path = "/api/v2/dags/keeps/dagRuns/run1/taskInstances/survive/state-store"
    status, told = stack.api("GET", path)
    assert status == 200
    assert {row["key"] for row in told["task_state_store"]} == {
        "job",
        "large",
        "long",
        "shrinks",
        "jobs/2026 11?x#1 ü%",
    }


def test_doctor_finds_all_well(home: Airflow, stack: Stack) -> None:
    told = outlast(home, "doctor")
    assert told["well"] is True, told
    assert told["facts"]["[workers] state_store_backend"] == BACKEND
    assert told["facts"]["airflow"].startswith("3.3")
    assert told["facts"]["payloads"].startswith("raising://")


def test_doctor_names_what_is_wrong(home: Airflow, stack: Stack) -> None:
    failing(home, "write")
    try:
        told = outlast(home, "doctor", status=78)
    finally:
        failing(home, "")
    (problem,) = told["problems"]
    assert "cannot write a payload" in problem
    assert "the object store does not write" in problem


@pytest.mark.parametrize(
    ("keys", "why"), [("", "this process has no key"), (NEW_KEY, "does not open a stored value: add the key")]
)
def test_without_the_right_key_neither_doctor_nor_sweep_is_content(
    home: Airflow, stack: Stack, monkeypatch: pytest.MonkeyPatch, keys: str, why: str
) -> None:
    before = payloads(home)
    monkeypatch.setitem(home.env, KEYS, keys)
    (problem,) = outlast(home, "doctor", status=78)["problems"]
    assert " packed values cannot be read: the row expires/run1/short stays cannot be read: " in problem
    assert why in problem
    found = outlast(home, "sweep", "--delete", "--grace", "1s", status=65)
    assert len(found["unreadable"]) > 3
    assert all(why in text for text in found["unreadable"])
    assert (found["orphans"], payloads(home)) == ([], before)


def test_a_finished_task_is_not_run_again_when_the_store_cannot_be_cleared(home: Airflow, stack: Stack) -> None:
    home.env["AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS"] = "True"
    stack.restart("scheduler", "--skip-serve-logs")
    stack.restart("api-server")
    failing(home, "find rm_file")
    try:
        assert stack.trigger("succeeds", "raised") == "success"
    finally:
        failing(home, "")
    assert [row["try"] for row in noted(home, "work", "raised")] == [1]
    assert home.rows("select count(*) from task_state_store where dag_id = 'succeeds'") == [(0,)]

    before = payloads(home)
    assert stack.trigger("succeeds", "cleared") == "success"
    assert payloads(home) == before
    assert home.rows("select count(*) from task_state_store where dag_id = 'succeeds'") == [(0,)]
    del home.env["AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS"]


def test_a_sweep_finds_what_that_has_left_and_removes_it(home: Airflow, stack: Stack) -> None:
    found = outlast(home, "sweep", "--grace", "1s")
    assert len(found["orphans"]) == 1
    assert found["lost"] == []
    assert outlast(home, "sweep")["young"] == 1
    assert outlast(home, "sweep", "--grace", "1s", "--delete")["orphans"] == found["orphans"]
    assert outlast(home, "sweep", "--grace", "1s")["orphans"] == []
    assert payloads(home) == {reference[3:] for reference in references(home) if reference.startswith("o1p")}


PLACES = """
import json, sys
from airflow.sdk.state import AssetScope
from outlast.integrations.airflow.metadata import AirflowRows
from outlast.integrations.airflow.references import payload_of, place_of
from outlast.integrations.airflow.rows import reference_in
rows = [(row, payload_of(reference_in(json.loads(row.text)))) for row in AirflowRows().all()]
elsewhere = [row.name for row, name in rows if name and name.rpartition("/")[0] not in row.places]
kinds = {name[0] for row, name in rows if name}
by_uri = place_of(AssetScope(uri=sys.argv[1]), "large")
print("GOT", elsewhere, sorted(kinds), any(by_uri in row.places for row, name in rows))
"""


def test_each_row_is_known_to_have_its_payload_where_its_worker_has_put_it(home: Airflow, stack: Stack) -> None:
    ((uri,),) = home.rows("select uri from asset where name = 'orders'")
    assert "GOT [] ['a', 't'] True" in home.run("python", "-W", "ignore", "-c", PLACES, uri)


def test_what_somebody_writes_over_rest_neither_stops_a_sweep_nor_takes_anothers_payload(
    home: Airflow, stack: Stack
) -> None:
    path = "/api/v2/dags/keeps/dagRuns/run1/taskInstances/{}/state-store"
    held = stack.api("GET", path.format("survive") + "/large")[1]["value"]["__airflow_state_ref__"]
    own = stack.api("GET", path.format("mapped") + "/large?map_index=0")[1]["value"]["__airflow_state_ref__"]
    assert stack.api("DELETE", path.format("mapped") + "/large?map_index=0")[0] == 204
    forged = {"value": {"__airflow_state_ref__": held}, "expires_at": "2026-01-01T00:00:00Z"}
    bodies = {
        "deep": {"value": {"__outlast__": "o1j" + "[" * 50_000}},
        "forged": forged,
        "junk": {"value": {"__outlast__": "o1enothing"}},
    }
    for key, body in bodies.items():
        assert stack.api("PUT", f"{path.format('clears')}/{key}", body)[0] == 204
    overwritten = path.format("mapped") + "/large?map_index=1"
    assert stack.api("PUT", overwritten, bodies["junk"])[0] == 204
    said = home.attempt("python", "-W", "ignore", "-c", PROGRAM, "airflow", "sweep").stdout
    assert "3 rows that cannot be read, left with 1 value that may be theirs:\n" in said
    assert "  the row keeps/run1/clears deep cannot be read: it is nested too deep\n" in said
    found = outlast(home, "sweep", "--grace", "1s", "--delete", status=65)
    assert found["orphans"] == [own[3:]]
    assert found["expired"] == ["keeps/run1/clears forged"]
    assert {problem.partition(" cannot")[0] for problem in found["unreadable"]} == {
        "the row keeps/run1/clears deep",
        "the row keeps/run1/clears junk",
        "the row keeps/run1/mapped/1 large",
    }
    assert found["withheld"] == 1
    assert held[3:] in payloads(home)
    assert stack.api("DELETE", path.format("clears"))[0] == 204
    assert stack.api("DELETE", overwritten)[0] == 204
    found = outlast(home, "sweep", "--grace", "1s", "--delete")
    assert (len(found["orphans"]), found["unreadable"], found["withheld"]) == (1, [], 0)
    assert payloads(home) == {reference[3:] for reference in references(home) if reference.startswith("o1p")}


def test_a_payload_that_was_changed_is_no_value(home: Airflow, stack: Stack) -> None:
    name = next(reference[3:] for reference in references(home) if reference.startswith("o1pt"))
    file, path = home.folder / "payloads" / name, str(home.folder / "changed.db")
    written = file.read_bytes()
    file.write_bytes(written[:-1])
    told = outlast(home, "import", "--from", home.url, "--store", path, "--dag", "keeps", status=65)
    file.write_bytes(written)
    (skipped,) = told["skipped"]
    assert "is not what was written" in skipped["why"]


def test_an_import_brings_in_what_the_backend_keeps(home: Airflow, stack: Stack) -> None:
    path = str(home.folder / "imported.db")
    told = outlast(home, "import", "--from", home.url, "--store", path, "--dag", "keeps")
    assert told["skipped"] == []
    with connect(path) as store:
        task = store.task("keeps/run1/survive")
        assert (task.get("job"), len(task.get("large"))) == ({"id": 17}, 7000)


def test_keys_are_rotated_without_a_stop(home: Airflow, stack: Stack) -> None:
    home.env[KEYS] = f"{NEW_KEY},{OLD_KEY}"
    stack.restart("scheduler", "--skip-serve-logs")
    stack.restart("api-server")
    assert stack.trigger("keeps", "run2") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run2")
    assert seen["before"] == ["run1"]  # written under the old key
    assert seen["large"] is True

    rotated = outlast(home, "rotate")
    assert rotated["rewritten"] > 0
    assert rotated["changed_meanwhile"] == 0
    assert outlast(home, "rotate")["rewritten"] == 0
    outlast(home, "sweep", "--grace", "1s", "--delete")

    home.env[KEYS] = NEW_KEY
    stack.restart("scheduler", "--skip-serve-logs")
    assert stack.trigger("keeps", "run3") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run3")
    assert seen["before"] == ["run1", "run2"]


def test_values_that_were_written_by_hand_are_encrypted_by_a_rotation(home: Airflow, stack: Stack) -> None:
    """Or before the backend was set: a task reads them as before."""
    asset = stack.api("GET", "/api/v2/assets?name_pattern=orders")[1]["assets"][0]["id"]
    place = f"/api/v2/assets/{asset}/state-store"
    assert stack.api("PUT", f"{place}/seen", {"value": ["by hand"]})[0] == 204
    path = "/api/v2/dags/keeps/dagRuns/run3/taskInstances/survive/state-store/large"
    assert stack.api("PUT", path, {"value": LARGE, "expires_at": None})[0] == 204
    assert outlast(home, "rotate")["rewritten"] == 2
    assert outlast(home, "rotate")["rewritten"] == 0
    assert stack.api("GET", f"{place}/seen")[1]["value"]["__airflow_state_ref__"].startswith("o1e")
    name = stack.api("GET", path)[1]["value"]["__airflow_state_ref__"].removeprefix("o1p")
    assert (home.folder / "payloads" / name).read_bytes().startswith(b"o1e")
    assert outlast(home, "doctor")["well"] is True
    store = str(home.folder / "by hand.db")
    assert outlast(home, "import", "--from", home.url, "--store", store, "--dag", "keeps")["skipped"] == []
    with connect(store) as opened:
        assert opened.task("keeps/run3/survive").get("large") == LARGE
    assert stack.trigger("keeps", "run4") == "success", stack.logs()
    (seen,) = noted(home, "asset", "run4")
    assert seen["before"] == ["by hand"]


def test_payloads_of_a_deleted_run_go_with_the_next_sweep(home: Airflow, stack: Stack) -> None:
    assert stack.api("DELETE", "/api/v2/dags/keeps/dagRuns/run1")[0] == 204
    found = outlast(home, "sweep", "--grace", "1s", "--delete")
    assert found["orphans"]
    assert found["failed"] == []
    assert payloads(home) == {reference[3:] for reference in references(home) if reference.startswith("o1p")}


def test_a_lost_payload_is_told_and_its_row_dropped_when_asked(home: Airflow, stack: Stack) -> None:
    name = next(reference[3:] for reference in references(home) if reference.startswith("o1pt"))
    (home.folder / "payloads" / name).unlink()
    (lost,) = outlast(home, "sweep", status=65)["lost"]
    assert lost.startswith("keeps/")
    assert outlast(home, "sweep", "--delete", "--drop-lost")["lost"] == [lost]
    assert outlast(home, "sweep")["lost"] == []


def test_a_sweep_beside_the_wrong_database_removes_nothing(home: Airflow, stack: Stack) -> None:
    other = home.folder / "other.db"
    shutil.copy(home.installed.folder / "migrated.db", other)
    before = payloads(home)
    wrong = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{other}"}
    done = home.attempt("python", "-c", PROGRAM, "airflow", "sweep", "--grace", "1s", "--delete", env=wrong)
    assert done.returncode == 65
    assert "if it is the right database, say --even-all" in done.stdout
    assert payloads(home) == before


def test_without_the_database_only_what_is_past_the_default_retention_goes(home: Airflow, stack: Stack) -> None:
    before = payloads(home)
    assert outlast(home, "sweep", "--by-age", "--delete")["orphans"] == []
    assert payloads(home) == before
