"""Assets across runs, with real processes: watermarks, DAGs started by events, watchers, and kills in between."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from outlast.event_requests import EventRow, ListEvents
from outlast.run_requests import ListRuns, RunRow
from support.running import Ground

IMPORTS = "from outlast.dags.assets import Asset, AssetWatcher, Metadata, asset\n"

PRODUCER = """
orders = Asset("orders", "s3://bucket/orders")

with DAG("producer"):
    @task(outlets=[orders])
    def load(asset_state_store=None, outlet_events=None):
        begin = asset_state_store.get("watermark", 0)
        for row in range(begin + 1, begin + 4):
            mark(f"row {row}")
            asset_state_store.set("watermark", row)
        outlet_events[orders].extra = {"from": begin + 1, "to": begin + 3}
    load()
"""

CONSUMER = """
with DAG("consumer", schedule=[Asset.ref(name="orders")]):
    @task(inlets=[Asset.ref(name="orders")])
    def read(asset_state_store=None, triggering_asset_events=None):
        for asset, events in triggering_asset_events.items():
            for event in events:
                mark(f"{asset.uri} {event.extra['from']}-{event.extra['to']} by {event.source_task_id}")
        mark(f"watermark {asset_state_store.get('watermark')}")
    read()
"""


def write(ground: Ground, **files: str) -> None:
    for name, source in files.items():
        ground.dag(IMPORTS + source, f"{name}.py")


def runs_of(ground: Ground, dag_id: str) -> list[RunRow]:
    """Return the runs of a DAG, oldest first."""
    return [run for run, _ in reversed(ground.send(ListRuns(dag_id)).runs)]


def events(ground: Ground) -> list[EventRow]:
    return list(ground.send(ListEvents()).rows)


# --- From run to run -----------------------------------------------------------------------------------------


def test_a_watermark_goes_on_from_run_to_run(ground: Ground) -> None:
    write(ground, producer=PRODUCER)
    for _ in range(2):
        assert ground.run("producer.py").status == 0
    assert ground.marks == [f"row {row}" for row in range(1, 7)]
    assert ground.store.asset(uri="s3://bucket/orders").get("watermark") == 6
    writer = ground.store.asset("orders").entry("watermark").writer  # type: ignore[union-attr]
    assert (writer.kind, str(writer.scope)) == ("task", f"producer/{runs_of(ground, 'producer')[1].run_id}/load")


def test_a_file_that_is_gone_for_a_while_loses_no_watermark(ground: Ground) -> None:
    """Neither the sweeper nor the removal of old runs touches the state of assets, known to any file or not."""
    write(ground, producer=PRODUCER, other='with DAG("other"):\n    @task\n    def t(): ...\n    t()\n')
    assert ground.run("producer.py").status == 0
    (ground.folder / "producer.py").unlink()
    assert ground.run("other.py").status == 0
    for run in runs_of(ground, "producer"):
        assert ground.command("runs", "rm", f"producer/{run.run_id}", "--yes").status == 0
    assert ground.command("state-store", "clean").status == 0
    write(ground, producer=PRODUCER)
    assert ground.run("producer.py").status == 0
    assert ground.marks == [f"row {row}" for row in range(1, 7)]


# --- DAGs started by events ------------------------------------------------------------------------------------


def test_an_event_starts_the_dag_that_waits_for_it(ground: Ground) -> None:
    write(ground, producer=PRODUCER, consumer=CONSUMER)
    told = ground.run("producer.py", "consumer.py")
    assert told.status == 0
    assert ground.marks[3:] == ["s3://bucket/orders 1-3 by load", "watermark 3"]
    (run,) = runs_of(ground, "consumer")
    assert (run.state, run.events, run.run_id.startswith("asset_triggered__")) == ("success", (1,), True)
    assert ground.left_soon() == []


def test_each_event_starts_it_once(ground: Ground) -> None:
    write(ground, producer=PRODUCER, consumer=CONSUMER)
    for _ in range(3):
        assert ground.run("producer.py", "consumer.py").status == 0
    assert [run.events for run in runs_of(ground, "consumer")] == [(1,), (2,), (3,)]
    assert ground.run("consumer.py").status == 0
    assert len(runs_of(ground, "consumer")) == 3


def test_what_has_happened_while_nobody_was_there_starts_it_later(ground: Ground) -> None:
    write(ground, producer=PRODUCER, consumer=CONSUMER)
    assert ground.run("producer.py", "consumer.py").status == 0
    for _ in range(2):
        assert ground.run("producer.py").status == 0
    assert ground.run("consumer.py").status == 0
    assert [run.events for run in runs_of(ground, "consumer")] == [(1,), (2, 3)]
    assert ground.marks[-3:] == ["s3://bucket/orders 4-6 by load", "s3://bucket/orders 7-9 by load", "watermark 9"]


BOTH = """
a, b, c = Asset("a"), Asset("b"), Asset("c")

with DAG("one"):
    @task(outlets=[a])
    def make_a():
        yield Metadata(a, {"n": 1})
    make_a()

