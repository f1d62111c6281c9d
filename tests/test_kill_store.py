"""What was acknowledged survives SIGKILL at any point of a commit, and what was not is there wholly or not at all.

Contract 4.4 and 4.5, with real processes, real signals and real files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import BackendError, Cursor, Reset, Store, connect
from outlast.backends import sqlite
from support.homes import settings

DYING = Path(__file__).parent / "support" / "dying.py"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def start(**job: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(DYING), json.dumps(job)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def ended(**job: Any) -> tuple[int, list[int]]:
    """Run a process to its end; return how it ended and what it had acknowledged."""
    with start(**job) as process:
        output, _ = process.communicate(timeout=60)
    return process.returncode, [int(line) for line in output.split()]


def opened(path: str) -> Store:
    return connect(path, config=settings(history_versions=5))


# --- One commit, killed at every named point -------------------------------------------------------------

POINTS: dict[str, dict[str, Any]] = {
    "before the lock is taken": {"point": "statement begin immediate"},
    "after begin, before anything is read": {"point": "statement select"},
    "between reading the scopes": {"point": "statement select", "nth": 2},
    "before the entries are read": {"point": "statement select scope_id, name"},
    "before the first past version": {"point": "statement insert into history"},
    "between past versions": {"point": "statement insert into history", "nth": 2},
    "before the first entry": {"point": "statement insert into entry"},
    "between two entries": {"point": "statement insert into entry", "nth": 2},
    "before the last entry": {"point": "statement insert into entry", "nth": 4},
    "before the scopes are updated": {"point": "statement update scope"},
    "before the scopes' revisions": {"point": "statement update scope set revision"},
    "before the feed": {"point": "statement insert into feed"},
    "before commit": {"point": "statement commit"},
    "in the commit hook": {"point": "commit hook"},
    "in the first write to the log": {"point": "write wal"},
    "in the second write to the log": {"point": "write wal", "nth": 2},
    "in a later write to the log": {"point": "write wal", "nth": 5},
    "before the log is synced": {"point": "sync wal"},
    "after the log was synced": {"point": "synced wal"},
    "committed, not yet acknowledged": {"point": "committed"},
    "in the first write back to the file": {"point": "write main", "checkpoint_pages": 4},
    "in a later write back to the file": {"point": "write main", "nth": 4, "checkpoint_pages": 4},
    "before the file is synced": {"point": "sync main", "checkpoint_pages": 4},
    "after the file was synced": {"point": "synced main", "checkpoint_pages": 4},
}


def check_writes(path: str, acknowledged: list[int], arm_at: int) -> int:
    """Check that the store holds what was acknowledged, or one whole commit more; return which write is there."""
    with opened(path) as store:
        state, asset = store.task("dag/run/task"), store.asset("table")
        last = acknowledged[-1] if acknowledged else 0
        assert acknowledged == list(range(1, last + 1))
        number = state.get("a", 0)
        assert number in (last, last + 1)
        expected = {"a": number, "b": number, "c": str(number) * 100} if number else {}
        assert dict(state.items()) == expected
        assert asset.get("watermark", 0) == number
        assert all(entry.revision == number for entry in [*state.entries(), *asset.entries()])
        assert [info.revision for info in [*store.scopes(), *store.scopes(assets=True)]][:2] in (
            [number] * 2,
            [number],
            [],
        )
        for target, key in ((state, "a"), (asset, "watermark")):
            assert [version.value for version in target.history(key)] == list(range(number, max(number - 5, 0), -1))
        check_watch(store, number)
        assert store.inspect(deep=True).problems == ()
        state.set_many({"a": -1, "b": -1})
        assert state.entry("b").revision == number + 1  # type: ignore[union-attr]
    return int(number)


def check_watch(store: Store, number: int) -> None:
    """A watcher that had seen the write before goes on without a gap."""
    state = store.task("dag/run/task")
    (reset,) = list(state.watch(timeout=0))
    assert isinstance(reset, Reset)
    if number > 1:
        before = Cursor(reset.cursor.scope_id, number - 1)
        assert [event.key for event in state.watch(before, timeout=0) if not isinstance(event, Reset)] == [
            "a",
            "b",
            "c",
        ]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_commit(path: str, point: str) -> None:
    """Contract 4.4, 4.5: several keys and an asset in one commit, with history."""
    code, acknowledged = ended(work="write_many", path=path, writes=20, arm_at=4, **POINTS[point])
    assert code == -signal.SIGKILL
    assert len(acknowledged) >= 3
    there = check_writes(path, acknowledged, 4)
    if point in ("after the log was synced", "committed, not yet acknowledged"):
        assert there == acknowledged[-1] + 1
    if point.startswith("before") and "file" not in point and "synced" not in point:
        assert there == acknowledged[-1]


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("point", ["statement", "write wal", "write main", "write", "sync", "synced"])
def test_killed_at_every_point_there_is(tmp_path: Path, point: str, durability: str) -> None:
    """Contract 4.4, 4.5: one process after the other dies at the next place, until none is left."""
    for nth in range(1, 80):
        path = str(tmp_path / f"{nth}.db")
        code, acknowledged = ended(
            work="write_many",
            path=path,
            writes=6,
            arm_at=3,
            point=point,
            nth=nth,
            checkpoint_pages=6,
            durability=durability,
        )
        check_writes(path, acknowledged, 3)
        if code == 0:
            break
    else:
        assert code == -signal.SIGKILL


OPENING: dict[str, dict[str, Any]] = {
    "before the journal is chosen": {"point": "statement pragma journal_mode"},
    "in the first write to the file": {"point": "write main"},
    "before the schema": {"point": "statement begin immediate"},
    "between two tables": {"point": "statement create table", "nth": 2},
    "before the index": {"point": "statement create index"},
    "before the version is noted": {"point": "statement insert or replace into meta"},
    "between the version and its checksum": {"point": "statement insert or replace into meta", "nth": 2},
    "before the schema is committed": {"point": "statement commit"},
    "in the commit hook": {"point": "commit hook"},
    "in a write of the schema": {"point": "write wal", "nth": 7},
    "after the schema was committed": {"point": "committed"},
    "before the first attempt is opened": {"point": "statement begin immediate", "nth": 2},
    "while the first attempt is opened": {"point": "statement update scope set fence"},
}


@pytest.mark.parametrize("point", OPENING)
def test_killed_while_the_store_is_made(path: str, point: str) -> None:
    """Contract 4.5: the next process finds an empty store, or makes it."""
    code, acknowledged = ended(work="write_many", path=path, writes=1, arm_at=0, **OPENING[point])
    assert (code, acknowledged) == (-signal.SIGKILL, [])
    with opened(path) as store:
        state = store.task("dag/run/task", attempt="new")
        assert (state.items(), state.attempt in (1, 2)) == ([], True)
        state.set("key", 1)
        assert store.inspect(deep=True).problems == ()
    with opened(path) as store:
        assert store.task("dag/run/task").get("key") == 1


def test_killed_a_dozen_times_in_a_row_at_any_moment(path: str) -> None:
    """Contract 4.5: no preparation, no point: a plain kill of a busy writer; nothing acknowledged is lost."""
    total = 0
    for wait in range(12):
        with start(work="increment", path=path, writes=100_000) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(wait * 0.003)
            process.kill()
            sums = [int(line) for line in process.stdout.read().split() if line]
        with opened(path) as store:
            now = store.task("dag/run/task").get("n")
            assert now - max(sums, default=total + 1) in (0, 1)
            total = now
    with opened(path) as store:
        assert store.task("dag/run/task").entry("n").revision == total  # type: ignore[union-attr]
        assert store.inspect(deep=True).problems == ()


# --- Several processes -----------------------------------------------------------------------------------


def test_four_writers_on_one_file(path: str) -> None:
    """Contract 4.4: every increment counts, each sum was seen once, all finish."""
    opened(path).close()
    writers = [start(work="increment", path=path, writes=40, durability="process") for _ in range(4)]
    sums: list[int] = []
    for writer in writers:
        with writer:
            output, _ = writer.communicate(timeout=60)
        assert writer.returncode == 0
        sums += [int(line) for line in output.split()]
    assert sorted(sums) == list(range(1, 161))
    with opened(path) as store:
        assert store.task("dag/run/task").get("n") == 160
        assert store.scopes()[0].revision == 160


def test_four_writers_make_the_store_at_once(path: str) -> None:
    """Contract 4.5: whoever comes first makes it; the others find it."""
    writers = [start(work="increment", path=path, writes=3, durability="process") for _ in range(4)]
    codes = [writer.wait(timeout=60) for writer in writers]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
    assert codes == [0, 0, 0, 0]
    with opened(path) as store:
        assert store.task("dag/run/task").get("n") == 12


@pytest.fixture
def stopped(path: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that was stopped in the middle of its write, holding the lock."""
    with opened(path) as store:
        store.task("dag/run/task").set("key", "before")
    process = start(work="write_once", path=path, point="statement update scope", stop=True)
    try:
        os.waitpid(process.pid, os.WUNTRACED)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_stopped_writer_costs_others_a_bounded_wait(
    path: str, stopped: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 4.6: an error that says so, and no write; once it goes on, its own outcome is right."""
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.3)
    with pytest.raises(BackendError, match=r"another process has held .*\.lock"):
        opened(path)
    os.kill(stopped.pid, signal.SIGCONT)
    output, _ = stopped.communicate(timeout=30)
    assert (stopped.returncode, output.split()) == (0, [b"1", b"2"])
    with opened(path) as store:
        assert store.task("dag/run/task").get("key") == "mine"
        store.task("dag/run/task").set("key", "after")


def test_a_store_that_is_open_waits_and_goes_on_too(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 4.6: reads are not held up; the write that gave up has not happened, and the next one does."""
    with opened(path) as store:
        state = store.task("dag/run/task")
        state.set("key", "before")
        with start(work="write_once", path=path, point="statement update scope", stop=True) as process:
            os.waitpid(process.pid, os.WUNTRACED)
            monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.3)
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(BackendError, match="another process has held") as caught:
                    state.set("key", "refused")
                assert 0.2 < time.monotonic() - began < 5
                assert caught.value.outcome == "failed"
                assert state.get("key") == "before"
            os.kill(process.pid, signal.SIGCONT)
            output, _ = process.communicate(timeout=30)
            assert output.split() == [b"1", b"2"]
        monkeypatch.setattr(sqlite, "WAIT_SECONDS", 30.0)
        assert state.get("key") == "mine"
        state.set("key", "after")
        assert [version.value for version in state.history("key")] == ["after", "mine", "before"]


