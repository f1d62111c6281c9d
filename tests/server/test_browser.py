"""Credentials of a request, login, the session's cookie, origins, hosts and headers: what a browser gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.cookies import SimpleCookie
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import outlast
from outlast import OutlastError, Store
from outlast.config import ServerSettings
from outlast.server.browser import BrowserRules, hosts_of, login_path, router
from outlast.server.identity import Who, identify
from outlast.server.tokens import Tokens
from outlast.token_requests import CreateToken, RevokeToken, TokenRole, digest_of, token_text
from support.browsing import Browser
from support.runs import ANN

HERE = "http://localhost:8765"
SETTINGS = ServerSettings()


@pytest.fixture
def store() -> Iterator[Store]:
    with outlast.connect(":memory:") as store:
        yield store


async def who(request: Request) -> Response:
    try:
        asker = await identify(request)
    except OutlastError as error:
        return JSONResponse({"detail": error.message}, error.status)
    return JSONResponse({"role": asker.role, "name": asker.name})


def served(store: Store, settings: ServerSettings = SETTINGS) -> FastAPI:
    app = FastAPI()
    app.state.settings, app.state.tokens = settings, Tokens(store.backend, store.clock)
    app.include_router(router)
    app.add_route("/api/who", who, methods=["GET", "POST", "DELETE"])
    app.add_route("/static/page.css", who)
    return app


Opening = Callable[..., Browser]


@pytest.fixture
def app(store: Store) -> FastAPI:
    return served(store)


@pytest.fixture
def browser(app: FastAPI) -> Opening:
    """Open a browser at an address."""

    def at(address: str = HERE, settings: ServerSettings = SETTINGS) -> Browser:
        app.state.settings = settings
        return Browser(BrowserRules(app, hosts_of(settings)), address)

    return at


def token(store: Store, role: TokenRole = "viewer") -> str:
    text = token_text(role, bytes([len(role)]) * 32)
    store.backend.send(CreateToken(digest_of(text), role, "ann", ANN))
    return text


def logged_in(app: FastAPI, browser: Opening, **more: Any) -> Browser:
    client = browser(**more)
    answer = client.get(login_path(SETTINGS, app.state.tokens.link("ann@desk")))
    assert answer.status == 200
    return client


# --- Bearer tokens ---------------------------------------------------------------------------------------------


def test_a_program_sends_its_token(store: Store, browser: Opening) -> None:
    text = token(store)
    for scheme in ("Bearer", "bearer"):
        answer = browser().post("/api/who", headers={"Authorization": f"{scheme} {text}"})
        assert answer.json() == {"role": "viewer", "name": "ann"}


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer ", "", "Token x", "Bearer wrong"])
def test_another_header_is_refused(app: FastAPI, browser: Opening, header: str) -> None:
    client = logged_in(app, browser)  # a good cookie does not make up for it
    answer = client.get("/api/who", headers={"Authorization": header})
    assert answer.status == 401


def test_two_headers_are_refused(store: Store, browser: Opening) -> None:
    good = ("Authorization", f"Bearer {token(store)}")
    assert browser().get("/api/who", headers=[good]).status == 200
    assert browser().get("/api/who", headers=[good, good]).status == 401


def test_nobody_is_anonymous(browser: Opening) -> None:
    answer = browser().get("/api/who")
    assert answer.status == 401
    assert "outlast token create" in answer.json()["detail"]


def test_a_token_in_the_url_is_none(store: Store, browser: Opening) -> None:
    assert browser().get(f"/api/who?token={token(store)}&access_token={token_text('viewer', bytes(32))}").status == 401


# --- The beginning ---------------------------------------------------------------------------------------------


def test_a_stranger_is_told_how_to_get_a_link(browser: Opening) -> None:
    page = browser().get("/", {"Accept": "text/html"})
    assert (page.status, outlast.__version__ in page.text) == (200, False)
    assert "Open the link that <code>outlast serve</code> printed" in page.text
    assert '<form method="post" action="/login">' in page.text
    assert 'href="/static/page.css"' in page.text


def test_a_program_gets_json_at_the_beginning(browser: Opening) -> None:
    settings = ServerSettings(root_path="/outlast")
    told = browser(settings=settings).get("/", {"Accept": "*/*"}).json()
    assert told == {
        "name": "outlast",
        "docs": "/outlast/docs",
        "openapi": "/outlast/openapi.json",
        "apis": ["/outlast/api/outlast/v1", "/outlast/api/v2"],
    }


# --- Login -----------------------------------------------------------------------------------------------------


def test_the_link_logs_in_once(app: FastAPI, browser: Opening) -> None:
    link = login_path(SETTINGS, app.state.tokens.link("ann@desk"))
    client = browser()
    first = client.get(link)
    assert 'content="0; url=/"' in first.text
    assert client.get("/api/who").json() == {"role": "admin", "name": "ann@desk"}
    second = browser().get(link)
    assert second.status == 401
    assert "used before" in second.text
    assert "set-cookie" not in second.headers


def test_looking_ahead_does_not_use_the_link_up(app: FastAPI, browser: Opening) -> None:
    link = login_path(SETTINGS, app.state.tokens.link("ann@desk"))
    assert browser().ask("HEAD", link).status == 405
    assert browser().get(link).status == 200


@pytest.mark.parametrize("code", ["", "x", "outl_a_" + "0" * 43, "%00", "%F0"])
def test_a_wrong_link_logs_nobody_in(browser: Opening, code: str) -> None:
    answer = browser().get(f"/login?once={code}")
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("url", "secure", "root"), [(HERE, False, ""), ("https://localhost", True, ""), (HERE, False, "/state")]
)
def test_the_cookie_is_kept_from_scripts_and_other_sites(
    app: FastAPI, browser: Opening, url: str, secure: bool, root: str
) -> None:
    settings = ServerSettings(root_path=root)
    answer = browser(url, settings).get("/login?once=" + app.state.tokens.link("ann"))
    cookie = SimpleCookie(answer.headers["set-cookie"])["outlast_session_8765" if url == HERE else "outlast_session"]
    assert (cookie["httponly"], cookie["samesite"], cookie["max-age"]) == (True, "strict", "43200")
    assert bool(cookie["secure"]) is secure
    assert cookie["path"] == (root or "/")
    assert f'url={root}/"' in answer.text
    assert login_path(settings, "x") == f"{root}/login?once=x"


@pytest.mark.parametrize("role", ["viewer", "editor", "admin"])
def test_a_token_logs_in(store: Store, browser: Opening, role: TokenRole) -> None:
    client = browser()
    assert '<form method="post" action="/login">' in client.get("/login").text
    answer = client.post("/login", form={"token": token(store, role)}, headers={"Origin": HERE})
    assert answer.status == 200
    assert client.get("/api/who").json() == {"role": role, "name": "ann"}


def test_revoking_the_token_ends_the_session(app: FastAPI, store: Store, browser: Opening) -> None:
    client = browser()
    client.post("/login", form={"token": token(store)}, headers={"Origin": HERE})
    store.backend.send(RevokeToken(1, ANN))
    app.state.tokens.ticks = lambda: 10.0**9
    assert client.get("/api/who").status == 401


@pytest.mark.parametrize("role", ["worker", "runner"])
def test_programs_do_not_log_in(store: Store, browser: Opening, role: TokenRole) -> None:
    answer = browser().post("/login", form={"token": token(store, role)}, headers={"Origin": HERE})
    assert answer.status == 401
    assert "is for programs" in answer.text


@pytest.mark.parametrize("form", [{}, {"token": "wrong"}, {"token": "x" * 5000}, {"token": "<script>"}], ids=str)
def test_a_wrong_token_logs_nobody_in(browser: Opening, form: dict[str, str]) -> None:
    answer = browser().post("/login", form=form, headers={"Origin": HERE})
    assert answer.status == 401
    assert "<script>" not in answer.text
    assert "set-cookie" not in answer.headers


def test_logging_out(app: FastAPI, browser: Opening) -> None:
    client = logged_in(app, browser)
    assert client.post("/logout", headers={"Origin": HERE}).status == 200
    assert client.get("/api/who").status == 401


def test_who_logs_out_after_the_session_has_ended_is_told_so(browser: Opening) -> None:
    answer = browser().post("/logout", headers={"Origin": HERE, "Cookie": "outlast_session_8765=old"})
    assert (answer.status, "Logged out" in answer.text) == (200, True)
    with pytest.raises(OutlastError, match="evil"):
        browser().post("/logout", headers={"Origin": "https://evil.example"})


def test_two_servers_of_a_machine_have_a_session_each(app: FastAPI, browser: Opening) -> None:
    answers = [
        browser(f"http://localhost:{port}").get("/login?once=" + app.state.tokens.link("ann")) for port in (1, 2)
    ]
    names = [answer.headers["set-cookie"].partition("=")[0] for answer in answers]
    assert names == ["outlast_session_1", "outlast_session_2"]


# --- A browser on another origin -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "https://evil.example",
        "http://localhost.evil.example:8765",
        "http://localhost:8766",
        "http://127.0.0.1:8765",
        "http://localhost:8765.evil.example",
        "http://localhost:99999999",
        "file://localhost:8765",
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_another_origin_cannot_use_the_cookie(app: FastAPI, browser: Opening, method: str, origin: str | None) -> None:
    client = logged_in(app, browser)
    headers = {} if origin is None else {"Origin": origin}
    answer = client.ask(method, "/api/who", headers=headers)
    assert answer.status == 401
    assert "not from a page of this server" in answer.json()["detail"]
    assert client.ask(method, "/api/who", headers={"Origin": HERE}).json()["role"] == "admin"


def test_another_origin_cannot_log_somebody_in(store: Store, browser: Opening) -> None:
    answer = browser().post("/login", form={"token": token(store)}, headers={"Origin": "https://evil.example"})
    assert answer.status == 401


def test_behind_a_proxy_that_ends_tls_pages_are_of_https(app: FastAPI, browser: Opening) -> None:
    settings = ServerSettings(names=("state.example.org",))
    client = browser("http://state.example.org", settings)
    client.get("/login?once=" + app.state.tokens.link("ann"))
    assert client.post("/api/who", headers={"Origin": "https://state.example.org"}).status == 200


def test_a_page_without_tls_is_another_origin_than_one_with(app: FastAPI, browser: Opening) -> None:
    client = browser("https://localhost")
    client.get("/login?once=" + app.state.tokens.link("ann"))
    assert client.post("/api/who", headers={"Origin": "http://localhost"}).status == 401
    assert client.post("/api/who", headers={"Origin": "https://localhost"}).status == 200


# --- Hosts and headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8765", "127.0.0.1:8765", "[::1]:8765", "box.test"])
def test_a_server_answers_to_its_own_names(app: FastAPI, browser: Opening, host: str) -> None:
    client = logged_in(app, browser, settings=ServerSettings(names=("box.test",)))
    assert client.get("/api/who", headers={"Host": host}).status in (200, 401)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "", "[", "127.0.0.2", "a@b"])
def test_a_name_that_was_made_to_point_here_is_refused(app: FastAPI, browser: Opening, host: str) -> None:
    client = logged_in(app, browser)
    answer = client.get("/api/who", headers={"Host": host})
    assert answer.status == 421
    assert "[server] names" in answer.json()["detail"]
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize(
    ("settings", "hosts"),
    [
        (ServerSettings(), ("localhost", "127.0.0.1", "::1", "127.0.0.1")),
        (ServerSettings(host="0.0.0.0"), None),
        (ServerSettings(host="0.0.0.0", names=("box",)), ("localhost", "127.0.0.1", "::1", "0.0.0.0", "box")),
        (ServerSettings(uds="/run/o.sock", host="0.0.0.0"), ("localhost", "127.0.0.1", "::1", "0.0.0.0")),
    ],
    ids=["loopback", "open", "named", "socket"],
)
def test_names_are_checked_where_they_are_known(settings: ServerSettings, hosts: tuple[str, ...] | None) -> None:
    assert hosts_of(settings) == hosts


def test_every_answer_binds_the_browser(app: FastAPI, browser: Opening) -> None:
    client = logged_in(app, browser)
    for path in ("/login", "/api/who", "/nowhere", "/static/page.css"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers.get("cache-control") == (None if path.startswith("/static/") else "no-store")


@pytest.mark.parametrize("root", ["", "/static"])
def test_what_is_called_like_the_page_s_own_files_is_not_stored(app: FastAPI, root: str) -> None:
    client = Browser(BrowserRules(app), HERE + root)
    for path in ("/runs/static/r1/tasks/t/state/k", "/login/static/page.css"):
        assert client.get(path).headers["cache-control"] == "no-store"


def test_the_login_page_keeps_its_own_policy(browser: Opening) -> None:
    text = browser().get("/login").text
    for forbidden in ("<script", "<style", " style=", " onclick=", "javascript:"):
        assert forbidden not in text


def test_a_local_user_is_an_admin(app: FastAPI, browser: Opening) -> None:
    text = app.state.tokens.local("ann@desk")
    assert browser().get("/api/who", headers={"Authorization": f"Bearer {text}"}).json()["role"] == "admin"
    assert Who("admin", "x").sees_all
