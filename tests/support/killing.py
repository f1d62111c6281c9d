"""A backend that kills a process once, at a request named beforehand: the kill tests run on it.

`KILL_AT` is `before` or `after` (the answer), the request (a report with its outcome: `Report.success`), which
time this process sends it, and a task id or `-` for any: `after Begin 1 pages`. `KILL_ONCE` is a file that
says when it was done. `KILL_WHOM` is `me`, or `parent`: a child's parent is its supervisor.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from outlast.backends.sqlite import SQLiteBackend

_WHOM = {"me": os.getpid, "parent": os.getppid}


class KillingBackend(SQLiteBackend):
    """A store in a file, and a death at one point."""

    sent = 0

    def send(self, request: Any) -> Any:
        when, *point = os.environ.get("KILL_AT", "").split()
        if not self._is_meant(request, *point):
            return super().send(request)
        if when == "before":
            _kill()
        try:
            return super().send(request)
        finally:
            if when == "after":
                _kill()

    def _is_meant(self, request: Any, kind: str, time: str, task_id: str) -> bool:
        if kind != _kind(request) or task_id not in ("-", _task_id(request)):
            return False
        self.sent += 1
        return self.sent == int(time)


def _kind(request: Any) -> str:
    outcome = getattr(request, "outcome", None)
    return f"{type(request).__name__}.{outcome}" if outcome else type(request).__name__


def _task_id(request: Any) -> str | None:
    fence = getattr(request, "fence", None)
    scope = fence.scope if fence is not None else getattr(request, "scope", None)
    return getattr(scope, "task_id", None)


def _kill() -> None:
    try:
        with open(os.environ["KILL_ONCE"], "x") as once:
            once.write(str(time.time()))
    except FileExistsError:
        return
    os.kill(_WHOM[os.environ.get("KILL_WHOM", "me")](), signal.SIGKILL)
    if os.environ.get("KILL_WHOM") == "parent":
        time.sleep(30)  # until the death of the parent is ours
