"""Tasks that wait without a process, run by `outlast run` as people do: triggers, reschedules, kills and timeouts."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from outlast.deferral_requests import GetDeferral, ListDeferred
from outlast.requests import Fence
from outlast.run_requests import PullResults
from support.running import Ground, exists

DEFERRING = '''
import asyncio
from datetime import timedelta
from outlast import BaseOperator
from outlast.dags.outcomes import TaskDeferralError, TaskDeferralTimeout, TaskDeferred
from outlast.dags.triggers import BaseTrigger, TimeDeltaTrigger, TriggerEvent

class Until(BaseTrigger):
    """Fires what a file says, once there is one; "raise" and "end" mean that."""
    def __init__(self, name):
        super().__init__()
        self.name = name

    def serialize(self):
        return f"{__name__}.Until", {"name": self.name}

    async def run(self):
        mark(f"waiting for {self.name}")
        pid("triggerer")
        while not (HERE / self.name).exists():
            await asyncio.sleep(0.02)
        said = (HERE / self.name).read_text()
        if said == "raise":
            raise RuntimeError("the far side is down")
        if said != "end":
            yield TriggerEvent({"said": said})

class Wait(BaseOperator):
    def __init__(self, timeout=None, then="done", **kwargs):
        super().__init__(**kwargs)
        self.timeout, self.then = timeout, then

    def execute(self, context):
        mark(f"execute {context['ti'].try_number}")
        pid("child")
        context["task_state_store"].set("before", {"try": context["ti"].try_number})
        self.defer(trigger=Until("go"), method_name=self.then, kwargs={"rows": 3}, timeout=self.timeout)

    def done(self, context, event, rows=0):
        mark(f"done {context['ti'].try_number} {event['said']}")
        state = context["task_state_store"]
        state.set("after", state.get("before"))
        return {"event": event, "rows": rows}
'''

ONE = f"{DEFERRING}\nwith DAG('d'):\n    Wait(task_id='t')\n"


def dag(ground: Ground, arguments: str = "", source: str = DEFERRING) -> None:
    ground.dag(f"{source}\nwith DAG('d'):\n    Wait(task_id='t', {arguments})\n")


def go(ground: Ground, said: str = "now", name: str = "go") -> None:
    (ground.folder / f"{name}.new").write_text(said)
    (ground.folder / f"{name}.new").rename(ground.folder / name)


def deferred(ground: Ground) -> Any:
    """Wait until the task waits for its trigger, which runs; return what the store has of it."""
    ground.until_state("t", "deferred")
    ground.until(lambda: "waiting for go" in ground.marks, "the trigger runs")
    [row] = ground.send(ListDeferred((ground.detail().run.id,))).rows
    return row


def result(ground: Ground, task_id: str = "t") -> Any:
    rows = ground.send(PullResults("d", "r", (task_id,), "return_value")).rows
    return json.loads(rows[0][2])


# --- Waiting ---------------------------------------------------------------------------------------------


def test_a_task_waits_without_a_process_and_goes_on_under_the_same_attempt(ground: Ground) -> None:
    dag(ground)
    run = ground.start("--run-id", "r")
    child = ground.pid("child")
    row = deferred(ground)
    ground.until(lambda: not exists(child), "its process ends")
    stored = row.deferral
    assert (stored.trigger_path, json.loads(stored.trigger_kwargs)) == ("file:Until", {"name": "go"})
    assert (stored.next_method, json.loads(stored.next_kwargs)) == ("done", {"rows": 3})
    assert (row.attempt, row.deadline, ground.task("t").deadline) == (1, None, None)
    go(ground)
    assert run.ends().status == 0
    assert ground.marks == ["execute 1", "waiting for go", "done 1 now"]
    assert ground.outcomes("t") == ["success"]
    assert ground.state("t") == {"before": {"try": 1}, "after": {"try": 1}}
    assert result(ground) == {"event": {"said": "now"}, "rows": 3}
    assert ground.left_soon() == []


def test_its_fence_is_the_same_before_and_after(ground: Ground) -> None:
    dag(ground)
    run = ground.start("--run-id", "r")
    row = deferred(ground)
    fence = Fence(row.scope, 1, row.scope_id)
    before = ground.store.task("d/r/t").entry("before")
    assert before is not None
    assert before.writer.attempt == 1
    go(ground)
    assert run.ends().status == 0
    after = ground.store.task("d/r/t").entry("after")
    assert after is not None
    assert after.writer.attempt == 1
    with pytest.raises(Exception, match="attempt 1 of d/r/t"):
        ground.send(GetDeferral(fence))


def test_its_slot_is_free_meanwhile(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
with DAG("d"):
    @task
    def other():
        mark("other")
        go = HERE / "go"
        go.with_suffix(".new").write_text("from other")
        go.with_suffix(".new").rename(go)
    Wait(task_id="t")
    other()
""")
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__PARALLELISM": "1"}).status == 0
    assert ground.marks[:1] + ground.marks[-1:] == ["execute 1", "done 1 from other"]
    assert ground.outcomes("t") == ["success"]


