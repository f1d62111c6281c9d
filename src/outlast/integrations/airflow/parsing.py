"""What DAG files written for Airflow 3.3 need below it when they are parsed: known context keys, names, the mixin."""

from __future__ import annotations

import functools
import importlib
import logging
from datetime import timedelta
from types import ModuleType
from typing import Any

from . import resumable

__all__ = ["prepare"]

logger = logging.getLogger("outlast")

KEYS = ("task_state_store", "asset_state_store")
#: Where the set of known context keys lives: 3.1 and later, then before.
_KNOWN_KEYS = ("airflow.sdk.definitions.context", "airflow.utils.context")


@functools.cache
def prepare() -> None:
    """Prepare this process, once; nothing is changed where Airflow has the store itself."""
    known = _known_keys()
    if known is None:
        logger.warning("outlast does not know this Airflow: a parameter task_state_store needs a default of None")
    elif not known.issuperset(KEYS):
        known.update(KEYS)
        _name("NEVER_EXPIRE", timedelta.max, "airflow.sdk", "airflow.sdk.execution_time.context")
        _name("ResumableJobMixin", resumable.mixin(), "airflow.sdk")


def _known_keys() -> set[str] | None:
    """Return the set that `@task` compares parameters with."""
    for name in _KNOWN_KEYS:
        found = getattr(_module(name), "KNOWN_CONTEXT_KEYS", None)
        if isinstance(found, set):
            return found
    return None


def _name(name: str, value: Any, *modules: str) -> None:
    """Give a name that 3.3 has to modules of 3.x; 2.x has none of them, which tells others what it is."""
    for place in modules:
        module = _module(place)
        if module is not None and name not in vars(module):
            vars(module)[name] = value


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
