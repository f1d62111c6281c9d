"""`outlast serve`: where it listens, who may, how it ends, and what it says."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast import BackendError, ConfigError, Unauthorized, connect
from outlast.config import ClientSettings, Config, ServerSettings, load
from outlast.server.listening import bound, is_local
from outlast.server.logs import JSONLines, Lines
from outlast.server.refusals import Refusals
from outlast.server.serving import serve
from support.servers import ServerProcess, free_port

MAKE_CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    " -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
)

pytestmark = pytest.mark.http


def outlast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outlast.cli", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def folder() -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "outlast" / "servers"


def test_on_ones_own_machine_nothing_needs_configuring(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db") as server:
        connect(server.url).task("dag/run/task").set("key", 1)
        assert outlast("state", "get", "dag/run/task", "key", "--store", server.url).stdout == "1\n"
        (left,) = folder().iterdir()
        assert left.stat().st_mode & 0o777 == 0o600
        status, said, _ = server.stop()
        assert status == 0
        assert said.startswith(f"Serving at {server.url} (Ctrl-C stops it).\n")
        assert f"{server.url}/login?once=" in said
    assert list(folder().iterdir()) == []


def test_the_token_of_a_server_that_was_killed_is_good_for_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db") as server:
        (left,) = folder().iterdir()
        before = left.read_text().strip()
        server.kill()
        server.start()
        with pytest.raises(Unauthorized):
            connect(server.url, config=Config(client=ClientSettings(token=before))).task("d/r/t").get("key")
        assert connect(server.url).task("d/r/t").get("key") is None


def test_another_address_needs_a_token_to_exist(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    refused = outlast("serve", "--store", store, "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 78
    assert "outlast token create" in refused.stderr
    assert outlast("token", "create", "--store", store, "--role", "viewer", "--name", "vic").returncode == 0
    with ServerProcess(tmp_path / "store.db", "--host", "0.0.0.0") as server:
        with pytest.raises(Unauthorized):
            connect(server.url).task("d/r/t").get("key")
        assert not folder().exists()
        assert "login?once" not in server.stop()[1]


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.7", False),
        ("example.test", False),
    ],
)
def test_which_addresses_are_this_machines_own(host: str, local: bool) -> None:
    assert is_local(ServerSettings(host=host)) is local


def test_a_port_that_is_taken_is_a_mistake_said_plainly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused = outlast("serve", "--store", str(tmp_path / "store.db"), "--port", port)
    assert refused.returncode == 78
    assert "--port" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_server_cannot_serve_a_server() -> None:
    refused = outlast("serve", "--store", "http://127.0.0.1:8765", "--port", "0")
    assert refused.returncode == 65
    assert "--store" in refused.stderr


def test_the_socket_of_a_killed_server_is_taken_over_but_not_a_file_nor_a_living_ones(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with ServerProcess(tmp_path / "store.db", uds=path) as server:
        with pytest.raises(ConfigError, match="another server"):
            bound(ServerSettings(uds=str(path)))
        server.kill()
        assert path.exists()
        server.start()
        connect(server.url).task("d/r/t").set("key", 1)
        server.stop()
        assert not path.exists()
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        bound(ServerSettings(uds=str(path)))
    assert path.read_text() == "mine"


def test_a_server_that_drains_leaves_its_successor_s_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old, new = (ServerProcess(tmp_path / name, uds=path) for name in ("old.db", "new.db"))
    with old:
        assert old.process is not None
        slow = socket.socket(socket.AF_UNIX)
        slow.connect(str(path))
        slow.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n")
        slow.sendall(b"Content-Length: 9\r\n\r\nto")
        time.sleep(0.3)
        old.process.send_signal(signal.SIGTERM)
        until_refused(path)
        with new:
            slow.sendall(b"ken=abc")
            slow.close()
            assert old.process.wait(20) == 0
            connect(new.url).task("d/r/t").set("key", 1)
            new.stop()
        assert not path.exists()


def until_refused(path: Path) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as other:
            try:
                other.connect(str(path))
            except ConnectionRefusedError:
                return
        time.sleep(0.01)
    raise AssertionError("it still listens")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_lets_calls_in_flight_end(tmp_path: Path, number: signal.Signals) -> None:
    """A commit that waits for another process's write is answered before the server has gone."""
    import apsw

    with ServerProcess(tmp_path / "store.db") as server:
        state = connect(
            server.url, config=Config(client=ClientSettings(retry_for=0.0), state_folder=load().state_folder)
        ).task("d/r/t")
        state.set("key", 0)
        other = apsw.Connection(str(tmp_path / "store.db"))
        other.execute("begin immediate")
        done: list[float] = []
        writing = threading.Thread(target=lambda: (state.set("key", 1), done.append(time.monotonic())))
        writing.start()
        time.sleep(0.3)
        assert server.process is not None
        server.process.send_signal(number)
        time.sleep(0.3)
        assert done == []
        other.execute("rollback")
        other.close()
        writing.join(20)
        assert len(done) == 1
        assert server.process.wait(20) == 0
    assert connect(tmp_path / "store.db").task("d/r/t").get("key") == 1


