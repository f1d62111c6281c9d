"""From data to HTML: the templates, how values, times and sizes are written, and what every view shares."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ... import __version__
from ...errors import OutlastError
from ..identity import Who, identify
from .asking import Api, Refused

__all__ = ["View", "alone", "is_looked_at", "nowhere", "readable", "route", "time_tag"]

#: Characters of a value that are shown in a list; all of it is a click away.
SHORT: Final = 400
#: Characters that change what stands around them, or that nobody can see. JSON has an escape for each.
_UNSEEN: Final = re.compile("[\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\x7f-\x9f]")
#: States in the order in which somebody who is worried wants to read them.
_WORST: Final = ("failed", "upstream_failed", "running", "up_for_retry", "deferred", "scheduled", "waiting")
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class View:
    """One look at the page: who looks, from where, and the way to the data."""

    def __init__(self, request: Request, who: Who) -> None:
        self.request, self.who, self.api = request, who, Api(request)
        self.root = str(request.app.state.settings.root_path).rstrip("/")
        self.store = request.app.state.store
        self.now = datetime.fromtimestamp(self.store.clock() / 1e6, UTC)
        self.query = request.query_params

    @property
    def may_write(self) -> bool:
        """Whether this person changes what tasks have stored."""
        return self.who.role in ("editor", "admin")

    @property
    def may_write_assets(self) -> bool:
        """Whether this person changes what assets hold: with a token for every DAG only."""
        return self.may_write and self.who.sees_all

    @property
    def server(self) -> str:
        """The address of this server, as the browser knows it."""
        return _server(self.request, self.root)

    def href(self, *parts: Any, **query: Any) -> str:
        """Return a link within the page; what is None or empty is left out of the query."""
        path = "".join(f"/{quote(str(part), safe='')}" for part in parts) or "/"
        given = urlencode([(name, value) for name, value in query.items() if value not in (None, "")], doseq=True)
        return self.root + path + (f"?{given}" if given else "")

    async def page(
        self, template: str, *, status: int = 200, events: str | None = None, poll: int = 30, **more: Any
    ) -> Response:
        """Return a page. `events` is the query of the stream to watch for it, `poll` seconds between two looks.

        It is made in a thread: one of 5,000 task instances takes a while, and workers must not wait for it.
        """
        shared = {
            "view": self,
            "version": __version__,
            "days": self.store.config.state_store.default_retention_days,
            "events": events,
            "poll": poll,
            "cut": SHORT,
            "here": self.request.url.path.removeprefix(self.root) or "/",
        }
        made = _templates().get_template(template)
        return HTMLResponse(await asyncio.to_thread(made.render, **shared, **more), status)


Showing = Callable[[View], Awaitable[Response]]


def route(path: str, show: Showing) -> Route:
    """Return a route that shows a view to whoever is logged in, and says what is wrong as a page."""

    async def endpoint(request: Request) -> Response:
        return await _shown(request, show)

    return Route(path, endpoint, methods=["GET"], include_in_schema=False)


async def _shown(request: Request, show: Showing) -> Response:
    try:
        who = await identify(request)
    except OutlastError as error:
        return alone(request, error.status, "login", error.message)
    view = View(request, who)
    try:
        return await show(view)
    except Refused as refused:
        return await view.page("refused.html", status=refused.status, refused=refused, poll=0)


def is_looked_at(request: Request) -> bool:
    """Say whether a browser asks for a page: not a program, and nothing of the API."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    wants_page = "text/html" in request.headers.get("accept", "")
    return request.method == "GET" and wants_page and not path.startswith(("/api/", "/static/"))


async def nowhere(request: Request) -> Response:
    """Show that there is no page at this path."""

    async def show(view: View) -> Response:
        raise Refused(404, f"The page has nothing at {request.url.path[:200]}.")

    return await _shown(request, show)


def alone(request: Request, status: int, kind: str, message: str = "") -> HTMLResponse:
    """Return a page for whoever is not logged in: `kind` is stranger, login, in (just logged in) or out."""
    root = str(request.app.state.settings.root_path).rstrip("/")
    told = {"root": root, "server": _server(request, root), "kind": kind, "message": message}
    return HTMLResponse(_templates().get_template("alone.html").render(told), status)


def _server(request: Request, root: str) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{root}"


@lru_cache(maxsize=1)
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "readable": readable,
        "short": short,
        "plain": plain,
        "coded": coded,
        "part": lambda text: quote(text, safe=""),
        "when": time_tag,
        "span": span,
        "size": size,
        "number": lambda number: f"{number:,}",
        "rate": per_second,
        "pace": pace,
        "iso": lambda moment: moment.isoformat(),
        "kind": kind_of,
        "worst_first": worst_first,
    }
    return made


# --- How things are written ----------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a text with what cannot be seen, or turns others round, written as an escape."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def coded(text: str) -> Markup:
    """Return a sentence with what it has between backticks as code."""
    parts = (escape(part) for part in plain(text).split("`"))
    return Markup("").join(
        part if number % 2 == 0 else Markup("<code>{}</code>").format(part) for number, part in enumerate(parts)
    )


def readable(value: msgspec.Raw) -> str:
    """Return a value as JSON over several lines; its numbers and strings stay as they are stored."""
    return plain(msgspec.json.format(bytes(value), indent=2).decode())


def short(value: msgspec.Raw) -> str:
    """Return the beginning of a value, on one line."""
    text = bytes(value)[: SHORT * 4 + 4].decode(errors="ignore")
    return plain(text if len(text) <= SHORT else text[:SHORT] + "…")


def kind_of(value: msgspec.Raw) -> str:
    """Return the JSON type of a value, by its first character."""
    first = bytes(value)[:1]
    kinds = {b'"': "text", b"{": "object", b"[": "array", b"t": "true/false", b"f": "true/false", b"n": "null"}
    return kinds.get(first, "number")


def worst_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return how many are in each state, those first that matter most to somebody who is worried."""
    return sorted(counts.items(), key=lambda each: _WORST.index(each[0]) if each[0] in _WORST else len(_WORST))


def time_tag(moment: datetime | None, how: str = "ago") -> Markup:
    """Return a moment that the browser shows as `ago`, `until`, `elapsed` or `at`; without scripts it is UTC."""
    if moment is None:
        return Markup('<span class="quiet">–</span>')
    exact = moment.astimezone(UTC)
    shown = exact.strftime("%Y-%m-%d %H:%M:%SZ")
    return Markup('<time datetime="{}" data-how="{}" title="{}">{}</time>').format(
        exact.isoformat(), how, exact.isoformat(" "), shown
    )


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole, parts = int(seconds), []
    for length, unit in _UNITS:
        if whole >= length:
            parts.append(f"{whole // length} {unit}")
            whole %= length
    return " ".join(parts[:2])


def per_second(rate: float) -> str:
    """Return how often something happens."""
    return f"{rate:,.1f}/s" if rate < 100 else f"{min(rate, 1e15):,.0f}/s"


def pace(rate: float) -> str:
    """Return how fast items are done: of slow ones how long each takes."""
    return f"{span(1 / rate)} an item" if 1e-9 < rate < 0.5 else per_second(rate)


def size(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return "–"
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
