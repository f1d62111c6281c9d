"""Triggers: what a deferred task waits for, as a coroutine in a process that runs the triggers of all of them.

A trigger is stored as the path of its class and its arguments as JSON. The path is `module.Class`, or `file:Class`
for a class of the DAG file itself, whose module has another name whenever the file has changed. JSON has no datetime
and no timedelta: `{"$datetime": "2026-11-29T04:05:06+00:00"}` and `{"$timedelta": 90000000}` (microseconds) stand
for them, and a dict that looks like one of these is kept as `{"$dict": …}`.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import codec
from ..errors import DagError
from . import airflow_names
from .arguments import duration

if TYPE_CHECKING:
    from logging import Logger

__all__ = [
    "BaseEventTrigger",
    "BaseTrigger",
    "DateTimeTrigger",
    "TimeDeltaTrigger",
    "TriggerEvent",
    "made_arguments",
    "make_trigger",
    "trigger_class",
    "trigger_text",
]

#: Bytes of JSON a trigger's arguments, or those of the method that follows, may take.
ARGUMENTS_LIMIT = 1024 * 1024

_FILE = "file:"
_DAG_MODULE = "outlast_dag_"
_MICROSECOND = timedelta(microseconds=1)
_loading = threading.Lock()
_modules: dict[str, tuple[tuple[int, int], ModuleType]] = {}
#: Seconds a trigger of time sleeps at most: a machine that was suspended or set its clock is that late.
NAP = 60.0


class TriggerEvent:
    """What a trigger yields when what it waited for has come; `payload` is a JSON value, or None."""

    def __init__(self, payload: Any = None, **kwargs: Any) -> None:
        self.payload = payload
        vars(self).update(kwargs)

    def __repr__(self) -> str:
        return f"TriggerEvent<{self.payload!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TriggerEvent) and other.payload == self.payload

    __hash__ = None  # type: ignore[assignment]


class BaseTrigger(ABC):
    """What a deferred task waits for. Derive from it at the top level of a module, or of the DAG file.

    >>> class FileTrigger(BaseTrigger):
    ...     def __init__(self, path):
    ...         super().__init__()
    ...         self.path = path
    ...
    ...     def serialize(self):
    ...         return f"{__name__}.FileTrigger", {"path": self.path}
    ...
    ...     async def run(self):
    ...         while not os.path.exists(self.path):
    ...             await asyncio.sleep(1)
    ...         yield TriggerEvent({"path": self.path})

    It is made anew from what `serialize` returns, also after the death of the process it ran in, so it keeps
    nothing else. All triggers share one event loop: `run` awaits, and never blocks.
    """

    def __init__(self, **kwargs: Any) -> None:
        vars(self).update(kwargs)

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, `module.Class`, and the arguments to make this trigger again.

        These are JSON values, datetimes and timedeltas. Yours to define.
        """

    @abstractmethod
    def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield a TriggerEvent; an asynchronous generator. Yours to define.

        The first event ends a deferral; raising, or ending without an event, fails it.
        """

    async def cleanup(self) -> None:  # noqa: B027 (most triggers have nothing to tidy up)
        """Tidy up after `run`, however it ended; also when the task does not wait any more."""

    @property
    def log(self) -> Logger:
        """A logger named after the trigger's class; what it logs is in `trigger.log` beside the task's logs."""
        import logging

        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class BaseEventTrigger(BaseTrigger):
    """A trigger that watches an asset: each of its events updates the asset, and it goes on.

    `asset_state_store` is the state of the assets it watches, from before `run` on; None in `__init__`.
    """

    asset_state_store: Any = None


# --- Time ------------------------------------------------------------------------------------------------


class DateTimeTrigger(BaseTrigger):
    """Fires at a moment, which has a time zone; the payload is that moment in UTC as ISO text."""

    def __init__(self, moment: datetime, *, end_from_trigger: bool = False) -> None:
        super().__init__()
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise DagError(
                f"moment is {moment!r}; use a datetime with its time zone: datetime(2026, 11, 29, tzinfo=UTC)"
            )
        if end_from_trigger:
            raise DagError("end_from_trigger=True is not supported; end the task in the method it goes on with")
        self.moment = moment.astimezone(UTC)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.DateTimeTrigger", {"moment": self.moment}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        import asyncio

        while (left := (self.moment - datetime.now(UTC)).total_seconds()) > 0:
            await asyncio.sleep(min(left, NAP))
        yield TriggerEvent(self.moment.isoformat())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.moment.isoformat()}>"


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires so long after it was made, which a restart does not put off; a timedelta or seconds."""

    def __init__(self, delta: timedelta | float, *, end_from_trigger: bool = False) -> None:
        try:
            moment = datetime.now(UTC) + duration("delta", delta)
        except OverflowError:
            raise DagError(f"delta is {delta}, which ends after the year 9999; use a shorter one") from None
        super().__init__(moment, end_from_trigger=end_from_trigger)


# --- As it is stored -------------------------------------------------------------------------------------


