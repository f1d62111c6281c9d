"""What the public routes share: an operation as data, the call that carries one out, its answers and errors.

Every route is an `Operation`: the router, the OpenAPI document and the page at /docs are made from the same list.
Ids and keys come from the path as it was sent, percent-decoded exactly once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..backends import Backend
from ..config import Config
from ..errors import Conflict, InvalidKey, InvalidValue, NotFound, OutlastError, Unauthorized
from ..values import Writer
from .identity import Who, identify
from .nameless import nameless
from .wording import token_of

__all__ = [
    "Call",
    "Operation",
    "Operations",
    "Parameter",
    "Precondition",
    "answer",
    "nothing",
]

Style: TypeAlias = Literal["airflow", "outlast"]
Handler: TypeAlias = Callable[["Call"], Awaitable[Response]]
T = TypeVar("T", bound=Callable[..., Any])

JSON = "application/json"
_QUERY = "query"


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter or a header: its name, its type as msgspec reads it, what it means, and its default."""

    name: str
    kind: Any
    help: str
    default: Any = None
    place: Literal["query", "header"] = "query"
    many: bool = False


class Operation(msgspec.Struct, frozen=True):
    """One method of one path: who carries it out, what it takes, and what it answers by status."""

    method: str
    path: str
    run: Any
    style: Style
    tag: str
    parameters: tuple[Parameter, ...]
    body: Any
    example: Any
    answers: dict[int, Any]
    name: str
    takes: str = JSON
    gives: str = JSON
    is_open: bool = False  # to whoever asks, without a token
    while_away: bool = False  # to who is known here, also while the store is away

    @property
    def about(self) -> tuple[str, str]:
        """Its summary and its description, from the function's docstring."""
        first, _, rest = inspect.cleandoc(self.run.__doc__ or "").partition("\n")
        return first.strip(), rest.strip()

    @property
    def names(self) -> tuple[str, ...]:
        """The names in its path, in order."""
        parts = self.path.split("/")
        return tuple(part.strip("{}").partition(":")[0] for part in parts if part.startswith("{"))


class Precondition(Exception):
    """The entry is not at the revision `If-Match` names, or is there where `If-None-Match: *` wants it absent."""

    def __init__(self, message: str, current: Any = None) -> None:
        super().__init__(message)
        self.message, self.current = message, current


class Call:
    """One request being carried out: who asks, the ids in its path, its parameters, and the way to the store."""

    def __init__(
        self, request: Request, who: Who, operation: Operation, places: dict[str, str], query: dict[str, Any]
    ) -> None:
        self.request, self.who, self.operation = request, who, operation
        self.places, self.query = places, query
        self.gate = request.app.state.gate
        self.store = self.gate.store
        self.backend: Backend = self.gate.backend_for(who)  # for the library's own verbs

    @property
    def config(self) -> Config:
        """The settings the store was opened with."""
        config: Config = self.store.config
        return config

    @property
    def writer(self) -> Writer:
        """Who is recorded as writing: the person, or program, that a token was given to."""
        return Writer("person", name=self.who.name)

    def now(self) -> int:
        """Return the time by the store's clock, in microseconds."""
        return int(self.store.clock())

    async def ask(self, request: Any, *, call_id: str | None = None, reveal: bool | None = None) -> Any:
        """Ask the store, through the gate; under the same call id of the same asker a change is made once.

        `reveal` (else what the query says) has secret values shown to those who may see them.
        """
        wants = self.query.get("reveal", False) if reveal is None else reveal
        return await self.gate.ask(request, self.who, call_id, reveal=bool(wants))


class Operations:
    """A list of operations to declare routes in, and to make a router of."""

    def __init__(self, prefix: str, style: Style) -> None:
        self.prefix, self.style = prefix, style
        self.all: list[Operation] = []

    def declare(
        self,
        method: str,
        path: str,
        *,
        tag: str,
        parameters: tuple[Parameter, ...] = (),
        body: Any = None,
        example: Any = None,
        answers: Mapping[int, Any],
        name: str | None = None,
        takes: str = JSON,
        gives: str = JSON,
        while_away: bool = False,
    ) -> Callable[[T], T]:
        """Declare the function below as what carries out an operation.

        `answers` says by status what it returns; None: no body.
        """

        def keep(run: T) -> T:
            known_as, whole = name or run.__name__, self.prefix + path
            shapes = dict(answers)
            operation = Operation(
                method,
                whole,
                run,
                self.style,
                tag,
                parameters,
                body,
                example,
                shapes,
                known_as,
                takes,
                gives,
                while_away=while_away,
            )
            self.all.append(operation)
            return run

        return keep

    def router(self) -> APIRouter:
        """Return a router with one route a path, which answers 405 for the methods it does not have."""
        router = APIRouter(redirect_slashes=False)
        for path in dict.fromkeys(operation.path for operation in self.all):
            by_method = {operation.method: operation for operation in self.all if operation.path == path}
            route = Route(path, _endpoint(by_method), methods=list(by_method), include_in_schema=False)
            route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)  # a key with a newline is 422, not 404
            router.routes.append(route)
        return router


# --- Answers -------------------------------------------------------------------------------------------------


def answer(content: Any, status: int = 200, *, etag: str | None = None) -> Response:
    """Return a JSON answer; values in it are given as the text they are stored as (`msgspec.Raw`)."""
    headers = None if etag is None else {"ETag": f'"{etag}"'}
    return Response(msgspec.json.encode(content), status, headers, JSON)


