"""Airflow's policy hooks: the state stores are put into a task's context, and DAG files are parsed knowing them.

Loaded while `import airflow` still runs, in every process of Airflow's: nothing heavy is imported here, nothing of
Airflow's at all, and no store is opened.
"""

from __future__ import annotations

import logging
from typing import Any

import pluggy

hookimpl = pluggy.HookimplMarker("airflow.policy")
logger = logging.getLogger("outlast")


@hookimpl(tryfirst=True)
def get_airflow_context_vars(context: Any) -> None:
    """Add the stores to the live context of a task that is about to run, or to go on after a deferral.

    What it returns leaves the answer to the site's own hook. An exception would fail the user's task.
    """
    try:
        if "task_state_store" not in context:  # from 3.3 on it is there, and is Airflow's own
            from . import where

            if where.is_on() and not where.is_native():
                from . import accessors

                accessors.add_to(context)
    except Exception:
        logger.exception("outlast could not add its state stores to the context of this task")


@hookimpl(tryfirst=True)
def get_dagbag_import_timeout(dag_file_path: Any) -> None:
    """Prepare this process for a DAG file that is about to be executed; the time it may take is for others to say."""
    try:
        from . import parsing, where

        if where.is_on():
            parsing.prepare()
    except Exception:
        logger.exception("outlast could not prepare for DAG files with a task_state_store")
