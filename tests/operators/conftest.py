"""A job system of a test's own, and the state of one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import outlast
from support.http_jobs import Jobs


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    server = Jobs()
    yield server
    server.end()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[outlast.TaskState]:
    with outlast.connect(tmp_path / "s.db") as store:
        yield store.task("d/r/t", attempt="new")