def test_a_task_waits_for_one_that_is_deferred(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
with DAG("d"):
    @task
    def below(got):
        mark(f"below {{got['rows']}}")
    below(Wait(task_id="t").output)
""")
    run = ground.start("--run-id", "r")
    deferred(ground)
    assert ground.task("below").state == "waiting"
    go(ground)
    assert run.ends().status == 0
    assert ground.marks[-1] == "below 3"


def test_a_task_may_defer_again_and_again(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
class Rounds(BaseOperator):
    def execute(self, context):
        self.again(context, None)

    def again(self, context, event):
        rounds = context["task_state_store"].increment("rounds")
        mark(f"round {{rounds}} of try {{context['ti'].try_number}}")
        if rounds < 4:
            self.defer(trigger=TimeDeltaTrigger(0.05), method_name="again")
        return rounds

with DAG("d"):
    Rounds(task_id="t")
""")
    assert ground.run("--run-id", "r").status == 0
    assert ground.marks == [f"round {number} of try 1" for number in (1, 2, 3, 4)]
    assert ground.outcomes("t") == ["success"]


def test_a_function_defers_and_goes_on_with_the_event(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
with DAG("d"):
    @task
    def t(name, event=None, seen=0, task_state_store=None):
        mark(f"call {{event}} {{seen}}")
        if event is None:
            raise TaskDeferred(trigger=Until(name), kwargs={{"seen": 7}})
        return [event["said"], seen]
    t("go")
""")
    run = ground.start("--run-id", "r")
    deferred(ground)
    go(ground, "yes")
    assert run.ends().status == 0
    assert ground.marks == ["call None 0", "waiting for go", "call {'said': 'yes'} 7"]
    assert result(ground) == ["yes", 7]


def test_mapped_tasks_wait_each_for_its_own(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
class Each(Wait):
    def __init__(self, name, **kwargs):
        super().__init__(**kwargs)
        self.name = name

    def execute(self, context):
        self.defer(trigger=Until(self.name), method_name="finish")

    def finish(self, context, event):
        mark(f"{{context['ti'].map_index}} {{self.name}} {{event['said']}}")

with DAG("d"):
    Each.partial(task_id="t").expand(name=["a", "b"])
""")
    run = ground.start("--run-id", "r")
    ground.until(lambda: {"waiting for a", "waiting for b"} <= {*ground.marks}, "both wait")
    go(ground, "second", "b")
    ground.until(lambda: "1 b second" in ground.marks, "the second goes on")
    go(ground, "first", "a")
    assert run.ends().status == 0
    assert ground.marks[-2:] == ["1 b second", "0 a first"]


