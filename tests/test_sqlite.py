"""The SQLite file: what is wrong with it, in words; URLs, memory, backends of one's own, durability."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from outlast import BackendError, ConfigError, OutlastError, Store, connect
from outlast.plans import run
from outlast.requests import Inspect
from support import sqlite_file
from support.homes import settings
from support.own_backend import Counting

path = sqlite_file.path


def filled(path: Path, entries: int = 200) -> None:
    """Make a store with something in it, and close it."""
    with connect(path, config=settings()) as store:
        store.task("dag/run/task").set_many({f"key {number}": "x" * 200 for number in range(entries)})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if not file.name.endswith((".lock", ".turn", "-shm"))
    }


def refused(path: Path, kind: type[OutlastError], *words: str) -> str:
    """Check that a path is refused in such words, twice, and that nothing was changed; return the message."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    for _ in range(2):
        with pytest.raises(kind) as caught:
            connect(path, config=settings())
        assert all(word in str(caught.value) for word in (str(path.parent), *words)), str(caught.value)
    assert before == (contents(path.parent) if path.parent.is_dir() else {})
    return str(caught.value)


# --- What is wrong with a file -----------------------------------------------------------------------------


def test_a_store_truncated_to_nothing_is_no_new_store(path: Path) -> None:
    """Contract 4.6: it never reads as empty."""
    filled(path)
    os.truncate(path, 0)
    refused(path, BackendError, "truncated", "restore it from a backup", "remove")


def test_a_truncated_store_keeps_its_log(path: Path) -> None:
    """Contract 4.6: what could still be saved from the write-ahead log is not thrown away by looking."""
    with connect(path, config=settings()) as store:
        store.task("dag/run/task").set("key", "in the log")
        log = Path(f"{path}-wal").read_bytes()
    filled(path)
    os.truncate(path, 0)
    Path(f"{path}-wal").write_bytes(log)
    refused(path, BackendError, "truncated")
    assert Path(f"{path}-wal").read_bytes() == log


def test_garbage_is_no_store(path: Path) -> None:
    path.write_bytes(b"something else entirely\n" * 1000)
    refused(path, BackendError, "damaged", "outlast doctor", "backup")


def test_a_store_with_its_header_overwritten_is_damaged(path: Path) -> None:
    filled(path)
    with open(path, "r+b") as file:
        file.write(os.urandom(100))
    refused(path, BackendError, "damaged")


