"""Find: entries across all scopes, as a form whose every field is in the URL. And health: what is wrong, in words."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from ..health import HealthShape
from .asking import PREFIX, Refused, path_of
from .commands import Command, command_line, curl, python, text
from .rendering import View, route
from .shapes import Found

__all__ = ["ROUTES", "criteria"]

_TEXTS: Final = ("dag", "run", "task", "key", "where")
_HOURS: Final = ("older_than", "newer_than", "expiring_within")
_SIZES: Final = ("min_bytes", "max_bytes")
_LIMIT: Final = 200


async def _find(view: View) -> Response:
    fields = {name: view.query.get(name, "").strip() for name in (*_TEXTS, *_HOURS, *_SIZES)}
    assets, jump = "assets" in view.query, view.query.get("q", "").strip()
    if jump and not fields["key"]:
        fields["key"] = jump if any(character in jump for character in "*?[") else f"*{jump}*"
    found, problem = None, None
    asked = criteria(fields, assets)
    if asked or "go" in view.query:
        try:
            found = await view.api.get(path_of("find"), Found, [*asked, ("limit", _LIMIT)])
        except Refused as refused:
            problem = refused.detail
    return await view.page(
        "find.html",
        fields=fields,
        assets=assets,
        found=found,
        problem=problem,
        commit=view.root + path_of("commit"),
        again=f"{view.root}{path_of('find')}?{urlencode([*asked, ('limit', _LIMIT)])}",
        may_delete=view.may_write_assets if assets else view.may_write,
        commands=[
            curl(f"{view.server}{PREFIX}/find?{urlencode(asked)}"),
            Command("Command line", command_line("state find", store=view.server, options=_options(asked))),
            python(view.server, f"print(store.find({_arguments(asked)}))"),
        ],
        poll=0,
    )


def criteria(fields: dict[str, str], assets: bool) -> list[tuple[str, Any]]:
    """Return what the API is asked: of the fields those that are filled in, hours as seconds."""
    fields = fields | {"where": _condition(fields["where"])}
    asked: list[tuple[str, Any]] = [(name, fields[name]) for name in (*_TEXTS, *_SIZES) if fields[name]]
    asked += [(name, _seconds(fields[name])) for name in _HOURS if fields[name]]
    if assets:
        asked = [(name, value) for name, value in asked if name not in ("dag", "run", "task")] + [("assets", "true")]
    return asked


def _condition(typed: str) -> str:
    """Return what a value has to be like; one that stands alone is the whole of it."""
    try:
        msgspec.json.decode(typed)
    except msgspec.DecodeError:
        return typed  # a condition, or the API says what is wrong with it
    return f"$ == {typed}"


def _seconds(hours: str) -> str:
    try:
        return f"{float(hours) * 3600:.0f}"
    except ValueError:
        return hours  # the API says what is wrong with it


def _options(asked: list[tuple[str, Any]]) -> list[str]:
    words: list[str] = []
    for name, value in asked:
        given = f"{value}s" if name in _HOURS else str(value)
        words += ["--assets"] if name == "assets" else [f"--{name.replace('_', '-')}", given]
    return words


def _arguments(asked: list[tuple[str, Any]]) -> str:
    words = []
    for name, value in asked:
        match name:
            case "assets":
                words.append("assets=True")
            case "min_bytes" | "max_bytes":
                words.append(f"{name}={value}")
            case _ if name in _HOURS:
                words.append(f"{name}=datetime.timedelta(seconds={value})")
            case _:
                words.append(f"{name}={text(str(value))}")
    return ", ".join(words)


async def _health(view: View) -> Response:
    told = await view.api.get(path_of("health"), HealthShape, also=503)
    commands = [
        curl(view.server + path_of("health")),
        Command("Command line", command_line("doctor", store=view.server)),
        python(view.server, "print(store.scopes())"),
    ]
    return await view.page("health.html", told=told, commands=commands, poll=5)


ROUTES: Final = [route("/find", _find), route("/health", _health)]
