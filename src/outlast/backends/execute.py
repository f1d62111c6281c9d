"""The one thing SQL modules need of a driver: run a statement in the open transaction, return all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Execute"]

#: execute(sql with ? marks, parameters) -> rows as tuples
Execute: TypeAlias = Callable[[str, Sequence[Any]], list[Any]]
