"""The end of `outlast run`: its last line says how each run has ended, and what to type to go on with it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast
from outlast.event_requests import ConsumedUntil, ListEvents
from outlast.run_requests import ListRuns
from outlast.runner import processes
from support.runs import Desk

from .conftest import PROGRAM, Told

Call = Callable[..., Told]

LONG = 10.0**9  # seconds: a lease that holds although the store's clock stands still

FILE = """
import os, time
from pathlib import Path
from outlast import DAG, task

with DAG("ingest"):
    @task
    def load(day=None):
        Path("begun").touch()
        while os.path.exists("slow"):
            time.sleep(0.02)
        if os.path.exists("bad"):
            raise ValueError("no more pages")

    load()
"""

CONSUMER = """
from outlast import DAG, Asset, task

with DAG("reader", schedule=[Asset("orders")]):
    @task
    def read(): ...

    read()
"""


@pytest.fixture
def folder(place: str, tmp_path: Path) -> Path:
    (tmp_path / "ingest.py").write_text(FILE)
    (tmp_path / "reader.py").write_text(CONSUMER)
    return tmp_path


def last_line(told: Told) -> str:
    return told.err.splitlines()[-1]


def test_a_success(program: Call, folder: Path) -> None:
    told = program("run", "ingest.py", "--run-id", "r1")
    assert (told.status, last_line(told)) == (0, "outlast: run ingest/r1: success")


def test_a_failure_says_how_to_run_it_again(program: Call, folder: Path) -> None:
    (folder / "bad").touch()
    told = program("run", "ingest.py", "--run-id", "r 1", "--store", "work.db")
    assert told.status == 1
    assert last_line(told) == (
        "outlast: run ingest/r 1: failed; to run it again: outlast tasks clear 'ingest/r 1/load' --store work.db"
    )


def test_each_of_several_runs_has_its_line(program: Call, folder: Path) -> None:
    (folder / "other.py").write_text(FILE.replace('"ingest"', '"other"'))
    told = program("run", "ingest.py", "other.py", "--run-id", "r1")
    assert sorted(told.err.splitlines()[-2:]) == ["outlast: run ingest/r1: success", "outlast: run other/r1: success"]


def begin(folder: Path) -> subprocess.Popen[str]:
    """Start a run and wait until its task is at work."""
    (folder / "slow").touch()
    runner = subprocess.Popen([*PROGRAM, "run", "ingest.py", "--run-id", "r1"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 30
    while not (folder / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    return runner


def test_a_cancelled_run(call: Call, folder: Path) -> None:
    runner = begin(folder)
    assert call("runs", "cancel", "ingest/r1", "--yes").status == 0
    _, err = runner.communicate(timeout=30)
    assert (runner.returncode, err.splitlines()[-1]) == (3, "outlast: run ingest/r1: cancelled")


def test_a_paused_run_says_how_to_go_on(folder: Path) -> None:
    runner = begin(folder)
    runner.terminate()
    _, err = runner.communicate(timeout=30)
    assert runner.returncode == 75
    assert err.splitlines()[-1] == "outlast: run ingest/r1: paused; to go on: outlast run ingest.py --run-id r1"


def test_a_dag_that_waits_for_assets_has_no_run(program: Call, folder: Path) -> None:
    told = program("run", "reader.py")
    assert (told.status, last_line(told)) == (0, "outlast: no run: reader begins when its assets are updated")


@pytest.mark.parametrize("option", [(), ("--resume",)])
def test_a_run_for_assets_that_another_runner_has_is_left_to_it(
    program: Call, store: outlast.Store, folder: Path, option: tuple[str, ...]
) -> None:
    desk = Desk(store.backend, "reader")
    desk.start("read", file=str(folder / "reader.py"), holder=processes.me(), lease=LONG)
    told = program("run", "reader.py", "ingest.py", *option)
    assert told.status == 0
    said = f"outlast: run reader/r1 is being run by process {os.getpid()}; wait for it"
    assert any(line.startswith(said) and line.endswith("reader waits for its assets") for line in told.err.splitlines())
    assert [run.dag_id for run, _ in store.backend.send(ListRuns(states=("success",))).runs] == ["ingest"]


def test_a_run_for_assets_that_is_named_is_refused(program: Call, store: outlast.Store, folder: Path) -> None:
    desk = Desk(store.backend, "reader")
    desk.start("read", file=str(folder / "reader.py"), holder=processes.me(), lease=LONG)
    assert program("run", "reader.py", "--run-id", "r1").status == 9


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('day={"a": 1, "a": 2}', "--param day: $ has the key 'a' twice"),
        ("day=" + "[" * 101 + "]" * 101, "nested deeper than 100"),
        ("=1", "write KEY=VALUE"),
        ("day", "write KEY=VALUE"),
    ],
)
def test_a_parameter_that_cannot_be_kept_is_refused(program: Call, folder: Path, given: str, said: str) -> None:
    told = program("run", "ingest.py", "--param", given)
    assert told.status in (2, 65)
    assert said in told.err
    assert not (folder / "begun").exists()


def test_a_store_that_goes_away_is_exit_69_and_the_line_to_go_on_is_printed(folder: Path, place: str) -> None:
    """As it is with a store that another program keeps locked for longer than outlast waits."""
    runner = begin(folder)
    for end in ("", "-wal"):
        os.rename(place + end, folder / f"elsewhere{end}")
    (folder / "slow").unlink()
    _, err = runner.communicate(timeout=50)
    assert runner.returncode == 69
    *_, why, last = err.splitlines()
    assert why.startswith(f"outlast: {place} was removed or replaced while in use")
    assert last == (
        "outlast: run ingest/r1: left, as the store could not be reached; to go on: outlast run ingest.py --run-id r1"
    )


PRODUCER = """
from outlast import DAG, Asset, task

with DAG("producer"):
    @task(outlets=[Asset("users")])
    def write(): ...

    write()
"""


def test_events_a_dag_does_not_wait_for_count_as_seen_by_it(program: Call, store: outlast.Store, folder: Path) -> None:
    """So that they can be pruned, though the DAG is never started for them."""
    (folder / "producer.py").write_text(PRODUCER)
    told = program("run", "producer.py", "reader.py")
    assert told.status == 0
    assert [row.name for row in store.backend.send(ListEvents()).rows] == ["users"]
    assert store.backend.send(ConsumedUntil("reader")).newest == 1
