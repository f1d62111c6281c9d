"""outlast inside Apache Airflow: the task state store below 3.3, better backends for it from 3.3 on.

Importing this imports nothing of Airflow; each name is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accessors import task_state_store as task_state_store
    from .metastore_backend import MetastorePlusBackend as MetastorePlusBackend
    from .worker_backend import WorkerBackend as WorkerBackend

_HOME_OF = {
    "MetastorePlusBackend": "metastore_backend",
    "WorkerBackend": "worker_backend",
    "task_state_store": "accessors",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
