"""Which job each resumable task of a run has elsewhere: one question for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from glob import escape
from typing import Final

import msgspec

from ..explaining import job_key
from .asking import path_of
from .rendering import View
from .shapes import Entry, Found

__all__ = ["Job", "jobs_of"]

#: Ids of jobs that are looked for at most; those of the indexes of mapped tasks are among them.
_MOST: Final = 1000
#: Characters of an id that are told.
_SHOWN: Final = 40


class Job(msgspec.Struct, frozen=True):
    """A job by its id (None: that is secret), and when that was stored."""

    name: str | None
    at: datetime


async def jobs_of(view: View, dag: str, run: str) -> dict[str, Job]:
    """Return the jobs of tasks that are not mapped, by task."""
    asked = [("dag", escape(dag)), ("run", escape(run)), ("key", "*job_id"), ("limit", _MOST)]
    by_task: dict[str, dict[str, Entry]] = {}
    for one in (await view.api.get(path_of("find"), Found, asked)).found:
        if one.scope.map_index == -1:
            by_task.setdefault(str(one.scope.task_id), {})[one.entry.key] = one.entry
    return dict(_chosen(by_task))


def _chosen(by_task: dict[str, dict[str, Entry]]) -> Iterator[tuple[str, Job]]:
    for task, entries in by_task.items():
        key = job_key(entries)
        if key is not None:
            yield task, Job(None if entries[key].masked else _name(entries[key].value), entries[key].updated_at)


def _name(value: msgspec.Raw) -> str:
    """Return an id as people tell jobs apart: of an object the longest text in it, of a long one its end."""
    name = max(_texts(value), key=len, default=bytes(value).decode())
    return name if len(name) <= _SHOWN else "…" + (name.rpartition("/")[2] or name)[-_SHOWN:]


def _texts(value: msgspec.Raw) -> list[str]:
    try:
        match bytes(value)[:1]:
            case b'"':
                return [msgspec.json.decode(value, type=str)]
            case b"{":
                parts = msgspec.json.decode(value, type=dict[str, msgspec.Raw]).values()
                return [msgspec.json.decode(part, type=str) for part in parts if bytes(part).startswith(b'"')]
    except msgspec.MsgspecError:
        pass  # it is told as it stands
    return []
