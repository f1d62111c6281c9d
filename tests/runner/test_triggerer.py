"""The process that runs triggers, driven directly: tasks deferred by hand, real triggers, a real store."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.deferral_requests import Fire
from outlast.people_requests import CancelRun
from outlast.run_requests import TaskSpec
from outlast.runner.triggerer import LocalTriggerer
from outlast.runner.watching import Watcher
from support.house import TRIGGERS, House
from support.running import exists, state_of
from support.runs import ANN


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    if sys.platform != "linux":
        pytest.skip("optional: processes are looked at in /proc")
    house = House(tmp_path)
    try:
        yield house
    finally:
        house.close()


# --- What comes of a trigger -----------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, False, 0, "", "text", [1, {"a": None}], {"id": 2**70}])
def test_an_event_lets_the_task_go_on_with_its_payload(house: House, payload: Any) -> None:
    house.run()
    house.defer("Now", payload=payload)
    house.triggerer()
    assert house.event() == {"event": payload}
    assert house.desk.task("t").attempt == 1
    assert house.desk.attempts("t") == {1: "running"}


def test_a_trigger_of_outlast_itself(house: House) -> None:
    house.run()
    moment = (datetime.now(UTC) + timedelta(seconds=0.3)).isoformat()
    house.defer("outlast.dags.triggers.DateTimeTrigger", moment={"$datetime": moment})
    house.triggerer()
    assert house.event() == {"event": moment}
    assert datetime.now(UTC) >= datetime.fromisoformat(moment)


def test_arguments_reach_the_trigger_as_they_were_given(house: House) -> None:
    house.run()
    house.defer("Types", at={"$datetime": "2026-11-29T00:00:00+00:00"}, every={"$timedelta": 5}, name="x")
    house.triggerer()
    assert house.event() == {"event": {"at": "datetime", "every": "timedelta", "name": "str"}}


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ("Raises", "RuntimeError: the far side is down"),
        ("Nothing", "DagError: run() of <Nothing> ended without an event; `yield TriggerEvent(…)` before it does"),
        ("NoGenerator", "is no asynchronous generator; write `async def run(self)`, and `yield TriggerEvent(…)` in it"),
        ("NoEvent", "DagError: run() of <NoEvent> yielded {'done': True}; yield TriggerEvent(…)"),
        ("Exits", "SystemExit: 3"),
        ("CancelsItself", "CancelledError"),
        ("BadStart", "ValueError: no such bucket"),
        ("Gone", "d.py has no trigger class 'Gone' any more; put it back"),
        ("gone_things.Gone", "no module 'gone_things' can be imported"),
        ("Moment", "cannot be kept: $.rows[0].when is a datetime; store value.isoformat()"),
    ],
)
def test_a_trigger_that_fails_says_why(house: House, trigger: str, expected: str) -> None:
    house.run()
    house.defer(trigger)
    house.triggerer()
    event = house.event()
    assert [*event] == ["error"]
    assert expected in event["error"].splitlines()[-1]
    assert "outlast/runner" not in event["error"]
    assert expected in house.log()


def test_the_traceback_begins_in_the_triggers_own_code(house: House) -> None:
    house.run()
    house.defer("Raises")
    house.triggerer()
    lines = house.event()["error"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].strip().startswith(f'File "{house.file}", line ')
    assert "in run" in lines[1]
    assert any("in deeper" in line for line in lines)


def test_what_goes_wrong_in_cleanup_is_only_logged(house: House) -> None:
    house.run()
    house.defer("Raises")
    house.triggerer()
    assert "far side" in house.event()["error"]
    house.until(lambda: "LookupError: in cleanup" in house.log(), "the failure of cleanup is logged")
    assert house.marks == ["cleanup after raising"]


def test_the_first_event_is_the_only_one(house: House) -> None:
    house.run()
    house.defer("File", name="go")
    (house.folder / "go").write_text("come")
    house.triggerer()
    assert house.event() == {"event": "come"}
    house.marked("cleanup go")
    assert house.marks == ["run go", "left go", "cleanup go"]


def test_one_that_fails_does_not_stop_the_others(house: House) -> None:
    house.run("a", "b", "c")
    for task_id, trigger in (("a", "Raises"), ("b", "Exits")):
        house.defer(trigger, task_id)
    house.defer("Now", "c", payload="fine")
    triggerer = house.triggerer()
    assert house.event("c") == {"event": "fine"}
    assert "far side" in house.event("a")["error"]
    assert "SystemExit: 3" in house.event("b")["error"]
    assert not triggerer.ended


# --- When it looks ---------------------------------------------------------------------------------------


def test_it_looks_every_second_by_itself_and_at_once_when_told(house: House) -> None:
    run = house.run("a", "b")
    triggerer = house.triggerer()
    house.defer("Now", "a", payload=1)
    assert house.event("a", 5.0) == {"event": 1}
    taken = []
    for number in range(3):
        house.defer("Now", "b", payload=number)
        began = time.monotonic()
        triggerer.look({run: str(house.file)}, now=True)
        assert house.event("b") == {"event": number}
        taken.append(time.monotonic() - began)
    assert min(taken) < 0.5


def test_the_same_deferral_again_runs_again(house: House) -> None:
    """A task that defers with equal arguments over and over, each time under the same attempt."""
    run = house.run()
    triggerer = house.triggerer()
    for _ in range(5):
        house.defer("Now", payload="same")
        triggerer.look({run: str(house.file)}, now=True)
        assert house.event() == {"event": "same"}
    assert house.desk.task("t").attempt == 1
    assert house.log().count("fired") == 5


def test_only_the_runs_it_is_told_of(house: House) -> None:
    run = house.run()
    house.defer("File", name="go")
    triggerer = house.triggerer(run)
    house.marked("run go")
    triggerer.look({})
    house.marked("cancelled go")
    house.marked("cleanup go")
    assert house.desk.task("t").state == "deferred"
    triggerer.look({run: str(house.file)})
    house.marked("run go", 2)


@pytest.mark.parametrize("how", ["fired by another", "cancelled", "deferred anew"])
def test_a_trigger_whose_task_waits_no_more_is_cancelled(house: House, how: str) -> None:
    run = house.run()
    house.defer("File", name="go", timeout=60)
    triggerer = house.triggerer()
    house.marked("run go")
    row = house.waiting()[0]
    match how:
        case "cancelled":
            house.store.backend.send(CancelRun("d", "r", ANN))
        case _:
            house.store.backend.send(Fire(row.scope_id, row.attempt, '{"timeout": true}'))
    if how == "deferred anew":
        assert house.event() == {"timeout": True}
        house.defer("File", name="other")
    triggerer.look({run: str(house.file)}, now=True)
    house.marked("cancelled go")
    house.marked("cleanup go")
    if how == "deferred anew":
        (house.folder / "other").write_text("second")
        assert house.event() == {"event": "second"}
    assert not triggerer.ended


def test_a_file_that_has_changed_is_loaded_again(house: House) -> None:
    run = house.run()
    triggerer = house.triggerer()
    house.defer("Now", payload=1)
    assert house.event() == {"event": 1}
    house.file.write_text(TRIGGERS.replace('self.kwargs.get("payload")', '"changed"'))
    house.defer("Now", payload=1)
    triggerer.look({run: str(house.file)}, now=True)
    assert house.event() == {"event": "changed"}


def test_a_file_that_was_broken_is_tried_again(house: House) -> None:
    run = house.run()
    house.file.write_text("this is no Python")
    triggerer = house.triggerer()
    house.defer("Now", payload=1)
    assert "d.py:1" in house.event()["error"]
    house.file.write_text(TRIGGERS)
    house.defer("Now", payload=1)
    triggerer.look({run: str(house.file)}, now=True)
    assert house.event() == {"event": 1}


def test_a_file_with_several_triggers_is_executed_once(house: House) -> None:
    house.file.write_text(f"{TRIGGERS}\ntime.sleep(0.3)\nmark('executed')\n")
    kinds = ("Now", "Types", "Talks", "Moment", "Nothing")
    house.run(*kinds)
    for kind in kinds:
        house.defer(kind, kind)
    house.triggerer()
    assert house.event("Now") == {"event": None}
    assert house.event("Types") == {"event": {}}
    assert house.event("Talks") == {"event": 1}
    assert "is a datetime" in house.event("Moment")["error"]
    assert "ended without" in house.event("Nothing")["error"]
    assert house.marks == ["executed"]


# --- Logs ------------------------------------------------------------------------------------------------


def test_what_a_trigger_says_is_beside_the_logs_of_its_task(house: House) -> None:
    house.run("a", "b")
    house.defer("Talks", "a")
    house.defer("Now", "b", payload=5)
    house.triggerer()
    house.event("a")
    house.event("b")
    said = house.log("a")
    for text in ("printed\n", "logged by the trigger\n", "WARNING elsewhere: warned\n", "from a thread\n", "fired: "):
        assert text in said
    assert "printed" not in house.log("b")
    assert 'fired: {"event":5}' in house.log("b")
    assert house.own_log == ""


def test_a_mapped_task_has_a_log_for_each_index(house: House) -> None:
    house.run(TaskSpec("t", 0), TaskSpec("t", 1))
    house.defer("Now", index=1, payload=5)
    house.triggerer()
    house.until(lambda: house.desk.task("t", 1).state == "scheduled", "it fires")
    assert "fired" in (house.logs / "d" / "r" / "t" / "1" / "trigger.log").read_text()


def test_a_trigger_that_blocks_the_others_is_told_on(house: House) -> None:
    house.run("a", "b")
    house.defer("Blocks", "a", seconds=1.6)
    house.defer("Now", "b")
    house.triggerer()
    house.until(lambda: "holds up the event loop" in house.log("a"), "the trigger is warned of")
    line = 1 + TRIGGERS[: TRIGGERS.index('time.sleep(self.kwargs["seconds"])')].count("\n")
    assert (
        f"WARNING outlast: this trigger holds up the event loop that all triggers share, at {house.file}:{line};"
        in (house.log("a"))
    )
    assert house.event("a") == {"event": 1}
    house.until(lambda: "goes on after" in house.log("a"), "the end of it is told")
    assert 1.2 < float(house.log("a").partition("goes on after ")[2].partition(" s")[0]) < 6.0
    assert "holds up" not in house.log("b")
    assert "holds up the event loop" in house.own_log


def test_triggers_that_await_are_not_told_on(house: House) -> None:
    house.run()
    house.defer("File", name="go")
    house.triggerer()
    house.marked("run go")
    time.sleep(1.2)
    assert "holds up" not in house.log() + house.own_log


# --- Its end ---------------------------------------------------------------------------------------------


def test_the_end_of_its_input_is_its_end_and_fires_nothing(house: House) -> None:
    house.run()
    house.defer("File", name="go")
    triggerer = house.triggerer()
    house.marked("run go")
    began = time.monotonic()
    triggerer.close()
    assert time.monotonic() - began < 1.5
    assert triggerer.process.returncode == 0
    assert house.marks == ["run go", "cancelled go", "left go", "cleanup go"]
    (house.folder / "go").write_text("too late")
    assert [row.deferral.trigger_path for row in house.waiting()] == ["file:File"]


@pytest.mark.parametrize(("trigger", "mark"), [("Blocks", "blocking"), ("Stubborn", "stubborn")])
def test_a_trigger_that_does_not_let_go_does_not_keep_it(house: House, trigger: str, mark: str) -> None:
    house.run()
    house.defer(trigger, seconds=60)
    triggerer = house.triggerer()
    house.marked(mark)
    began = time.monotonic()
    triggerer.close()
    assert time.monotonic() - began < 2.9
    assert triggerer.process.returncode == 0
    assert house.desk.task("t").state == "deferred"


def test_one_that_is_stopped_is_killed(house: House) -> None:
    house.run()
    triggerer = house.triggerer()
    os.kill(triggerer.process.pid, signal.SIGSTOP)
    house.until(lambda: state_of(triggerer.process.pid) == "T", "it stops")
    for _ in range(20_000):
        triggerer.look({1: str(house.file)}, now=True)  # more than a pipe holds, and it must not wait
    triggerer.close()
    assert not exists(triggerer.process.pid)


def test_killed_it_goes_on_from_what_is_stored(house: House) -> None:
    house.run("a", "b")
    house.defer("File", "a", name="go")
    moment = (datetime.now(UTC) + timedelta(seconds=1.0)).isoformat()
    house.defer("outlast.dags.triggers.DateTimeTrigger", "b", moment={"$datetime": moment})
    first = house.triggerer()
    house.marked("run go")
    os.kill(first.process.pid, signal.SIGKILL)
    house.until(lambda: first.ended, "it dies")
    second = house.triggerer()
    house.marked("run go", 2)
    (house.folder / "go").write_text("after all")
    assert house.event("a") == {"event": "after all"}
    assert house.event("b") == {"event": moment}
    assert [house.desk.task(task_id).attempt for task_id in "ab"] == [1, 1]
    assert not second.ended


def test_ctrl_c_reaches_only_the_runner(house: House) -> None:
    house.run()
    house.defer("Now", payload=1)
    triggerer = house.triggerer()
    house.event()
    os.kill(triggerer.process.pid, signal.SIGINT)
    assert os.getsid(triggerer.process.pid) == triggerer.process.pid
    house.defer("Now", payload=2)
    assert house.event() == {"event": 2}


def test_without_anybody_who_speaks_to_it_it_ends_at_once(house: House) -> None:
    triggerer = LocalTriggerer(str(house.place), str(house.logs))
    house.started.append(triggerer)
    triggerer.close()
    assert triggerer.process.returncode == 0


# --- Watchers of assets ----------------------------------------------------------------------------------


def test_a_watcher_goes_on_after_an_event_its_end_and_a_failure(house: House) -> None:
    triggerer = LocalTriggerer(str(house.place), str(house.logs))
    house.started.append(triggerer)
    watcher = Watcher("ticks", "file:Ticks", "{}", str(house.file), (("orders", "s3://orders"),))
    triggerer.look({}, [watcher])
    payloads = [{"tick": 1}, "and", {"tick": 2}, {"tick": 3}, "and"]
    house.until(lambda: len(house.events()) == len(payloads), "the events of three runs")
    assert [json.loads(event.extra)["payload"] for event in house.events()] == payloads
    assert {(event.name, event.uri, event.source) for event in house.events()} == {("orders", "s3://orders", None)}
    assert house.store.asset("orders", uri="s3://orders").get("ticks") == 3
    assert "RuntimeError: broken" in (house.logs / "watchers" / "ticks.log").read_text()
    assert not triggerer.ended


def test_a_watcher_that_is_not_wanted_any_more_ends(house: House) -> None:
    run = house.run()
    triggerer = house.triggerer()
    watcher = Watcher("ticks", "file:Ticks", "{}", str(house.file), (("orders", "orders"),))
    triggerer.look({run: str(house.file)}, [watcher])
    house.until(lambda: house.events(), "it begins")
    triggerer.look({run: str(house.file)})
    house.defer("Now", payload=1)
    assert house.event() == {"event": 1}
    seen = house.events()
    time.sleep(1.2)
    assert house.events() == seen


# --- Many ------------------------------------------------------------------------------------------------


def test_a_thousand_triggers_wait_together_and_all_fire(house: House) -> None:
    count = 1000
    house.run(*(TaskSpec("t", index) for index in range(count)))
    for index in range(count):
        house.defer("File", index=index, name=f"go{index % 2}")
    triggerer = house.triggerer()
    house.until(lambda: len(house.marks) == count, "all run", 60.0)
    (house.folder / "go0").write_text("even")
    house.until(lambda: len(house.waiting()) == count // 2, "half of them fire", 60.0)
    (house.folder / "go1").write_text("odd")
    house.until(lambda: not house.waiting(), "all fire", 60.0)
    assert {task.state for task in house.desk.detail().tasks} == {"scheduled"}
    assert house.marks.count("second event wanted") == 0
    assert resident_mebibytes(triggerer.process.pid) < 100
    assert "holds up" not in house.own_log


def resident_mebibytes(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024
