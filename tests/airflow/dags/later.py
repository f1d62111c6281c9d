"""A trigger that fires when the scheduler knows that the process which deferred its task has ended.

Sooner, Airflow 3 takes the executor's news of that process for news of the one that goes on, and fails the task.
"""

import asyncio
import os

from airflow.triggers.base import BaseTrigger, TriggerEvent

NEWS = "Received executor event with state success for task instance"


class Later(BaseTrigger):
    def serialize(self):
        return "later.Later", {}

    async def run(self):
        log = os.path.join(os.environ["AIRFLOW_HOME"], "scheduler.log")  # none where `dags test` carries out a DAG
        for _ in range(120):
            if not os.path.exists(log) or told(log):
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(1)
        yield TriggerEvent("it is later")


def told(log):
    with open(log, errors="replace") as lines:
        return any(NEWS in line and "deferring" in line for line in lines)
