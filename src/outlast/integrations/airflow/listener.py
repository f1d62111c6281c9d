"""Hears of a task's success below Airflow 3.3, and removes its state where `[state_store] clear_on_success` says so."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pluggy

hookimpl = pluggy.HookimplMarker("airflow")
logger = logging.getLogger("outlast")


@hookimpl
def on_task_instance_success(task_instance: Any) -> None:
    """Remove what a task instance has stored, in its process after it has succeeded, or where a person marks it.

    Airflow 2.x would let an exception fail the task.
    """
    try:
        from . import where

        if where.is_on() and not where.is_native() and where.clear_on_success():
            _clear(task_instance)
        if (backends := sys.modules.get(f"{__package__}.worker_backend")) is not None:  # this process has used it
            backends.after_success(task_instance)
    except Exception:
        logger.exception("outlast could not remove the state of a task instance that has succeeded")


def _clear(task_instance: Any) -> None:
    from . import clearing
    from .reach import reach

    if reach.is_given_up:
        logger.warning("outlast: the state of earlier tries is not removed, since the store cannot be opened")
    else:
        clearing.clear(task_instance)
