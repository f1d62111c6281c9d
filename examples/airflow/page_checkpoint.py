"""Pages are fetched one by one; a retry goes on with the page after the last one that was loaded."""

import os
import signal

from airflow.sdk import DAG, task

PAGES = 6


def fetch_and_load(page):
    print(f"page {page}: 100 rows")
    return 100


with DAG("page_checkpoint", schedule="@daily", params={"killed_in_page": 4}):

    @task(retries=1)
    def ingest_pages(**context):
        task_state_store = context["task_state_store"]
        last_page = task_state_store.get("last_page", default=0)
        fetched = []
        for page in range(last_page + 1, PAGES + 1):
            if page == context["params"]["killed_in_page"] and context["ti"].try_number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            fetch_and_load(page)
            fetched.append(page)
            task_state_store.set("last_page", page)
        return fetched

    ingest_pages()
