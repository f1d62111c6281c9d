"""Users' values as canonical JSON text and back, exactly or not at all.

The text is UTF-8 JSON without blanks, keys in the order given. msgspec writes it: exact integers,
shortest round-trip floats. What JSON would bend (NaN, tuples, dates, …) is refused before anything
is written, with the place and the remedy.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import InvalidValue, ValueTooLarge
from .requests import Row
from .values import MAX_DIGITS, Entry, JsonValue, Version, moment

__all__ = ["HARD_LIMIT", "MAX_DEPTH", "dump", "entry_of", "is_json", "load", "parse", "version_of"]

#: No value is larger, at any door: bytes of compact JSON.
HARD_LIMIT = 16 * 1024 * 1024
#: Containers inside containers, at most.
MAX_DEPTH = 100
_BOUND = 10**MAX_DIGITS
_SAFE_BITS = 13_000  # fewer bits than 10**4000 has: no need to compare
_Path = tuple[Any, ...]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def dump(value: JsonValue, *, allow_none: bool = False, limit: int = HARD_LIMIT) -> bytes:
    """Return a value as canonical JSON, UTF-8; InvalidValue (naming place and remedy) if it cannot be kept exactly.

    `limit` is in bytes; above it ValueTooLarge is raised. `allow_none` admits None at the top, as task results do.
    """
    if value is None and not allow_none:
        raise InvalidValue("the value is None, which cannot be stored; use delete(key), or store False or ''")
    plain = _plain(value, (), None)
    try:
        data = _encode(plain)
    except UnicodeEncodeError:
        raise InvalidValue(_find_surrogate(plain, ())) from None
    if len(data) > limit:
        raise ValueTooLarge(
            f"the value is {len(data):,} bytes of JSON; at most {limit:,} are allowed: "
            "store it in a file or an object store and keep its address here"
        )
    return data


def load(text: str | bytes) -> JsonValue:
    """Return a fresh value from text that `dump` made."""
    return _decode(text)  # type: ignore[no-any-return]


def parse(text: str | bytes, *, allow_none: bool = False) -> JsonValue:
    """Read JSON a person or a program has sent, strictly; what could not be stored exactly is InvalidValue.

    So is an object that has a key twice: whoever wrote it meant both, and one of them would be lost.
    """
    try:
        value = _decode(text)
    except RecursionError:
        raise InvalidValue(f"the JSON is nested deeper than {MAX_DEPTH}; flatten it") from None
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        what = str(error).removeprefix("JSON is malformed: ")
        raise InvalidValue(f"not valid JSON: {what}; strings need double quotes, and NaN is not JSON") from None
    dump(value, allow_none=allow_none)
    _refuse_twins(text)
    return value  # type: ignore[no-any-return]


def is_json(text: str | bytes) -> bool:
    """Say whether a text is JSON, whether or not outlast would store it."""
    try:
        _decode(text)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeError, ValueError):
        return False
    return True


def entry_of(row: Row) -> Entry:
    """Return a stored row as people see it; the row must be live."""
    assert row.text is not None
    expires = None if row.expires_at is None else moment(row.expires_at)
    return Entry(row.name, _decode(row.text), row.revision, moment(row.updated_at), expires, row.writer)


def version_of(row: Row) -> Version:
    """Return one stored version of a key as people see it."""
    value = None if row.text is None else _decode(row.text)
    return Version(row.name, value, row.text is None, row.revision, moment(row.updated_at), row.writer)


# --- Keys that come twice in one object, which a decoder does not tell -----------------------------------


class _Twin(msgspec.Struct, frozen=True):
    """Stands for an object that has a key twice."""

    key: str


def _refuse_twins(text: str | bytes) -> None:
    """Raise InvalidValue, naming place and key, if an object in a text that is JSON has a key twice."""
    if (b"{" if isinstance(text, bytes) else "{") not in text:  # type: ignore[operator]
        return
    import json

    plain = text if isinstance(text, str) else text.decode()
    whole = json.loads(plain, object_pairs_hook=_once, parse_int=str, parse_float=str)
    if problem := _find_twin(whole, ()):
        raise InvalidValue(problem)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Twin:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    return next(_Twin(key) for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _find_twin(value: Any, path: _Path) -> str:
    match value:
        case _Twin(key):
            return f"{_place(path)} has the key {key!r} twice; a reader would see only one of the two: keep that one"
        case dict():
            return next((found for key, item in value.items() if (found := _find_twin(item, (*path, key)))), "")
        case list():
            found_in = (_find_twin(item, (*path, place)) for place, item in enumerate(value))
            return next((found for found in found_in if found), "")
    return ""


# --- Checking: return the value made of exact base types, or refuse ------------------------------------


def _plain(value: Any, path: _Path, above: tuple[Any, ...] | None) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return _integer(value, path)
    if kind is float:
        return _finite(value, path)
    if kind is dict:
        return _mapping(value, path, above)
    if kind is list:
        return _sequence(value, path, above)
    return _subclass(value, path, above)


def _integer(value: int, path: _Path) -> int:
    if value.bit_length() > _SAFE_BITS and abs(value) >= _BOUND:
        raise InvalidValue(f"{_place(path)} is an integer of more than {MAX_DIGITS:,} digits; store it as a str in hex")
    return value


def _finite(value: float, path: _Path) -> float:
    if not math.isfinite(value):
        raise InvalidValue(f"{_place(path)} is {value}, which JSON cannot hold; store a str, or leave it out")
    return value


def _mapping(value: Mapping[Any, Any], path: _Path, above: tuple[Any, ...] | None) -> dict[str, Any]:
    above = _deeper(value, path, above)
    plain = {}
    for key, item in value.items():
        if type(key) is not str:
            key = _plain_key(key, path)
        plain[key] = _plain(item, (*path, key), above)
    if len(plain) < len(value):
        raise InvalidValue(f"{_place(path)} has two keys that are the same as plain str; use keys that differ")
    return plain


def _sequence(value: list[Any], path: _Path, above: tuple[Any, ...] | None) -> list[Any]:
    above = _deeper(value, path, above)
    return [_plain(item, (*path, place), above) for place, item in enumerate(value)]


def _deeper(value: Any, path: _Path, above: tuple[Any, ...] | None) -> tuple[Any, ...]:
    counted = [0] if above is None else above[2]
    counted[0] += len(value)
    if counted[0] > HARD_LIMIT:  # a list that holds another one many times over grows without bound
        raise ValueTooLarge(f"{_place(path[:3])}… has more than {HARD_LIMIT:,} parts, so more bytes than are allowed")
    if len(path) < MAX_DEPTH:
        return (value, above, counted)
    while above is not None:
        if above[0] is value:
            raise InvalidValue(f"{_place(path[:3])} is part of a cycle; store a tree of plain values")
        above = above[1]
    raise InvalidValue(f"{_place(path[:3])}… is nested deeper than {MAX_DEPTH}; flatten it")


def _plain_key(key: Any, path: _Path) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    raise InvalidValue(f"{_place(path)} has the key {key!r}, a {type(key).__name__}; JSON keys are str: use str(key)")


def _subclass(value: Any, path: _Path, above: tuple[Any, ...] | None) -> Any:
    """Return a subclass of a JSON type (an enum, numpy.float64, OrderedDict) as its base value."""
    match value:
        case str():
            return str.__str__(value)
        case int():
            return _integer(int.__int__(value), path)
        case float():
            return _finite(float.__float__(value), path)
        case dict():
            ordered = isinstance(value, OrderedDict)  # whose order the base type does not know
            return _mapping(value if ordered else dict(dict.items(value)), path, above)
        case list():
            return _sequence(list.copy(value), path, above)
    raise InvalidValue(f"{_place(path)} is {_type_name(value)}; store {_remedy(value)}")


_REMEDIES = {
    "datetime": "value.isoformat()",
    "date": "value.isoformat()",
    "time": "value.isoformat()",
    "timedelta": "value.total_seconds()",
    "set": "sorted(value)",
    "frozenset": "sorted(value)",
    "bytes": "value.hex(), or base64 text",
    "bytearray": "value.hex(), or base64 text",
    "Decimal": "str(value)",
    "Fraction": "str(value)",
    "complex": "[value.real, value.imag]",
    "UUID": "str(value)",
    "tuple": "list(value)",
    "range": "list(value)",
    "generator": "list(value)",
}


def _remedy(value: Any) -> str:
    """Return what to store instead, by the name of the type or of one it derives from."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return "value._asdict(), or list(value)"
    for base in type(value).__mro__:
        if base.__name__ in _REMEDIES:
            return _REMEDIES[base.__name__]
    hints = {
        "tolist": "value.tolist()",
        "_value_": "value.value",
        "__fspath__": "str(value)",
        "__dataclass_fields__": "dataclasses.asdict(value)",
        "model_dump": "value.model_dump(mode='json')",
    }
    return next((hint for name, hint in hints.items() if hasattr(value, name)), "a dict of its parts")


def _type_name(value: Any) -> str:
    """Return a type with its article: a datetime, an object, a numpy.int64."""
    kind = type(value)
    known = kind.__module__ in ("builtins", "datetime", "decimal", "uuid")
    name = kind.__name__ if known else f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def _find_surrogate(value: Any, path: _Path) -> str:
    if isinstance(value, dict):
        for key, item in value.items():
            if problem := _find_surrogate(key, (*path, key)) or _find_surrogate(item, (*path, key)):
                return problem
    elif isinstance(value, list):
        for place, item in enumerate(value):
            if problem := _find_surrogate(item, (*path, place)):
                return problem
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return f"{_place(path)} has a lone surrogate, which is not Unicode text; store value.encode(…).hex()"
    return ""


def _place(path: _Path) -> str:
    """Return a path as `$.rows[3].when`."""
    steps = (
        f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step!r}]" for step in path
    )
    return "$" + "".join(steps)
