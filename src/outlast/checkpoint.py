"""Go through items once: yield those not yet done, and record each after its body has run.

Killed between body and record, the item is done again by the next attempt: at least once an item.
For exactly once, write the item's result and the mark in one `transaction()` on the same store.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sized
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import codec
from .errors import Conflict, InvalidValue, StaleAttempt
from .plans import Plan, arun, run
from .values import JsonValue, check_key

if TYPE_CHECKING:
    from .state import TaskState

__all__ = ["Checkpoint"]

T = TypeVar("T")

#: Progress is written at most this often, in microseconds.
PROGRESS_EVERY = 300_000
#: Ids of unordered work kept under one key, at most.
BATCH = 200


class Checkpoint(Generic[T]):
    """Iterate with `for`, or with `async for` over an iterable of either kind.

    By position the mark is `{"done": 41, "digest": "…"}` under `key`; a list whose item at that place is
    another one raises Conflict. A person who writes `{"done": 30}` has it go on after that item, whatever the
    items before it are. With `id` (a function of the item) the ids done are kept in batches under
    `key/0`, `key/1`, …, so order does not matter. `every` records only each n-th item: a kill then repeats
    up to n items, and so does leaving an `async for`. `progress` names a key kept at
    `{"done", "total", "rate", "from"}` (`from`: how many were done when this attempt began), None for no such
    key. `retention` is that of the marks: with `id` under an address used for longer than the default (30
    days), give NEVER_EXPIRE, or what was done first is forgotten first.
    """

    def __init__(
        self,
        state: TaskState,
        items: Iterable[T] | AsyncIterable[T],
        key: str,
        *,
        every: int,
        id: Callable[[T], str | int] | None,
        total: int | None,
        progress: str | None,
        retention: timedelta | None,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}; it is how many items one record covers: 1 or more")
        self.state, self.items, self.every = state, items, every
        self.total = len(items) if total is None and isinstance(items, Sized) else total
        self.marks: _Positions | _Ids = _Positions(check_key(key)) if id is None else _Ids(check_key(key), id)
        self.progress = progress and check_key(progress)
        self.retention = retention
        self.unrecorded = self.fresh = self.told = 0
        self.began = self.written_at = state.clock()
        state._expiry(retention)

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self.items, Iterable):
            hint = "use `async for`" if isinstance(self.items, AsyncIterable) else "give checkpoint a list"
            raise TypeError(f"{type(self.items).__name__} is not iterable with `for`; {hint}")
        backend = self.state.backend
        run(self._start(), backend)
        try:
            for item in self.items:
                if self.marks.is_done(item):
                    continue
                yield item
                run(self._done(item), backend)
        except StaleAttempt:
            self.unrecorded, self.told = 0, self.fresh  # there is nothing more to say for this attempt
            raise
        finally:
            run(self._end(), backend)
        self.marks.check_end()

    async def __aiter__(self) -> AsyncIterator[T]:
        backend = self.state.backend
        await arun(self._start(), backend)
        async for item in _either(self.items):
            if self.marks.is_done(item):
                continue
            yield item
            await arun(self._done(item), backend)
        await arun(self._end(), backend)  # not in a `finally`: asyncio closes a left loop some time later
        self.marks.check_end()

    def _start(self) -> Plan[None]:
        yield from self.marks.load(self.state)
        self.began = self.written_at = self.state.clock()

    def _done(self, item: T) -> Plan[None]:
        """Take note of an item whose body has run, and write when it is time."""
        self.marks.add(item)
        self.unrecorded, self.fresh = self.unrecorded + 1, self.fresh + 1
        if self.unrecorded >= self.every or self.state.clock() - self.written_at >= PROGRESS_EVERY:
            yield from self._record()

    def _end(self) -> Plan[None]:
        """Record what is done when the loop ends, also when its body raised: the items before that one."""
        if self.unrecorded or (self.progress and self.told < self.fresh):
            yield from self._record(last=True)

    def _record(self, last: bool = False) -> Plan[None]:
        now = self.state.clock()
        values = self.marks.changed() if self.unrecorded else {}
        if self.progress and (last or now - self.written_at >= PROGRESS_EVERY or self.marks.count == self.total):
            values[self.progress] = self._progress(now)
            self.written_at, self.told = now, self.fresh
        yield from self.state._set_many(values, retention=self.retention)
        self.unrecorded = 0

    def _progress(self, now: int) -> dict[str, JsonValue]:
        seconds = (now - self.began) / 1e6
        rate = round(self.fresh / seconds, 3) if seconds > 0 else None
        begun_with = max(self.marks.count - self.fresh, 0)
        return {"done": self.marks.count, "total": self.total, "rate": rate, "from": begun_with}


class _Positions:
    """Marks by position: how many items are done, and a digest of all of them in their order."""

    def __init__(self, key: str) -> None:
        self.key, self.count = key, 0
        self.digest: str | None = None  # None: the items before are not compared
        self.place, self.so_far = 0, ""

    def load(self, state: TaskState) -> Plan[None]:
        stored = yield from state._get(self.key)
        self.place, self.so_far = 0, ""
        match stored:
            case None:
                pass
            case {"done": int(count), "digest": str(digest), **more} if not more and not isinstance(count, bool):
                self.count, self.digest = count, digest
            case {"done": int(count), **more} if not (more or isinstance(count, bool) or count < 0):  # by hand
                self.count, self.digest = count, None
            case _:
                raise InvalidValue(
                    f"{self.key!r} holds {stored!r}, which is not a checkpoint's mark; choose another key, or set it "
                    'to {"done": N} to go on after the first N items'
                )

    def is_done(self, item: Any) -> bool:
        self.place, self.so_far = self.place + 1, _digest(self.so_far, item)
        if self.place == self.count and self.digest is not None and self.so_far != self.digest:
            raise Conflict(
                f"the first {self.count} items are not those that were done last time: the list has changed, or "
                f'{self.key!r} was edited; delete it to begin again, set it to {{"done": {self.count}}} to go on after '
                "that item all the same, or give checkpoint an id= so that order does not matter"
            )
        return self.place <= self.count

    def add(self, item: Any) -> None:
        self.count, self.digest = self.place, self.so_far

    def changed(self) -> dict[str, JsonValue]:
        return {self.key: {"done": self.count, "digest": self.digest}}

    def check_end(self) -> None:
        if self.place < self.count:
            raise Conflict(
                f"the list has {self.place} items but {self.count} were done last time: it has changed; "
                f"delete {self.key!r} to begin again"
            )


class _Ids:
    """Marks by id: the ids done, in batches, so that one record rewrites one small list."""

    def __init__(self, key: str, id: Callable[[Any], str | int]) -> None:
        self.key, self.id = key, id
        self.done: set[str | int] = set()
        self.batches: list[list[str | int]] = []
        self.dirty: set[int] = set()

    @property
    def count(self) -> int:
        return len(self.done)

    def load(self, state: TaskState) -> Plan[None]:
        stored = yield from state._items(self.key + "/")
        numbered: dict[int, Any] = {}
        for name, value in stored:
            number = name[len(self.key) + 1 :]
            if number.isascii() and number.isdecimal() and len(number) < 7:
                numbered[int(number)] = value
        self.batches = [list(numbered.get(number, [])) for number in range(max(numbered, default=-1) + 1)]
        self.done = {id for batch in self.batches for id in batch}

    def is_done(self, item: Any) -> bool:
        return self._id(item) in self.done

    def add(self, item: Any) -> None:
        id = self._id(item)
        self.done.add(id)
        if not self.batches or len(self.batches[-1]) >= BATCH:
            self.batches.append([])
        self.batches[-1].append(id)
        self.dirty.add(len(self.batches) - 1)

    def changed(self) -> dict[str, JsonValue]:
        values: dict[str, JsonValue] = {
            f"{self.key}/{number}": list(self.batches[number]) for number in sorted(self.dirty)
        }
        self.dirty.clear()
        return values

    def check_end(self) -> None:
        """Nothing to check: items may come and go."""

    def _id(self, item: Any) -> str | int:
        id = self.id(item)
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise InvalidValue(f"id= returned {id!r} for {item!r}; it must return a str or an int")
        return id


def _digest(before: str, item: Any) -> str:
    """Return a short digest of the items so far; of one that has no stable text only its type counts."""
    try:
        text = codec.dump(item, allow_none=True)
    except InvalidValue:
        shown = repr(item)
        text = (type(item).__name__ if " at 0x" in shown else shown).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(before.encode() + text, digest_size=8).hexdigest()


async def _either(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
