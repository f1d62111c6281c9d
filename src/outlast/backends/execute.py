"""What SQL modules need of a database: run a statement in the open transaction, and how its dialect differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

__all__ = ["SQLITE", "Dialect", "Execute", "Overtaken"]

#: execute(sql with ? marks, parameters) -> rows as tuples
Execute: TypeAlias = Callable[[str, Sequence[Any]], list[Any]]


class Dialect(msgspec.Struct, frozen=True):
    """Where databases differ; as it is here, SQLite's, where a transaction that writes is alone.

    `order` is that in which task instances were made.

    `lock` locks the rows selected, `skip` as well but passes over locked ones. `joined` reads named entries
    together with their scope, where a statement costs a journey. `alone` is a statement that makes whoever runs it
    with the same text wait for each other until the transaction's end; `alone_now` does not wait, but says whether
    one is alone. `number` are the columns that order the feed, with what selects them and a mark for each; `settled`
    leaves out what may still get a predecessor.
    """

    lock: str = ""
    skip: str = ""
    joined: bool = False
    order: str = "coalesce(task.place, scope.id)"
    alone: str | None = None
    alone_now: str | None = None
    number: tuple[str, ...] = ("number",)
    selected: str = "number"
    number_marks: str = "?"
    settled: str = ""


SQLITE = Dialect()


class Overtaken(Exception):
    """Another transaction has removed what this one was about to lock: it has to be begun anew."""
