"""What the page shows, as somebody looks for it.

| what it shows | tests |
| --- | --- |
| 1 runs | test_runs_are_filtered_and_the_filter_is_in_the_url, test_a_run_that_begins_appears_by_itself |
| 2 a run | test_a_run_tells_slow_from_stalled, test_an_index_of_a_mapped_task_is_one_click_away |
| 3 a task instance | test_a_tick_says_what_was_written, test_a_numeric_key_has_a_chart |
| 4 a key's history | test_a_keys_history_says_who_when_and_what |
| 5 external job | test_the_job_card_says_what_the_next_attempt_will_do |
| 6 retry choices | in test_changing.py |
| 7 assets | test_an_asset_leads_to_who_wrote_it |
| 8 find | test_find_compares_everything; changes are in test_changing.py |
| 9 health | test_health_says_how_it_is |
| 10 copy as | test_what_is_copied_works_elsewhere, test_a_scope_is_exported |
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from outlast.run_requests import TaskSpec
from support.copied import do
from support.public import Door
from support.screen import TASK, is_live, row


def test_runs_are_filtered_and_the_filter_is_in_the_url(door: Door, visit: Any) -> None:
    for dag_id, run_id in (("etl", "monday"), ("etl", "tuesday"), ("train", "monday")):
        door.desk(run_id, dag_id).start("load")
    door.desk("tuesday").ran("load", "failed")
    door.desk("tuesday").release("failed")
    page = visit("/")
    runs = page.locator("#runs tbody tr")
    assert [text.split("\t")[0] for text in runs.all_inner_texts()] == [
        "train / monday",
        "etl / tuesday",
        "etl / monday",
    ]
    page.get_by_label("DAG").fill("etl")
    page.get_by_label("failed").check()
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**?*state=failed*")
    assert parse_qs(urlsplit(page.url).query) == {"dag": ["etl"], "state": ["failed"]}
    assert runs.count() == 1
    assert "1 failed" in runs.inner_text()
    page.reload()
    assert page.get_by_label("failed").is_checked()
    assert runs.count() == 1


def test_a_run_that_begins_appears_by_itself(door: Door, visit: Any) -> None:
    page = visit("/")
    is_live(page)
    door.desk().start("load")
    page.get_by_role("link", name="r1").wait_for()


def test_a_run_tells_slow_from_stalled(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("slow", "hanging")
    for task_id, rate in (("slow", 0.1), ("hanging", 5.0)):
        desk.begin(task_id)
        door.store.task(f"etl/r1/{task_id}").set("progress", {"done": 25, "total": 100, "rate": rate})
    door.clock.move(seconds=20)
    page = visit("/runs/etl/r1")
    slow, hanging = (page.locator("#tasks tr").filter(has_text=name) for name in ("slow", "hanging"))
    assert "25 / 100" in slow.inner_text()
    assert "25 %" in slow.inner_text()
    assert "10 s an item" in slow.inner_text()
    assert "20 s ago" in slow.inner_text()
    assert slow.get_by_role("progressbar").get_attribute("value") == "25"
    assert not slow.get_by_text("stalled").is_visible()
    assert hanging.get_by_text("stalled").is_visible()


def test_an_index_of_a_mapped_task_is_one_click_away(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start(*[TaskSpec("copy", index) for index in range(40)])
    desk.ran("copy", "failed", 17, error="no such table")
    page = visit("/runs/etl/r1")
    assert page.locator(".square").count() == 40
    page.locator(".square.s-failed").click()
    page.wait_for_url("**/tasks/etl/r1/copy/17")
    page.get_by_text("no such table").first.wait_for()


def test_a_tick_says_what_was_written(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    door.clock.move(seconds=10)
    state.set("page", 2)
    page = visit(TASK)
    told = page.locator("#ribbon .reach title").all_text_contents()
    assert sorted(text.split(",")[0] for text in told) == ["page = 1", "page = 2"]
    page.locator(".reach").last.click(force=True)
    page.get_by_role("heading", name="The state after revision").wait_for()
    assert page.locator("#then code.value").inner_text() == "1"


def test_a_numeric_key_has_a_chart(door: Door, visit: Any) -> None:
    state = door.task()
    for number in (3, 9, 1.5):
        state.set("rows", number)
        door.clock.move(seconds=5)
    page = visit(TASK)
    row(page, "rows").get_by_role("link").first.click()
    chart = page.locator(".chart [role=img]").first
    label = chart.get_attribute("aria-label") or ""
    assert "1.5" in label
    assert "9" in label


def test_a_keys_history_says_who_when_and_what(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    desk.begin("load")
    fence = desk.fence("load")
    door.store.task("etl/r1/load", attempt=fence.attempt).set("doc", {"a": "a" * 100, "b": 2})
    door.clock.move(seconds=30)
    door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/doc", value={"a": "a" * 100, "b": 3})
    page = visit(TASK + "?key=doc")
    told = page.locator("#history").inner_text()
    assert "attempt 1" in told
    assert "ann@desk" in told
    assert '"b": 3' in page.locator("#history .plus").inner_text()
    assert '"b": 2' in page.locator("#history .minus").inner_text()
    assert "30 s ago" in told
    moment = page.locator("#history time").last
    assert (moment.get_attribute("title") or "").endswith("+00:00")  # exact UTC, on hover


def test_the_job_card_says_what_the_next_attempt_will_do(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    desk.begin("load")
    door.store.task("etl/r1/load", attempt=1).set("remote_job_id", "job-1")
    for _ in range(2):  # two workers die while it runs
        desk.report(desk.fence("load"), "crashed", crash_retries=9, error="killed")
        desk.begin("load")
    page = visit(TASK)
    card = page.locator("#job").inner_text()
    assert '"job-1"' in card
    assert "attempt 1" in card
    assert "asks for job" in card
    assert "2" in card.split("attempt 1")[1].split("next attempt")[0]  # attempts that found it again


def test_an_asset_leads_to_who_wrote_it(door: Door, visit: Any) -> None:
    for run_id, day in (("r1", "monday"), ("r2", "tuesday")):
        desk = door.desk(run_id)
        desk.start("load")
        desk.begin("load")
        door.store.task(f"etl/{run_id}/load", attempt=1).asset("orders").set("watermark", day)
        door.clock.move(days=1)
    page = visit("/assets")
    page.get_by_role("link", name="orders").click()
    told = page.locator("#writes").inner_text()
    assert "monday" in told
    assert "tuesday" in told
    page.locator("#writes").get_by_role("link", name="etl/r1/load attempt 1").click()
    page.wait_for_url("**/tasks/etl/r1/load")


@pytest.mark.parametrize(
    ("field", "text", "found"),
    [
        ("DAG", "tr*", ["big"]),
        ("Run", "r2", ["soon"]),
        ("Task", "lo?d", ["page", "soon"]),
        ("Key", "p*", ["page"]),
        ("Value", "$ > 40", ["page"]),
        ("Expires within, hours", "3", ["soon"]),
        ("At least, bytes", "1000", ["big"]),
        ("At most, bytes", "3", ["page", "soon"]),
        ("Unchanged for, hours", "1", ["page"]),
        ("Changed within, hours", "1", ["big", "soon"]),
    ],
)
def test_find_compares_everything(door: Door, visit: Any, field: str, text: str, found: list[str]) -> None:
    door.task().set("page", 41)
    door.clock.move(seconds=2 * 3600)
    door.task("fit", dag_id="train").set("big", "x" * 5000)
    door.task(run_id="r2").set("soon", 1, retention=timedelta(hours=2))
    page = visit("/find")
    page.get_by_label(field, exact=True).fill(text)
    page.get_by_role("button", name="Find", exact=True).click()
    page.locator("#found").wait_for()
    assert sorted(page.locator("#found tbody tr").evaluate_all("rows => rows.map(row => row.dataset.key)")) == found


def test_health_says_how_it_is(door: Door, visit: Any) -> None:
    door.task().set("page", 41)
    page = visit("/health")
    told = page.locator("#health").inner_text()
    for word in ("healthy", "read", "write", "swept", "sweep", "Fenced", "DAG"):
        assert word in told


def test_what_is_copied_works_elsewhere(door: Door, visit: Any, tmp_path: Path) -> None:
    door.desk().start("load")
    door.task().set("page", 41)
    door.store.asset("orders").set("watermark", 7)
    views = {
        "/": "r1",
        "/runs/etl/r1": "load",
        TASK: "41",
        TASK + "?key=page": "41",
        "/assets": "orders",
        f"/assets/{door.asset_id('orders')}": "7",
        "/find?key=page": "41",
    }
    page = visit("/")
    for path, wanted in views.items():
        page.goto(door.url + path)
        texts = page.locator("#copy-as pre").all_text_contents()
        assert len(texts) >= 2
        for text in texts:
            assert wanted in do(text, door, tmp_path), (path, text)


def test_a_button_copies(door: Door, visit: Any) -> None:
    door.task()
    page = visit(TASK, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("Copy as", exact=True).click()
    page.locator("#copy-as").get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl ")


def test_a_scope_is_exported(door: Door, visit: Any) -> None:
    door.task().set_many({"page": 41, "exact": 2**70})
    page = visit(TASK)
    with page.expect_download() as begun:
        page.get_by_role("link", name="Export this scope").click()
    lines = begun.value.path().read_bytes().splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    assert "1180591620717411303424" in b"".join(lines).decode()
    assert any("page" in str(line) for line in found)


def test_an_empty_page_teaches(door: Door, visit: Any) -> None:
    for path, words in (("/", "outlast run hello.py"), ("/assets", "outlast state set --asset orders")):
        page = visit(path)
        assert words in page.locator("main").inner_text()
