"""`GET /api/outlast/v1/find`: entries across scopes, by names, times, sizes, and conditions on their values.

Values are looked at in a thread, a page at a time, so that whoever else asks something is answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from starlette.responses import Response

from ..errors import InvalidValue
from ..finding import find_rows
from ..plans import Plan
from ..requests import Find, FindPage, FoundRow
from . import entries
from .bodies import in_thread, size
from .entries import entry_shape, hides
from .execution import LONG
from .operations import Call, Parameter, answer
from .outlast_shapes import FoundEntry, FoundPage
from .outlast_state import LIMIT, OPERATIONS, REFUSALS, REVEAL, scope_shape
from .turns import asker_of, turns_of

__all__ = ["find_entries"]


def _pattern(name: str, help: str) -> Parameter:
    return Parameter(name, str, help + "; a name, or a pattern with `*`, `?` and `[…]`.", None)


_SECONDS = entries.Seconds
_CRITERIA = (
    _pattern("dag", "Id of the DAG"),
    _pattern("run", "Id of the run"),
    _pattern("task", "Id of the task"),
    _pattern("key", "The key"),
    Parameter(
        "where", str, 'Condition on the value: `$.rows > 100`, `$.state == "done"`; a path alone: it exists.', None
    ),
    Parameter("older_than", _SECONDS, "Written at least so many seconds ago.", None),
    Parameter("newer_than", _SECONDS, "Written at most so many seconds ago.", None),
    Parameter("expiring_within", _SECONDS, "Expires within so many seconds.", None),
    Parameter("min_bytes", entries.Whole, "At least so many bytes of JSON.", None),
    Parameter("max_bytes", entries.Whole, "At most so many bytes of JSON.", None),
    Parameter("assets", bool, "Search assets instead of tasks.", False),
    LIMIT,
    REVEAL,
)
#: Searches that look at values at the same time, one of each asker; bytes of values that are found at most.
_SEARCHES, _MOST_FOUND = 2, 16 * 1024 * 1024


@OPERATIONS.declare("GET", "/find", tag="Across scopes", parameters=_CRITERIA, answers={200: FoundPage, **REFUSALS})
async def find_entries(call: Call) -> Response:
    """Find entries across scopes for which everything asked holds, by scope and key.

    A condition on the value or its size holds for no masked entry, so nothing is learnt of it. The search ends, too,
    when what it has found is more than 16 MiB of values.
    """
    criteria = dict(call.query)
    _, limit = criteria.pop("reveal"), criteria.pop("limit")
    by_value = any(criteria[name] is not None for name in ("where", "min_bytes", "max_bytes"))
    for name in ("older_than", "newer_than", "expiring_within"):
        if criteria[name] is not None:
            criteria[name] = timedelta(seconds=criteria[name])
    try:
        plan = find_rows(call.store.clock, limit=limit, most_bytes=_MOST_FOUND, **criteria)
        found = await _searched(call, plan, by_value)
    except (ValueError, TypeError) as error:
        raise InvalidValue(str(error)) from None
    return await in_thread(_bytes(found), _found_page, call, found, limit)


async def _searched(call: Call, plan: Plan[list[FoundRow]], by_value: bool) -> list[FoundRow]:
    """Have a search done, without masked entries where it is by value; what takes long in it is done in a thread."""
    step = _step(plan, None)
    while isinstance(step, Find):
        page: FindPage = await call.ask(step)
        rows = [found for found in page.rows if not (by_value and hides(call, found.row.name))]
        bytes_of_page, reply = _bytes(rows), FindPage(tuple(rows), page.after)
        if bytes_of_page <= LONG:
            step = _step(plan, reply)
        else:
            async with turns_of(call, "search", _SEARCHES).turn(asker_of(call)):
                step = await asyncio.to_thread(_step, plan, reply)
    return step


def _step(plan: Plan[list[FoundRow]], reply: FindPage | None) -> Find | list[FoundRow]:
    """Have a plan look at a page; return what it asks next, or what it has found."""
    try:
        asked: Find = plan.send(reply)
    except StopIteration as stop:
        found: list[FoundRow] = stop.value
        return found
    return asked


def _bytes(rows: Iterable[FoundRow]) -> int:
    return sum(size(found.row) for found in rows)


def _found_page(call: Call, rows: list[FoundRow], limit: int) -> Response:
    shapes = [FoundEntry(scope_shape(found.scope), entry_shape(call, found.row, found.scope_id)) for found in rows]
    return answer(FoundPage(shapes, len(rows) == limit or _bytes(rows) > _MOST_FOUND))
