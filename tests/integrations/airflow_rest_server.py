"""What of Airflow 3.3's REST API a transfer speaks to, for what a real one cannot be brought to do at will."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["AirflowServer"]


class AirflowServer(ThreadingHTTPServer):
    """Holds `instances` (rows of the list, in the order of their ids) and `state` by (task instance, key).

    A token is good for `calls_a_token` calls; `after_page` is called when a page of a list has been made.
    """

    daemon_threads = True

    def __init__(self, calls_a_token: int = 10**9, page_limit: int = 100) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls_a_token, self.page_limit, self.left, self.tokens = calls_a_token, page_limit, 0, 0
        self.instances: list[dict[str, Any]] = []
        self.last_id = 0
        self.state: dict[tuple[str, str], dict[str, Any]] = {}
        self.after_page: Any = lambda: None

    def add(self, run_id: str, task_id: str = "task") -> dict[str, Any]:
        row = {"id": 0, "dag_id": "dag", "dag_run_id": run_id, "task_id": task_id, "map_index": -1}
        self.instances.insert(0, row)
        return self.try_again(0)

    def try_again(self, place: int) -> dict[str, Any]:
        """Give the row at a place of the list its next id, with which it goes to the end."""
        self.last_id += 1
        row = self.instances.pop(place)
        self.instances.append({**row, "id": self.last_id})
        return self.instances[-1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> AirflowServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def answer(self, method: str, path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Answer a call that is authorized."""
        if path == ["assets"]:
            return 200, {"assets": [], "total_entries": 0}
        if path[-1] == "taskInstances":
            return 200, self.page_of_instances(int(query["limit"]), query["cursor"])
        place = f"{path[1]}/{path[3]}/{path[5]}"
        if place not in {f"{row['dag_id']}/{row['dag_run_id']}/{row['task_id']}" for row in self.instances}:
            return 404, {"detail": "Task instance not found"}
        if method == "PUT":
            self.state[place, path[7]] = {**body, "updated_at": datetime.now(UTC).isoformat()}
            return 204, None
        rows = [{"key": key, **held} for (at, key), held in sorted(self.state.items()) if at == place]
        page = rows[int(query["offset"]) :][: min(int(query["limit"]), self.page_limit)]
        self.after_page()
        return 200, {"task_state_store": page, "total_entries": len(rows)}

    def page_of_instances(self, limit: int, cursor: str) -> dict[str, Any]:
        """Return the page behind a cursor, which is an id."""
        rest = [row for row in self.instances if row["id"] > int(cursor or 0)]
        page = rest[: min(limit, self.page_limit)]
        self.after_page()
        return {"task_instances": page, "next_cursor": str(page[-1]["id"]) if len(page) < len(rest) else None}


class _Handler(BaseHTTPRequestHandler):
    server: AirflowServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(None)

    def do_PUT(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        parts = urlsplit(self.path)
        query = {name: value[0] for name, value in parse_qs(parts.query, keep_blank_values=True).items()}
        airflow = self.server
        if parts.path == "/auth/token":
            airflow.tokens, airflow.left = airflow.tokens + 1, airflow.calls_a_token
            self._reply(200, {"access_token": f"token-{airflow.tokens}"})
            return
        if parts.path == "/api/v2/version":
            self._reply(200, {"version": "3.3.2"})
            return
        airflow.left -= 1
        path = [unquote(part) for part in parts.path.removeprefix("/api/v2/").split("/")]
        if airflow.left < 0 or self.headers["Authorization"] != f"Bearer token-{airflow.tokens}":
            self._reply(401, {"detail": "Invalid JWT token"})
        else:
            self._reply(*airflow.answer(self.command, path, query, body))

    def _reply(self, status: int, document: Any) -> None:
        text = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""
