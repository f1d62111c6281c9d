"""Attempts that are SIGKILLed at random moments, from before the intent to after the stored id: how many jobs start."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import outlast
from outlast.config import Config, StateStoreSettings
from outlast.dags.job_events import logger
from outlast.operators import ProcessJobOperator, launcher
from support import job_system
from support.job_system import Client, FindingClient

ID, INTENT = "remote_job_id", "remote_job_id.intent"
#: Seconds after its beginning within which an attempt is killed; an attempt takes 0.1 s.
WITHIN = 0.06
KILLS = 3
PATIENCE = 30.0


class Ground:
    """A store, a job system, and a task whose attempts follow each other."""

    def __init__(self, folder: Path, way: str, seed: str) -> None:
        self.folder, self.way, self.attempt = folder, way, 0
        self.config = Config(state_store=StateStoreSettings(durability="process"))
        for name in ("requests", "replies", "jobs", "tokens"):
            (folder / name).mkdir()
        self.system = None if way == "process" else self._system(seed)
        self.operator: Any = self._operator()
        with self.connected() as store:
            store.task("d/r/t").keys()

    def _system(self, seed: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, job_system.__file__, str(self.folder), self.way, seed])
        while not (self.folder / "ready").exists():
            assert process.poll() is None
            time.sleep(0.005)
        return process

    def _operator(self) -> Any:
        if self.way == "process":
            operator = ProcessJobOperator(
                task_id="t",
                command="echo $$ >> starts; sleep 0.05",
                cwd=self.folder,
                output_dir=self.folder / "jobs",
                poll_interval=0.01,
            )
            operator.find_job_grace = 0.2
            return operator
        return (FindingClient if self.way == "finds" else Client)(task_id="t", folder=self.folder)

    def connected(self) -> outlast.Store:
        return outlast.connect(self.folder / "s.db", config=self.config)

    def begin(self) -> tuple[int, int]:
        """Begin the next attempt in a process of its own; return it, with a pipe it writes to when it has begun."""
        self.attempt += 1
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            return pid, read
        try:
            os.setsid()
            logger.addHandler(logging.FileHandler(self.folder / "log"))
            logger.setLevel(logging.INFO)
            with self.connected() as store:
                state = store.task("d/r/t", attempt=self.attempt)
                os.write(write, b"x")
                result = self.operator.execute({"task_state_store": state})
            (self.folder / "result").write_bytes(msgspec.json.encode(result))
        finally:
            os._exit(0 if (self.folder / "result").exists() else 1)

    def killed(self, after: float) -> str:
        """Run an attempt and kill it some time after it has begun; return what is stored then."""
        pid, began = self.begin()
        assert os.read(began, 1) == b"x"
        os.close(began)
        time.sleep(after)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with self.connected() as store:
            keys = store.task("d/r/t").keys()
        return "id" if ID in keys else "intent" if INTENT in keys else "nothing"

    def completed(self) -> Any:
        """Run an attempt to its end and return its result."""
        pid, began = self.begin()
        os.close(began)
        deadline = time.monotonic() + PATIENCE
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.005)
        assert (self.folder / "result").exists(), self.log
        return msgspec.json.decode((self.folder / "result").read_bytes())

    @property
    def started(self) -> int:
        if self.way == "process":
            path = self.folder / "starts"
            return len(path.read_text().splitlines()) if path.exists() else 0
        return len(list((self.folder / "jobs").iterdir()))

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        (self.folder / "end").touch()
        if self.system is not None:
            self.system.wait(PATIENCE)
        for folder in (self.folder / "jobs").iterdir() if self.way == "process" else ():
            job = launcher.read(str(folder), launcher.JOB)
            if job is not None and launcher.is_alive(job):
                os.killpg(job["pid"], signal.SIGKILL)


@pytest.fixture
def ground(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    way, seed = request.param
    made = Ground(tmp_path, way, str(seed))
    yield made
    made.close()


def cases(ways: list[str], seeds: range) -> list[Any]:
    """Go through the ways in turn, one a seed."""
    return [pytest.param((ways[seed % len(ways)], seed), seed, id=f"{ways[seed % len(ways)]}-{seed}") for seed in seeds]


def check(ground: Ground, seed: int) -> None:
    chance = random.Random(seed)
    seen = [ground.killed(chance.uniform(0, WITHIN)) for _ in range(chance.randint(1, KILLS))]
    if ground.way == "process":
        seen.append(ground.killed(chance.uniform(0, 2 * WITHIN)))  # a launcher takes longer than a request
    result = ground.completed()
    again = ground.completed()  # cleared, and its state kept: it has succeeded already
    time.sleep(job_system.SLOW)
    with ground.connected() as store:
        state = store.task("d/r/t")
        assert state.keys() == [ID]
        assert result == ({"job": state.get(ID)} if ground.way != "process" else {"exit_status": 0, "output": ""})
    assert again == result
    reported = ground.log.count("resumable_job.uncertain_submit")
    if ground.way == "neither":
        assert ground.started - 1 <= reported <= seen.count("intent"), (seen, ground.log)
        assert bool(reported) == ("intent" in seen), (seen, ground.log)
    else:
        assert ground.started == 1, (seen, ground.log)


@pytest.mark.parametrize(
    ("ground", "seed"), cases(["finds", "dedupes", "neither", "process"], range(25)), indirect=["ground"]
)
def test_submit_once(ground: Ground, seed: int) -> None:
    check(ground, seed)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("ground", "seed"), cases(["finds", "dedupes", "neither", "process"], range(100, 300)), indirect=["ground"]
)
def test_submit_once_many_times(ground: Ground, seed: int) -> None:
    check(ground, seed)


@pytest.mark.parametrize(("ground", "seed"), [(("neither", 1), 1)], indirect=["ground"])
def test_a_duplicate_is_possible_and_reported_where_the_system_does_nothing_against_it(
    ground: Ground, seed: int
) -> None:
    """What the others are protected from does happen: killed when the job has started and the id is not stored."""
    pid, began = ground.begin()
    os.close(began)
    deadline = time.monotonic() + PATIENCE
    while not ground.started:
        assert time.monotonic() < deadline
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with ground.connected() as store:
        stored = store.task("d/r/t").keys()
    ground.completed()
    assert ground.started == (2 if stored == [INTENT] else 1)
    assert ground.log.count("resumable_job.uncertain_submit") == ground.started - 1
