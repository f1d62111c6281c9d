"""A backup is the whole store at one moment, and a restored one is the same store, on SQLite as on PostgreSQL."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psycopg
import pytest

from outlast import Store, backup
from outlast.backends import Backend
from outlast.backends.postgres import PostgresBackend
from outlast.backends.sqlite import SQLiteBackend
from outlast.requests import Feed
from outlast.tables import NUMBERED, TABLES
from outlast.token_requests import FindToken, ListSecrets, digest_of
from outlast.values import Reset, system_clock
from support.everything import TOKEN, VALUES, contents, fill, made, restored, rows_of
from support.exact import exact
from support.homes import PostgresHome, SQLiteHome, settings
from support.postgres import server
from support.runs import ANN, Desk

from .conftest import NEW_HOMES


@NEW_HOMES
def test_every_row_comes_back(full: Store, open_new: Any, other: Any) -> None:
    data = made(full)
    there = open_new(other)
    summary = restored(there, data)
    assert summary == backup.check(io.BytesIO(data))
    assert contents(there) == rows_of(data) == contents(full)
    assert summary.rows() == sum(map(len, rows_of(data).values()))


@pytest.mark.postgres
def test_there_and_back_again(open_new: Any) -> None:
    first, second, third = open_new(SQLiteHome), open_new(PostgresHome), open_new(SQLiteHome)
    fill(first)
    restored(second, made(first))
    restored(third, made(second))
    assert contents(first) == contents(third)
    assert [desk.detail() for desk in map(Desk, (store.backend for store in (second, third)))] == [
        Desk(first.backend).detail()
    ] * 2
    assert [row[3] for row in rows_of(made(third))["audit"]] == [row[3] for row in rows_of(made(first))["audit"]]


@NEW_HOMES
def test_the_store_goes_on_where_it_was(full: Store, open_new: Any, other: Any) -> None:
    there = open_new(other)
    restored(there, made(full))
    state = there.task("dag 🦆/rün 1/task")
    assert all(exact(state.get(key), value) for key, value in VALUES.items())
    assert [version.value for version in state.history("big")] == [2**70, "before"]
    assert there.asset(uri="s3://bucket/orders").get("watermark") == "2026-11-29"
    assert there.task("dag/run/each", item="a 🦆 key").get("place") == 1
    before, after = Desk(full.backend), Desk(there.backend)
    assert before.run == after.run
    assert before.detail().tasks == after.detail().tasks
    desk = after
    desk.report(desk.fence("mango"), "success")
    assert desk.attempts("mango") == {1: "success"}


@NEW_HOMES
def test_tokens_work_after_a_restore(full: Store, open_new: Any, other: Any) -> None:
    there = open_new(other)
    restored(there, made(full))
    (row,) = there.backend.send(FindToken(digest_of(TOKEN))).rows
    assert (row.role, row.name, row.dags) == ("viewer", "ann", ("*",))
    assert there.backend.send(ListSecrets()) == full.backend.send(ListSecrets())


def test_tokens_can_be_left_out(full: Store, open_new: Any) -> None:
    data = made(full, tokens=False)
    assert digest_of(TOKEN).hex().encode() not in data
    there = open_new()
    restored(there, data)
    assert there.backend.send(FindToken(digest_of(TOKEN))).rows == ()
    assert there.backend.send(ListSecrets()).rows == ()
    assert contents(there) == contents(full) | {"token": [], "secret": []}


@NEW_HOMES
def test_no_id_is_given_a_second_time(full: Store, open_new: Any, other: Any) -> None:
    newest = trailer(made(full))["newest"]
    assert set(newest) == set(NUMBERED)
    there = open_new(other)
    restored(there, made(full))
    scope_id = scope_of(there, "new/run/task")
    assert scope_id > newest["scope"] + 1000  # what was opened between backup and restore may be known to somebody
    run = Desk(there.backend, run_id="r2").start("a").run
    assert run.id == newest["run"] + 1
    (audited,) = [row for row in audit_of(there) if row[3] == "restore"]
    assert audited[0] == newest["audit"] + 1
    assert audited[2] == "ann@desk"


@NEW_HOMES
def test_ids_of_what_is_gone_are_not_given_again(open_new: Any, other: Any) -> None:
    source, there = open_new(other), open_new(other)
    Desk(source.backend, run_id="r1").start("a")
    newest = Desk(source.backend, run_id="r2").start("a").run
    Desk(source.backend, run_id="r2").release("failed")
    source.runs_as(ANN).delete("nightly", "r2")
    restored(there, made(source))
    assert Desk(there.backend, run_id="r3").start("a").run.id == newest.id + 1


@NEW_HOMES
def test_who_follows_changes_is_told_to_read_everything_again(full: Store, open_new: Any, other: Any) -> None:
    position = full.backend.send(Feed(None)).position
    there = open_new(other)
    restored(there, made(full))
    page = there.backend.send(Feed(position))
    assert (page.reset, page.rows) == (True, ())
    there.task("a/b/c").set("k", 1)
    again = there.backend.send(Feed(page.position))
    assert (again.reset, [happened.row.name for happened in again.rows]) == (False, ["k"])


def test_a_watch_ahead_of_the_backup_is_reset(full: Store, open_new: Any) -> None:
    data = made(full)
    state = full.task("dag 🦆/rün 1/task")
    state.set("later", 1)
    ahead = next(iter(state.watch(timeout=0))).cursor
    there = open_new()
    restored(there, data)
    (event,) = list(there.task("dag 🦆/rün 1/task").watch(cursor=ahead, timeout=0))
    assert isinstance(event, Reset)
    assert "later" not in {entry.key for entry in event.entries}


@pytest.mark.postgres
def test_a_nul_in_an_error_does_not_keep_one_from_moving_to_postgres(open_new: Any) -> None:
    source, there = open_new(SQLiteHome), open_new(PostgresHome)
    desk = Desk(source.backend)
    desk.start("a")
    desk.ran("a", "failed", error="bad byte \x00 here")
    restored(there, made(source))
    assert Desk(there.backend).task("a").error == "bad byte \ufffd here"


def test_a_backup_is_of_one_moment_while_others_write(full: Store) -> None:
    """The writer is not held up, and of what it does together the file has all or nothing, in whichever table."""
    first, written, stop = full.task("pair/run/task"), [0], threading.Event()
    first.set("n", 0)
    for number in range(3):
        full.task(f"many/r{number}/task").set_many({f"k{key:04}": key for key in range(1000)})
    last = full.asset("pair")
    last.set("n", 0)

    def write() -> None:
        while not stop.is_set():
            written[0] += 1
            with first.transaction() as both:
                both.set("n", written[0])
                both.of(last).set("n", written[0])

    def wait_for_writes(rows: int) -> None:
        goal = written[0] + 3
        while written[0] < goal:
            stop.wait(0.001)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_for_writes(0)
        files = [made(full, progress=wait_for_writes) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    for data in files:
        rows = rows_of(data)
        revisions = {row[0]: row[9] for row in rows["scope"]}
        pair = [row for row in rows["entry"] if row[1] == "n"]
        assert len(pair) == 2
        assert pair[0][2] == pair[1][2] != "0"
        assert all(row[3] == revisions[row[0]] for row in pair)
        assert [max(row[7] for row in rows["history"] if row[:2] == entry[:2]) for entry in pair] == [
            entry[7] - 1 for entry in pair
        ]


# --- Every table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SQLiteBackend, PostgresBackend])
def test_every_database_answers_for_its_backup_itself(kind: type[Backend]) -> None:
    """Also where no PostgreSQL is at hand to try it."""
    assert {"dump", "load"} <= vars(kind).keys()


@pytest.mark.postgres
def test_the_command_line_moves_a_store_to_postgresql_and_back(open_new: Any, tmp_path: Path) -> None:
    source, there, back = open_new(SQLiteHome), open_new(PostgresHome), open_new(SQLiteHome)
    fill(source)
    for number, (one, other) in enumerate(((source, there), (there, back))):
        file = str(tmp_path / f"{number}.jsonl.gz")
        for words in (["backup", file, "--store", one.url], ["restore", file, "--store", other.url]):
            done = subprocess.run([sys.executable, "-m", "outlast.cli", *words], capture_output=True, timeout=60)
            assert done.returncode == 0, done.stderr
    assert contents(back)["entry"] == contents(source)["entry"]


@NEW_HOMES
def test_a_restored_store_keys_the_digests_of_secrets_anew(homes: Any, other: Any) -> None:
    """Who has a backup cannot try out values with it."""
    digests: list[str] = []
    data = b""
    for secret in (homes(other), homes(other)):
        with secret.open(settings(secret_keys=("token",)), system_clock) as store:
            if data:
                restored(store, data)
            store.task("d/r/t", writer=ANN).set("token", "hunter2")
            digests.append(next(row[8] for row in reversed(audit_of(store)) if row[6] == "token"))
            data = made(store)
    assert b"audit_key" not in data
    assert digests[0] != digests[1]


def test_every_table_and_column_is_kept_or_begins_anew() -> None:
    connection = apsw.Connection(":memory:")
    folder = Path(backup.__file__).parent / "backends" / "schema"
    for step in sorted(folder.glob("sqlite_*.sql")):
        connection.execute(step.read_text())
    names = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    kept = {name: {column[1] for column in connection.execute(f"pragma table_info({name})")} for name in TABLES}
    kept["task"].remove("place")  # counted anew, in the same order
    assert kept == {name: set(table.columns) for name, table in TABLES.items()}
    assert set(names) - set(TABLES) == {"feed", "receipt", "sqlite_sequence"}


@pytest.mark.postgres
def test_every_column_of_postgresql_is_kept(open_new: Any) -> None:
    store = open_new(PostgresHome)
    schema = store.url.partition("schema=")[2]
    sql = "select table_name, column_name from information_schema.columns where table_schema = %s"
    with psycopg.connect(server().url) as connection:
        found = connection.execute(sql, (schema,)).fetchall()
    columns = {(name, column) for name, column in found if name not in ("feed", "receipt", "meta")}
    known = {(name, column) for name, table in TABLES.items() for column in table.columns}
    assert columns - known == {("task", "place")}  # counted anew, in the same order
    assert known <= columns


def trailer(data: bytes) -> Any:
    return msgspec.json.decode(data.splitlines()[-1])


def scope_of(store: Store, address: str) -> int:
    state = store.task(address)
    state.set("k", 1)
    return next(iter(state.watch(timeout=0))).cursor.scope_id


def audit_of(store: Store) -> list[Any]:
    lines = made(store).splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    begin = next(
        place for place, known in enumerate(found) if isinstance(known, dict) and known.get("table") == "audit"
    )
    rows = []
    for known in found[begin + 1 :]:
        if isinstance(known, dict):
            return rows
        rows.append(known)
    return rows
