"""A store behind a server, as a program that has connected to it sees it: lost answers, restarts, forks, tokens."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast import BackendError, ConfigError, Conflict, StaleAttempt, Store, Unauthorized, connect
from outlast.backends.connections import Place
from outlast.backends.outage import Outage
from outlast.config import ClientSettings, Config, load
from outlast.run_requests import ListRuns
from support.homes import settings
from support.runs import Desk
from support.servers import Proxy, ServerProcess, house

pytestmark = pytest.mark.http


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A store behind this process's server: its URL, and an admin's token."""
    url, token = house().move_in(connect(tmp_path / "store.db", config=settings()))
    yield url, token
    house().move_out(url)


@pytest.fixture
def proxy(served: tuple[str, str]) -> Iterator[Proxy]:
    """What stands between client and server."""
    with Proxy(house().url) as proxy:
        yield proxy


def opened(url: str, token: str | None, retry_for: float = 10.0, **client: Any) -> Store:
    return connect(url, config=Config(client=ClientSettings(token=token, retry_for=retry_for, **client)))


def behind(proxy: Proxy, served: tuple[str, str], **client: Any) -> Store:
    """Connect through the proxy."""
    return opened(proxy.url + "/" + served[0].rpartition("/")[2], served[1], **client)


# --- lost on the way ---------------------------------------------------------------------------------------


def test_a_lost_answer_is_asked_for_again_and_the_write_applied_once(proxy: Proxy, served: tuple[str, str]) -> None:
    """Contract 4.6."""
    state = behind(proxy, served).task("dag/run/task")
    state.increment("number")
    proxy.lose_answers = 2
    assert state.increment("number") == 2
    assert proxy.lose_answers == 0
    assert state.get("number") == 2
    assert [version.value for version in state.history("number")] == [2, 1]


def test_a_comparison_that_succeeded_but_whose_answer_was_lost_is_no_conflict(
    proxy: Proxy, served: tuple[str, str]
) -> None:
    state = behind(proxy, served).task("dag/run/task")
    proxy.lose_answers = 1
    state.compare_and_set("key", 1, revision=None)
    assert state.entry("key").revision == 1  # type: ignore[union-attr]
    with pytest.raises(Conflict):
        state.compare_and_set("key", 2, revision=None)


def test_a_new_attempt_whose_answer_was_lost_is_opened_once(proxy: Proxy, served: tuple[str, str]) -> None:
    store = behind(proxy, served)
    proxy.lose_answers = 1
    first = store.task("dag/run/task", attempt="new")
    assert first.attempt == 1
    first.set("key", 1)


def test_a_run_whose_answer_was_lost_is_started_and_begun_once(proxy: Proxy, served: tuple[str, str]) -> None:
    store = behind(proxy, served)
    desk = Desk(store.backend)
    proxy.lose_answers = 1
    desk.start("extract")
    proxy.lose_answers = 1
    assert desk.begin("extract", after=0).attempt == 1
    proxy.lose_answers = 1
    assert desk.report(desk.fence("extract"), "failed", retries=3).failures == 1
    assert len(store.backend.send(ListRuns()).runs) == 1


def test_a_lost_request_is_sent_again(proxy: Proxy, served: tuple[str, str]) -> None:
    state = behind(proxy, served).task("dag/run/task")
    proxy.lose_requests = 2
    assert state.increment("number") == 1


def test_awaiting_too(proxy: Proxy, served: tuple[str, str]) -> None:
    async def main() -> list[int]:
        state = behind(proxy, served).task("dag/run/task")
        proxy.lose_answers = 2
        return [await state.aincrement("number"), await state.aincrement("number")]

    assert asyncio.run(main()) == [1, 2]


def test_an_await_that_is_cancelled_between_two_tries_ends_at_once() -> None:
    async def main() -> float:
        state = opened("http://127.0.0.1:1", "token", 30.0).task("dag/run/task")
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await state.aget("key")
        return time.monotonic() - began

    assert asyncio.run(main()) < 5


# --- nobody there ------------------------------------------------------------------------------------------


