"""Places of payloads, a folder and an object store, and rows of Airflow's that refer to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from outlast.integrations.airflow.payloads import Folder, ObjectStore, Payloads

from .payload_objects import Raising
from .rows_in_sqlite import SqliteRows


@pytest.fixture
def objects() -> Iterator[ObjectStore]:
    fsspec.register_implementation("raising", Raising, clobber=True)
    Raising.store.clear()
    Raising.failing.clear()
    yield ObjectStore("raising://bucket/state")
    Raising.failing.clear()


@pytest.fixture(params=["folder", "objects"])
def payloads(request: pytest.FixtureRequest, tmp_path: Path, objects: ObjectStore) -> Payloads:
    return Folder(str(tmp_path / "payloads")) if request.param == "folder" else objects


@pytest.fixture
def rows(tmp_path: Path) -> SqliteRows:
    return SqliteRows(tmp_path / "rows.db")
