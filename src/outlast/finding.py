"""Find entries across scopes: by patterns of their names, by a comparison on their value, by age and by size.

Values are compared here, on what was decoded, page by page; never by a database's JSON functions, which
bend large numbers and stumble over some texts.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from . import codec, rules
from .errors import InvalidValue
from .plans import Plan
from .requests import Find, FindPage, FoundRow
from .values import Clock, Entry, JsonValue, Scope, TaskScope

__all__ = ["Match", "Where", "find", "find_rows", "is_pattern", "matches"]

#: Entries asked for at a time.
PAGE = 1000

Test: TypeAlias = Callable[[FoundRow], bool]


class Match(msgspec.Struct, frozen=True):
    """An entry that was found, and the scope it is in."""

    scope: Scope
    entry: Entry


def find(clock: Clock, **criteria: Any) -> Plan[list[Match]]:
    """Plan a search; `Store.find` says what the criteria mean and which errors a bad one raises."""
    rows = yield from find_rows(clock, **criteria)
    return [Match(found.scope, codec.entry_of(found.row)) for found in rows]


def find_rows(
    clock: Clock,
    *,
    dag: str | None = None,
    run: str | None = None,
    task: str | None = None,
    key: str | None = None,
    where: str | None = None,
    older_than: timedelta | None = None,
    newer_than: timedelta | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    expiring_within: timedelta | None = None,
    assets: bool = False,
    limit: int | None = None,
    most_bytes: int | None = None,
) -> Plan[list[FoundRow]]:
    """Plan a search for entries as they are stored; it ends, too, when they have more bytes than `most_bytes`."""
    places = {"dag": dag, "run": run, "task": task}
    if assets and any(place is not None for place in places.values()):
        raise ValueError("assets belong to no dag, run or task; search them by key, value, age or size")
    tests = [
        *_name_tests(places, key),
        *_time_tests(clock(), older_than, newer_than, expiring_within),
        *_size_tests(min_bytes, max_bytes),
        *([] if where is None else [Where(where).holds]),
    ]
    most = _whole(limit, "limit", 1)
    page_size = PAGE if most is None or tests else min(PAGE, most)
    place = _exact(dag), _exact(run), _exact(task)
    found: list[FoundRow] = []
    size = 0
    after: tuple[int, str] | None = None
    while True:
        page: FindPage = yield Find(
            *place, assets=assets, after=after, limit=page_size, name=_exact(key), ending=_ending(key)
        )
        fitting = (row for row in page.rows if all(test(row) for test in tests))
        chosen = list(islice(fitting, None if most is None else most - len(found)))
        found, size = found + chosen, size + sum(len(each.row.text or "") for each in chosen)
        if page.after is None or len(found) == most or (most_bytes is not None and size > most_bytes):
            return found
        after = page.after


# --- Names -----------------------------------------------------------------------------------------------


def is_pattern(text: str) -> bool:
    """Say whether a text has one of `*`, `?` and `[` in it."""
    return any(character in text for character in "*?[")


def matches(text: str, pattern: str) -> bool:
    """Say whether a name fits a pattern (`*`, `?`, `[…]`), case counting; a name always fits itself."""
    return text == pattern or fnmatchcase(text, pattern)


def _exact(pattern: str | None) -> str | None:
    return None if pattern is None or is_pattern(pattern) else pattern


def _ending(pattern: str | None) -> str:
    """Return what a key ends with that fits a pattern like `*job_id`: such keys alone are read."""
    if pattern is None or not pattern.startswith("*") or is_pattern(pattern[1:]):
        return ""
    return pattern[1:] if pattern.isascii() and pattern.isprintable() else ""


def _name_tests(places: dict[str, str | None], key: str | None) -> Iterator[Test]:
    for name, pattern in {**places, "key": key}.items():
        if pattern is not None and not isinstance(pattern, str):
            raise TypeError(f"{name} is a {type(pattern).__name__}; it is a name, or a pattern with * and ?")
    for name, pattern in places.items():
        if pattern is not None and is_pattern(pattern):
            yield _place_test(f"{name}_id", pattern)
    if key is not None:
        yield lambda found: matches(found.row.name, key)


def _place_test(field: str, pattern: str) -> Test:
    return lambda found: isinstance(found.scope, TaskScope) and matches(getattr(found.scope, field), pattern)


# --- Times and sizes -------------------------------------------------------------------------------------


def _time_tests(
    now: int, older_than: timedelta | None, newer_than: timedelta | None, expiring_within: timedelta | None
) -> Iterator[Test]:
    if older_than is not None:
        latest = now - _micros(older_than, "older_than")
        yield lambda found: found.row.updated_at <= latest
    if newer_than is not None:
        earliest = now - _micros(newer_than, "newer_than")
        yield lambda found: found.row.updated_at >= earliest
    if expiring_within is not None:
        end = now + _micros(expiring_within, "expiring_within")
        yield lambda found: found.row.expires_at is not None and found.row.expires_at <= end


def _size_tests(min_bytes: int | None, max_bytes: int | None) -> Iterator[Test]:
    least, most = _whole(min_bytes, "min_bytes", 0), _whole(max_bytes, "max_bytes", 0)
    if least is not None:
        yield lambda found: rules.size_of(found.row.text) >= least
    if most is not None:
        yield lambda found: rules.size_of(found.row.text) <= most


def _micros(span: object, what: str) -> int:
    if not isinstance(span, timedelta):
        raise TypeError(f"{what} is a {type(span).__name__}; use a timedelta such as timedelta(days=2)")
    if span < timedelta(0):
        raise ValueError(f"{what} is {span}; it counts from now and cannot be negative")
    return span // timedelta(microseconds=1)


def _whole(number: object, what: str, least: int) -> int | None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise TypeError(f"{what} is {number!r}; it is a whole number, or None")
    if number is not None and number < least:
        raise ValueError(f"{what} is {number}; it is {least} or more")
    return number


# --- Comparisons on the value ------------------------------------------------------------------------------

_ALLOWED = (
    "write a path, or compare one with JSON by == != < <= > >=: "
    '$.rows > 100, $.state == "done", $.items[0].id != null, $["a b"]'
)
_STEP = re.compile(
    r"""\.(?P<name>[^\W\d][\w-]*)|\[\s*(?:(?P<index>-?\d{1,9})|(?P<double>"(?:[^"\\]|\\.)*")|'(?P<single>[^'\\]*)')\s*\]"""
)
_COMPARISON = re.compile(r"\s*(?P<sign>==|!=|<=|>=|<|>)\s*(?P<literal>.+?)\s*", re.DOTALL)
_ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ABSENT = object()


