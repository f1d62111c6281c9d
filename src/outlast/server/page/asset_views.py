"""Assets: the list, and one with its keys, who wrote them and their history over runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import RedirectResponse, Response

from ..outlast_shapes import AssetShape, AssetsPage, ScopeShape
from .asking import PREFIX, Refused, path_of
from .commands import Command, command_line, curl, python, state_commands
from .rendering import View, route
from .ribbon import Write
from .shapes import Entries, Version, Writer
from .task_views import OF_ASSET, PAGE, TOLD, charts, handles, histories, key_page

__all__ = ["ROUTES", "Span", "spans"]

#: Keys and rows of the history over runs.
_COLUMNS, _ROWS = 6, 50


async def _assets(view: View) -> Response:
    after = view.query.get("after")
    if "name" in view.query or "uri" in view.query:
        return await _named(view)
    asked = [("limit", PAGE), *([("after", after)] if after else [])]
    page = await view.api.get(path_of("assets"), AssetsPage, asked)
    return await view.page(
        "assets.html",
        assets=page.assets,
        after=page.after,
        poll=5,
        commands=[
            curl(view.server + path_of("assets")),
            Command("Command line", command_line("assets ls", store=view.server)),
            python(view.server, "print(store.scopes(assets=True))"),
        ],
    )


async def _named(view: View) -> Response:
    """Lead to the asset with a name and a URI: where it is only known by them."""
    wanted, after = (view.query.get("name"), view.query.get("uri")), 0
    while True:
        page = await view.api.get(path_of("assets"), AssetsPage, [("after", after), ("limit", 1000)])
        for asset in page.assets:
            if (asset.name, asset.uri) == wanted:
                return RedirectResponse(view.href("assets", asset.id), 303)
        if page.after is None:
            raise Refused(404, "there is no asset with that name and URI; the list of assets has them all")
        after = page.after


async def _asset(view: View) -> Response:
    asset = await _found(view, view.request.path_params["id"])
    scope = ScopeShape("asset", f"asset {asset.name or asset.uri}", name=asset.name, uri=asset.uri)
    path, which = path_of("assets", str(asset.id)), [("limit", PAGE)]
    key = view.query.get("key")
    if key is not None:
        return await key_page(view, scope, path, [], key, view.href("assets", asset.id))
    after = view.query.get("after")
    asked = [*which, ("prefix", view.query.get("prefix", "")), *([("after", after)] if after else [])]
    page = await view.api.get(f"{path}/state", Entries, asked)
    told = sorted(page.entries, key=lambda entry: entry.updated_at, reverse=True)[:TOLD]
    writes = await histories(view, path, [], [entry.key for entry in told])
    spanned = [entry.key for entry in told[:_COLUMNS]]
    return await view.page(
        "asset.html",
        asset=asset,
        scope=scope,
        entries=page.entries,
        revision=page.revision,
        after=page.after,
        prefix=view.query.get("prefix", ""),
        spanned=spanned,
        spans=spans([write for write in writes if write.key in spanned])[:_ROWS],
        warnings=lambda key: OF_ASSET,
        versions=view.store.config.state_store.history_versions,
        charts=charts(writes),
        by=handles(scope),
        base=["assets", asset.id],
        state_url=f"{view.root}{path}/state",
        commands=state_commands(scope, f"{view.server}{path}/state", view.server),
        export=f"{view.root}{PREFIX}/export?{urlencode({'asset': asset.name or asset.uri or ''})}",
        events=urlencode({"asset": asset.name or asset.uri or ""}),
    )


class Span(msgspec.Struct, frozen=True):
    """Writes in a row by one attempt, person or program: the last version it left of each key, and how many."""

    writer: Writer
    at: datetime
    versions: dict[str, Version]
    counts: dict[str, int]


def spans(writes: Sequence[Write]) -> list[Span]:
    """Return the writes (newest first) put together by who made them."""
    found: list[Span] = []
    for write in writes:
        by: Any = write.version.writer
        if not found or found[-1].writer != by:
            found.append(Span(by, write.version.at, {}, {}))
        span = found[-1]
        span.versions.setdefault(write.key, write.version)
        span.counts[write.key] = span.counts.get(write.key, 0) + 1
    return found


async def _found(view: View, text: str) -> AssetShape:
    """Return an asset by its id, as the list of assets tells it."""
    if text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text) > 0:
        page = await view.api.get(path_of("assets"), AssetsPage, [("after", int(text) - 1), ("limit", 1)])
        if page.assets and page.assets[0].id == int(text):
            return page.assets[0]
    raise Refused(404, f"there is no asset with the id {text[:40]!r}; the list of assets has them all")


ROUTES: Final = [route("/assets", _assets), route("/assets/{id}", _asset)]
