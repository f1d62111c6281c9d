"""The suite's stage: every test on every backend, blocking and awaiting.

A backend joins by adding its home to `support.homes.HOMES`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.clock import Clock
from support.homes import HOMES, NEEDS, Home
from support.runs import ANN, Desk
from support.verbs import Verbs
from support.world import World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to long runs what takes long: of each test on a server that restarts, all but one of its cases."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        if item.path.parent == HERE and callspec is not None and callspec.params.get("home") == "restarting":
            cases.setdefault(f"{item.path}:{item.function.__name__}", []).append(item)  # type: ignore[attr-defined]
    for number, of_one in enumerate(cases.values()):
        chosen = number % len(of_one)
        for item in (*of_one[:chosen], *of_one[chosen + 1 :]):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(params=["blocking", "awaiting"])
def mode(request: pytest.FixtureRequest) -> str:
    """The colour the verbs are called in."""
    return str(request.param)


def marked(name: str) -> Any:
    """Return a backend's name, marked where it needs more than outlast itself."""
    return pytest.param(name, marks=[getattr(pytest.mark, mark) for mark in NEEDS.get(name, ())])


@pytest.fixture(params=[marked(name) for name in HOMES])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A place for a store, empty, in a memory file system where there is one."""
    if request.param == "restarting":
        monkeypatch.setattr("outlast.backends.http.LONGEST_PAUSE", 0.05)  # it is back at once
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="outlast-", dir=memory if memory.is_dir() else None) as folder:
        home = HOMES[request.param](Path(folder))
        yield home
        home.close()


@pytest.fixture
def clock() -> Clock:
    """The time, which moves when the test says so."""
    return Clock()


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for all awaiting tests."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def world(home: Home, clock: Clock, mode: str, loop: asyncio.Runner) -> Iterator[World]:
    """Where stores are opened."""
    world = World(home, clock, loop if mode == "awaiting" else None)
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> Verbs:
    """An open store, empty."""
    return world.open()


@pytest.fixture
def state(store: Verbs) -> Verbs:
    """An unfenced task's state."""
    return store.task("dag/run/task")


@pytest.fixture(params=["task", "asset"])
def either(request: pytest.FixtureRequest, store: Verbs) -> Verbs:
    """The state of a task, and that of an asset: what holds for both."""
    return store.task("dag/run/task") if request.param == "task" else store.asset("table")


@pytest.fixture
def desk(store: Verbs) -> Desk:
    """Who speaks for a runner and its workers."""
    return Desk(Verbs(store.real.backend, store.runner))


@pytest.fixture
def runs(store: Verbs) -> Verbs:
    """The runs, as a person sees and steers them."""
    return Verbs(store.real.runs_as(ANN), store.runner)
