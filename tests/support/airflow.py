"""Import paths of Airflow's, forgotten again after a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forgotten() -> Iterator[None]:
    """Let a test import `airflow…` afresh, and remove afterwards what it has imported and installed."""
    finders, path = list(sys.meta_path), list(sys.path)
    before = {name: module for name, module in sys.modules.items() if _is_airflow(name)}
    _remove()
    try:
        yield
    finally:
        _remove()
        sys.modules.update(before)
        sys.meta_path[:], sys.path[:] = finders, path


def _remove() -> None:
    for name in [name for name in sys.modules if _is_airflow(name)]:
        del sys.modules[name]


def _is_airflow(name: str) -> bool:
    return name == "airflow" or name.startswith("airflow.")
