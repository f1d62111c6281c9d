"""What tasks do with Airflow 3.3's own store when outlast is its backend; what they see goes to the file $NOTES."""

import json
import os
import random
import signal
import time
from datetime import datetime, timedelta

import raising_files  # noqa: F401 (its file system is known from then on)
from airflow.sdk import Asset, dag, task
from airflow.sdk.execution_time.context import NEVER_EXPIRE

ONCE = {"schedule": None, "start_date": datetime(2024, 1, 1), "catchup": False}
RETRIED = {"retries": 1, "retry_delay": timedelta(seconds=0)}
ORDERS = Asset(name="orders", uri="test://orders")
LARGE = f"{random.Random(7).getrandbits(200_000):x}"
LONG = "all the same " * 2000
# Without a worker's backend, integers beyond 64 bits do not get through to Airflow's supervisor.
EXACT = 2**70 if os.environ.get("AIRFLOW__WORKERS__STATE_STORE_BACKEND") else 2**60
ODD = "jobs/2026 11?x#1 ü%"


def note(ti, **seen):
    with open(os.environ["NOTES"], "a") as file:
        row = {"task": ti.task_id, "index": ti.map_index, "run": ti.run_id, "try": ti.try_number, **seen}
        file.write(json.dumps(row, default=str) + "\n")


@dag(**ONCE)
def keeps():
    @task(**RETRIED)
    def survive(task_state_store=None, ti=None):
        store = task_state_store
        if ti.try_number == 1:
            store.set("job", {"id": 17})
            store.set("large", LARGE[:9000])
            store.set("large", LARGE, retention=timedelta(hours=1))
            store.set("long", LONG)
            store.set(ODD, [1, EXACT, 0.1, "ü"], retention=NEVER_EXPIRE)
            store.set("gone", LARGE[:5000])
            store.delete("gone")
            os.kill(os.getpid(), signal.SIGKILL)
        note(
            ti,
            job=store.get("job"),
            large=store.get("large") == LARGE,
            long=store.get("long") == LONG,
            odd=store.get(ODD),
            gone=store.get("gone", "default"),
        )
        store.set("large", LARGE[:7000])
        store.set("shrinks", LARGE)
        store.set("shrinks", 1)

    @task
    def clears(task_state_store=None, ti=None):
        task_state_store.set("large", LARGE)
        task_state_store.clear()
        note(ti, large=task_state_store.get("large", "default"))

    @task
    def mapped(number, task_state_store=None, ti=None):
        task_state_store.set("large", LARGE[: 4000 + number])
        note(ti, right=task_state_store.get("large") == LARGE[: 4000 + number])

    @task(outlets=[ORDERS])
    def asset(asset_state_store=None, ti=None):
        before = asset_state_store.get("seen", [])
        asset_state_store.set("seen", [*before, ti.run_id])
        asset_state_store.set("large", LARGE + ti.run_id)
        note(ti, before=before, large=asset_state_store.get("large") == LARGE + ti.run_id)

    survive()
    clears()
    mapped.expand(number=[0, 1])
    asset()


@dag(**ONCE)
def succeeds():
    @task(**RETRIED)
    def work(task_state_store=None, ti=None):
        task_state_store.set("large", LARGE)
        note(ti, worked=True)

    work()


@dag(**ONCE)
def expires():
    @task
    def short(task_state_store=None, ti=None):
        task_state_store.set("short", LONG, retention=timedelta(seconds=1))
        task_state_store.set("large", LARGE, retention=timedelta(seconds=1))
        task_state_store.set("stays", LONG)
        time.sleep(1.5)
        note(ti, short=task_state_store.get("short", "default"), stays=task_state_store.get("stays") == LONG)

    short()


@dag(**ONCE)
def across():
    @task
    def wait(task_state_store=None, ti=None):
        for key in ("left", "patched", "deleted"):
            task_state_store.set(key, LONG, retention=timedelta(hours=1))
        note(ti, is_waiting=True)
        deadline = time.monotonic() + 120
        while not os.path.exists(os.environ["GO"]) and time.monotonic() < deadline:
            time.sleep(0.2)
        seen = {key: task_state_store.get(key, "default") for key in ("patched", "deleted", "put")}
        note(ti, left=task_state_store.get("left") == LONG, **seen)
        task_state_store.set("put", LONG)

    wait()


@dag(**ONCE)
def reads():
    @task
    def read(task_state_store=None, ti=None):
        deadline = time.monotonic() + 60
        while task_state_store.get("told") is None and time.monotonic() < deadline:
            time.sleep(0.5)
        note(ti, told=task_state_store.get("told"), exact=task_state_store.get("exact"))

    read()


keeps()
succeeds()
expires()
across()
reads()
