"""Which version the schema of a store has, and bringing it forward, whatever database it is in."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ..config import Config, without_password
from ..errors import ConfigError
from . import file_of, open_backend

__all__ = ["Schema", "schema_of", "upgrade"]


class Schema(msgspec.Struct, frozen=True):
    """The version a store's schema has (0: there is none yet), and the one this outlast needs."""

    store: str
    version: int
    needed: int


def schema_of(url: str, config: Config) -> Schema:
    """Look at a store's schema and change nothing; ConfigError where it is newer, or was changed by hand."""
    path = file_of(url, config)
    if path is not None:
        return _of_file(path)
    postgres_schema, place = _postgres(url, config)
    with postgres_schema.asked(place, config.client.retry_for) as connection:
        return Schema(str(place), postgres_schema.current(connection, place), len(postgres_schema.steps()))


def upgrade(url: str, config: Config) -> Schema:
    """Make a store's schema or bring it forward, also when several do so at once; return what it was before."""
    path = file_of(url, config)
    if path is not None:
        before = _of_file(path)
        open_backend(url, config, lambda: 0).close()
        return before
    postgres_schema, place = _postgres(url, config)
    with postgres_schema.asked(place, config.client.retry_for) as connection:
        before = postgres_schema.upgrade(connection, place)
    return Schema(str(place), before, len(postgres_schema.steps()))


def _of_file(path: str) -> Schema:
    from . import sqlite_file

    there = os.path.exists(path) and os.path.getsize(path) > 0
    return Schema(path, sqlite_file.current(path) if there else 0, len(sqlite_file.steps()))


def _postgres(url: str, config: Config) -> tuple[Any, Any]:
    scheme = url.partition(":")[0].lower().partition("+")[0]
    if config.state_store.backend is not None or scheme not in ("postgres", "postgresql"):
        raise ConfigError(
            f"{without_password(url)} is not a database; run this where the server or backend behind it keeps its "
            "store, naming that with --store"
        )
    from . import (
        postgres,  # noqa: F401  # for its message where the driver is missing
        postgres_schema,
    )

    return postgres_schema, postgres_schema.Place.of(url)
