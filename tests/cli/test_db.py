"""`outlast db`: the schema of a store, looked at and brought forward."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from outlast import connect
from outlast.cli import main

NEWEST = len(list(Path(__file__).parents[2].glob("src/outlast/backends/schema/sqlite_*.sql")))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def test_a_file_that_is_not_there_has_no_schema(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "current", "--store", path]) == 0
    assert capsys.readouterr().out == "0\n"
    assert main(["db", "check", "--store", path]) == 78
    assert "run `outlast db upgrade`" in capsys.readouterr().err
    assert not Path(path).exists()


def test_upgrade_makes_a_store_and_then_has_nothing_to_do(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "upgrade", "--store", path]) == 0
    assert capsys.readouterr().out == f"{path}: schema version {NEWEST}\n"
    assert main(["db", "upgrade", "--store", path]) == 0
    assert capsys.readouterr().out == f"{path}: schema version {NEWEST} already\n"
    assert main(["db", "check", "--store", path]) == 0
    with connect(path) as store:
        store.task("d/r/t").set("x", 1)


def test_current_as_json(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    connect(path).close()
    assert main(["db", "current", "--json", "--store", path]) == 0
    assert json.loads(capsys.readouterr().out) == {"store": path, "version": NEWEST, "needed": NEWEST}


def test_a_schema_changed_by_hand_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    connect(path).close()
    connection = apsw.Connection(path)
    connection.execute("update meta set content = 'x' where name = 'schema_checksum'")
    connection.close()
    assert main(["db", "check", "--store", path]) == 78
    assert "changed by hand" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", ":memory:"])
def test_other_places_have_no_schema_of_ours(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "current", "--store", url]) == 78
    assert "is not a database" in capsys.readouterr().err
