"""Airflow 3.3's public REST API, as far as a transfer of state needs it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import msgspec

from ...errors import BackendError, ConfigError, Unauthorized
from ...values import TaskScope

__all__ = ["AirflowApi", "AssetPlace", "Place", "Refused", "Stored"]

#: Entries of a list asked for at a time, Airflow's own limit.
PAGE = 100
#: Seconds a call may take, and pauses before the next tries of one that was not answered.
TIMEOUT, PAUSES = 60.0, (0.5, 2.0, 5.0)


class AssetPlace(msgspec.Struct, frozen=True):
    """An asset as Airflow knows it."""

    id: int
    name: str
    uri: str

    def __str__(self) -> str:
        return f"asset {self.name}"


#: Where Airflow keeps state: a task instance, or an asset.
Place: TypeAlias = TaskScope | AssetPlace


class Stored(msgspec.Struct, frozen=True):
    """What Airflow holds under a key: the value, for a task's the moment it expires, and its last write (ISO 8601)."""

    value: Any
    expires_at: str | None = None
    updated_at: str | None = None


class Refused(Exception):
    """Airflow will not do what it was asked: the status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class AirflowApi:
    """Calls one Airflow. With `token`, or a user's name and password, or neither where everybody is an admin."""

    def __init__(
        self, url: str, *, token: str | None = None, user: str | None = None, password: str | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not the URL of an Airflow; write for instance http://airflow.example:8080")
        self.url = url.rstrip("/")
        self._token, self._user, self._password = token, user, password
        self._can_ask = user is not None or token is None

    def version(self) -> tuple[int, ...]:
        """Return Airflow's version as numbers; ConfigError where there is no Airflow 3.3 or later."""
        try:
            told = self._call("GET", "/api/v2/version")
        except Refused as refused:
            raise ConfigError(f"{self.url} is no Airflow 3 (/api/v2/version answers {refused.status})") from None
        text = str(told.get("version", "")) if isinstance(told, dict) else ""
        numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
        if numbers < (3, 3):
            raise ConfigError(f"{self.url} is Airflow {text or '?'}; a state store is in it from 3.3 on")
        return numbers

    def stored(self, place: Place) -> dict[str, Stored]:
        """Return what Airflow holds for a task instance or an asset; nothing for one it does not know."""
        name = "task_state_store" if isinstance(place, TaskScope) else "asset_state_store"
        try:
            rows = list(self._listed(_path(place), name, "key", _index(place)))
        except Refused as refused:
            if refused.status == 404:
                return {}
            raise
        return {row["key"]: Stored(row["value"], row.get("expires_at"), row.get("updated_at")) for row in rows}

    def put(self, place: Place, key: str, stored: Stored) -> None:
        """Write a key; Refused where Airflow cannot hold it."""
        body: dict[str, Any] = {"value": stored.value}
        if isinstance(place, TaskScope):
            body["expires_at"] = stored.expires_at
        self._authorized("PUT", f"{_path(place)}/{quote(key, safe='')}", _index(place), body)

    def assets(self) -> list[AssetPlace]:
        """List the assets that Airflow knows."""
        return [
            AssetPlace(row["id"], row["name"], row["uri"])
            for row in self._listed("/api/v2/assets", "assets", "id", {"order_by": "id"})
        ]

    def task_instances(self, dag_id: str | None) -> Iterator[TaskScope]:
        """List the task instances of one dag or of all, each once, and at the end those that were made meanwhile."""
        path = f"/api/v2/dags/{quote(dag_id, safe='') if dag_id else '~'}/dagRuns/~/taskInstances"
        seen = set[TaskScope]()
        for _ in range(2):  # a new try has another id, which may be too small where clocks differ
            for row in self._followed(path, "task_instances", {"order_by": "id"}):
                index = row.get("map_index")
                scope = TaskScope(row["dag_id"], row["dag_run_id"], row["task_id"], -1 if index is None else index)
                if scope not in seen:
                    seen.add(scope)
                    yield scope

    def _followed(self, path: str, name: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Read a list in pages, each beginning behind the last row of the page before, whatever goes meanwhile."""
        cursor: str | None = ""
        while cursor is not None:
            page = self._authorized("GET", path, {**query, "limit": PAGE, "cursor": cursor})
            yield from page[name]
            cursor = page["next_cursor"]

    def _listed(self, path: str, name: str, which: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Read a list that is in the order of `which`, each row once, in pages that begin with a row that is known.

        One that does not comes after rows in front have gone, and others were missed: the list is then read again
        from further in front.
        """
        offset, seen, overlap = 0, set[Any](), 0
        while True:
            page = self._authorized("GET", path, {**query, "limit": PAGE, "offset": offset})
            rows = page[name]
            if offset and (not rows or (overlap and rows[0][which] not in seen)):
                offset = max(0, offset - PAGE)
                continue
            for row in rows:
                if row[which] not in seen:
                    seen.add(row[which])
                    yield row
            offset += len(rows)
            if not rows or offset >= page["total_entries"]:
                return
            overlap = min(1, len(rows) - 1)  # an Airflow may be set to shorter pages
            offset -= overlap

    # --- calls ---------------------------------------------------------------------------------------------

    def _authorized(self, method: str, path: str, query: dict[str, Any], body: Any = None) -> Any:
        """Call with a token; one that was asked for here and has expired is asked for again."""
        given = self._token
        token = given or self._asked()
        try:
            return self._call(method, path, query, body, token)
        except Refused as refused:
            if refused.status == 401 and given is not None and self._can_ask:
                self._token = None
                return self._call(method, path, query, body, self._asked())
            if refused.status in (401, 403):
                raise Unauthorized(
                    f"{self.url} refuses {method} {path} ({refused.status}): {refused.why}; give a token of somebody "
                    "who may edit task instances and assets"
                ) from None
            raise

    def _asked(self) -> str:
        try:
            if self._user is None:
                told = self._call("GET", "/auth/token")
            else:
                told = self._call("POST", "/auth/token", body={"username": self._user, "password": self._password})
        except Refused as refused:
            raise Unauthorized(
                f"{self.url} gives no token ({refused.status}): {refused.why}; give one (--token), or a user's name "
                "and password"
            ) from None
        self._token = str(told["access_token"])
        return self._token

    def _call(
        self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None, token: str | None = None
    ) -> Any:
        """Call, again where nobody answered: every call here may be carried out twice."""
        for pause in PAUSES:
            try:
                return self._once(method, path, query, body, token)
            except _NoAnswer:
                time.sleep(pause)
        try:
            return self._once(method, path, query, body, token)
        except _NoAnswer as error:
            raise BackendError(f"{self.url} does not answer: {error}; is it running? Then do this again") from error

    def _once(self, method: str, path: str, query: dict[str, Any] | None, body: Any, token: str | None) -> Any:
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None
        except (OSError, HTTPException) as error:
            raise _NoAnswer(str(error)) from error
        return _document(text)


class _NoAnswer(Exception):
    """Nobody answered, or only a proxy did."""


def _refusal(status: int, text: bytes) -> Exception:
    if status in (502, 503, 504):
        return _NoAnswer(f"status {status}")
    told = _document(text)
    detail = told.get("detail", told) if isinstance(told, dict) else told
    if isinstance(detail, list):  # of a body that was not accepted
        detail = "; ".join(str(part.get("msg", part)) if isinstance(part, dict) else str(part) for part in detail)
    return Refused(status, str(detail)[:500])


def _document(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text[:200].decode("utf-8", "replace")


def _path(place: Place) -> str:
    if isinstance(place, AssetPlace):
        return f"/api/v2/assets/{place.id}/state-store"
    dag, run, task = (quote(part, safe="") for part in (place.dag_id, place.run_id, place.task_id))
    return f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/state-store"


def _index(place: Place) -> dict[str, Any]:
    return {"map_index": place.map_index} if isinstance(place, TaskScope) else {}
