"""The page follows the store: while a DAG runs and its workers are killed, and while the server or the way is away.

| what it shows | tests |
| --- | --- |
| 2, 3 live, with kills | test_a_run_is_killed_underneath, test_attempts_that_crash_are_followed |
| 3 state, live | test_a_write_appears_by_itself |
| 6 a retry, executed | test_what_is_cleared_on_the_page_is_run |
| all of them, in one demo | test_the_demo_shows_it_all |
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from support.public import Door
from support.remote import Remote
from support.running import Ground, processes_with
from support.screen import TASK, is_live, link_of, logged_in, row, shows, sure
from support.servers import ServerProcess

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo_ui.py"


def test_a_write_appears_by_itself(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 41)
    page = visit(TASK)
    is_live(page)
    state.set("page", 42)
    shows(page, "page", "42")


def test_attempts_that_crash_are_followed(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    page = visit(TASK)
    is_live(page)
    for attempt in (1, 2):
        desk.begin("load")
        page.locator("#ribbon .lane").nth(attempt - 1).wait_for()
        door.store.task("etl/r1/load").set("page", attempt)
        door.clock.move(seconds=5)
        desk.report(desk.fence("load"), "crashed", crash_retries=5, error="killed")
    page.locator("#ribbon .bar.s-crashed").nth(1).wait_for()
    assert page.locator("#summary dd").nth(1).inner_text().startswith("2 (0 failed, 2 crashed)")


def test_what_happens_while_the_network_is_away_is_caught_up_with(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK)
    is_live(page)
    page.context.set_offline(True)
    state.set("page", 42)
    page.wait_for_selector("#live[data-is=stale]")
    page.context.set_offline(False)
    shows(page, "page", "42")
    is_live(page)


def test_a_lost_stream_falls_back_to_looking_and_comes_back(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit("/")
    page.route("**/api/outlast/v1/events*", lambda route: route.abort())
    page.goto(door.url + TASK)
    page.wait_for_selector("#live[data-is=reconnecting]")
    for number in range(2, 12):
        state.set("page", number)
    shows(page, "page", "11")
    assert page.locator("#live").get_attribute("data-is") == "reconnecting"
    page.unroute("**/api/outlast/v1/events*")
    is_live(page)
    state.set("page", 42)
    shows(page, "page", "42")


def test_a_restart_of_the_server_is_seen_and_nothing_is_missed(chromium: Any, tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with ServerProcess(place) as server, connect(place) as store:
        state = store.task("etl/r1/load")
        state.set_many({"page": 1, "gone": 1})
        page = logged_in(chromium, place.with_suffix(".out"), server.url + TASK)
        is_live(page)
        server.kill()
        page.wait_for_selector("#live[data-is=stale], #live[data-is=reconnecting]")
        for number in range(2, 43):
            state.set("page", number)
        state.delete("gone")
        server.start()
        is_live(page, 20)  # the same session, and no other login
        shows(page, "page", "42")
        assert row(page, "gone").count() == 0
        state.set("page", 43)
        shows(page, "page", "43")
        page.context.close()


# --- A DAG that really runs, and is really killed ------------------------------------------------------------------

PAGES = """
with DAG("d"):
    @task
    def load(task_state_store=None, ti=None):
        for page in task_state_store.checkpoint(range(1, 41)):
            mark(f"{ti.try_number} {page}")
            task_state_store.set("last_page", page)
            wait_for({10: "first", 20: "second"}.get(page, "."))
            time.sleep(0.05)

    load()
