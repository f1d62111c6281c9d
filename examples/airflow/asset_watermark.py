"""One DAG loads what is new and moves a watermark, which belongs to the asset; another runs when it has been moved."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Asset, task

ORDERS = Asset(name="orders/daily", uri="s3://warehouse/orders/daily")
SOURCE = [{"id": number, "created_at": f"2026-01-{number:02d}T00:00:00+00:00"} for number in range(1, 8)]


def orders_since(watermark: str, limit: int) -> list[dict]:
    return [order for order in SOURCE if order["created_at"] > watermark][:limit]


with DAG(
    dag_id="watermark_producer",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    params={"limit": 5},
    doc_md=__doc__,
):

    @task(inlets=[ORDERS], outlets=[ORDERS])
    def load(asset_state_store=None, params=None):
        state = asset_state_store[ORDERS]
        watermark = state.get("watermark", default="2026-01-01T00:00:00+00:00")
        rows = orders_since(watermark, params["limit"])
        if rows:
            state.set("watermark", max(row["created_at"] for row in rows))
        state.set("loads", state.get("loads", default=0) + 1)
        state.set("last_load", {"rows": len(rows), "from": watermark})
        return [row["id"] for row in rows]

    load()


with DAG(dag_id="watermark_consumer", schedule=[ORDERS], start_date=datetime(2026, 1, 1), catchup=False):

    @task(inlets=[ORDERS])
    def consume(asset_state_store=None):
        state = asset_state_store  # with one asset this is its state
        last_load = state.get("last_load") or {}
        return {"rows": last_load.get("rows"), "watermark": state.get("watermark"), "loads": state.get("loads")}

    consume()
