"""The page's own files, under /static: a style sheet and a few ES modules, read once, with an ETag each."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

__all__ = ["FOLDER", "ROUTES"]

FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


async def _file(request: Request) -> Response:
    found = _all().get(request.path_params["name"])
    if found is None:
        return JSONResponse({"detail": "Not Found", "code": "not_found"}, 404)
    kind, content, etag = found
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(None, 304, headers)
    return Response(content, 200, headers, kind)


@lru_cache(maxsize=1)
def _all() -> dict[str, tuple[str, bytes, str]]:
    found = {}
    for path in FOLDER.iterdir():
        if path.suffix in _KINDS:
            content = path.read_bytes()
            etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
            found[path.name] = (_KINDS[path.suffix], content, etag)
    return found


ROUTES: Final = [Route("/static/{name}", _file, methods=["GET"], include_in_schema=False)]
