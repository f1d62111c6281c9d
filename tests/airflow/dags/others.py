"""Small DAGs, each for one question; what they see goes to the file $NOTES as one JSON line."""

import json
import os
import time
from datetime import datetime, timedelta

try:
    from airflow.sdk import Asset, dag, get_current_context, task
except ImportError:
    from airflow.datasets import Dataset as Asset
    from airflow.decorators import dag, task
    from airflow.operators.python import get_current_context

ORDERS = Asset("test://orders/table")
ONCE = {"schedule": None, "start_date": datetime(2024, 1, 1), "catchup": False}


def note(ti, **seen):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps({"task": ti.task_id, "try": ti.try_number, **seen}, default=str) + "\n")


@dag(**ONCE)
def counts():
    @task
    def count(task_state_store=None, ti=None):
        number = task_state_store.get("number", 0) + 1
        task_state_store.set("number", number)
        note(ti, number=number, site=os.environ.get("AIRFLOW_CTX_SITE"), stored=os.environ.get("AIRFLOW_CTX_STORED"))

    @task
    def plain(ti=None):
        note(ti, ran=True)

    count()
    plain()


@dag(**ONCE)
def again():
    @task(retries=1, retry_delay=timedelta(seconds=0))
    def job(task_state_store=None, ti=None):
        made = time.time_ns()
        note(ti, found=task_state_store.get("job"), made=made)
        task_state_store.set("job", made)
        raise RuntimeError("every try is lost")

    job()


@dag(**ONCE)
def idles():
    @task
    def idle(task_state_store=None, ti=None):
        import psycopg

        def connections():
            with psycopg.connect(os.environ["AIRFLOW__OUTLAST__URL"].partition("?")[0]) as own:
                asked = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> %s"
                return own.execute(asked, (own.info.backend_pid,)).fetchone()[0]

        seen = [connections()]
        task_state_store.set("n", 1)
        seen.append(connections())
        time.sleep(6)
        seen.append(connections())
        note(ti, seen=seen, n=task_state_store.get("n"))

    idle()


@dag(**ONCE)
def verbs():
    @task
    def verb(task_state_store=None, ti=None):
        import asyncio
        import copy
        import pickle

        store = task_state_store
        store.set_many({"a": 1, "b": [2]})
        with store.transaction() as tx:
            tx.set("a", tx.get("a") + 1)
        again = pickle.loads(pickle.dumps(store))
        shown = [
            store.increment("n"),
            again.get("a"),
            copy.copy(store) == store,
            store.keys(),
            hasattr(store, "frobnicate"),
        ]

        async def awaited():
            await again.aset("c", 3)
            return await copy.copy(store).aget("c")

        shown.append(asyncio.run(awaited()))
        refused = []
        for value, options in ((None, {}), (datetime(2024, 1, 1), {}), (1, {"retention": 5})):
            try:
                store.set("x", value, **options)
            except (TypeError, ValueError) as error:
                refused.append(type(error).__name__)
        store.update("n", lambda n: n + 1)
        versions = [version.value for version in store.history("n")]
        done = list(store.checkpoint(["p", "q"]))
        note(ti, shown=shown, refused=refused, dir="increment" in dir(store), versions=versions, done=done)

        import outlast

        with outlast.connect(os.environ["AIRFLOW__OUTLAST__URL"]) as other:
            other.task(store.scope, attempt=ti.try_number + 1).set("a", "newer")
        for stale in (lambda: store.set("a", "older"), lambda: store.get("a")):
            try:
                stale()
            except outlast.StaleAttempt as error:
                note(ti, stale=str(error))

        from outlast.integrations.airflow import task_state_store as found

        bare = {key: value for key, value in get_current_context().items() if key != "task_state_store"}
        note(ti, fallback=[found() == store, found(bare) == store])

    @task(outlets=[ORDERS])
    def plain(task_state_store=None, asset_state_store=None, ti=None):
        import asyncio

        try:
            from airflow.sdk import NEVER_EXPIRE
        except ImportError:
            from outlast import NEVER_EXPIRE

        async def awaited(store):
            await store.aset("b", 2)
            got = await store.aget("b")
            await store.adelete("b")
            await store.aset("c", 3)
            gone = await store.aget("b")
            await store.aclear()
            return [got, gone, await store.aget("c", default="cleared")]

        task_state_store.set("kept", 1, retention=NEVER_EXPIRE)
        never = task_state_store.entry("kept").expires_at
        for store in (task_state_store, asset_state_store, asset_state_store[ORDERS]):
            store.set("a", 1)
            seen = [store.get("a")]
            store.delete("a")
            seen.append(store.get("a"))
            store.set("a", 2)
            store.clear()
            note(ti, seen=[*seen, store.get("a", default="cleared"), *asyncio.run(awaited(store))], never=never)

    verb()
    plain()


try:
    from airflow.sdk import BaseOperator, ResumableJobMixin
except ImportError:
    ResumableJobMixin = None
else:

    class Job(ResumableJobMixin, BaseOperator):
        def execute(self, context):
            return self.execute_resumable(context)

        def submit_job(self, context):
            note(context["ti"], call="submit")
            return 0

        def get_job_status(self, external_id, context):
            note(context["ti"], call="status", id=external_id)
            return "RUNNING"

        def is_job_active(self, status):
            return True

        def is_job_succeeded(self, status):
            return False

        def poll_until_complete(self, external_id, context):
            if context["ti"].try_number == 1:
                raise RuntimeError("the connection is lost")

        def get_job_result(self, external_id, context):
            return external_id

    @dag(**ONCE)
    def resumes():
        Job(task_id="job", retries=1, retry_delay=timedelta(seconds=0))

    resumes()


again()
counts()
idles()
verbs()
