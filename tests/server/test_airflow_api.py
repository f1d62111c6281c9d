"""Airflow's public state-store routes: each fact of the survey that is not bettered, and what is better instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Store
from outlast.requests import LIBRARY
from outlast.run_requests import TaskSpec
from outlast.values import TaskScope, Writer
from support.public import V2, Door, open_door, state_path

NOW = "2026-11-29T12:00:00Z"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        yield door


def asset_path(door: Door, name: str, key: str = "") -> str:
    return f"{V2}/assets/{door.asset_id(name)}/state-store" + (f"/{key}" if key else "")


# --- F-160 … F-162: lists --------------------------------------------------------------------------------------


def test_a_list_has_the_entries_by_key_and_their_number(door: Door) -> None:
    state = door.task()
    for key in ("b", "a", "B", "é"):
        state.set(key, key)
    found = door.get(state_path()).json()
    assert [entry["key"] for entry in found["task_state_store"]] == ["B", "a", "b", "é"]
    assert found["total_entries"] == 4
    entry = found["task_state_store"][1]
    assert entry == {"key": "a", "value": "a", "updated_at": NOW, "expires_at": "2026-12-29T12:00:00Z"}


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", range(50)),
        ("?limit=10&offset=5", range(5, 15)),
        ("?limit=1000", range(100)),  # at most [api] maximum_page_limit, as it is by default
        ("?limit=0", []),
        ("?offset=119", [119]),
        ("?offset=120", []),
        ("?offset=121", []),
        ("?offset=9223372036854775807", []),
    ],
)
def test_a_page_is_cut_by_limit_and_offset_and_has_the_true_total(door: Door, query: str, keys: Any) -> None:
    door.task().set_many({f"key{number:03}": number for number in range(120)})
    found = door.get(state_path() + query).json()
    assert [entry["value"] for entry in found["task_state_store"]] == list(keys)
    assert found["total_entries"] == 120


@pytest.mark.parametrize(
    "query", ["limit=-1", "offset=-1", "limit=x", "map_index=-2", "map_index=2147483648", "limit="]
)
def test_a_wrong_parameter_is_422(door: Door, query: str) -> None:
    door.task()
    answer = door.get(f"{state_path()}?{query}")
    assert answer.status == 422
    assert query.partition("=")[0] in answer.json()["detail"][0]["msg"]


def test_a_parameter_that_is_unknown_is_422_so_that_a_misspelt_one_clears_nothing_else(door: Door) -> None:
    door.task().set("a", 1)
    assert door.delete(state_path() + "?mapindex=3").status == 422
    assert door.delete(state_path() + "?map_index=3&map_index=-1").status == 422
    assert door.task().get("a") == 1


def test_the_list_of_an_unknown_task_instance_is_404_unlike_in_airflow(door: Door) -> None:
    assert door.get(state_path()).status == 404
    door.task()
    assert door.get(state_path()).json() == {"task_state_store": [], "total_entries": 0}


# --- F-163: one entry -------------------------------------------------------------------------------------------


def test_one_entry_or_404_in_airflows_words(door: Door) -> None:
    absent = door.get(state_path(key="page"))
    assert (absent.status, absent.json()) == (404, {"detail": "Task state store key 'page' not found"})
    door.task().set("page", 41)
    assert door.get(state_path(key="page")).json()["value"] == 41
    assert door.get(state_path(key="none")).json() == {"detail": "Task state store key 'none' not found"}


def test_an_expired_entry_is_gone_unlike_in_airflow(door: Door) -> None:
    door.task().set("page", 41)
    door.clock.move(days=30)
    assert door.get(state_path(key="page")).status == 404
    assert door.get(state_path()).json() == {"task_state_store": [], "total_entries": 0}


def test_map_index_names_the_instance(door: Door) -> None:
    door.task("each", 0).set("a", "zero")
    door.task("each", 1).set("a", "one")
    assert door.get(state_path("each", "a") + "?map_index=1").json()["value"] == "one"
    assert door.get(state_path("each", "a")).status == 404


# --- F-164 … F-167: writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires_at", "shown"),
    [
        (..., "2026-12-29T12:00:00Z"),
        ("default", "2026-12-29T12:00:00Z"),
        (None, None),
        ("2027-01-01T01:00:00.000001+01:00", "2027-01-01T00:00:00.000001Z"),
    ],
)
def test_put_writes_with_an_expiry(door: Door, expires_at: Any, shown: str | None) -> None:
    door.task().set("page", 1)
    body = {"value": [2]} if expires_at is ... else {"value": [2], "expires_at": expires_at}
    answer = door.put(state_path(key="page"), json=body)
    assert (answer.status, answer.content) == (204, b"")
    found = door.get(state_path(key="page")).json()
    assert (found["value"], found["expires_at"]) == ([2], shown)


def test_the_default_is_the_servers_setting(tmp_path: Path) -> None:
    with open_door(tmp_path, default_retention_days=0) as door:
        door.task()
        door.put(state_path(key="page"), value=1)
        assert door.get(state_path(key="page")).json()["expires_at"] is None


@pytest.mark.parametrize(
    "body",
    [
        '{"value": 1, "expires_at": "2027-01-01T00:00:00"}',
        '{"value": 1, "expires_at": "2026-11-29T12:00:00Z"}',  # now: passed, unlike in Airflow
        '{"value": 1, "expires_at": "9999-12-31T23:59:59-01:00"}',
        '{"value": 1, "expires_at": "soon"}',
        '{"value": 1, "expires_at": 1798761600}',
        '{"value": null}',
        '{"value": NaN}',
        '{"value": [Infinity]}',
        '{"value": {"a": [1e400]}}',
        '{"value": "\\ud800"}',
        '{"value": {"\\udfff": 1}}',
        '{"value": ' + "9" * 5000 + "}",
        '{"value": ' + "[" * 101 + "]" * 101 + "}",
        '{"value": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"value": {"a": 1, "a": 2}}',
        '{"value": 1, "value": 2}',
        '{"value": 1, "more": 2}',
        '{"expires_at": null}',
        "[1]",
        "1",
        "",
        "{",
        '{"value": 1} 2',
        b'{"value": "\xff"}',
        b'{"value": 1, "expires_at": "\xff"}',
        b'\xef\xbb\xbf{"value": 1}',
        '{"value": 1}'.encode("utf-16"),
    ],
)
def test_what_cannot_be_stored_exactly_is_422_and_writes_nothing(door: Door, body: Any) -> None:
    state = door.task()
    state.set("page", 0)
    answer = door.put(state_path(key="page"), text=body)
    assert answer.status == 422
    assert [*answer.json()["detail"][0]] == ["type", "loc", "msg"]
    assert state.get("page") == 0


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_that_says_it_is_no_json_is_422(door: Door, kind: str) -> None:
    door.task()
    answer = door.put(state_path(key="page"), text='{"value": 1}', headers={"Content-Type": kind})
    assert answer.status == 422
    assert "application/json" in answer.json()["detail"][0]["msg"]


@pytest.mark.parametrize(
    "text",
    [
        "1180591620717411303424",
        "-" + "9" * 4000,
        "1.0",
        "-0.0",
        "5e-324",
        "1.7976931348623157e308",
        '"\\u0000"',
        '"\\u2028é😀"',
        "[]",
        "{}",
        "false",
        '{"":{"b":[null,true,0.1]}}',
        "[" * 100 + "]" * 100,
    ],
)
def test_a_value_comes_back_as_the_text_that_was_sent(door: Door, text: str) -> None:
    door.task()
    assert door.put(state_path(key="page"), text='{"value": ' + text + "}").status == 204
    raw = door.get(state_path(key="page")).content.decode()
    canonical = text.replace("\\u2028", "\u2028")
    assert f'"value":{canonical},"updated_at"' in raw
    assert canonical in door.get(state_path()).content.decode()


def test_the_limit_is_inclusive_and_named(door: Door) -> None:
    door.task()
    assert door.put(state_path(key="page"), value="x" * 65533).status == 204
    answer = door.put(state_path(key="page"), value="x" * 65534)
    assert answer.status == 422
    assert "max_value_storage_bytes = 65,535" in answer.json()["detail"][0]["msg"]
    assert door.put(state_path(key="page"), value="é" * 32767).status == 422  # bytes, unlike Airflow's characters
    assert door.put(state_path(key="page"), value="é" * 32766).status == 204


def test_above_the_hard_limit_it_is_413(tmp_path: Path) -> None:
    with open_door(tmp_path, max_value_storage_bytes=0) as door:
        state = door.task()
        fits, most = "x" * (16 * 1024 * 1024 - 2), 16 * 1024 * 1024
        assert door.put(state_path(key="page"), text='{"value": "' + fits + '"}').status == 204
        assert door.put(state_path(key="page"), text='{"value": "x' + fits + '"}').status == 413
        assert door.put(state_path(key="page"), text='{"value": "' + fits + "x" * 1024 * 1024 + '"}').status == 413
        assert len(state.get("page")) == most - 2


def test_writing_to_an_unknown_task_instance_is_404_and_makes_none(door: Door) -> None:
    for answer in (
        door.put(state_path(key="page") + "?map_index=3", value=1),
        door.delete(state_path(key="page") + "?map_index=3"),
        door.delete(state_path() + "?map_index=3"),
    ):
        assert answer.status == 404
        assert answer.json()["detail"] == (
            "Task instance not found for dag_id='etl', run_id='r1', task_id='load', map_index=3"
        )
    assert door.store.scopes() == []


# --- F-168: patch ------------------------------------------------------------------------------------------------


def test_patch_keeps_the_expiry_and_answers_null(door: Door) -> None:
    door.task()
    door.put(state_path(key="page"), json={"value": 1, "expires_at": "2027-01-01T00:00:00Z"})
    door.put(state_path(key="kept"), json={"value": 1, "expires_at": None})
    for key, expires_at in (("page", "2027-01-01T00:00:00Z"), ("kept", None)):
        answer = door.patch(state_path(key=key), value=2)
        assert (answer.status, answer.content) == (200, b"null")
        found = door.get(state_path(key=key)).json()
        assert (found["value"], found["expires_at"]) == (2, expires_at)


def test_patch_of_an_absent_key_is_404_and_takes_no_expiry(door: Door) -> None:
    absent = door.patch(state_path(key="page"), value=2)
    assert (absent.status, absent.json()["detail"]) == (404, "Task state store key 'page' not found")
    door.task().set("page", 1)
    answer = door.patch(state_path(key="page"), json={"value": 2, "expires_at": None})
    assert answer.status == 422
    assert door.task().get("page") == 1


# --- F-169, F-170: removing --------------------------------------------------------------------------------------


def test_delete_removes_one_key_and_is_no_error_for_an_absent_one(door: Door) -> None:
    state = door.task()
    state.set_many({"a": 1, "b": 2})
    assert door.delete(state_path(key="a")).status == 204
    assert door.delete(state_path(key="a")).status == 204
    assert state.keys() == ["b"]


def test_clear_removes_one_index_or_all(door: Door) -> None:
    states = [door.task("each", index) for index in (0, 1, 2)]
    for state in states:
        state.set("a", 1)
    assert door.delete(state_path("each") + "?map_index=1").status == 204
    assert [state.keys() for state in states] == [["a"], [], ["a"]]
    assert door.delete(state_path("each") + "?map_index=77&all_map_indices=true").status == 204
    assert [state.keys() for state in states] == [[], [], []]
    assert door.delete(state_path("other") + "?all_map_indices=true").status == 404


def test_clear_of_all_indexes_reaches_items_by_key_as_well(door: Door) -> None:
    scope = TaskScope("etl", "r1", "each", -1, "blue")
    door.store.task(scope).set("a", 1)
    door.task("each", 0).set("a", 1)
    assert door.delete(state_path("each") + "?all_map_indices=true").status == 204
    assert door.store.task(scope).keys() == []


def test_clear_of_all_indexes_is_refused_while_one_runs(door: Door) -> None:
    desk = door.desk()
    desk.start(TaskSpec("each", 0), TaskSpec("each", 1))
    desk.begin("each", 1)
    door.task("each", 0)
    door.store.task(TaskScope("etl", "r1", "each", 0)).set("a", 1)
    answer = door.delete(state_path("each") + "?all_map_indices=true")
    assert answer.status == 409
    assert "etl/r1/each/1 is running" in answer.json()["detail"]
    assert door.store.task(TaskScope("etl", "r1", "each", 0)).keys() == ["a"]


# --- F-171, F-184, F-187: who may, and what is recorded -------------------------------------------------------------


def test_reading_takes_a_viewer_and_writing_an_editor(door: Door) -> None:
    door.task().set("page", 1)
    viewer, editor = door.as_role("viewer"), door.as_role("editor")
    assert viewer.get(state_path(key="page")).status == 200
    for method in ("PUT", "PATCH", "DELETE"):
        body = {} if method == "DELETE" else {"value": 2}
        assert viewer.ask(method, state_path(key="page"), **body).status == 401
        assert editor.ask(method, state_path(key="page"), **body).status in (200, 204)


def test_without_a_token_nothing_is_answered(door: Door) -> None:
    door.task().set("page", 1)
    answer = Door(door.url, door.store, door.clock, None).get(state_path(key="page"))
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_of_another_dag_nothing_is_known(door: Door) -> None:
    door.task().set("page", 1)
    other = door.as_role("editor", "nightly*")
    unknown = other.get(state_path(run_id="none"))
    hidden = other.get(state_path())
    assert hidden.status == unknown.status == 404
    assert other.put(state_path(key="page"), value=2).status == 404
    assert other.get(V2 + "/dags").json() == {"dags": [], "total_entries": 0}
    assert door.task().get("page") == 1


def test_every_write_is_audited_unlike_in_airflow(door: Door) -> None:
    door.task().set("page", 1)
    door.put(state_path(key="page"), value=2)
    door.delete(state_path(key="page"))
    audit = door.store.runs_as(LIBRARY).audit()
    assert [(row.who, row.action, row.name, row.before, row.after) for row in audit] == [
        ("ann@desk", "delete", "page", "2", None),
        ("ann@desk", "set", "page", "1", "2"),
    ]


# --- F-180 … F-183: assets ---------------------------------------------------------------------------------------


def test_an_assets_entries_tell_who_wrote_them_last(door: Door) -> None:
    store: Store = door.store
    store.asset("orders").set("library", 1)
    store.asset("orders", writer=Writer("trigger", name="poll")).set("watcher", 2)
    mapped = store.task(TaskScope("etl", "r1", "each", 4), attempt="new")
    mapped.asset("orders").set("task", 3)
    assert door.put(asset_path(door, "orders", "api"), value=4).status == 204
    found = door.get(asset_path(door, "orders")).json()
    by = {entry["key"]: entry["last_updated_by"] for entry in found["asset_state_store"]}
    nobody = {"dag_id": None, "run_id": None, "task_id": None, "map_index": None}
    assert by == {
        "api": {"kind": "api", **nobody},
        "library": None,
        "task": {"kind": "task", "dag_id": "etl", "run_id": "r1", "task_id": "each", "map_index": 4},
        "watcher": {"kind": "watcher", **nobody},
    }
    assert found["total_entries"] == 4
    assert [*found["asset_state_store"][0]] == ["key", "value", "updated_at", "last_updated_by"]


def test_an_assets_entry_is_read_written_and_removed(door: Door) -> None:
    door.store.asset("orders").set("a", 1)
    path = asset_path(door, "orders", "a")
    assert door.get(path).json()["value"] == 1
    assert door.put(path, json={"value": 2, "expires_at": None}).status == 422
    assert door.put(path, value=None).status == 422
    assert door.put(path, text='{"value": [NaN]}').status == 422
    assert door.put(path, value="x" * 65534).status == 422
    assert door.put(path, value=2).status == 204
    assert [door.delete(path).status for _ in range(2)] == [204, 204]
    assert door.get(path).json() == {"detail": "Asset state store key 'a' not found"}
    door.store.asset("orders").set_many({"a": 1, "b": 2})
    assert door.get(asset_path(door, "orders") + "?limit=1&offset=1").json()["asset_state_store"][0]["key"] == "b"
    assert door.delete(asset_path(door, "orders")).status == 204
    assert door.store.asset("orders").keys() == []


def test_there_is_no_patch_for_assets(door: Door) -> None:
    door.store.asset("orders").set("a", 1)
    answer = door.patch(asset_path(door, "orders", "a"), value=2)
    assert answer.status == 405
    assert {"GET", "PUT", "DELETE"} <= {name.strip() for name in answer.headers["Allow"].split(",")}


@pytest.mark.parametrize("asset_id", ["999", "0", "99999999999999999"])
def test_an_unknown_asset_is_404_on_every_operation(door: Door, asset_id: str) -> None:
    door.task().set("a", 1)
    path = f"{V2}/assets/{asset_id}/state-store"
    statuses = [door.get(path), door.delete(path), door.get(path + "/a"), door.delete(path + "/a")]
    statuses.append(door.put(path + "/a", value=1))
    assert [answer.status for answer in statuses] == [404] * 5


def test_an_asset_id_that_is_no_number_is_422(door: Door) -> None:
    assert door.get(f"{V2}/assets/orders/state-store").status == 422
    assert door.get(f"{V2}/assets/-1/state-store").status == 422


def test_a_tasks_scope_is_no_asset(door: Door) -> None:
    door.task().set("a", 1)
    assert door.get(f"{V2}/assets/1/state-store").status == 404


# --- Keys in paths -------------------------------------------------------------------------------------------------

KEYS = {
    "a/b": "a/b",
    "a%2Fb/c": "a/b/c",
    "%2Fa": "/a",
    "a//b/": "a//b/",
    "with%20space": "with space",
    "100%25": "100%",
    "%2525": "%25",
    "a%3Fb%23c": "a?b#c",
    "a+b": "a+b",
    "%D0%BA%D0%BB%D1%8E%D1%87%F0%9F%97%9D": "ключ🗝",
    "%C3%A9": "é",
    "e%CC%81": "e\u0301",
    "state-store": "state-store",
    "x;y=1,z@:$&'()*!~": "x;y=1,z@:$&'()*!~",
}


@pytest.mark.parametrize(("sent", "key"), KEYS.items())
def test_a_key_in_a_path_is_decoded_exactly_once(door: Door, sent: str, key: str) -> None:
    state = door.task()
    assert door.put(state_path(key=sent), value=1).status == 204
    assert state.keys() == [key]
    assert door.get(state_path(key=sent)).json()["key"] == key
    assert door.delete(state_path(key=sent)).status == 204
    assert state.keys() == []


@pytest.mark.parametrize("sent", ["%FF", "%ED%A0%80", "a%00b", "a%0A", "a%0Ab", "%7F", "x" * 513, "a/%2E%2E/b", "%2E"])
def test_a_bad_key_is_422(door: Door, sent: str) -> None:
    state = door.task()
    assert door.put(state_path(key=sent), value=1).status == 422
    assert door.get(state_path(key=sent)).status == 422
    assert state.keys() == []


def test_ids_may_be_any_text_but_no_slash(door: Door) -> None:
    door.task("ä b%c", run_id="manual__2026-11-29T00:00:00+00:00", dag_id="größe?").set("a", 1)
    place = {"dag_id": "gr%C3%B6%C3%9Fe%3F", "run_id": "manual__2026-11-29T00:00:00+00:00"}
    assert door.get(state_path("%C3%A4%20b%25c", "a", **place)).json()["value"] == 1
    assert door.get(state_path("a%2Fb", "a")).status == 404
    assert door.get(state_path("load%2Fstate-store%2Fx", "a")).status == 422


def test_a_path_that_ends_in_a_slash_is_404(door: Door) -> None:
    door.task().set("a", 1)
    for method in ("GET", "PUT", "DELETE"):
        body = {"value": 1} if method == "PUT" else {}
        answer = door.ask(method, state_path() + "/", **body)
        assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})
    assert door.task().keys() == ["a"]


# --- ETags, beyond Airflow -------------------------------------------------------------------------------------------


def test_a_write_can_be_made_to_hold_only_over_what_was_read(door: Door) -> None:
    door.task().set("page", 1)
    tag = door.get(state_path(key="page")).headers["ETag"]
    assert door.put(state_path(key="page"), value=2, headers={"If-Match": tag}).status == 204
    answer = door.put(state_path(key="page"), value=3, headers={"If-Match": tag})
    assert answer.status == 412
    assert answer.json()["current"]["value"] == 2
    assert door.put(state_path(key="page"), value=3, headers={"If-None-Match": "*"}).status == 412
    assert door.put(state_path(key="new"), value=3, headers={"If-None-Match": "*"}).status == 204
    assert door.delete(state_path(key="page"), headers={"If-Match": tag}).status == 412
    assert door.task().get("page") == 2


# --- Secret keys ---------------------------------------------------------------------------------------------------


def test_a_secret_keys_value_is_masked_and_its_mask_is_not_written(tmp_path: Path) -> None:
    with open_door(tmp_path, secret_keys=("*token*",)) as door:
        state = door.task()
        state.set("api_token", "hunter2")
        assert door.get(state_path(key="api_token")).json()["value"] == "***"
        assert "hunter2" not in door.get(state_path()).text
        assert door.put(state_path(key="api_token"), value="***").status == 422
        assert "hunter2" not in door.put(state_path(key="api_token"), value=1, headers={"If-Match": '"1.9"'}).text
        assert state.get("api_token") == "hunter2"
