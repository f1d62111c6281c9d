"""Opens stores on one home, with one clock, in one colour."""

from __future__ import annotations

import asyncio
from typing import Any

from .clock import Clock
from .homes import Home, settings
from .verbs import Verbs


class World:
    """Opens stores on one home, with one clock, in one colour."""

    def __init__(self, home: Home, clock: Clock, runner: asyncio.Runner | None) -> None:
        self.home, self.clock, self.runner = home, clock, runner
        self.opened: list[Verbs] = []

    def open(self, **state_store: Any) -> Verbs:
        """Open the store (once more, maybe with other settings)."""
        store = Verbs(self.home.open(settings(**state_store), self.clock), self.runner)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()
