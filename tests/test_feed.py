"""The feed of a store: whoever follows it by position sees every newest state, in order and once; on every database."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outlast.backends import Backend
from outlast.requests import Commit, Feed, FeedPage, Increment, Part, Put, Remove, Sweep
from outlast.values import TaskScope
from support.clock import Clock
from support.homes import HOMES, settings
from support.postgres import server

BACKENDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
SCOPE = TaskScope("d", "r", "t")


class Stage:
    """An empty store that is opened twice, on one clock."""

    def __init__(self, kind: str, folder: str) -> None:
        self.home, self.clock = HOMES[kind](Path(folder)), Clock()
        self.stores = [self.home.open(settings(feed_hours=1), self.clock) for _ in range(2)]

    @property
    def backend(self) -> Backend:
        return self.stores[0].backend

    def put(self, name: str, text: str, scope: TaskScope = SCOPE) -> None:
        self.backend.send(Commit((Part(scope, (Put(name, text, None),)),)))

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.home.close()


@pytest.fixture(params=BACKENDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
        stage = Stage(request.param, folder)
        yield stage
        stage.close()


def seen(page: FeedPage) -> list[tuple[str, str | None]]:
    return [(happened.row.name, happened.row.text) for happened in page.rows if happened.row]


def test_what_happened_since_comes_once_and_in_order(stage: Stage) -> None:
    start = stage.backend.send(Feed()).position
    for name, text in (("x", "1"), ("y", "2"), ("x", "3")):
        stage.put(name, text)
    stage.backend.send(Commit((Part(SCOPE, (Remove("y"),)),)))
    page = stage.stores[1].backend.send(Feed(start))
    assert (seen(page), page.reset) == ([("x", "3"), ("y", None)], False)
    assert seen(stage.backend.send(Feed(page.position))) == []
    again = stage.backend.send(Feed(page.rows[0].position))  # as a reader asks who was cut off there
    assert seen(again) == [("y", None)]


def test_a_reader_cut_off_inside_a_commit_goes_on_behind_what_it_has_seen(stage: Stage) -> None:
    start = stage.backend.send(Feed()).position
    stage.backend.send(Commit((Part(SCOPE, tuple(Put(name, "1", None) for name in "abc")),)))
    page = stage.backend.send(Feed(start))
    assert seen(stage.backend.send(Feed(page.rows[1].position))) == [("c", "1")]


def test_pages_of_one_commit_each_lose_nothing(stage: Stage) -> None:
    start = stage.backend.send(Feed()).position
    for number in range(5):
        stage.put(f"k{number}", "1")
    found, page = [], stage.backend.send(Feed(start, 1))
    while page.rows or page.more:
        found += seen(page)
        page = stage.backend.send(Feed(page.position, 1))
    assert found == [(f"k{number}", "1") for number in range(5)]


@pytest.mark.parametrize("position", ["", "x", "00000000:1", "00000000:1.1:x"])
def test_a_position_that_is_not_known_is_a_reset(stage: Stage, position: str) -> None:
    stage.put("x", "1")
    page = stage.backend.send(Feed(position))
    assert (page.reset, page.rows) == (True, ())
    assert seen(stage.backend.send(Feed(page.position))) == []


def test_what_is_too_old_is_pruned_and_then_a_reset(stage: Stage) -> None:
    old = stage.backend.send(Feed()).position
    stage.put("x", "1")
    stage.put("x", "2")
    stage.clock.move(hours=2)
    stage.put("y", "3")
    newer = stage.backend.send(Feed()).position
    stage.backend.send(Sweep(100))
    assert stage.home.rows()["feed"] == 1
    assert stage.backend.send(Feed(old)).reset is True
    assert stage.backend.send(Feed(newer)).reset is False
    stage.put("z", "4")
    assert seen(stage.backend.send(Feed(newer))) == [("z", "4")]


def test_a_reader_beside_writers_misses_nothing_and_sees_nothing_old_after_new(stage: Stage) -> None:
    scopes = [TaskScope("d", "r", f"t{number}") for number in range(3)]
    position = stage.backend.send(Feed()).position
    done = threading.Event()

    def write(number: int) -> None:
        for _ in range(40):
            parts = tuple(Part(scope, (Increment(f"n{number}", 1, None),)) for scope in scopes[: number + 1])
            stage.stores[number % 2].backend.send(Commit(parts))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    threading.Thread(target=lambda: ([thread.join() for thread in threads], done.set())).start()
    newest: dict[tuple[str, str], int] = {}
    positions: list[str] = []
    while True:
        last = done.is_set()
        page = stage.stores[1].backend.send(Feed(position, 5))
        for happened in page.rows:
            assert happened.row is not None
            assert isinstance(happened.scope, TaskScope)
            place = happened.scope.task_id, happened.row.name
            assert happened.row.revision > newest.get(place, 0)
            newest[place] = happened.row.revision
            positions.append(happened.position)
        position = page.position
        if last and not page.rows and not page.more:
            break
    assert len(positions) == len(set(positions))
    for scope in scopes:
        for row in stage.stores[0].task(scope).entries():
            assert newest[scope.task_id, row.key] == row.revision


@pytest.mark.postgres
def test_a_slow_transaction_is_not_passed_over() -> None:
    """One that got its number first and commits last."""
    with tempfile.TemporaryDirectory(prefix="outlast-") as folder:
        stage = Stage("postgres", folder)
        start = stage.backend.send(Feed()).position
        stage.put("x", "1")
        with psycopg.connect(server().url) as slow:  # type: ignore[attr-defined]
            slow.execute(f"set search_path to {stage.home.schema}".encode())  # type: ignore[attr-defined]
            slow.execute('insert into feed (at, run) values (0, \'["slow","run"]\')')
            stage.put("y", "2")
            before = stage.backend.send(Feed(start))
            assert seen(before) == [("x", "1")]
            slow.commit()
        after = stage.backend.send(Feed(before.position))
        assert [happened.run or happened.row.name for happened in after.rows if happened.run or happened.row] == [
            ("slow", "run"),
            "y",
        ]
        stage.close()


def test_a_write_of_another_store_is_in_the_feed_at_once(stage: Stage) -> None:
    position = stage.stores[1].backend.send(Feed()).position
    began = time.monotonic()
    stage.put("x", "1")
    assert seen(stage.stores[1].backend.send(Feed(position))) == [("x", "1")]
    assert time.monotonic() - began < 1
