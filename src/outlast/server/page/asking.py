"""The page's way to data: GETs of the public API, made within this process in the name of whoever looks at the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode

import msgspec
from starlette.requests import Request

__all__ = ["PREFIX", "Api", "Refused", "path_of"]

T = TypeVar("T")

PREFIX: Final = "/api/outlast/v1"
_TAKEN_OVER: Final = ("type", "asgi", "http_version", "scheme", "server", "client")
#: What says who asks, and at which name of the server; nothing else of the browser's headers matters.
_HEADERS: Final = frozenset({b"host", b"cookie", b"authorization"})


class Refused(Exception):
    """The API refused: its status and its words."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class _Words(msgspec.Struct):
    detail: str


def path_of(*parts: str) -> str:
    """Return the path of the API with these parts, each encoded."""
    return PREFIX + "".join(f"/{quote(part, safe='')}" for part in parts)


class Api:
    """Asks the routes that everybody else asks, with the credential the browser sent."""

    def __init__(self, request: Request) -> None:
        self.request = request

    async def get(self, path: str, kind: type[T], query: Iterable[tuple[str, Any]] = (), *, also: int = 200) -> T:
        """Return what a path answers, as a struct; raises Refused. `also` is another status that has such a body."""
        status, body = await self._call(path, urlencode(list(query)))
        if status not in (200, also):
            raise Refused(status, msgspec.json.decode(body, type=_Words).detail)
        return msgspec.json.decode(body, type=kind)

    async def _call(self, path: str, query: str) -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.request.app(self._scope(path, query), receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    def _scope(self, path: str, query: str) -> dict[str, Any]:
        here = self.request.scope
        root = here.get("root_path", "").rstrip("/")
        return {
            **{name: here[name] for name in _TAKEN_OVER if name in here},
            "method": "GET",
            "root_path": root,
            "path": root + unquote(path),
            "raw_path": (root + path).encode(),
            "query_string": query.encode(),
            "headers": [(name, value) for name, value in here["headers"] if name in _HEADERS],
        }
