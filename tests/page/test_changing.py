"""What somebody changes on the page, and what is asked of them first.

| what it shows | tests |
| --- | --- |
| 3 add, edit | test_a_key_is_added_and_deleted_with_a_warning, test_json_is_checked_while_it_is_typed |
| 3 exact values | test_exact_values_survive_an_edit_of_another_part |
| 3 expiry | test_an_expiry_that_is_not_touched_stays, test_an_expiry_is_a_time_or_the_default |
| 3 conflicts | test_two_browsers_edit_one_key, test_an_entry_deleted_meanwhile_can_be_written_again |
| 3 clear this index | test_all_keys_of_one_index_are_deleted |
| 3 clear all indices | test_all_keys_of_all_indexes_are_deleted_with_the_count_first |
| 4 restore | test_an_earlier_version_is_restored |
| 6 retry choices | test_a_task_is_run_again (keep, discard, some), test_a_task_is_run_again_with_chosen_keys |
| 7 assets | test_an_assets_key_is_edited |
| 8 bulk | test_what_was_found_is_deleted_all_or_none, test_what_was_found_gets_another_expiry_and_stays_exact |
| 10 copy as | test_every_action_can_be_done_elsewhere |
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.run_requests import TaskSpec
from support.copied import do
from support.public import Door
from support.screen import TASK, edit, row, save, shows, stored, sure


def test_exact_values_survive_an_edit_of_another_part(door: Door, visit: Any) -> None:
    value = '{"big":1180591620717411303424,"one":1.0,"minus":-0.0,"nul":"\\u0000","page":1}'
    door.task()
    door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/doc", text=f'{{"value":{value},"expires_at":null}}')
    page = visit(TASK)
    box = edit(page, "doc")
    box.fill(box.input_value().replace('"page": 1', '"page": 2'))
    save(page)
    assert stored(door, "doc") == (value.replace('"page":1', '"page":2'), None)


def test_an_expiry_that_is_not_touched_stays(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    before = stored(door, "page")[1]
    door.clock.move(days=1)
    page = visit(TASK)
    edit(page, "page").fill("2")
    save(page)
    assert stored(door, "page") == ("2", before)
    edit(page, "page").fill("3")
    page.get_by_label("never", exact=True).check()
    save(page)
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
    assert "The value there is secret" in page.locator("#edit-check").inner_text()
    assert "hunter2" not in page.content()


def test_an_earlier_version_is_restored(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    state.set("page", 2)
    page = visit(TASK + "?key=page")
    page.get_by_role("button", name="Restore revision 1").click()
    page.locator("#sure-yes").click()
    page.locator("#history").get_by_text("3", exact=True).first.wait_for()
    assert state.get("page") == 1


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
    page.get_by_text("Deleted in the same step: drop.").wait_for()
    page.locator("#sure-yes").click()
    page.locator("#summary .s-waiting").wait_for()
    assert dict(door.store.task("etl/r1/load").items()) == {"keep": 1}


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


def test_an_expiry_is_a_time_or_the_default(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK, timezone_id="Asia/Tokyo")
    edit(page, "page").fill("2")
    page.get_by_label("Expires at, in your time zone").fill("2031-05-06T09:00:00")
    save(page)
    assert stored(door, "page") == ("2", "2031-05-06T00:00:00Z")
    edit(page, "page").fill("3")
    page.get_by_label("default: in 30 days").check()
    save(page)
    expires = datetime.fromisoformat(stored(door, "page")[1])
    assert expires - datetime.fromtimestamp(door.clock() / 1e6, UTC) == timedelta(days=30)


def test_all_keys_of_one_index_are_deleted(door: Door, visit: Any) -> None:
    door.desk().start(*[TaskSpec("copy", index) for index in range(2)])
    for index in range(2):
        door.task("copy", index).set_many({"a": 1, "b": 2})
    page = visit("/tasks/etl/r1/copy/1")
    page.get_by_role("button", name="Delete all keys", exact=True).click()
    page.get_by_text("2 keys.").wait_for()
    sure(page)
    assert [door.task("copy", index).keys() for index in range(2)] == [["a", "b"], []]


@pytest.mark.parametrize(("choice", "option", "left"), [("keep it", "keep", 1), ("discard it", "discard", None)])
def test_a_task_is_run_again(door: Door, visit: Any, choice: str, option: str, left: int | None) -> None:
    desk = door.desk()
    desk.start("load")
    desk.ran("load", "failed")
    door.task().set("page", 1)
    page = visit(TASK)
    page.get_by_label(choice).check()
    assert f"--{option}-state" in page.locator("#retry-command").inner_text()
    page.get_by_role("button", name="Run again …").click()
    page.get_by_text("load: failed").wait_for()  # what is cleared, before it is
    assert desk.task("load").state == "failed"
    sure(page)
    assert desk.task("load").state == "waiting"
    assert door.store.task("etl/r1/load").get("page") == left


def test_an_assets_key_is_edited(door: Door, visit: Any) -> None:
    door.store.asset("orders").set("watermark", 1)
    page = visit(f"/assets/{door.asset_id('orders')}")
    edit(page, "watermark").fill("2.0")
    save(page)
    shows(page, "watermark", "2.0")
    assert repr(door.store.asset("orders").get("watermark")) == "2.0"


WAYS = ("curl", "command line", "Python")


def copied(page: Any, dialog: str, way: str) -> str:
    """Copy what a dialog is about to do, as one of the ways to do it elsewhere, and leave it undone here."""
    page.locator(f"{dialog} .ways").get_by_role("button", name=way).click()
    page.get_by_role("button", name="Copied").wait_for()
    page.keyboard.press("Escape")
    page.locator(dialog).wait_for(state="hidden")
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.parametrize("way", WAYS)
def test_every_action_can_be_done_elsewhere(door: Door, visit: Any, tmp_path: Path, way: str) -> None:
    desk = door.desk()
    desk.start("load")
    desk.ran("load", "failed")
    state = door.task()
    state.set_many({"page": 1, "old": 1, "tmp1": 1.0, "tmp2": "it's"})
    page = visit(TASK, permissions=["clipboard-read", "clipboard-write"])

    edit(page, "page").fill('{"text": "it\'s", "big": 1180591620717411303424, "one": 1.0, "yes": true}')
    do(copied(page, "#edit", way), door, tmp_path)
    assert repr(state.get("page")) == repr({"text": "it's", "big": 2**70, "one": 1.0, "yes": True})

    row(page, "old").get_by_role("button", name="Delete").click()
    do(copied(page, "#sure", way), door, tmp_path)
    assert state.get("old") is None

    page.goto(door.url + TASK + "?key=old")
    page.get_by_role("button", name="Restore").last.click()
    do(copied(page, "#sure", way), door, tmp_path)
    assert state.get("old") == 1

    page.goto(door.url + "/find?key=tmp*")
    page.locator("#found-when").select_option("never")
    page.get_by_role("button", name="Set for these …").click()
    do(copied(page, "#sure", way), door, tmp_path)
    assert [repr(entry.entry.value) for entry in door.store.find(key="tmp*")] == ["1.0", '"it\'s"']
    assert [entry.entry.expires_at for entry in door.store.find(key="tmp*")] == [None, None]
    page.reload()
    page.get_by_role("button", name="Delete these …").click()
    do(copied(page, "#sure", way), door, tmp_path)
    assert state.keys() == ["old", "page"]

    page.goto(door.url + TASK)
    page.get_by_label("discard it").check()
    page.get_by_role("button", name="Run again …").click()
    do(copied(page, "#sure", way), door, tmp_path)
    assert desk.task("load").state == "waiting"
    assert state.keys() == []
