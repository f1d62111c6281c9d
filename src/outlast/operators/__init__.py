"""Ready-made resumable operators, each imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .http import HttpJobOperator as HttpJobOperator
    from .process import ProcessJobOperator as ProcessJobOperator

__all__ = ["HttpJobOperator", "ProcessJobOperator"]


def __getattr__(name: str) -> Any:
    if name == "HttpJobOperator":
        from .http import HttpJobOperator

        return HttpJobOperator
    if name == "ProcessJobOperator":
        from .process import ProcessJobOperator

        return ProcessJobOperator
    raise AttributeError(f"module 'outlast.operators' has no attribute {name!r}")
