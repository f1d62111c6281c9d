"""Places a store can live in, one class a backend: what the conformance suite is run on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import apsw
import msgspec
import psycopg

from outlast import Store, connect
from outlast.config import ClientSettings, Config, StateStoreSettings
from outlast.values import Clock

from .postgres import server
from .servers import house


class Home(Protocol):
    """A place for one store, empty at first; it can be opened several times and at the same time."""

    def open(self, config: Config, clock: Clock) -> Store: ...

    def close(self) -> None: ...

    def rows(self) -> dict[str, int]:
        """Count the rows of every table."""
        ...


class SQLiteHome:
    """A SQLite file in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"

    def open(self, config: Config, clock: Clock) -> Store:
        return connect(self.path, config=config, clock=clock)

    def close(self) -> None:
        pass

    def rows(self) -> dict[str, int]:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            names = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
            return {name: connection.execute(f'select count(*) from "{name}"').get for (name,) in names}
        finally:
            connection.close()


class HTTPHome(SQLiteHome):
    """The same behind a server: each time it is opened, by an application with those settings."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.served: list[str] = []

    def open(self, config: Config, clock: Clock) -> Store:
        url, token = house().move_in(super().open(config, clock))
        self.served.append(url)
        client = ClientSettings(retry_for=0.0, token=token)
        return connect(url, config=msgspec.structs.replace(config, client=client), clock=clock)

    def close(self) -> None:
        for url in self.served:
            house().move_out(url)


class PostgresHome:
    """A schema of its own in the session's PostgreSQL."""

    count = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self.schema = f"home{next(self.count)}"
        self.url = f"{server().url}?schema={self.schema}"

    def open(self, config: Config, clock: Clock) -> Store:
        return connect(self.url, config=config, clock=clock)

    def rows(self) -> dict[str, int]:
        with psycopg.connect(server().url, autocommit=True) as connection:
            found = connection.execute("select tablename from pg_tables where schemaname = %s", (self.schema,))
            counts = {name: f'select count(*) from {self.schema}."{name}"' for (name,) in found.fetchall()}
            return {name: connection.execute(count).fetchone()[0] for name, count in counts.items()}  # type: ignore[index]

    def close(self) -> None:
        with psycopg.connect(server().url, autocommit=True) as connection:
            connection.execute(f"drop schema if exists {self.schema} cascade")


HOMES: dict[str, Callable[[Path], Home]] = {"sqlite": SQLiteHome, "http": HTTPHome, "postgres": PostgresHome}


def settings(*, durability: Literal["full", "process"] = "process", **state_store: Any) -> Config:
    """Return settings as a test wants them; durable against power loss only where that is the subject."""
    return Config(state_store=StateStoreSettings(durability=durability, **state_store))
