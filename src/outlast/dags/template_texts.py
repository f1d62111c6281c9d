"""Texts in a task's arguments that Airflow would render with Jinja: told, as outlast passes them on as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph import DAG
    from .operators import BaseOperator

__all__ = ["is_template", "notes"]

#: Characters of a text that are shown.
_SHOWN = 40


def is_template(value: object) -> bool:
    """Say whether a value is a text that Jinja would change."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def notes(dag: DAG) -> list[str]:
    """Return a line for each task of a DAG with such a text where Airflow would render it."""
    found = [(task.task_id, *_first(task)) for task in dag.tasks.values()]
    return [
        f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'} in {where} of task {task_id} is passed on as it is: "
        "outlast renders no templates; use the context in the task"
        for task_id, where, text in found
        if text
    ]


def _first(task: BaseOperator) -> tuple[str, str]:
    """Return where in a task such a text is and the text; two empty texts where there is none."""
    for where, value in _rendered(task):
        text = next(filter(is_template, _texts(value)), "")
        if text:
            return where, text
    return "", ""


def _rendered(task: BaseOperator) -> Iterator[tuple[str, Any]]:
    """Yield what Airflow renders of a task: a function's arguments, and what its class names in `template_fields`."""
    attributes: dict[str, Any] = vars(task)
    if not task.mapped:
        given = (*attributes.get("args", ()), *attributes.get("kwargs", {}).values()) if _is_function(task) else ()
        yield "the arguments", given
        yield from ((name, attributes.get(name)) for name in _fields(type(task)))
        return
    kind, values = attributes["operator_class"], attributes["values"]
    rows = [values] if isinstance(values, dict) else values if isinstance(values, list) else []
    for arguments in (attributes["constant"], *(row for row in rows if isinstance(row, dict))):
        if _is_function(task):
            yield "the arguments", arguments
        yield from ((name, arguments[name]) for name in _fields(kind) if name in arguments)


def _is_function(task: BaseOperator) -> bool:
    from .task_functions import FunctionTask

    return issubclass(getattr(task, "operator_class", type(task)), FunctionTask)


def _fields(kind: Any) -> tuple[str, ...]:
    fields = getattr(kind, "template_fields", ())
    return tuple(fields) if isinstance(fields, Sequence) and not isinstance(fields, str) else ()


def _texts(value: Any) -> Iterator[Any]:
    """Yield what is in a value, also inside lists, tuples and dicts."""
    rest, seen = [value], set[int]()
    while rest:
        item = rest.pop()
        if isinstance(item, Mapping | list | tuple):
            if id(item) not in seen:
                seen.add(id(item))
                rest.extend(reversed(list(item.values() if isinstance(item, Mapping) else item)))
        else:
            yield item
