"""Faults once found by people who tried to break things, and that no other test holds in place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlast import Conflict, connect
from outlast.run_requests import ProcessRef, StartRun

HOLDER = ProcessRef("elsewhere", 1, "then")


def test_a_cancelled_call_does_not_write_after_a_later_one(tmp_path: Path) -> None:
    async def rounds() -> None:
        with connect(tmp_path / "store.db") as store:
            state = store.task("dag/run/task")
            for number in range(30):
                old = asyncio.create_task(state.aset("key", f"old-{number}"))
                await asyncio.sleep(0)
                old.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await old
                await state.aset("key", f"new-{number}")
                assert await state.aget("key") == f"new-{number}"

    asyncio.run(rounds())


def test_a_relative_store_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with connect("store.db") as store:
        monkeypatch.chdir(tmp_path / "other")
        store.task("dag/run/task").set("key", 1)
        assert store.url == str(tmp_path / "store.db")
    assert list((tmp_path / "other").iterdir()) == []


def test_of_two_that_would_start_a_run_one_does(tmp_path: Path) -> None:
    with connect(tmp_path / "store.db") as store:

        def start(run_id: str) -> None:
            rest = ("{}", "file", "digest", 0, HOLDER, 30.0)
            store.backend.send(StartRun("dag", run_id, (), *rest, unless_unfinished=True))

        start("r1")
        with pytest.raises(Conflict, match="r1"):
            start("r2")