def test_logs_are_lines_of_json_without_secrets(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db", "--log-json") as server:
        token = next(folder().iterdir()).read_text().strip()
        state = connect(server.url).task("d/r/t")
        state.set("key", "hunter2")
        with pytest.raises(Unauthorized):
            connect(server.url, config=Config(client=ClientSettings(token="wrong"))).task("d/r/t").get("key")
        logged = server.stop()[2]
    lines = [msgspec.json.decode(line) for line in logged.splitlines() if line.startswith("{")]
    assert {"at", "level", "logger", "message"} <= set(lines[0])
    for secret in (token, "hunter2", "wrong"):
        assert secret not in logged


def test_under_a_path_whether_or_not_the_proxy_takes_it_away(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db", "--root-path", "/outlast") as server:
        connect(server.url + "/outlast").task("d/r/t").set("key", 1)
        assert connect(server.url).task("d/r/t").get("key") == 1
        connection = http.client.HTTPConnection(*server.url.removeprefix("http://").split(":"), timeout=10)
        for path in ("/outlast", "/outlast/", "/"):
            connection.request("GET", path, headers={"Accept": "text/html"})
            answer = connection.getresponse()
            assert answer.status == 200
            assert b'action="/outlast/login"' in answer.read()
        connection.close()
    refused = outlast("serve", "--store", str(tmp_path / "store.db"), "--root-path", "outlast/")
    assert refused.returncode == 65
    assert "--root-path 'outlast/' is no path to be shown under; write one that begins with /" in refused.stderr


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("/a b", "is of letters, digits and - . _ ~"),
        ("/ü", "is of letters, digits and - . _ ~"),
        ("/a;b", "is of letters, digits and - . _ ~"),
        ("/%41", "is of letters, digits and - . _ ~"),
        ("/x/..", "is of letters, digits and - . _ ~"),
        ("/.", "is of letters, digits and - . _ ~"),
        ("/api", "has paths of its own that begin like that"),
        ("/static/x", "has paths of its own that begin like that"),
        ("/execution", "has paths of its own that begin like that"),
    ],
)
def test_a_path_that_could_mean_two_things_is_refused(tmp_path: Path, root: str, why: str) -> None:
    def announce(url: str, link: str | None) -> None:
        raise AssertionError(url)

    path = tmp_path / "socket"
    with connect(tmp_path / "store.db") as store, pytest.raises(ConfigError) as refused:
        serve(store, ServerSettings(uds=str(path), root_path=root), announce)
    assert refused.value.message.startswith(f"cannot be shown under {root!r}")
    assert why in refused.value.message
    assert not path.exists()


