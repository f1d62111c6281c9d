"""The verbs on one scope's state, each a plan with a blocking and an awaiting twin.

Two plans touch the backend, `_find` and `_apply`; a transaction replaces just these two, and every
verb then works inside it unchanged.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from . import codec
from .config import Config
from .errors import Conflict, InvalidValue, NotFound
from .expiry import expiry_of
from .plans import Plan, awaiting, blocking
from .requests import (
    Check,
    Commit,
    Fence,
    Found,
    History,
    Increment,
    Operation,
    Part,
    Pause,
    Put,
    PutDefault,
    Read,
    Receipt,
    Remove,
    RemoveAll,
    Versions,
)
from .values import (
    AssetScope,
    Clock,
    Cursor,
    Entry,
    JsonValue,
    Scope,
    TaskScope,
    Version,
    Writer,
    asset_scope,
    check_key,
    check_prefix,
)

if TYPE_CHECKING:
    from .backends import Backend
    from .checkpoint import Checkpoint
    from .transaction import AssetTransaction, TaskTransaction, Transaction
    from .watch import Watch

__all__ = ["AssetState", "State", "TaskState"]

logger = logging.getLogger("outlast")
T = TypeVar("T")

#: Rounds of read, compute and compare before `update` gives up; with its pauses, about half a minute.
UPDATE_ROUNDS = 200


class State:
    """State under keys in one scope. Made by `Store.task()` and `Store.asset()`, not by hand.

    Every verb has an awaiting twin of the same signature, named with an `a`: `await state.aget("page")`.
    Any verb may raise InvalidKey for its key, BackendError when the store cannot be reached, and
    StaleAttempt once a newer attempt has opened the task's scope.
    """

    def __init__(
        self, backend: Backend, scope: Scope, config: Config, clock: Clock, writer: Writer, fence: Fence | None = None
    ) -> None:
        self.backend, self.scope, self.config, self.clock = backend, scope, config, clock
        self.writer, self.fence = writer, fence

    def __repr__(self) -> str:
        attempt = f", attempt {self.fence.attempt}" if self.fence else ""
        return f"<{type(self).__name__} {self.scope}{attempt}>"

    # --- the two plans that reach the backend --------------------------------------------------------------

    def _find(self, names: tuple[str, ...] | None, prefix: str = "", texts: bool = True) -> Plan[Found]:
        return (yield Read(self.scope, names, prefix, self.fence, texts=texts))  # type: ignore[no-any-return]

    def _apply(self, *operations: Operation) -> Plan[Receipt]:
        part = Part(self.scope, operations)
        try:
            return (yield Commit((part,), self.fence, self.writer, self.clock()))  # type: ignore[no-any-return]
        except Conflict as conflict:
            raise as_seen(conflict) from None

    # --- reading -------------------------------------------------------------------------------------------

    def _get(self, key: str, default: Any = None) -> Plan[Any]:
        """Return the value under a key, a fresh object each time; `default` when there is none or it has expired."""
        found = yield from self._find((check_key(key),))
        return codec.load(found.rows[0].text) if found.rows else default  # type: ignore[arg-type]

    def _entry(self, key: str) -> Plan[Entry | None]:
        """Return the value with its revision, times and writer; None when there is none."""
        found = yield from self._find((check_key(key),))
        return codec.entry_of(found.rows[0]) if found.rows else None

    def _keys(self, prefix: str | None = None) -> Plan[list[str]]:
        """Return the keys that begin with a prefix (None: all), in code-point order."""
        found = yield from self._find(None, _prefix(prefix), texts=False)
        return [row.name for row in found.rows]

    def _items(self, prefix: str | None = None) -> Plan[list[tuple[str, JsonValue]]]:
        """Return (key, value) pairs whose keys begin with a prefix (None: all), in code-point order."""
        found = yield from self._find(None, _prefix(prefix))
        return [(row.name, codec.load(row.text or "")) for row in found.rows]

    def _entries(self, prefix: str | None = None) -> Plan[list[Entry]]:
        """Return the entries whose keys begin with a prefix (None: all), in code-point order."""
        found = yield from self._find(None, _prefix(prefix))
        return [codec.entry_of(row) for row in found.rows]

    def _history(self, key: str) -> Plan[list[Version]]:
        """Return the kept versions of a key, newest first: values and deletions, when and by whom (contract 4.8)."""
        reply: Versions = yield History(self.scope, check_key(key), self.fence)
        return [codec.version_of(row) for row in reply.rows]

    get, aget = blocking(_get), awaiting(_get)
    entry, aentry = blocking(_entry), awaiting(_entry)
    keys, akeys = blocking(_keys), awaiting(_keys)
    items, aitems = blocking(_items), awaiting(_items)
    entries, aentries = blocking(_entries), awaiting(_entries)
    history, ahistory = blocking(_history), awaiting(_history)

    # --- removing ------------------------------------------------------------------------------------------

    def _delete(self, key: str) -> Plan[None]:
        """Delete a key; nothing happens when it is absent. Its history is kept, so that it can be restored."""
        yield from self._apply(Remove(check_key(key)))

    def _clear(self) -> Plan[None]:
        """Delete every key of this scope, and of no other. History is kept."""
        yield from self._apply(RemoveAll())

    delete, adelete = blocking(_delete), awaiting(_delete)
    clear, aclear = blocking(_clear), awaiting(_clear)

    # --- writing: shared bodies ------------------------------------------------------------------------------

    def _dump(self, key: str, value: JsonValue) -> str:
        try:
            data = codec.dump(value)
        except InvalidValue as error:
            raise type(error)(f"key {key!r}: {error.message}") from None
        limit = self.config.state_store.max_value_storage_bytes
        if limit and len(data) > limit:
            logger.warning(
                "outlast: %s: the value of %r is %d bytes, above [state_store] max_value_storage_bytes = %d; "
                "it was stored, but the REST API would refuse it",
                self.scope,
                key,
                len(data),
                limit,
            )
        return data.decode()

    def _put(self, key: str, value: JsonValue, expires_at: int | None) -> Plan[None]:
        name = check_key(key)
        yield from self._apply(Put(name, self._dump(name, value), expires_at))

    def _put_many(self, values: Mapping[str, JsonValue], expires_at: int | None) -> Plan[None]:
        puts = [Put(check_key(key), self._dump(key, value), expires_at) for key, value in dict(values).items()]
        yield from self._apply(*puts) if puts else self._find(())

    def _put_default(self, key: str, value: JsonValue, expires_at: int | None) -> Plan[JsonValue]:
        name = check_key(key)
        receipt = yield from self._apply(PutDefault(name, self._dump(name, value), expires_at))
        return codec.load(_last(receipt).text or "")

    def _compare_and_put(self, key: str, value: JsonValue, revision: int | None, expires_at: int | None) -> Plan[Entry]:
        name = check_key(key)
        put = Put(name, self._dump(name, value), expires_at)
        receipt = yield from self._apply(Check(name, _revision(revision)), put)
        return codec.entry_of(_last(receipt))

    def _add(self, key: str, by: int, expires_at: int | None, keep: bool) -> Plan[int]:
        if isinstance(by, bool) or not isinstance(by, int):
            raise InvalidValue(f"increment by {by!r}: it adds an int, not a {type(by).__name__}")
        codec.dump(by)
        receipt = yield from self._apply(Increment(check_key(key), int(by), expires_at, keep))
        return int(_last(receipt).text or "")

    def _change(
        self, key: str, function: Callable[[Any], Any], default: Any, expires_at: int | None, keep: bool
    ) -> Plan[Any]:
        """Read, compute, compare and write, until nobody came between; no lock is held while `function` runs."""
        name = check_key(key)
        for tried in range(UPDATE_ROUNDS):
            entry = yield from self._entry(name)
            value = function(default if entry is None else entry.value)
            put = Put(name, self._dump(name, value), expires_at, keep)
            try:
                yield from self._apply(Check(name, entry.revision if entry else None), put)
                return value
            except Conflict:
                yield Pause(random.uniform(0, min(0.001 * 2**tried, 0.3)))
        raise Conflict(f"{name!r} kept changing during {UPDATE_ROUNDS} tries to update it; try again later")

    def _put_back(self, key: str, revision: int, expires_at: int | None) -> Plan[Entry]:
        name = check_key(key)
        versions = yield from self._history(name)
        version = next((version for version in versions if version.revision == revision), None)
        if version is None:
            raise NotFound(f"{name!r} has no kept version at revision {revision}; `history` lists those there are")
        if version.deleted:
            raise NotFound(f"revision {revision} of {name!r} is a deletion; to delete it again use delete")
        receipt = yield from self._apply(Put(name, self._dump(name, version.value), expires_at))
        return codec.entry_of(_last(receipt))

    # --- beyond one call ---------------------------------------------------------------------------------------

    def watch(self, cursor: Cursor | str | None = None, *, timeout: float | None = None, poll: float = 0.1) -> Watch:
        """Iterate (`for` or `async for`) over what changes, from a cursor on; see `outlast.watch.Watch`."""
        from .watch import Watch

        return Watch(self, cursor, timeout, poll)


class TaskState(State):
    """The state of one task instance, shared by all its attempts; the `task_state_store` of a task.

    Values are JSON: str, int, float, bool, list, dict, None only inside; anything else is InvalidValue.
    `retention` is a positive timedelta, NEVER_EXPIRE, or None for `[state_store] default_retention_days`.
    """

    scope: TaskScope

    @property
    def attempt(self) -> int | None:
        """The number of the attempt this state was opened with; None when it is not fenced."""
        return self.fence.attempt if self.fence else None

    def _expiry(self, retention: timedelta | None) -> int | None:
        return expiry_of(retention, self.clock(), self.config.state_store.default_retention_days)

    def _set(self, key: str, value: JsonValue, *, retention: timedelta | None = None) -> Plan[None]:
        """Write a value, durably when the call returns; every write computes the expiry anew."""
        return self._put(key, value, self._expiry(retention))

    def _set_many(self, values: Mapping[str, JsonValue], *, retention: timedelta | None = None) -> Plan[None]:
        """Write several values, all or nothing."""
        return self._put_many(values, self._expiry(retention))

    def _set_default(self, key: str, value: JsonValue, *, retention: timedelta | None = None) -> Plan[JsonValue]:
        """Write a value unless there is one; return what is stored afterwards."""
        return self._put_default(key, value, self._expiry(retention))

    def _compare_and_set(
        self, key: str, value: JsonValue, *, revision: int | None, retention: timedelta | None = None
    ) -> Plan[Entry]:
        """Write only if the entry is at `revision` (None: absent); otherwise Conflict carrying the current entry."""
        return self._compare_and_put(key, value, revision, self._expiry(retention))

    def _increment(self, key: str, by: int = 1, *, retention: timedelta | None = None) -> Plan[int]:
        """Add to an int, absent counting as 0, and return the sum; keeps the entry's expiry unless told otherwise."""
        return self._add(key, by, self._expiry(retention), retention is None)

    def _update(
        self,
        key: str,
        function: Callable[[Any], Any],
        *,
        default: Any = None,
        retention: timedelta | None = None,
    ) -> Plan[Any]:
        """Replace a value by `function(value)` (of `default` when absent) atomically; return the new value.

        `function` runs without a lock and again whenever somebody wrote meanwhile, so it must have no side
        effects. The entry's expiry is kept unless `retention` is given.
        """
        return self._change(key, function, default, self._expiry(retention), retention is None)

    def _restore(self, key: str, revision: int, *, retention: timedelta | None = None) -> Plan[Entry]:
        """Write a version from `history` again, as a new write; NotFound when it is not kept (any more)."""
        return self._put_back(key, revision, self._expiry(retention))

    set, aset = blocking(_set), awaiting(_set)
    set_many, aset_many = blocking(_set_many), awaiting(_set_many)
    set_default, aset_default = blocking(_set_default), awaiting(_set_default)
    compare_and_set, acompare_and_set = blocking(_compare_and_set), awaiting(_compare_and_set)
    increment, aincrement = blocking(_increment), awaiting(_increment)
    update, aupdate = blocking(_update), awaiting(_update)
    restore, arestore = blocking(_restore), awaiting(_restore)

    def transaction(self) -> Transaction[TaskTransaction]:
        """Begin a transaction: `with state.transaction() as tx:` (or `async with`), then the same verbs on `tx`."""
        from .transaction import Transaction

        return Transaction(self)

    def asset(self, name: str | None = None, *, uri: str | None = None) -> AssetState:
        """Return an asset's state as this attempt sees it: fenced with it, and written in its name."""
        writer = Writer(self.writer.kind, self.writer.attempt, self.writer.name, self.scope)
        return AssetState(self.backend, asset_scope(name, uri), self.config, self.clock, writer, self.fence)

    def checkpoint(
        self,
        items: Iterable[T] | AsyncIterable[T],
        key: str = "last_done",
        *,
        every: int = 1,
        id: Callable[[T], str | int] | None = None,
        total: int | None = None,
        progress: str | None = "progress",
        retention: timedelta | None = None,
    ) -> Checkpoint[T]:
        """Yield the items not yet done, recording each after its body has run; see `outlast.checkpoint`."""
        from .checkpoint import Checkpoint

        return Checkpoint(self, items, key, every=every, id=id, total=total, progress=progress, retention=retention)


