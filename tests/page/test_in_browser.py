"""The page as somebody uses it, in a real browser over a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.run_requests import TaskSpec
from support.public import Door
from support.servers import ServerProcess

TASK = "/tasks/etl/r1/load"


def row(page: Any, key: str) -> Any:
    return page.locator(f"#state tr[data-key='{key}']")


def stored(door: Door, key: str) -> tuple[str, Any]:
    """Return the text that is stored under a key, and when it expires."""
    told = door.get(f"/api/outlast/v1/runs/etl/r1/tasks/load/state/{key}")
    text = re.search(r'"value":(.*),"masked"', told.text)
    assert text is not None, told.text
    return text[1], told.json()["expires_at"]


def edit(page: Any, key: str) -> Any:
    row(page, key).get_by_role("button", name=f"Edit {key}").click()
    page.locator("#edit").wait_for()
    return page.locator("#edit-value")


def test_a_run_that_begins_appears_by_itself(door: Door, visit: Any) -> None:
    page = visit("/")
    page.wait_for_selector("#live[data-is=live]")
    door.desk().start("load")
    page.get_by_role("link", name="r1").wait_for()


def test_a_write_appears_by_itself(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 41)
    page = visit(TASK)
    page.wait_for_selector("#live[data-is=live]")
    state.set("page", 42)
    row(page, "page").get_by_text("42").wait_for()


def test_exact_values_survive_an_edit_of_another_part(door: Door, visit: Any) -> None:
    value = '{"big":1180591620717411303424,"one":1.0,"minus":-0.0,"nul":"\\u0000","page":1}'
    door.task()
    door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/doc", text=f'{{"value":{value},"expires_at":null}}')
    page = visit(TASK)
    box = edit(page, "doc")
    box.fill(box.input_value().replace('"page": 1', '"page": 2'))
    page.get_by_role("button", name="Save").click()
    page.locator("#edit").wait_for(state="hidden")
    assert stored(door, "doc") == (value.replace('"page":1', '"page":2'), None)


def test_an_expiry_that_is_not_touched_stays(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    before = stored(door, "page")[1]
    door.clock.move(days=1)
    page = visit(TASK)
    edit(page, "page").fill("2")
    page.get_by_role("button", name="Save").click()
    page.locator("#edit").wait_for(state="hidden")
    assert stored(door, "page") == ("2", before)
    edit(page, "page").fill("3")
    page.get_by_label("never", exact=True).check()
    page.get_by_role("button", name="Save").click()
    page.locator("#edit").wait_for(state="hidden")
    assert stored(door, "page") == ("3", None)


def test_json_is_checked_while_it_is_typed(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    page = visit(TASK)
    box = edit(page, "page")
    for wrong, said in (
        ("{", "missing"),
        ("'a'", "double quotes"),
        ("01", "no number"),
        ('{"a":1,"a":2}', "twice"),
        ("null", "delete the key"),
        ("[" * 10_000, "deeper than 100"),
    ):
        box.fill(wrong)
        assert said in page.locator("#edit-check").inner_text()
        assert page.get_by_role("button", name="Save").is_disabled()
    box.fill("[1.0, -0.0]")
    assert page.get_by_role("button", name="Save").is_enabled()


def test_two_browsers_edit_one_key(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    mine, theirs = visit(TASK), visit(TASK)
    edit(mine, "page").fill("10")
    edit(theirs, "page").fill("20")
    theirs.get_by_role("button", name="Save").click()
    theirs.locator("#edit").wait_for(state="hidden")
    mine.get_by_role("button", name="Save").click()
    mine.get_by_role("heading", name="It was changed meanwhile").wait_for()
    assert mine.locator("#edit-theirs").inner_text() == "20"
    assert mine.locator("#edit-yours").inner_text() == "10"
    assert stored(door, "page")[0] == "20"
    mine.get_by_role("button", name="Write mine over it").click()
    mine.locator("#edit").wait_for(state="hidden")
    assert stored(door, "page")[0] == "10"


def test_a_key_is_added_and_deleted_with_a_warning(door: Door, visit: Any) -> None:
    door.task()
    page = visit(TASK)
    page.get_by_role("button", name="Add a key").click()
    page.get_by_label("Key", exact=True).fill("remote_job_id")
    page.get_by_label("Value, as JSON").fill('"job-1"')
    page.get_by_role("button", name="Save").click()
    row(page, "remote_job_id").get_by_role("button", name="Delete").click()
    page.get_by_text("The next attempt will submit a new job").wait_for()
    page.locator("#sure-yes").click()
    row(page, "remote_job_id").wait_for(state="detached")
    assert door.store.task("etl/r1/load").get("remote_job_id") is None


def test_all_keys_of_all_indexes_are_deleted_with_the_count_first(door: Door, visit: Any) -> None:
    door.desk().start(*[TaskSpec("copy", index) for index in range(3)])
    for index in range(3):
        door.task("copy", index).set_many({"a": 1, "b": 2})
    page = visit("/tasks/etl/r1/copy/0")
    page.get_by_role("button", name="Delete all keys", exact=True).click()
    page.get_by_text("2 keys.").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="… of all 3 indexes").click()
    page.get_by_text("6 keys.").wait_for()
    page.locator("#sure-yes").click()
    page.get_by_text("Nothing is stored. What the task keeps").wait_for()
    assert [door.task("copy", index).keys() for index in range(3)] == [[], [], []]


def test_a_masked_value_stays_masked_in_the_editor(door: Door, visit: Any) -> None:
    door.task().set("db_password", "hunter2")
    page = visit(TASK)
    assert edit(page, "db_password").input_value() == ""
    assert "hunter2" not in page.content()


def test_an_earlier_version_is_restored(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    state.set("page", 2)
    page = visit(TASK + "?key=page")
    page.get_by_role("button", name="Restore revision 1").click()
    page.locator("#sure-yes").click()
    page.get_by_text("Revision 3").wait_for()
    assert state.get("page") == 1


def test_a_tick_leads_to_the_state_as_it_was_then(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    door.clock.move(seconds=10)
    state.set("page", 2)
    page = visit(TASK)
    page.locator(".reach").last.click(force=True)
    page.get_by_role("heading", name="The state after revision").wait_for()
    assert page.locator("#then code.value").inner_text() == "1"


def test_a_task_is_run_again_with_chosen_keys(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    desk.ran("load", "failed")
    door.task().set_many({"keep": 1, "drop": 2})
    page = visit(TASK)
    assert page.locator("#retry-command").inner_text().startswith("outlast tasks clear etl/r1/load")
    page.get_by_label("keep only some keys").check()
    page.locator("#retry-keys input[data-key=drop]").uncheck()
    page.get_by_role("button", name="Run again …").click()
    page.get_by_text("Deleted first: drop.").wait_for()
    page.locator("#sure-yes").click()
    page.locator("#summary .s-waiting").wait_for()
    assert dict(door.store.task("etl/r1/load").items()) == {"keep": 1}


def test_the_keyboard_reaches_everything(door: Door, visit: Any) -> None:
    door.task().set_many({"a": 1, "b": 2})
    page = visit(TASK)
    page.wait_for_selector("#live[data-is=live]")
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


def test_what_was_found_is_deleted_all_or_none(door: Door, visit: Any) -> None:
    state = door.task()
    state.set_many({"tmp1": 1, "tmp2": 2, "keep": 3})
    page = visit("/find?key=tmp*")
    state.set("tmp1", 5)
    page.get_by_role("button", name="Delete these …").click()
    page.locator("#sure-yes").click()
    page.locator("#sure-problem:not([hidden])").wait_for()
    assert len(state.keys()) == 3
    page.reload()
    page.get_by_role("button", name="Delete these …").click()
    page.locator("#sure-yes").click()
    page.get_by_text("0 entries.").wait_for()
    assert state.keys() == ["keep"]


def test_what_was_found_gets_another_expiry_and_stays_exact(door: Door, visit: Any) -> None:
    door.task().set("page", 1.0)
    assert stored(door, "page")[1] is not None
    page = visit("/find?key=page")
    page.locator("#found-when").select_option("never")
    page.get_by_role("button", name="Set for these …").click()
    page.locator("#sure-yes").click()
    page.locator("#found tbody").get_by_text("never").wait_for()
    assert stored(door, "page") == ("1.0", None)


def test_a_viewer_is_refused_when_asking_directly(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    token = door.as_role("viewer").token
    page = visit(TASK, token=token)
    row(page, "page").wait_for()
    assert page.get_by_role("button", name="Edit").count() == 0
    path = f"{door.url}/api/outlast/v1/runs/etl/r1/tasks/load/state/page"
    status = page.evaluate(
        "path => fetch(path, {method: 'PUT', body: '{\"value\":2}', headers: {'Content-Type': 'application/json'}})"
        ".then(answer => answer.status)",
        path,
    )
    assert status == 401
    assert stored(door, "page")[0] == "1"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(door: Door, visit: Any, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    desk = door.desk()
    desk.start("load", *[TaskSpec("copy", index) for index in range(20)])
    desk.ran("load", "failed", error="no")
    door.task().set_many({"page": 1, "db_password": "x", "progress": {"done": 1, "total": 2, "rate": 1.0}})
    door.store.asset("orders").set("watermark", 1)
    page = visit("/", color_scheme=scheme)
    views = ("/", "/runs/etl/r1", TASK, TASK + "?key=page", TASK + "?at=1", "/assets", "/find?go=1", "/health")
    for path in (*views, f"/assets/{door.asset_id('orders')}"):
        page.goto(door.url + path)
        found = Axe().run(page).response["violations"]
        assert [(path, each["id"]) for each in found if each["impact"] in ("serious", "critical")] == []
    page.goto(door.url + TASK)
    edit(page, "page").fill("[")
    found = Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_an_entry_deleted_meanwhile_can_be_written_again(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK)
    edit(page, "page").fill("2")
    state.delete("page")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("It was deleted, or has expired").wait_for()
    assert state.get("page") is None
    page.get_by_role("button", name="Write mine over it").click()
    page.locator("#edit").wait_for(state="hidden")
    assert state.get("page") == 2


def test_somebody_logs_out(door: Door, visit: Any) -> None:
    page = visit("/")
    page.get_by_role("button", name="Log out").click()
    page.get_by_text("Logged out.").wait_for()
    page.goto(door.url + TASK)
    page.get_by_text("outlast serve").wait_for()


def test_attempts_that_crash_are_followed(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    page = visit(TASK)
    page.wait_for_selector("#live[data-is=live]")
    for attempt in (1, 2):
        desk.begin("load")
        page.locator("#ribbon .lane").nth(attempt - 1).wait_for()
        door.store.task("etl/r1/load").set("page", attempt)
        door.clock.move(seconds=5)
        desk.report(desk.fence("load"), "crashed", crash_retries=5, error="killed")
    page.locator("#ribbon .bar.s-crashed").nth(1).wait_for()
    assert page.locator("#summary dd").nth(1).inner_text().startswith("2 (0 failed, 2 crashed)")


@pytest.mark.parametrize("path", ["/", "/runs/etl/r1", TASK, "/assets", "/find?go=1", "/health"])
def test_a_narrow_screen_has_no_sideways_scrolling(door: Door, visit: Any, path: str) -> None:
    door.desk().start("load", *[TaskSpec("copy", index) for index in range(200)])
    door.task().set_many({"a" * 200: "b" * 2000})
    page = visit(path, viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_what_happens_while_the_network_is_away_is_caught_up_with(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK)
    page.wait_for_selector("#live[data-is=live]")
    page.context.set_offline(True)
    state.set("page", 42)
    page.wait_for_selector("#live[data-is=stale]")
    page.context.set_offline(False)
    row(page, "page").get_by_text("42").wait_for()
    page.wait_for_selector("#live[data-is=live]")


def test_a_restart_of_the_server_is_seen(chromium: Any, tmp_path: Path) -> None:
    place = tmp_path / "store.db"

    def link() -> str:
        found = re.search(r"http\S+once=\S+", place.with_suffix(".out").read_text())
        assert found is not None
        return found[0]

    with ServerProcess(place) as server, chromium.new_context() as context, connect(place) as store:
        state = store.task("etl/r1/load")
        state.set("page", 1)
        page = context.new_page()
        page.goto(link())
        page.wait_for_selector("nav[aria-label=Main]")
        page.goto(server.url + TASK)
        page.wait_for_selector("#live[data-is=live]")
        server.kill()
        page.wait_for_selector("#live[data-is=stale]", timeout=20_000)
        state.set("page", 42)
        server.start()  # which knows of no session that was given before
        page.get_by_role("link", name="log in again").wait_for(timeout=20_000)
        again = context.new_page()
        again.goto(link())
        again.wait_for_selector("nav[aria-label=Main]")
        page.evaluate("dispatchEvent(new Event('online'))")
        row(page, "page").get_by_text("42").wait_for(timeout=20_000)
        page.wait_for_selector("#live[data-is=live]", timeout=20_000)
