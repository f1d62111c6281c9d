"""`outlast backup` and `outlast restore`: files, what is refused, what people are told."""

from __future__ import annotations

import gzip
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import outlast
from outlast.cli import backup as command
from outlast.cli.person import person
from outlast.token_requests import digest_of
from support.everything import TOKEN, contents, fill

from .conftest import INGEST, PROGRAM, Told, now_of

Call = Callable[..., Told]


def test_a_store_is_moved_by_a_file(call: Call, store: outlast.Store, tmp_path: Path) -> None:
    fill(store)
    told = call("backup", "b.jsonl")
    assert (told.status, told.out) == (0, "")
    assert told.err.startswith("Wrote 8 scopes, ")
    assert "1 run, 5 task instances, 1 asset event, " in told.err
    assert told.err.splitlines()[1].startswith("Whoever has it has what signs tokens")
    assert stat.S_IMODE(Path("b.jsonl").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("b.")) == ["b.jsonl"]
    told = call("restore", "b.jsonl", "--store", "new.db")
    assert told.status == 0
    assert told.out.startswith("Restored 8 scopes, ")
    assert re.search(r", 1 token, as of 20\S*Z; all of it read back the same\.\n$", told.out)
    with outlast.connect("new.db") as there:
        assert contents(there) == contents(store)


def test_a_compressed_file_is_one(call: Call, ingest: outlast.TaskState) -> None:
    assert call("backup", "b.jsonl.gz").status == 0
    first = msgspec.json.decode(gzip.decompress(Path("b.jsonl.gz").read_bytes()).splitlines()[0])
    assert first["format"] == "outlast backup"
    os.rename("b.jsonl.gz", "b")  # what a file is, its first bytes say
    assert call("restore", "b", "--store", "new.db").status == 0
    with outlast.connect("new.db") as there:
        assert now_of(there) == {"page": 41, "phase": "load"}


