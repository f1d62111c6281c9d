"""A trigger that fires after a while: sooner, Airflow 3's scheduler may fail the task that already runs on."""

import asyncio

from airflow.triggers.base import BaseTrigger, TriggerEvent


class Later(BaseTrigger):
    def serialize(self):
        return "later.Later", {}

    async def run(self):
        await asyncio.sleep(4)
        yield TriggerEvent("it is later")
