"""outlast's own public routes: entries, compare-and-set, history, commits, find, runs, explain, audit."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from outlast.requests import LIBRARY
from outlast.run_requests import TaskSpec
from outlast.values import TaskScope
from support.public import V1, V2, Door, open_door

TASK = V1 + "/runs/etl/r1/tasks/load"
BIG = 2**70


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path, secret_keys=("*token*",)) as door:
        yield door


def test_an_entry_has_its_revision_and_writer(door: Door) -> None:
    door.task().set("page", {"n": 1.0})
    answer = door.get(TASK + "/state/page")
    assert answer.json() == {
        "key": "page",
        "value": {"n": 1.0},
        "masked": False,
        "bytes": 9,
        "revision": 1,
        "etag": "1.1",
        "updated_at": "2026-11-29T12:00:00Z",
        "expires_at": "2026-12-29T12:00:00Z",
        "writer": {"kind": "library", "attempt": None, "name": None, "scope": None},
    }
    assert answer.headers["ETag"] == '"1.1"'
    assert b'"value":{"n":1.0}' in answer.content


def test_errors_carry_their_code(door: Door) -> None:
    answer = door.get(TASK + "/state/page")
    assert (answer.status, answer.json()) == (404, {"detail": "there is no entry 'page'", "code": "not_found"})
    assert door.get(TASK + "/state/%2E").json()["code"] == "invalid_key"
    assert door.put(TASK + "/state/a", value=1).json()["code"] == "not_found"
    assert door.put(TASK + "/state/a", text="{").json()["code"] == "invalid_value"


def test_what_is_no_route_has_a_code_too_but_as_airflow_answers(door: Door) -> None:
    for path in ("/nothing", "/runs/etl", "/state-store/x"):
        assert door.get(V1 + path).json() == {"detail": "Not Found", "code": "not_found"}
    answer = door.ask("PATCH", V1 + "/find")
    assert (answer.status, answer.json()["code"]) == (405, "method_not_allowed")
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD"}
    assert door.get(V2 + "/nothing").json() == {"detail": "Not Found"}


def test_the_etag_of_what_was_found_or_was_in_the_way_can_be_used(door: Door) -> None:
    door.task().set_many({"page": 1, "other": 2})
    (found,) = door.get(V1 + "/find?key=page").json()["found"]
    written = door.put(TASK + "/state/page", value=2, headers={"If-Match": f'"{found["entry"]["etag"]}"'})
    assert written.status == 200
    check = {"op": "check", "key": "page", "revision": 1}
    refused = door.post(V1 + "/commit", json={"parts": [task_part(check)]})
    assert refused.status == 409
    current = refused.json()["current"]
    assert (current["value"], current["etag"]) == (2, written.json()["etag"])
    stale = door.put(TASK + "/state/page", value=3, headers={"If-Match": found["entry"]["etag"]})
    assert (stale.status, stale.json()["current"]["etag"]) == (412, current["etag"])
    assert door.put(TASK + "/state/page", value=3, headers={"If-Match": current["etag"]}).status == 200  # no quotes


def test_a_list_pages_by_key(door: Door) -> None:
    door.task().set_many({f"k{number}": number for number in range(5)} | {"other": 0})
    first = door.get(TASK + "/state?prefix=k&limit=3").json()
    assert [entry["key"] for entry in first["entries"]] == ["k0", "k1", "k2"]
    rest = door.get(f"{TASK}/state?prefix=k&limit=3&after={first['after']}").json()
    assert ([entry["value"] for entry in rest["entries"]], rest["after"]) == ([3, 4], None)
    assert door.get(V1 + "/runs/etl/r1/tasks/none/state").status == 404
    assert door.get(TASK + "/state?limit=0").status == 422


def test_a_lists_etag_changes_with_every_write(door: Door) -> None:
    state = door.task()
    tags = []
    for number in range(3):
        state.set("a", number)
        tags.append(door.get(TASK + "/state").headers["ETag"])
    assert tags == ['"1.1"', '"1.2"', '"1.3"']


# --- Compare-and-set ------------------------------------------------------------------------------------------------


def test_put_answers_what_was_written(door: Door) -> None:
    door.task()
    answer = door.put(TASK + "/state/page", json={"value": BIG, "expires_at": None})
    assert answer.status == 200
    assert (answer.json()["value"], answer.json()["expires_at"]) == (BIG, None)
    assert answer.json()["writer"] == {"kind": "person", "attempt": None, "name": "ann@desk", "scope": None}
    assert answer.headers["ETag"] == '"1.1"'


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-Match": '"1.1"'}, 200),
        ({"If-Match": '"9.9", "1.1"'}, 200),
        ({"If-Match": "*"}, 200),
        ({"If-Match": '"1.2"'}, 412),
        ({"If-Match": '"2.1"'}, 412),
        ({"If-Match": 'W/"1.1"'}, 412),
        ({"If-Match": "1.1"}, 200),  # as `etag` stands in a body
        ({"If-Match": "1.2"}, 412),
        ({"If-Match": ""}, 412),
        ({"If-None-Match": "*"}, 412),
        ({"If-None-Match": '"1.1"'}, 422),
    ],
)
def test_preconditions_over_an_entry(door: Door, headers: dict[str, str], status: int) -> None:
    state = door.task()
    state.set("page", 1)
    answer = door.put(TASK + "/state/page", value=2, headers=headers)
    assert answer.status == status
    assert state.get("page") == (2 if status == 200 else 1)
    if status == 412:
        assert answer.json()["code"] == "conflict"
        assert (answer.json()["current"]["value"], answer.json()["current"]["etag"]) == (1, "1.1")


@pytest.mark.parametrize(("headers", "status"), [({"If-Match": "*"}, 412), ({"If-None-Match": "*"}, 200)])
def test_preconditions_where_there_is_none(door: Door, headers: dict[str, str], status: int) -> None:
    door.task()
    answer = door.put(TASK + "/state/page", value=2, headers=headers)
    assert answer.status == status
    if status == 412:
        assert answer.json()["current"] is None


def test_a_precondition_makes_no_scope(door: Door) -> None:
    assert door.put(TASK + "/state/page", value=2, headers={"If-None-Match": "*"}).status == 404
    assert door.store.scopes() == []


# --- History --------------------------------------------------------------------------------------------------------


def test_a_list_is_cleared_only_if_it_is_the_one_meant(door: Door) -> None:
    state = door.task()
    state.set_many({"a": 1, "b": 2})
    seen = door.get(TASK + "/state").headers["ETag"]
    state.set("a", 3)
    for wanted in (seen, '"1.99"', "W/" + door.get(TASK + "/state").headers["ETag"], ""):
        answer = door.delete(TASK + "/state", headers={"If-Match": wanted})
        assert (answer.status, answer.json()["code"]) == (412, "conflict"), wanted
        assert answer.json()["current"] is None
    assert state.items() == [("a", 3), ("b", 2)]
    now = door.get(TASK + "/state").headers["ETag"]
    assert door.delete(TASK + "/state", headers={"If-Match": f'"1.99", {now}'}).status == 204
    assert state.keys() == []
    state.set("c", 1)
    assert door.delete(TASK + "/state", headers={"If-Match": "*"}).status == 204
    assert state.keys() == []
    assert door.delete(TASK.replace("load", "absent") + "/state", headers={"If-Match": "*"}).status == 404


def test_airflows_lists_are_cleared_only_if_they_are_the_ones_meant(door: Door) -> None:
    state, path = door.task(), "/api/v2/dags/etl/dagRuns/r1/taskInstances/load/state-store"
    state.set("a", 1)
    seen = door.get(path).headers["ETag"]
    state.set("a", 2)
    assert door.delete(path, headers={"If-Match": seen}).status == 412
    assert state.get("a") == 2
    door.task("load", 0)
    door.task("load", 1)
    answer = door.delete(path + "?all_map_indices=true", headers={"If-Match": seen})
    assert (answer.status, "clear one by one" in answer.text) == (422, True)
    assert door.delete(path, headers={"If-Match": door.get(path).headers["ETag"]}).status == 204
    asset = door.store.asset("orders")
    asset.set("a", 1)
    path = f"/api/v2/assets/{door.asset_id('orders')}/state-store"
    assert door.delete(path, headers={"If-Match": seen}).status == 412
    assert door.delete(path, headers={"If-Match": door.get(path).headers["ETag"]}).status == 204


def test_a_precondition_may_come_in_several_lines(door: Door) -> None:
    state = door.task()
    state.set("a", 1)
    revision = door.get(TASK + "/state/a").json()["etag"]
    host = urlsplit(door.url)
    for lines, status in ((['"9.9"', f'"{revision}"'], 200), ([f'"{revision}"'], 412)):
        connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=10)
        connection.putrequest("PUT", host.path + TASK + "/state/a")
        for name, text in (("Authorization", f"Bearer {door.token}"), ("Content-Length", "11")):
            connection.putheader(name, text)
        for line in lines:
            connection.putheader("If-Match", line)
        connection.endheaders(b'{"value":2}')
        assert connection.getresponse().status == status
        connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/commit"),
        ("POST", "/import"),
        ("POST", "/runs/etl/r1/clear"),
        ("POST", "/runs/etl/r1/cancel"),
        ("POST", "/runs/etl/r1/tasks/load/mark"),
        ("DELETE", "/runs/etl/r1"),
    ],
)
@pytest.mark.parametrize("name", ["If-Match", "If-None-Match"])
def test_a_precondition_that_would_be_passed_over_is_422(door: Door, method: str, path: str, name: str) -> None:
    answer = door.ask(method, V1 + path, headers={name: "*"}, json={} if method == "POST" else ...)
    assert answer.status == 422
    assert f"{name} does not go with {method}" in answer.text
    answer = door.post("/api/v2/dags/etl/clearTaskInstances", json={"dag_run_id": "r1"}, headers={name: "*"})
    assert answer.status == 422
    if name == "If-None-Match":
        door.task().set("a", 1)
        assert door.delete(TASK + "/state", headers={name: "*"}).status == 422


def test_history_and_restore(door: Door) -> None:
    state = door.task()
    state.set("page", BIG)
    state.set("page", 2)
    assert door.delete(TASK + "/state/page").status == 204
    versions = door.get(TASK + "/history/page").json()["versions"]
    assert [(each["revision"], each["value"], each["deleted"]) for each in versions] == [
        (3, None, True),
        (2, 2, False),
        (1, BIG, False),
    ]
    assert versions[0]["writer"]["name"] == "ann@desk"
    answer = door.post(TASK + "/restore/page", json={"revision": 1})
    assert (answer.status, answer.json()["value"], answer.json()["revision"]) == (200, BIG, 4)
    for revision in (3, 99):
        assert door.post(TASK + "/restore/page", json={"revision": revision}).status == 404
    assert door.get(V1 + "/runs/etl/r1/tasks/none/history/page").status == 404


def test_secret_values_are_masked_unless_an_admin_asks(door: Door) -> None:
    state = door.task()
    state.set("token", "hunter2")
    state.set("token", "hunter3")
    editor = door.as_role("editor")
    for path in ("/state/token", "/state", "/history/token"):
        assert "hunter" not in editor.get(f"{TASK}{path}?reveal=true").text
        assert "hunter" not in door.get(TASK + path).text
        assert "hunter3" in door.get(f"{TASK}{path}?reveal=true").text
    masked = editor.get(TASK + "/state/token").json()
    assert (masked["value"], masked["masked"], masked["bytes"]) == (None, True, None)
    assert editor.post(TASK + "/restore/token", json={"revision": 1}).status == 422  # they would write the mask
    assert state.get("token") == "hunter3"
    restored = door.post(TASK + "/restore/token", json={"revision": 1})
    assert (restored.status, state.get("token")) == (200, "hunter2")
    assert "hunter" not in restored.text


# --- Commits --------------------------------------------------------------------------------------------------------


def task_part(*operations: dict[str, Any], task_id: str = "load") -> dict[str, Any]:
    scope = {"kind": "task", "dag_id": "etl", "run_id": "r1", "task_id": task_id}
    return {"scope": scope, "operations": list(operations)}


def asset_part(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"scope": {"kind": "asset", "name": "orders"}, "operations": list(operations)}


def test_a_commit_changes_several_scopes_at_once(door: Door) -> None:
    state = door.task()
    state.set_many({"page": 1, "old": 1, "n": BIG})
    door.store.asset("orders").set("watermark", 1)
    part = task_part(
        {"op": "check", "key": "page", "revision": 1},
        {"op": "set", "key": "page", "value": 2},
        {"op": "set_default", "key": "page", "value": 3},
        {"op": "increment", "key": "n", "by": BIG},
        {"op": "delete", "key": "old"},
    )
    answer = door.post(
        V1 + "/commit", json={"parts": [part, asset_part({"op": "set", "key": "watermark", "value": 2})]}
    )
    assert answer.status == 200
    shown = answer.json()["parts"]
    assert [each["revision"] for each in shown] == [2, 2]
    assert [entry and entry["value"] for entry in shown[0]["entries"]] == [None, 2, 2, 2 * BIG, None]
    assert dict(state.items()) == {"page": 2, "n": 2 * BIG}
    assert door.store.asset("orders").get("watermark") == 2


def test_a_commit_is_all_or_nothing(door: Door) -> None:
    state = door.task()
    door.store.asset("orders").set("watermark", 1)
    parts = [
        task_part({"op": "set", "key": "page", "value": 2}),
        asset_part({"op": "check", "key": "watermark", "revision": 7}, {"op": "clear"}),
    ]
    answer = door.post(V1 + "/commit", json={"parts": parts})
    assert (answer.status, answer.json()["code"], answer.json()["current"]["value"]) == (409, "conflict", 1)
    unknown = task_part({"op": "set", "key": "page", "value": 2}, task_id="none")
    assert door.post(V1 + "/commit", json={"parts": [parts[0], unknown]}).status == 404
    assert state.keys() == []


def test_a_commit_that_is_sent_again_is_made_once(door: Door) -> None:
    state = door.task()
    body = {"parts": [task_part({"op": "increment", "key": "n"})], "commit_id": "0123456789abcdef"}
    answers = [door.post(V1 + "/commit", json=body) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert state.get("n") == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"parts": []},
        {"parts": [task_part()]},
        {"parts": [task_part({"op": "drop", "key": "a"})]},
        {"parts": [task_part({"op": "set", "key": "a"})]},
        {"parts": [task_part({"op": "set", "key": "a", "value": None})]},
        {"parts": [task_part({"op": "set", "key": "a", "value": "x" * 70_000})]},
        {"parts": [task_part({"op": "set", "key": "", "value": 1})]},
        {"parts": [task_part({"op": "set", "key": "..", "value": 1})]},
        {"parts": [task_part({"op": "increment", "key": "a", "by": 1.5})]},
        {"parts": [asset_part({"op": "set", "key": "a", "value": 1, "expires_at": "2027-01-01T00:00:00Z"})]},
        {"parts": [{"scope": {"kind": "asset"}, "operations": [{"op": "clear"}]}]},
        {"parts": [task_part({"op": "clear"}), task_part({"op": "clear"})]},
        {"parts": [task_part({"op": "clear"})], "commit_id": ""},
    ],
)
def test_a_commit_that_is_wrong_is_422(door: Door, body: dict[str, Any]) -> None:
    state = door.task()
    state.set("kept", 1)
    door.store.asset("orders").set("kept", 1)
    assert door.post(V1 + "/commit", json=body).status == 422
    assert state.keys() == ["kept"]


# --- Find, audit ----------------------------------------------------------------------------------------------------


def test_find_across_scopes(door: Door) -> None:
    door.task("each", 0).set("rows", BIG)
    door.task("each", 1).set("rows", 5)
    door.store.asset("orders").set("rows", 7)
    found = door.get(V1 + "/find?key=ro*&where=%24%20%3E%2010").json()
    assert [each["scope"]["address"] for each in found["found"]] == ["etl/r1/each/0"]
    assert found["found"][0]["entry"]["value"] == BIG
    assert door.get(V1 + "/find?limit=1").json()["more"] is True
    assert door.get(V1 + "/find?assets=true").json()["found"][0]["scope"]["name"] == "orders"
    assert door.get(V1 + "/find?dag=x*").json() == {"found": [], "more": False}
    assert door.get(V1 + "/find?where=rows").status == 422
    assert door.get(V1 + "/find?assets=true&dag=etl").status == 422


def test_a_secret_value_cannot_be_searched_for(door: Door) -> None:
    door.task().set("token", "hunter2")
    path = V1 + "/find?where=%24%20%3D%3D%20%22hunter2%22"
    assert door.get(path).json()["found"] == []
    assert len(door.get(path + "&reveal=true").json()["found"]) == 1
    assert door.as_role("viewer").get(path + "&reveal=true").json()["found"] == []


@pytest.mark.parametrize("query", ["where=%24%20%3D%3D%20%22***%22", "where=%24", "min_bytes=0", "max_bytes=5"])
def test_no_search_by_value_or_size_finds_a_mask(door: Door, query: str) -> None:
    door.task().set_many({"token": "hi", "page": "***"})
    for asker in (door, door.as_role("viewer")):
        found = asker.get(f"{V1}/find?{query}").json()["found"]
        assert [each["entry"]["key"] for each in found] == ["page"]
    found = door.get(f"{V1}/find?key=tok*").json()["found"]  # by its name it is found
    assert [(each["entry"]["masked"], each["entry"]["value"]) for each in found] == [(True, None)]
    assert len(door.get(f"{V1}/find?where=%24%20%3D%3D%20%22hi%22&reveal=true").json()["found"]) == 1


def test_a_runner_s_token_shows_no_secret_unasked(door: Door) -> None:
    door.task().set("my_token", "hunter2")
    runner = door.as_role("runner")
    assert "hunter" not in runner.get(TASK + "/state/my_token").text
    assert "hunter" not in runner.get(V2 + "/dags/etl/dagRuns/r1/taskInstances/load/state-store/my_token").text
    assert "hunter2" in runner.get(TASK + "/state/my_token?reveal=true").text


def test_audit_lists_what_people_changed(door: Door) -> None:
    door.task()
    door.put(TASK + "/state/page", value=1)
    door.put(TASK + "/state/token", value="hunter2")
    changes = door.get(V1 + "/audit").json()["changes"]
    assert [(each["who"], each["action"], each["key"]) for each in changes] == [
        ("ann@desk", "set", "token"),
        ("ann@desk", "set", "page"),
    ]
    assert "hunter2" not in door.get(V1 + "/audit?reveal=true").text
    assert door.as_role("viewer", "other").get(V1 + "/audit").json()["changes"] == []


# --- Runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(door: Door) -> Door:
    desk = door.desk()
    desk.start("load", TaskSpec("each", 0), TaskSpec("each", 1), ("last", "load"))
    desk.ran("load", "failed", error="no disk")
    return door


def test_runs_and_their_task_instances(run: Door) -> None:
    page = run.get(V1 + "/runs?dag_id=etl&state=running").json()
    assert [(each["run_id"], each["tasks"]) for each in page["runs"]] == [("r1", {"failed": 1, "waiting": 3})]
    assert run.get(V1 + "/runs?state=failed").json()["runs"] == []
    detail = run.get(V1 + "/runs/etl/r1").json()
    assert [task["task_id"] for task in detail["task_instances"]] == ["load", "each", "each", "last"]
    task = run.get(TASK).json()
    assert (task["task_instance"]["error"], len(task["attempts"]), task["attempts"][0]["host"]) == (
        "no disk",
        1,
        "here.test",
    )
    assert run.get(V1 + "/runs/etl/none").status == 404
    assert run.get(TASK + "?map_index=7").status == 404


def test_clear_mark_cancel_delete(run: Door) -> None:
    path = V1 + "/runs/etl/r1"
    run.store.task("etl/r1/load").set("page", 1)
    cleared = run.post(path + "/clear", json={"tasks": ["load"], "keep_state": False})
    assert [task["task_id"] for task in cleared.json()["task_instances"]] == ["load"]
    assert run.store.task("etl/r1/load").keys() == []
    assert run.post(path + "/clear", json={"tasks": []}).status == 422
    assert run.post(path + "/clear", json={"tasks": ["none"]}).status == 404
    marked = run.post(path + "/tasks/each/mark?map_index=1", json={"state": "success"})
    assert (marked.status, run.desk().states()["each/1"]) == (200, "success")
    assert run.post(path + "/tasks/each/mark", json={"state": "success"}).status == 404
    assert run.post(path + "/cancel").json()["run"]["state"] == "cancelled"
    assert run.post(path + "/cancel").status == 409
    assert run.delete(path).status == 409  # its runner holds it
    assert run.delete(path + "?force=true").status == 204
    assert run.get(path).status == 404
    audit = run.store.runs_as(LIBRARY).audit()
    assert {row.who for row in audit} == {"ann@desk"}


def test_a_clear_forgets_the_keys_that_are_named(run: Door) -> None:
    state = run.store.task("etl/r1/load")
    state.set_many({"page": 1, "cursor": "a"})
    path = V1 + "/runs/etl/r1/clear"
    assert run.post(path, json={"tasks": ["load"], "forget": ["cursor"], "dry_run": True}).status == 200
    assert state.keys() == ["cursor", "page"]
    assert run.post(path, json={"tasks": ["load"], "forget": ["cursor"]}).status == 200
    assert state.keys() == ["page"]
    assert run.post(path, json={"tasks": ["load"], "forget": ["a/../b"]}).status == 422
    assert run.post(path, json={"tasks": ["none"], "forget": ["page"]}).status == 404
    assert state.keys() == ["page"]


def test_explain_from_what_is_stored(run: Door) -> None:
    told = run.get(TASK + "/explain").json()
    assert told["would"] == "once it is cleared and its state kept: begins from the start: nothing is stored"
    run.store.task("etl/r1/last").set("progress", {"done": 1200})
    told = run.get(V1 + "/runs/etl/r1/tasks/last/explain").json()
    assert (told["would"], told["because"]) == ("goes on after item 1,200, if it uses the checkpoint", "progress")
    assert told["next"] == "attempt 1 begins once load ended as its rule wants"
    run.store.task("etl/r1/last").set("remote_job_id", "j-1")
    told = run.get(V1 + "/runs/etl/r1/tasks/last/explain").json()
    assert told["would"].startswith('asks for job "j-1"')
    assert run.get(V1 + "/runs/etl/r1/tasks/none/explain").status == 404


def test_assets_by_id(door: Door) -> None:
    door.store.asset("orders").set("watermark", 1)
    asset = door.get(V1 + "/assets").json()["assets"][0]
    assert (asset["name"], asset["entries"]) == ("orders", 1)
    path = f"{V1}/assets/{asset['id']}"
    assert door.put(path + "/state/watermark", value=2, headers={"If-Match": f'"{asset["id"]}.1"'}).status == 200
    assert door.put(path + "/state/a", json={"value": 2, "expires_at": "2027-01-01T00:00:00Z"}).status == 422
    assert [each["value"] for each in door.get(path + "/history/watermark").json()["versions"]] == [2, 1]
    assert door.post(path + "/restore/watermark", json={"revision": 1}).json()["expires_at"] is None
    assert door.delete(path + "/state").status == 204
    assert door.get(path + "/state").json()["entries"] == []


def test_items_by_their_key(door: Door) -> None:
    state = door.store.task(TaskScope("etl", "r1", "each", -1, "blue"))
    state.set("page", 1)
    path = V1 + "/runs/etl/r1/tasks/each/state/page?item=blue"
    assert door.get(path).json()["value"] == 1
    assert door.put(path, value=2).status == 200
    assert state.get("page") == 2
    assert door.get(path + "&map_index=1").status == 422


# --- The document ---------------------------------------------------------------------------------------------------


def test_the_document_and_the_page_tell_every_route(door: Door) -> None:
    told = door.get("/openapi.json").json()
    assert told["openapi"] == "3.1.0"
    page = door.get("/docs")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert told["paths"]["/api/v2/monitor/health"]["get"]["security"] == []
    assert list(told["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    for path, methods in told["paths"].items():
        assert path in page.text
        for operation in methods.values():
            assert operation["summary"]
            if path not in ("/api/v2/monitor/health", "/metrics"):
                assert {"401", "422"} <= operation["responses"].keys()
    assert "<script" not in page.text
    assert "style=" not in page.text
    assert door.get("/docs.css").headers["Content-Type"].startswith("text/css")
    names = [operation["operationId"] for methods in told["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_every_route_stands_in_the_reference(door: Door) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/reference/http.md").read_text()
    paths = [_as_written(path) for path in door.get("/openapi.json").json()["paths"]]
    assert [path for path in paths if f"`{path}`" not in page] == []


def _as_written(path: str) -> str:
    """Return a path as the page shortens it."""
    for place in ("/runs/{dag_id}/{run_id}/tasks/{task_id}", "/assets/{asset_id}"):
        for verb in ("/state", "/history", "/restore"):
            path = path.replace(V1 + place + verb, "{task}" + verb)
    return path.removeprefix(V1).removeprefix(V2)
