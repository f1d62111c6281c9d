"""`outlast doctor`: which store is meant and why, what is wrong with it, and what to do; it changes nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import outlast

from .conftest import Told

Call = Callable[..., Told]


@pytest.fixture
def filled(place: str) -> Path:
    """A store with a few pages in it, closed."""
    with outlast.connect(place) as store:
        store.task("d/r/t").set_many({f"k{number}": "x" * 400 for number in range(200)})
    return Path(place)


def facts(told: Told) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in told.lines if "  " in line)
    return {name: fact.strip() for name, fact in pairs}


def test_a_store_that_is_well(call: Call, filled: Path) -> None:
    told = call("doctor")
    assert (told.status, told.err, told.lines[-1]) == (0, "", "All is well.")
    known = facts(told)
    assert known["outlast"] == outlast.__version__
    assert known["store"] == f"{filled} (named by OUTLAST_URL)"
    assert known["settings file"] == "none (no outlast.toml here or in a folder above)"
    assert (known["scopes"], known["entries"]) == ("1", "200")
    assert known["backend"].startswith("SQLite 3.")
    assert known["checked"] == "that it opens and reads (--deep: all of it)"
    assert facts(call("doctor", "--deep"))["checked"] == "everything that is stored"


def test_as_json(call: Call, filled: Path) -> None:
    told = call("doctor", "--json").json
    assert told["well"] is True
    assert told["store"] == {"url": str(filled), "origin": "OUTLAST_URL", "exists": True}
    assert (told["facts"]["entries"], told["problems"]) == ("200", [])


def test_who_named_the_store(call: Call, place: str, clean_env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts(call("doctor", "--store", "x.db"))["store"] == "x.db (named by --store)"
    monkeypatch.delenv("OUTLAST_URL")
    default = clean_env / "state" / "outlast" / "outlast.db"
    assert facts(call("doctor"))["store"] == f"{default} (the default, since none is named)"
    Path("outlast.toml").write_text('[store]\nurl = "mine.db"\n')
    told = facts(call("doctor"))
    toml = Path("outlast.toml").absolute()
    assert told["store"] == f"{toml.parent / 'mine.db'} (named by {toml})"
    assert told["settings file"] == str(toml)
    assert not default.parent.exists()


def test_a_store_that_does_not_exist_yet_is_not_created(call: Call, place: str) -> None:
    told = call("doctor")
    assert (told.status, told.lines[-1]) == (0, "All is well.")
    assert facts(told)["state"] == f"not created yet; the first write creates {place}"
    assert call("doctor", "--json").json["store"]["exists"] is False
    assert list(Path(place).parent.iterdir()) == []


def test_an_empty_file_is_not_made_a_store(call: Call, place: str) -> None:
    Path(place).touch()
    assert call("doctor").status == 0
    assert Path(place).stat().st_size == 0


def truncated(path: Path) -> None:
    os.truncate(path, 20_000)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def removed(path: Path) -> None:
    path.unlink()


def without_header(path: Path) -> None:
    _overwrite(path, 0, 100)


def torn(path: Path) -> None:
    _overwrite(path, path.stat().st_size - 3 * 4096, 3 * 4096)


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("create table theirs (a)")
    connection.close()


def newer(path: Path) -> None:
    _edit(path, "update meta set content = '99' where name = 'schema'")


def changed(path: Path) -> None:
    _edit(path, "update meta set content = 'x' where name = 'schema_checksum'")


def text(path: Path) -> None:
    path.write_text("not a database at all\n" * 50)


def _overwrite(path: Path, place: int, count: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\x5a" * count)


def _edit(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("damage", "status", "words", "remedy"),
    [
        (truncated, 69, "is damaged", "restore a backup"),
        (emptied, 69, "is gone or empty", "restore it from a backup"),
        (removed, 69, "is gone or empty", "restore it from a backup"),
        (without_header, 69, "is damaged", "restore a backup"),
        (torn, 69, "damaged", ""),
        (text, 69, "is damaged", "restore a backup"),
        (foreign, 78, "database of another program", "name another path"),
        (newer, 78, "written by a newer outlast", "upgrade outlast"),
        (changed, 78, "is not the one outlast made", "restore a backup"),
    ],
)
def test_what_is_wrong_is_said_and_not_repaired(
    call: Call, filled: Path, damage: Callable[[Path], None], status: int, words: str, remedy: str
) -> None:
    damage(filled)
    before = hashlib.sha256(filled.read_bytes()).hexdigest() if filled.exists() else None
    told = call("doctor", "--deep")
    problems = [line for line in told.lines if line.startswith("PROBLEM: ")]
    assert told.status == status, told
    assert any(words in problem and remedy in problem for problem in problems), problems
    assert "All is well." not in told.lines
    assert call("doctor", "--deep", "--json").json["problems"][0]["exit_code"] == status
    after = hashlib.sha256(filled.read_bytes()).hexdigest() if filled.exists() else None
    assert after == before
    assert call("state", "ls").status == status or damage is torn


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/no/such/folder/work.db", "the folder /no/such/folder does not exist; create it"),
        (".", "is a folder; name a file"),
        ("bogus:x", "is not a store URL"),
    ],
)
def test_a_place_where_no_store_can_be(call: Call, place: str, url: str, words: str) -> None:
    told = call("doctor", "--store", url)
    assert (told.status, words in told.lines[-1]) == (78, True), told


def test_a_wrong_setting_is_a_problem_told(call: Call, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("outlast.toml").write_text("[state_store]\nhistory = 3\n")
    told = call("doctor")
    assert (told.status, told.err) == (78, "")
    assert told.lines[-1].startswith("PROBLEM: ")
    assert "has no key 'history'" in told.lines[-1]


def test_a_password_is_not_shown(call: Call, place: str) -> None:
    told = call("doctor", "--store", "postgresql://ann:hunter2@db.example/x", "--json")
    assert ("hunter2" in told.out, "ann:***@db.example" in told.out) == (False, True)


def test_a_copy_without_its_side_files_is_well(call: Call, filled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(filled, copy)
    assert call("doctor", "--deep", "--store", str(copy)).status == 0
