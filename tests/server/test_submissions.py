"""Which submissions of jobs are open: an intent without an id that no running attempt is about to settle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Store, connect
from outlast.server import submissions
from outlast.server.submissions import open_submissions
from outlast.state import TaskState
from outlast.values import TaskScope, Writer
from support.clock import Clock
from support.homes import settings
from support.runs import Desk

pytestmark = pytest.mark.http

ID, INTENT = "remote_job_id", "remote_job_id.intent"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with connect(tmp_path / "store.db", config=settings(), clock=clock) as store:
        yield store


@pytest.fixture
def desk(store: Store) -> Desk:
    desk = Desk(store.backend)
    desk.start("load")
    desk.begin("load")
    return desk


def intend(store: Store, desk: Desk, token: Any = "t") -> None:
    """Store an intent as the newest attempt does."""
    fence = desk.fence("load")
    writer = Writer("task", fence.attempt)
    TaskState(store.backend, fence.scope, store.config, store.clock, writer, fence).set(INTENT, {"token": token})


def seen(store: Store) -> list[tuple[str, str, str | None]]:
    found, _ = open_submissions(store.backend, store.clock())
    return [(str(each.scope), each.key, each.state) for each in found]


def test_a_submission_under_way_is_not_open_until_its_attempt_has_died(store: Store, desk: Desk, clock: Clock) -> None:
    intend(store, desk)
    assert seen(store) == []
    clock.move(seconds=31)  # nobody renews
    assert seen(store) == [("nightly/r1/load", ID, "running")]
    desk.report(desk.fence("load"), "crashed", crash_retries=3)
    assert seen(store) == [("nightly/r1/load", ID, "up_for_retry")]
    desk.begin("load")
    assert seen(store) == [("nightly/r1/load", ID, "running")]  # it is another attempt's
    store.task("nightly/r1/load").set(ID, 7)
    assert seen(store) == []


@pytest.mark.parametrize(("outcome", "is_open"), [("success", False), ("skipped", False), ("failed", True)])
def test_when_a_task_has_its_result_its_job_does_not_matter(
    store: Store, desk: Desk, outcome: str, is_open: bool
) -> None:
    intend(store, desk)
    desk.report(desk.fence("load"), outcome)
    assert bool(seen(store)) == is_open


def test_where_no_run_says_whether_the_attempt_lives_time_does(store: Store, clock: Clock) -> None:
    state = store.task(TaskScope("d", "r", "script"), attempt="new")
    state.set("training.intent", {"token": "t"})
    clock.move(seconds=60)
    assert seen(store) == []
    clock.move(seconds=1)
    assert seen(store) == [("d/r/script", "training", None)]


def test_what_only_ends_like_an_intent_is_none(store: Store, clock: Clock) -> None:
    store.task("d/r/t").set_many({"a.intent": "x", "b.intent": {"uncertain": 1}, ".intention": {"token": "t"}})
    clock.move(hours=1)
    assert seen(store) == []


def test_of_very_many_the_first_are_looked_at(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MOST", 2)
    for number in range(3):
        store.task("d/r/t", map_index=number).set(INTENT, {"token": "t"})
    clock.move(hours=1)
    found, is_all = open_submissions(store.backend, clock())
    assert ([each.scope.map_index for each in found], is_all) == ([0, 1], False)
