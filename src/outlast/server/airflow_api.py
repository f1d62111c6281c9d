"""Airflow 3.3.2's public REST API under /api/v2, as far as the state store goes: `router` has all of it."""

from __future__ import annotations

from . import airflow_clearing as airflow_clearing  # declares its operations
from . import airflow_lists as airflow_lists
from .airflow_state import OPERATIONS

__all__ = ["OPERATIONS", "router"]

router = OPERATIONS.router()