def test_a_server_that_does_not_come_is_a_backend_error_and_nothing_was_written() -> None:
    """Contract 4.6: it never reads as absent."""
    state = opened("http://127.0.0.1:1", "token", 0.3).task("dag/run/task")
    began = time.monotonic()
    with pytest.raises(BackendError, match=r"127\.0\.0\.1:1 .*nothing was written; tried for 0\.3 s") as caught:
        state.set("key", 1)
    assert caught.value.outcome == "failed"
    assert 0.25 < time.monotonic() - began < 5
    with pytest.raises(BackendError):
        state.get("key", "absent")


def test_a_write_whose_answer_never_came_is_of_unknown_outcome(proxy: Proxy, served: tuple[str, str]) -> None:
    """Contract 4.6."""
    store = behind(proxy, served, retry_for=0.2)
    proxy.lose_answers = 1000
    with pytest.raises(BackendError, match="may have happened") as caught:
        store.task("dag/run/task").set("key", 1)
    assert caught.value.outcome == "unknown"
    with pytest.raises(BackendError) as caught:
        store.task("dag/run/task").get("key")
    assert caught.value.outcome == "failed"


def test_a_call_waits_for_a_server_that_starts_meanwhile(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store.db")
    with server:
        connect(server.url).task("dag/run/task").set("key", 1)
        server.stop()
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.append(connect(server.url).task("dag/run/task").get("key")))
        reading.start()
        time.sleep(0.2)
        server.start()
        reading.join(20)
        assert found == [1]


def test_an_answer_that_does_not_come_in_time_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        state = opened(f"http://127.0.0.1:{port}", "token", 0.0, timeout=0.2).task("dag/run/task")
        with pytest.raises(BackendError, match=r"no answer within 0\.2 s") as caught:
            state.set("key", 1)
        assert caught.value.outcome == "unknown"


def test_a_closed_store_says_so(served: tuple[str, str]) -> None:
    store = opened(*served)
    state = store.task("dag/run/task")
    state.set("key", 1)
    store.close()
    store.close()
    with pytest.raises(BackendError, match="was closed; connect again"):
        state.get("key")


# --- real servers ------------------------------------------------------------------------------------------


