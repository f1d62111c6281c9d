"""outlast's own public API under /api/outlast/v1, with the OpenAPI document and the page about both: `router`."""

from __future__ import annotations

from . import airflow_api, metrics, pages
from . import events as events  # declares its operation
from . import exporting as exporting
from . import health as health
from . import outlast_runs as outlast_runs
from . import run_progress as run_progress
from . import searching as searching
from .outlast_state import OPERATIONS

__all__ = ["OPERATIONS", "router"]

router = OPERATIONS.router()
router.routes.extend(pages.routes([*airflow_api.OPERATIONS.all, *OPERATIONS.all, metrics.OPERATION, health.MONITOR]))