def test_a_store_cut_in_half_never_reads_as_absent(path: Path) -> None:
    """Contract 4.6."""
    filled(path)
    os.truncate(path, os.path.getsize(path) // 2 // 4096 * 4096)
    with pytest.raises(BackendError, match="damaged"), connect(path, config=settings()) as store:
        store.task("dag/run/task").items()


def problems_of(store: Store) -> list[str]:
    try:
        return list(store.inspect(deep=True).problems)
    except BackendError as error:
        return [str(error)]


def test_an_overwritten_page_is_found_by_a_deep_inspection(path: Path) -> None:
    filled(path)
    pages = os.path.getsize(path) // 4096
    with open(path, "r+b") as file:
        file.seek((pages - 2) * 4096)
        file.write(b"\xff" * 4096)
    with connect(path, config=settings()) as store:
        assert problems_of(store)


def change(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_newer_schema_is_refused_with_the_remedy(path: Path) -> None:
    filled(path)
    change(path, "update meta set content = '99' where name = 'schema'")
    refused(path, ConfigError, "newer outlast", "schema 99", "pip install --upgrade outlast")


def test_a_changed_schema_is_refused(path: Path) -> None:
    filled(path)
    change(path, "update meta set content = 'other' where name = 'schema_checksum'")
    refused(path, ConfigError, "schema", "backup")


@pytest.mark.parametrize("statement", ["create table song (name text)", "create view all_songs as select 1"])
def test_another_programs_database_is_left_alone(path: Path, statement: str) -> None:
    change(path, statement)
    refused(path, ConfigError, "another program", "another path")


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    refused(tmp_path / "missing" / "store.db", ConfigError, "does not exist", "create it")
    assert not (tmp_path / "missing").exists()


def test_a_folder_is_no_file(path: Path) -> None:
    path.mkdir()
    refused_folder = pytest.raises(ConfigError, match=r"is a folder; name a file")
    with refused_folder:
        connect(path, config=settings())
    assert list(path.iterdir()) == []


def test_an_empty_file_may_become_a_store(path: Path) -> None:
    path.touch()
    filled(path)
    with connect(path, config=settings()) as store:
        assert len(store.task("dag/run/task").keys()) == 200


def test_a_new_store_is_announced_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        connect(path, config=settings()).close()
    assert [record.getMessage() for record in caplog.records if "created" in record.getMessage()] == [
        f"outlast: created a new store at {path}"
    ]


@pytest.mark.parametrize("name", ["a b.db", "a?b#c%20.db", "日本.db", "-x.db", "'quoted'.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    filled(tmp_path / name)
    assert (tmp_path / name).is_file()


def test_urls_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, url in enumerate(
        [f"sqlite:///{tmp_path}/x.db", "sqlite:x.db", "sqlite:///x.db", "x.db", "./x.db", tmp_path / "x.db"]
    ):
        with connect(url, config=settings()) as store:
            assert store.task("dag/run/task").increment("n") == number + 1
    assert {file.name for file in tmp_path.iterdir() if file.suffix == ".db"} == {"x.db"}


@pytest.mark.parametrize("url", ["ftp://host/x", "nonsense:x", "mysql://host/db"])
def test_a_url_of_no_backend_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not a store URL"):
        connect(url, config=settings())


# --- In memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [":memory:", "sqlite::memory:", "sqlite:///:memory:"])
def test_a_store_in_memory_does_everything(url: str) -> None:
    with connect(url, config=settings()) as store, connect(url, config=settings()) as other:
        state = store.task("dag/run/task", attempt="new")
        threads = [threading.Thread(target=lambda: [state.increment("n") for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with state.transaction() as tx:
            tx.set("twice", 2 * tx.get("n"))
        assert (asyncio.run(state.aget("n")), state.get("twice")) == (80, 160)
        assert store.inspect(deep=True).problems == ()
        assert other.scopes() == []


# --- A backend of one's own ----------------------------------------------------------------------------------


def test_a_backend_may_be_named(path: Path) -> None:
    """Contract 1 of the issue's settings: a dotted path to a `Backend`."""
    before = Counting.asked
    with connect(path, config=settings(backend="support.own_backend:Counting")) as store:
        store.task("dag/run/task").set("key", 1)
    with connect(path, config=settings(backend="support.own_backend.Counting")) as store:
        assert store.task("dag/run/task").get("key") == 1
    assert Counting.asked == before + 2


def test_a_minimal_backend_has_an_awaiting_twin() -> None:
    with connect("any://thing", config=settings(backend="support.own_backend:Minimal")) as store:
        assert store.backend.send(Inspect()) == Inspect()
        assert asyncio.run(store.backend.asend(Inspect())) == Inspect()
        assert run(store._inspect(), store.backend) == Inspect()  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("dotted", "words"),
    [
        ("nowhere.at:All", "cannot import"),
        ("support.own_backend:Missing", "cannot import"),
        ("support.own_backend:NotABackend", "not a subclass"),
        ("support.own_backend:settings", "cannot import"),
    ],
)
def test_a_backend_that_is_none_is_refused(path: Path, dotted: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        connect(path, config=settings(backend=dotted))


# --- Durability ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("process", 1)])
def test_a_commit_reaches_the_disk_as_told(path: Path, durability: Any, level: int) -> None:
    """Contract 4.5."""
    with connect(path, config=settings(durability=durability)) as store:
        store.task("dag/run/task").set("key", 1)
        connection = store.backend._writer.connection  # type: ignore[attr-defined]
        assert (connection.pragma("synchronous"), connection.pragma("journal_mode")) == (level, "wal")
