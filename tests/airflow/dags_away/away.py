"""Two DAGs for a store that is out of reach: one that wants none, and one whose first task does and says who it is."""

import json
import os
from datetime import datetime

try:
    from airflow.sdk import dag, task
except ImportError:
    from airflow.decorators import dag, task

ONCE = {"schedule": None, "start_date": datetime(2024, 1, 1), "catchup": False}


def note(ti, **seen):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps({"task": ti.task_id, "pid": os.getpid(), **seen}) + "\n")


@dag(**ONCE)
def without():
    @task
    def wants_none(task_state_store, ti=None):
        note(ti, given=task_state_store is not None)

    wants_none()


@dag(**ONCE)
def wanting():
    @task
    def wants_it(task_state_store, ti=None):
        note(ti)
        task_state_store.set("number", 1)

    wants_it()


without()
wanting()
