"""For whom the page is: every role and screen, a keyboard alone, a screen reader; and what somebody hostile stores."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.run_requests import TaskSpec
from support.public import Door
from support.screen import TASK, edit, is_live, row, serious, stored

HOSTILE = ("<script>document.title='owned'</script>", "\"><img src=x onerror=document.title='owned'>", "\u202egnp.exe")


def test_the_keyboard_reaches_everything(door: Door, visit: Any) -> None:
    door.task().set_many({"a": 1, "b": 2})
    page = visit(TASK)
    is_live(page)
    page.keyboard.press("?")
    page.get_by_role("heading", name="Help").wait_for()
    page.keyboard.press("Escape")
    page.locator("#help").wait_for(state="hidden")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("e")
    page.get_by_role("heading", name="Edit b").wait_for()
    page.keyboard.press("Escape")
    page.locator("#edit").wait_for(state="hidden")
    page.keyboard.press("/")
    page.keyboard.type("a")
    page.keyboard.press("Enter")
    page.get_by_text("1 entry.").wait_for()


def test_a_viewer_has_nothing_to_change_with_and_is_refused(door: Door, visit: Any) -> None:
    door.desk().start("load")
    door.desk().ran("load", "failed")
    door.task().set("page", 1)
    door.store.asset("orders").set("watermark", 1)
    asset = door.asset_id("orders")
    page = visit(TASK, token=door.as_role("viewer").token)
    row(page, "page").wait_for()
    for path in ("/", "/runs/etl/r1", TASK, TASK + "?key=page", f"/assets/{asset}", "/find?go=1", "/health"):
        page.goto(door.url + path)
        offered = page.locator("main button:visible").all_inner_texts()
        assert {text for text in offered if text not in ("Filter", "Find", "Copy")} == set(), path
    state, v1 = "/runs/etl/r1/tasks/load/state", "/api/outlast/v1"
    for method, path, body in (
        ("PUT", f"{v1}{state}/page", '{"value":2}'),
        ("DELETE", f"{v1}{state}/page", None),
        ("DELETE", f"{v1}{state}", None),
        ("POST", f"{v1}/runs/etl/r1/tasks/load/restore/page", '{"revision":1}'),
        ("POST", f"{v1}/runs/etl/r1/clear", '{"tasks":["load"]}'),
        ("POST", f"{v1}/commit", '{"parts":[{"scope":{"kind":"asset","name":"orders"},"operations":[]}]}'),
        ("PUT", f"{v1}/assets/{asset}/state/watermark", '{"value":2}'),
        ("DELETE", "/api/v2/dags/etl/dagRuns/r1/taskInstances/load/state-store?all_map_indices=true", None),
    ):
        told = page.evaluate(
            "([method, path, body]) => fetch(path, {method, body, headers: {'Content-Type': 'application/json'}})"
            ".then(async answer => [answer.status, await answer.text()])",
            [method, door.url + path, body],
        )
        assert told[0] in (401, 403), (path, told)
        assert "viewer" in told[1], (path, told)  # for this role, and for no other reason
    assert stored(door, "page")[0] == "1"
    assert door.store.asset("orders").get("watermark") == 1
    assert door.desk().task("load").state == "failed"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(door: Door, visit: Any, scheme: str) -> None:
    desk = door.desk()
    desk.start("load", *[TaskSpec("copy", index) for index in range(20)])
    desk.ran("load", "failed", error="no")
    door.task().set_many({"page": 1, "db_password": "x", "progress": {"done": 1, "total": 2, "rate": 1.0}})
    door.store.asset("orders").set("watermark", 1)
    page = visit("/", color_scheme=scheme)
    views = ("/", "/runs/etl/r1", TASK, TASK + "?key=page", TASK + "?at=1", "/assets", "/find?go=1", "/health")
    for path in (*views, f"/assets/{door.asset_id('orders')}"):
        page.goto(door.url + path)
        assert (path, serious(page)) == (path, [])
    page.goto(door.url + TASK)
    edit(page, "page").fill("[")
    assert serious(page) == []


def test_somebody_logs_out(door: Door, visit: Any) -> None:
    page = visit("/")
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="Logged out").wait_for()
    page.goto(door.url + TASK)
    page.get_by_text("outlast serve").wait_for()


@pytest.mark.parametrize(
    "path", ["/", "/runs/etl/r1", TASK, TASK + "?key=page", "/assets", "/assets/1", "/find?go=1", "/health"]
)
def test_a_narrow_screen_has_no_sideways_scrolling(door: Door, visit: Any, path: str) -> None:
    door.desk().start("load", *[TaskSpec("copy", index) for index in range(200)])
    door.store.asset("orders/" + "o" * 100).set("watermark", "b" * 2000)
    door.task().set_many({"a" * 200: "b" * 2000, "page": "b" * 2000})
    page = visit(path, viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_is_hostile_is_shown_as_text(door: Door, visit: Any, hostile: str) -> None:
    door.task().set("page", hostile)
    door.task().set(hostile.replace("/", ""), 1)
    door.desk().start("load")
    door.desk().ran("load", "failed", error=hostile)
    page = visit("/")
    for path in ("/runs/etl/r1", TASK, TASK + "?key=page", TASK + "?at=1", "/find?go=1"):
        page.goto(door.url + path)
        assert page.title() != "owned"
        assert page.locator("main img, main script").count() == 0
    page.goto(door.url + TASK)
    box = edit(page, "page")
    assert "\u202e" in box.input_value() or hostile.split("'")[0].replace('"', '\\"') in box.input_value()
    assert page.title() != "owned"


def test_a_large_value_is_cut_and_whole_in_the_editor_and_the_download(door: Door, visit: Any) -> None:
    large = "x" * 2**20
    door.task().set("large", large)
    page = visit(TASK)
    assert "1.0 MB" in row(page, "large").inner_text()
    assert len(page.content()) < 100_000
    assert edit(page, "large").input_value() == f'"{large}"'
    page.keyboard.press("Escape")
    page.goto(door.url + TASK + "?key=large")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Download the entry").click()
    assert large.encode() in begun.value.path().read_bytes()


def test_what_is_nested_too_deep_is_refused(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    page = visit(TASK)
    edit(page, "page").fill("[" * 10_000 + "]" * 10_000)
    assert "deeper than 100" in page.locator("#edit-check").inner_text()
    assert page.get_by_role("button", name="Save").is_disabled()
    path = f"{door.url}/api/outlast/v1/runs/etl/r1/tasks/load/state/page"
    told = page.evaluate(
        "([path, body]) => fetch(path, {method: 'PUT', body, headers: {'Content-Type': 'application/json'}})"
        ".then(answer => answer.status)",
        [path, '{"value":' + "[" * 10_000 + "]" * 10_000 + "}"],
    )
    assert told == 422
    assert door.store.task("etl/r1/load").get("page") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_where_there_is_nothing(door: Door, visit: Any, scheme: str) -> None:
    page = visit("/", color_scheme=scheme)
    for path in ("/", "/assets", "/find", "/health", "/runs/none/none"):
        page.goto(door.url + path)
        assert (path, serious(page)) == (path, [])


def test_times_are_the_viewers_own_with_exact_utc_on_hover(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    page = visit("/runs/etl/r1", timezone_id="Asia/Tokyo", locale="en-GB")
    told = page.locator("time[data-how=at]").first
    assert told.get_attribute("title") == "1970-01-01 00:00:00+00:00"  # the logical date of this run
    assert told.inner_text().endswith("09:00:00")


def test_ten_thousand_keys_come_a_page_at_a_time(door: Door, visit: Any) -> None:
    state = door.task()
    for part in range(10):
        state.set_many({f"key{number:05}": number for number in range(part * 1000, part * 1000 + 1000)})
    page = visit(TASK)
    assert page.locator("#state tbody tr").count() <= 1000
    page.get_by_role("link", name="More keys").click()
    page.locator("#state tbody tr").first.wait_for()
    assert row(page, "key00000").count() == 0
    page.goto(door.url + TASK + "?prefix=key0999")
    row(page, "key09995").wait_for()
    assert page.locator("#state tbody tr").count() == 10


def test_five_thousand_instances_are_all_there(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start(*[TaskSpec("copy", index) for index in range(5000)])
    desk.ran("copy", "failed", 4321, error="no")
    page = visit("/runs/etl/r1")
    is_live(page)
    assert "4,999 waiting" in page.locator("#tasks").inner_text()
    page.locator(".square").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    page.goto(door.url + "/tasks/etl/r1/copy/4321")
    page.locator("#summary .s-failed").wait_for()
