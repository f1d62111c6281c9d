"""What the store has said lately: asked once by all at the same time, anew when it is too old or was changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import BackendError
from outlast.backends import Backend
from outlast.server.lately import Lately


class Counting(Backend):
    """Answers with how often it was asked, when it is told to; fails the first time if it is to."""

    def __init__(self, fails: bool = False) -> None:
        self.asked, self.fails, self.go = 0, fails, asyncio.Event()

    def send(self, request: Any) -> Any:
        raise NotImplementedError

    async def asend(self, request: Any) -> Any:
        self.asked += 1
        number = self.asked
        await self.go.wait()
        if self.fails and number == 1:
            raise BackendError("no store")
        return number

    def close(self) -> None:
        pass


async def asking(lately: Lately, number: int) -> list[asyncio.Future[Any]]:
    asked = [asyncio.ensure_future(lately.answer("what")) for _ in range(number)]
    await asyncio.sleep(0)
    return asked


def test_it_is_asked_once_by_all_and_again_when_its_answer_is_too_old() -> None:
    async def main() -> None:
        store, clock = Counting(), [0.0]
        lately = Lately(store, lambda: clock[0], 1.0, 10)
        asked = await asking(lately, 5)
        store.go.set()
        assert await asyncio.gather(*asked) == [1] * 5
        clock[0] = 0.999
        assert await lately.answer("what") == 1
        clock[0] = 1.0
        assert await lately.answer("what") == 2

    asyncio.run(main())


def test_a_question_that_is_on_its_way_for_too_long_is_not_joined() -> None:
    async def main() -> None:
        store, clock = Counting(), [0.0]
        lately = Lately(store, lambda: clock[0], 1.0, 10)
        early = await asking(lately, 2)
        clock[0] = 1.0
        late = await asking(lately, 2)
        store.go.set()
        assert await asyncio.gather(*early, *late) == [1, 1, 2, 2]
        assert await lately.answer("what") == 2
        assert lately.asked_at("what") == 1.0

    asyncio.run(main())


def test_a_fault_reaches_all_who_asked_and_is_not_remembered() -> None:
    async def main() -> None:
        store = Counting(fails=True)
        lately = Lately(store, lambda: 0.0, 1.0, 10)
        asked = await asking(lately, 2)
        store.go.set()
        for each in asked:
            with pytest.raises(BackendError, match="no store"):
                await each
        assert await lately.answer("what") == 2

    asyncio.run(main())


def test_who_gives_up_does_not_stop_the_others() -> None:
    async def main() -> None:
        store = Counting()
        lately = Lately(store, lambda: 0.0, 1.0, 10)
        first, second = await asking(lately, 2)
        first.cancel()
        store.go.set()
        assert await second == 1

    asyncio.run(main())


def test_what_was_asked_before_a_change_is_not_kept_after_it() -> None:
    async def main() -> None:
        store = Counting()
        lately = Lately(store, lambda: 0.0, 1.0, 10)
        [before] = await asking(lately, 1)
        lately.forget("what")
        [after] = await asking(lately, 1)
        store.go.set()
        assert (await before, await after, await lately.answer("what")) == (1, 2, 2)

    asyncio.run(main())