def test_an_async_operator_waits_too(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
class Later(BaseOperator):
    async def execute(self, context):
        async for item in context["task_state_store"].checkpoint(range(3), key="items"):
            mark(f"item {{item}}")
        self.defer(trigger=Until("go"), method_name="done")

    async def done(self, context, event):
        await asyncio.sleep(0)
        return await context["task_state_store"].aget("items")

with DAG("d"):
    Later(task_id="t")
""")
    run = ground.start("--run-id", "r")
    deferred(ground)
    go(ground)
    assert run.ends().status == 0
    assert result(ground)["done"] == 3


# --- What comes to nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error"),
    [("raise", "RuntimeError: the far side is down"), ("end", "ended without an event")],
)
def test_a_trigger_that_fails_fails_the_task_and_uses_its_retries(ground: Ground, said: str, error: str) -> None:
    dag(ground, "retries=1")
    run = ground.start("--run-id", "r")
    deferred(ground)
    go(ground, said)
    assert run.ends().status == 1
    assert ground.marks == ["execute 1", "waiting for go", "execute 2", "waiting for go"]
    assert ground.outcomes("t") == ["failed", "failed"]
    for attempt in ground.attempts("t"):
        assert attempt.error is not None
        assert attempt.error.startswith("outlast.dags.outcomes.TaskDeferralError: ")
        assert error in attempt.error
    log = (ground.folder / "s.db.logs" / "d" / "r" / "t" / "attempt-1.log").read_text()
    assert error in log


def test_a_trigger_that_hangs_past_its_timeout_fails_the_task(ground: Ground) -> None:
    dag(ground, "timeout=0.5")
    began = time.monotonic()
    run = ground.start("--run-id", "r")
    row = deferred(ground)
    assert row.deadline is not None
    assert 0 < row.deadline / 1e6 - time.time() < 0.5
    assert run.ends().status == 1
    assert time.monotonic() - began < 10
    assert ground.outcomes("t") == ["failed"]
    assert "TaskDeferralTimeout" in (ground.attempts("t")[0].error or "")


def test_a_trigger_that_blocks_the_event_loop_past_its_timeout_fails_its_task_only(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
class Blocks(Until):
    def serialize(self):
        return f"{{__name__}}.Blocks", {{"name": self.name}}

    async def run(self):
        mark("waiting for go")
        time.sleep(2)
        yield TriggerEvent(1)

class Bad(Wait):
    def execute(self, context):
        self.defer(trigger=Blocks("x"), method_name="done", timeout=0.5)

with DAG("d"):
    Bad(task_id="t")
    Wait(task_id="fine")
""")
    run = ground.start("--run-id", "r")
    ground.until_state("t", "failed")
    ground.until_state("fine", "deferred")
    go(ground)
    assert run.ends().status == 1
    assert "TaskDeferralTimeout" in (ground.attempts("t")[0].error or "")
    assert ground.outcomes("fine") == ["success"]
    assert "holds up the event loop" in (ground.folder / "s.db.logs" / "triggerer.log").read_text()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("self.defer(trigger=Until('go'), method_name='gone')", "Wait2 has no method 'gone' to go on with"),
        ("self.defer(trigger=Until({1}), method_name='done')", "$.name is a set"),
        ("raise TaskDeferred(trigger=Until('go'), method_name='gone')", "Wait2 has no method 'gone' to go on with"),
        ("raise TaskDeferred(trigger=Until('go'), method_name='done', kwargs={'x': 1})", "has no argument 'x'"),
    ],
)
def test_a_deferral_that_could_not_go_on_fails_at_once(ground: Ground, line: str, error: str) -> None:
    ground.dag(f"""{DEFERRING}
class Wait2(Wait):
    def execute(self, context):
        {line}

with DAG("d"):
    Wait2(task_id="t")
""")
    assert ground.run("--run-id", "r").status == 1
    assert error in (ground.attempts("t")[0].error or "")
    assert ground.outcomes("t") == ["failed"]


# --- Kills and pauses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_runner_that_ends_while_a_task_is_deferred_goes_on_from_what_is_stored(ground: Ground, how: int) -> None:
    dag(ground)
    run = ground.start("--run-id", "r")
    deferred(ground)
    run.signal(how)
    assert run.ends().status == (-9 if how == signal.SIGKILL else 75)
    assert ground.left_soon(4.0) == []
    assert ground.task("t").state == "deferred"
    again = ground.start("--run-id", "r")
    ground.until(lambda: ground.marks.count("waiting for go") == 2, "the trigger runs again")
    go(ground)
    assert again.ends().status == 0
    assert ground.marks == ["execute 1", "waiting for go", "waiting for go", "done 1 now"]
    assert ground.outcomes("t") == ["success"]
    assert ground.state("t")["after"] == {"try": 1}


def test_a_dag_file_that_changes_while_a_task_is_deferred(ground: Ground) -> None:
    dag(ground)
    run = ground.start("--run-id", "r")
    deferred(ground)
    run.signal(signal.SIGINT)
    assert run.ends().status == 75
    dag(ground, source=DEFERRING.replace("{event['said']}", "{event['said']} in the new file"))
    go(ground)
    assert ground.run("--run-id", "r").status == 0
    assert ground.marks[-1] == "done 1 now in the new file"


def test_a_trigger_process_that_is_killed_is_replaced(ground: Ground) -> None:
    dag(ground)
    run = ground.start("--run-id", "r")
    deferred(ground)
    os.kill(ground.pid("triggerer"), signal.SIGKILL)
    ground.until(lambda: ground.marks.count("waiting for go") == 2, "the trigger runs again")
    go(ground)
    assert run.ends().status == 0
    assert ground.outcomes("t") == ["success"]


def test_a_worker_killed_after_the_trigger_fired_is_a_crash(ground: Ground) -> None:
    ground.dag(f"""{DEFERRING}
class Dies(Wait):
    def done(self, context, event, rows):
        if first("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().done(context, event, rows)

with DAG("d"):
    Dies(task_id="t")
""")
    run = ground.start("--run-id", "r")
    deferred(ground)
    go(ground)
    assert run.ends().status == 0
    assert ground.outcomes("t") == ["crashed", "success"]
    assert ground.marks == ["execute 1", "waiting for go", "execute 2", "waiting for go", "done 2 now"]


