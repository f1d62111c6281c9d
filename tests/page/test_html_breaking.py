"""What tasks, names and people do that is not meant well, or that nobody thought of; without a browser."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

import pytest

from outlast.run_requests import TaskSpec
from support.public import Door

from .test_html import RUN, TASK, html, started
from .test_html_views import attempt, text_of

PROGRESS = "/api/outlast/v1/runs/etl/r1/tasks/load/state/progress"


# --- What became of attempts ---------------------------------------------------------------------------------------


def retried(door: Door, error: str = "bad row") -> None:
    """Let an attempt go through 29 of 60 items and fail, and the next one begin."""
    started(door)
    desk = door.desk()
    desk.begin("load")
    for item in attempt(door, 1).checkpoint(range(60)):
        if item == 29:
            break
    again(door, error)


def again(door: Door, error: str = "bad row") -> None:
    door.clock.move(seconds=1)
    door.desk().report(door.desk().fence("load"), "failed", retries=9, error=error)
    door.clock.move(seconds=1)
    door.desk().begin("load")
    door.clock.move(seconds=1)


def test_where_an_attempt_went_on_is_told_before_it_tells_its_progress(door: Door) -> None:
    retried(door)
    attempt(door, 2).set("last_done", {"done": 30, "digest": "x"})  # a mark; progress comes 0.3 s later
    assert "Attempt 2 went on after item 29 of 60 and runs." in text_of(html(door, TASK), "summary")


def test_an_attempt_whose_state_was_discarded_began_from_the_start(door: Door) -> None:
    retried(door)
    door.store.task("etl/r1/load").clear()
    again(door)
    told = text_of(html(door, TASK), "summary")
    assert "Attempt 3 began from the start and runs." in told
    assert "Attempt 2 went on after item 29 of 60 and failed there: bad row." in told


def test_a_mark_that_a_person_moved_is_where_the_next_attempt_goes_on(door: Door) -> None:
    retried(door)
    door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/last_done", value={"done": 10, "digest": "x"})
    again(door)
    told = text_of(html(door, TASK), "summary")
    assert "Attempt 3 went on after item 10 of 60 and runs." in told
    assert "items 0 → 29 of 60 · bad row" in text_of(html(door, TASK), "ribbon")  # not 10: that one came so far


def test_a_mark_that_a_person_moved_on_was_not_reached_by_an_attempt(door: Door) -> None:
    retried(door)
    door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/last_done", value={"done": 50, "digest": "x"})
    again(door)
    assert "Attempt 2 went on after item 29 of 60 and failed there" in text_of(html(door, TASK), "summary")


def test_an_attempt_that_wrote_nothing_says_so(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    again(door)
    assert "Attempt 2 runs: it has written nothing yet." in text_of(html(door, TASK), "summary")
    door.desk().report(door.desk().fence("load"), "failed", error="bad row")
    assert "Attempt 2 failed; it wrote nothing." in text_of(html(door, TASK), "summary")


# --- The ribbon ----------------------------------------------------------------------------------------------------


def bars(page: str) -> list[tuple[float, float]]:
    """Return from where to where on an axis of 1,000 each attempt goes."""
    found = re.findall(r'<rect class="bar [^"]*" x="([^"]+)" y="6" width="([^"]+)"', page)
    return [(float(x), pytest.approx(float(x) + float(width))) for x, width in found]


def cuts(page: str) -> list[tuple[float, float]]:
    """Return from where to where pauses are drawn that are cut short, lane by lane."""
    return [(float(x), float(end)) for x, end in re.findall(r'<line class="cut" x1="([^"]+)" x2="([^"]+)"', page)]


def test_a_long_pause_between_attempts_is_cut_short(door: Door) -> None:
    started(door)
    desk = door.desk()
    for pause in (3600, 90, 0):
        desk.begin("load")
        door.clock.move(seconds=10)
        desk.report(desk.fence("load"), "failed", retries=9, error="no")
        door.clock.move(seconds=pause)
    page = html(door, TASK)
    assert bars(page) == [(0, 313.33), (343.33, 656.67), (686.67, 1000)]
    assert cuts(page) == [(313.33, 343.33), (656.67, 686.67)] * 3
    assert "Striped: 1 h, 1 min 30 s without an attempt or a write, cut short." in text_of(page, "ribbon")


def test_a_pause_that_is_not_long_is_as_long_as_it_was(door: Door) -> None:
    started(door)
    desk = door.desk()
    for pause in (20, 0):
        desk.begin("load")
        door.clock.move(seconds=10)
        desk.report(desk.fence("load"), "failed", retries=9, error="no")
        door.clock.move(seconds=pause)
    page = html(door, TASK)
    assert bars(page) == [(0, 250), (750, 1000)]
    assert cuts(page) == []
    assert "cut short" not in page


def test_a_pause_of_a_few_seconds_is_not_cut(door: Door) -> None:
    started(door)
    desk = door.desk()
    for pause in (10, 0):
        desk.begin("load")
        door.clock.move(seconds=1)
        desk.report(desk.fence("load"), "failed", retries=9, error="no")
        door.clock.move(seconds=pause)
    assert cuts(html(door, TASK)) == []


def test_a_person_who_wrote_in_a_pause_is_between_two_cuts(door: Door) -> None:
    started(door)
    desk = door.desk()
    desk.begin("load")
    door.clock.move(seconds=10)
    desk.report(desk.fence("load"), "failed", retries=9, error="no")
    for _ in range(2):
        door.clock.move(seconds=600)
        door.put("/api/outlast/v1/runs/etl/r1/tasks/load/state/page", value=1)
    page = html(door, TASK)
    assert text_of(page, "ribbon").count("10 min") == 1 + 2 * 2 + 1
    assert [float(x) for x in re.findall(r'<line class="tick" x1="([^"]+)"', page)] == [1000, 970]


# --- Numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored",
    [
        '{"done":1,"total":%s,"rate":1.0}' % ("9" * 400),
        '{"done":%s,"total":5,"rate":1.0}' % ("9" * 400),
        '{"done":1,"total":100,"rate":5e-324}',
        '{"done":1,"total":100,"rate":1e308}',
        '{"done":0,"total":0,"rate":0}',
    ],
)
def test_numbers_beyond_measure_break_no_view(door: Door, stored: str) -> None:
    started(door)
    door.desk().begin("load")
    assert door.put(PROGRESS, text=f'{{"value":{stored}}}').status == 200
    door.clock.move(seconds=20)
    for path in (RUN, TASK, TASK + "?at=1", "/find?go=1"):
        assert re.search(r'data-patience="(?!\d+\.\d+")', html(door, path)) is None


def test_a_chart_of_the_largest_numbers_has_places(door: Door) -> None:
    for number in (1.7e308, -1.7e308, 0):
        door.task().set("rows", number)
        door.clock.move(seconds=1)
    assert '<polyline points="0.0,0.0 150.0,40.0 300.0,20.0">' in html(door, TASK)


# --- Names ---------------------------------------------------------------------------------------------------------


def test_what_is_counted_before_it_is_deleted_is_that_task_and_no_pattern(door: Door) -> None:
    for task in ("a?", "ab"):
        door.desk(task).start(TaskSpec(task, 0), TaskSpec(task, 1))
        for index in range(2):
            door.task(task, index, run_id=task).set("page", 1)
    found = re.search(r'data-count="/\d+(/api/[^"]+)"', html(door, "/tasks/etl/a%3F/a%3F/0"))
    assert found is not None
    assert [one["scope"]["run_id"] for one in door.get(unescape(found[1])).json()["found"]] == ["a?", "a?"]


# --- What is on another page of the keys ---------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?prefix=a"])
def test_the_job_and_the_progress_are_shown_whichever_keys_are(door: Door, query: str) -> None:
    started(door)
    door.desk().begin("load")
    first = attempt(door, 1)
    first.set_many({f"a{number:03}": number for number in range(150)})
    first.set("remote_job_id", "job-1")
    first.set("remote_job_id.status", {"status": "RUNNING", "reconnects": 3})
    first.set("progress", {"done": 25, "total": 100})
    page = html(door, TASK + query)
    told = text_of(page, "job")
    assert 'Id (remote_job_id) "job-1"' in told
    assert "Reconnects 3" in told
    assert "Last known status RUNNING , asked" in told
    assert "25 / 100" in text_of(page, "summary")


@pytest.mark.parametrize("noted", ["x", 1, {"status": 5}, {"status": "x"}, {"reconnects": 1}])
def test_a_job_whose_status_cannot_be_read_was_not_asked(door: Door, noted: object) -> None:
    started(door)
    door.desk().begin("load")
    attempt(door, 1).set_many({"remote_job_id": "job-1", "remote_job_id.status": noted})
    told = text_of(html(door, TASK), "job")
    assert "not asked yet" in told
    assert "Reconnects 0" in told


def test_a_long_status_is_cut(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    status = {"status": "<b>" + "x" * 5000, "reconnects": 1}
    attempt(door, 1).set_many({"remote_job_id": "job-1", "remote_job_id.status": status})
    page = html(door, TASK)
    job = page[page.index('id="job"') : page.index('id="next"')]
    assert "&lt;b&gt;xxx" in job
    assert len(job) < 3000


# --- What needs somebody, and is not seen ----------------------------------------------------------------------------


def test_what_stands_still_is_told_before_what_failed(door: Door) -> None:
    door.desk().start("load", *[TaskSpec("copy", index) for index in range(9)])
    for index in range(9):
        door.desk().ran("copy", "failed", index, error="bad row")
    door.desk().begin("load")
    door.task().set("progress", {"done": 25, "total": 100, "rate": 2.5})
    door.clock.move(seconds=16)
    told = text_of(html(door, RUN), "troubles")
    assert told.startswith("Needs somebody running stalled load")
    assert "and 4 more, in the list of tasks" in told


def test_a_token_of_one_dag_shows_nothing_of_others(door: Door) -> None:
    for dag in ("etl", "secret_dag"):
        door.desk("r1", dag).start("load")
        door.desk("r1", dag).begin("load")
        state = door.store.task(f"{dag}/r1/load", attempt=1)
        state.set("page", "x" * 1000)
        state.asset("orders").set("watermark", dag == "etl")
        door.put(f"/api/outlast/v1/runs/{dag}/r1/tasks/load/state/hot", value=1)
    door.clock.move(seconds=3600)
    asset = f"/assets/{door.asset_id('orders')}"
    for role in ("viewer", "editor"):
        narrow = door.as_role(role, "e*")
        for path in ("/", RUN, TASK, TASK + "?key=page", "/assets", asset, asset + "?key=watermark", "/find?go=1"):
            assert "secret" not in html(narrow, path)
        for path in ("/health", "/find?dag=secret*", "/?dag=secret_dag"):
            page = re.sub(r'(?s)(value|href|data-\w+)="[^"]*"|<pre.*?</pre>', "", html(narrow, path))  # what was asked
            assert "secret" not in page, path


# --- Find ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "where"), [(41, "41"), ("a b", '"a b"'), (1.0, "1.0"), (True, "true")])
def test_a_value_alone_is_what_is_looked_for(door: Door, value: object, where: str) -> None:
    door.task().set_many({"page": value, "other": [value]})
    assert "1 entry." in html(door, "/find?where=" + quote(where))