@pytest.mark.parametrize("packed", [False, True])
def test_a_store_is_moved_through_a_pipe(program: Call, ingest: outlast.TaskState, packed: bool) -> None:
    done = subprocess.run([*PROGRAM, "backup", "-"], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert b"to standard output." in done.stderr
    piped = gzip.compress(done.stdout) if packed else done.stdout
    assert program("restore", "-", "--store", "new.db", text=piped).status == 0
    with outlast.connect("new.db") as there:
        assert now_of(there) == {"page": 41, "phase": "load"}


def test_a_pipe_that_ends_early_makes_no_store(program: Call, ingest: outlast.TaskState) -> None:
    done = subprocess.run([*PROGRAM, "backup", "-"], capture_output=True, timeout=60)
    told = program("restore", "-", "--store", "new.db", text=done.stdout[:-300])
    assert (told.status, told.out) == (65, "")
    assert "this backup is damaged or was changed: it ends too early" in told.err
    assert not Path("new.db").exists()


def test_for_programs(call: Call, ingest: outlast.TaskState) -> None:
    made = call("backup", "b.jsonl", "--json").json
    assert (made["file"], made["header"]["backend"], made["header"]["tokens"]) == ("b.jsonl", "sqlite", True)
    assert made["tables"]["entry"]["rows"] == 2
    dry = call("restore", "b.jsonl", "--dry-run", "--json").json
    restored = call("restore", "b.jsonl", "--store", "new.db", "--json").json
    assert made["tables"] == dry["tables"] == restored["tables"]
    assert (dry["dry_run"], restored["dry_run"]) == (True, False)


def test_a_dry_run_opens_no_store(call: Call, ingest: outlast.TaskState) -> None:
    call("backup", "b.jsonl")
    told = call("restore", "b.jsonl", "--dry-run", "--store", "new.db")
    assert re.fullmatch(r"b\.jsonl is complete: 1 scope, 2 keys, as of 20\S*Z\.\n", told.out)
    assert not Path("new.db").exists()
    Path("b.jsonl").write_bytes(Path("b.jsonl").read_bytes().replace(b'"41"', b'"42"'))
    told = call("restore", "b.jsonl", "--dry-run")
    assert (told.status, told.out) == (65, "")
    assert "its checksum is wrong: see entry;" in told.err


def test_tokens_are_left_out_when_asked(call: Call, store: outlast.Store) -> None:
    fill(store)
    told = call("backup", "--without-tokens", "b.jsonl")
    assert "token" not in told.err
    assert digest_of(TOKEN).hex() not in Path("b.jsonl").read_text()


def test_restoring_is_audited(call: Call, ingest: outlast.TaskState) -> None:
    call("backup", "b.jsonl")
    call("restore", "b.jsonl", "--store", "new.db")
    newest = call("audit", "--store", "new.db", "--json").json[0]
    assert (newest["who"], newest["action"]) == (person().name, "restore")


def test_a_log_hears_of_progress(call: Call, store: outlast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.task(INGEST).set_many({f"k{key:04}": key for key in range(1500)})
    monkeypatch.setattr(command, "PAUSES", (0.0, 0.0))
    assert call("backup", "b.jsonl").err.splitlines()[0] == "copied 1,000 rows so far"
    assert call("restore", "b.jsonl", "--store", "new.db").err.splitlines()[:2] == [
        "checked 1,000 rows so far",
        "restored 1,000 rows so far",
    ]


# --- What is refused -----------------------------------------------------------------------------------------


def test_a_store_with_anything_in_it_is_refused(call: Call, ingest: outlast.TaskState) -> None:
    call("backup", "b.jsonl")
    told = call("restore", "b.jsonl")
    assert (told.status, told.out) == (78, "")
    assert "this store is not empty (scope: 1, entry: 2)" in told.err


def test_only_a_backup_is_replaced_and_only_if_asked(call: Call, ingest: outlast.TaskState, place: str) -> None:
    call("backup", "b.jsonl")
    first = Path("b.jsonl").read_bytes()
    told = call("backup", "b.jsonl")
    assert told.status == 65
    assert "b.jsonl is there already" in told.err
    assert Path("b.jsonl").read_bytes() == first
    ingest.set("page", 42)
    assert call("backup", "--overwrite", "b.jsonl").status == 0
    assert Path("b.jsonl").read_bytes() != first
    told = call("backup", "--overwrite", place)
    assert told.status == 65
    assert "is no backup, so it is not replaced" in told.err
    assert ingest.get("page") == 42


def test_a_server_is_backed_up_where_its_database_is(call: Call, ingest: outlast.TaskState) -> None:
    call("backup", "b.jsonl")
    for words in (("backup", "c.jsonl"), ("restore", "b.jsonl")):
        told = call(*words, "--store", "http://127.0.0.1:9")
        assert told.status == 78
        assert "for one behind a server give --store the file or the database's URL" in told.err
    assert sorted(Path().glob("c*")) == []


def test_there_has_to_be_a_store(call: Call) -> None:
    told = call("backup", "b.jsonl")
    assert told.status == 4
    assert not Path("b.jsonl").exists()
    assert call("restore", "b.jsonl").status == 2


@pytest.mark.parametrize("folder", ["missing/b.jsonl", "missing/b.jsonl.gz"])
def test_a_folder_that_is_not_there(call: Call, ingest: outlast.TaskState, folder: str) -> None:
    told = call("backup", folder)
    assert told.status == 74
    assert "missing" in told.err


# --- What is gone, and what is interrupted -------------------------------------------------------------------


def test_a_store_that_is_gone_is_brought_back(call: Call, program: Call, place: str) -> None:
    program("state", "set", INGEST, "page", "41")
    program("backup", "b.jsonl")
    os.unlink(place)
    assert program("state", "get", INGEST, "page").status == 69
    assert program("restore", "b.jsonl").status == 0
    assert program("state", "get", INGEST, "page").out == "41\n"
    os.unlink(place)
    assert program("state", "get", INGEST, "page").status == 69  # and is missed again


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz"])
def test_a_backup_that_is_interrupted_leaves_no_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("what was there")
    making = command._made(str(path))
    making.__enter__().write(b"half")
    assert len(list(tmp_path.iterdir())) == 2
    assert not making.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)  # which raises it again
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


def test_ctrl_c_while_a_pipe_is_read_makes_no_store(place: str) -> None:
    with subprocess.Popen(
        [*PROGRAM, "restore", "-", "--store", "new.db"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("x" * 500_000)  # more than a pipe holds: it is being read
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == "outlast: interrupted\n"
        process.stdin.close()
    assert not Path("new.db").exists()


def test_a_disk_that_is_full_leaves_no_file(place: str, store: outlast.Store) -> None:
    store.task(INGEST).set("text", "x" * 60_000)
    limited = ["sh", "-c", 'ulimit -f 20; trap "" XFSZ; exec "$@"', "sh", *PROGRAM]
    done = subprocess.run([*limited, "backup", "b.jsonl"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 74, done.stderr
    assert "File too large" in done.stderr
    assert sorted(Path().glob("b.*")) == []