def test_a_deferred_task_that_is_cancelled_does_not_go_on(ground: Ground) -> None:
    dag(ground)
    run = ground.start("--run-id", "r")
    deferred(ground)
    assert ground.command("runs", "cancel", "d/r", "--yes").status == 0
    assert run.ends().status == 3
    assert ground.marks == ["execute 1", "waiting for go"]
    assert ground.task("t").state == "cancelled"
    assert ground.left_soon(4.0) == []


# --- Reschedules -----------------------------------------------------------------------------------------


def test_a_sensor_is_put_off_without_a_slot_and_keeps_its_attempt(ground: Ground) -> None:
    ground.dag("""
from outlast.dags.sensors import PokeReturnValue
with DAG("d"):
    @task.sensor(poke_interval=0.2, timeout=60, mode="reschedule")
    def t(task_state_store=None, ti=None):
        looks = task_state_store.increment("looks")
        mark(f"look {looks} of try {ti.try_number} in {os.getpid()}")
        return PokeReturnValue(looks == 3, {"looks": looks})

    @task
    def other():
        mark("other")

    t()
    other()
""")
    assert ground.run("--run-id", "r", env={"OUTLAST__RUNNER__PARALLELISM": "1"}).status == 0
    looks = [mark for mark in ground.marks if mark != "other"]
    assert [look.partition(" in ")[0] for look in looks] == [f"look {number} of try 1" for number in (1, 2, 3)]
    assert len({look.partition(" in ")[2] for look in looks}) == 3
    assert ground.marks.index("other") < 3
    assert ground.outcomes("t") == ["success"]
    assert result(ground) == {"looks": 3}


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_sensor_whose_time_is_over_fails_without_retries_or_is_skipped(ground: Ground, mode: str, soft: bool) -> None:
    ground.dag(f"""
with DAG("d"):
    @task.sensor(poke_interval=0.1, timeout=0.5, mode="{mode}", soft_fail={soft}, retries=3)
    def t():
        mark("look")
        return False
    t()
""")
    assert ground.run("--run-id", "r").status == (0 if soft else 1)
    assert ground.outcomes("t") == ["skipped" if soft else "failed"]
    assert ground.task("t").state == ("skipped" if soft else "failed")
    assert ground.counts["look"] >= 2
    if not soft:
        assert "SensorTimeout: it has not come within 0.5 s" in (ground.attempts("t")[0].error or "")


def test_a_sensor_that_sleeps_pauses_at_once(ground: Ground) -> None:
    ground.dag("""
with DAG("d"):
    @task.sensor(poke_interval=600)
    def t(task_state_store=None):
        looks = task_state_store.increment("looks")
        pid(f"look{looks}")
        return looks == 2
    t()
""")
    run = ground.start("--run-id", "r")
    ground.pid("look1")
    began = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.ends().status == 75
    assert time.monotonic() - began < 4
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("t") == ["paused", "success"]


def test_a_runner_killed_while_a_sensor_is_put_off(ground: Ground) -> None:
    ground.dag("""
with DAG("d"):
    @task.sensor(poke_interval=0.5, timeout=60, mode="reschedule")
    def t(task_state_store=None, ti=None):
        looks = task_state_store.increment("looks")
        mark(f"look {looks} of try {ti.try_number}")
        return looks == 2
    t()
""")
    run = ground.start("--run-id", "r")
    ground.until_state("t", "up_for_reschedule")
    run.signal(signal.SIGKILL)
    run.ends()
    assert ground.run("--run-id", "r").status == 0
    assert ground.marks == ["look 1 of try 1", "look 2 of try 1"]
    assert ground.outcomes("t") == ["success"]


# --- Waiting for nothing -------------------------------------------------------------------------------------


SPINS = """
from datetime import UTC, datetime, timedelta
from outlast import BaseTrigger, TaskDeferred, TaskRescheduled, TriggerEvent

class AtOnce(BaseTrigger):
    def serialize(self):
        return f"{__name__}.AtOnce", {}

    async def run(self):
        yield TriggerEvent()

@task
def rescheduled(task_state_store=None):
    if task_state_store.increment("looks") < 5:
        raise TaskRescheduled(datetime.now(UTC) - timedelta(days=1))

@task
def deferred(event=None, task_state_store=None):
    if task_state_store.increment("looks") < 5:
        raise TaskDeferred(trigger=AtOnce())

with DAG("d"):
    CALL()
"""


@pytest.mark.parametrize(("name", "seconds"), [("rescheduled", 2.0), ("deferred", 1.5)])
def test_what_waits_for_nothing_waits_a_little_all_the_same(ground: Ground, name: str, seconds: float) -> None:
    ground.dag(SPINS.replace("CALL", name))
    assert ground.run("--run-id", "r").status == 0
    [attempt] = ground.attempts(name)
    assert attempt.ended_at is not None
    assert attempt.ended_at - attempt.started_at >= seconds * 1_000_000
    assert ground.state(name) == {"looks": 5}