def trigger_text(trigger: BaseTrigger) -> tuple[str, str]:
    """Return the path of a trigger's class and its arguments as JSON text.

    DagError, saying what to change, when no such class could be found again; InvalidValue for an argument
    that cannot be kept.
    """
    if not isinstance(trigger, BaseTrigger):
        raise DagError(f"{trigger!r} is no trigger; derive its class from BaseTrigger, and pass an instance")
    path, arguments = _serialized(trigger)
    if "<locals>" in path or path.rpartition(".")[0] == "__main__":
        raise DagError(
            f"the trigger {path} could not be found again after a restart; "
            "define its class at the top level of the DAG file, or of a module beside it"
        )
    try:
        found = _find(path)
    except DagError as error:
        raise DagError(f"serialize() of {trigger!r} names {path!r}: {error.message}. {_own_path(trigger)}") from None
    if not (isinstance(found, type) and issubclass(found, BaseTrigger)):
        raise DagError(
            f"serialize() of {trigger!r} names {path}, which is no trigger class but {found!r}. {_own_path(trigger)}"
        )
    return _stored_path(path), codec.dump(_tagged(arguments, {}, 0), limit=ARGUMENTS_LIMIT).decode()


def _serialized(trigger: BaseTrigger) -> tuple[str, dict[str, Any]]:
    match trigger.serialize():
        case (str(path), dict(arguments)):
            return path, arguments
        case answer:
            raise DagError(
                f"serialize() of {trigger!r} returned {answer!r}; return the path of its class and a dict of arguments"
            )


def _own_path(trigger: BaseTrigger) -> str:
    """Say what `serialize` should return for a class at the top level of its module."""
    name = type(trigger).__qualname__.rpartition("<locals>.")[2]
    return f'In the module of its class return f"{{__name__}}.{name}", with the arguments'


def _stored_path(path: str) -> str:
    return _FILE + path.partition(".")[2] if path.startswith(_DAG_MODULE) else path


def make_trigger(path: str, arguments: str, dag_file: str) -> BaseTrigger:
    """Make a trigger of its stored path and arguments; DagError if there is no such class any more."""
    return trigger_class(path, dag_file)(**made_arguments(arguments))


def made_arguments(text: str) -> dict[str, Any]:
    """Return the arguments a trigger was stored with."""
    return _untagged(codec.load(text))  # type: ignore[no-any-return]


def trigger_class(path: str, dag_file: str) -> type[BaseTrigger]:
    """Find a trigger's class, loading the DAG file if it is of that; modules beside the file can be imported."""
    if path.startswith(_FILE):
        found = _of_file(path.removeprefix(_FILE), dag_file)
    else:
        folder = os.path.dirname(os.path.abspath(dag_file))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        airflow_names.install()
        found = _find(path)
    if not (isinstance(found, type) and issubclass(found, BaseTrigger)):
        raise DagError(f"{path} is {found!r}, which is no trigger class any more; put it back")
    return found


def _of_file(name: str, dag_file: str) -> Any:
    with _loading:
        module = _module_of(dag_file)
    try:
        return _part(module, name)
    except AttributeError:
        raise DagError(f"{dag_file} has no trigger class {name!r} any more; put it back") from None


def _module_of(dag_file: str) -> ModuleType:
    """Return a DAG file's module, which is executed once, and again when the file has changed."""
    from .loading import load_file

    try:
        facts = os.stat(dag_file)
        version = (facts.st_mtime_ns, facts.st_size)
    except OSError:
        version = (0, 0)
    known = _modules.get(dag_file)
    if known is None or known[0] != version:
        loaded = load_file(dag_file)
        known = _modules[dag_file] = (version, sys.modules[_DAG_MODULE + loaded.digest])
    return known[1]


def _find(path: str) -> Any:
    """Return what a dotted path names: an attribute of the longest part of it that is a module."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = _module(".".join(parts[:length]))
        if module is not None:
            try:
                return _part(module, ".".join(parts[length:]))
            except AttributeError as error:
                raise DagError(f"there is no trigger class {path}: {error}") from None
    missing = f"no module {parts[0]!r} can be imported" if len(parts) > 1 else "no module stands before its class"
    raise DagError(f"there is no trigger class {path}: {missing}; it is module.Class")


def _module(name: str) -> ModuleType | None:
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise


def _part(found: Any, name: str) -> Any:
    for step in name.split("."):
        found = getattr(found, step)
    return found


def _tagged(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """Return a value with what JSON does not have written as a dict; what else it does not have is left to `codec`.

    What is in the value twice is written once, so that a cycle stays one, for `codec` to find.
    """
    match value:
        case datetime():
            return {"$datetime": value.isoformat()}
        case timedelta():
            return {"$timedelta": value // _MICROSECOND}
        case dict() | list() if id(value) in seen or depth > codec.MAX_DEPTH:
            return seen.get(id(value), value)
        case dict():
            inner: dict[Any, Any] = {}
            seen[id(value)] = {"$dict": inner} if _looks_tagged(value) else inner
            inner.update((key, _tagged(item, seen, depth + 1)) for key, item in value.items())
            return seen[id(value)]
        case list():
            made: list[Any] = []
            seen[id(value)] = made
            made += [_tagged(item, seen, depth + 1) for item in value]
            return made
    return value


def _looks_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in ("$datetime", "$timedelta", "$dict")


def _untagged(value: Any) -> Any:
    match value:
        case {"$datetime": str(text), **rest} if not rest:
            return datetime.fromisoformat(text)
        case {"$timedelta": int(number), **rest} if not rest:
            return timedelta(microseconds=number)
        case {"$dict": dict(inner), **rest} if not rest:
            return {key: _untagged(item) for key, item in inner.items()}
        case dict():
            return {key: _untagged(item) for key, item in value.items()}
        case list():
            return [_untagged(item) for item in value]
    return value
