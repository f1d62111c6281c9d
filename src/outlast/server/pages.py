"""/openapi.json, and /docs: the same as a page, made here, with no script and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from .identity import identify
from .openapi import document
from .operations import JSON, Operation

__all__ = ["page", "routes"]

_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --quiet: #777; --mark: #3b82f6; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); }
details { border: 1px solid var(--line); border-radius: 4px; margin: .4rem 0; padding: .3rem .7rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
summary b { display: inline-block; min-width: 4.2rem; color: var(--mark); }
summary span { color: var(--quiet); display: block; padding-left: 4.2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; }
th { font-weight: 600; border-bottom: 1px solid var(--line); }
"""


def routes(operations: Iterable[Operation]) -> list[BaseRoute]:
    """Return the routes; the document is made when it is first asked for."""
    known = list(operations)

    @lru_cache(maxsize=8)
    def made(version: str, root_path: str) -> tuple[bytes, str]:
        told = document(known, version, root_path)
        return msgspec.json.encode(told), page(told)

    def asked(request: Request) -> tuple[bytes, str]:
        return made(request.app.version, request.scope.get("root_path", ""))

    async def openapi(request: Request) -> Response:
        await identify(request)
        return Response(asked(request)[0], media_type=JSON)

    async def docs(request: Request) -> Response:
        await identify(request)
        return HTMLResponse(asked(request)[1])

    async def style(request: Request) -> Response:
        return Response(_STYLE, media_type="text/css")

    return [Route("/openapi.json", openapi), Route("/docs", docs), Route("/docs.css", style)]


def page(told: dict[str, Any]) -> str:
    """Return the document as a page."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method.upper(), path, operation))
    parts = "".join(f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in by_tag.items())
    shapes = "".join(_shape(name, schema) for name, schema in sorted(told["components"]["schemas"].items()))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>outlast: HTTP API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="docs.css">'
        f"</head><body><h1>outlast {escape(told['info']['version'])}: HTTP API</h1>{_text(told['info']['description'])}"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p>'
        f"{parts}<h2>Bodies</h2>{shapes}</body></html>"
    )


def _text(text: str) -> str:
    """Return paragraphs; what stands between backquotes is code."""
    pieces = escape(text).split("`")
    marked = "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
    return "".join(f"<p>{part}</p>" for part in marked.split("\n\n"))


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    head = f"<b>{method}</b><code>{escape(path)}</code><span>{escape(operation['summary'])}</span>"
    body = _text(operation["description"]) if "description" in operation else ""
    body += _parameters(operation["parameters"])
    if "requestBody" in operation:
        body += "".join(_sent(kind, content) for kind, content in operation["requestBody"]["content"].items())
    answers = "".join(_answer(status, answer) for status, answer in operation["responses"].items())
    return f"<details><summary>{head}</summary>{body}<table><tr><th>Answer<th><th></tr>{answers}</table></details>"


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{each['in']}<td>{_text(each['description'])}</tr>"
        for each in parameters
    )
    return f"<table><tr><th>Parameter<th>in<th></tr>{rows}</table>"


def _sent(kind: str, content: dict[str, Any]) -> str:
    example = ""
    if "example" in content:
        text = msgspec.json.format(msgspec.json.encode(content["example"]), indent=2).decode()
        example = f"<pre>{escape(text)}</pre>"
    return f"<p>Body: {_named(content['schema'])} <code>{kind}</code></p>{example}"


def _answer(status: str, answer: dict[str, Any]) -> str:
    shapes = ", ".join(_named(content["schema"]) for content in answer.get("content", {}).values())
    return f"<tr><td><code>{status}</code><td>{shapes}<td>{_text(answer['description'])}</tr>"


def _named(schema: dict[str, Any]) -> str:
    if "$ref" not in schema:
        return f"<code>{escape(str(schema.get('type', 'any')))}</code>"
    name = escape(schema["$ref"].rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


def _shape(name: str, schema: dict[str, Any]) -> str:
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    about = _text(schema.get("description", ""))
    head = f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
    return f"{head}{about}<pre>{escape(text)}</pre></details>"
