"""Assets: the list, and one with its keys, who wrote them and their history over runs."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from starlette.responses import Response

from ..outlast_shapes import AssetShape, AssetsPage, ScopeShape
from .asking import PREFIX, Refused, path_of
from .commands import Command, command_line, curl, state_commands
from .rendering import View, route
from .shapes import Entries
from .task_views import PAGE, TOLD, histories, key_page

__all__ = ["ROUTES"]


async def _assets(view: View) -> Response:
    after = view.query.get("after")
    asked = [("limit", PAGE), *([("after", after)] if after else [])]
    page = await view.api.get(path_of("assets"), AssetsPage, asked)
    return await view.page(
        "assets.html",
        assets=page.assets,
        after=page.after,
        poll=5,
        commands=[
            curl(view.server + path_of("assets")),
            Command("Command line", command_line("outlast", "assets", "ls", "--store", view.server)),
        ],
    )


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
    return await view.page(
        "asset.html",
        asset=asset,
        scope=scope,
        entries=page.entries,
        revision=page.revision,
        after=page.after,
        prefix=view.query.get("prefix", ""),
        writes=await histories(view, path, [], [entry.key for entry in told]),
        base=["assets", asset.id],
        state_url=f"{view.root}{path}/state",
        commands=state_commands(scope, f"{view.server}{path}/state", view.server),
        export=f"{view.root}{PREFIX}/export?{urlencode({'asset': asset.name or asset.uri or ''})}",
        events=urlencode({"asset": asset.name or asset.uri or ""}),
    )


async def _found(view: View, text: str) -> AssetShape:
    """Return an asset by its id, as the list of assets tells it."""
    if text.isascii() and text.isdecimal() and 0 < len(text) < 19 and int(text) > 0:
        page = await view.api.get(path_of("assets"), AssetsPage, [("after", int(text) - 1), ("limit", 1)])
        if page.assets and page.assets[0].id == int(text):
            return page.assets[0]
    raise Refused(404, f"there is no asset with the id {text[:40]!r}; the list of assets has them all")


ROUTES: Final = [route("/assets", _assets), route("/assets/{id}", _asset)]
