"""A task says how far it is; `outlast state get progress/RUN/ingest_rows progress` shows it meanwhile."""

from datetime import timedelta

from airflow.sdk import DAG, Param, get_current_context, task

with DAG(
    "progress",
    schedule="@hourly",
    default_args={"owner": "data", "retries": 1},
    params={"batches": Param(5, description="how many batches there are", type="integer", minimum=1)},
):

    @task
    def ingest_rows(params=None):
        state = get_current_context()["task_state_store"]
        total = 0
        for batch in range(params["batches"]):
            total += 10 * (batch + 1)
            state.set("progress", {"rows": total, "status": "running"}, retention=timedelta(hours=6))
        state.set("progress", {"rows": total, "status": "done"}, retention=timedelta(days=7))
        return total

    ingest_rows()
