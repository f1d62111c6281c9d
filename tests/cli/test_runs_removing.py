"""`outlast runs rm` and `outlast runs prune`: what goes, what stays, and what is asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import outlast
from outlast.event_requests import AddEvents, ListEvents
from outlast.run_requests import NewEvent, ProcessRef
from outlast.runner import processes
from support.runs import RUNNER, Desk

from .conftest import LONG, THEN, Told, ended, log_of

Call = Callable[..., Told]

DEAD = ProcessRef(os.uname().nodename, 2**22 + 1, "never")


# --- rm ------------------------------------------------------------------------------------------------------


def test_a_run_is_removed_with_its_state_and_logs(call: Call, store: outlast.Store, desk: Desk) -> None:
    ended(store, "r1")
    store.task("nightly/r1/extract").set("page", 1)
    mine, others = log_of(store, desk, "extract"), log_of(store, Desk(store.backend, run_id="r2"), "extract")
    told = call("runs", "rm", "nightly/r1", "--yes")
    assert told.status == 0
    assert told.out.startswith("removed nightly/r1: 1 task instance and 1 entry, and the logs in ")
    assert store.scopes() == []
    assert (mine.exists(), others.exists()) == (False, True)
    assert call("runs", "show", "nightly/r1").status == 4
    assert not Path(told.out.rpartition(" in ")[2].strip()).exists()


def test_a_removed_run_for_programs(call: Call, store: outlast.Store) -> None:
    ended(store, "r1")
    told = call("runs", "rm", "nightly/r1", "--yes", "--json")
    assert told.json == {"removed": "nightly/r1", "task_instances": 1, "entries": 0}


@pytest.mark.parametrize("holder", [RUNNER, processes.me()])
def test_a_run_that_is_run_is_removed_by_force_only(
    call: Call, store: outlast.Store, desk: Desk, holder: ProcessRef
) -> None:
    desk.start("extract", holder=holder, lease=LONG)
    log = log_of(store, desk, "extract")
    for arguments in (["--yes"], []):
        told = call("runs", "rm", "nightly/r1", *arguments)
        assert told.status == 9
        assert f"is being run by process {holder.pid} on {holder.host}" in told.err
    assert log.exists()
    assert call("runs", "rm", "nightly/r1", "--yes", "--force").status == 0
    assert not log.exists()


def test_a_run_of_a_dead_runner_is_removed_without_waiting(call: Call, desk: Desk) -> None:
    desk.start("extract", holder=DEAD, lease=LONG)
    assert call("runs", "rm", "nightly/r1", "--yes").status == 0


def test_on_a_terminal_removing_is_asked(terminal, store: outlast.Store) -> None:
    ended(store, "r1")
    store.task("nightly/r1/extract").set("page", 1)
    window = terminal("runs", "rm", "nightly/r1")
    window.expect("Remove it? [y/N]")
    assert "nightly/r1 has 1 task instance and 1 entry. They go with their history, results and logs" in window.seen
    window.type("\n")
    told = window.end()
    assert (told.status, "nothing was removed" in told.out) == (1, True)
    assert len(store.scopes()) == 1


# --- prune ---------------------------------------------------------------------------------------------------


def test_old_runs_are_pruned_with_their_logs(call: Call, store: outlast.Store, place: str) -> None:
    log = log_of(store, ended(store, "r1"), "extract")
    with outlast.connect(place) as now:
        ended(now, "recent")
    dry = call("runs", "prune", "--dry-run", "--keep-days", "1")
    assert dry == Told(0, "Would remove 1 run that ended more than 1 day ago:\nnightly/r1\n", "")
    assert log.exists()
    told = call("runs", "prune", "--keep-days", "1", "--yes")
    assert told == Told(0, "Removed 1 run that ended more than 1 day ago.\n", "")
    assert not log.exists()
    assert [run["run_id"] for run in call("runs", "ls", "--json").json] == ["recent"]
    assert call("runs", "prune", "--keep-days", "1") == Told(0, "No run ended more than 1 day ago.\n", "")


def test_the_setting_says_how_long_runs_are_kept(
    call: Call, store: outlast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(store, "r1")
    days = timedelta(seconds=time.time() - THEN / 1e6).days
    monkeypatch.setenv("OUTLAST__RUNNER__KEEP_RUNS_DAYS", str(days + 2))
    assert call("runs", "prune", "--json").json == {"dry_run": False, "keep_days": days + 2, "runs": []}
    monkeypatch.setenv("OUTLAST__RUNNER__KEEP_RUNS_DAYS", "0")
    assert "kept for ever" in call("runs", "prune").out
    monkeypatch.setenv("OUTLAST__RUNNER__KEEP_RUNS_DAYS", "1")
    told = call("runs", "prune", "--json", "--yes")
    assert told.json == {"dry_run": False, "keep_days": 1, "runs": ["nightly/r1"]}


def test_to_keep_no_days_is_refused(call: Call, store: outlast.Store) -> None:
    ended(store, "r1")
    assert call("runs", "prune", "--keep-days", "0", "--yes").status == 2
    assert len(call("runs", "ls", "--json").json) == 1


def test_on_a_terminal_pruning_is_asked_and_shows_how_far_it_is(terminal, store: outlast.Store) -> None:
    for number in range(25):
        ended(store, f"r{number}")
    window = terminal("runs", "prune", "--keep-days", "1")
    window.expect("Remove them for good? [y/N]")
    assert "25 runs ended more than 1 day ago." in window.seen
    window.type("y\n")
    told = window.end()
    assert "removed 20 of 25 runs" in told.out
    assert "Removed 25 runs" in told.out
    assert store.scopes() == []


def test_old_events_are_pruned_without_a_question(call: Call, store: outlast.Store) -> None:
    store.backend.send(AddEvents((NewEvent("orders", None),)))
    assert call("runs", "prune", "--keep-days", "1", "--dry-run").status == 0
    assert len(store.backend.send(ListEvents()).rows) == 1
    assert call("runs", "prune", "--keep-days", "1") == Told(0, "No run ended more than 1 day ago.\n", "")
    assert store.backend.send(ListEvents()).rows == ()
