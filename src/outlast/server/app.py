"""The application: the workers' door, the public API and the page over one gate to one store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..config import ServerSettings
from ..errors import OutlastError
from ..store import Store
from . import airflow_api, browser, execution, health, metrics, outlast_api, page
from .feed_reader import FeedReader
from .gate import Gate
from .maintenance import Maintenance
from .nameless import nameless
from .page.rendering import is_looked_at, nowhere
from .recognised import Recognised
from .refusals import Refusals
from .survey import Survey
from .tokens import Tokens

__all__ = ["App", "make_app"]

#: What refusals of the router are called.
_CODES = {404: "not_found", 405: "method_not_allowed"}


class App(FastAPI):
    """The application. Workers' calls go past the framework, whose layers would cost more than the call itself."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            noting = self.state.refusals.noting(scope, send)
            await self.state.metrics.measured(self._answer, scope, receive, noting)
        else:
            await super().__call__(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST" and execution.is_door(scope):
            scope["app"] = self
            await execution.answer(Request(scope, receive), send)
        else:
            await super().__call__(scope, receive, send)


def make_app(store: Store, settings: ServerSettings) -> App:
    """Return the application that serves a store; whoever opened the store closes it."""
    app = App(lifespan=_lifespan, redirect_slashes=False, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.store, app.state.settings = store, settings
    app.state.tokens = Tokens(store.backend, store.clock)
    gate = app.state.gate = Gate(store)
    reader = app.state.feed_reader = FeedReader(store.backend, store.clock)
    gate.on_commit, reader.is_busy = reader.wake, gate.is_busy
    app.state.recognised = Recognised(store.clock)
    app.state.maintenance, app.state.survey = Maintenance(store), Survey(store)
    app.state.refusals = Refusals()
    app.state.metrics, app.state.checks = metrics.Metrics(app.state), health.Checks(store.backend.asend)
    app.router.routes.extend(page.routes())  # before those of browser, whose `/` is for strangers and programs
    for router in (airflow_api.router, outlast_api.router, browser.router):
        app.router.routes.extend(router.routes)
    app.router.routes.extend([*metrics.routes(), *health.routes()])
    app.add_exception_handler(OutlastError, _refused)
    app.add_exception_handler(HTTPException, _unrouted)
    app.add_middleware(browser.BrowserRules, hosts=browser.hosts_of(settings))
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    state.maintenance.start()
    try:
        yield
    finally:
        await state.feed_reader.close()
        await state.maintenance.stop()
        await state.survey.close()
        await state.gate.close()


async def _refused(request: Request, error: Exception) -> Response:
    """Answer an error of a route that did not answer it itself."""
    assert isinstance(error, OutlastError)
    error = nameless(error, request.app.state.store)
    content: dict[str, Any] = {"detail": error.message, "code": error.code}
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return Response(msgspec.json.encode(content), error.status, headers, "application/json")


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer for a path, or a method of one, that there is none of; Airflow's API does so without a code."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and is_looked_at(request):
        return await nowhere(request)
    content = {"detail": error.detail}
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if not path.startswith("/api/v2/"):
        content["code"] = _CODES.get(error.status_code, "invalid_value")
    return Response(msgspec.json.encode(content), error.status_code, error.headers, "application/json")
