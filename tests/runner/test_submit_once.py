"""Attempts that are SIGKILLed at random moments, from before the intent to after the stored id: how many jobs start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.config import Config, StateStoreSettings
from outlast.operators import launcher
from support import attempting, job_system

ID, INTENT, STATUS = "remote_job_id", "remote_job_id.intent", "remote_job_id.status"
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
        self.operator = self._operator()
        with self.connected() as store:
            store.task("d/r/t").keys()

    def _system(self, seed: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, job_system.__file__, str(self.folder), self.way, seed])
        while not (self.folder / "ready").exists():
            assert process.poll() is None
            time.sleep(0.005)
        return process

    def _operator(self) -> dict[str, Any]:
        if self.way != "process":
            return {"kind": "FindingClient" if self.way == "finds" else "Client", "arguments": {"folder": self.folder}}
        arguments = {
            "command": "echo $$ >> starts; sleep 0.05",
            "cwd": self.folder,
            "output_dir": self.folder / "jobs",
            "poll_interval": 0.01,
        }
        return {"kind": "ProcessJobOperator", "arguments": arguments, "attributes": {"find_job_grace": 0.2}}

    def connected(self) -> outlast.Store:
        return outlast.connect(self.folder / "s.db", config=self.config)

    def begin(self) -> subprocess.Popen[bytes]:
        """Begin the next attempt in a process of its own."""
        self.attempt += 1
        return attempting.begin(
            store=self.folder / "s.db",
            attempt=self.attempt,
            log=self.folder / "log",
            result=self.folder / "result",
            **self.operator,
        )

    def killed(self, after: float) -> str:
        """Run an attempt and kill it some time after it has begun; return what is stored then."""
        process = self.begin()
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        time.sleep(after)
        return self.kill(process)

    def kill(self, process: subprocess.Popen[bytes]) -> str:
        """Kill an attempt; return what is stored then."""
        attempting.kill(process)
        with self.connected() as store:
            keys = store.task("d/r/t").keys()
        return "id" if ID in keys else "intent" if INTENT in keys else "nothing"

    def completed(self) -> Any:
        """Run an attempt to its end and return its result."""
        process = self.begin()
        assert process.communicate(timeout=PATIENCE) == (b"x", None), self.log
        assert process.returncode == 0, self.log
        return json.loads((self.folder / "result").read_text())

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
        assert set(state.keys()) - {STATUS} == {ID}
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
    process = ground.begin()
    deadline = time.monotonic() + PATIENCE
    while not ground.started:
        assert time.monotonic() < deadline
    stored = ground.kill(process)
    ground.completed()
    assert ground.started == (2 if stored == "intent" else 1)
    assert ground.log.count("resumable_job.uncertain_submit") == ground.started - 1
