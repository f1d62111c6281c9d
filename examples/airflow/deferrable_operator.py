"""Operators that wait without a process: for a time, and for a job, which a trigger of the file's own looks at."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.exceptions import AirflowFailException
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, Context, conf
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from airflow.triggers.base import BaseTrigger, TriggerEvent

FOLDER = Path(os.environ.get("JOBS", "jobs"))  # what stands in for the other system: a file when a job has ended


def start_job(job_id: str) -> None:
    """Start a process that has nothing to do with the task's; it ends half a second later."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = f"sleep 0.5; printf done > {job_id}.new; mv {job_id}.new {job_id}"
    subprocess.Popen(["sh", "-c", command], cwd=FOLDER, start_new_session=True)


class JobTrigger(BaseTrigger):
    def __init__(self, job_id: str, folder: str) -> None:
        super().__init__()
        self.job_id, self.folder = job_id, folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{self.__class__.__module__}.{self.__class__.__qualname__}"
        return path, {"job_id": self.job_id, "folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while not Path(self.folder, self.job_id).exists():
            await asyncio.sleep(0.1)
        yield TriggerEvent({"job_id": self.job_id, "status": Path(self.folder, self.job_id).read_text()})


class JobOperator(BaseOperator):
    def execute(self, context: Context) -> None:
        state = context["task_state_store"]
        job_id = state.get("job_id")
        if job_id is None:
            job_id = f"job-{uuid.uuid4().hex[:8]}"
            state.set("job_id", job_id, retention=NEVER_EXPIRE)
            start_job(job_id)
        self.defer(
            trigger=JobTrigger(job_id, str(FOLDER.absolute())),
            method_name="execute_complete",
            kwargs={"asked_for": job_id},
            timeout=timedelta(minutes=5),
        )

    def execute_complete(self, context: Context, event: dict[str, Any], asked_for: str) -> str:
        if event["status"] != "done" or event["job_id"] != asked_for:
            raise AirflowFailException(f"the job ended with {event}")
        context["task_state_store"].set("status", event["status"])
        return event["job_id"]


class WaitSensor(BaseSensorOperator):
    def __init__(
        self,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=True),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def execute(self, context: Context) -> None:
        if self.deferrable:
            self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=0.2)), method_name="execute_complete")

    def execute_complete(self, context: Context, event: Any = None) -> str:
        return f"waited, try {context['ti'].try_number}"


with DAG("deferrable_operator", schedule=None):
    WaitSensor(task_id="wait") >> JobOperator(task_id="job")
