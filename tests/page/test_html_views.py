"""What the views tell of more than one fact: why attempts ended, where they went on, what needs somebody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest

from outlast.run_requests import TaskSpec
from outlast.server.page import grid
from support.public import Door, open_door

from .test_html import RUN, TASK, html, started

JOB = '"batch-17"'


def text_of(page: str, section: str) -> str:
    """Return the words of a section, blanks made one."""
    found = re.search(rf'<section id="{section}".*?</section>', page, re.DOTALL)
    assert found is not None
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found[0])).split())


def attempt(door: Door, number: int) -> Any:
    return door.store.task("etl/r1/load", attempt=number)


# --- Attempts ----------------------------------------------------------------------------------------------------


def test_the_page_says_why_a_task_was_retried_and_where_it_went_on(door: Door) -> None:
    started(door)
    desk = door.desk()
    desk.begin("load")
    for item in attempt(door, 1).checkpoint(range(60)):
        if item == 29:
            break
    desk.report(desk.fence("load"), "crashed", crash_retries=3, error="the process was killed by SIGKILL")
    desk.begin("load")
    checkpoint = iter(attempt(door, 2).checkpoint(range(60)))
    for _ in range(4):
        next(checkpoint)
    checkpoint.close()
    page = html(door, TASK)
    assert (
        "Attempt 1 died after item 29 of 60: the process was killed by SIGKILL. Attempt 2 went on after item 29 of 60"
        in text_of(page, "summary")
    )
    assert "items 0 → 29 of 60 · the process was killed by SIGKILL" in text_of(page, "ribbon")
    assert "items 29 → 32 of 60" in text_of(page, "ribbon")


def test_an_attempt_that_did_nothing_ended_where_it_began(door: Door) -> None:
    started(door)
    desk = door.desk()
    desk.begin("load")
    for item in attempt(door, 1).checkpoint(range(60)):
        if item == 29:
            break
    for error in ("bad row", "bad row again"):
        desk.report(desk.fence("load"), "failed", retries=3, error=error)
        desk.begin("load")
    told = text_of(html(door, TASK), "summary")
    assert "Attempt 2 went on after item 29 of 60 and failed there: bad row again." in told
    assert "Attempt 3 went on after item 29 of 60 and runs." in told


def test_an_error_is_shown_beside_the_progress(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    door.task().set("progress", {"done": 25, "total": 100, "rate": 2.5})
    door.desk().report(door.desk().fence("load"), "failed", error="no disk")
    for path, section in ((RUN, "tasks"), (TASK, "summary")):
        told = text_of(html(door, path), section)
        assert "25 / 100" in told
        assert "no disk" in told


def test_older_writes_are_said_to_be_missing(door: Door) -> None:
    state = door.task()
    state.set("page", 0)
    assert "its last 20 versions" not in html(door, TASK)
    for number in range(25):
        state.set("page", number)
    assert "A key keeps its last 20 versions" in text_of(html(door, TASK), "ribbon")


def test_a_number_has_a_small_chart_in_the_table(door: Door) -> None:
    for number in (1, 5, 3):
        door.task().set("rows", number)
        door.clock.move(seconds=1)
    page = html(door, TASK)
    assert 'aria-label="Its last values, from 1 to 5"' in page
    assert '<polyline points="0.0,40.0 150.0,0.0 300.0,20.0">' in page


def test_a_long_value_can_be_downloaded_from_the_table(door: Door) -> None:
    door.task().set("a/b", "x" * 5000)
    link = re.search(r'href="/\d+(/api/[^"]+)" download="entry.json">download all 5.0 kB', html(door, TASK))
    assert link is not None
    assert door.get(unescape(link[1])).json()["value"] == "x" * 5000


# --- Runs ----------------------------------------------------------------------------------------------------------


def test_what_needs_somebody_comes_first(door: Door) -> None:
    started(door)
    desk = door.desk()
    for index in range(2):
        desk.ran("copy", "failed", index, error=f"row {index} is bad")
    desk.ran("load", "failed", error="no disk")
    told = text_of(html(door, RUN), "troubles")
    assert told.startswith("Needs somebody failed load try 1")
    assert told.index("no disk") < told.index("row 0 is bad") < told.index("row 1 is bad")
    assert "Run 3 failed again" in told
    assert '[["load",' not in html(door, RUN)
    assert 'data-tasks="[&#34;load&#34;, [&#34;copy&#34;, 0], [&#34;copy&#34;, 1]]"' in html(door, RUN)
    viewer = html(door.as_role("viewer"), RUN)
    assert "no disk" in viewer
    assert "failed again" not in viewer


def test_what_stands_still_needs_somebody(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    door.task().set("progress", {"done": 25, "total": 100, "rate": 2.5})
    assert "stalled" not in text_of(html(door, RUN), "troubles")
    door.clock.move(seconds=16)
    assert "running stalled load try 1, at 25 of 100" in text_of(html(door, RUN), "troubles")


def test_tasks_come_after_those_they_wait_for(door: Door) -> None:
    door.desk().start(("report", "copy"), ("copy", "load"), "load", "other")
    names = re.findall(r'href="/\d+/tasks/etl/r1/(\w+)">', html(door, RUN))
    assert names == ["load", "copy", "report", "other"]


def test_a_grid_of_many_indexes_has_pages(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "SQUARES", 2)
    started(door)
    door.desk().ran("copy", "failed", 2, error="no")
    page = html(door, RUN)
    assert page.count('<a class="square') == 2
    assert "0–1 2–2 1 failed" in text_of(page, "tasks")
    link = re.search(r'href="/\d+(/runs/etl/r1\?[^"]+)"[^>]*>2–2', page)
    assert link is not None
    second = html(door, unescape(link[1]))
    assert re.findall(r'class="square ([^"]+)" href="[^"]+/(\d)"', second) == [("s-failed", "2")]


@pytest.mark.parametrize("part", ["9", "-1", "x", "%D9%A3", "9" * 30])
def test_a_page_of_the_grid_that_is_not_there_harms_nothing(door: Door, part: str) -> None:
    started(door)
    assert "copy" in html(door, f"{RUN}?task=copy&part={part}")


def test_progress_is_shown_of_more_than_a_thousand(door: Door) -> None:
    desk = door.desk()
    desk.start("load", *[TaskSpec("copy", index) for index in range(1003)])
    for index in (0, 1002):
        desk.begin("copy", index)
    for index in range(1003):
        door.store.task(f"etl/r1/copy/{index}").set("progress", {"done": 3, "total": 4})
    assert 'title="1002: running, 75 %"' in html(door, RUN)


# --- The job, the asset, health, find ------------------------------------------------------------------------------


def test_the_job_of_any_operator_has_a_card_with_its_token(door: Door) -> None:
    started(door)
    desk = door.desk()
    desk.begin("load")
    first = attempt(door, 1)
    first.set("batch_job_id.intent", {"token": "outlast-1"})
    told = text_of(html(door, TASK), "job")
    assert "not known whether it was submitted" in told
    assert "looks for the job it may have submitted" in told
    with first.transaction() as tx:
        tx.set("batch_job_id", "batch-17")
        tx.delete("batch_job_id.intent")
    desk.report(desk.fence("load"), "crashed", crash_retries=3)
    desk.begin("load")
    told = text_of(html(door, TASK), "job")
    assert f"Id (batch_job_id) {JOB}" in told
    assert "Reconnects 1" in told
    assert 'Token {"token":"outlast-1"}' in told
    assert f"The next attempt asks for job {JOB}" in told


def test_the_run_says_which_job_runs_elsewhere(door: Door) -> None:
    started(door)
    desk = door.desk()
    door.task("train").set("remote_job_id", "left by a run before")  # it has not begun
    assert "job" not in text_of(html(door, RUN), "tasks")
    desk.begin("load")
    first = attempt(door, 1)
    first.set_many({"batch_job_id": "batch-17", "remote_job_id": "job-d030c5", "page": 3})
    told = text_of(html(door, RUN), "tasks")
    assert re.search(r"load running 1 \S+ \S+ job job-d030c5 runs elsewhere, submitted 20\d\d-", told), told
    assert "left by" not in told
    first.delete("remote_job_id")
    assert "job batch-17 runs elsewhere" in text_of(html(door, RUN), "tasks")
    desk.report(desk.fence("load"), "crashed", crash_retries=3, error="killed")
    told = text_of(html(door, RUN), "tasks")
    assert re.search(r"killed job batch-17 was submitted [^;]+; the next attempt asks for it", told), told
    desk.begin("load")
    desk.report(desk.fence("load"), "success")
    assert "batch-17" not in text_of(html(door, RUN), "tasks")


def test_a_jobs_id_is_shown_as_it_is_written_or_not_at_all(door: Door) -> None:
    desk = door.desk()
    desk.start("secret", "number", "long", TaskSpec("copy", 0), "load[1]")
    ids = {
        "secret": "x",
        "number": 2**70,
        "long": {"host": "vm", "folder": f"{'y' * 50}/job-1", "pid": 7},
        "load[1]": "<b>",
    }
    for task, value in ids.items():
        desk.begin(task)
        door.task(task).set("password_job_id" if task == "secret" else "job_id", value)
    desk.begin("copy", 0)
    door.store.task("etl/r1/copy/0").set("job_id", "mapped")
    told = text_of(html(door, RUN), "tasks")
    for shown in ("job runs", f"job {2**70} runs", "job …job-1 runs", "job <b> runs"):
        assert shown in told
    assert told.count("runs elsewhere") == 4
    assert "mapped" not in told


def test_a_path_with_nothing_is_a_page_to_browsers_alone(door: Door) -> None:
    for path in ("/nosuch", "/runs", "/runs/etl/r1/x/y", "/%3Cscript%3E"):
        answer = door.get(path, headers={"Accept": "text/html,*/*"})
        assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
        assert "<h1>There is no such thing</h1>" in answer.text
        assert f"nothing at /{door.url.rpartition('/')[2]}{unquote(path)}." in unescape(answer.text)
        assert "<script>" not in answer.text
        told = door.get(path, headers={"Accept": "application/json"})
        assert (told.status, told.json()) == (404, {"detail": "Not Found", "code": "not_found"})
    for path in ("/api/outlast/v1/nosuch", "/static/nosuch"):
        assert door.get(path, headers={"Accept": "text/html"}).json()["code"] == "not_found"
    assert door.post("/nosuch", headers={"Accept": "text/html"}).json()["code"] == "not_found"


def test_an_asset_has_a_row_a_run(door: Door) -> None:
    for run in ("r1", "r2"):
        desk = door.desk(run)
        desk.start("load")
        desk.begin("load")
        asset = door.store.task(f"etl/{run}/load", attempt=1).asset("orders")
        asset.set("watermark", run)
        asset.set("rows", 7)
        asset.set("rows", 8)
    told = text_of(html(door, f"/assets/{door.asset_id('orders')}"), "writes")
    rows = re.findall(r"etl/(r\d)/load attempt 1 [^\"]*? (8) 2 writes \"(r\d)\"|etl/(r\d)/load attempt 1", told)
    assert [row[0] or row[3] for row in rows] == ["r2", "r1"]
    assert told.count("2 writes") == 2


def test_an_asset_is_found_by_its_name(door: Door) -> None:
    door.store.asset("orders").set("watermark", 1)
    answer = door.get("/assets?name=orders", headers={"Accept": "text/html"})
    assert answer.status == 303
    assert answer.headers["Location"].endswith(f"/assets/{door.asset_id('orders')}")
    assert door.get("/assets?name=none", headers={"Accept": "text/html"}).status == 404


def test_health_tells_what_is_written_most(door: Door) -> None:
    door.task().set("other", 1)
    for number in range(5):
        door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/page", value=number)
    page = html(door, "/health")
    assert re.search(r'<th scope="row"><a href="/\d+/tasks/etl/r1/load\?key=page">page</a>', page)
    assert "Writes" in text_of(page, "health")


def test_a_key_that_was_found_leads_to_its_history(door: Door) -> None:
    door.task().set("page", 41)
    assert re.search(r'href="/\d+/tasks/etl/r1/load\?key=page">page</a>', html(door, "/find?key=page"))


def test_short_values_have_a_line_a_version(door: Door) -> None:
    for number in (41, 42):
        door.task().set("page", number)
    assert "41 → 42" in text_of(html(door, TASK + "?key=page"), "history")


# --- Those who are not logged in -----------------------------------------------------------------------------------


@pytest.fixture
def below(tmp_path: Any) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        door.token = None
        yield door


@pytest.mark.parametrize("path", ["/", "/login", "/login?once=x", RUN, "/nosuch"])
def test_a_stranger_sees_a_page_that_looks_like_the_others(below: Door, path: str) -> None:
    page = below.get(path, headers={"Accept": "text/html"}).text
    assert re.search(r'href="/\d+/static/page.css"', page)
    assert '<input name="token" type="password"' in page
    assert "<h1>Log in</h1>" in page
