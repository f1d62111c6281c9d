"""A job system behind a real HTTP server that dies, times out, answers with errors, drips, and loses its replies."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import outlast
from outlast.operators import HttpJobOperator


class Jobs(http.server.ThreadingHTTPServer):
    """A job system: `POST /jobs`, `GET /jobs/ID`, `GET /jobs/ID/result`, `DELETE /jobs/ID`, `GET /jobs?key=TOKEN`.

    `plan` is what happens to the next requests, one after the other: a status to answer without doing anything, or
    "lose" (do it and send no reply), "hang" (do it and reply too late), "refuse" (close at once), "drip" (do it and
    reply a byte at a time, for ever), "drip headers", "drip error" (the same elsewhere). `replies` stand in
    for what it would answer, by method.
    """

    daemon_threads = True
    allow_reuse_address = True
    scheme = "http"

    def __init__(self, port: int = 0, dedupes: bool = True) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.dedupes = dedupes
        self.plan: list[str | int] = []
        self.log: list[str] = []
        self.bodies: list[Any] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.started = 0
        self.polls = 0
        self.replies: dict[str, Any] = {}
        self.late = threading.Event()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Be silent about clients that are gone."""

    def end(self) -> None:
        self.late.set()
        self.shutdown()
        self.server_close()
        self.thread.join()

    def start(self, key: str | None) -> dict[str, Any]:
        for job in self.jobs.values():
            if self.dedupes and job["key"] == key:
                return job
        self.started += 1
        job = {"id": f"job/{self.started}", "key": key, "state": "RUNNING"}
        self.jobs[job["id"]] = job
        return job


class Handler(http.server.BaseHTTPRequestHandler):
    server: Jobs

    def log_message(self, *words: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.server.bodies.append(json.loads(self.rfile.read(size)) if size else None)
        self.answer(lambda: (201, {"job": self.server.start(self.headers["Idempotency-Key"])}))

    do_PUT = do_POST

    def do_GET(self) -> None:
        self.answer(self.found)

    def do_DELETE(self) -> None:
        self.answer(self.cancelled)

    def found(self) -> tuple[int, Any]:
        place = urlsplit(self.path)
        if key := parse_qs(place.query).get("key"):
            return 200, {"jobs": [job for job in self.server.jobs.values() if job["key"] == key[0]]}
        words = [unquote(word) for word in place.path.split("/")[2:]]
        job = self.server.jobs.get(words[0])
        if job is None:
            return 404, {"error": "no such job"}
        if words[1:] == ["result"]:
            return 200, {"rows": 42}
        self.server.polls += 1
        if self.server.polls >= 3 and job["state"] == "RUNNING":
            job["state"] = "SUCCEEDED"
        return 200, {"job": job}

    def cancelled(self) -> tuple[int, Any]:
        job = self.server.jobs.get(unquote(self.path.split("/")[2]))
        if job is None:
            return 404, None
        job["state"] = "CANCELLED"
        return 204, None

    def answer(self, work: Callable[[], tuple[int, Any]]) -> None:
        server = self.server
        server.log.append(f"{self.command} {self.path}")
        event = server.plan.pop(0) if server.plan else None
        if event == "refuse":
            return
        status, reply = (event, {"error": "planned"}) if isinstance(event, int) else work()
        reply = server.replies.get(self.command, reply)
        if event == "hang":
            server.late.wait(20)
        if event in ("lose", "hang"):
            return
        if event == "drip headers":
            self.drip(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            return
        if event == "drip error":
            self.drip(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 1000000\r\n\r\n")
            return
        if event == "drip":
            self.drip(b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"')
            return
        data = b"" if reply is None else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def drip(self, begin: bytes) -> None:
        self.wfile.write(begin)
        with suppress(OSError):
            while not self.server.late.wait(0.02):
                self.wfile.write(b"x")


# --- Its client -------------------------------------------------------------------------------------------------


def calls_of(jobs: Jobs) -> dict[str, Any]:
    return {
        "submit": ("POST", f"{jobs.url}/jobs", "job.id"),
        "status": ("GET", jobs.url + "/jobs/{id}", "job.state"),
        "find": ("GET", jobs.url + "/jobs?key={token}", "jobs.0.id"),
        "result": ("GET", jobs.url + "/jobs/{id}/result", "rows"),
        "cancel": ("DELETE", jobs.url + "/jobs/{id}"),
    }


def made(jobs: Jobs, *without: str, **more: Any) -> HttpJobOperator:
    """Make an operator for the whole of the API, less some calls."""
    kept = {name: call for name, call in calls_of(jobs).items() if name not in without}
    defaults: dict[str, Any] = {"poll_interval": 0.01, "request_timeout": 0.3, "retry_for": 5.0, "task_id": "t"}
    operator = HttpJobOperator(**kept | defaults | more)
    operator.find_job_grace = 0.2
    return operator


def run(operator: HttpJobOperator, state: outlast.TaskState, **params: Any) -> Any:
    return operator.execute({"task_state_store": state, "params": params})
