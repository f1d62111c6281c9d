"""An export or import that is interrupted, done again, or beside an Airflow that changes meanwhile, loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from outlast import Store, connect
from outlast.errors import Unauthorized
from outlast.integrations.airflow.airflow_rest import AirflowApi
from outlast.integrations.airflow.export_journal import Journal
from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.references import References
from outlast.integrations.airflow.transfer import Outcome, Unpacking, export_state, import_state
from outlast.values import Writer

from .airflow_rest_server import AirflowServer

ANN = Writer("person", name="ann@desk")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with connect(tmp_path / "store.db") as store:
        yield store


@pytest.fixture
def airflow() -> Iterator[AirflowServer]:
    with AirflowServer() as airflow:
        yield airflow


def exported(store: Store, airflow: AirflowServer, journal: Path, **more: object) -> Outcome:
    api, done = AirflowApi(airflow.url), Journal(str(journal), airflow.url)
    try:
        return export_state(store, api, done, **more)  # type: ignore[arg-type]
    finally:
        done.close()


def filled(store: Store, airflow: AirflowServer, runs: int = 3) -> dict[tuple[str, str], object]:
    for run in range(runs):
        airflow.add(f"r{run}")
        store.task(f"dag/r{run}/task").set_many({"a": run, "b": [run]})
    return {(f"dag/r{run}/task", key): value for run in range(runs) for key, value in (("a", run), ("b", [run]))}


def values(airflow: AirflowServer) -> dict[tuple[str, str], object]:
    return {place: held["value"] for place, held in airflow.state.items()}


@pytest.mark.parametrize("entry", range(1, 7))
def test_an_export_that_ends_at_any_entry_goes_on_there(
    store: Store, airflow: AirflowServer, tmp_path: Path, entry: int
) -> None:
    wanted = filled(store, airflow)

    def interrupted(outcome: Outcome) -> None:
        if outcome.written == entry:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(store, airflow, tmp_path / "journal", progress=interrupted)
    again = exported(store, airflow, tmp_path / "journal")
    assert (again.written, again.same, again.skipped) == (6 - entry, entry, [])
    assert values(airflow) == wanted


def test_an_airflow_that_was_set_up_anew_is_not_taken_for_filled(
    store: Store, airflow: AirflowServer, tmp_path: Path
) -> None:
    wanted = filled(store, airflow)
    exported(store, airflow, tmp_path / "journal")
    airflow.state.clear()
    told = exported(store, airflow, tmp_path / "journal")
    assert (told.written, told.same, len(told.skipped)) == (0, 0, 6)
    assert "gone from Airflow since; --overwrite-newer" in told.skipped[0].why
    assert exported(store, airflow, tmp_path / "journal", overwrite="older").skipped == told.skipped
    assert airflow.state == {}
    assert exported(store, airflow, tmp_path / "journal", overwrite="all").written == 6
    assert values(airflow) == wanted


PLACE = "dag/r0/task"
EARLIER, LATER = "2026-01-01T00:00:00Z", "2100-01-01T00:00:00Z"


def test_what_was_exported_and_has_changed_since_stays_however_the_command_is_done_again(
    store: Store, airflow: AirflowServer, tmp_path: Path
) -> None:
    """Also where the first command was told to replace what Airflow held before."""
    filled(store, airflow, 1)
    exported(store, airflow, tmp_path / "journal", overwrite="older")
    for at in (EARLIER, LATER):
        airflow.state[PLACE, "a"] = {"value": "newer", "expires_at": None, "updated_at": at}
        for overwrite in ("nothing", "older"):
            told = exported(store, airflow, tmp_path / "journal", overwrite=overwrite)
            assert (told.written, told.same, told.skipped, told.left) == (0, 1, [], [f"{PLACE} a"])
            assert airflow.state[PLACE, "a"]["value"] == "newer"
    told = exported(store, airflow, tmp_path / "journal", overwrite="all")
    assert (told.written, told.replaced) == (1, [f"{PLACE} a"])
    assert airflow.state[PLACE, "a"]["value"] == 0


def test_an_entry_written_since_its_export_replaces_what_is_older_when_told_to(
    store: Store, airflow: AirflowServer, tmp_path: Path
) -> None:
    filled(store, airflow, 1)
    exported(store, airflow, tmp_path / "journal")
    store.task(PLACE).set("a", 0)
    airflow.state[PLACE, "a"] = {"value": "newer", "expires_at": None, "updated_at": LATER}
    told = exported(store, airflow, tmp_path / "journal", overwrite="older")
    why = "Airflow has another value, written later; --overwrite-newer replaces it"
    assert [(skipped.what, skipped.why) for skipped in told.skipped] == [(f"{PLACE} a", why)]
    assert airflow.state[PLACE, "a"]["value"] == "newer"
    airflow.state[PLACE, "a"]["updated_at"] = EARLIER
    told = exported(store, airflow, tmp_path / "journal", overwrite="older")
    assert (told.written, told.replaced) == (1, [f"{PLACE} a"])


def test_without_a_journal_only_what_is_older_is_replaced(store: Store, airflow: AirflowServer, tmp_path: Path) -> None:
    filled(store, airflow, 1)
    airflow.state[PLACE, "a"] = {"value": "newer", "expires_at": None, "updated_at": LATER}
    airflow.state[PLACE, "b"] = {"value": "older", "expires_at": None, "updated_at": EARLIER}
    told = exported(store, airflow, tmp_path / "first")
    assert [skipped.why.partition(";")[0] for skipped in told.skipped] == [
        "Airflow has another value, written later",
        "Airflow has another value",
    ]
    told = exported(store, airflow, tmp_path / "second", overwrite="older")
    assert (told.replaced, [skipped.what for skipped in told.skipped]) == ([f"{PLACE} b"], [f"{PLACE} a"])
    assert values(airflow) == {(PLACE, "a"): "newer", (PLACE, "b"): [0]}
    assert exported(store, airflow, tmp_path / "third", overwrite="all").replaced == [f"{PLACE} a"]


def test_what_the_store_has_that_is_newer_stays_too(store: Store, airflow: AirflowServer) -> None:
    airflow.add("r0")
    store.task(PLACE).set_many({"newer": 1, "older": 1})
    airflow.state[PLACE, "newer"] = {"value": 2, "expires_at": None, "updated_at": EARLIER}
    airflow.state[PLACE, "older"] = {"value": 2, "expires_at": None, "updated_at": LATER}
    api = AirflowApi(airflow.url)
    assert import_state(api, store, writer=ANN).written == 0
    told = import_state(api, store, writer=ANN, overwrite="older")
    assert (told.replaced, [skipped.what for skipped in told.skipped]) == ([f"{PLACE} older"], [f"{PLACE} newer"])
    assert "the store has another value, written later; --overwrite-newer" in told.skipped[0].why
    assert store.task(PLACE).items() == [("newer", 1), ("older", 2)]
    assert import_state(api, store, writer=ANN, overwrite="all").replaced == [f"{PLACE} newer"]


def test_a_row_past_its_time_is_not_another_value(store: Store, airflow: AirflowServer, tmp_path: Path) -> None:
    filled(store, airflow, 1)
    airflow.state["dag/r0/task", "a"] = {"value": "old", "expires_at": "2026-01-01T00:00:00Z"}
    assert exported(store, airflow, tmp_path / "journal").written == 2


def test_a_file_that_is_no_journal_is_read_past(store: Store, airflow: AirflowServer, tmp_path: Path) -> None:
    filled(store, airflow, 1)
    (tmp_path / "journal").write_text('1\n["to"]\n{"other": 1}\nno JSON\n{"to": "http')
    assert exported(store, airflow, tmp_path / "journal").written == 2
    assert exported(store, airflow, tmp_path / "journal").same == 2


def test_a_token_that_was_asked_for_is_asked_for_again_when_it_has_expired(store: Store, tmp_path: Path) -> None:
    with AirflowServer(calls_a_token=2) as airflow:
        wanted = filled(store, airflow)
        assert exported(store, airflow, tmp_path / "journal").written == 6
        assert values(airflow) == wanted
        assert airflow.tokens > 2


def test_one_that_was_given_is_not_and_the_next_export_goes_on(store: Store, tmp_path: Path) -> None:
    with AirflowServer(calls_a_token=5) as airflow:
        filled(store, airflow)
        airflow.tokens, airflow.left = 1, 5
        journal = Journal(str(tmp_path / "journal"), airflow.url)
        with pytest.raises(Unauthorized, match="Invalid JWT token"):
            export_state(store, AirflowApi(airflow.url, token="token-1"), journal)
        journal.close()
        written = len(airflow.state)
        assert written > 0
        again = exported(store, airflow, tmp_path / "journal")
        assert (again.written, again.same) == (6 - written, written)


def filled_by_airflow(airflow: AirflowServer, runs: int) -> None:
    for run in range(runs):
        airflow.state[f"dag/{airflow.add(f'r{run}')['dag_run_id']}/task", "a"] = {"value": run, "expires_at": None}


def test_an_import_misses_no_task_instance_while_others_are_tried_again(store: Store, airflow: AirflowServer) -> None:
    """A new try has a new id, so its row goes to the end of the list, and all behind it move forward."""
    filled_by_airflow(airflow, 250)

    def tried_again() -> None:
        for _ in range(150 if airflow.last_id < 1000 else 0):
            airflow.try_again(0)

    airflow.after_page = tried_again
    told = import_state(AirflowApi(airflow.url), store, writer=ANN, dag_id="dag")
    assert (told.written, told.skipped) == (250, [])
    assert store.task("dag/r249/task").get("a") == 249


def test_nor_while_more_runs_than_a_page_has_are_deleted(store: Store, airflow: AirflowServer) -> None:
    filled_by_airflow(airflow, 450)

    def deleted() -> None:
        del airflow.instances[: 130 if len(airflow.instances) > 130 else 0]

    airflow.after_page = deleted
    assert import_state(AirflowApi(airflow.url), store, writer=ANN, dag_id="dag").skipped == []
    there = {info.scope.run_id for info in store.scopes(dag_id="dag")}
    assert {f"r{run}" for run in range(390, 450)} <= there


def test_nor_one_that_was_moved_to_where_the_list_has_been_read(store: Store, airflow: AirflowServer) -> None:
    """The clock of the scheduler that gave it its new id is behind."""
    filled_by_airflow(airflow, 150)

    def moved() -> None:
        if airflow.instances[-1]["id"] == 150:
            airflow.instances.insert(50, {**airflow.instances.pop(), "id": 50.5})

    airflow.after_page = moved
    assert import_state(AirflowApi(airflow.url), store, writer=ANN, dag_id="dag").written == 150


@pytest.mark.parametrize("going", [1, 30, 101, 220])
def test_nor_a_key_while_others_are_deleted(store: Store, airflow: AirflowServer, going: int) -> None:
    place = f"dag/{airflow.add('r1')['dag_run_id']}/task"
    for number in range(350):
        airflow.state[place, f"{number:03}"] = {"value": number, "expires_at": None}

    def deleted() -> None:
        for number in range(going):
            airflow.state.pop((place, f"{number:03}"), None)

    def listed() -> None:
        airflow.after_page = deleted

    airflow.after_page = listed  # the task instances
    assert import_state(AirflowApi(airflow.url), store, writer=ANN, dag_id="dag").skipped == []
    assert {f"{number:03}" for number in range(going, 350)} <= set(store.task(place).keys())


FORGED = [
    {"__outlast__": "o1enothing"},
    {"__outlast__": "o1jnot JSON"},
    {"__outlast__": "o1j" + "[" * 50_000},
    {"__outlast__": "o1z!"},
    {"__airflow_state_ref__": "o1jnot JSON"},
    {"__airflow_state_ref__": "o1j" + "[" * 50_000},
    {"__airflow_state_ref__": "o1j\ud800"},
    {"__airflow_state_ref__": "o1z!"},
    {"__airflow_state_ref__": "o1pt" + "0" * 31 + "/" + "0" * 32 + "/" + "0" * 24 + "-" + "0" * 32},
    {"__airflow_state_ref__": "s3://bucket/key"},
]


def test_what_passes_for_packed_and_is_not_is_told_and_the_rest_is_taken_over(
    store: Store, airflow: AirflowServer
) -> None:
    place = f"dag/{airflow.add('r1')['dag_run_id']}/task"
    for number, document in enumerate(FORGED):
        airflow.state[place, f"{number}"] = {"value": document, "expires_at": None}
    airflow.state[place, "right"] = {"value": 1, "expires_at": None}
    unpacking = Unpacking(Packer(), References(Packer()))
    told = import_state(AirflowApi(airflow.url), store, writer=ANN, unpacking=unpacking)
    assert (told.written, len(told.skipped)) == (1, len(FORGED))
    assert store.task(place).items() == [("right", 1)]


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_an_airflow_with_shorter_pages_is_read_to_its_end(store: Store, limit: int) -> None:
    with AirflowServer(page_limit=limit) as airflow:
        for run in range(25):
            airflow.state[f"dag/{airflow.add(f'r{run}')['dag_run_id']}/task", "a"] = {"value": run}
        assert import_state(AirflowApi(airflow.url), store, writer=ANN, dag_id="dag").written == 25


def test_a_run_whose_id_no_store_takes_is_told_and_the_others_go_on(store: Store, airflow: AirflowServer) -> None:
    for run_id in ("r1", "a/b", "r2"):
        airflow.add(run_id)
        airflow.state[f"dag/{run_id}/task", "a"] = {"value": run_id, "expires_at": None}
    told = import_state(AirflowApi(airflow.url), store, writer=ANN)
    assert told.written == 2
    assert [skipped.what for skipped in told.skipped] == ["dag/a/b/task a"]
    assert store.task("dag/r2/task").get("a") == "r2"


def test_an_entry_keeps_its_expiry_there_and_back(store: Store, airflow: AirflowServer, tmp_path: Path) -> None:
    airflow.add("r1")
    store.task("dag/r1/task").set("a", 1, retention=timedelta(days=3))
    exported(store, airflow, tmp_path / "journal")
    with connect(tmp_path / "back.db") as back:
        assert import_state(AirflowApi(airflow.url), back, writer=ANN).written == 1
        one, other = store.task("dag/r1/task").entry("a"), back.task("dag/r1/task").entry("a")
    assert one is not None
    assert other is not None
    assert one.expires_at == other.expires_at
