"""The one reader of the feed: streams are served a few at a time, after callers who wait, and never not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast import Store, connect
from outlast.requests import Commit, Part, Put
from outlast.server import feed_reader
from outlast.server.event_views import Seen
from outlast.server.feed_reader import REST, SLICE, FeedReader, Inbox
from outlast.server.gate import Gate
from outlast.server.identity import Who
from outlast.values import TaskScope
from support.homes import settings

SCOPE = TaskScope("dag", "run", "task")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with connect(tmp_path / "store.db", config=settings()) as store:
        yield store


async def streams(reader: FeedReader, number: int) -> list[Inbox]:
    """Have streams that see everything join."""
    inboxes = [Inbox(Seen(Who("admin", ""), ()), lambda: None, None, lambda: None) for _ in range(number)]
    for inbox in inboxes:
        reader.enter(inbox)
        await reader.join(inbox)
    return inboxes


def told(inbox: Inbox, value: int) -> bool:
    return bool(inbox.waiting) and b'"value":%d' % value in inbox.waiting[-1].text


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.002)


def test_streams_wait_while_callers_do(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_reader, "TURN", 60.0)
    callers = ["somebody"]

    async def main() -> None:
        reader = FeedReader(store.backend, store.clock)
        reader.is_busy = lambda: bool(callers)
        inboxes = await streams(reader, 4 * SLICE)
        await asyncio.to_thread(store.task(SCOPE).set, "key", 1)
        reader.wake()
        await until(lambda: any(inbox.waiting for inbox in inboxes))
        await asyncio.sleep(0.05)
        assert sum(len(inbox.waiting) for inbox in inboxes) == SLICE
        callers.clear()
        await until(lambda: all(inbox.waiting for inbox in inboxes))
        assert {inbox.waiting[0].text for inbox in inboxes} == {inboxes[0].waiting[0].text}
        await reader.close()

    asyncio.run(main())


def test_callers_without_end_do_not_keep_streams_from_being_served(store: Store) -> None:
    async def main() -> None:
        reader = FeedReader(store.backend, store.clock)
        reader.is_busy = lambda: True
        inboxes = await streams(reader, 10 * SLICE)
        for value in range(3):
            await asyncio.to_thread(store.task(SCOPE).set, "key", value)
            reader.wake()
            await until(lambda: all(told(inbox, value) for inbox in inboxes))  # noqa: B023
        await reader.close()

    asyncio.run(main())


def test_many_streams_are_served_with_rests_and_not_in_one_go(store: Store) -> None:
    """Or a thread that is woken on the same core waits until all have been served."""

    async def main() -> None:
        reader = FeedReader(store.backend, store.clock)
        inboxes = await streams(reader, 20 * SLICE)
        await asyncio.to_thread(store.task(SCOPE).set, "key", 1)
        reader.wake()
        await until(lambda: any(inbox.waiting for inbox in inboxes))
        seen = set()
        while (served := sum(len(inbox.waiting) for inbox in inboxes)) < len(inboxes):
            seen.add(served)
            await asyncio.sleep(REST / 2)
        assert len(seen) >= 5
        await reader.close()

    asyncio.run(main())


def test_all_the_rests_of_a_reading_have_an_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or callers without end, and many streams, make what is told later and later."""
    monkeypatch.setattr(feed_reader, "TURN", 60.0)
    monkeypatch.setattr(feed_reader, "RESTS", 0.05)

    async def main() -> None:
        reader = FeedReader(store.backend, store.clock)
        reader.is_busy = lambda: True
        inboxes = await streams(reader, 10 * SLICE)
        await asyncio.to_thread(store.task(SCOPE).set, "key", 1)
        reader.wake()
        await until(lambda: all(told(inbox, 1) for inbox in inboxes))
        await reader.close()

    asyncio.run(main())


def test_a_gate_is_busy_while_somebody_waits(store: Store) -> None:
    async def main() -> None:
        gate = Gate(store)
        seen: list[bool] = []
        gate.on_commit = lambda: seen.append(gate.is_busy())
        assert not gate.is_busy()
        await gate.ask(Commit((Part(SCOPE, (Put("key", "2", None),)),)), Who("admin", "ann"))
        assert seen == [True]
        await until(lambda: not gate.is_busy())
        await gate.close()

    asyncio.run(main())
