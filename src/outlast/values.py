"""The nouns of outlast: scopes, names, entries, versions, changes, writers, and moments in time.

Times inside outlast are integers, microseconds since 1970-01-01 UTC; people see aware datetimes.
Frozen values are `msgspec.Struct`s: cheap to import, to make, to compare and to put on a wire.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from .errors import InvalidKey

__all__ = [
    "FIRST_MOMENT",
    "LAST_MOMENT",
    "MAX_DIGITS",
    "NEVER_EXPIRE",
    "AssetScope",
    "Change",
    "Clock",
    "Cursor",
    "Entry",
    "JsonValue",
    "Reset",
    "Scope",
    "ScopeInfo",
    "TaskScope",
    "Version",
    "Writer",
    "address",
    "asset_scope",
    "check_asset",
    "check_id",
    "check_index",
    "check_key",
    "check_prefix",
    "checked_scope",
    "item_scope",
    "moment",
    "parse_task",
    "system_clock",
    "task_scope",
    "to_micros",
]

JsonValue: TypeAlias = "None | bool | int | float | str | list[JsonValue] | dict[str, JsonValue]"

#: Tells the time: microseconds since 1970-01-01 UTC. Passed in, so that tests need no sleeping.
Clock: TypeAlias = Callable[[], int]

#: A retention that never ends. The same object as Airflow's, but recognised by value (it survives pickling).
NEVER_EXPIRE = timedelta.max

#: Decimal digits of a stored integer, at most.
MAX_DIGITS = 4000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: The moments that can be shown, years 1 to 9999, in microseconds.
FIRST_MOMENT = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST_MOMENT = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def system_clock() -> int:
    """Return this machine's time in microseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1000


def moment(micros: int) -> datetime:
    """Return microseconds since the epoch as an aware UTC datetime, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=micros)


def to_micros(when: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch; a naive one is a ValueError."""
    if when.tzinfo is None:
        raise ValueError(f"{when.isoformat()} has no time zone; use an aware datetime, for instance datetime.now(UTC)")
    return (when - _EPOCH) // _MICROSECOND


class TaskScope(msgspec.Struct, frozen=True, tag="task", forbid_unknown_fields=True):
    """One task instance: what all its attempts share (contract 1.1).

    `map_index` is -1 for an unmapped task. `item` is the item's key where state follows the item
    of a mapped task; the address is then the item, whatever its position.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    item: str | None = None

    def __str__(self) -> str:
        """Return the address as every command takes it: an item by its key, wherever it is now."""
        place = f"{self.dag_id}/{self.run_id}/{self.task_id}"
        if self.item is not None:
            import shlex

            return f"{place} --item {shlex.quote(self.item)}"
        return place if self.map_index < 0 else f"{place}/{self.map_index}"


class AssetScope(msgspec.Struct, frozen=True, tag="asset", forbid_unknown_fields=True):
    """One asset, by name, by URI, or by both; it belongs to no run (contract 1.2)."""

    name: str | None = None
    uri: str | None = None

    def __str__(self) -> str:
        return f"asset {self.name or self.uri}"


Scope: TypeAlias = TaskScope | AssetScope


@lru_cache(maxsize=8192)
def address(scope: Scope) -> bytes:
    """Return the 16-byte digest a task scope is found by, and missing scopes are made in the order of."""
    match scope:
        case TaskScope(item=None):
            parts: tuple[object, ...] = ("task", scope.dag_id, scope.run_id, scope.task_id, scope.map_index)
        case TaskScope():
            parts = ("item", scope.dag_id, scope.run_id, scope.task_id, scope.item)
        case AssetScope():
            parts = ("asset", scope.name) if scope.name is not None else ("asset uri", scope.uri)
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()


class Writer(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Who wrote: a task's attempt, a trigger, a person at some door, or a program using the library.

    `scope` is the task that wrote, left out where it is the scope written to.
    """

    kind: Literal["task", "trigger", "person", "library"] = "library"
    attempt: int | None = None
    name: str | None = None
    scope: TaskScope | None = None

    def __str__(self) -> str:
        if self.kind == "task":
            return f"{self.scope} attempt {self.attempt}" if self.scope else f"attempt {self.attempt}"
        return f"{self.kind} {self.name}" if self.name else self.kind


class Entry(msgspec.Struct, frozen=True):
    """One stored value with what is known about it; times are aware UTC datetimes.

    `revision` is the scope's revision at the entry's last write: the token for compare_and_set.
    `expires_at` is None for an entry that never expires.
    """

    key: str
    value: JsonValue
    revision: int
    updated_at: datetime
    expires_at: datetime | None
    writer: Writer


class Version(msgspec.Struct, frozen=True):
    """One step of a key's history: a value (or its deletion), when it was written and by whom."""

    key: str
    value: JsonValue
    deleted: bool
    revision: int
    at: datetime
    writer: Writer


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A place in a scope's life from which to go on watching.

    `name` is the last key seen of a commit that changed several, None when all of them were.
    """

    scope_id: int
    revision: int
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.scope_id}.{self.revision}" + ("" if self.name is None else f".{self.name}")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor printed by `str`; anything else is a ValueError."""
        scope_id, _, rest = text.partition(".")
        revision, dot, name = rest.partition(".")
        if not (scope_id.isdecimal() and revision.isdecimal()):
            raise ValueError(f"{text!r} is not a cursor; use one a watch has given, such as 7.42")
        return cls(int(scope_id), int(revision), name if dot else None)


class Change(msgspec.Struct, frozen=True):
    """The newest state of one key that changed: its entry, or None when it was deleted."""

    key: str
    entry: Entry | None
    revision: int
    cursor: Cursor


