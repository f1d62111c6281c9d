"""Small reads that come at the same time are answered together, and each as if it had come alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from outlast import NotFound, StaleAttempt, Store
from outlast.backends.sqlite import SQLiteBackend
from outlast.requests import Commit, Fence, Found, Increment, Open, Part, Put, Read
from outlast.server import batches
from outlast.server.gate import FEW_NAMES, MOST_TOGETHER, Gate
from outlast.server.identity import Who
from outlast.values import TaskScope, system_clock
from support.homes import HOMES, settings

ADMIN = Who("admin", "ann@desk", token_id=1)
SCOPE = TaskScope("dag", "run", "task")


class Held(SQLiteBackend):
    """Answers no read of `held` before it is told to, and tells what came together."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.go, self.came = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def send(self, request: Any) -> Any:
        if type(request) is Read:
            self._come([request])
        return super().send(request)

    def send_batch(self, requests: Sequence[Any]) -> list[Any]:
        self._come(requests)
        return [SQLiteBackend.send(self, request) for request in requests]

    def _come(self, requests: Sequence[Any]) -> None:
        self.sizes.append(len(requests))
        if any(request.names == ("held",) for request in requests):
            self.came.set()
            assert self.go.wait(20)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Store]:
    config = settings()
    backend = Held(str(tmp_path / "store.db"), config, lambda: 10**15)
    with Store(backend, "store.db", "argument", config, lambda: 10**15) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    home = HOMES[request.param](tmp_path)
    with home.open(settings(), system_clock) as store:
        yield store
    home.close()


def read(*names: str, fence: Fence | None = None, scope: TaskScope = SCOPE) -> Read:
    return Read(scope, names, fence=fence)


async def begun(gate: Gate, backend: Any) -> asyncio.Future[Any]:
    """Have a read of `held` be on its way."""
    first = asyncio.ensure_future(gate.ask(read("held"), ADMIN))
    await asyncio.to_thread(backend.came.wait, 20)
    return first


def test_what_queues_up_while_a_read_is_on_its_way_is_read_together(
    held: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PATIENCE", 60.0)
    backend: Any = held.backend

    async def main() -> list[Any]:
        gate = Gate(held)
        asked = [await begun(gate, backend)]
        asked += [asyncio.ensure_future(gate.ask(read(f"key{number}"), ADMIN)) for number in range(99)]
        await asyncio.sleep(0)
        backend.go.set()
        answers = await asyncio.gather(*asked)
        await gate.close()
        return answers

    assert asyncio.run(main()) == [Found(0, 0, ())] * 100
    assert backend.sizes == [1, MOST_TOGETHER, 99 - MOST_TOGETHER]


@pytest.mark.parametrize("patience", [0.0, 0.05])
def test_a_read_that_takes_long_keeps_no_other_waiting(
    held: Store, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(batches, "PATIENCE", patience)
    backend: Any = held.backend

    async def main() -> None:
        gate = Gate(held)
        slow = await begun(gate, backend)
        async with asyncio.timeout(10):
            assert await gate.ask(read("other"), ADMIN) == Found(0, 0, ())
        assert not slow.done()
        backend.go.set()
        await slow
        await gate.close()

    asyncio.run(main())


def test_what_is_long_goes_alone(held: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PATIENCE", 60.0)
    backend: Any = held.backend

    async def main() -> None:
        gate = Gate(held)
        slow = await begun(gate, backend)
        long = Read(SCOPE, tuple(f"key{number}" for number in range(FEW_NAMES + 1)))
        async with asyncio.timeout(10):
            for request in (Read(SCOPE, None), long):
                assert await gate.ask(request, ADMIN) == Found(0, 0, ())
        backend.go.set()
        await slow
        await gate.close()

    asyncio.run(main())


def test_one_who_gives_up_does_not_stop_the_others_nor_do_they_wait_at_the_end(
    held: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PATIENCE", 60.0)
    backend: Any = held.backend

    async def main() -> list[Any]:
        gate = Gate(held)
        first = await begun(gate, backend)
        second, third = (asyncio.ensure_future(gate.ask(read("key"), ADMIN)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        backend.go.set()
        await gate.close()  # what was asked before is answered
        return await asyncio.gather(first, second, third, return_exceptions=True)

    outcomes = asyncio.run(main())
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, asyncio.CancelledError, Found]


def test_in_a_batch_each_read_gets_its_own_and_fails_alone(store: Store) -> None:
    send = store.backend.send
    fences = []
    for number in range(3):
        scope = TaskScope("dag", "run", f"task{number}")
        opened = send(Open(scope, None))
        fences.append(Fence(scope, opened.attempt, opened.scope_id))
        send(Commit((Part(scope, (Put("a", str(number), None), Put("b", f"[{number}]", None))),)))
    send(Open(fences[1].scope, None))  # a newer attempt
    gone = Fence(TaskScope("dag", "run", "gone"), 1, 987_654)
    viewer = Who("viewer", "vic@desk", ("other*",))

    async def main() -> list[Any]:
        gate = Gate(store)
        asked = [
            gate.ask(read("a", fence=fences[0], scope=fences[0].scope), ADMIN),
            gate.ask(read("a", fence=fences[1], scope=fences[1].scope), ADMIN),
            gate.ask(read("b", "a", "c", "b", fence=fences[2], scope=fences[2].scope), ADMIN),
            gate.ask(read("a", fence=gone, scope=gone.scope), ADMIN),
            gate.ask(read(fence=fences[0], scope=fences[0].scope), ADMIN),
            gate.ask(read("b", scope=fences[1].scope), ADMIN),
            gate.ask(read("a", scope=gone.scope), ADMIN),
            gate.ask(read("a", scope=fences[0].scope), viewer),
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert gate.fenced == 2
        await gate.close()
        return answers

    found = asyncio.run(main())
    texts = [[row.text for row in one.rows] if type(one) is Found else type(one) for one in found]
    assert texts == [["0"], StaleAttempt, ["2", "[2]"], StaleAttempt, [], ["[1]"], [], NotFound]
    assert [one.scope_id for one in found if type(one) is Found] == [
        *(fences[number].scope_id for number in (0, 2, 0, 1)),
        0,
    ]


def test_a_read_sees_every_commit_that_was_acknowledged_before_it(store: Store) -> None:
    """Contract 4.7: readable at once."""

    async def one(gate: Gate, number: int) -> None:
        key, scope = f"key{number}", TaskScope("dag", "run", f"task{number % 4}")
        add = Commit((Part(scope, (Increment(key, 1, None),)),))
        for expected in range(1, 11):
            await gate.ask(add, ADMIN)
            found = await gate.ask(read(key, scope=scope), ADMIN)
            assert found.rows[0].text == str(expected)

    async def main() -> None:
        gate = Gate(store)
        await asyncio.gather(*(one(gate, number) for number in range(16)))
        assert gate.batches < gate.commits == 160
        await gate.close()

    asyncio.run(main())
