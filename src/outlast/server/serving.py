"""Run the application: listen, say so, answer until told to stop, let calls in flight end."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.routing import Mount, Route

from ..config import ServerSettings, without_password
from ..errors import ConfigError
from ..store import Store
from .app import App, make_app
from .browser import login_path
from .connections import LimitedProtocol, most_connections
from .listening import is_local, left_for_own_user, listening, tls_problem, url_of
from .tokens import any_exist

__all__ = ["make_server", "serve", "served"]

logger = logging.getLogger("outlast.server")

#: Seconds an idle connection is kept, for longer than a client keeps it.
KEEP_SECONDS = 75
#: Seconds a server in a thread has to begin.
_START = 10.0
#: A path that everybody writes alike: nothing in it has to be percent-encoded, and no part is `.` or `..`.
_ROOT = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*")


def serve(store: Store, settings: ServerSettings, announce: Callable[[str, str | None], None]) -> None:
    """Serve a store until SIGTERM or SIGINT.

    `announce` is told the URL when it is reachable, and the link that opens the page once, where only this machine is.

    Raises ConfigError for a place that cannot be listened on, and for one that others can reach while no token exists.
    """
    _refuse_open_door(store, settings)
    with listening(settings) as listener:
        url, app = url_of(settings, listener), _app(store, settings)

        def started() -> None:
            logger.info("serving %s at %s", without_password(store.url), url)
            if not is_local(settings) and not settings.tls_certificate:
                logger.warning(
                    "others can reach %s and it has no TLS: tokens and values cross the network readable; "
                    "give --tls-cert, or let nobody but a proxy that ends TLS reach it",
                    url,
                )
            announce(url, _link(app, settings, url))

        server = make_server(app, settings, started, app.state.feed_reader.close)
        try:
            if is_local(settings):
                with left_for_own_user(store.config, settings, listener, app.state.tokens.local(_user())):
                    server.run(sockets=[listener])
            else:
                server.run(sockets=[listener])
        finally:
            logger.info("stopped serving at %s", url)


@contextmanager
def served(store: Store, settings: ServerSettings, announce: Callable[[str, str | None], None]) -> Iterator[None]:
    """Serve a store to this machine from a thread, for the length of a block; it begins when `announce` was told.

    Raises ConfigError for a place that cannot be listened on.
    """
    with listening(settings) as listener:
        url, app = url_of(settings, listener), _app(store, settings)
        token, link = app.state.tokens.local(_user()), _link(app, settings, url)
        started = threading.Event()
        server = make_server(app, settings, started.set, app.state.feed_reader.close)
        thread = threading.Thread(target=server.run, args=([listener],), name="outlast-server", daemon=True)
        with left_for_own_user(store.config, settings, listener, token):
            thread.start()
            started.wait(_START)
            announce(url, link)
            try:
                yield
            finally:
                server.should_exit = True
                thread.join()


def make_server(
    app: Any,
    settings: ServerSettings,
    started: Callable[[], None] = lambda: None,
    stopping: Callable[[], Awaitable[None]] | None = None,
) -> uvicorn.Server:
    """Return a server for an application, still to be run; `started` is called when it answers.

    `stopping` is awaited when it is told to stop, before it waits for calls in flight: some do not end by themselves.

    Raises ConfigError for a certificate that cannot be used.
    """
    limits = {"seconds": settings.request_seconds, "most": most_connections()}
    limited = type("Protocol", (LimitedProtocol,), limits)
    config = uvicorn.Config(
        Rooted(app, settings.root_path),
        http=limited,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies) or None,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise tls_problem(settings, error) from error
    return _Server(config, started, stopping)


def _link(app: App, settings: ServerSettings, url: str) -> str | None:
    """Return the link that opens the page once; who can reach it from elsewhere logs in with a token."""
    if settings.uds is not None or not is_local(settings):
        return None
    return url.removesuffix(settings.root_path) + login_path(settings, app.state.tokens.link(_user()))


def _refuse_open_door(store: Store, settings: ServerSettings) -> None:
    if settings.tls_key and not settings.tls_certificate:
        raise ConfigError("there is a TLS key and no certificate; give both, or neither")
    if not is_local(settings) and not any_exist(store):
        raise ConfigError(
            f"others can reach {settings.host}, and no token exists that says who may; make one first: "
            "outlast token create --role admin --name NAME"
        )


def _app(store: Store, settings: ServerSettings) -> App:
    """Return the application; ConfigError for a root path written in several ways, or like paths of the server's."""
    app, root = make_app(store, settings), settings.root_path
    if not _ROOT.fullmatch(root):
        raise ConfigError(
            f"cannot be shown under {root!r}; a --root-path is of letters, digits and - . _ ~ between slashes, "
            "such as /outlast"
        )
    own = {route.path.split("/")[1] for route in app.routes if isinstance(route, Route | Mount)} | {"execution"}
    if root and root.split("/")[1] in own:
        raise ConfigError(
            f"cannot be shown under {root!r}: the server has paths of its own that begin like that, and behind a proxy "
            "that takes the root away nobody could tell which is meant; choose another --root-path, such as /outlast"
        )
    return app


def _user() -> str:
    import getpass

    try:
        return f"{getpass.getuser()} (local)"
    except (OSError, KeyError):
        return f"user {os.getuid()} (local)"


class Rooted:
    """Shows an application under a path, whether or not the proxy before it takes that path away."""

    def __init__(self, app: Any, root: str) -> None:
        self.app, self.root = app, root

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.root and scope["type"] == "http":
            scope = {**scope, "root_path": self.root}
            if scope["path"] == self.root:
                scope["path"], scope["raw_path"] = scope["path"] + "/", scope["raw_path"] + b"/"
            if not scope["path"].startswith(self.root + "/"):
                scope["path"] = self.root + scope["path"]
                scope["raw_path"] = self.root.encode() + scope["raw_path"]
        with suppress(ClientDisconnect):  # nobody is left to be answered
            await self.app(scope, receive, send)


class _Server(uvicorn.Server):
    """Says when it has started, and leaves ending the process to whoever runs it."""

    def __init__(
        self,
        config: uvicorn.Config,
        started: Callable[[], None],
        stopping: Callable[[], Awaitable[None]] | None,
    ) -> None:
        super().__init__(config)
        self._announce, self._stopping = started, stopping

    async def shutdown(self, sockets: Any = None) -> None:
        if self._stopping is not None:
            await self._stopping()
        await super().shutdown(sockets)

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop in an orderly way at a signal, which is then dealt with: files are removed, the store is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
