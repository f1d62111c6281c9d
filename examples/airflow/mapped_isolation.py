"""A mapped task has one instance a table; each has a state of its own, and clears no other's."""

from __future__ import annotations

from airflow.sdk import DAG, task

with DAG(dag_id="mapped_isolation", schedule=None, tags=["example"]):

    @task
    def list_tables() -> list[str]:
        return ["orders", "customers", "products"]

    @task(retries=1)
    def copy_table(table: str, task_state_store=None, ti=None) -> dict:
        seen = task_state_store.get("tables_seen", default=[])
        task_state_store.set("tables_seen", [*seen, table])
        if table == "customers" and ti.try_number == 1:
            raise RuntimeError("the first attempt of this instance fails")
        if table == "products":
            task_state_store.clear()
        task_state_store.set("status", "complete")
        return {"table": table, "map_index": ti.map_index}

    @task
    def summarize(copies) -> list[str]:
        return [copy["table"] for copy in copies]

    summarize(copy_table.expand(table=list_tables()))