class Reset(msgspec.Struct, frozen=True):
    """The cursor was too old: forget what you knew, this is everything now."""

    entries: tuple[Entry, ...]
    cursor: Cursor


class ScopeInfo(msgspec.Struct, frozen=True):
    """A scope in a list: its address, revision, newest attempt (0: none yet), live entries and bytes."""

    scope: Scope
    revision: int
    attempt: int
    entries: int
    bytes: int
    updated_at: datetime | None
    id: int = 0


_HINT = "use visible characters, at most one line"


def check_id(text: object, what: str) -> str:
    """Return a dag, run or task id that keeps contract 1.3, or raise InvalidKey saying which rule it broke."""
    name = _text(text, what, 250)
    if "/" in name:
        raise InvalidKey(f"{what} {name!r} contains '/'; ids may not, since they are parts of a path")
    if name in (".", ".."):
        raise InvalidKey(f"{what} may not be {name!r}; HTTP clients rewrite such a path segment")
    if name[0] == " " or name[-1] == " ":
        raise InvalidKey(f"{what} {name!r} begins or ends with a space; remove it")
    return name


def check_key(text: object) -> str:
    """Return a key that keeps contract 1.3, or raise InvalidKey saying which rule it broke."""
    name = _text(text, "key", 512)
    if "." in name and any(segment in (".", "..") for segment in name.split("/")):
        raise InvalidKey(f"key {name!r} has a segment '.' or '..' between slashes; HTTP clients rewrite those")
    return name


def check_prefix(text: object) -> str:
    """Return what keys may begin with, or raise InvalidKey; "" is the beginning of all."""
    return "" if text == "" else _text(text, "prefix", 512)


def check_asset(text: object, what: str = "asset name") -> str:
    """Return an asset name or URI that keeps contract 1.3, or raise InvalidKey."""
    return _text(text, what, 1500)


def check_index(index: object) -> int:
    """Return a map index (-1 for an unmapped task), or raise InvalidKey."""
    if isinstance(index, bool) or not isinstance(index, int) or index < -1 or index >= 2**31:
        raise InvalidKey(f"map_index is {index!r}; it is -1 for an unmapped task, else 0, 1, 2, …")
    return int(index)


def _text(text: object, what: str, longest: int) -> str:
    if not isinstance(text, str):
        raise InvalidKey(f"{what} is a {type(text).__name__}; it must be a str")
    name = text if type(text) is str else str.__str__(text)
    if not name:
        raise InvalidKey(f"{what} is empty; it needs 1 to {longest:,} characters")
    if len(name) > longest:
        raise InvalidKey(f"{what} has {len(name):,} characters; at most {longest:,} are allowed: {name[:40]!r}…")
    if not name.isprintable():
        _refuse_unprintable(name, what)
    return name


def _refuse_unprintable(name: str, what: str) -> None:
    for place, character in enumerate(name):
        if character < " " or character == "\x7f":
            raise InvalidKey(f"{what} {name!r} has control character U+{ord(character):04X} at {place}; {_HINT}")
        if "\ud800" <= character <= "\udfff":
            raise InvalidKey(f"{what} {name!r} has a lone surrogate at {place}; it is not valid Unicode text")


def task_scope(dag_id: object, run_id: object, task_id: object, map_index: object = -1) -> TaskScope:
    """Return a checked task scope, or raise InvalidKey."""
    return TaskScope(
        check_id(dag_id, "dag_id"), check_id(run_id, "run_id"), check_id(task_id, "task_id"), check_index(map_index)
    )


def checked_scope(scope: TaskScope) -> TaskScope:
    """Return a task scope somebody has made by hand, checked, or raise InvalidKey."""
    plain = task_scope(scope.dag_id, scope.run_id, scope.task_id, scope.map_index)
    if scope.item is None:
        return plain
    return TaskScope(plain.dag_id, plain.run_id, plain.task_id, plain.map_index, _text(scope.item, "item", 512))


def item_scope(scope: TaskScope, item: str | None) -> TaskScope:
    """Return the scope of an item of a mapped task, by its key; InvalidKey when it has a position as well."""
    if item is None:
        return scope
    if scope.map_index >= 0:
        raise InvalidKey(f"{scope} says where an item is now, {item!r} which one it is; give one of the two")
    return checked_scope(TaskScope(scope.dag_id, scope.run_id, scope.task_id, -1, item))


def asset_scope(name: object = None, uri: object = None) -> AssetScope:
    """Return a checked asset scope, or raise InvalidKey."""
    if name is None and uri is None:
        raise InvalidKey("an asset needs a name or a URI")
    return AssetScope(
        None if name is None else check_asset(name), None if uri is None else check_asset(uri, "asset URI")
    )


def parse_task(address: str) -> TaskScope:
    """Read a task scope written as one word, `DAG/RUN/TASK` or `DAG/RUN/TASK/INDEX`."""
    parts = address.split("/") if isinstance(address, str) else []
    if len(parts) == 4 and parts[3].removeprefix("-").isdecimal() and parts[3].isascii() and len(parts[3]) < 20:
        return task_scope(parts[0], parts[1], parts[2], int(parts[3]))
    if len(parts) != 3:
        raise InvalidKey(f"{address!r} is not an address; {_how_to_address(parts)}")
    return task_scope(parts[0], parts[1], parts[2])


def _how_to_address(parts: list[str]) -> str:
    """Say how to write an address, and where there is too much of one, what the rest may have been."""
    mapped = "write DAG/RUN/TASK, or DAG/RUN/TASK/INDEX for a mapped task"
    if len(parts) < 4 or not all(parts):
        return mapped
    item = TaskScope(parts[0], parts[1], parts[2], -1, "/".join(parts[3:]))
    return f"{mapped}. The item of that key, where it has a `map_key`: {item}"
