"""The workers' door: one request in, one reply out, nothing in between that a request does not need."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.requests import ClientDisconnect, Request

from .. import wire
from ..deferral_requests import ListDeferred
from ..errors import InvalidValue, NotFound, OutlastError, ValueTooLarge
from ..requests import Commit
from ..run_requests import Begin, NoteAftermath
from .checking import checked, refuse_many
from .identity import Who, identify
from .nameless import nameless
from .origins import STRANGE_NAME, hosts_of, is_meant
from .rights import RULES

__all__ = ["LONG", "answer", "body_of", "is_door"]

logger = logging.getLogger("outlast.server")

PATH = "/execution/call"
#: Above this many bytes a body is looked at in a thread, so that other calls need not wait.
LONG = 64 * 1024
#: Bytes of a call at most of those who write nothing.
_READERS = 1024 * 1024


def is_door(scope: Any) -> bool:
    """Say whether a request is for the workers' door."""
    path: str = scope["path"]
    return path.endswith(PATH) and len(path) == len(PATH) + len(scope.get("root_path", ""))


async def answer(request: Request, send: Any) -> None:
    """Answer one call of a worker, a runner or a program that has opened this server as its store."""
    try:
        status, body = 200, await _reply(request)
    except _StrangeName:
        status, body = 421, wire.encode_error(NotFound(STRANGE_NAME))
    except OutlastError as error:
        status, body = error.status, wire.encode_error(nameless(error, request.app.state.store))
    except ClientDisconnect:
        return
    except OverflowError as error:
        fault: OutlastError = InvalidValue(f"a number is out of range: {error}")
        status, body = fault.status, wire.encode_error(fault)
    except Exception as error:
        logger.exception("a call could not be answered")
        fault = OutlastError(f"the server could not answer: {type(error).__name__}; its log says more")
        status, body = fault.status, wire.encode_error(fault)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if getattr(request.state, "gave_up", False):  # what is still to come of it is not waited for
        headers.append((b"connection", b"close"))
    _send_whole(request.receive)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _reply(request: Request) -> bytes:
    state = request.scope["app"].state
    if not is_meant(hosts_of(state.settings), request.scope["headers"]):
        raise _StrangeName
    who = await identify(request)
    # A value travels as text inside JSON, in which every quotation mark is escaped once more.
    limit = 2 * state.settings.max_body_bytes if who.role in RULES[Commit].roles else _READERS
    body = await body_of(request, limit, state.settings.request_seconds)
    asked = _call(body) if len(body) <= LONG else await asyncio.to_thread(_call, body)
    reveal = asked.reveal or who.role in ("attempt", "worker")
    reply = await state.gate.ask(asked.request, who, asked.call_id, reveal=reveal)
    return wire.encode_answer(reply, await _token(request, who, asked.request, reply))


class _StrangeName(Exception):
    """The request came under a name that is not the server's."""


def _call(body: bytes) -> wire.Call:
    refuse_many(body)
    call = wire.decode_call(body)
    if type(call.request) in wire.WRITES:  # the others are by the gate
        checked(call.request)
    return call


async def _token(request: Request, who: Who, asked: Any, reply: Any) -> str | None:
    """Return the token that goes with a reply; an admin's program goes on as itself, whatever it opens."""
    if who.role == "admin" and type(asked) not in (Begin, NoteAftermath, ListDeferred):
        return None
    token: str | None = await request.app.state.tokens.exchanged(asked, reply, who)
    return token


async def body_of(request: Request, limit: int, seconds: float) -> bytes:
    """Return a request's body; ValueTooLarge above a limit, InvalidValue when it does not arrive in time."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    try:
        if _has_arrived(request.receive):
            return await _collected(request.receive, limit)
        async with asyncio.timeout(seconds):
            return await _collected(request.receive, limit)
    except TimeoutError:
        request.state.gave_up = True
        raise InvalidValue(f"the request's body did not arrive within {seconds:g} s; send it again") from None


async def _collected(receive: Any, limit: int) -> bytes:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(limit: int) -> ValueTooLarge:
    return ValueTooLarge(
        f"the request is larger than {limit:,} bytes; send less at a time, or raise [server] max_body_bytes"
    )


# --- What only uvicorn knows -----------------------------------------------------------------------------------


def _has_arrived(receive: Any) -> bool:
    """Say whether all of a body is there already, so that there is nothing to wait for."""
    return getattr(getattr(receive, "__self__", None), "more_body", True) is False


def _send_whole(receive: Any) -> None:
    """Have the head and the body of an answer sent by one system call, as one packet."""
    cycle: Any = getattr(receive, "__self__", None)
    if hasattr(cycle, "transport"):
        cycle.transport = _Whole(cycle.transport)


class _Whole:
    """A transport that keeps an answer's head until its body comes."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._head = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
