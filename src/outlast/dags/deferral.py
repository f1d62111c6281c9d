"""What is stored of a task that defers: checked while the task can still be told, in the process that defers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .. import codec
from ..errors import DagError, InvalidValue
from .arguments import check_call, did_you_mean, parameters_of, refuse_unknown
from .outcomes import TaskDeferred
from .task_functions import FunctionTask
from .triggers import ARGUMENTS_LIMIT, trigger_text

if TYPE_CHECKING:
    from .operators import BaseOperator

__all__ = ["StoredDeferral", "stored_deferral"]


class StoredDeferral(msgspec.Struct, frozen=True):
    """A deferral as texts: `timeout` is in seconds, the rest as `deferral_requests.Deferral` has it."""

    trigger_path: str
    trigger_kwargs: str
    next_method: str
    next_kwargs: str
    timeout: float | None


def stored_deferral(task: BaseOperator, deferred: TaskDeferred) -> StoredDeferral:
    """Return what to store of a deferral; DagError or InvalidValue where the task could not go on after it."""
    _check_method(task, deferred.method_name, deferred.kwargs)
    path, arguments = trigger_text(deferred.trigger)
    try:
        kwargs = codec.dump(deferred.kwargs, limit=ARGUMENTS_LIMIT).decode()
    except InvalidValue as error:
        raise type(error)(f"the kwargs of the deferral cannot be kept: {error.message}") from None
    timeout = deferred.timeout
    return StoredDeferral(
        path, arguments, deferred.method_name, kwargs, None if timeout is None else timeout.total_seconds()
    )


def _check_method(task: BaseOperator, name: object, kwargs: object) -> None:
    """Refuse a method that does not exist, or that cannot be called as it will be."""
    kind = type(task).__name__
    method = getattr(task, name, None) if isinstance(name, str) else None
    if not callable(method):
        hint = did_you_mean(name, dir(task)) if isinstance(name, str) else ""
        raise DagError(f"{kind} has no method {name!r} to go on with{hint}")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise DagError(f"the kwargs of the deferral are {kwargs!r}; use a dict whose keys are names")
    for taken in ("context", "event"):
        if taken in kwargs:
            raise DagError(f"the kwargs of the deferral have {taken!r}, which {name}() is given anyway; leave it out")
    call: dict[str, Any] = {**kwargs, "event": None}
    check_call(f"{kind}.{name}", parameters_of(method), (None,), call, frozenset())
    if name == "execute" and isinstance(task, FunctionTask) and not task.parameters.any_keyword:
        refuse_unknown(f"{task.task_id}()", kwargs, task.parameters.by_keyword)
