"""Threads, tasks on a loop and several stores at the same time: contract 4.4, 4.6 and 4.7."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from support.verbs import Verbs
from support.world import World


def revision(store: Verbs) -> int:
    """Return the revision of the only scope there is."""
    (info,) = [*store.scopes(), *store.scopes(assets=True)]
    return int(info.revision)


def test_threads_lose_no_increment(store: Verbs, either: Verbs) -> None:
    """Contract 4.4: all of them count, and each saw its own sum."""
    sums: list[int] = []

    def work() -> None:
        sums.extend(either.real.increment("n") for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (either.get("n"), sorted(sums), revision(store)) == (150, list(range(1, 151)), 150)


def test_threads_lose_no_update(either: Verbs) -> None:
    """Contract 4.4."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: either.real.update("list", lambda value: [*value, n], default=[]), range(40)))
    assert sorted(either.get("list")) == list(range(40))


def test_threads_that_read_see_whole_commits(either: Verbs) -> None:
    """Contract 4.4."""
    either.set_many({"a": 0, "b": 0})
    done = threading.Event()

    def write() -> None:
        for number in range(60):
            either.real.set_many({"a": number, "b": number})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    pictures = []
    while not done.is_set():
        pictures.append(dict(either.items()))
    writer.join()
    assert all(picture["a"] == picture["b"] for picture in pictures)


def test_awaiting_calls_may_run_together(either: Verbs) -> None:
    """Contract 4.4: gathered increments all count."""

    async def work() -> list[int]:
        return await asyncio.gather(*(either.real.aincrement("n") for _ in range(40)))

    assert sorted(asyncio.run(work())) == list(range(1, 41))


def test_an_awaiting_call_does_not_block_the_loop(state: Verbs) -> None:
    """Contract 4.1: while one call waits for the lock, others on the loop go on."""

    async def work() -> int:
        steps = 0
        task = asyncio.create_task(state.real.aset("key", 1))
        while not task.done():
            steps += 1
            await asyncio.sleep(0)
        await task
        return steps

    assert asyncio.run(work()) > 1


def test_a_cancelled_call_happened_wholly_or_not_at_all(either: Verbs, store: Verbs) -> None:
    """Contract 4.4, 4.6: and the store works on."""

    async def work() -> None:
        for number in range(30):
            task = asyncio.create_task(either.real.aset_many({"a": number, "b": number}))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(work())
    values = dict(either.items())
    assert values.get("a") == values.get("b")
    either.set_many({"a": -1, "b": -1})
    assert [entry.value for entry in either.entries()] == [-1, -1]
    assert either.entry("a").revision == revision(store)


def test_two_stores_on_one_place_see_each_other_at_once(world: World) -> None:
    """Contract 4.7: a committed write is readable at every door at once."""
    one, two = world.open().task("dag/run/task"), world.open().task("dag/run/task")
    for number in range(5):
        one.set("key", number)
        assert two.get("key") == number
        assert two.increment("key", 10) == number + 10
        assert one.get("key") == number + 10
