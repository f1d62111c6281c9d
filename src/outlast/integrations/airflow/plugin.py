"""Airflow's plug-in of outlast: what listens to the success of tasks."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin  # type: ignore[import-not-found, unused-ignore]

from . import listener


class OutlastPlugin(AirflowPlugin):  # type: ignore[misc, unused-ignore]
    """Brings the listener; the policy hooks have an entry point of their own."""

    name = "outlast"
    listeners = [listener]  # noqa: RUF012
