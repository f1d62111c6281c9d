"""`outlast state-store clean`: frees what has expired, as Airflow's command of that name does, and says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import outlast

from .conftest import Told

Call = Callable[..., Told]
HOUR = timedelta(hours=1)


def expire(store: outlast.Store, count: int = 2) -> None:
    """Write entries of January that expired an hour later, and one that has not."""
    store.task("d/r/t/3").set_many({f"old{number}": number for number in range(count)}, retention=HOUR)
    store.task("d/r/t/3").set("kept", 1)


def test_a_dry_run_lists_what_would_go_and_deletes_nothing(call: Call, store: outlast.Store) -> None:
    expire(store)
    expected = [
        "Would delete 2 expired entries:",
        "DAG  RUN  TASK  INDEX  KEY   EXPIRED",
        "d    r    t         3  old0  2026-01-02T04:04:05Z",
        "d    r    t         3  old1  2026-01-02T04:04:05Z",
    ]
    for _ in range(2):
        assert call("state-store", "clean", "--dry-run").lines == expected


def test_a_dry_run_as_json(call: Call, store: outlast.Store) -> None:
    expire(store, 1)
    told = call("state-store", "clean", "--dry-run", "--json").json
    (row,) = told.pop("rows")
    assert told == {"dry_run": True, "entries": 1, "scopes": 0}
    assert (row["scope"]["address"], row["key"], row["expires_at"]) == ("d/r/t/3", "old0", "2026-01-02T04:04:05Z")


def test_clean_deletes_what_has_expired_and_nothing_else(call: Call, store: outlast.Store) -> None:
    expire(store, 1)
    assert call("state-store", "clean") == Told(0, "Deleted 1 expired entry.\n")
    assert call("state-store", "clean") == Told(0, "Nothing to delete.\n")
    assert call("state-store", "clean", "--dry-run") == Told(0, "Nothing to delete.\n")
    assert store.task("d/r/t/3").keys() == ["kept"]


def test_clean_as_json(call: Call, store: outlast.Store) -> None:
    expire(store)
    assert call("state-store", "clean", "--json").json == {"dry_run": False, "entries": 2, "scopes": 0, "rows": []}


def test_clean_works_in_batches_and_verbose_tells_of_each(program: Call, store: outlast.Store) -> None:
    expire(store, 5)
    told = program("state-store", "clean", "-v", OUTLAST__STATE_STORE__STATE_CLEANUP_BATCH_SIZE="2")
    assert told.out == "Deleted 5 expired entries.\n"
    assert told.err.splitlines()[:2] == ["deleted 2 so far", "deleted 4 so far"]
    assert program("state-store", "clean", "--verbose").out == "Nothing to delete.\n"


def test_clean_drops_scopes_left_with_nothing(call: Call, store: outlast.Store) -> None:
    store.task("d/r/t").set("k", 1, retention=HOUR)
    assert call("state-store", "clean").out == "Deleted 1 expired entry and 1 empty scope.\n"
    assert store.scopes() == []


def test_clean_shows_its_progress_on_a_terminal(terminal: Any, store: outlast.Store) -> None:
    expire(store, 3)
    told = terminal("state-store", "clean", OUTLAST__STATE_STORE__STATE_CLEANUP_BATCH_SIZE="2").end()
    assert told.status == 0
    assert "\rdeleted 2 so far …" in told.out
    assert told.out.endswith("\x1b[KDeleted 3 expired entries.\n")


def test_clean_does_not_create_a_store(call: Call, place: str) -> None:
    assert call("state-store", "clean").status == 4
