"""A plan is driven in two colours to the same answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from outlast.plans import Plan, arun, awaiting, blocking, run
from outlast.requests import Pause


class Echo:
    """Answers a request with itself, twice; a text is an error."""

    def __init__(self) -> None:
        self.backend = self
        self.threads: list[threading.Thread] = []

    def send(self, request: Any) -> Any:
        if isinstance(request, str):
            raise KeyError(request)
        return request * 2

    async def asend(self, request: Any) -> Any:
        await asyncio.sleep(0)
        return self.send(request)

    def _double(self, first: int, *, second: int = 1) -> Plan[int]:
        """Ask twice."""
        one = yield first
        other = yield second
        return one + other  # type: ignore[no-any-return]

    double, adouble = blocking(_double), awaiting(_double)


def awaited(plan: Plan[Any], backend: Echo) -> Any:
    return asyncio.run(arun(plan, backend))


DRIVERS: list[Callable[[Plan[Any], Echo], Any]] = [run, awaited]


@pytest.mark.parametrize("drive", DRIVERS)
def test_replies_come_back_as_the_value_of_the_yield(drive: Callable[..., Any]) -> None:
    echo = Echo()
    assert drive(echo._double(5, second=7), echo) == 24


def test_the_twins_have_one_body() -> None:
    echo = Echo()
    assert echo.double(3) == asyncio.run(echo.adouble(3)) == 8
    assert (Echo.double.__name__, Echo.adouble.__name__, Echo.double.__doc__) == ("double", "adouble", "Ask twice.")


@pytest.mark.parametrize("drive", DRIVERS)
def test_an_error_is_raised_at_the_yield(drive: Callable[..., Any]) -> None:
    def plan() -> Plan[Any]:
        try:
            yield "wrong"
        except KeyError as error:
            return (yield len(error.args[0]))
        return None

    assert drive(plan(), Echo()) == 10


@pytest.mark.parametrize("drive", DRIVERS)
def test_an_error_nobody_catches_comes_out(drive: Callable[..., Any]) -> None:
    def plan() -> Plan[Any]:
        yield "wrong"

    with pytest.raises(KeyError, match="wrong"):
        drive(plan(), Echo())


@pytest.mark.parametrize("drive", DRIVERS)
def test_a_pause_is_waited_for_and_not_sent(drive: Callable[..., Any]) -> None:
    def plan() -> Plan[Any]:
        answer = yield Pause(0.001)
        return [answer]

    assert drive(plan(), Echo()) == [None]


@pytest.mark.parametrize("drive", DRIVERS)
def test_a_plan_that_asks_nothing_answers(drive: Callable[..., Any]) -> None:
    def plan() -> Plan[int]:
        return 7
        yield

    assert drive(plan(), Echo()) == 7


def test_a_cancelled_await_closes_the_plan() -> None:
    closed = []

    def plan() -> Plan[None]:
        try:
            yield Pause(60)
        finally:
            closed.append(True)

    async def work() -> None:
        task = asyncio.create_task(arun(plan(), Echo()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == [True]

    asyncio.run(work())
