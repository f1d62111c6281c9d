"""Everything here needs the server extra."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and no others: the hook is told of all."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.http)
