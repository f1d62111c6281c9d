"""The page in a browser when the session, the server, the stream or the clock fails, and from hostile pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from outlast import connect
from outlast.requests import LIBRARY
from outlast.run_requests import DeleteRun
from outlast.token_requests import RevokeToken
from support.public import Door
from support.screen import TASK, edit, is_live, logged_in, row, save, shows, stored
from support.servers import ServerProcess

STATE = "/api/outlast/v1/runs/etl/r1/tasks/load/state"


# --- The session, the server, the clock ------------------------------------------------------------------------------


def test_a_session_that_is_revoked_loses_no_typing(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    editor = door.as_role("editor")
    page = visit(TASK, token=editor.token)
    box = edit(page, "page")
    box.fill("42")
    for number in (1, 2):  # the token, and the session it was given for
        door.store.backend.send(RevokeToken(number, LIBRARY))
    page.wait_for_timeout(1200)  # for so long a server believes what it was told of a token
    page.get_by_role("button", name="Save").click()
    page.locator("#edit-problem:not([hidden])").wait_for()
    assert (box.input_value(), stored(door, "page")[0]) == ("42", "1")
    page.wait_for_selector("#live[data-is='logged out']")
    other = page.context.new_page()
    other.goto(f"{door.url}/login")
    other.get_by_label("Token").fill(door.as_role("editor").token)
    other.get_by_role("button", name="Log in").click()
    other.wait_for_selector("nav[aria-label=Main]")
    save(page)
    assert stored(door, "page")[0] == "42"


def test_a_server_that_is_killed_loses_no_typing(chromium: Any, tmp_path: Path) -> None:
    place = tmp_path / "store.db"
    with ServerProcess(place) as server, connect(place) as store:
        state = store.task("etl/r1/load")
        state.set("page", 1)
        page = logged_in(chromium, place.with_suffix(".out"), server.url + TASK)
        edit(page, "page").fill("42")
        server.kill()
        page.get_by_role("button", name="Save").click()
        page.get_by_text("The server does not answer. Nothing is known to be changed").wait_for()
        server.start()
        save(page)
        assert state.get("page") == 42
        page.context.close()


def test_a_run_that_is_deleted_is_gone(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    desk.ran("load")
    desk.release("success")
    page = visit("/runs/etl/r1")
    is_live(page)
    door.store.backend.send(DeleteRun("etl", "r1", LIBRARY))
    page.wait_for_selector("#live[data-is=gone]")
    assert page.locator("#tasks").get_by_role("link", name="load").is_visible()


def test_a_clock_that_jumps_is_noticed(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit(TASK)
    is_live(page)
    page.evaluate("const now = Date.now; Date.now = () => now() + 3600e3;")
    row(page, "page").get_by_text("1 h").first.wait_for()
    state.set("other", 1)
    row(page, "other").wait_for()
    row(page, "page").get_by_text("now").first.wait_for()


# --- The stream ------------------------------------------------------------------------------------------------------


def test_many_tabs_in_the_background_leave_room(door: Door, visit: Any) -> None:
    door.task().set("page", 1)
    page = visit(TASK)
    page.context.add_init_script("Object.defineProperty(document, 'hidden', { get: () => true });")
    for _ in range(8):  # more than the connections a browser has to one server
        page.context.new_page().goto(door.url + TASK)
    page.reload()
    row(page, "page").wait_for()


def test_a_stream_that_tells_nothing_is_told_of(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit("/")
    page.route("**/api/outlast/v1/events*", lambda route: None)  # a proxy that keeps what it gets
    page.goto(door.url + TASK)
    page.wait_for_selector("#live[data-is=reconnecting]")
    state.set("page", 42)
    shows(page, "page", "42")


#: The first stream of a page says that it is there, and nothing more; half a minute of silence takes two seconds.
DEAF = """
const Real = EventSource, now = performance.now.bind(performance);
let streams = 0;
performance.now = () => now() * 15;
window.EventSource = class extends EventTarget {
  constructor(url) {
    super();
    if (streams++) return new Real(url);
    setTimeout(() => this.dispatchEvent(new Event("position")), 50);
  }
  close() { window.left = true; }
};
"""


def test_a_stream_that_has_gone_deaf_is_opened_anew(door: Door, visit: Any) -> None:
    state = door.task()
    state.set("page", 1)
    page = visit("/")
    page.add_init_script(DEAF)
    page.goto(door.url + TASK)
    is_live(page)
    state.set("page", 42)
    page.wait_for_function("() => window.left")
    shows(page, "page", "42")
    is_live(page)


class Elsewhere(BaseHTTPRequestHandler):
    """Another server."""

    def begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(kind: type[Elsewhere]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:  # another port: to cookies the same place
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


# --- A narrow screen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [TASK, TASK + "?at=2", "/runs/etl/r1", "/find?go=1", "/health"])
def test_no_table_is_cut_on_a_narrow_screen(door: Door, visit: Any, path: str) -> None:
    door.desk().start("load")
    door.desk().begin("load")
    state = door.store.task("etl/r1/load", attempt=1)
    state.set_many({"lines_per_second": 3290.1, "doc": {"digest": "5" * 200}, "a_long_name_of_a_key/" + "k" * 60: 1})
    state.set("page", 1)
    page = visit(path, viewport={"width": 400, "height": 800})
    tables = page.locator(".scroll:visible").evaluate_all(
        "all => all.map(each => [each.scrollWidth, each.clientWidth])"
    )
    assert tables
    assert [wide for wide, room in tables if wide > room] == []


def test_a_long_key_leaves_room_for_its_value(door: Door, visit: Any) -> None:
    door.task().set("a_long_name_of_a_key/" + "k" * 60, {"digest": "5" * 50})
    page = visit(TASK, viewport={"width": 1200, "height": 800})
    assert page.locator("#state .scroll").evaluate("each => each.scrollWidth - each.clientWidth") == 0
    assert page.locator("#state code.value").evaluate("each => each.clientWidth") > 200


# --- Without scripts, from elsewhere ---------------------------------------------------------------------------------


def test_without_scripts_it_can_be_read_and_says_so(door: Door, visit: Any) -> None:
    door.task().set("page", 41)
    page = visit(TASK, java_script_enabled=False)
    assert "Scripts are switched off" in page.locator("body").inner_text()
    assert "41" in page.locator("#state").inner_text()
    assert page.locator("button:visible").all_inner_texts() == ["Filter", "Log out"]


ATTACK = """<script>
const ask = (path, options) => fetch(URL + path, { credentials: "include", ...options });
const script = document.createElement("script");
const tries = [
  ask(STATE + "/page", { method: "PUT", headers: { "Content-Type": "application/json" }, body: '{"value":666}' }),
  ask(RUN + "/clear", { method: "POST", mode: "no-cors", body: '{"tasks":["load"]}' }),
  ask("/api/outlast/v1/export").then((answer) => answer.text()),
  ask("/logout", { method: "POST", mode: "no-cors" }),
  new Promise((done, failed) => Object.assign(script, { src: URL + "/static/page.js", onload: done, onerror: failed })),
];
document.head.append(script);
Promise.allSettled(tries).then((told) => { document.title = told.map((each) => each.status).join(" "); });
</script><iframe src="URL/"></iframe><form method="post" action="URL/api/outlast/v1/runs/etl/r1/cancel"></form>"""


def test_another_page_of_the_same_machine_changes_and_reads_nothing(door: Door, visit: Any) -> None:
    desk = door.desk()
    desk.start("load")
    desk.ran("load", "failed")
    door.task().set("page", 1)
    page = visit(TASK)
    attack = ATTACK.replace("URL/", f"{door.url}/").replace("URL", f'"{door.url}"').replace("STATE", f'"{STATE}"')
    attack = attack.replace("RUN", '"/api/outlast/v1/runs/etl/r1"')

    class Evil(Elsewhere):
        def do_GET(self) -> None:
            self.begin("text/html")
            self.wfile.write(attack.encode())

    with served(Evil) as url:
        other = page.context.new_page()
        other.goto(url)
        other.wait_for_function("document.title !== ''")
        assert other.title() == " ".join(["rejected"] * 5)
        assert "Runs" not in other.frames[1].content()
        other.evaluate("document.forms[0].submit()")
        other.wait_for_load_state()
    assert stored(door, "page")[0] == "1"
    assert desk.task("load").state == "failed"
    assert desk.run.state == "running"
    page.reload()
    row(page, "page").wait_for()  # still logged in
