"""What is written lately is counted in bounded memory: rates, the hottest keys, submissions found to be uncertain."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast import connect
from outlast.requests import Check, Commit, Increment, Part, Put, PutDefault, Remove, RemoveAll
from outlast.server.traffic import KEPT, ROOM, SPAN, Traffic
from outlast.values import AssetScope, TaskScope
from support.clock import Ticks
from support.homes import settings

pytestmark = pytest.mark.http

ONE, TWO, TABLE = TaskScope("d", "r", "one"), TaskScope("d", "r", "two"), AssetScope("table")


class Gauge:
    """Traffic, and a store whose receipts it is told."""

    def __init__(self, folder: Path) -> None:
        self.ticks = Ticks()
        self.traffic = Traffic(self.ticks)
        self.store = connect(folder / "store.db", config=settings())

    def write(self, *parts: Part) -> None:
        commit = Commit(parts)
        self.traffic.note(commit, self.store.backend.send(commit))

    def hottest(self, most: int = 10) -> list[tuple[str, str, int]]:
        return [(str(hot.scope), hot.key, hot.writes) for hot in self.traffic.hottest(most)]


@pytest.fixture
def gauge(tmp_path: Path) -> Gauge:
    return Gauge(tmp_path)


def put(name: str, text: str = "1") -> Put:
    return Put(name, text, None)


def test_what_has_written_a_key_is_counted_and_what_has_not_is_not(gauge: Gauge) -> None:
    gauge.write(Part(ONE, (put("a"), Increment("n", 1, None))))
    gauge.write(Part(ONE, (Check("a", 1), put("a"))))
    gauge.write(Part(ONE, (PutDefault("a", "7", None), PutDefault("b", "7", None))))
    gauge.write(Part(ONE, (Remove("absent"),)), Part(TABLE, (put("a"),)))
    gauge.write(Part(ONE, (Remove("b"),)))
    gauge.write(Part(ONE, (RemoveAll(),)))
    assert gauge.traffic.writes == 6
    assert gauge.hottest() == [
        ("d/r/one", "b", 2),
        ("d/r/one", "a", 2),
        ("d/r/one", "n", 1),
        ("asset table", "a", 1),
    ]


def test_the_rate_is_that_of_the_last_minute(gauge: Gauge) -> None:
    for _ in range(30):
        gauge.write(Part(ONE, (put("a"), put("b"))))
    gauge.ticks.now += 10
    assert gauge.traffic.per_second() == 6.0  # a server that is ten seconds old
    gauge.ticks.now += 49
    assert gauge.traffic.per_second() == 60 / 59
    gauge.ticks.now += 2
    assert gauge.traffic.per_second() == 0.0
    gauge.write(Part(ONE, (put("a"),)))
    gauge.ticks.now += 5
    assert gauge.traffic.per_second() == 1 / 60


def test_keys_cool_down(gauge: Gauge) -> None:
    for _ in range(3):
        gauge.write(Part(ONE, (put("old"),)))
    gauge.ticks.now += SPAN
    gauge.write(Part(ONE, (put("new"),)))
    assert gauge.hottest() == [("d/r/one", "old", 3), ("d/r/one", "new", 1)]
    assert gauge.traffic.hottest(1)[0].per_second == 3 / SPAN
    gauge.ticks.now += SPAN
    assert gauge.hottest() == [("d/r/one", "new", 1)]
    gauge.ticks.now += 5 * SPAN
    assert gauge.hottest() == []


def test_of_keys_without_end_the_hottest_are_found_in_bounded_memory(gauge: Gauge) -> None:
    for turn in range(40):
        cold = tuple(put(f"cold {turn} {number}") for number in range(100))
        gauge.write(Part(TWO, (*cold, put("hot"), put("warm"))), Part(ONE, (put("hot"),)))
        if turn % 2:
            gauge.write(Part(ONE, (put("hot"),)))
    first, second, third, fourth = gauge.hottest(4)
    assert first == ("d/r/one", "hot", 60)
    assert {second, third} == {("d/r/two", "hot", 40), ("d/r/two", "warm", 40)}
    assert fourth[2] == 1
    assert KEPT <= len(gauge.traffic._now.of) <= ROOM


def test_a_key_that_becomes_hot_late_displaces_the_cold_ones(gauge: Gauge) -> None:
    for start in range(0, 3000, 500):
        gauge.write(Part(TWO, tuple(put(f"cold {start + number}") for number in range(500))))
    for turn in range(20):
        gauge.write(Part(ONE, (put("late"),)))
        gauge.write(Part(TWO, tuple(put(f"more {turn} {number}") for number in range(100))))
    assert gauge.hottest(1) == [("d/r/one", "late", 20)]


@pytest.mark.parametrize(
    ("name", "text", "counted"),
    [
        ("job.intent", '{"token":"t","uncertain":1}', 1),
        ("job.intent", '{"token":"t"}', 0),
        ("job.intent", '"uncertain"', 0),
        ("job", '{"token":"t","uncertain":1}', 0),
    ],
)
def test_submissions_that_an_attempt_finds_uncertain_are_counted(
    gauge: Gauge, name: str, text: str, counted: int
) -> None:
    gauge.write(Part(ONE, (put(name, text),)))
    assert gauge.traffic.uncertain == counted
