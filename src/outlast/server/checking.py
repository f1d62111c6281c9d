"""What came over the wire, held to the rules the library's verbs keep: names, addresses, values as canonical JSON.

A client of another make could send anything; what is stored must never make a later read, list or search fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from .. import codec, wire
from ..errors import InvalidValue, ValueTooLarge
from ..requests import (
    Check,
    CheckPrefix,
    Commit,
    ForgetAsset,
    Increment,
    MergeAssets,
    Put,
    PutDefault,
    Remove,
    RemoveAll,
    Sweep,
)
from ..run_requests import NewEvent
from ..values import (
    FIRST_MOMENT,
    LAST_MOMENT,
    MAX_DIGITS,
    AssetScope,
    Cursor,
    TaskScope,
    Writer,
    asset_scope,
    check_asset,
    check_id,
    check_index,
    check_key,
    check_prefix,
    checked_scope,
)

__all__ = ["check_call_id", "checked", "refuse_many"]

#: Integers of a database: 64 bits.
_TOO_MANY = 10**MAX_DIGITS
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Arrays and objects of a JSON text at most.
_MOST_PARTS = 1_000_000
#: Parts and operations of a commit at most; names, indexes and choices in a list that is asked about.
_MOST_OPERATIONS, _MOST_LISTED, _MOST_CHOICES = 100_000, 100_000, 1000
#: Characters of a text that names something, and of a call's id, at most.
_LONGEST, _LONGEST_ID = 4096, 200
#: Numbers of which there is no less than nothing, by the name of their field: none of them turns a limit, an age or a
#: claim into its opposite.
_NOT_NEGATIVE: Final = frozenset(
    {"limit", "offset", "older_than", "lease", "timeout", "retries", "crash_retries", "attempt", "number", "pid"}
    | {"passed_over", "due"}
)
#: Moments that are kept: whoever lists them later has to be able to show them.
_MOMENTS: Final = frozenset({"logical_date", "retry_at", "started", "sent_at", "expires_at"})
#: Seconds an attempt may wait for its trigger at most: three hundred years.
_LONGEST_WAIT = 10**10
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
            if isinstance(part.scope, AssetScope) and getattr(operation, "expires_at", None) is not None:
                raise InvalidValue("an asset's entries do not expire; leave expires_at out")
    _check_number("sent_at", commit.sent_at)
    _check_writer(commit.writer)
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
    if expires_at is not None and not FIRST_MOMENT <= expires_at <= LAST_MOMENT:
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


def _check_number(name: str, number: float) -> None:
    if not _LEAST <= number <= _MOST:
        raise InvalidValue(f"{name} is {_short(number)}, which is not a number of 64 bits")
    if name in _NOT_NEGATIVE and number < 0:
        raise InvalidValue(f"{name} is {number}; it is 0 or more")
    if name in _MOMENTS and not FIRST_MOMENT <= number <= LAST_MOMENT:
        raise InvalidValue(f"{name} is {number}, which is not a moment in years 1 to 9999")
    if name == "timeout" and number > _LONGEST_WAIT:
        raise InvalidValue(f"timeout is {number:g} s; {_LONGEST_WAIT:,} s is the longest wait")


def _short(number: float) -> str:
    text = str(number)
    return text if len(text) <= 30 else text[:30] + "…"


def _check_writer(writer: Writer) -> None:
    """Refuse a name that would not be one line wherever it is shown."""
    if writer.name:
        check_asset(writer.name, "writer's name")
    if writer.scope is not None:
        _check_scope(writer.scope)


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
    if isinstance(struct, NewEvent | MergeAssets | ForgetAsset):
        asset_scope(struct.name, struct.uri)
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is not None:
            _check_field(name, value)


def _check_field(name: str, value: Any) -> None:
    match value:
        case TaskScope() | AssetScope():
            _check_scope(value)
        case Writer():
            _check_writer(value)
        case msgspec.Struct():
            _check_fields(value)
        case tuple():
            _check_length(name, value)
            for item in value:
                _check_field(name, item)
        case str() if name in _TEXTS:
            _TEXTS[name](value)
        case bool():
            return
        case int() if name == "map_index":
            check_index(value)
        case int() | float():
            _check_number(name, value)


def _check_length(name: str, values: tuple[Any, ...]) -> None:
    most = _MOST_CHOICES if name in ("among", "states") else _MOST_LISTED
    if len(values) > most:
        raise InvalidValue(f"{name} lists {len(values):,}, and {most:,} is the most; ask for fewer")


# --- What is asked and kept nowhere -----------------------------------------------------------------------


def _check_asked(value: Any) -> None:
    for name in value.__struct_fields__:
        _check_plain(name, getattr(value, name))


def _check_plain(name: str, value: Any) -> None:
    match value:
        case None | bool():
            return
        case str():
            if len(value) > _LONGEST or "\0" in value:
                raise InvalidValue(f"{name} is {value[:40]!r}, which is too long, or has a NUL in it")
        case int() | float():
            _check_number(name, value)
        case tuple():
            _check_length(name, value)
            for item in value:
                _check_plain(name, item)
        case Cursor():  # any number will do: one that cannot be is answered with a reset
            _check_plain(name, value.name)
        case msgspec.Struct():
            _check_asked(value)