class AssetState(State):
    """The state of one asset, across runs; an `asset_state_store[asset]` of a task. It has no retention."""

    scope: AssetScope

    def _set(self, key: str, value: JsonValue) -> Plan[None]:
        """Write a value, durably when the call returns."""
        return self._put(key, value, None)

    def _set_many(self, values: Mapping[str, JsonValue]) -> Plan[None]:
        """Write several values, all or nothing."""
        return self._put_many(values, None)

    def _set_default(self, key: str, value: JsonValue) -> Plan[JsonValue]:
        """Write a value unless there is one; return what is stored afterwards."""
        return self._put_default(key, value, None)

    def _compare_and_set(self, key: str, value: JsonValue, *, revision: int | None) -> Plan[Entry]:
        """Write only if the entry is at `revision` (None: absent); otherwise Conflict carrying the current entry."""
        return self._compare_and_put(key, value, revision, None)

    def _increment(self, key: str, by: int = 1) -> Plan[int]:
        """Add to an int, absent counting as 0, and return the sum."""
        return self._add(key, by, None, True)

    def _update(self, key: str, function: Callable[[Any], Any], *, default: Any = None) -> Plan[Any]:
        """Replace a value by `function(value)` (of `default` when absent) atomically; return the new value."""
        return self._change(key, function, default, None, True)

    def _restore(self, key: str, revision: int) -> Plan[Entry]:
        """Write a version from `history` again, as a new write; NotFound when it is not kept (any more)."""
        return self._put_back(key, revision, None)

    set, aset = blocking(_set), awaiting(_set)
    set_many, aset_many = blocking(_set_many), awaiting(_set_many)
    set_default, aset_default = blocking(_set_default), awaiting(_set_default)
    compare_and_set, acompare_and_set = blocking(_compare_and_set), awaiting(_compare_and_set)
    increment, aincrement = blocking(_increment), awaiting(_increment)
    update, aupdate = blocking(_update), awaiting(_update)
    restore, arestore = blocking(_restore), awaiting(_restore)

    def transaction(self) -> Transaction[AssetTransaction]:
        """Begin a transaction: `with state.transaction() as tx:` (or `async with`), then the same verbs on `tx`."""
        from .transaction import Transaction

        return Transaction(self)


def _last(receipt: Receipt) -> Any:
    return receipt.rows[0][-1]


def as_seen(conflict: Conflict) -> Conflict:
    """Return a backend's conflict with the current entry as people see it."""
    row: Any = conflict.current
    return Conflict(conflict.message, codec.entry_of(row) if row is not None else None)


def _prefix(prefix: object) -> str:
    return "" if prefix is None else check_prefix(prefix)


def _revision(revision: object) -> int | None:
    if revision is not None and (isinstance(revision, bool) or not isinstance(revision, int)):
        raise TypeError(f"revision is {revision!r}; pass entry.revision, or None for a key that must be absent")
    return revision
