"""Tracebacks in the logs of tasks and triggers: the user's code, and none of outlast's on the way to it."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest

import outlast
from outlast import InvalidValue
from outlast.runner.traces import Formatter, trace_of
from support.running import Ground

OWN = os.path.dirname(outlast.__file__)


def caught(call: Any) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_what_the_users_code_raises_begins_there_and_keeps_what_it_called() -> None:
    with outlast.connect("sqlite::memory:") as store:
        trace = trace_of(caught(lambda: store.task("d/r/t").update("key", lambda value: 1 / 0)))
    lines = [line for line in trace.splitlines() if line.startswith("  File")]
    assert __file__ in lines[0]
    assert any(OWN in line for line in lines)
    assert __file__ in lines[-1]


def test_what_outlast_refuses_ends_at_the_users_own_line() -> None:
    with outlast.connect("sqlite::memory:") as store:
        trace = trace_of(caught(lambda: store.task("d/r/t").set("key", object)))
    lines = [line for line in trace.splitlines() if line.startswith("  File")]
    assert __file__ in lines[-1]
    assert not any(OWN in line for line in lines)
    assert 'store.task("d/r/t").set("key", object)' in trace
    assert trace.splitlines()[-1].startswith("outlast.errors.InvalidValue: key 'key': $ is a type")


def test_what_outlast_alone_has_to_say_has_no_frames() -> None:
    error = InvalidValue("no")
    assert trace_of(error) == "outlast.errors.InvalidValue: no\n"


def test_what_is_logged_with_its_traceback_is_trimmed_as_well() -> None:
    error = InvalidValue("no")
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "failed", (), (type(error), error, None))
    assert Formatter("%(message)s").format(record) == "failed\noutlast.errors.InvalidValue: no"


LOOKS = """
from outlast import BaseTrigger, TaskDeferred, TriggerEvent

@task.sensor(poke_interval=0, timeout=0)
def too_late():
    return False

@task.sensor(poke_interval=0, timeout=60)
async def awaiting():
    raise ValueError("from await")

@task.sensor(poke_interval=0.01, timeout=0.1, silent_fail=True)
def silent():
    raise ValueError("said softly")

@task.sensor(poke_interval=0, never_fail=True)
def skipped():
    raise ValueError("never")

class Broken(BaseTrigger):
    def serialize(self):
        return f"{__name__}.Broken", {}

    async def run(self):
        raise ValueError("in the trigger")
        yield TriggerEvent()

@task
def deferred(event=None):
    raise TaskDeferred(trigger=Broken())

@task
def out_of_time(event=None):
    class_ = TimeDeltaTrigger(600)
    raise TaskDeferred(trigger=class_, timeout=0.1)

with DAG("d"):
    CALL()
"""

ENDS = {
    "too_late": "SensorTimeout: it has not come within 0 s",
    "awaiting": "ValueError: from await",
    "silent": "ValueError: said softly",
    "deferred": "ValueError: in the trigger",
    "out_of_time": "TaskDeferralTimeout: ",
}


@pytest.mark.parametrize("name", ENDS)
def test_logs_of_sensors_and_triggers_show_no_code_of_outlasts(ground: Ground, name: str) -> None:
    ground.dag("from outlast import TimeDeltaTrigger\n" + LOOKS.replace("CALL", name))
    assert ground.run("--run-id", "r").status == 1
    folder = ground.place.with_name("s.db.logs") / "d" / "r" / name
    text = "".join(path.read_text() for path in folder.iterdir())
    assert ENDS[name] in text
    assert OWN not in text
    assert "asyncio/runners" not in text