def test_a_killed_writer_leaves_the_lock_to_the_others(path: str, stopped: subprocess.Popen[bytes]) -> None:
    """Contract 4.5: and nothing of its half-done commit."""
    stopped.kill()
    with opened(path) as store:
        state = store.task("dag/run/task")
        assert state.get("key") == "before"
        state.set("key", "after")
        assert state.entry("key").revision == 2  # type: ignore[union-attr]


# --- A checkpoint, killed ---------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "by position": {},
    "by id": {"by_id": True},
    "awaiting": {"awaiting": True},
    "awaiting, by id": {"awaiting": True, "by_id": True},
    "every third": {"every": 3},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", ["statement begin immediate", "statement commit", "committed"])
def test_killed_between_body_and_record(tmp_path: Path, way: str, point: str) -> None:
    """At least once: what was not recorded is done again, once, and nothing is skipped."""
    job: dict[str, Any] = {"work": "go_through", "path": str(tmp_path / "store.db"), "items": 10, **WAYS[way]}
    job["output"] = str(tmp_path / "output")
    code, _ = ended(**job, point=point, arm_at_item="item 4")
    assert code == -signal.SIGKILL
    code, _ = ended(**job)
    assert code == 0
    times = Counter(Path(job["output"]).read_text().splitlines())
    items = [f"item {number}" for number in range(10)]
    assert list(times) == items
    repeated = [item for item in items if times[item] > 1]
    most = job.get("every", 1)
    assert max(times.values()) <= 2
    assert len(repeated) <= most
    if point != "committed":
        assert repeated[-1:] == (["item 4"] if most == 1 else ["item 5"])
    code, _ = ended(**job)
    assert (code, Counter(Path(job["output"]).read_text().splitlines())) == (0, times)
