"""An operator that waits for its job without a process, and whose retry finds that job instead of starting another.

`resume_decision` and `submit_once` are outlast's own: with them an operator on `ResumableJobMixin` can defer, which in
Airflow itself it can not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context, ResumableJobMixin
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

FOLDER = Path(os.environ.get("JOBS", "jobs"))  # what stands in for the other system: a folder for each job


def status_of(job_id: str, folder: str) -> str:
    """Say how a job is: its process writes the file when it has ended."""
    ended = Path(folder, job_id, "status")
    return ended.read_text().strip() if ended.exists() else "RUNNING"


class JobTrigger(BaseTrigger):
    def __init__(self, job_id: str, folder: str) -> None:
        super().__init__()
        self.job_id, self.folder = job_id, folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.JobTrigger", {"job_id": self.job_id, "folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (status := status_of(self.job_id, self.folder)) == "RUNNING":
            await asyncio.sleep(0.1)
        yield TriggerEvent(status)


class ReportOperator(ResumableJobMixin, BaseOperator):
    def __init__(self, *, seconds: float, killed: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds, self.killed = seconds, killed

    def execute(self, context: Context) -> Any:
        decision = self.resume_decision(context)
        job_id = self.submit_once(decision, context)  # the job there is, else a new one
        self.die_if("before waiting", context)
        if decision.kind != "already_succeeded":
            self.defer(
                trigger=JobTrigger(job_id, str(FOLDER.absolute())),
                method_name="execute_complete",
                kwargs={"job_id": job_id},
                timeout=timedelta(minutes=5),
            )
        return self.get_job_result(job_id, context)

    def execute_complete(self, context: Context, event: str, job_id: str) -> Any:
        self.die_if("after waiting", context)
        if not self.is_job_succeeded(event):
            raise AirflowException(f"job {job_id} has ended as {event}")  # a retry starts another
        return self.get_job_result(job_id, context)

    def die_if(self, moment: str, context: Context) -> None:
        if self.killed == moment and context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def submit_job(self, context: Context) -> str:
        job_id = f"report-{uuid.uuid4().hex[:8]}"
        place = FOLDER / job_id
        place.mkdir(parents=True)
        (place / "tag.json").write_text(json.dumps(context["submission_token"]))
        work = f"sleep {self.seconds}; echo 42 > rows; echo SUCCEEDED > new; mv new status"
        subprocess.Popen(["sh", "-c", work], cwd=place, start_new_session=True)
        return job_id

    def find_job(self, token: str, context: Context) -> str | None:
        tags = {json.loads(tag.read_text()): tag.parent.name for tag in FOLDER.glob("*/tag.json")}
        return tags.get(token)

    def get_job_status(self, external_id: str, context: Context) -> str:
        return status_of(external_id, str(FOLDER))

    def is_job_active(self, status: str) -> bool:
        return status == "RUNNING"

    def is_job_succeeded(self, status: str) -> bool:
        return status == "SUCCEEDED"

    def poll_until_complete(self, external_id: str, context: Context) -> None:
        raise NotImplementedError("the trigger waits")

    def get_job_result(self, external_id: str, context: Context) -> dict[str, Any]:
        return {"job": external_id, "rows": int((FOLDER / external_id / "rows").read_text())}


with DAG("deferrable_resumable", schedule=None, default_args={"retries": 2}):
    ReportOperator(task_id="undisturbed", seconds=0.5)
    ReportOperator(task_id="killed_before_waiting", seconds=1, killed="before waiting")
    ReportOperator(task_id="killed_after_waiting", seconds=0.2, killed="after waiting")
