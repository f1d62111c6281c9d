"""Values that are known only in a run: a task's result, a run's parameter; and finding and replacing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import DagError
from .links import Linked

if TYPE_CHECKING:
    from .operators import BaseOperator

__all__ = ["Parameter", "Reference", "Result", "references", "replaced"]


class Reference:
    """Stands for a value while a DAG is defined; a task it is passed to gets the value itself."""

    __slots__ = ()

    def _too_early(self) -> NoReturn:
        raise DagError(f"{self!r} is known only in a run; pass it to a task as an argument and use it there")

    # Without these, a DAG file would quietly go by the reference instead of the value.
    def __bool__(self) -> bool:
        self._too_early()

    def __iter__(self) -> Iterator[Any]:
        self._too_early()

    def __len__(self) -> int:
        self._too_early()

    def __format__(self, spec: str) -> str:
        self._too_early()


#: What one might want to call of a result, and what to do instead.
_NOT_OF_RESULTS = {
    "expand": "it is made of the function: function.expand(x=[…]), with all lists at once",
    "expand_kwargs": "it is made of the function: function.expand_kwargs([…])",
    "partial": "it is made of the function: function.partial(y=…).expand(x=[…])",
    "map": "do it in the task that uses the items, or in one between the two",
    "zip": "zip the lists in a task of their own, and give expand_kwargs() the result",
    "concat": "join the lists in a task of their own",
}


class Result(Reference, Linked):
    """What a task will return. `result["key"]` and `result[0]` stand for a part of it."""

    __slots__ = ("path", "task")

    def __init__(self, task: BaseOperator, path: tuple[str | int, ...] = ()) -> None:
        self.task, self.path = task, path

    def __getitem__(self, step: str | int) -> Result:
        if isinstance(step, bool) or not isinstance(step, str | int):
            raise DagError(f"{self!r} has no part {step!r}; use the key of a dict or the position in a list")
        return Result(self.task, (*self.path, step))

    def __getattr__(self, name: str) -> Any:
        hint = _NOT_OF_RESULTS.get(name)
        if hint is None:
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        raise DagError(f"{self!r} has no {name}(); {hint}")

    def linked(self) -> BaseOperator:
        return self.task

    def __repr__(self) -> str:
        part = "".join(f"[{step!r}]" for step in self.path)
        return f"<result of {self.task.task_id}{part}>"


class Parameter(Reference):
    """A parameter of the run: what the arguments of a function under `@dag` are."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<parameter {self.name}>"


def references(value: Any) -> list[Reference]:
    """Find the references in a value, also inside lists, tuples and dicts, in order of appearance."""
    found: list[Reference] = []
    rest, seen = [value], set()
    while rest:
        item = rest.pop()
        if isinstance(item, Reference):
            found.append(item)
        elif type(item) in (list, tuple, dict) and id(item) not in seen:
            seen.add(id(item))
            rest.extend(reversed(list(item.values()) if type(item) is dict else item))
    return found


def replaced(value: Any, replace: Callable[[Reference], Any]) -> Any:
    """Return a value with its references replaced; one without any is returned as it is."""
    return _replaced(value, replace) if references(value) else value


def _replaced(value: Any, replace: Callable[[Reference], Any]) -> Any:
    if isinstance(value, Reference):
        return replace(value)
    if type(value) is dict:
        return {key: _replaced(item, replace) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, replace) for item in value)
    return value
