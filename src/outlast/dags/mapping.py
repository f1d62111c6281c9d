"""Mapped tasks: one instance for each item of a list, which may be known only in a run."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..errors import DagError, InvalidKey
from ..values import TaskScope, checked_scope, moment
from .context import RETURN_VALUE, Context, DagRun, TaskInstance, resolve
from .graph import collect
from .operators import BaseOperator
from .references import Reference, Result

if TYPE_CHECKING:
    from .partials import Partial

__all__ = ["MAX_ITEMS", "MapItem", "MappedTask", "check_item", "check_length", "in_short", "instance", "items"]

#: Instances a task may be mapped to: each is a row that is looked at whenever its run is.
MAX_ITEMS = 10_000

#: Answers as `Results.pull` does: (task id, map index, value) of what tasks of the run have left under a name.
Pull: TypeAlias = Callable[[Sequence[str], str, Sequence[int] | None], Sequence[tuple[str, int, Any]]]

_ADDRESS = re.compile(r"\bat 0x[0-9A-Fa-f]+")


class MappedTask(BaseOperator):
    """Stands in a DAG for all instances of a task; `.output` is the list of their results, in the items' order.

    `values` are the lists given to `expand` by argument, or the one list given to `expand_kwargs`; `constant` is
    what every instance is given besides, `made_with` their options.
    """

    mapped = True

    def __init__(
        self,
        *,
        partial_of: Partial,
        constant: dict[str, Any],
        values: Any,
        strict: bool,
        made_with: dict[str, Any],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.partial_of, self.constant, self.values, self.strict = partial_of, constant, values, strict
        self.made_with = made_with
        self.operator_class = partial_of.operator_class

    def execute(self, context: Context) -> Any:
        raise DagError(f"task {self.task_id!r} is mapped: its instances run, it does not")

    def expand(self, **values: Any) -> Any:
        """Refuse, because it is expanded."""
        raise DagError(f"task {self.task_id!r} is expanded already; give all its lists to one expand()")

    expand_kwargs = expand


class MapItem(msgspec.Struct, frozen=True):
    """What one instance is for: a digest of its arguments ("" where none can be made), and its key by `map_key`."""

    digest: str
    key: str | None = None


def items(task: BaseOperator, pull: Pull, params: Mapping[str, Any] | None = None) -> list[MapItem]:
    """Return what a mapped task is mapped over in a run whose results and parameters are these.

    Raises DagError for what cannot be mapped over, an argument no instance takes, and two items with equal keys.
    """
    mapped = _as_mapped(task)
    run = DagRun("" if mapped.dag is None else mapped.dag.dag_id, "", moment(0), dict(params or {}))
    rows = _Rows(mapped, TaskInstance(mapped, run, -1, 0, _Results(pull)))
    found = [MapItem(_digest(rows[index]), rows.key(index)) for index in range(len(rows))]
    _refuse_twins(mapped, found)
    return found


def instance(
    task: BaseOperator, map_index: int, ti: TaskInstance, *, key: str | None = None, digest: str | None = None
) -> BaseOperator:
    """Return the task that does the work for one item, with results and parameters of the run put in.

    The item is the one with that key, else the one at that position; DagError if it is there no more, or is not
    the one of that digest.
    """
    mapped = _as_mapped(task)
    rows = _Rows(mapped, ti)
    arguments = rows[rows.place(map_index, key, digest)]
    constant = resolve(mapped.constant, ti, required=rows.required)
    with collect():
        made = mapped.partial_of.make(mapped.made_with, {**constant, **arguments})
    made.dag, made._upstream, made._downstream = mapped.dag, mapped._upstream, mapped._downstream
    return made


def _as_mapped(task: BaseOperator) -> MappedTask:
    if not isinstance(task, MappedTask):
        raise DagError(f"task {task.task_id!r} is not mapped any more, but its run has instances of it; map it again")
    return task


def _refuse_twins(task: MappedTask, found: Sequence[MapItem]) -> None:
    places: dict[str, int] = {}
    for place, item in enumerate(found):
        if item.key is not None and places.setdefault(item.key, place) != place:
            raise DagError(
                f"map_key of task {task.task_id!r} gives {item.key!r} for items {places[item.key]} and {place}; "
                "make the keys differ"
            )


class _Results:
    """Results of a run for a task that has not begun, so has none of its own."""

    def __init__(self, pull: Pull) -> None:
        self.pull = pull

    def push(self, name: str, value: Any) -> None:
        raise TypeError("a task that has not begun has no results")


# --- The arguments of each instance ----------------------------------------------------------------------------


class _Product:
    """The cross product of lists, the first of which changes slowest; the items of a dict are pairs."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = {
            name: list(column.items()) if isinstance(column, dict) else column for name, column in columns.items()
        }

    def __len__(self) -> int:
        return math.prod(map(len, self.columns.values()))

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {}
        for name, column in reversed(self.columns.items()):
            index, place = divmod(index, len(column))
            row[name] = column[place]
        return {name: row[name] for name in self.columns}


