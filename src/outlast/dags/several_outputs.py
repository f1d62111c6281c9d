"""Tasks whose result is a dict, each key of which is a result of its own: which they are, and what they may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import DagError

__all__ = ["check_outputs", "has_several", "says_several"]


def says_several(function: Callable[..., Any], given: object) -> bool:
    """Say whether each key of what a function returns is a result of its own: as told, else by its annotation."""
    if given is not None:
        if not isinstance(given, bool):
            raise DagError(f"multiple_outputs is {given!r}; use True or False")
        return given
    kind: Any = getattr(function, "__annotations__", {}).get("return")
    if isinstance(kind, str):
        import typing  # only for a file whose annotations are texts

        try:
            kind = typing.get_type_hints(function).get("return")
        except Exception:  # such as a name that is imported for type checkers only
            return False
    kind = getattr(kind, "__origin__", kind)
    return isinstance(kind, type) and issubclass(kind, Mapping)


def has_several(task: Any) -> bool:
    """Say whether each key of what a task returns is a result of its own."""
    function = getattr(getattr(task, "partial_of", None), "function", task)
    return bool(getattr(function, "multiple_outputs", False))


def check_outputs(task_id: str, value: object) -> None:
    """Raise TypeError unless what such a task has returned is a dict with texts as keys, or None."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{task_id} returned {type(value).__name__} where its annotation, or multiple_outputs=True, says a dict; "
            "return one, or use multiple_outputs=False"
        )
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{task_id} returned a dict with the key {key!r}; with multiple outputs keys are texts")
