"""Every way a task can use its state, as written for Airflow 3.3; only where 2.x has other import paths is it asked.

Each task notes what it saw as one JSON line in the file $NOTES.
"""

import json
import os
import signal
import sys
from datetime import datetime, timedelta

try:
    from airflow.sdk import Asset, BaseOperator, dag, get_current_context, task
except ImportError:
    from airflow.datasets import Dataset as Asset
    from airflow.decorators import dag, task
    from airflow.models import BaseOperator
    from airflow.operators.python import get_current_context
try:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.python import PythonOperator
except ImportError:
    from airflow.operators.bash import BashOperator
    from airflow.operators.python import PythonOperator

RETRIED = {"retries": 1, "retry_delay": timedelta(seconds=0)}
# Sooner, Airflow 3's scheduler may take the executor's news of one process for news of the next, and fail that.
SECONDS = 15
LATER = {"retries": 1, "retry_delay": timedelta(seconds=SECONDS)}
ONCE = {"schedule": None, "start_date": datetime(2024, 1, 1), "catchup": False}
ORDERS, OTHER = Asset("test://orders/table"), Asset("test://others/table")


def note(ti, **seen):
    row = {"task": ti.task_id, "index": ti.map_index, "try": ti.try_number, **seen}
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps(row, default=str) + "\n")


def survive(store, ti, die=False):
    """Write and fail in try 1; in try 2 read what is there."""
    job = f"{ti.task_id}-{ti.map_index}"
    found = store.get("job", default="none")
    note(ti, found=found, expected="none" if ti.try_number == 1 else job)
    if found == "none":
        store.set("job", job, retention=timedelta(days=1))
        if die:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("try 1 is lost")


class Operator(BaseOperator):
    template_fields = ("text",)

    def __init__(self, text="", **kwargs):
        super().__init__(**kwargs)
        self.text = text

    def execute(self, context):
        note(context["ti"], text=self.text)
        survive(context["task_state_store"], context["ti"])


class Deferring(BaseOperator):
    def execute(self, context):
        from later import Later

        context["task_state_store"].set("job", "deferred")
        note(context["ti"], phase="execute")
        self.defer(trigger=Later(), method_name="resume")

    def resume(self, context, event=None):
        note(context["ti"], phase="resume", found=context["task_state_store"].get("job"), event=event)


def classic(task_state_store, ti, **kwargs):
    survive(task_state_store, ti)


def called_back(context):
    store = context.get("task_state_store")
    note(context["ti"], callback=store.get("job") if store is not None else "no store")


@dag(**ONCE)
def survives():
    """All of it, but for what takes a scheduler."""

    @task(**RETRIED, on_success_callback=called_back, on_retry_callback=called_back)
    def keyword(task_state_store=None, ti=None):
        survive(task_state_store, ti)

    @task(**RETRIED)
    def without_default(task_state_store, ti):
        survive(task_state_store, ti)

    @task(**RETRIED)
    def current():
        context = get_current_context()
        survive(context["task_state_store"], context["ti"])

    @task(**RETRIED)
    def everything(**context):
        survive(context["task_state_store"], context["ti"])

    @task(on_failure_callback=called_back)
    def failing(task_state_store=None):
        task_state_store.set("job", "lost")
        raise RuntimeError("the only try is lost")

    @task(trigger_rule="all_done")
    def afterwards(ti=None):
        note(ti, reached=True)

    @task(**RETRIED)
    def mapped(x, task_state_store, ti=None):
        survive(task_state_store, ti)

    @task(inlets=[ORDERS], outlets=[ORDERS])
    def one_asset(asset_state_store=None, ti=None):
        before = asset_state_store.get("seen", 0)
        asset_state_store[ORDERS].set("seen", before + 1)
        note(ti, before=before, after=asset_state_store.get("seen"))

    @task(inlets=[ORDERS], outlets=[OTHER])
    def two_assets(asset_state_store=None, ti=None):
        asset_state_store[OTHER].set("cursor", {"id": 7})
        try:
            asset_state_store.get("cursor")
        except ValueError as error:
            note(ti, cursor=asset_state_store[OTHER].get("cursor"), refused=str(error))

    @task
    def no_asset(**context):
        note(context["ti"], keys=sorted(key for key in context if key.endswith("state_store")))

    @task.branch
    def branch(task_state_store=None, ti=None):
        task_state_store.set("taken", "left")
        note(ti, taken=task_state_store.get("taken"))
        return "left"

    @task
    def left(ti=None):
        note(ti, reached=True)

    @task
    def right(ti=None):
        note(ti, reached=True)

    @task.sensor(poke_interval=0.1, timeout=30, mode="poke")
    def poked(task_state_store=None, ti=None):
        pokes = task_state_store.get("pokes", 0) + 1
        task_state_store.set("pokes", pokes)
        note(ti, pokes=pokes)
        return pokes >= 3

    @task.external_python(python=sys.executable, expect_airflow=False)
    def elsewhere(task_state_store=None):
        return str(task_state_store)

    @task
    def told(answer, ti=None):
        note(ti, answer=answer)

    keyword()
    without_default()
    current()
    everything()
    failing() >> afterwards()
    mapped.expand(x=[1, 2, 3])
    one_asset()
    two_assets()
    no_asset()
    branch() >> [left(), right()]
    poked()
    told(elsewhere())
    Operator(task_id="operator", text="{{ ti.task_id }} {{ task_state_store is defined }}", **RETRIED)
    Operator.partial(task_id="mapped_operator", **RETRIED).expand(text=["a {{ ti.map_index }}", "b {{ ti.map_index }}"])
    PythonOperator(task_id="classic", python_callable=classic, **RETRIED)
    BashOperator(
        task_id="bash", bash_command='echo "{\\"task\\": \\"bash\\", \\"id\\": \\"$AIRFLOW_CTX_TASK_ID\\"}" >> $NOTES'
    )
    Deferring(task_id="deferring")


@dag(**ONCE)
def dies():
    """What takes a real scheduler: a process for each try, one that is killed, and a triggerer."""

    @task(**LATER)
    def killed(task_state_store, ti=None):
        survive(task_state_store, ti, die=True)

    @task(**LATER)
    def mapped(x, task_state_store=None, ti=None):
        survive(task_state_store, ti)

    @task.sensor(poke_interval=SECONDS, timeout=120, mode="reschedule")
    def rescheduled(task_state_store=None, ti=None):
        pokes = task_state_store.get("pokes", 0) + 1
        task_state_store.set("pokes", pokes)
        note(ti, pokes=pokes)
        return pokes >= 2

    @task(inlets=[ORDERS], outlets=[ORDERS])
    def one_asset(asset_state_store=None, ti=None):
        before = asset_state_store.get("seen", 0)
        asset_state_store.set("seen", before + 1)
        note(ti, before=before, after=asset_state_store[ORDERS].get("seen"))

    killed()
    mapped.expand(x=[1, 2])
    rescheduled()
    one_asset()
    Operator(task_id="operator", text="{{ ti.task_id }}", **LATER)
    Deferring(task_id="deferring")


survives()
dies()
