"""How far the task instances of a run are, from what `checkpoint` keeps under `progress`: one question for all."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from ..errors import NotFound
from ..requests import Find, FindPage, FoundRow
from ..values import TaskScope, check_id, moment
from .entries import hides
from .operations import Call, Parameter, answer
from .outlast_state import OPERATIONS, REFUSALS

__all__ = ["KEY", "ProgressShape", "RunProgressShape", "Stored", "stored"]

#: The key `checkpoint` writes, unless told otherwise.
KEY: Final = "progress"

_Whole = Annotated[int, msgspec.Meta(ge=0)]


class Stored(msgspec.Struct, frozen=True, rename={"begun_with": "from"}):
    """What is under the key: items done (of how many, if known), items a second, and done when the attempt began."""

    done: _Whole
    total: _Whole | None = None
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None
    begun_with: _Whole | None = None


class ProgressShape(msgspec.Struct, rename={"begun_with": "from"}):
    """How far one task instance is, and when it wrote that; null is what it does not say.

    `rate` is items a second, `from` how many were done when the attempt that wrote it began.
    """

    task_id: str
    map_index: int
    done: int
    total: int | None
    rate: float | None
    begun_with: int | None
    updated_at: datetime


class RunProgressShape(msgspec.Struct):
    """The task instances that say how far they are."""

    progress: list[ProgressShape]


def stored(value: str | bytes | msgspec.Raw) -> Stored | None:
    """Return what a value says of progress, None if it says something else."""
    try:
        return msgspec.json.decode(value, type=Stored)
    except msgspec.MsgspecError:
        return None


_TASK_ID = Parameter("task_id", str, "Only instances of this task.", None)


@OPERATIONS.declare(
    "GET",
    "/runs/{dag_id}/{run_id}/progress",
    tag="Runs",
    parameters=(_TASK_ID,),
    answers={200: RunProgressShape, **REFUSALS},
)
async def get_progress(call: Call) -> Response:
    """Say how far the task instances of a run are, as far as they store it under `progress`, as checkpoints do."""
    dag_id, run_id = check_id(call.places["dag_id"], "dag_id"), check_id(call.places["run_id"], "run_id")
    if not call.who.may_see(dag_id):
        raise NotFound(f"there is no run {dag_id}/{run_id}; `outlast runs ls` lists those there are")
    found: list[ProgressShape] = []
    after: tuple[int, str] | None = None
    while True:
        asked = Find(dag_id, run_id, call.query["task_id"], after=after, name=KEY)
        page: FindPage = await call.ask(asked)
        if not hides(call, KEY):
            found += [shape for row in page.rows if (shape := _shape(row)) is not None]
        after = page.after
        if after is None:
            return answer(RunProgressShape(found))


def _shape(found: FoundRow) -> ProgressShape | None:
    scope, told = found.scope, stored(found.row.text or "null")
    if told is None or not isinstance(scope, TaskScope):
        return None
    at = moment(found.row.updated_at)
    return ProgressShape(scope.task_id, scope.map_index, told.done, told.total, told.rate, told.begun_with, at)