def test_through_a_unix_socket(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db", uds=tmp_path / "socket") as server, connect(server.url) as store:
        old = store.task("dag/run/task", attempt="new")
        old.set("key", {"a": 2**70})
        assert old.get("key") == {"a": 2**70}
        store.task("dag/run/task", attempt="new")
        with pytest.raises(StaleAttempt):
            old.get("key")


def test_clients_go_on_when_the_server_is_restarted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db") as server, connect(server.url) as store:
        state = store.task("dag/run/task", attempt="new")
        state.set("key", 1)
        assert server.stop()[0] == 0
        server.start()
        assert state.get("key") == 1
        state.set("key", 2)


def test_every_acknowledged_commit_outlives_a_killed_server_and_none_is_there_twice(tmp_path: Path) -> None:
    """Contract 4.5, 4.6: killed in mid-traffic, three times."""
    acknowledged: dict[int, list[int]] = {number: [] for number in range(4)}
    stop = threading.Event()

    def write(number: int) -> None:
        state = connect(server.url).task(f"dag/run/task{number}")
        while not stop.is_set():
            acknowledged[number].append(state.increment("number"))

    with ServerProcess(tmp_path / "store.db") as server:
        writers = [threading.Thread(target=write, args=(number,)) for number in acknowledged]
        for writer in writers:
            writer.start()
        for _ in range(3):
            time.sleep(0.3)
            server.kill()
            server.start()
        time.sleep(0.2)
        stop.set()
        for writer in writers:
            writer.join(40)
    assert all(len(answers) > 5 for answers in acknowledged.values())
    for number, answers in acknowledged.items():
        assert answers == list(range(1, len(answers) + 1))
        assert connect(tmp_path / "store.db").task(f"dag/run/task{number}").get("number") == len(answers)


# --- connections -------------------------------------------------------------------------------------------


def test_nothing_is_opened_before_the_first_call_and_then_kept(proxy: Proxy, served: tuple[str, str]) -> None:
    store = behind(proxy, served)
    time.sleep(0.05)
    assert proxy.connections == 0
    for _ in range(5):
        store.task("dag/run/task").set("key", 1)
    assert (proxy.connections, proxy.requests) == (1, 5)


def test_each_thread_that_calls_at_the_same_time_has_a_connection_of_its_own(
    proxy: Proxy, served: tuple[str, str]
) -> None:
    state = behind(proxy, served).task("dag/run/task")
    threads = [
        threading.Thread(target=lambda: [state.increment("number") for _ in range(20)], daemon=True) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert state.get("number") == 80
    assert 1 <= proxy.connections <= 4


def test_a_forked_child_opens_its_own_connection(proxy: Proxy, served: tuple[str, str]) -> None:
    state = behind(proxy, served).task("dag/run/task")
    state.set("key", 0)
    child = os.fork()
    if child == 0:
        try:
            for _ in range(20):
                state.increment("child")
            os._exit(0)
        finally:
            os._exit(1)
    for _ in range(20):
        state.increment("parent")
    assert os.waitpid(child, 0)[1] == 0
    assert state.items() == [("child", 20), ("key", 0), ("parent", 20)]
    assert proxy.connections == 2


def test_a_connection_the_server_has_closed_is_not_used(proxy: Proxy, served: tuple[str, str]) -> None:
    store = behind(proxy, served, retry_for=0.0)
    state = store.task("dag/run/task")
    state.set("key", 1)
    backend: Any = store.backend
    idle, _ = backend._pool._idle[0]
    idle.shutdown(socket.SHUT_RD)  # as if its end had come
    state.set("key", 2)
    assert proxy.connections == 2
    assert state.entry("key").revision == 2  # type: ignore[union-attr]


# --- whom a token is shown to ------------------------------------------------------------------------------


def answering(answer: bytes) -> tuple[socket.socket, list[bytes]]:
    """Answer every request with the same bytes; return what was asked."""
    listener, asked = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                asked.append(client.recv(65536))
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener, asked


def test_a_redirect_is_not_followed() -> None:
    elsewhere, carried = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    there = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/"
    answer = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n"
    listener, _ = answering(answer.encode())
    with listener, elsewhere, pytest.raises(ConfigError, match="redirect"):
        opened(f"http://127.0.0.1:{listener.getsockname()[1]}", "secret", 2.0).task("dag/run/task").get("key")
    assert carried == []


def test_a_place_that_is_no_outlast_server_is_said_to_be_none() -> None:
    listener, _ = answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>")
    with listener, pytest.raises(ConfigError, match="answers 404"):
        opened(f"http://127.0.0.1:{listener.getsockname()[1]}", "secret", 2.0).task("dag/run/task").get("key")


def test_a_proxy_whose_server_is_away_is_asked_again() -> None:
    listener, asked = answering(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    with listener, pytest.raises(BackendError, match="answered 502") as caught:
        opened(f"http://127.0.0.1:{listener.getsockname()[1]}", "secret", 0.3).task("dag/run/task").set("key", 1)
    assert len(asked) > 1
    assert caught.value.outcome == "unknown"


def test_without_a_token_or_with_a_wrong_one_nothing_is_answered(served: tuple[str, str]) -> None:
    for token in (None, "outl_a_" + "0" * 43, "nonsense"):
        with pytest.raises(Unauthorized):
            opened(served[0], token).task("dag/run/task").get("key")


def test_the_token_of_the_environment_is_shown(served: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_TOKEN", served[1])
    connect(served[0]).task("dag/run/task").set("key", 1)
    shown = [setting for setting in load().explain() if setting.key == "token"]
    assert [(setting.value, setting.origin) for setting in shown] == [("***", "OUTLAST_TOKEN")]
    assert served[1] not in repr(load())


def test_a_token_that_others_could_read_is_not_used(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db") as server:
        (left,) = (Path(os.environ["XDG_STATE_HOME"]) / "outlast" / "servers").iterdir()
        assert left.stat().st_mode & 0o777 == 0o600
        left.chmod(0o644)
        with pytest.raises(Unauthorized):
            connect(server.url).task("dag/run/task").get("key")


def test_a_token_with_a_line_break_in_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="OUTLAST_TOKEN") as caught:
        opened("http://127.0.0.1:1", "secret\r\nHost: elsewhere")
    assert "secret" not in caught.value.message


# --- places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://host", Place("http", "host", 80, "")),
        ("https://host:8443/outlast/", Place("https", "host", 8443, "/outlast")),
        ("http://[::1]:8765", Place("http", "::1", 8765, "")),
        ("unix:///run/a%20b.sock", Place("unix", "/run/a b.sock", 0, "")),
    ],
)
def test_places(url: str, place: Place) -> None:
    assert Place.of(url) == place


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://host:none",
        "http://user:secret@host",
        "http://outl_v_secret@host",
        "https://outl_v_secret:x@host:8765/outlast",
        "http://host?token=secret",
        "unix://relative.sock",
        "unix:///",
    ],
)
def test_what_is_no_place(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url)
    assert "secret" not in caught.value.message


