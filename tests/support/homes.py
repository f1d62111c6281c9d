"""Places a store can live in, one class a backend: what the conformance suite is run on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from outlast import Store, connect
from outlast.config import Config, StateStoreSettings
from outlast.values import Clock


class Home(Protocol):
    """A place for one store, empty at first; it can be opened several times and at the same time."""

    def open(self, config: Config, clock: Clock) -> Store: ...


class SQLiteHome:
    """A SQLite file in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"

    def open(self, config: Config, clock: Clock) -> Store:
        return connect(self.path, config=config, clock=clock)


HOMES: dict[str, type[SQLiteHome]] = {"sqlite": SQLiteHome}


def settings(*, durability: Literal["full", "process"] = "process", **state_store: Any) -> Config:
    """Return settings as a test wants them; durable against power loss only where that is the subject."""
    return Config(state_store=StateStoreSettings(durability=durability, **state_store))
