"""A backup or a restore that is killed, interrupted or cut off leaves both stores as they were."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outlast.errors import BackendError
from outlast.values import system_clock
from support.everything import contents, fill, made, restored
from support.homes import PostgresHome, settings
from support.postgres import server

from .conftest import NEW_HOMES

KILLED = """
import os, signal, sys
from outlast import backup, connect
from outlast.values import Writer

with connect(sys.argv[1]) as store, open(sys.argv[2], "rb") as file:
    backup.restore(store.backend, file, Writer("person"), progress=lambda rows: os.kill(os.getpid(), signal.SIGKILL))
"""


@NEW_HOMES
def test_a_restore_that_is_killed_leaves_an_empty_store(homes: Any, open_new: Any, tmp_path: Path, other: Any) -> None:
    source = open_new()
    fill(source)
    source.task("many/run/task").set_many({f"k{key:04}": key for key in range(3000)})
    file = tmp_path / "backup.jsonl"
    file.write_bytes(made(source))
    home = homes(other)
    url = getattr(home, "url", None) or str(home.path)
    done = subprocess.run([sys.executable, "-c", KILLED, url, str(file)], timeout=50, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with home.open(settings(), system_clock) as there:
        assert not any(contents(there).values())
        restored(there, file.read_bytes())
        assert contents(there) == contents(source)


@NEW_HOMES
def test_an_interrupt_leaves_both_stores_as_they_were(open_new: Any, other: Any) -> None:
    def interrupt(rows: int) -> None:
        raise KeyboardInterrupt

    source, there = open_new(other), open_new(other)
    source.task("many/run/task").set_many({f"k{key:04}": key for key in range(3000)})
    with pytest.raises(KeyboardInterrupt):
        made(source, progress=interrupt)
    source.task("many/run/task").set("last", 1)
    with pytest.raises(KeyboardInterrupt):
        restored(there, made(source), progress=interrupt)
    assert not any(contents(there).values())
    restored(there, made(source))
    assert contents(there) == contents(source)


@pytest.mark.postgres
def test_a_lost_connection_is_told_and_leaves_an_empty_store(open_new: Any) -> None:
    source, there = open_new(PostgresHome), open_new(PostgresHome)
    source.task("many/run/task").set_many({f"k{key:04}": key for key in range(3000)})
    data = made(source)

    def cut(rows: int) -> None:
        others = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        with psycopg.connect(server().url, autocommit=True) as connection:
            connection.execute(others + " and application_name = 'outlast'")

    with pytest.raises(BackendError, match=r"lost postgresql://.* in the middle, and nothing was done"):
        restored(there, data, progress=cut)
    assert not any(contents(there).values())
    restored(there, data)
    assert contents(there) == contents(source)
