"""A store in a file of the test's own, as fixtures: a module takes those it needs by their names.

>>> path, store = sqlite_file.path, sqlite_file.store
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast import Store, connect

from .homes import settings

#: For tests that fork this process: it has threads, of which Python warns.
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the file is to be."""
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """Open the store there, not durable against power loss."""
    with connect(path, config=settings()) as store:
        yield store
