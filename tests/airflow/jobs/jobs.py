"""Operators as providers write them for Airflow 3.3's mixin; each call of the job system is noted in $NOTES."""

import json
import os
from datetime import datetime, timedelta

try:
    from airflow.sdk import dag
except ImportError:
    from airflow.decorators import dag
from airflow.exceptions import AirflowFailException
from airflow.providers.common.compat.sdk import BaseOperator, ResumableJobMixin

RETRIED = {"retries": 1, "retry_delay": timedelta(seconds=0)}


class Job(ResumableJobMixin, BaseOperator):
    external_id_key = "job_id"
    status = "RUNNING"

    def __init__(self, **kwargs):  # as operators of providers have one
        super().__init__(**kwargs)

    def note(self, call, context, **more):
        row = {"task": self.task_id, "call": call, "try": context["ti"].try_number, **more}
        with open(os.environ["NOTES"], "a") as file:
            file.write(json.dumps(row) + "\n")

    def execute(self, context):
        result = self.execute_resumable(context)
        self.note("result", context, result=result)
        return result

    def submit_job(self, context):
        self.note("submit", context)
        return f"job-{context['ti'].try_number}"

    def get_job_status(self, external_id, context):
        self.note("status", context, id=external_id)
        return self.status

    def is_job_active(self, status):
        return status == "RUNNING"

    def is_job_succeeded(self, status):
        return status == "DONE"

    def poll_until_complete(self, external_id, context):
        if context["ti"].try_number == 1:
            raise RuntimeError("the connection is lost")
        self.note("poll", context, id=external_id)

    def get_job_result(self, external_id, context):
        return external_id


class Done(Job):
    status = "DONE"


class Failed(Job):
    status = "FAILED"


class Refused(Job):
    def get_job_status(self, external_id, context):
        self.note("status", context, id=external_id)
        raise AirflowFailException("no such cluster")


@dag(schedule=None, start_date=datetime(2024, 1, 1), catchup=False)
def jobs():
    Job(task_id="active", **RETRIED)
    Job(task_id="not_durable", durable=False, **RETRIED)
    if os.environ.get("AIRFLOW__OUTLAST__URL"):
        Job.partial(task_id="mapped", **RETRIED).expand(durable=[True, False])
    Done(task_id="done", **RETRIED)
    Failed(task_id="failed", **RETRIED)
    Refused(task_id="refused", retries=2, retry_delay=timedelta(seconds=0))


jobs()
