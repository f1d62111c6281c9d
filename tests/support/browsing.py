"""A browser as far as a server sees one: it sends the cookies it was given, to an application in this process."""

from __future__ import annotations

import asyncio
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

import msgspec


class Page(NamedTuple):
    """An answer; the names of its headers in small letters."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return msgspec.json.decode(self.text)


class Browser:
    """Goes to an application under an address, following nothing."""

    def __init__(self, app: Any, address: str) -> None:
        self.app, self.address = app, urlsplit(address)
        self.cookies: dict[str, str] = {}

    def get(self, path: str, headers: Any = ()) -> Page:
        return self.ask("GET", path, headers)

    def post(self, path: str, form: dict[str, str] | None = None, headers: Any = ()) -> Page:
        return self.ask("POST", path, headers, urlencode(form or {}).encode())

    def ask(self, method: str, path: str, headers: Any = (), body: bytes = b"") -> Page:
        """Send one request; `headers` is a dict or pairs, and Host is the address's unless given."""
        given = list(headers.items() if isinstance(headers, dict) else headers)
        if not any(name.lower() == "host" for name, _ in given):
            given.append(("Host", self.address.netloc))
        if self.cookies:
            given.append(("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items())))
        page = asyncio.run(self._call(method, path, given, body))
        self._keep(page.headers.get("set-cookie"))
        return page

    def _keep(self, header: str | None) -> None:
        for name, cookie in SimpleCookie(header or "").items():
            self.cookies[name] = cookie.value
            if cookie["max-age"] == "0":
                del self.cookies[name]

    async def _call(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> Page:
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": self.address.scheme,
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            "server": ("127.0.0.1", 8765),
            "client": ("127.0.0.1", 50000),
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start = sent[0]
        found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Page(start["status"], found, b"".join(part.get("body", b"") for part in sent[1:]).decode())
