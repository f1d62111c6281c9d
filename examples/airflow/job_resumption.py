"""A task starts a job somewhere else, dies while it waits, and finds the job again instead of starting another."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task
from airflow.sdk.execution_time.context import NEVER_EXPIRE

FOLDER = Path(os.environ.get("JOBS", "jobs"))  # what stands in for the other system: a file for each job


def start_job() -> str:
    job_id = f"job-{uuid.uuid4().hex[:8]}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{job_id}.json").write_text(json.dumps({"done_at": time.time() + 0.3, "rows": 1234}))
    return job_id


def wait_for_job(job_id: str) -> dict:
    job = json.loads((FOLDER / f"{job_id}.json").read_text())
    time.sleep(max(0.0, job["done_at"] - time.time()))
    return {"job_id": job_id, "rows": job["rows"]}


with DAG(
    dag_id="job_resumption",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["example"],
    doc_md=__doc__,
):

    @task(retries=2, retry_delay=timedelta(seconds=0))
    def run_job(task_state_store=None, ti=None):
        job_id = task_state_store.get("job_id")
        if job_id is None:
            job_id = start_job()
            task_state_store.set("job_id", job_id, retention=NEVER_EXPIRE)
            task_state_store.set("started_at", datetime.now(tz=UTC).isoformat())
            print(f"try {ti.try_number}: started {job_id}, and now this worker is killed")
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"try {ti.try_number}: waiting for {job_id}")
        result = wait_for_job(job_id)
        task_state_store.set("result", result)
        return result["rows"]

    @task
    def report(rows):
        print(f"{rows} rows")

    report(run_job())
