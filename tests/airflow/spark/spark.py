"""A DAG with the operator of the Spark provider as it is; what submits and what answers is the test's."""

from datetime import datetime, timedelta

try:
    from airflow.sdk import dag
except ImportError:
    from airflow.decorators import dag
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator


@dag(schedule=None, start_date=datetime(2024, 1, 1), catchup=False)
def spark():
    SparkSubmitOperator(
        task_id="submit",
        application="job.py",
        conn_id="cluster",
        status_poll_interval=1,
        retries=2,
        retry_delay=timedelta(seconds=5),
    )


spark()
