"""The OpenAPI 3.1 document of the public API, made from the operations and the structs they read and answer."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from .operations import Operation, Parameter

__all__ = ["document"]

_REF = "#/components/schemas/{name}"
_ABOUT = """\
State of tasks and assets that outlives retries, crashes and workers.

`/api/v2` is Airflow 3.3.2's state-store API with what a client needs to find ids; `/api/outlast/v1` is outlast's own.
Every call but `/api/v2/monitor/health` needs a token: `Authorization: Bearer …`. Ids and keys in a path are UTF-8,
percent-encoded once; a key's slashes may stay as they are. Unknown query parameters and unknown fields of a body are
refused.
"""
_TEXT = r"^[^\u0000-\u001f\u007f]+$"
_NAME = r"^[^\u0000-\u001f\u007f/ ][^\u0000-\u001f\u007f/]*$"
_ID = {
    "type": "string",
    "minLength": 1,
    "maxLength": 250,
    "pattern": _NAME,
}
_PLACES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "dag_id": (_ID, "Id of the DAG.", "nightly"),
    "dag_run_id": (_ID, "Id of the run.", "2026-11-29"),
    "run_id": (_ID, "Id of the run.", "2026-11-29"),
    "task_id": (_ID, "Id of the task.", "ingest"),
    "asset_id": ({"type": "integer", "minimum": 1}, "Id of the asset, as the list of assets tells it.", 7),
    "map_index": ({"type": "integer", "minimum": -1}, "Position of the item of a mapped task; -1: not mapped.", 3),
    "key": (
        {"type": "string", "minLength": 1, "maxLength": 512, "pattern": _TEXT},
        "The key: text without control characters, percent-encoded; `.` and `..` may be no part between slashes.",
        "progress",
    ),
}
_MEANINGS = {
    409: "It conflicts with what is there now.",
    412: "`If-Match` or `If-None-Match` did not hold; `current` is the entry as it is now.",
    401: "The token is missing, wrong, expired, or not for this.",
    404: "There is no such thing, or it is not for this token to see.",
    413: "The body, or the value, is above the hard limit (16 MiB a value).",
    422: "Something in the request is wrong; `detail` says what, and what was expected.",
    503: "The database failed or could not be reached; try again.",
}

_STREAMS = {
    "application/x-ndjson": "A stream, as the description says.",
    "text/plain": "Text as Prometheus reads it.",
    "text/event-stream": "Server-sent events, as long as the connection lasts.",
}


def document(operations: Iterable[Operation], version: str, root_path: str = "") -> dict[str, Any]:
    """Return the document of a server that is reached under `root_path`."""
    known = list(operations)
    shapes = _shapes(known)
    paths: dict[str, dict[str, Any]] = {}
    (_, components) = msgspec.json.schema_components(shapes, ref_template=_REF)
    for operation in known:
        path = operation.path.replace(":path}", "}")
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "outlast", "version": version, "description": _ABOUT},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _shapes(operations: Iterable[Operation]) -> list[Any]:
    found = {
        shape: None
        for operation in operations
        for shape in (operation.body, *operation.answers.values())
        if shape is not None
    }
    return list(found)


def _operation(operation: Operation) -> dict[str, Any]:
    summary, description = operation.about
    told: dict[str, Any] = {"operationId": operation.name, "tags": [operation.tag], "summary": summary}
    if description:
        told["description"] = description
    told["parameters"] = [_place(name) for name in operation.names] + [_parameter(p) for p in operation.parameters]
    if operation.body is not None:
        told["requestBody"] = {"required": True, "content": {operation.takes: _content(operation)}}
    if operation.is_open:
        told["security"] = []
    told["responses"] = {str(status): _answer(operation, status) for status in sorted(operation.answers)}
    return told


def _content(operation: Operation) -> dict[str, Any]:
    schema = _schema(operation.body) if operation.takes == "application/json" else {"type": "string"}
    return {"schema": schema} if operation.example is None else {"schema": schema, "example": operation.example}


def _place(name: str) -> dict[str, Any]:
    schema, about, example = _PLACES[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": schema,
        "description": about,
        "example": example,
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = msgspec.json.schema(parameter.kind)
    if parameter.many:
        schema = {"type": "array", "items": schema}
    if parameter.default not in (None, (), ""):
        schema = {**schema, "default": parameter.default}
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": False,
        "schema": schema,
        "description": parameter.help,
    }


def _answer(operation: Operation, status: int) -> dict[str, Any]:
    shape = operation.answers[status]
    if status < 300:
        return _success(operation, status, shape)
    return {"description": _MEANINGS[status], "content": {"application/json": {"schema": _schema(shape)}}}


def _success(operation: Operation, status: int, shape: Any) -> dict[str, Any]:
    if status == 204:
        return {"description": HTTPStatus(status).phrase}
    if operation.gives != "application/json":
        about = _STREAMS[operation.gives]
        return {"description": about, "content": {operation.gives: {"schema": {"type": "string"}}}}
    schema = {"type": "null"} if shape is None else _schema(shape)
    return {"description": HTTPStatus(status).phrase, "content": {"application/json": {"schema": schema}}}


def _schema(shape: Any) -> dict[str, Any]:
    return {"$ref": _REF.format(name=shape.__name__)}
