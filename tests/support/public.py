"""The public API over a real store and a real socket, asked as a client would: paths go out as they are given."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from outlast import Store, connect
from outlast.requests import LIBRARY
from outlast.token_requests import BYTES, CreateToken, digest_of, token_text
from outlast.values import TaskScope

from .clock import Clock
from .homes import settings
from .runs import Desk
from .servers import house

V2, V1 = "/api/v2", "/api/outlast/v1"


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return msgspec.json.decode(self.content)


class Door:
    """The routes of one store, as somebody with one token reaches them."""

    def __init__(self, url: str, store: Store, clock: Clock, token: str | None) -> None:
        self.url, self.store, self.clock, self.token = url, store, clock, token

    def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = ...,
        value: Any = ...,
        text: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; `text` is a body as it stands, `json` one to encode, `value` what is under "value" in one."""
        if value is not ...:
            json = {"value": value}
        body = msgspec.json.encode(json) if json is not ... else text.encode() if isinstance(text, str) else text
        sent = {"Content-Type": "application/json"} if body is not None else {}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        place = urlsplit(self.url)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
        try:
            connection.request(method, place.path + path, body, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask("GET", path, **more)

    def put(self, path: str, **more: Any) -> Answer:
        return self.ask("PUT", path, **more)

    def post(self, path: str, **more: Any) -> Answer:
        return self.ask("POST", path, **more)

    def patch(self, path: str, **more: Any) -> Answer:
        return self.ask("PATCH", path, **more)

    def delete(self, path: str, **more: Any) -> Answer:
        return self.ask("DELETE", path, **more)

    def as_role(self, role: Any, *dags: str) -> Door:
        """Return the same routes for a new token of this role."""
        token = token_text(role, os.urandom(BYTES))
        self.store.backend.send(CreateToken(digest_of(token), role, f"{role}@desk", LIBRARY, dags or ("*",)))
        return Door(self.url, self.store, self.clock, token)

    # --- what there is ---------------------------------------------------------------------------------------

    def task(self, task_id: str = "load", map_index: int = -1, *, run_id: str = "r1", dag_id: str = "etl") -> Any:
        """Return the state of a task instance, as the library sees it; its scope exists from now on."""
        scope = TaskScope(dag_id, run_id, task_id, map_index)
        self.store.task(scope, attempt="new")
        return self.store.task(scope)

    def desk(self, run_id: str = "r1", dag_id: str = "etl") -> Desk:
        """Return who runs a run."""
        return Desk(self.store.backend, dag_id, run_id)

    def asset_id(self, name: str) -> int:
        """Return an asset's id, as the list tells it."""
        found = {asset["name"]: asset["id"] for asset in self.get(V2 + "/assets").json()["assets"]}
        return int(found[name])


@contextmanager
def open_door(folder: Path, **state_store: Any) -> Iterator[Door]:
    """Serve a new store, to an admin."""
    clock = Clock()
    store = connect(folder / "served.db", config=settings(**state_store), clock=clock)
    url, token = house().move_in(store)
    try:
        yield Door(url, store, clock, token)
    finally:
        house().move_out(url)


def state_path(task_id: str = "load", key: str = "", *, dag_id: str = "etl", run_id: str = "r1") -> str:
    """Return the path of a task instance's state in Airflow's API; `key` as it is to be sent."""
    return f"{V2}/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/state-store" + (f"/{key}" if key else "")
