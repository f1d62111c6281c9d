"""A triggerer kept at work: replaced when it stands still, and what holds it up is given up in the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from outlast.runner.trigger_host import BLOCKS, TriggerHost
from outlast.runner.triggerer import LocalTriggerer
from outlast.runner.users import User
from outlast.runner.watching import Watcher
from support.house import House
from support.running import exists


class Kept:
    """A house with a host that replaces a triggerer after a second, and all that it says."""

    def __init__(self, folder: Path) -> None:
        self.house, self.said = House(folder), list[str]()
        self.host = TriggerHost(self.house.store, self.said.append, stuck_for=1.0)
        self.host.logs = str(self.house.logs)
        self.watchers: list[Watcher] = []

    def look(self) -> None:
        files = {1: str(self.house.file)}
        self.host.look(files, self.watchers, wanted=True, news=False)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait as a runner does, looking after the triggerer meanwhile."""

        def looked() -> Any:
            self.look()
            return condition()

        self.house.until(looked, what, 40.0)

    def state(self, task_id: str) -> str:
        return self.house.desk.task(task_id).state


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    if sys.platform != "linux":
        pytest.skip("optional: processes are looked at in /proc")
    kept = Kept(tmp_path)
    try:
        yield kept
    finally:
        kept.host.close()
        kept.house.close()


@pytest.mark.parametrize("child", [False, True])
def test_a_trigger_that_never_lets_go_of_the_event_loop_fails_and_the_others_go_on(kept: Kept, child: bool) -> None:
    house = kept.house
    house.run("hog", "other")
    house.defer("Hogs", "hog", child=child)
    house.defer("File", "other", name="go")
    kept.look()
    house.marked("hogging")
    (house.folder / "go").write_text("x")
    kept.until(lambda: kept.state("hog") == kept.state("other") == "scheduled", "both go on")
    error = house.event("hog")["error"]
    assert error == (
        "it has held up all the other triggers 3 times, 1 s each; "
        "run() has to await, or to use a thread: await asyncio.to_thread(…)"
    )
    assert house.event("other") == {"event": "x"}
    log = house.logs / "d" / "r" / "hog" / "trigger.log"
    assert kept.said == [
        f"the triggers have stood still for 1 s in that of d/r/hog, so they begin again; see {log}"
    ] * len(kept.said)
    assert len(kept.said) == house.marks.count("hogging") == BLOCKS


@pytest.mark.parametrize("how", ["at once", "in a thread", "in a task", "by a signal"])
def test_a_trigger_that_ends_the_process_of_all_fails_and_the_others_go_on(kept: Kept, how: str) -> None:
    house = kept.house
    house.run("killer", "other")
    house.defer("Dies", "killer", how=how)
    house.defer("File", "other", name="go")
    kept.look()
    house.marked("dying")
    kept.until(lambda: kept.state("killer") == "scheduled", "it is given up")
    (house.folder / "go").write_text("x")
    kept.until(lambda: kept.state("other") == "scheduled", "the other goes on")
    error = house.event("killer")["error"]
    assert error == "it has ended the process of all triggers 3 times; run() has to raise what is wrong"
    log = house.logs / "d" / "r" / "killer" / "trigger.log"
    end = "signal 11" if how == "by a signal" else "exit status 3"
    assert kept.said == [
        f"the process of the triggers has ended ({end}) in that of d/r/killer, so they begin again; see {log}"
    ] * len(kept.said)
    assert len(kept.said) == house.marks.count("dying") == BLOCKS


def test_a_triggerer_that_ends_with_nobody_to_blame_begins_again_ever_later(kept: Kept) -> None:
    house = kept.house
    house.run()
    house.defer("File", name="go")
    for number in (1, 2):
        kept.look()
        kept.until(lambda: house.marks.count("run go") == number, "its trigger begins")  # noqa: B023
        assert kept.host.triggerer is not None
        kept.host.triggerer.kill()
    kept.look()
    assert kept.said == [
        f"the process of the triggers has ended (signal 9); they begin again in {pause} s; see "
        f"{house.logs}/triggerer.log"
        for pause in (2, 4)
    ]


def test_one_that_cannot_be_started_is_started_later_and_leaves_nothing_open(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = kept.house
    house.run()
    house.defer("File", name="go")
    (house.folder / "go").write_text("x")
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", str(house.folder / "none"))
        for _ in range(3):
            kept.look()
            kept.host.begin_at = 0.0
        assert (kept.host.triggerer, kept.host.pause) == (None, 8.0)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
    assert kept.said == [
        f"the process of the triggers cannot be started: [Errno 2] No such file or directory: "
        f"'{house.folder}/none'; that is tried again in {pause} s"
        for pause in (2, 4, 8)
    ]
    kept.until(lambda: kept.state("t") == "scheduled", "it goes on")


def test_another_user_s_that_cannot_be_started_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        pytest.skip("optional: open files are counted in /proc")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    user = User("me", os.geteuid(), os.getegid(), (), str(tmp_path))
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match=r"No such file|not permitted"):  # who is not root may not say whose it is
            LocalTriggerer("http://127.0.0.1:1", str(tmp_path / "logs"), None, {}, user)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)


