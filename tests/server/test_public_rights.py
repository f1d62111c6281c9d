"""Who may do what at the public doors: every operation there is, for every role, on their own DAG and on another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlast.run_requests import TaskSpec
from outlast.server import airflow_api, outlast_api
from outlast.token_requests import BYTES, token_text
from support.public import Door, open_door

#: Something that only the foreign DAG's state, runs and audit have in them.
SECRET = "hr-salaries"

READ, EDIT, RULE, ASSETS = "viewer editor runner admin", "editor admin", "admin", "editor runner admin"


class Case(NamedTuple):
    """Who may carry out an operation (with a token for every DAG), with what body, and what it answers them with."""

    roles: str
    body: Any = None
    query: str = ""
    status: int = 200
    names_dag: bool = True  # a foreign one is 404, else the reply is filtered
    all_dags: bool = False  # of assets: for people only with a token for every DAG; a runner's watchers write them


SET = {"op": "set", "key": "page", "value": 1}
PUT, CLEAR = {"value": 1}, {"dag_run_id": "r1", "dry_run": True, "only_failed": False}
PLACE = {"kind": "task", "dag_id": "mine", "run_id": "r1", "task_id": "load"}

CASES: dict[str, Case] = {
    "list_task_state_store": Case(READ),
    "get_task_state_store": Case(READ),
    "set_task_state_store": Case(EDIT, PUT, status=204),
    "patch_task_state_store": Case(EDIT, PUT),
    "delete_task_state_store": Case(EDIT, status=204),
    "clear_task_state_store": Case(EDIT, status=204),
    "list_asset_state_store": Case(READ, names_dag=False),
    "get_asset_state_store": Case(READ, names_dag=False),
    "set_asset_state_store": Case(ASSETS, PUT, status=204, all_dags=True),
    "delete_asset_state_store": Case(ASSETS, status=204, all_dags=True),
    "clear_asset_state_store": Case(ASSETS, status=204, all_dags=True),
    "get_dags": Case(READ, names_dag=False),
    "get_dag": Case(READ),
    "get_dag_runs": Case(READ),
    "get_dag_run": Case(READ),
    "get_task_instances": Case(READ),
    "get_task_instance": Case(READ),
    "get_mapped_task_instances": Case(READ),
    "get_mapped_task_instance": Case(READ),
    "get_assets": Case(READ, names_dag=False),
    "get_asset": Case(READ, names_dag=False),
    "clear_task_instances": Case(EDIT, CLEAR),
    "list_entries_of_task": Case(READ),
    "clear_entries_of_task": Case(EDIT, status=204),
    "get_entry_of_task": Case(READ),
    "put_entry_of_task": Case(EDIT, PUT),
    "delete_entry_of_task": Case(EDIT, status=204),
    "get_history_of_task": Case(READ),
    "restore_entry_of_task": Case(EDIT, {"revision": 1}),
    "list_entries_of_asset": Case(READ, names_dag=False),
    "clear_entries_of_asset": Case(ASSETS, status=204, all_dags=True),
    "get_entry_of_asset": Case(READ, names_dag=False),
    "put_entry_of_asset": Case(ASSETS, PUT, all_dags=True),
    "delete_entry_of_asset": Case(ASSETS, status=204, all_dags=True),
    "get_history_of_asset": Case(READ, names_dag=False),
    "restore_entry_of_asset": Case(ASSETS, {"revision": 1}, all_dags=True),
    "commit": Case(EDIT, {"parts": []}),
    "find_entries": Case(READ, names_dag=False),
    "export_state": Case(READ, names_dag=False),
    "import_state": Case(EDIT),
    "list_runs": Case(READ, names_dag=False),
    "get_run": Case(READ),
    "get_progress": Case(READ),
    "delete_run": Case(RULE, query="?force=true", status=204),
    "cancel_run": Case(EDIT),
    "clear_tasks": Case(EDIT, {"tasks": ["load"], "dry_run": True}),
    "get_task": Case(READ),
    "mark_task": Case(EDIT, {"state": "success"}),
    "explain_task": Case(READ),
    "list_assets": Case(READ, names_dag=False),
    "list_audit": Case(READ, names_dag=False),
    "health": Case(READ, names_dag=False),
}
#: Streams have a test of their own.
ELSEWHERE = {"stream_events", "events"}

OPERATIONS = {each.name: each for each in (*airflow_api.OPERATIONS.all, *outlast_api.OPERATIONS.all)}
NAMES = sorted(set(OPERATIONS) - ELSEWHERE)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        for dag_id, value in (("mine", "open"), ("theirs", SECRET)):
            desk = door.desk("r1", dag_id)
            desk.start("load", TaskSpec("each", 0), params=f'{{"for":"{value}"}}')
            door.store.task(desk.scope("load")).set("page", value)
            door.put(f"/api/outlast/v1/runs/{dag_id}/r1/tasks/load/state/page", value=value)  # in the audit log too
        door.store.asset("orders").set("page", 1)
        yield door


def carried_out(door: Door, name: str, dag_id: str, asset_id: int) -> Any:
    operation, case = OPERATIONS[name], CASES[name]
    task = "each" if "mapped" in name else "load"
    places = {"dag_id": dag_id, "run_id": "r1", "dag_run_id": "r1", "task_id": task, "map_index": "0", "key": "page"}
    path = operation.path.replace("{key:path}", "{key}").format(**places, asset_id=asset_id) + case.query
    if name == "import_state":
        return door.ask("POST", path, text=stream(dag_id), headers={"Content-Type": "application/x-ndjson"})
    if case.body is None:
        return door.ask(operation.method, path)
    body = case.body
    if name == "commit":
        body = {"parts": [{"scope": {**PLACE, "dag_id": dag_id}, "operations": [SET]}]}
    return door.ask(operation.method, path, json=body)


def stream(dag_id: str) -> str:
    scope = f'{{"kind":"task","dag_id":"{dag_id}","run_id":"r1","task_id":"load"}}'
    head = '{"outlast_export":1,"made_at":"2026-11-29T12:00:00Z"}'
    return f'{head}\n{{"scope":{scope},"key":"page","value":1}}\n{{"end":true,"entries":1,"left_out":0}}\n'


def test_every_operation_stands_in_the_table() -> None:
    assert set(NAMES) == set(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_comes_in_without_a_token_or_with_a_wrong_one(door: Door, name: str) -> None:
    for token in (None, "no", token_text("admin", os.urandom(BYTES))):
        answer = carried_out(Door(door.url, door.store, door.clock, token), name, "mine", 1)
        assert answer.status == 401
        assert SECRET not in answer.text


@pytest.mark.parametrize("role", ["viewer", "editor", "runner", "worker"])
@pytest.mark.parametrize("name", NAMES)
def test_a_role_may_do_what_it_is_for_and_of_a_foreign_dag_nothing(door: Door, name: str, role: str) -> None:
    case, asset_id, asker = CASES[name], door.asset_id("orders"), door.as_role(role, "mine")
    foreign = carried_out(asker, name, "theirs", asset_id)
    assert SECRET not in foreign.text
    own = carried_out(asker, name, "mine", asset_id)
    assert SECRET not in own.text
    if role not in case.roles.split():
        assert (own.status, foreign.status) == (401, foreign.status if foreign.status in (401, 404) else 401)
    elif case.all_dags:
        assert own.status == (case.status if role == "runner" else 401)
    else:
        assert own.status == case.status
        assert foreign.status == (404 if case.names_dag else case.status)
    assert door.store.task(door.desk("r1", "theirs").scope("load")).get("page") == SECRET


@pytest.mark.parametrize("role", ["viewer", "editor", "admin"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.all_dags or case.roles == RULE])
def test_with_a_token_for_every_dag(door: Door, name: str, role: str) -> None:
    case = CASES[name]
    answer = carried_out(door.as_role(role), name, "theirs", door.asset_id("orders"))
    assert answer.status == (case.status if role in case.roles.split() else 401)


@pytest.mark.parametrize("name", NAMES)
def test_an_attempts_token_reaches_no_other_dag(door: Door, name: str) -> None:
    opening = {
        "type": "open",
        "scope": {"type": "task", "dag_id": "mine", "run_id": "r1", "task_id": "load"},
        "attempt": None,
    }
    opened = door.as_role("worker").ask("POST", "/execution/call", json={"call_id": None, "request": opening})
    attempt = Door(door.url, door.store, door.clock, opened.json()["token"])
    answer = carried_out(attempt, name, "theirs", door.asset_id("orders"))
    assert answer.status in (401, 404)
    assert SECRET not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/v2/dags/theirs",
        "/api/v2/dags/~/dagRuns?state=running",
        "/api/v2/dags/~/dagRuns/~/taskInstances",
        "/api/outlast/v1/runs?dag_id=theirs",
        "/api/outlast/v1/find?dag=theirs",
        "/api/outlast/v1/find?where=%24%20%3D%3D%20%22hr-salaries%22",
        "/api/outlast/v1/export?dag_id=theirs",
        "/api/outlast/v1/audit?dag_id=theirs",
        "/api/outlast/v1/health",
        "/openapi.json",
    ],
)
def test_nothing_of_a_foreign_dag_is_told_by_a_list(door: Door, path: str) -> None:
    answer = door.as_role("viewer", "mine").get(path)
    assert "theirs" not in answer.text.replace("dag_id=theirs", "") or answer.status == 404
    assert SECRET not in answer.text
