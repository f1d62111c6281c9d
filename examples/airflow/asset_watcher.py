"""A trigger looks into a folder, remembers on the asset what it has seen, and starts the DAG for what is new."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.triggers.base import BaseEventTrigger, TriggerEvent


class NewFileTrigger(BaseEventTrigger):
    """Fires for a file whose name comes after the last one it has fired for."""

    def __init__(self, folder: str, seconds: float, **kwargs):
        super().__init__(**kwargs)
        self.folder, self.seconds = folder, seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{self.__class__.__module__}.{self.__class__.__qualname__}"
        return path, {"folder": self.folder, "seconds": self.seconds}

    def next_file(self, after: str) -> str | None:
        names = sorted(path.name for path in Path(self.folder).glob("*.csv"))
        return next((name for name in names if name > after), None)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            last = await self.asset_state_store.aget("last_file", default="")
            name = self.next_file(last)
            if name is not None:
                await self.asset_state_store.aset("last_file", name)
                yield TriggerEvent({"status": "new", "file": name})
                return
            await asyncio.sleep(self.seconds)


incoming = Asset(
    name="incoming_files",
    watchers=[
        AssetWatcher(
            name="incoming_files_watcher",
            trigger=NewFileTrigger(folder=os.environ.get("INCOMING", "incoming"), seconds=0.1),
        )
    ],
)

with DAG("asset_watcher", schedule=[incoming]):

    @task(inlets=[incoming])
    def take_in(asset_state_store=None):
        return asset_state_store.get("last_file")

    take_in()
