"""What a runner tidies up: of a store of its own everything, behind a server the logs of runs that are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Store, connect
from outlast.config import ClientSettings, Config, RunnerSettings
from outlast.log_files import log_folder
from outlast.runner.logs import log_path
from outlast.runner.tidying import Tidying
from outlast.values import TaskScope
from support.clock import Clock
from support.public import Door, open_door
from support.runs import ANN, Desk

DAYS = 24 * 3600


def runner(folder: Path) -> Any:
    return RunnerSettings(keep_runs_days=90, logs_dir=str(folder / "logs"))


def logged(store: Store, run_id: str, age: float = 0, dag_id: str = "etl") -> Path:
    """Write the log of an attempt, so many seconds ago by the store's clock."""
    path = Path(log_path(log_folder(store.config, store.url), TaskScope(dag_id, run_id, "load"), 1))
    path.parent.mkdir(parents=True)
    path.write_text("said\n")
    moment = store.clock() / 1e6 - age
    os.utime(path, (moment, moment))
    return path


def ended(store: Store, run_id: str) -> None:
    desk = Desk(store.backend, "etl", run_id)
    desk.start("load")
    desk.ran("load")
    desk.release("success")


def test_of_a_store_of_its_own_old_runs_go_with_their_logs(tmp_path: Path) -> None:
    clock = Clock()
    with connect(tmp_path / "s.db", config=Config(runner=runner(tmp_path)), clock=clock) as store:
        ended(store, "old")
        clock.move(days=60)
        ended(store, "young")
        clock.move(days=31)
        old, young = logged(store, "old"), logged(store, "young")
        Tidying(store).look(["etl"])
        assert (old.exists(), young.exists()) == (False, True)
        assert [run.run_id for run, _ in store.runs_as(ANN).list()] == ["young"]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        yield door


@pytest.mark.http
def test_behind_a_server_old_logs_go_whose_run_is_gone(door: Door, tmp_path: Path) -> None:
    config = Config(client=ClientSettings(token=door.as_role("runner", "etl").token), runner=runner(tmp_path))
    with connect(door.url, config=config) as store:
        door.desk("kept").start("load")
        now = time.time() - store.clock() / 1e6  # the client's clock is the machine's
        assert abs(now) < 60
        gone, kept = logged(store, "gone", 91 * DAYS), logged(store, "kept", 91 * DAYS)
        young, foreign = logged(store, "young", 89 * DAYS), logged(store, "gone", 91 * DAYS, "other")
        again = logged(store, "gone again", 91 * DAYS)
        again.with_name("attempt-2.log").write_text("it was not long ago\n")
        tidying = Tidying(store)
        tidying.look(["etl"])
        assert [path.exists() for path in (gone, kept, young, foreign, again)] == [False, True, True, True, True]


@pytest.mark.http
def test_it_asks_about_a_few_at_a_time_and_not_at_all_where_logs_are_for_ever(door: Door, tmp_path: Path) -> None:
    client = ClientSettings(token=door.as_role("runner").token)
    for_ever = RunnerSettings(keep_runs_days=0, logs_dir=str(tmp_path / "logs"))
    with connect(door.url, config=Config(client=client, runner=runner(tmp_path))) as store:
        paths = [logged(store, f"gone{number:02}", 91 * DAYS) for number in range(12)]
        with connect(door.url, config=Config(client=client, runner=for_ever)) as other:
            Tidying(other).look(["etl"])
        assert all(path.exists() for path in paths)
        tidying = Tidying(store)
        tidying.look(["etl"])
        assert [path.exists() for path in paths] == [False] * 10 + [True] * 2
        tidying.at = 0.0
        tidying.look(["etl"])
        assert not any(path.exists() for path in paths)