class _Rows:
    """What differs between the instances of a mapped task in one run: the arguments of each."""

    def __init__(self, task: MappedTask, ti: TaskInstance) -> None:
        self.task, self.ti, self.required = task, ti, task.trigger_rule == "all_success"
        self.by_argument = isinstance(task.values, dict)
        self.checked: set[tuple[str, ...]] = set()
        self.rows: Any
        if self.by_argument:
            self.rows = _Product({name: self._listed(value) for name, value in task.values.items()})
        else:
            self.rows = self._listed(task.values)
        check_length(f"task {task.task_id!r}", len(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = resolve(self.rows[index], self.ti, required=self.required)
        if not self.by_argument and not (isinstance(row, dict) and tuple(row) in self.checked):
            check_item(self.task, index, row)
            self.checked.add(tuple(row))
        return dict(row)

    def _listed(self, value: Any) -> Any:
        """Return what to map over, where it is known only in the run too."""
        if not isinstance(value, Reference):
            return value
        if self._was_skipped(value):
            return []
        found = resolve(value, self.ti)
        if isinstance(found, list) or (isinstance(found, dict) and self.by_argument):
            return found
        wanted = "a list or a dict" if self.by_argument else "a list of dicts"
        raise DagError(
            f"task {self.task.task_id!r} is mapped over {value!r}, which is {in_short(found)}; it must be {wanted}"
        )

    def _was_skipped(self, value: Reference) -> bool:
        """Say whether there is nothing to map over because the task it comes from was skipped, which is allowed."""
        if self.task.trigger_rule != "none_failed" or not isinstance(value, Result):
            return False
        return not self.ti.results.pull((value.task.task_id,), RETURN_VALUE, None)

    def place(self, map_index: int, key: str | None, digest: str | None) -> int:
        """Return the position of the item an instance is for."""
        here = f"the item of {self.task.task_id}/{key or map_index}"
        hint = "put it back, or start a new run"
        if key is None:
            if map_index >= len(self):
                raise DagError(f"{here} is there no more, what it is mapped over has {len(self)} items; {hint}")
            if digest and _digest(self[map_index]) != digest:
                raise DagError(f"{here} is not the one this run has begun with; {hint}")
            return map_index
        if map_index < len(self) and self.key(map_index) == key:
            return map_index
        found = next((place for place in range(len(self)) if self.key(place) == key), None)
        if found is None:
            raise DagError(f"{here} is there no more; {hint}")
        return found

    def key(self, index: int) -> str | None:
        """Return the key of the item at a position; None where state goes by position."""
        if self.task.map_key is None:
            return None
        row = self[index]
        item = next(iter(row.values())) if self.by_argument and len(row) == 1 else row
        what = f"map_key of task {self.task.task_id!r}, item {index}"
        try:
            key = _key(self.task.map_key, item, row)
        except Exception as error:
            raise DagError(f"{what}: {type(error).__name__}: {error}; the item is {in_short(item)}") from error
        try:
            checked_scope(TaskScope("dag", "run", "task", index, key))
        except InvalidKey as error:
            raise DagError(f"{what}: {error.message}") from None
        return key


def _key(wanted: Any, item: Any, row: dict[str, Any]) -> str:
    """Return what a function or a template makes of an item; a number as text."""
    if isinstance(wanted, str):
        own = item if isinstance(item, dict) and all(isinstance(name, str) for name in item) else {}
        return wanted.format(item, **{**own, "item": item, **row})
    key = wanted(item)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if not isinstance(key, str):
        raise TypeError(f"it gives {in_short(key)}, which is neither text nor a whole number")
    return key


def check_item(task: MappedTask, index: int, item: Any) -> None:
    """Raise DagError unless an item of `expand_kwargs` is a dict of arguments an instance takes."""
    what = f"task {task.task_id!r}, item {index}"
    if not isinstance(item, Mapping) or not all(isinstance(name, str) for name in item):
        raise DagError(f"{what} is {in_short(item)}; expand_kwargs() takes dicts whose keys are names of arguments")
    try:
        if task.strict:
            task.partial_of.refuse_twice(item, "expand_kwargs()")
        task.partial_of.check({**task.constant, **item})
    except DagError as error:
        raise DagError(f"{what}: {error.message}") from None


def check_length(what: str, length: int) -> None:
    """Raise DagError for more instances than are allowed."""
    if length > MAX_ITEMS:
        raise DagError(
            f"{what} is mapped over {length:,} items; at most {MAX_ITEMS:,} are allowed: let each instance do several"
        )


def in_short(value: Any) -> str:
    """Return what a value looks like, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _digest(arguments: dict[str, Any]) -> str:
    """Return a digest that is the same in every process for equal arguments; "" where that cannot be made sure."""
    try:
        text = msgspec.json.encode(arguments, order="deterministic")
    except Exception:  # no JSON: whatever it is made of may raise what it likes
        try:
            shown = repr(sorted(arguments.items()))
        except Exception:
            return ""
        if _ADDRESS.search(shown):
            return ""
        text = shown.encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