"""
LOAD = "/tasks/d/r/load"


@pytest.fixture
def remote() -> Iterator[Remote]:
    place = Remote()
    yield place
    place.close()


def test_a_run_is_killed_underneath(remote: Remote, chromium: Any) -> None:
    remote.dag(PAGES)
    remote.start("--run-id", "r", "--keep")
    remote.until_state("load", "running")
    page = logged_in(chromium, remote.server.store.with_suffix(".out"), remote.server.url + LOAD)
    shows(page, "last_page", "10")
    is_live(page)
    _kill(remote, 1)
    page.locator("#ribbon .bar.s-crashed").wait_for()
    page.locator("#ribbon .lane").nth(1).wait_for()
    (remote.folder / "first").touch()
    shows(page, "last_page", "20")
    summary = page.locator("#summary")  # the page alone says why it was retried, and where it went on
    summary.get_by_text(
        re.compile(r"Attempt 1 died after item 9 .*SIGKILL.* Attempt 2 went on after item 9 ")
    ).wait_for()
    _kill(remote, 2, supervisor=True)
    page.locator("#ribbon .bar.s-crashed").nth(1).wait_for()
    (remote.folder / "second").touch()
    page.locator("#summary .s-success").wait_for()
    page.get_by_text("Attempts as a table").click()
    said = page.locator("#ribbon").inner_text()
    assert "the process was killed by SIGKILL" in said
    assert "its supervisor was killed by SIGKILL" in said
    assert "40 / 40" in page.locator("#summary").inner_text()
    first = dict(line.split() for line in reversed(remote.marks))
    assert first == {"1": "1", "2": "10", "3": "20"}  # the page each attempt began with
    page.goto(f"{remote.server.url}/runs/d/r")
    page.locator("#summary .s-success").wait_for()
    page.context.close()


def _kill(remote: Remote, attempt: int, supervisor: bool = False) -> None:
    """Send SIGKILL to what runs an attempt."""
    task = remote.until(lambda: (found := remote.task("load")).child and found.attempt == attempt and found)
    if supervisor:
        os.kill(task.supervisor.pid, signal.SIGKILL)
    os.kill(task.child.pid, signal.SIGKILL)
    remote.until(lambda: remote.task("load").attempt > attempt)


def test_what_is_cleared_on_the_page_is_run(remote: Remote, chromium: Any) -> None:
    for name in ("first", "second"):
        (remote.folder / name).touch()
    remote.dag(PAGES)
    remote.start("--run-id", "r", "--keep")
    remote.until_state("load", "success")
    page = logged_in(chromium, remote.server.store.with_suffix(".out"), remote.server.url + LOAD)
    page.get_by_label("discard it").check()
    page.get_by_role("button", name="Run again …").click()
    sure(page)
    remote.until_state("load", "success", 2)
    page.locator("#ribbon .lane").nth(1).wait_for()
    page.locator("#summary .s-success").wait_for()
    page.context.close()


def test_a_run_shows_its_own_page(tmp_path: Path, chromium: Any) -> None:
    ground = Ground(tmp_path / "ground")
    try:
        ground.dag(PAGES)
        program = ground.start("--run-id", "r", "--ui", env={"OUTLAST__SERVER__PORT": "0"})
        ground.until(lambda: "once=" in program.err)
        url = re.search(r"page is at (http\S+);", program.err)
        assert url is not None
        page = logged_in(chromium, program.said, url[1] + LOAD)
        shows(page, "last_page", "10")
        for name in ("first", "second"):
            (ground.folder / name).touch()
        assert program.ends().status == 0
        page.wait_for_selector("#live[data-is=stale]")
        page.context.close()
        assert ground.left_soon() == []
    finally:
        ground.close()


def test_a_server_has_its_own_page(remote: Remote) -> None:
    remote.dag(PAGES)
    told = remote.run("--run-id", "r", "--ui")
    assert told.status == 65
    assert "which has the page already" in told.err


# --- The demo ------------------------------------------------------------------------------------------------------


def test_the_demo_shows_it_all(tmp_path: Path, chromium: Any) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    said = tmp_path / "said"
    with open(said, "wb") as out:
        command = [sys.executable, "-P", str(DEMO), "--once", "--pace", "0.1"]
        demo = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    try:
        while "once=" not in said.read_text():
            assert demo.poll() is None, said.read_text()
            time.sleep(0.05)
        page = logged_in(chromium, said, link_of(said).partition("/login")[0])
        page.get_by_role("link", name="tonight").click(timeout=60_000)
        page.locator(".square.s-failed").first.wait_for(timeout=60_000)
        assert page.locator(".square").count() == 40
        assert demo.wait(90) == 0, said.read_text()
        page.context.close()
    finally:
        demo.terminate()
        demo.wait(60)
    assert "as it must be" in said.read_text()
    assert list(tmp_path.glob("outlast-ui-*")) == []


def test_the_demo_ends_with_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    demo = subprocess.Popen(
        [sys.executable, "-P", str(DEMO)], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert demo.stdout is not None
    said = ""
    while "--dag crawl --run-id tuesday" not in said:
        said += demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=60)
    assert "everything it made is removed" in rest
    assert demo.returncode == 0
    assert list(tmp_path.glob("outlast-ui-*")) == []
    deadline = time.monotonic() + 10
    while left := processes_with(f"TMPDIR={tmp_path}"):  # what has been told to end may need a moment
        assert time.monotonic() < deadline, [Path(f"/proc/{number}/cmdline").read_bytes() for number in left]
        time.sleep(0.05)
