"""`request_timeout` is for the whole of a call, plain and under TLS, however little of the reply comes at a time."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.dags.resumable import JobRefused
from outlast.operators import http, timed_calls
from outlast.operators.http import HttpJobError
from support.http_jobs import Jobs, made, run

ID, INTENT = "remote_job_id", "remote_job_id.intent"
DRIPS = ["drip", "drip headers"]


def ask(url: str, timeout: float) -> tuple[Any, float]:
    """Make a call; return its reply, or the error, and how many seconds that has taken."""
    began = time.monotonic()
    try:
        reply: Any = http._read(http._send(urllib.request.Request(url), timeout))
    except HttpJobError as error:
        reply = error
    return reply, time.monotonic() - began


@pytest.mark.parametrize("event", DRIPS)
def test_a_server_that_drips_holds_a_call_no_longer_than_its_limit(jobs: Jobs, event: str) -> None:
    jobs.plan = [event]
    error, took = ask(f"{jobs.url}/jobs?key=x", 0.3)
    assert str(error) == f"GET {jobs.url}/jobs?key=x has not been answered in full within 0.3 s"
    assert 0.25 < took < 1.5


def test_the_text_of_an_error_that_drips_is_left_out(jobs: Jobs) -> None:
    jobs.plan = ["drip error"]
    error, took = ask(f"{jobs.url}/jobs?key=x", 0.3)
    assert (error.status, took < 1.5) == (400, True)


@pytest.mark.parametrize("event", DRIPS)
def test_a_submission_whose_reply_drips_starts_one_job(jobs: Jobs, state: outlast.TaskState, event: str) -> None:
    jobs.dedupes, jobs.plan = False, [event]
    assert run(made(jobs), state) == 42
    assert jobs.started == 1


@pytest.mark.parametrize("event", DRIPS)
def test_without_a_way_to_tell_it_stays_in_doubt(jobs: Jobs, state: outlast.TaskState, event: str) -> None:
    jobs.plan = [event]
    operator = made(jobs, "find")
    operator.on_uncertain = "fail"
    with pytest.raises(HttpJobError, match=r"not been answered in full within 0\.3 s"):
        run(operator, state)
    assert state.keys() == [INTENT]


@pytest.mark.parametrize("event", DRIPS)
def test_a_status_that_drips_is_asked_for_again(jobs: Jobs, state: outlast.TaskState, event: str) -> None:
    state.set(ID, jobs.start("t")["id"])
    jobs.plan = [event]
    assert run(made(jobs), state) == 42


# --- Connections ---------------------------------------------------------------------------------------------


def test_a_connection_that_cannot_be_made_safe_has_sent_nothing(jobs: Jobs, state: outlast.TaskState) -> None:
    """The server speaks no TLS."""
    url = jobs.url.replace("http:", "https:") + "/jobs"
    with pytest.raises(JobRefused, match="SSL"):
        run(made(jobs, submit=("POST", url, "job.id"), retry_for=0.1), state)
    assert (state.keys(), jobs.started) == ([], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="optional: elsewhere a full queue of connections refuses more")
def test_a_connection_that_is_never_accepted_is_given_up_in_time_and_has_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        kept = [socket.socket() for _ in range(3)]
        for one in kept:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        error, took = ask(f"http://127.0.0.1:{full.getsockname()[1]}/", 0.3)
        for one in kept:
            one.close()
    assert isinstance(error, http._Unreachable)
    assert (error.sent, 0.2 < took < 1.5) == (False, True)


def test_a_name_with_several_addresses_is_tried_at_each(jobs: Jobs) -> None:
    """`localhost` is ::1 too, where nobody listens."""
    found, _ = ask(jobs.url.replace("127.0.0.1", "localhost") + "/jobs?key=x", 5.0)
    assert found == {"jobs": []}


# --- TLS -------------------------------------------------------------------------------------------------------


@pytest.fixture
def safe_jobs(tmp_path: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """The job system behind TLS, with a certificate made for the test and trusted."""
    if shutil.which("openssl") is None:
        pytest.skip("optional: needs the openssl program to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(["openssl", "req", "-x509", *curve, *made, *files], check=True, capture_output=True, timeout=30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    jobs.socket = context.wrap_socket(jobs.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(Jobs, "scheme", "https")
    timed_calls._tls.cache_clear()
    yield jobs
    timed_calls._tls.cache_clear()


def test_a_job_is_submitted_polled_and_fetched_under_tls(safe_jobs: Jobs, state: outlast.TaskState) -> None:
    assert run(made(safe_jobs, body={"rows": "x" * 300_000}, request_timeout=5.0), state) == 42
    assert safe_jobs.bodies == [{"rows": "x" * 300_000}]
    assert safe_jobs.started == 1


@pytest.mark.parametrize("event", DRIPS)
def test_under_tls_a_server_that_drips_is_given_up_in_time(safe_jobs: Jobs, event: str) -> None:
    safe_jobs.plan = [event]
    error, took = ask(f"{safe_jobs.url}/jobs?key=x", 0.4)
    assert "has not been answered in full within 0.4 s" in str(error)
    assert took < 2.0


def test_a_certificate_nobody_vouches_for_is_refused_before_anything_is_sent(
    safe_jobs: Jobs, state: outlast.TaskState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(JobRefused, match="certificate verify failed"):
        run(made(safe_jobs, retry_for=0.1), state)
    assert (state.keys(), safe_jobs.started) == ([], 0)
