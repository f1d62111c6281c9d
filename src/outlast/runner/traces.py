"""Tracebacks as people read them: they begin where the user's code does, also those of the causes of an error."""

from __future__ import annotations

import logging
import os
import traceback
from types import TracebackType
from typing import Any

from ..dags.outcomes import TaskError
from ..errors import OutlastError
from . import board

__all__ = ["Formatter", "trace_of"]

_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: What may stand between outlast's code and the user's.
_BETWEEN = os.path.join(os.path.dirname(traceback.__file__), "asyncio") + os.sep


def trace_of(error: BaseException) -> str:
    """Return a traceback without the frames of outlast that lead to the user's code, ending with a newline.

    What outlast itself raises to say something ends at the line of the user's that it is about; it has no frames at
    all where no code of the user's is in it.
    """
    shown = traceback.TracebackException.from_exception(error)
    _trim(shown, error, set())
    return "".join(shown.format())


def _trim(shown: traceback.TracebackException, error: BaseException, seen: set[int]) -> None:
    if id(error) in seen:
        return
    seen.add(id(error))
    led = _leading(error.__traceback__)
    if led < len(shown.stack):
        del shown.stack[:led]
        while isinstance(error, OutlastError) and shown.stack[-1].filename.startswith(_OWN):
            del shown.stack[-1]
    elif isinstance(error, OutlastError | TaskError):
        shown.stack.clear()
    shown.stack[:] = [frame for frame in shown.stack if frame.filename != board.__file__]  # in between
    for part, its in ((shown.__cause__, error.__cause__), (shown.__context__, error.__context__)):
        if part is not None and its is not None:
            _trim(part, its, seen)
    for part, its in zip(shown.exceptions or (), getattr(error, "exceptions", ()), strict=False):
        _trim(part, its, seen)


def _leading(trace: TracebackType | None) -> int:
    """Return how many frames there are before the user's code: outlast's, and those of asyncio after them."""
    count = 0
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not (name.startswith(_OWN) or (count and name.startswith(_BETWEEN))):
            break
        count, trace = count + 1, trace.tb_next
    return count


class Formatter(logging.Formatter):
    """Formats what is logged in a task's or a trigger's log, tracebacks as above."""

    def formatException(self, ei: Any) -> str:
        return trace_of(ei[1]).rstrip("\n") if ei[1] is not None else super().formatException(ei)
