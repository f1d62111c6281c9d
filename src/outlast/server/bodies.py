"""Requests' bodies, read strictly, and values in answers, given as the exact text they are stored as.

The framework reads nothing: what `codec` would not store (NaN, 1e400, lone surrogates, 5,000 digits, deep nesting,
bad UTF-8, a key twice) is refused here, and no number passes through a float on its way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from .. import codec
from ..config import Config
from ..errors import InvalidValue
from ..expiry import expiry_of
from ..requests import Commit, Row
from ..rules import size_of
from ..values import moment, to_micros
from . import rights
from .checking import refuse_many
from .execution import LONG, body_of
from .operations import JSON, Call

__all__ = ["Aware", "Expiry", "Value", "canonical", "decode", "expiry", "in_thread", "read", "shown", "size", "stored"]

T = TypeVar("T")


#: A moment with its time zone, as RFC 3339 has it.
Aware = Annotated[datetime, msgspec.Meta(tz=True)]

#: When a value expires: "default", a moment with its time zone, or null.
Expiry = (
    Annotated[
        str,
        msgspec.Meta(extra_json_schema={"anyOf": [{"const": "default"}, {"format": "date-time", "minLength": 20}]}),
    ]
    | None
)

_KINDS = ["string", "number", "boolean", "array", "object"]

#: A value to store, whose text is kept as it was sent until `canonical` has looked at it.
Value = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": _KINDS, "description": "Any JSON but null."})]

_LAST = to_micros(datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"))
#: Bytes of JSON a value may be sent as for each that it is stored as: blanks, and characters that are escaped.
_LOOSE = 8


async def read(call: Call, kind: type[T], asks: type = Commit) -> T:
    """Return the request's body as a struct, or raise InvalidValue saying what is wrong with it.

    Of those who may not make a request of the type `asks` at all nothing is read: Unauthorized.
    """
    rights.require_role(call.who, asks)
    _check_type(call.request.headers.get("content-type"))
    settings = call.request.app.state.settings
    data = await body_of(call.request, settings.max_body_bytes, settings.request_seconds)
    return await in_thread(len(data), decode, data, kind)


async def in_thread(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Do what takes long with so many bytes, if it does, in a thread, so that other calls need not wait."""
    return await asyncio.to_thread(work, *arguments) if size > LONG else work(*arguments)


def _check_type(content_type: str | None) -> None:
    kind = (content_type or JSON).partition(";")[0].strip().lower()
    if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidValue(f"the body is {kind}; send JSON, with `Content-Type: application/json`")


def decode(data: bytes, kind: type[T]) -> T:
    """Return JSON as a struct; fields that are `msgspec.Raw` keep their text. InvalidValue if it is not that."""
    refuse_many(data)
    try:
        found = msgspec.json.decode(data, type=kind)
        data.decode()
        json.loads(data, object_pairs_hook=_once, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidValue(f"the JSON is nested deeper than {codec.MAX_DEPTH}; flatten it") from None
    except InvalidValue:
        raise
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the body is not as it should be: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        what = str(error).removeprefix("JSON is malformed: ")
        raise InvalidValue(f"the body is not JSON: {what}; strings need double quotes, and NaN is not JSON") from None
    return found


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidValue(f"the body has the key {name!r} twice in one object; keep the one that is meant")
        seen.add(name)


def _no_constant(name: str) -> None:
    raise InvalidValue(f"the body has {name}, which is not JSON; store a str, or leave it out")


# --- Values --------------------------------------------------------------------------------------------------


async def stored(raw: msgspec.Raw, config: Config) -> str:
    """Return what `canonical` does, found out in a thread where that takes long."""
    return await in_thread(len(raw), canonical, raw, config)


def canonical(raw: msgspec.Raw, config: Config, *, limited: bool = True) -> str:
    """Return a value that was sent as the text it is stored as; InvalidValue if it cannot be kept exactly.

    With `limited` one above `[state_store] max_value_storage_bytes` is refused too.
    """
    limit = config.state_store.max_value_storage_bytes if limited else 0
    if limit and len(raw) > _LOOSE * limit:
        raise _too_long(len(raw), limit)
    data = codec.dump(codec.parse(bytes(raw)))
    if limit and len(data) > limit:
        raise _too_long(len(data), limit)
    return data.decode()


def _too_long(size: int, limit: int) -> InvalidValue:
    return InvalidValue(
        f"the value is {size:,} bytes of JSON, above [state_store] max_value_storage_bytes = {limit:,}; "
        "keep it elsewhere and store its address, or raise the setting"
    )


def shown(row: Row) -> msgspec.Raw:
    """Return a row's value for an answer, as the text it is stored as."""
    return msgspec.Raw((row.text or "null").encode())


def size(row: Row) -> int:
    """Return the bytes of JSON a row's value takes."""
    return size_of(row.text)


# --- Expiry --------------------------------------------------------------------------------------------------


def expiry(asked: str | None, call: Call) -> int | None:
    """Return when a value that is written now expires; InvalidValue for a moment that has passed (contract 3.2)."""
    now = call.now()
    if asked is None:
        return None
    if asked == "default":
        return expiry_of(None, now, call.config.state_store.default_retention_days)
    expires_at = _moment(asked)
    if expires_at <= now:
        raise InvalidValue(
            f"expires_at {asked} has passed (it is {moment(now).isoformat()}); to remove a key delete it"
        )
    if expires_at > _LAST:
        raise InvalidValue(f"expires_at {asked} is after the year 9999; send null, which is never")
    return expires_at


def _moment(text: str) -> int:
    try:
        return to_micros(msgspec.convert(text, Aware))
    except (msgspec.ValidationError, ValueError, OverflowError):
        raise InvalidValue(
            f'expires_at is {text[:40]!r}; send "default", null (never), or a moment with its time zone, '
            "such as 2026-11-29T12:00:00Z"
        ) from None
