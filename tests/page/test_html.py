"""What the server renders: every view, full and empty, for those who may and may not; without a browser."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from outlast.run_requests import TaskSpec
from outlast.server.page.files import FOLDER
from support.public import Door

RUN, TASK = "/runs/etl/r1", "/tasks/etl/r1/load"
EMPTY = {
    "/": "outlast run hello.py",
    "/assets": "outlast state set --asset orders",
    "/find": "Names may be patterns",
    "/health": "No DAG has state",
}


def html(door: Door, path: str) -> str:
    """Return a page that must be there."""
    answer = door.get(path, headers={"Accept": "text/html"})
    assert answer.status == 200, answer.text
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    return answer.text


def started(door: Door) -> None:
    door.desk().start("load", ("train", "load"), *[TaskSpec("copy", index) for index in range(3)])


@pytest.mark.parametrize("path", EMPTY)
def test_an_empty_page_says_what_to_do(door: Door, path: str) -> None:
    assert EMPTY[path] in html(door, path)


def test_the_first_page_is_json_for_programs(door: Door) -> None:
    assert door.get("/").json()["name"] == "outlast"


def test_runs_are_listed_newest_first(door: Door) -> None:
    for run_id in ("first", "second"):
        door.desk(run_id).start("load")
    text = html(door, "/")
    assert text.index("/runs/etl/second") < text.index("/runs/etl/first")
    assert "2 waiting" not in text
    assert text.count("1 waiting</span>") == 2


def test_the_filter_of_runs_is_in_the_url(door: Door) -> None:
    for dag_id, run_id in (("etl", "monday"), ("etl", "tuesday"), ("train", "monday")):
        door.desk(run_id, dag_id).start("load")
    door.desk("tuesday").ran("load", "failed")
    door.desk("tuesday").release("failed")

    def shown(query: str) -> set[str]:
        found = re.findall(r'href="/\d+/runs/([^"]+)"', html(door, "/?" + query))
        return set(found)

    assert shown("dag=etl") == {"etl/monday", "etl/tuesday"}
    assert shown("q=MON") == {"etl/monday", "train/monday"}
    assert shown("state=failed") == {"etl/tuesday"}
    assert shown("state=failed&dag=train") == set()
    assert "No run fits this filter" in html(door, "/?q=nothing")
    assert 'value="failed" checked' in html(door, "/?state=failed")


def test_older_runs_are_a_page_away(door: Door) -> None:
    for number in range(51):
        door.desk(f"r{number:02}").start("load")
    text = html(door, "/")
    assert "/runs/etl/r01" in text
    assert "/runs/etl/r00" not in text
    older = re.search(r'rel="next" href="/\d+(/\?[^"]+)"', text)
    assert older is not None
    assert "/runs/etl/r00" in html(door, unescape(older[1]))


def test_a_run_has_a_row_a_task_and_a_square_an_instance(door: Door) -> None:
    started(door)
    door.desk().ran("copy", "failed", 1, error="no")
    text = html(door, RUN)
    assert "after load" in text
    assert text.count('<a class="square') == 3
    assert re.search(r'class="square s-failed" href="/\d+/tasks/etl/r1/copy/1" title="1: failed"', text)


def test_progress_has_percents_a_rate_and_time_left(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    door.task().set("progress", {"done": 25, "total": 100, "rate": 2.5})
    for path in (RUN, TASK):
        text = html(door, path)
        assert '<progress max="100" value="25"' in text
        assert "25 / 100 · 25 %" in re.sub(r"<[^>]+>", "", text)
        assert "2.5/s" in text
        assert "30 s left" in text
        assert 'class="progress stalled"' not in text
    door.clock.move(seconds=16)
    assert 'class="progress stalled"' in html(door, RUN)
    door.task().set("progress", {"done": 26, "total": 100, "rate": 0.1})
    door.clock.move(seconds=49)
    assert 'class="progress stalled"' not in html(door, RUN)  # slow: its items take ten seconds each
    door.clock.move(seconds=2)
    assert 'class="progress stalled"' in html(door, RUN)


@pytest.mark.parametrize("value", [{"done": -1}, {"done": "1"}, {"done": 1.5}, "text", [1], {"total": 3}])
def test_a_key_called_progress_may_hold_something_else(door: Door, value: Any) -> None:
    started(door)
    door.task().set("progress", value)
    assert 'aria-label="Items done"' not in html(door, RUN)


def test_values_are_shown_digit_for_digit(door: Door) -> None:
    door.task().set_many({"big": 2**70, "one": 1.0, "minus": -0.0, "nul": "\0"})
    text = unescape(html(door, TASK))
    for value in ("1180591620717411303424", "1.0", "-0.0", r'"\u0000"'):
        assert f'<code class="value">{value}</code>' in text
    assert "1180591620717411303424" in html(door, TASK + "?key=big")


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}"])
def test_hostile_text_is_text(door: Door, hostile: str) -> None:
    started(door)
    door.task().set(hostile.replace("/", ""), hostile)
    door.desk().ran("load", "failed", error=hostile)
    for path in (RUN, TASK, "/find?go=1", TASK + "?at=1"):
        text = html(door, path)
        assert hostile not in text or hostile.startswith("{{")
        assert "<img" not in text
        assert ">49<" not in text


def test_what_turns_text_round_is_written_as_an_escape(door: Door) -> None:
    door.task().set("name\u202etxt", "abc\u202edef")
    text = html(door, TASK)
    assert r"abc\u202edef" in unescape(text)
    assert "abc\u202edef" not in text


def test_a_long_value_is_cut_and_can_be_downloaded(door: Door) -> None:
    door.task().set("long", "x" * 60_000)
    text = html(door, TASK)
    assert "x" * 500 not in text
    assert "60.0 kB" in text
    one = html(door, TASK + "?key=long")
    assert "the first 20,000 of 60,002 characters" in one
    link = re.search(r'href="/\d+(/api/[^"]+)" download', one)
    assert link is not None
    assert door.get(unescape(link[1])).json()["value"] == "x" * 60_000


def test_secret_values_are_on_no_page(door: Door) -> None:
    started(door)
    for number in range(2):
        door.task().set("db_password", f"hunter{number}")
    for path in (RUN, TASK, TASK + "?key=db_password", TASK + "?at=1", "/find?key=*pass*", "/health"):
        text = html(door, path)
        assert "hunter" not in text
    assert "masked" in html(door, TASK)


def test_the_state_as_it_was_after_a_revision(door: Door) -> None:
    state = door.task()
    state.set("page", 1)
    state.set("other", 7)
    state.set("page", 2)
    text = html(door, TASK + "?at=2")
    then = text[text.index('id="then"') : text.index('id="state-head"')]
    assert re.findall(r'class="value">(\d)<', then) == ["7", "1"]


def test_the_ribbon_has_a_bar_an_attempt_and_a_tick_a_write(door: Door) -> None:
    started(door)
    desk = door.desk()
    desk.begin("load")
    door.clock.move(seconds=10)
    door.task().set("page", 1)
    desk.report(desk.fence("load"), "crashed", crash_retries=3, error="killed")
    door.clock.move(seconds=10)
    desk.begin("load")
    text = html(door, TASK)
    assert '<rect class="bar s-crashed" x="0.0" y="6" width="500.0"' in text
    assert '<rect class="bar s-running" x="1000.0"' in text
    assert text.count('class="tick"') == 1
    assert "killed" in text


def test_a_keys_history_has_differences(door: Door) -> None:
    state = door.task()
    for number in (2, 3):
        state.set("doc", {"a": "a" * 100, "b": number})
    state.delete("doc")
    text = unescape(html(door, TASK + "?key=doc"))
    assert '<span class="plus">+   "b": 3' in text
    assert '<span class="minus">-   "b": 2' in text
    assert "There is no value under this key now" in text
    assert text.count('data-do="restore"') == 2


def test_the_job_of_a_task_has_a_card(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    door.task().set("remote_job_id", "job-1")
    text = unescape(html(door, TASK))
    assert '"job-1"' in text
    assert "asks for job" in text
    assert "The next attempt will submit a new job" in text  # what deleting it would mean


def test_a_script_has_state_and_no_run(door: Door) -> None:
    door.task().set("page", 41)
    text = html(door, TASK)
    assert "a script's: no run has this task" in unescape(text)
    assert "If it runs again" not in text


def test_a_viewer_has_nothing_to_change_with(door: Door) -> None:
    started(door)
    door.task().set("page", 41)
    door.store.asset("orders").set("watermark", 1)
    asset = f"/assets/{door.asset_id('orders')}"
    changing = re.compile(r'data-do="|<dialog id="(edit|sure)"|id="retry"')
    for path in (TASK, TASK + "?key=page", asset, "/find?go=1"):
        assert changing.search(html(door.as_role("viewer"), path)) is None
        assert changing.search(html(door.as_role("editor"), path)) is not None
    assert changing.search(html(door.as_role("editor", "etl"), asset)) is None  # an asset is everybody's


def test_what_a_token_may_not_see_is_not_there(door: Door) -> None:
    started(door)
    door.task().set("page", 41)
    other = door.as_role("viewer", "train")
    assert "No run yet" in html(other, "/")
    for path in (RUN, TASK):
        answer = other.get(path, headers={"Accept": "text/html"})
        assert (answer.status, "There is no such thing" in answer.text) == (404, True)


def test_a_stranger_is_told_how_to_log_in(door: Door) -> None:
    door.token = None
    for path in (RUN, TASK, "/assets", "/find", "/health"):
        answer = door.get(path, headers={"Accept": "text/html"})
        assert (answer.status, "outlast serve" in answer.text) == (401, True)
    assert door.get("/static/page.css").status == 200


def test_names_with_odd_characters_are_linked_as_they_are(door: Door) -> None:
    dag_id, run_id, task_id = "a b%25", "r?#&+1", "ü'<>"
    door.desk(run_id, dag_id).start(task_id)
    state = door.task(task_id, dag_id=dag_id, run_id=run_id)
    state.set('k/?&"%', 1)
    path = "/"
    for pattern in ("/runs/", "/tasks/", r"\?key="):
        found = re.search(rf'href="/\d+([^"]*{pattern}[^"]*)"', html(door, path))
        assert found is not None
        path = unescape(found[1])
    assert 'k/?&"%' in unescape(html(door, path))


def test_find_asks_what_the_form_says(door: Door) -> None:
    door.task().set_many({"page": 41, "rows": {"n": 3}})
    assert "1 entry." in html(door, "/find?key=pa*")
    assert "1 entry." in html(door, "/find?where=%24.n+%3E+2")
    assert "1 entry." in html(door, "/find?q=ow")
    assert "0 entries." in html(door, "/find?older_than=1")
    assert 'role="alert"' in html(door, "/find?where=nonsense")


def test_an_asset_shows_who_wrote_it(door: Door) -> None:
    started(door)
    door.desk().begin("load")
    task = door.store.task("etl/r1/load", attempt=1)
    task.asset("orders").set("watermark", "monday")
    assert ">orders</a>" in html(door, "/assets")
    text = html(door, f"/assets/{door.asset_id('orders')}")
    assert re.search(r'href="/\d+/tasks/etl/r1/load">etl/r1/load attempt 1</a>', text)
    assert door.get("/assets/77", headers={"Accept": "text/html"}).status == 404


def test_commands_can_be_copied(door: Door) -> None:
    door.task().set("page", 41)
    text = unescape(html(door, TASK))
    assert f"outlast state ls etl/r1/load --store {door.url}" in text
    assert f'with outlast.connect("{door.url}") as store:' in text
    assert f'curl -H "Authorization: Bearer $OUTLAST_TOKEN" \'{door.url}/api/outlast/v1/runs/etl/r1' in text


def test_there_is_no_script_and_no_style_in_a_page(door: Door) -> None:
    started(door)
    door.task().set("page", 41)
    for path in ("/", RUN, TASK, TASK + "?key=page", "/assets", "/find?go=1", "/health"):
        text = html(door, path)
        assert re.findall(r"<script(?![^>]* src=)[^>]*>", text) == []
        assert re.search(r"<style|\sstyle=|\son[a-z]+=|https?://(?!127\.0\.0\.1)", text) is None, path


def test_scripts_and_style_are_small_and_know_their_etag(door: Door) -> None:
    files = list(FOLDER.iterdir())
    assert sum(path.stat().st_size for path in files) < 80_000
    for path in files:
        first = door.get(f"/static/{path.name}")
        assert first.content == path.read_bytes()
        assert door.get(f"/static/{path.name}", headers={"If-None-Match": first.headers["ETag"]}).status == 304
    for other in ("none.js", "..%2Ffiles.py", "../files.py"):
        assert door.get(f"/static/{other}").status == 404