def test_a_triggerer_that_is_stopped_is_replaced_and_nobody_is_blamed(kept: Kept) -> None:
    house = kept.house
    house.run()
    house.defer("File", name="go")
    kept.look()
    house.marked("run go")
    assert kept.host.triggerer is not None
    first = kept.host.triggerer.process.pid
    os.kill(first, signal.SIGSTOP)
    kept.until(lambda: house.marks.count("run go") == 2, "its trigger begins again")
    assert not exists(first)
    (house.folder / "go").write_text("after all")
    kept.until(lambda: kept.state("t") == "scheduled", "it goes on")
    assert house.event() == {"event": "after all"}
    assert kept.said == [f"the triggers have stood still for 1 s, so they begin again; see {house.logs}/triggerer.log"]


def test_a_watcher_that_never_lets_go_is_given_up(kept: Kept) -> None:
    house = kept.house
    hog = Watcher("hog", "file:Hogs", "{}", str(house.file), (("a", "a"),))
    beats = Watcher("beats", "file:Beats", "{}", str(house.file), (("b", "b"),))
    kept.watchers = [hog, beats]
    kept.until(lambda: any("is not run any more" in line for line in kept.said), "it is given up")
    assert house.marks == ["hogging"] * BLOCKS
    seen = len(house.events())
    kept.until(lambda: len(house.events()) > seen + 3, "the other watcher goes on")


# --- Several that share a store --------------------------------------------------------------------------


def pids(house: House, after: int = 0) -> list[int]:
    """Return which processes the events come from."""
    return [json.loads(event.extra)["payload"] for event in house.events()[after:]]


def test_a_watcher_is_run_by_one_process_and_taken_over_when_that_is_dead(tmp_path: Path) -> None:
    house = House(tmp_path)
    beats = Watcher("beats", "file:Beats", "{}", str(house.file), (("b", "b"),))
    both = [LocalTriggerer(str(house.place), str(house.logs)) for _ in range(2)]
    house.started += both
    try:
        both[0].look({}, [beats])
        house.until(lambda: len(house.events()) > 2, "the first one runs it")
        both[1].look({}, [beats])
        time.sleep(2.5)
        assert set(pids(house)) == {both[0].process.pid}
        both[0].kill()
        seen, began = len(house.events()), time.monotonic()
        house.until(lambda: len(house.events()) > seen + 2, "the second one takes it over")
        assert time.monotonic() - began < 6.0, "within seconds, not after the lease"
        assert set(pids(house, seen)) == {both[1].process.pid}
    finally:
        house.close()


def test_a_watcher_that_goes_on_after_another_took_over_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST__RUNNER__LEASE_SECONDS", "3")
    house = House(tmp_path)
    writes = Watcher("writes", "file:Writes", "{}", str(house.file), (("b", "b"),))
    both = [LocalTriggerer(str(house.place), str(house.logs)) for _ in range(2)]
    house.started += both
    stopped, other = (each.process.pid for each in both)
    try:
        both[0].look({}, [writes])
        house.until(lambda: len(house.events()) > 2, "the first one runs it")
        both[1].look({}, [writes])
        os.kill(stopped, signal.SIGSTOP)
        house.until(lambda: other in pids(house), "the second one takes it over")
        taken = pids(house).index(other)
        os.kill(stopped, signal.SIGCONT)
        seen = len(house.events())
        house.until(lambda: len(house.events()) > seen + 30, "the second one goes on")
        log = house.logs / "watchers" / "writes.log"
        if log.exists() and (text := log.read_text()):  # it wrote before it asked whether the watcher is still its own
            assert "the watcher writes is run by another process now; it ends here" in text
        assert set(pids(house, taken)) == {other}
        writers = [entry.value for entry in house.store.asset("b", uri="b").history("by")]
        assert [pid for pid, _ in groupby(writers)] in ([other], [other, stopped], [stopped, other])
        assert house.store.asset("b", uri="b").get("by") == other
    finally:
        house.close()


def test_a_watcher_that_is_given_up_cleanly_is_free_at_once(tmp_path: Path) -> None:
    house = House(tmp_path)
    beats = Watcher("beats", "file:Beats", "{}", str(house.file), (("b", "b"),))
    both = [LocalTriggerer(str(house.place), str(house.logs)) for _ in range(2)]
    house.started += both
    try:
        both[0].look({}, [beats])
        house.until(lambda: house.events(), "the first one runs it")
        both[1].look({}, [beats])
        both[0].look({}, [])
        house.until(lambda: both[1].process.pid in pids(house), "the second one takes it over")
        assert not both[0].ended
        last = pids(house).index(both[1].process.pid)
        assert both[0].process.pid not in pids(house)[last:]
    finally:
        house.close()
