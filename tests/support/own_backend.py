"""A backend of somebody's own, as `[state_store] backend` names one."""

from __future__ import annotations

from typing import Any

from outlast.backends import Backend
from outlast.backends.sqlite import SQLiteBackend


class Counting(SQLiteBackend):
    """Counts what it is asked."""

    asked = 0

    def send(self, request: Any) -> Any:
        Counting.asked += 1
        return super().send(request)


class Minimal(Backend):
    """Has only what must be there; answers with its own question."""

    def __init__(self, url: str, config: Any, clock: Any) -> None:
        self.url = url

    def send(self, request: Any) -> Any:
        return request

    def close(self) -> None:
        pass


class NotABackend:
    """Derives from nothing."""
