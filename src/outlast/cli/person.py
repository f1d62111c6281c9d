"""The person at the command line: who they are, and the one place their writes go through."""

from __future__ import annotations

import os
import pwd
from datetime import timedelta
from functools import cache
from typing import TypeVar

from .. import codec
from ..expiry import expiry_of
from ..plans import Plan, run
from ..requests import Check, Operation, Put, Remove, RemoveAll
from ..state import AssetState, State, TaskState
from ..values import Entry, JsonValue, Writer, check_key
from .options import as_mistake

__all__ = ["ANY", "clear", "person", "put", "remove", "restore"]

T = TypeVar("T")

#: Any revision: write whatever is there.
ANY = -1


@cache
def person() -> Writer:
    """Return who writes: the account this process runs as, and the machine."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user often has no name
        name = f"uid {os.geteuid()}"
    return Writer("person", name=f"{name}@{os.uname().nodename}")


def put(
    state: TaskState | AssetState,
    key: str,
    value: JsonValue,
    *,
    retention: timedelta | None = None,
    revision: int | None = ANY,
) -> Entry:
    """Write a value, if asked only over one revision (None: over none); return the entry written."""
    return _write(state, _put(state, key, value, retention, revision))


def remove(state: State, keys: tuple[str, ...]) -> dict[str, bool]:
    """Delete keys in one commit; return for each whether it was there."""
    return _write(state, _remove(state, keys))


def clear(state: State) -> int:
    """Delete every key of a scope; return how many there were."""
    return _write(state, _clear(state))


def restore(state: TaskState | AssetState, key: str, revision: int, retention: timedelta | None) -> Entry:
    """Write a kept version again; return the entry written."""
    if isinstance(state, TaskState):
        return _write(state, state._restore(key, revision, retention=retention))
    return _write(state, state._restore(key, revision))


def _write(state: State, plan: Plan[T]) -> T:
    """Carry out a write. Every write a person makes at the command line comes through here."""
    with as_mistake():
        return run(plan, state.backend)


def _put(
    state: TaskState | AssetState, key: str, value: JsonValue, retention: timedelta | None, revision: int | None
) -> Plan[Entry]:
    name, days = check_key(key), state.config.state_store.default_retention_days
    expires_at = expiry_of(retention, state.clock(), days) if isinstance(state, TaskState) else None
    operations: list[Operation] = [] if revision == ANY else [Check(name, revision)]
    receipt = yield from state._apply(*operations, Put(name, state._dump(name, value), expires_at))
    row = receipt.rows[0][-1]
    assert row is not None
    return codec.entry_of(row)


def _remove(state: State, keys: tuple[str, ...]) -> Plan[dict[str, bool]]:
    names = [check_key(key) for key in dict.fromkeys(keys)]
    receipt = yield from state._apply(*[Remove(name) for name in names])
    return {name: row is not None for name, row in zip(names, receipt.rows[0], strict=True)}


def _clear(state: State) -> Plan[int]:
    keys = yield from state._keys()
    yield from state._apply(RemoveAll())
    return len(keys)
