"""What browsers need and what is kept from them: a page to begin at, the link that logs in, the session's cookie,
hosts, origins, headers.

A browser sends a cookie along for whatever page asks it to, and goes to whatever address a name stands for. So a cookie
changes something only for a page of this very server, and a server that listens to its own machine answers to its own
names only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from fastapi import APIRouter
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from ..errors import OutlastError, Unauthorized, ValueTooLarge
from .execution import body_of
from .identity import Who, cookie_name, identify
from .origins import STRANGE_NAME, hosts_of, is_meant, refuse_foreign
from .page.rendering import alone
from .tokens import SESSION_SECONDS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..config import ServerSettings
    from .tokens import Tokens

__all__ = ["BrowserRules", "hosts_of", "login_path", "router"]

router = APIRouter(include_in_schema=False)

HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with `no-referrer` a browser sends its own forms as of origin `null`
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
#: What is fetched anew each time: everything but the page's own files.
_NOT_STORED = (b"cache-control", b"no-store")
_FILES = "/static/"
#: Bytes of a login form at most.
_FORM = 4096


# --- The beginning ---------------------------------------------------------------------------------------------


@router.get("/")
async def start(request: Request) -> Response:
    """Say what this is: as JSON to programs, as a page to browsers that are not logged in; `page` shows others runs."""
    if "text/html" in request.headers.get("accept", ""):
        return alone(request, 200, "stranger")
    root = _root(request)
    told = {"name": "outlast", "docs": f"{root}/docs", "openapi": f"{root}/openapi.json"}
    return JSONResponse({**told, "apis": [f"{root}/api/outlast/v1", f"{root}/api/v2"]})


# --- Login -----------------------------------------------------------------------------------------------------


def login_path(settings: ServerSettings, code: str) -> str:
    """Return the path of the link that opens the page once."""
    return f"{settings.root_path}/login?once={code}"


@router.get("/login")
async def login_by_link(request: Request) -> Response:
    """Exchange a link's code for a session, once; without a code, show a form for a token."""
    code = request.query_params.get("once")
    if code is None:
        return alone(request, 200, "login")
    tokens: Tokens = request.app.state.tokens
    try:
        who = tokens.redeem(code)
    except Unauthorized as error:
        return alone(request, 401, "login", error.message)
    return await _logged_in(request, who)


@router.post("/login")
async def login_by_token(request: Request) -> Response:
    """Exchange a token that somebody has typed into the form for a session."""
    tokens: Tokens = request.app.state.tokens
    try:
        refuse_foreign(request)
        who = await tokens.who(await _typed(request))
        if who.role not in ("viewer", "editor", "admin"):
            raise Unauthorized(f"a {who.role}'s token is for programs; the page takes a viewer's, editor's or admin's")
    except OutlastError as error:
        return alone(request, 401, "login", error.message)
    return await _logged_in(request, who)


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the browser's session, here and in the browser; one that has ended already is left, too."""
    name = cookie_name(request)
    try:
        await identify(request)
        await request.app.state.tokens.end_session(request.cookies.get(name, ""))
    except Unauthorized:
        refuse_foreign(request)
    answer = alone(request, 200, "out")
    answer.delete_cookie(name, path=_root(request) or "/", httponly=True, samesite="strict", secure=_is_tls(request))
    return answer


async def _typed(request: Request) -> str:
    try:
        body = await body_of(request, _FORM, request.app.state.settings.request_seconds)
    except ValueTooLarge:
        raise Unauthorized("this form is too long; it takes a token only") from None
    given = parse_qs(body.decode("ascii", "replace")).get("token", [""])
    return given[0].strip()


async def _logged_in(request: Request, who: Who) -> Response:
    """Answer with the cookie, and a page that goes on by itself.

    A redirect would not do: a browser does not send a SameSite=Strict cookie on with it where the link was clicked in a
    page of another site.
    """
    tokens: Tokens = request.app.state.tokens
    answer = alone(request, 200, "in")
    answer.set_cookie(
        cookie_name(request),
        await tokens.session(who),
        max_age=SESSION_SECONDS,
        path=_root(request) or "/",
        secure=_is_tls(request),
        httponly=True,
        samesite="strict",
    )
    return answer


def _root(request: HTTPConnection) -> str:
    return str(request.app.state.settings.root_path).rstrip("/")


def _is_tls(request: HTTPConnection) -> bool:
    return request.url.scheme == "https"


# --- Hosts and headers -----------------------------------------------------------------------------------------


class BrowserRules:
    """Wraps an application: refuses names that are not the server's, and adds the headers that bind a browser."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None = None) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _completed(message.get("headers", ()), scope)}
            await send(message)

        if not is_meant(self.hosts, scope["headers"]):
            await _wrong_host()(scope, receive, with_headers)
        else:
            await self.app(scope, receive, with_headers)


def _wrong_host() -> Response:
    return JSONResponse({"detail": STRANGE_NAME, "code": "not_found"}, 421)


def _completed(headers: Sequence[tuple[bytes, bytes]], scope: Scope) -> list[tuple[bytes, bytes]]:
    given = {name.lower() for name, _ in headers}
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    added = HEADERS if path.startswith(_FILES) else (*HEADERS, _NOT_STORED)
    return [*headers, *(header for header in added if header[0] not in given)]
