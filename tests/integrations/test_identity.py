"""Who a context says is running, and that a try reaches the state of its own run only."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from outlast import connect
from outlast.integrations.airflow.clearing import erase
from outlast.integrations.airflow.identity import Identity, identity_of, identity_of_instance

BEGAN = datetime(2026, 11, 29, tzinfo=UTC)
RUN = SimpleNamespace(id=7, start_date=BEGAN)
RUN_3 = SimpleNamespace(run_id="run", start_date=BEGAN)
MICROS = int(BEGAN.timestamp()) * 1_000_000
ID = UUID(int=5)


def instance(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"dag_id": "dag", "run_id": "run", "task_id": "task", "map_index": -1, **more})


def told(context: dict[str, Any]) -> tuple[Any, ...]:
    who = identity_of(context)
    return who.attempt, who.origin, who.started


@pytest.mark.parametrize("number", [1, 2])
def test_on_2_every_try_tells_the_runs_row(number: int) -> None:
    assert told({"ti": instance(try_number=number), "dag_run": RUN}) == (number, "run:7", MICROS)


def test_on_2_a_run_without_a_row_tells_nothing() -> None:
    run = SimpleNamespace(id=None, start_date=BEGAN)
    assert told({"ti": instance(try_number=1), "dag_run": run}) == (1, None, None)


def test_on_3_the_first_try_tells_its_id_and_when_the_run_began() -> None:
    """Its own beginning is that of the process where it goes on after a deferral."""
    first = instance(try_number=1, id=ID, start_date=datetime.now(UTC))
    assert told({"ti": first, "dag_run": RUN_3}) == (1, f"ti:{ID}", MICROS)
    assert told({"ti": instance(try_number=2, id=ID), "dag_run": RUN_3}) == (2, None, None)
    assert told({"ti": instance(try_number=1, id=ID, map_index=None)}) == (1, f"ti:{ID}", None)


def test_a_listener_is_told_the_same() -> None:
    """By a model of Airflow's, which has the row's number on 3 as well, or by what runs in a task's process."""
    assert identity_of_instance(instance(try_number=2, dag_run=RUN)).origin == "run:7"
    first = instance(try_number=1, id=ID)
    running = SimpleNamespace(**vars(first), get_template_context=lambda: {"ti": first, "dag_run": RUN_3})
    model = instance(try_number=1, id=ID, dag_run=RUN)
    assert identity_of_instance(running) == identity_of_instance(model) == identity_of({"ti": first, "dag_run": RUN})


def test_the_success_of_an_earlier_runs_try_removes_nothing_of_a_later_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = Identity("dag", "run", "task", -1, 1, "run:1", 1_000)
    later = earlier._replace(origin="run:2", started=2_000)
    with connect(tmp_path / "store.db") as store, caplog.at_level(logging.WARNING, "outlast"):
        store.task("dag/run/task", attempt=1, origin=("run:2", 2_000)).set("job", 7)
        erase(store, earlier)
        assert store.task("dag/run/task").get("job") == 7
        assert "is not removed" in caplog.text
        erase(store, later)
        assert store.task("dag/run/task").items() == []
        assert [version.value for version in store.task("dag/run/task").history("job")] == [None]


def test_a_success_makes_no_scope(tmp_path: Path) -> None:
    with connect(tmp_path / "store.db") as store:
        erase(store, Identity("dag", "run", "task", -1, 1, "run:1", 1_000))
        assert store.scopes() == []
