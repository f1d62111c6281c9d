"""Params as Airflow writes them: a default with a description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DagError

__all__ = ["Param", "defaults"]

_ABSENT: Any = object()


class Param:
    """The default of a run's parameter, with what is to be known about it: `params={"limit": Param(10, …)}`.

    Tasks get the plain value. The rest, a JSON schema by its keywords, is kept for people and not enforced.
    """

    def __init__(self, default: Any = _ABSENT, description: str | None = None, **schema: Any) -> None:
        if default is _ABSENT:
            raise DagError("Param() lacks a default, which outlast's params need: Param(10)")
        self.value, self.description, self.schema = default, description, schema

    def __repr__(self) -> str:
        return f"Param({self.value!r})"


def defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain defaults of params some of which may be a `Param`."""
    return {name: param.value if isinstance(param, Param) else param for name, param in params.items()}