def test_a_program_with_a_file_loads_nothing_of_it(tmp_path: Path) -> None:
    program = (
        "import sys, outlast\n"
        "outlast.connect('store.db').task('d/r/t').set('k', 1)\n"
        "strange = {'http.client', 'ssl', 'fastapi', 'uvicorn', 'jwt', 'outlast.wire'} & set(sys.modules)\n"
        "sys.exit(repr(strange) if strange else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


# --- a server that is away ---------------------------------------------------------------------------------


def test_who_waits_for_a_server_is_told_once_and_again_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = ServerProcess(tmp_path / "store.db")
    with server:
        store = connect(server.url)
        state = store.task("d/r/t")
        state.set("key", 1)
        server.kill()
        backend: Any = store.backend
        backend.outage.goes_on()
        assert caplog.messages == []  # a moment is not worth a word
        backend.outage._since -= 3
        threading.Timer(0.3, server.start).start()
        state.set("key", 2)
    assert re.fullmatch(
        rf"{server.url} cannot be reached; trying for up to 30 s\n{server.url} is back after \d+ s",
        "\n".join(caplog.messages),
    )
    assert {(record.name, record.levelname) for record in caplog.records} == {("outlast", "WARNING")}


def test_absences_that_are_over_do_not_add_up(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("http://there", 1.0)
    outage.goes_on()
    outage._since -= 60  # type: ignore[operator]
    outage.goes_on()
    outage.over()
    outage.goes_on()
    assert caplog.messages == []


# --- secrets -----------------------------------------------------------------------------------------------


def test_a_program_gets_true_values_and_a_terminal_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the server knows which keys are secret."""
    url, token = house().move_in(connect(tmp_path / "store.db", config=settings(secret_keys=("*password",))))
    try:
        state = opened(url, token).task("d/r/t")
        state.set("db_password", "hunter2")
        state.set("db_password", "hunter3")
        assert state.get("db_password") == "hunter3"
        monkeypatch.setenv("OUTLAST_TOKEN", token)
        monkeypatch.setenv("OUTLAST_URL", url)
        key = ("d/r/t", "db_password")
        for command in (["get", *key], ["ls", "d/r/t"], ["history", *key], ["find"]):
            shown, revealed = told("state", *command), told("state", *command, "--reveal")
            assert "hunter" not in shown
            assert "***" in shown
            assert "hunter3" in revealed, command
            listed = msgspec.json.decode(told("state", *command, "--json"))
            documents = listed if isinstance(listed, list) else [listed]
            assert {(one["value"], one["masked"]) for one in documents} == {(None, True)}
        assert "hunter" not in told("audit")
        assert "--reveal shows it" in told("state", "get", *key)
        assert "db_password = ***" in told("state", "restore", "d/r/t", "db_password", "1")  # acts on what is not shown
        assert state.get("db_password") == "hunter2"
    finally:
        house().move_out(url)


def told(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "outlast.cli", *words], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout + done.stderr
