"""Stores to back up and to restore into, of every kind that is a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast import Store
from outlast.values import system_clock
from support.everything import fill
from support.homes import Home, PostgresHome, SQLiteHome, settings

HOMES = [pytest.param(SQLiteHome, id="sqlite"), pytest.param(PostgresHome, id="postgres", marks=pytest.mark.postgres)]
NEW_HOMES = pytest.mark.parametrize("other", HOMES)


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Callable[[Callable[[Path], Home]], Home]]:
    """Make places for stores."""
    made_homes: list[Home] = []

    def make(kind: Callable[[Path], Home]) -> Home:
        folder = tmp_path / f"home{len(made_homes)}"
        folder.mkdir()
        made_homes.append(kind(folder))
        return made_homes[-1]

    yield make
    for home in made_homes:
        home.close()


@pytest.fixture
def open_new(homes: Any) -> Iterator[Callable[[Callable[[Path], Home]], Store]]:
    """Open new stores."""
    stores: list[Store] = []

    def open_it(kind: Callable[[Path], Home] = SQLiteHome) -> Store:
        stores.append(homes(kind).open(settings(), system_clock))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


@pytest.fixture(params=HOMES)
def full(request: pytest.FixtureRequest, open_new: Any) -> Store:
    """A store with something in every table."""
    store: Store = open_new(request.param)
    fill(store)
    return store