with DAG("two"):
    @task(outlets=[b])
    def make_b(): ...
    make_b()

with DAG("all", schedule=a & b):
    @task
    def both(**context):
        mark("all " + " ".join(sorted(asset.name for asset in context["triggering_asset_events"])))
    both()

with DAG("any", schedule=b | c):
    @task
    def either(**context):
        mark("any " + " ".join(sorted(asset.name for asset in context["triggering_asset_events"])))
    either()

with DAG("never", schedule=b & c):
    @task
    def neither():
        mark("never")
    neither()
"""


def test_a_dag_may_wait_for_several_assets(ground: Ground) -> None:
    write(ground, d=BOTH)
    assert ground.run("d.py").status == 0
    assert sorted(ground.marks) == ["all a b", "any b"]


def test_a_task_that_fails_starts_nothing(ground: Ground) -> None:
    failing = PRODUCER.replace("    load()", "        raise ValueError\n    load()", 1)
    write(ground, producer=failing, consumer=CONSUMER)
    assert ground.run("producer.py", "consumer.py").status != 0
    assert (events(ground), runs_of(ground, "consumer")) == ([], [])
    assert ground.store.asset("orders").get("watermark") == 3


CHAIN = """
@asset(uri="s3://bucket/raw")
def raw(self):
    mark(f"made {self.uri}")
    return 7

@asset(schedule=raw)
def report(raw, asset_state_store=None):
    asset_state_store[report].increment("times")
    mark(f"report of {raw.uri}")

@asset.multi(schedule=report, outlets=[Asset("left"), Asset("right")])
def split(self):
    for made in self.assets:
        yield Metadata(made, {"of": "report"})
"""


def test_functions_that_are_assets_start_each_other(ground: Ground) -> None:
    write(ground, d=CHAIN)
    for _ in range(2):
        assert ground.run().status == 0
    assert ground.marks == ["made s3://bucket/raw", "report of s3://bucket/raw"] * 2
    assert ground.store.asset("report").get("times") == 2
    assert [(event.name, event.extra) for event in events(ground)[:4]] == [
        ("raw", "{}"),
        ("report", "{}"),
        ("left", '{"of":"report"}'),
        ("right", '{"of":"report"}'),
    ]


# --- Kills -----------------------------------------------------------------------------------------------------


SLOW_PRODUCER = PRODUCER.replace("    load()", '        pid("loaded")\n        wait_for("go")\n    load()', 1)


def test_no_event_is_lost_or_taken_twice_by_a_runner_killed_before_it_starts_the_consumer(ground: Ground) -> None:
    write(ground, producer=SLOW_PRODUCER, consumer=CONSUMER)
    program = ground.start("producer.py", "consumer.py")
    ground.pid("loaded")
    program.signal(signal.SIGSTOP)
    (ground.folder / "go").touch()
    ground.until(lambda: events(ground), "the producer succeeds")
    program.signal(signal.SIGKILL)
    assert program.ends().status == -9
    assert runs_of(ground, "consumer") == []
    assert ground.run("producer.py", "consumer.py", "--resume").status == 0
    assert [run.events for run in runs_of(ground, "consumer")] == [(1,)]
    assert ground.marks[-2:] == ["s3://bucket/orders 1-3 by load", "watermark 3"]
    assert ground.run("consumer.py").status == 0
    assert len(runs_of(ground, "consumer")) == 1


@pytest.mark.parametrize("at", ["before StartRun 2 -", "after StartRun 2 -"])
def test_a_runner_killed_while_it_starts_the_consumer(ground: Ground, at: str) -> None:
    write(ground, producer=PRODUCER, consumer=CONSUMER)
    killing = {"KILL_AT": at, "KILL_ONCE": str(ground.folder / "killed")}
    killing["OUTLAST__STATE_STORE__BACKEND"] = "killing:KillingBackend"
    assert ground.run("producer.py", "consumer.py", env=killing).status == -9
    assert ground.run("consumer.py").status == 0
    (run,) = runs_of(ground, "consumer")
    assert (run.state, run.events) == ("success", (1,))
    assert ground.counts["watermark 3"] == 1


TWICE = """
orders = Asset("orders")

with DAG("producer"):
    @task(outlets=[orders])
    def load(number):
        if number == 2:
            wait_for("first is read")

    load(1) >> load.override(task_id="again")(2)

with DAG("consumer", schedule=orders):
    @task
    def read(triggering_asset_events=None, run_id=None):
        (event,) = triggering_asset_events[orders]
        pid(f"{event.source_task_id} is read")
        if event.source_task_id == "load":
            pid("first is read")
        wait_for("go")
    read()
"""


def test_every_run_a_killed_runner_had_started_for_events_is_gone_on_with(ground: Ground) -> None:
    write(ground, d=TWICE)
    program = ground.start()
    ground.appears("again is read")
    program.signal(signal.SIGKILL)
    program.ends()
    (ground.folder / "go").touch()
    assert ground.run("--dag", "consumer").status == 0
    assert [(run.state, run.events) for run in runs_of(ground, "consumer")] == [("success", (1,)), ("success", (2,))]


TOGETHER = """
orders = Asset("orders")

