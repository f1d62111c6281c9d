"""What a server does unasked is done by one server of a database, goes on after failures, and ends when told to."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from pathlib import Path

import pytest

from outlast import Store, connect
from outlast.config import ClientSettings, Config, RunnerSettings, StateStoreSettings
from outlast.event_requests import HoldWatchers
from outlast.log_files import log_folder
from outlast.requests import Inspect, Once
from outlast.run_requests import DeleteRun, ListRuns, PruneRuns
from outlast.runner.logs import log_path
from outlast.server.maintenance import DUTY, Maintenance
from support.clock import Clock
from support.public import open_door
from support.runs import ANN, RUNNER, Desk
from support.servers import ServerProcess

CONFIG = Config(state_store=StateStoreSettings(state_cleanup_batch_size=7), runner=RunnerSettings(keep_runs_days=90))


def open_store(folder: Path, clock: Clock | None = None) -> Store:
    return connect(folder / "store.db", config=CONFIG, clock=clock or Clock())


def expired(store: Store) -> int:
    return int(dict(store.backend.send(Inspect()).facts)["expired, not yet swept"])


def test_a_round_sweeps_and_prunes_all_there_is(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock)
    state = store.task("etl/r1/load")
    state.set_many({f"k{number}": number for number in range(40)}, retention=timedelta(days=90))
    for number in range(25):
        desk = Desk(store.backend, "etl", f"old{number}")
        desk.start("load")
        desk.ran("load")
        desk.release("success")
    clock.move(days=89)
    young = Desk(store.backend, "etl", "young")
    young.start("load")
    young.ran("load")
    young.release("success")
    clock.move(days=2)
    assert expired(store) == 40
    duty = Maintenance(store)
    asyncio.run(duty.round())
    assert expired(store) == 0
    assert (duty.report.swept, duty.report.pruned) == (40, 25)
    assert [run.run_id for run, _ in store.backend.send(ListRuns()).runs] == ["young"]
    assert duty.report.on_duty
    assert duty.report.last_at == clock()


def test_with_a_run_its_logs_go(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock)
    folder = log_folder(store.config, store.url)
    paths = []
    for run_id in ("old", "young"):
        desk = Desk(store.backend, "etl", run_id)
        desk.start("load")
        desk.ran("load")
        desk.release("success")
        paths.append(Path(log_path(folder, desk.scope("load"), 1)))
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_text("said\n")
        clock.move(days=60)
    asyncio.run(Maintenance(store).round())
    assert [path.exists() for path in paths] == [False, True]


@pytest.mark.parametrize("way", ["delete", "prune", "look"])
def test_with_a_run_that_people_remove_its_logs_go(tmp_path: Path, way: str) -> None:
    with open_door(tmp_path) as door:
        desk = door.desk("r7")
        desk.start("load")
        desk.ran("load")
        desk.release("success")
        path = Path(log_path(log_folder(door.store.config, door.store.url), desk.scope("load"), 1))
        path.parent.mkdir(parents=True)
        path.write_text("said\n")
        door.clock.move(days=100)
        with connect(door.url, config=Config(client=ClientSettings(token=door.token))) as store:
            if way == "delete":
                store.runs_as(ANN).delete("etl", "r7")
            else:
                pruned = store.backend.send(PruneRuns(door.clock(), 10, dry_run=way == "look", writer=ANN))
                assert pruned.runs == (("etl", "r7"),)
        assert path.exists() == (way == "look")


def test_asked_again_the_logs_of_a_run_that_was_made_anew_stay(tmp_path: Path) -> None:
    """A client that has heard nothing sends the same removal again, under its call id."""
    with open_door(tmp_path) as door:
        desk = door.desk("r7")
        desk.start("load")
        desk.release("success")
        path = Path(log_path(log_folder(door.store.config, door.store.url), desk.scope("load"), 1))
        path.parent.mkdir(parents=True)
        path.write_text("said\n")
        request = Once("one", DeleteRun("etl", "r7", ANN))
        with connect(door.url, config=Config(client=ClientSettings(token=door.token))) as store:
            assert store.backend.send(request).runs == (("etl", "r7"),)
            assert not path.exists()
            door.desk("r7").start("load")
            path.parent.mkdir(parents=True)
            path.write_text("said anew\n")
            assert store.backend.send(request).runs == (("etl", "r7"),)
        assert path.read_text() == "said anew\n"


def test_only_one_of_two_servers_does_it_until_its_lease_lapses_or_it_stops(tmp_path: Path) -> None:
    clock = Clock()
    one, two = Maintenance(open_store(tmp_path, clock)), Maintenance(open_store(tmp_path, clock))

    def rounds() -> tuple[bool, bool]:
        asyncio.run(one.round())
        asyncio.run(two.round())
        return one.report.on_duty, two.report.on_duty

    assert rounds() == (True, False)
    clock.move(seconds=50)
    assert rounds() == (True, False)
    clock.move(seconds=59)
    asyncio.run(two.round())
    assert not two.report.on_duty
    clock.move(seconds=2)  # nobody has renewed it for more than a minute
    asyncio.run(two.round())
    assert two.report.on_duty
    assert rounds() == (False, True)
    asyncio.run(two.stop())
    assert rounds() == (True, False)


def test_a_failure_is_logged_once_and_does_not_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path)
    store.task("etl/r1/load").set("a", 1)
    duty = Maintenance(store, every=0.01)
    path, away = tmp_path / "store.db", tmp_path / "away.db"

    async def life() -> None:
        duty.start()
        await until(lambda: duty.report.on_duty)
        path.rename(away)  # a backend refuses to go on with a file that has been replaced
        await until(lambda: duty.report.problem is not None)
        await asyncio.sleep(0.1)
        away.rename(path)
        await until(lambda: duty.report.problem is None)
        await duty.stop()

    with caplog.at_level(logging.WARNING, "outlast.server"):
        asyncio.run(life())
    failures = [record for record in caplog.records if "maintenance failed" in record.message]
    assert len(failures) == 1
    assert not duty.report.on_duty


async def until(holds: object) -> None:
    """Wait until something holds, at most 20 s."""
    assert callable(holds)
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_server_sweeps_and_gives_its_lease_up_when_it_stops(tmp_path: Path) -> None:
    now = Clock(time.time_ns() // 1000 - 3600 * 1_000_000)
    with open_store(tmp_path, now) as store:
        store.task("etl/r1/load").set("short", 1, retention=timedelta(seconds=1))
    with connect(tmp_path / "store.db") as store, ServerProcess(tmp_path / "store.db") as server:
        end = time.monotonic() + 15
        while expired(store) and time.monotonic() < end:
            time.sleep(0.05)
        assert expired(store) == 0
        assert store.backend.send(HoldWatchers((DUTY,), RUNNER, 1.0)).held == ()
        status, _, logged = server.stop()
        assert status == 0
        assert "this server sweeps and prunes" in logged
        assert "ERROR" not in logged
        assert store.backend.send(HoldWatchers((DUTY,), RUNNER, 1.0)).held == (DUTY,)
