"""An async task fetches pages a few at a time, and records after each few which are done."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from airflow.sdk import DAG, task
from airflow.sdk.execution_time.context import NEVER_EXPIRE

log = logging.getLogger(__name__)

PAGES = list(range(1, 10))
AT_ONCE = 3


async def fetch(page: int) -> int:
    await asyncio.sleep(0.02)
    return page * 10


with DAG(dag_id="async_checkpoint", schedule=None, start_date=datetime(2026, 1, 1), catchup=False):

    @task(retries=2, retry_delay=0)
    async def ingest_pages(task_state_store=None, ti=None) -> dict:
        progress = await task_state_store.aget("progress", default={"done": [], "rows": 0})
        fetched = 0
        while left := [page for page in PAGES if page not in progress["done"]]:
            batch = left[:AT_ONCE]
            rows = sum(await asyncio.gather(*(fetch(page) for page in batch)))
            fetched += len(batch)
            progress = {"done": progress["done"] + batch, "rows": progress["rows"] + rows}
            await task_state_store.aset("progress", progress, retention=NEVER_EXPIRE)
            log.info("%d of %d pages", len(progress["done"]), len(PAGES))
            if ti.try_number == 1 and fetched == 2 * AT_ONCE:
                raise RuntimeError("the connection is lost; the retry goes on from here")
        return {"rows": progress["rows"], "fetched_by_this_attempt": fetched}

    ingest_pages()