@pytest.mark.parametrize("root", ["/outlast", "/a/b-c.d_~", "/apis", "/..x"])
def test_under_a_path_the_root_may_come_percent_encoded(tmp_path: Path, root: str) -> None:
    with ServerProcess(tmp_path / "store.db", "--root-path", root) as server:
        state = connect(server.url + root).task("d/r/t")
        state.set("key", 1)
        token = next(folder().iterdir()).read_text().strip()
        connection = http.client.HTTPConnection(*server.url.removeprefix("http://").split(":"), timeout=10)
        for shown in (root, "", root.replace(root[-1], f"%{ord(root[-1]):02X}")):
            path = f"{shown}/api/outlast/v1/runs/d/r/tasks/t/state/key"
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            assert (shown, answer.status) == (shown, 200)
        connection.close()


def certificate_in(folder: Path) -> Path:
    """Make a certificate, with its key in a file of its own."""
    made = subprocess.run(
        [*MAKE_CERTIFICATE.split(), "-keyout", str(folder / "key.pem"), "-out", str(folder / "site.pem")],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("optional: openssl is not installed")
    return folder / "site.pem"


def test_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = certificate_in(tmp_path)
    options = ("--tls-cert", str(certificate), "--tls-key", str(tmp_path / "key.pem"))
    with ServerProcess(tmp_path / "store.db", *options) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(BackendError, match=r"cannot be reached.*CERTIFICATE") as caught:
            connect(url, config=Config(client=ClientSettings(token="none"))).task("d/r/t").get("key")
        assert "is the server running" not in str(caught.value)
        assert "[client] ca_file" in str(caught.value)
        trusting = Config(client=ClientSettings(token="wrong", ca_file=str(certificate)))
        with pytest.raises(Unauthorized):
            connect(url, config=trusting).task("d/r/t").get("key")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        connect(url).task("d/r/t").set("key", 1)
        assert connect(url).task("d/r/t").get("key") == 1


def test_a_client_that_speaks_tls_to_who_does_not_or_the_reverse_is_told_at_once(tmp_path: Path) -> None:
    certificate = certificate_in(tmp_path)
    patient = Config(client=ClientSettings(token="none", retry_for=30.0))
    options = ("--tls-cert", str(certificate), "--tls-key", str(tmp_path / "key.pem"))
    began = time.monotonic()
    with ServerProcess(tmp_path / "tls.db", *options) as server, ServerProcess(tmp_path / "plain.db") as plain:
        with pytest.raises(ConfigError, match=r"^http://.* expects TLS; write https://"):
            connect(server.url, config=patient).task("d/r/t").get("key")
        with pytest.raises(ConfigError, match=r"^https://.* answers without TLS; write http://"):
            connect(plain.url.replace("http:", "https:"), config=patient).task("d/r/t").get("key")
        assert time.monotonic() - began < 15


def test_a_certificate_without_its_key_or_with_anothers_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, other = certificate_in(tmp_path), certificate_in(tmp_path / "other").with_name("key.pem")
    place = ("serve", "--store", str(tmp_path / "s.db"), "--port", "0", "--tls-cert", str(certificate))
    alone, foreign = outlast(*place), outlast(*place, "--tls-key", str(other))
    missing = outlast(*place, "--tls-key", str(tmp_path / "none.pem"))
    assert [told.returncode for told in (alone, foreign, missing)] == [78, 78, 78]
    assert "site.pem has no private key in it; name the file that has it with --tls-key" in alone.stderr
    assert f"the key in {other} is not that of {certificate}" in foreign.stderr
    assert "none.pem cannot be read: No such file" in missing.stderr


def test_others_without_tls_are_served_with_a_warning(tmp_path: Path) -> None:
    assert outlast("token", "create", "--store", str(tmp_path / "s.db"), "--role", "admin").returncode == 0
    with ServerProcess(tmp_path / "s.db", "--host", "0.0.0.0") as server:
        logged = server.stop()[2]
    assert "WARNING others can reach http://0.0.0.0:" in logged
    with ServerProcess(tmp_path / "s.db") as server:
        assert "WARNING" not in server.stop()[2]


def test_a_socket_and_a_port_exclude_each_other(tmp_path: Path) -> None:
    for more in (("--port", "8765"), ("--host", "127.0.0.1")):
        told = outlast("serve", "--store", str(tmp_path / "s.db"), "--uds", str(tmp_path / "s.sock"), *more)
        assert told.returncode == 2
        assert "--uds is in the place of a host and port" in told.stderr


def test_refusals_are_logged_without_the_token(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store.db") as server:
        connection = http.client.HTTPConnection(*server.url.removeprefix("http://").split(":"), timeout=10)
        headers = {"Authorization": "Bearer outl_v_hunter2"}
        for path in ("/api/outlast/v1/runs?once=hunter3", "/outl_a_hunter4/docs", "/docs"):
            connection.request("GET", path, headers=headers)
            connection.getresponse().read()
        connection.close()
        logged = server.stop()[2]
    assert [line.partition(" 401: ")[2] for line in logged.splitlines() if " 401: " in line] == [
        f"GET {path} from 127.0.0.1 has shown no token that is good for this"
        for path in ("/api/outlast/v1/runs", "/docs")
    ]
    assert "hunter" not in logged


def test_what_looks_like_a_token_is_cut_in_logs() -> None:
    record = logging.LogRecord("outlast", logging.INFO, "", 0, "is %s good?", ("outl_w_AbC-_9",), None)
    assert Lines("%(message)s").format(record) == "is outl_*** good?"
    assert msgspec.json.decode(JSONLines().format(record))["message"] == "is outl_*** good?"


def test_what_was_sent_forges_no_line_of_a_log() -> None:
    forged = "x\n2026-11-30 05:00:00 INFO all is well\r\x1b[2K\u2028"
    record = logging.LogRecord("outlast", logging.INFO, "", 0, "told by %s", (forged,), None)
    line = Lines("%(levelname)s %(message)s").format(record)
    assert line == "INFO told by x\\n2026-11-30 05:00:00 INFO all is well\\r\\x1b[2K\\u2028"
    assert "\n" not in JSONLines().format(record)
    try:
        raise ValueError(forged)
    except ValueError:
        failed = logging.LogRecord("outlast", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    first, *trace = Lines("%(levelname)s %(message)s").format(failed).split("\n")
    assert first == "ERROR failed"
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
    assert any("INFO all is well" in line for line in trace)


def test_of_failures_in_a_row_the_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()

    async def send(message: Any) -> None:
        pass

    async def answer(status: int) -> None:
        scope = {"method": "GET", "raw_path": b"/a?token=x", "client": ("10.0.0.1", 5)}
        await refusals.noting(scope, send)({"type": "http.response.start", "status": status})

    for status in (200, 503, 503, 200, 503):
        asyncio.run(answer(status))
    assert caplog.messages == ["503: GET /a from 10.0.0.1 could not be answered; others that follow are not logged"]


def test_a_certificate_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    refused = outlast("serve", "--store", str(tmp_path / "s.db"), "--port", "0", "--tls-cert", str(tmp_path / "no.pem"))
    assert refused.returncode == 78
    assert "no.pem" in refused.stderr


def test_the_settings_of_the_file_hold_and_options_go_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    (tmp_path / "outlast.toml").write_text(f'[server]\nport = {port}\nhost = "127.0.0.1"\n[store]\nurl = "store.db"\n')
    monkeypatch.chdir(tmp_path)
    process = subprocess.Popen([sys.executable, "-m", "outlast.cli", "serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert f":{port} " in process.stdout.readline()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/docs")
    assert connection.getresponse().status == 401
    connection.close()
    process.terminate()
    process.communicate(timeout=20)