def nothing(etag: str | None = None) -> Response:
    """Return the answer to a write that has none: 204."""
    return Response(None, 204, None if etag is None else {"ETag": f'"{etag}"'})


# --- From a request to an answer -----------------------------------------------------------------------------


def _endpoint(operations: Mapping[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
    reading = operations.get("GET")

    async def endpoint(request: Request) -> Response:
        operation = operations.get(request.method) or reading  # HEAD is a GET without its body
        assert operation is not None
        try:
            return await _carry_out(operation, request)
        except Precondition as error:
            code = {} if operation.style == "airflow" else {"code": Conflict.code}
            return answer({"detail": error.message, **code, "current": error.current}, 412)
        except OutlastError as error:
            return _refusal(nameless(error, request.app.state.store), operation.style)

    return endpoint


async def _carry_out(operation: Operation, request: Request) -> Response:
    who = await (request.app.state.recognised.who if operation.while_away else identify)(request)
    if who.role == "triggers":  # what a process has, which asks at the workers' door
        raise Unauthorized(f"{token_of(who.role)} is good at the workers' door only")
    places = _places(operation, request)
    _refuse_preconditions(operation, request)
    try:
        query = _query(operation, request)
    except InvalidValue as error:
        error.add_note(_QUERY)
        raise
    response: Response = await operation.run(Call(request, who, operation, places, query))
    return response


def _refuse_preconditions(operation: Operation, request: Request) -> None:
    """Refuse what a write would pass over: whoever sends it counts on it."""
    known = [parameter.name for parameter in operation.parameters if parameter.place == "header"]
    for name in ("If-Match", "If-None-Match"):
        if operation.method != "GET" and name in request.headers and name not in known:
            takes = f"it takes {' and '.join(known)}" if known else "it takes no precondition"
            remedy = "; `check` operations are a commit's" if operation.path.endswith("/commit") else ""
            raise InvalidValue(f"{name} does not go with {operation.method} {operation.path}: {takes}{remedy}")


def _refusal(error: OutlastError, style: Style) -> Response:
    """Return an error as Airflow shapes it, or as itself."""
    content: dict[str, Any] = {"detail": error.message}
    if style == "airflow":
        if error.status == 422:
            content = {"detail": [{"type": error.code, "loc": [_locus(error)], "msg": error.message}]}
    else:
        fields = {name: value for name, value in error.fields().items() if value is not None}
        content = {**content, "code": error.code, **fields}
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return Response(msgspec.json.encode(content), error.status, headers, JSON)


def _locus(error: OutlastError) -> str:
    if _QUERY in getattr(error, "__notes__", ()):
        return _QUERY
    return "path" if isinstance(error, InvalidKey) else "body"


# --- The path and the query, decoded strictly ----------------------------------------------------------------


def _places(operation: Operation, request: Request) -> dict[str, str]:
    """Return the ids and the key in a path: split as it was sent, then decoded."""
    sent = _raw_path(request).split("/")[1:]
    wanted = operation.path.split("/")[1:]
    if wanted[-1].endswith(":path}"):
        sent = [*sent[: len(wanted) - 1], "/".join(sent[len(wanted) - 1 :])]
    if len(sent) != len(wanted):  # a "%2F" made it look like this path
        raise NotFound("Not Found")
    found = {}
    for part, raw in zip(wanted, sent, strict=True):
        if part.startswith("{"):
            found[part.strip("{}").partition(":")[0]] = _decoded(raw)
        elif _decoded(raw) != part:
            raise NotFound("Not Found")
    if "" in found.values():
        raise NotFound("Not Found")
    return found


def _raw_path(request: Request) -> str:
    scope = request.scope
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    root = scope.get("root_path", "").rstrip("/")
    if not root or not scope["path"].startswith(root + "/"):
        return path
    return "/" + path.split("/", root.count("/") + 1)[-1]  # by its parts: a letter of it may come percent-encoded


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise InvalidKey(f"the path has {segment!r}, which is not UTF-8; send UTF-8, percent-encoded") from None


def _query(operation: Operation, request: Request) -> dict[str, Any]:
    """Return the parameters by name; one that is unknown is refused, lest a misspelt one be passed over."""
    try:
        sent = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidValue("the query is not UTF-8; encode text as UTF-8, then percent-encode it") from None
    known = {parameter.name: parameter for parameter in operation.parameters if parameter.place == "query"}
    given: dict[str, list[str]] = {}
    for name, text in sent:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InvalidValue(f"there is no query parameter {name!r} here; {has}")
        given.setdefault(name, []).append(text)
    return {name: _value(parameter, given.get(name)) for name, parameter in known.items()}


def _value(parameter: Parameter, texts: list[str] | None) -> Any:
    if texts is None:
        return parameter.default
    if len(texts) > 1 and not parameter.many:
        raise InvalidValue(f"the query parameter {parameter.name!r} comes {len(texts)} times; give it once")
    values = [_convert(parameter, text) for text in texts]
    return tuple(values) if parameter.many else values[0]


def _convert(parameter: Parameter, text: str) -> Any:
    try:
        return msgspec.convert(text, parameter.kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        shown = text if len(text) <= 80 else text[:79] + "…"
        raise InvalidValue(f"the query parameter {parameter.name!r} is {shown!r}: {error}") from None