with DAG("d"):
    @task(outlets=[orders])
    def load(task_state_store=None, asset_state_store=None):
        for page in range(task_state_store.get("page", 0) + 1, 6):
            mark(f"page {page}")
            with task_state_store.transaction() as tx:
                tx.set("page", page)
                if page == 2 and first("half way"):
                    os.kill(os.getpid(), 9)
                tx.of(asset_state_store[orders]).increment("watermark", 10)
            if page == 4 and first("afterwards"):
                os.kill(os.getpid(), 9)
    load()
"""


def test_progress_and_watermark_move_together_whenever_the_task_is_killed(ground: Ground) -> None:
    write(ground, d=TOGETHER)
    assert ground.run("--run-id", "r").status == 0
    assert ground.outcomes("load") == ["crashed", "crashed", "success"]
    assert ground.marks == [f"page {page}" for page in (1, 2, 2, 3, 4, 5)]
    assert (ground.state("load"), ground.store.asset("orders").get("watermark")) == ({"page": 5}, 50)


STALE = """
orders = Asset("orders")

with DAG("d"):
    @task(outlets=[orders])
    def load(asset_state_store=None, ti=None):
        asset_state_store.set("watermark", ti.try_number)
        if ti.try_number == 1:
            pid("child")
            wait_for("go")
            for change in (lambda: asset_state_store.set("watermark", -1), lambda: asset_state_store.get("watermark")):
                try:
                    change()
                except StaleAttempt:
                    mark("stale")
    load()
"""


def test_a_superseded_attempt_cannot_move_a_watermark(ground: Ground) -> None:
    write(ground, d=STALE)
    program = ground.start("--run-id", "r")
    ground.pid("child")
    supervisor = ground.task("load").supervisor
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)  # or it would end its child at once
    ground.store.task("d/r/load", attempt="new").asset("orders").set("watermark", 100)
    (ground.folder / "go").touch()
    ground.until(lambda: ground.counts["stale"] == 2, "both calls are refused")
    assert ground.store.asset("orders").get("watermark") == 100
    os.kill(supervisor.pid, signal.SIGCONT)
    program.ends()
    assert [version.value for version in ground.store.asset("orders").history("watermark")] == [3, 100, 1]


# --- Watchers ----------------------------------------------------------------------------------------------------


WATCHED = """
import asyncio
from outlast.dags.triggers import BaseEventTrigger, TriggerEvent

class Files(BaseEventTrigger):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def serialize(self):
        return f"{__name__}.Files", {"folder": self.folder}

    async def run(self):
        while True:
            seen = await self.asset_state_store.aget("seen", 0)
            if (Path(self.folder) / f"in-{seen + 1}").exists():
                await self.asset_state_store.aset("seen", seen + 1)
                yield TriggerEvent({"file": f"in-{seen + 1}"})
            await asyncio.sleep(0.02)

inbox = Asset("inbox", watchers=[AssetWatcher("files", Files(str(HERE)))])

with DAG("d", schedule=inbox):
    @task
    def read(triggering_asset_events=None):
        for event in triggering_asset_events[inbox]:
            mark(f"read {event.extra['payload']['file']}")
    read()
"""


def until_done(ground: Ground, number: int) -> None:
    """Wait until so many runs of the DAG have ended well."""

    def is_done() -> bool:
        return [run.state for run in runs_of(ground, "d")] == ["success"] * number

    ground.until(is_done, f"in-{number} is read")


def test_what_a_watcher_sees_starts_the_dag(ground: Ground) -> None:
    write(ground, d=WATCHED)
    program = ground.start("--keep")
    for number in (1, 2):
        (ground.folder / f"in-{number}").touch()
        until_done(ground, number)
    program.signal(signal.SIGTERM)
    assert program.ends().status == 0
    writer: Any = ground.store.asset("inbox").entry("seen").writer  # type: ignore[union-attr]
    assert (writer.kind, writer.name) == ("trigger", "file:Files")
    assert [event.source for event in events(ground)] == [None, None]
    assert ground.left_soon() == []


def test_without_keep_it_stays_until_the_watcher_has_started_it(ground: Ground) -> None:
    write(ground, d=WATCHED)
    (ground.folder / "in-1").touch()
    assert ground.run().status == 0
    assert (ground.marks, ground.left_soon()) == (["read in-1"], [])


def test_a_watcher_goes_on_where_it_was(ground: Ground) -> None:
    write(ground, d=WATCHED)
    (ground.folder / "in-1").touch()
    program = ground.start("--keep")
    until_done(ground, 1)
    program.signal(signal.SIGKILL)
    program.ends()
    ground.until(lambda: not ground.left(), "its processes end")
    (ground.folder / "in-2").touch()
    program = ground.start("--keep")
    until_done(ground, 2)
    program.signal(signal.SIGTERM)
    assert program.ends().status == 0
    assert ground.counts["read in-1"] == ground.counts["read in-2"] == 1