class Where:
    """A condition on a value: `$.rows > 100`, `$.state == "done"`, `$.items[-1]`.

    A path alone asks whether there is such a place. A comparison is false where there is none. Numbers compare
    with numbers, exactly; true and false are no numbers; text compares with text, code point by code point; any
    two values are equal or not; nothing else has an order.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"where is a {type(text).__name__}; it is a text such as '$.rows > 100'")
        self.path, rest = _path(text.strip(), text)
        self.sign = ""
        self.literal: JsonValue = None
        if rest:
            self.sign, self.literal = _comparison(rest, text)

    def holds(self, found: FoundRow) -> bool:
        """Say whether the condition holds for a row that was found."""
        return self.accepts(codec.load(found.row.text or "null"))

    def accepts(self, value: JsonValue) -> bool:
        """Say whether the condition holds for a value."""
        place = _walk(value, self.path)
        if place is _ABSENT:
            return False
        match self.sign:
            case "":
                return True
            case "==":
                return _same(place, self.literal)
            case "!=":
                return not _same(place, self.literal)
        return _kind(place) == _kind(self.literal) in ("number", "text") and _ORDERINGS[self.sign](place, self.literal)


def _path(text: str, whole: str) -> tuple[tuple[str | int, ...], str]:
    """Read the path a condition begins with; return its steps and what is left."""
    if not text.startswith("$"):
        raise InvalidValue(f"the condition {whole!r} does not begin with $, which stands for the value; {_ALLOWED}")
    steps: list[str | int] = []
    end = 1
    while step := _STEP.match(text, end):
        steps.append(_step(step, whole))
        end = step.end()
    return tuple(steps), text[end:]


def _step(step: re.Match[str], whole: str) -> str | int:
    if step["index"] is not None:
        return int(step["index"])
    if step["double"] is not None:
        name = _literal(step["double"], whole)
        assert isinstance(name, str)
        return name
    return step["name"] if step["name"] is not None else step["single"]


def _comparison(rest: str, whole: str) -> tuple[str, JsonValue]:
    found = _COMPARISON.fullmatch(rest)
    if found is None:
        raise InvalidValue(f"the condition {whole!r} cannot be read from {rest.strip()!r} on; {_ALLOWED}")
    return found["sign"], _literal(found["literal"], whole)


def _literal(text: str, whole: str) -> JsonValue:
    if len(text) > 1 and text[0] == text[-1] == "'" and "'" not in text[1:-1] and "\\" not in text:
        return text[1:-1]
    try:
        return codec.parse(text, allow_none=True)
    except InvalidValue:
        raise InvalidValue(
            f"in the condition {whole!r}, {text!r} is not JSON; text needs double quotes: {_ALLOWED}"
        ) from None


def _walk(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return what is at a path inside a value, or `_ABSENT`."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step, _ABSENT) if isinstance(value, dict) else _ABSENT
        elif isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return _ABSENT
        if value is _ABSENT:
            return _ABSENT
    return value


def _kind(value: object) -> str:
    match value:
        case bool():
            return "flag"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
        case dict():
            return "object"
    return "null"


def _same(one: Any, other: Any) -> bool:
    """Compare two JSON values; unlike Python's ==, true is not 1, at any depth."""
    kind = _kind(one)
    if kind != _kind(other):
        return False
    if kind == "list":
        return len(one) == len(other) and all(map(_same, one, other))
    if kind == "object":
        return one.keys() == other.keys() and all(_same(item, other[name]) for name, item in one.items())
    return bool(one == other)
