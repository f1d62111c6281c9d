"""Changing things in a browser while workers write and answers are slow, and what the editor does not let happen."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.public import Door
from support.screen import TASK, edit, is_live, row, save, shows, stored, sure

STATE = "/api/outlast/v1/runs/etl/r1/tasks/load/state"


@contextmanager
def writing(state: Any) -> Iterator[None]:
    """Let a worker write twenty times a second."""
    ended = threading.Event()

    def write() -> None:
        number = 1
        while not ended.wait(0.05):
            number += 1
            state.set("page", number)

    worker = threading.Thread(target=write)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


# --- A busy writer -------------------------------------------------------------------------------------------------


def test_a_click_that_takes_its_time_is_not_lost(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK)
    is_live(page)
    row(page, "page").get_by_role("button", name="Edit page").hover()
    page.mouse.down()
    state.set("page", 42)
    page.wait_for_timeout(1500)  # longer than the page takes to look anew
    page.mouse.up()
    page.locator("#edit").wait_for()
    page.keyboard.press("Escape")
    shows(page, "page", "42")


def test_a_busy_writer_is_not_overwritten_and_typing_stays(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK)
    is_live(page)
    with writing(state):
        box = edit(page, "page")
        box.fill("-1")
        page.wait_for_timeout(1500)
        assert box.input_value() == "-1"
        page.get_by_role("button", name="Save").click()
        page.get_by_text("written by library. Nothing was overwritten.").wait_for()
        page.get_by_role("button", name="Write mine over it").click()
        page.wait_for_timeout(200)
    assert "-1" in (stored(door, "page")[0], page.locator("#edit-yours").inner_text())
    assert [version.value for version in state.history("page")].count(-1) <= 1


def test_where_somebody_reads_stays_where_it_is(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("doc", list(range(500)))
    page = visit(TASK + "?key=doc")
    is_live(page)
    page.locator("pre.whole").evaluate("part => { part.scrollTop = 300; }")
    state.set("doc", list(range(501)))
    page.locator("#now dd", has_text="2").first.wait_for()
    assert page.locator("pre.whole").evaluate("part => part.scrollTop") == 300


# --- Slow answers --------------------------------------------------------------------------------------------------


def test_the_editor_asked_for_last_is_the_one_that_opens(door: Door, visit: Any) -> None:
    door.task().set_many({"slow": 1, "quick": 2})
    page = visit(TASK)
    held: list[Any] = []
    page.route("**/state/slow?*", lambda route: held.append(route))
    row(page, "slow").get_by_role("button", name="Edit slow").click()
    edit(page, "quick").fill("22")
    held[0].continue_()
    page.wait_for_timeout(300)
    assert page.locator("#edit-title").inner_text() == "Edit quick"
    assert page.locator("#edit-value").input_value() == "22"


def test_a_late_answer_closes_no_other_editor(door: Door, visit: Any) -> None:
    door.task().set_many({"slow": 1, "quick": 2})
    page = visit(TASK)
    held: list[Any] = []
    edit(page, "slow").fill("11")
    page.route("**/state/slow?*", lambda route: held.append(route))
    page.get_by_role("button", name="Save").click()
    page.keyboard.press("Escape")
    box = edit(page, "quick")
    box.fill("22")
    held[0].continue_()
    shows(page, "slow", "11")
    assert box.is_visible()
    assert box.input_value() == "22"
    save(page)
    assert stored(door, "quick")[0] == "22"


# --- The editor ----------------------------------------------------------------------------------------------------


def test_a_conflict_over_the_deepest_value_shows_both(door: Door, visit: Any) -> None:
    deepest = "[" * 100 + "]" * 100
    door.task()
    door.put(f"{STATE}/page", text=f'{{"value":{deepest}}}')
    page = visit(TASK)
    box = edit(page, "page")
    assert "".join(box.input_value().split()) == deepest
    door.put(f"{STATE}/page", text=f'{{"value":{deepest}}}')
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Revision 2, written by").wait_for()
    assert "".join(page.locator("#edit-theirs").inner_text().split()) == deepest


def test_a_time_that_is_missing_is_asked_for(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    page = visit(TASK)
    edit(page, "page").fill("2")
    page.locator("#edit input[value=at]").check()
    page.locator("#edit .ways").get_by_role("button", name="curl").click()
    page.get_by_text("Say when it is to expire").wait_for()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Say when it is to expire").wait_for()
    assert stored(door, "page")[0] == "1"


def test_a_marks_number_alone_cannot_be_changed(door: Door, visit: Any) -> None:
    door.desk().start("load")
    for _ in door.task().checkpoint(range(5)):
        pass
    page = visit(TASK)
    box = edit(page, "last_done")
    box.fill(box.input_value().replace('"done": 5', '"done": 3'))
    assert "The digest is that of item 5" in page.locator("#edit-check").inner_text()
    assert '{"done": 3}' in page.locator("#edit-check").inner_text()
    box.fill(box.input_value().replace('"done": 3', '"done": 5'))
    assert page.locator("#edit-check").inner_text().startswith("A checkpoint's mark. To have the next attempt go on")
    box.fill('{"done": 3}')
    assert "valid JSON" in page.locator("#edit-check").inner_text()
    save(page)
    page.locator("#retry-then", has_text="after item 3,").wait_for()
    assert list(door.store.task("etl/r1/load").checkpoint(range(5))) == [3, 4]


def test_what_turns_text_round_is_an_escape_in_dialogs(door: Door, visit: Any) -> None:
    door.task().set("a\u202ekey", 1)
    page = visit(TASK)
    page.get_by_role("button", name=r"Delete a\u").click()
    assert page.locator("#sure-title").inner_text() == r"Delete a\u202ekey?"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Edit a").click()
    page.locator("#edit").wait_for()
    assert page.locator("#edit-title").inner_text() == r"Edit a\u202ekey"


def test_a_value_is_changed_with_the_keyboard_alone(door: Door, visit: Any) -> None:
    door.task().set_many({"first": 1, "second": 2})
    page = visit(TASK)
    is_live(page)
    for key in ("ArrowDown", "ArrowDown", "e"):
        page.keyboard.press(key)
    page.locator("#edit").wait_for()
    page.keyboard.press("Control+A")
    page.keyboard.type("{")
    page.keyboard.press("Control+Enter")  # not yet
    page.keyboard.type('"a":1}')
    page.keyboard.press("Control+Enter")
    page.locator("#edit").wait_for(state="hidden")
    assert stored(door, "second")[0] == '{"a":1}'


def test_a_key_is_edited_and_deleted_where_its_history_is(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    page = visit(TASK + "?key=page")
    page.get_by_role("button", name="Edit").click()
    page.locator("#edit-value").fill("2.0")
    save(page)
    page.locator("pre.whole", has_text="2.0").wait_for()
    assert stored(door, "page")[0] == "2.0"
    page.get_by_role("button", name="Delete").click()
    sure(page)
    page.get_by_text("There is no value under this key now").wait_for()
    assert door.store.task("etl/r1/load").get("page") is None


def test_a_span_is_counted_from_the_clock_of_the_server(door: Door, visit: Any) -> None:
    door.task().set("page", 1)  # for 30 days, by a clock that is not this machine's
    page = visit(TASK, permissions=["clipboard-read", "clipboard-write"])
    edit(page, "page").fill("2")
    page.locator("#edit .ways").get_by_role("button", name="command line").click()
    page.get_by_role("button", name="Copied").wait_for()
    found = re.search(r"--retention (\d+)s", page.evaluate("navigator.clipboard.readText()"))
    assert found is not None
    assert abs(int(found[1]) - 30 * 86400) < 60


def test_what_is_foretold_is_as_new_as_the_keys(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    desk.begin("load")
    state = door.store.task("etl/r1/load", attempt=1)
    state.set("last_done", {"done": 8, "digest": "x"})
    page = visit(TASK)
    is_live(page)
    page.locator("#retry-then", has_text="after item 8,").wait_for()
    state.set("last_done", {"done": 30, "digest": "y"})
    page.locator("#retry-then", has_text="after item 30,").wait_for()


def test_every_way_to_restore_keeps_the_expiry(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    door.put(f"{STATE}/page", text='{"value":2,"expires_at":null}')
    page = visit(TASK + "?key=page", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Restore revision 1").click()
    told = page.locator("#sure-text").inner_text()
    assert "a new revision: 1. The value there now, 2, stays" in told
    for way, said in (("curl", '"expires_at":null'), ("command line", "--retention never"), ("Python", "NEVER_EXPIRE")):
        page.locator("#sure .ways").get_by_role("button", name=way).click()
        page.locator("#sure .ways").get_by_role("button", name="Copied").last.wait_for()
        page.wait_for_function("text => navigator.clipboard.readText().then(copied => copied.includes(text))", arg=said)
        assert said in page.evaluate("navigator.clipboard.readText()")
