"""A store in memory for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import outlast
from outlast.testing import memory_store


@pytest.fixture
def store() -> Iterator[outlast.Store]:
    with memory_store() as opened:
        yield opened
