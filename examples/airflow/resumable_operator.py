"""An operator on `ResumableJobMixin`: its worker is killed while the job runs, and the retry reconnects to it."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, ResumableJobMixin

FOLDER = Path(os.environ.get("JOBS", "jobs"))  # what stands in for the other system: a file for each job


class BatchOperator(ResumableJobMixin, BaseOperator):
    external_id_key = "batch_job_id"

    def __init__(self, *, seconds: float, killed: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds, self.killed = seconds, killed

    def execute(self, context):
        return self.execute_resumable(context)

    def submit_job(self, context) -> str:
        job_id = f"batch-{uuid.uuid4().hex[:8]}"
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{job_id}.json").write_text(json.dumps({"done_at": time.time() + self.seconds}))
        return job_id

    def get_job_status(self, external_id, context) -> str:
        job = json.loads((FOLDER / f"{external_id}.json").read_text())
        return "RUNNING" if time.time() < job["done_at"] else "SUCCEEDED"

    def is_job_active(self, status: str) -> bool:
        return status == "RUNNING"

    def is_job_succeeded(self, status: str) -> bool:
        return status == "SUCCEEDED"

    def poll_until_complete(self, external_id, context) -> None:
        if self.killed and context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while self.is_job_active(self.get_job_status(external_id, context)):
            time.sleep(0.05)

    def get_job_result(self, external_id, context):
        return {"job": external_id}


with DAG("resumable_operator", schedule=None, default_args={"retries": 2}):
    BatchOperator(task_id="reconnects", seconds=1.5, killed=True)
    BatchOperator(task_id="has_ended_meanwhile", seconds=0, killed=True)
    BatchOperator(task_id="undisturbed", seconds=0.1)
