"""What came over the wire, held to the rules the library's verbs keep: names, addresses, values as canonical JSON.

A client of another make could send anything; what is stored must never make a later read, list or search fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from .. import codec, wire
from ..errors import InvalidValue, ValueTooLarge
from ..requests import Check, CheckPrefix, Commit, Increment, Put, PutDefault, Remove, RemoveAll, Sweep
from ..values import (
    MAX_DIGITS,
    AssetScope,
    Cursor,
    TaskScope,
    asset_scope,
    check_id,
    check_index,
    check_key,
    check_prefix,
    checked_scope,
    to_micros,
)

__all__ = ["check_call_id", "checked", "refuse_many"]

#: Moments that can be shown.
_FIRST, _LAST = to_micros(datetime.min.replace(tzinfo=UTC)), to_micros(datetime.max.replace(tzinfo=UTC))
#: Integers of a database: 64 bits.
_TOO_MANY = 10**MAX_DIGITS
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Arrays and objects of a JSON text at most.
_MOST_PARTS = 1_000_000
#: Parts and operations of a commit at most; names, indexes and choices in a list that is asked about.
_MOST_OPERATIONS, _MOST_LISTED, _MOST_CHOICES = 100_000, 100_000, 1000
#: Characters of a text that names something, and of a call's id, at most.
_LONGEST, _LONGEST_ID = 4096, 200
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")


def checked(request: Any) -> Any:
    """Return the request if it keeps nothing that the library could not have written; InvalidKey or InvalidValue.

    One that keeps nothing is held to what a database takes: numbers of 64 bits, texts without NUL, lists with an end.
    """
    if type(request) is Commit:
        _check_commit(request)
    elif type(request) in wire.WRITES and type(request) is not Sweep:
        _check_fields(request)
    else:
        _check_asked(request)
    return request


def check_call_id(call_id: str) -> str:
    """Return the id under which a call is made once; InvalidValue for one that no database keeps."""
    if not 0 < len(call_id) <= _LONGEST_ID or "\0" in call_id:
        raise InvalidValue(f"a call's id has 1 to {_LONGEST_ID} characters and no NUL; 16 random bytes will do")
    return call_id


def refuse_many(data: bytes) -> None:
    """Raise InvalidValue for a JSON text of so many arrays and objects that to read it would keep others waiting."""
    if _parts(data) > _MOST_PARTS and _parts(_STRING.sub(b"", data)) > _MOST_PARTS:
        raise InvalidValue(f"the JSON has more than {_MOST_PARTS:,} arrays and objects; send less at a time")


def _parts(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _check_commit(commit: Commit) -> None:
    if len(commit.parts) + sum(len(part.operations) for part in commit.parts) > _MOST_OPERATIONS:
        raise InvalidValue(f"a commit has more than {_MOST_OPERATIONS:,} operations; make several of it")
    for part in commit.parts:
        _check_scope(part.scope)
        for operation in part.operations:
            _check_operation(operation)
    if commit.fence is not None:
        _check_fields(commit.fence)


def _check_operation(operation: Any) -> None:
    match operation:
        case Put() | PutDefault():
            check_key(operation.name)
            _check_text(operation.text, nothing=False)
        case Increment():
            check_key(operation.name)
            if abs(operation.by) >= _TOO_MANY:
                raise InvalidValue(f"an increment has more than {MAX_DIGITS} digits")
        case Remove() | Check():
            check_key(operation.name)
        case CheckPrefix():
            check_prefix(operation.prefix)
        case RemoveAll():
            return
    expires_at = getattr(operation, "expires_at", None)
    if expires_at is not None and not _FIRST <= expires_at <= _LAST:
        raise InvalidValue(
            f"{operation.name!r} would expire at {str(expires_at)[:30]}, which is not in years 1 to 9999"
        )


def _check_scope(scope: TaskScope | AssetScope) -> None:
    if isinstance(scope, AssetScope):
        asset_scope(scope.name, scope.uri)
    else:
        checked_scope(scope)


def _check_text(text: str, *, nothing: bool = True) -> None:
    """Refuse what is not canonical JSON, cheaply: it must come out as it went in."""
    if text == "null":
        if not nothing:
            raise InvalidValue("the value is null, which cannot be stored; delete the key instead")
        return
    if len(text) > codec.HARD_LIMIT or (len(text) * 4 > codec.HARD_LIMIT and len(text.encode()) > codec.HARD_LIMIT):
        raise ValueTooLarge(f"the value is larger than {codec.HARD_LIMIT:,} bytes of JSON")
    if len(text) > _MOST_PARTS:
        refuse_many(text.encode())
    deep = text.count("[") + text.count("{") > codec.MAX_DEPTH
    if deep or (len(text) > MAX_DIGITS and _LONG_NUMBER.search(text)):
        codec.parse(text, allow_none=nothing)
    try:
        same = msgspec.json.encode(msgspec.json.decode(text)).decode() == text
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"a value is not JSON: {error}") from None
    if not same:
        raise InvalidValue("a value is not canonical JSON: send it without blanks, and no key twice")


def _check_number(number: int) -> None:
    if not _LEAST <= number <= _MOST:
        raise InvalidValue(f"{str(number)[:30]}… is not a number of 64 bits")


# --- Everything but commits: by what a field is called, wherever it is ------------------------------------


def _id(what: str) -> Callable[[Any], object]:
    return lambda text: check_id(text, what)


#: What a text is, by the name of its field.
_TEXTS: Final[dict[str, Callable[[Any], object]]] = {
    "dag_id": _id("dag_id"),
    "run_id": _id("run_id"),
    "task_id": _id("task_id"),
    "params": _check_text,
    "result": _check_text,
    "text": _check_text,
    "extra": _check_text,
    "event": _check_text,
    "trigger_kwargs": _check_text,
    "next_kwargs": _check_text,
    "prefix": check_prefix,
    "forget": check_key,
}


def _check_fields(struct: msgspec.Struct) -> None:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is not None:
            _check_field(name, value)


def _check_field(name: str, value: Any) -> None:
    match value:
        case TaskScope() | AssetScope():
            _check_scope(value)
        case msgspec.Struct():
            _check_fields(value)
        case tuple():
            for item in value:
                _check_field(name, item)
        case str() if name in _TEXTS:
            _TEXTS[name](value)
        case bool():
            return
        case int() if name == "map_index":
            check_index(value)
        case int():
            _check_number(value)


# --- What is asked and kept nowhere -----------------------------------------------------------------------


def _check_asked(value: Any) -> None:
    for name in value.__struct_fields__:
        _check_plain(name, getattr(value, name))


def _check_plain(name: str, value: Any) -> None:
    match value:
        case None | bool() | float():
            return
        case str():
            if len(value) > _LONGEST or "\0" in value:
                raise InvalidValue(f"{name} is {value[:40]!r}, which is too long, or has a NUL in it")
        case int():
            _check_number(value)
            if name in ("limit", "offset") and value < 0:
                raise InvalidValue(f"{name} is {value}; it is 0 or more")
        case tuple():
            most = _MOST_CHOICES if name in ("among", "states") else _MOST_LISTED
            if len(value) > most:
                raise InvalidValue(f"{name} lists {len(value):,}, and {most:,} is the most; ask for fewer")
            for item in value:
                _check_plain(name, item)
        case Cursor():  # any number will do: one that cannot be is answered with a reset
            _check_plain(name, value.name)
        case msgspec.Struct():
            _check_asked(value)
