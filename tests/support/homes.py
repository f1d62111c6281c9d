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

from .clock import Clock as ShownClock
from .postgres import server
from .restarting import RestartingServer, Shared
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


class ServedHome:
    """A home behind a server: each time it is opened, by an application with those settings."""

    def __init__(self, behind: Home) -> None:
        self.behind = behind
        self.served: list[str] = []

    def open(self, config: Config, clock: Clock) -> Store:
        url, token = house().move_in(self.behind.open(config, clock))
        self.served.append(url)
        return connect(url, config=_as_client(config, token, retry_for=0.0), clock=clock)

    def rows(self) -> dict[str, int]:
        return self.behind.rows()

    def close(self) -> None:
        for url in self.served:
            house().move_out(url)
        self.behind.close()


class RestartingHome(SQLiteHome):
    """A SQLite file behind a server that is killed and begins anew every few moments, also in the middle of a call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shared = Shared(str(folder / "shared"))
        self.servers: list[RestartingServer] = []

    def open(self, config: Config, clock: Clock) -> Store:
        assert isinstance(clock, ShownClock)
        clock.share(self.shared.numbers)
        served = RestartingServer(str(self.path), config, self.shared)
        self.servers.append(served)
        return connect(served.url, config=_as_client(config, served.token, retry_for=60.0), clock=clock)

    def close(self) -> None:
        for each in self.servers:
            each.close()


def _as_client(config: Config, token: str, *, retry_for: float) -> Config:
    return msgspec.structs.replace(config, client=ClientSettings(retry_for=retry_for, token=token))


HOMES: dict[str, Callable[[Path], Home]] = {
    "sqlite": SQLiteHome,
    "http": lambda folder: ServedHome(SQLiteHome(folder)),
    "postgres": PostgresHome,
    "http_postgres": lambda folder: ServedHome(PostgresHome(folder)),
    "restarting": RestartingHome,
}
#: What a test on a home needs: marks by the home's name.
NEEDS = {"http": ("http",), "postgres": ("postgres",), "http_postgres": ("http", "postgres"), "restarting": ("http",)}


def settings(*, durability: Literal["full", "process"] = "process", **state_store: Any) -> Config:
    """Return settings as a test wants them; durable against power loss only where that is the subject."""
    return Config(state_store=StateStoreSettings(durability=durability, **state_store))
