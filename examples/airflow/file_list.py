"""A task with nothing but its context works through a list of files, and gives up at every second one."""

from airflow.exceptions import AirflowException
from airflow.sdk import dag, task


@dag(schedule=None, tags=["example"])
def file_list():
    @task(retries=5)
    def process_files(context=None):
        task_state_store = context["task_state_store"]
        files = ["a.csv", "b.csv", "c.csv", "d.csv"]
        last = task_state_store.get("last_processed")
        start = 0 if last is None else files.index(last) + 1
        for number, file in enumerate(files[start:]):
            if number:
                raise AirflowException(f"lost the connection at {file}")
            print("processing", file)
            task_state_store.set("last_processed", file)

    process_files()


file_list()
