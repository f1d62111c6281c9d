"""SparkSubmitOperator as its provider ships it: killed while its driver runs, its next try waits for that driver.

A Spark cluster is too much for a test; a program named spark-submit and an HTTP server say what one would.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from support import airflow_install
from support.airflow_home import Airflow

pytestmark = pytest.mark.airflow(since="2.11", below="3.3", but="3.0")  # which tries no killed task again

DRIVER = "driver-20261130000000-0001"
SUBMIT = f"""#!/bin/sh
echo $PPID >> submitted
echo 'submissionId {DRIVER}'
"""


class Master(BaseHTTPRequestHandler):
    """Answers for a Spark master about its one driver; the first look of a poll is the end of whoever has submitted."""

    folder: ClassVar[Path]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        polls = self.headers["user-agent"].startswith("curl")
        self.asked.append("poll" if polls else "status")
        if self.asked == ["poll"]:
            os.kill(int((self.folder / "submitted").read_text()), signal.SIGKILL)
        state = "FINISHED" if polls else "RUNNING"
        body = f'{{\n  "driverState" : "{state}",\n  "success" : true\n}}\n'.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[int]:
    """The port of a Spark master's REST API."""
    Master.folder, Master.asked = tmp_path, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Master) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening.server_address[1]
        listening.shutdown()


def test_the_driver_is_found_again_by_the_next_try(tmp_path: Path, master: int) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    submit = programs / "spark-submit"
    submit.write_text(SUBMIT.replace("submitted", str(tmp_path / "submitted")))
    submit.chmod(0o755)
    cluster = f"spark://127.0.0.1:7077?deploy-mode=cluster&rest-port={master}"
    home = Airflow(
        airflow_install.installed(mixin=True),
        tmp_path / "home",
        Path(__file__).parent / "spark",
        {"AIRFLOW__OUTLAST__URL": str(tmp_path / "outlast.db"), "AIRFLOW_CONN_CLUSTER": cluster},
    )
    home.env["PATH"] = f"{programs}:{home.env['PATH']}"
    with home.running() as stack:
        assert stack.trigger("spark") == "success", stack.logs()
    assert len((tmp_path / "submitted").read_text().split()) == 1
    assert Master.asked == ["poll", "status", "poll"]
