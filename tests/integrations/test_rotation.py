"""Keys are rotated while tasks go on: everything readable before, between and after."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from outlast.errors import BackendError
from outlast.integrations.airflow.metadata import Row
from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payload_sweep import clean, examine
from outlast.integrations.airflow.payloads import Folder
from outlast.integrations.airflow.references import References
from outlast.integrations.airflow.rotation import Writing, rotate
from outlast.integrations.airflow.rows import pack_row, unpack_row

from .rows_in_sqlite import SqliteRows, Task

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
BEFORE, BETWEEN, AFTER = Packer(keys=[OLD]), Packer(keys=[NEW, OLD]), Packer(keys=[NEW])
LARGE = "".join(sha256(bytes([number])).hexdigest() for number in range(40))  # it cannot be compressed


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "payloads"))


@pytest.fixture
def rows(tmp_path: Path, folder: Folder) -> SqliteRows:
    """Every kind of row: small, large, of the server's backend, of both, and plain."""
    rows = SqliteRows(tmp_path / "rows.db")
    references = References(BEFORE, folder, 200)
    rows.put("small", references.refer(1, Task(), "small", lambda: None))
    rows.put("large", references.refer(LARGE, Task(), "large", lambda: None))
    rows.put_document("server", pack_row(BEFORE, '"server"'))
    both = json.dumps({"__airflow_state_ref__": references.refer(LARGE, Task(), "both", lambda: None)})
    rows.put_document("both", pack_row(BEFORE, both))
    rows.put_document("plain", '{"plain": 1}')
    return rows


def values(rows: SqliteRows, folder: Folder, packer: Packer) -> dict[str, object]:
    references = References(packer, folder, 200)
    found = {}
    for row in rows.all():
        document = json.loads(unpack_row(packer, row.text))
        marked = isinstance(document, dict) and "__airflow_state_ref__" in document
        found[row.name] = references.resolve(document["__airflow_state_ref__"]) if marked else document
    return found


EXPECTED = {"small": 1, "large": LARGE, "server": "server", "both": LARGE, "plain": {"plain": 1}}


def test_everything_is_readable_before_between_and_after(rows: SqliteRows, folder: Folder) -> None:
    assert values(rows, folder, BETWEEN) == EXPECTED
    with pytest.raises(BackendError):
        values(rows, folder, AFTER)
    done = rotate(rows, BETWEEN, folder)
    assert (done.rewritten, done.current, done.passed_over, done.plain) == (4, 0, 0, 1)
    assert values(rows, folder, BETWEEN) == EXPECTED
    assert values(rows, folder, AFTER) == EXPECTED


def test_done_twice_nothing_changes(rows: SqliteRows, folder: Folder) -> None:
    rotate(rows, BETWEEN, folder)
    texts = [row.text for row in rows.all()]
    done = rotate(rows, BETWEEN, folder)
    assert (done.rewritten, done.current) == (0, 4)
    assert [row.text for row in rows.all()] == texts


def test_a_task_that_had_its_reference_before_still_finds_the_payload(rows: SqliteRows, folder: Folder) -> None:
    before = rows.reference("large")
    rotate(rows, BETWEEN, folder)
    assert References(BETWEEN, folder).resolve(before) == LARGE
    clean(examine(folder, rows, BETWEEN, grace=0, now=2**61), folder, rows)
    assert References(BETWEEN, folder).resolve(before) is None
    assert values(rows, folder, AFTER) == EXPECTED


def test_a_row_that_a_task_writes_meanwhile_is_not_overwritten(rows: SqliteRows, folder: Folder) -> None:
    class Busy(SqliteRows):
        def replace(self, row: Row, text: str) -> bool:
            if row.name == "large":
                self.put("large", References(BETWEEN, folder, 200).refer("newer", Task(), "large", lambda: None))
            return super().replace(row, text)

    busy = Busy(Path(str(rows.rows.execute("pragma database_list").fetchone()[2])))
    done = rotate(busy, BETWEEN, folder)
    assert (done.rewritten, done.passed_over) == (3, 1)
    assert values(rows, folder, AFTER) == {**EXPECTED, "large": "newer"}
    assert len([*folder.names()]) == 3  # the two old ones, and the new one of "both"
    assert examine(folder, rows, BETWEEN, grace=0, now=2**61).lost == []


def test_what_cannot_be_read_is_told_and_the_rest_is_done(rows: SqliteRows, folder: Folder) -> None:
    strange = Packer(keys=[Fernet.generate_key().decode()])
    rows.put_document("strange", pack_row(strange, '"strange"'))
    text = rows.text("strange")
    done = rotate(rows, BETWEEN, folder)
    assert done.rewritten == 4
    (problem,) = done.unreadable
    assert problem.startswith("strange: the row strange cannot be read: none of the 2 keys")
    assert rows.text("strange") == text


@pytest.mark.parametrize("text", ["o1 no JSON", '{"__outlast__": "o1j' + "[" * 100_000 + '"}'])
def test_nor_does_a_row_that_is_no_json_stop_it(rows: SqliteRows, folder: Folder, text: str) -> None:
    rows.put_document("strange", text)
    done = rotate(rows, BETWEEN, folder)
    assert (done.rewritten, len(done.unreadable)) == (4, 1)
    assert rows.text("strange") == text


WORKER, SERVER, BOTH = Writing(is_worker=True, offload_above=200), Writing(is_server=True), Writing(True, True, 200)


@pytest.fixture
def plain(tmp_path: Path, folder: Folder) -> SqliteRows:
    """What there is before keys are set: of no backend, of each, inside and outside the database."""
    rows, references = SqliteRows(tmp_path / "rows.db"), References(Packer(), folder, 200)
    rows.put_document("value", '{"o1": [18446744073709551617, 0.1]}')
    rows.put_document("long", json.dumps(LARGE))
    rows.put("small", references.refer(1, Task(), "small", lambda: None))
    rows.put("large", references.refer(LARGE, Task(), "large", lambda: None))
    rows.put_document("server", pack_row(Packer(), json.dumps("s" * 2000)))
    return rows


HELD = {"value": {"o1": [2**64 + 1, 0.1]}, "long": LARGE, "small": 1, "large": LARGE, "server": "s" * 2000}


def is_secret(row: Row, folder: Folder) -> bool:
    name = row.text.partition('"o1p')[2][:-2]
    return row.text.startswith(('{"__outlast__": "o1e', '{"__airflow_state_ref__": "o1e')) or (
        (folder.read(name) or b"").startswith(b"o1e")
    )


@pytest.mark.parametrize("writing", [WORKER, SERVER, BOTH])
def test_what_is_plain_is_encrypted_as_the_backends_that_are_set_would(
    plain: SqliteRows, folder: Folder, writing: Writing
) -> None:
    done = rotate(plain, AFTER, folder, writing)
    assert (done.rewritten, done.current, done.plain, done.unreadable) == (5, 0, 0, [])
    assert values(plain, folder, AFTER) == HELD
    assert all(is_secret(row, folder) for row in plain.all())
    assert plain.text("value").startswith('{"__outlast__": ' if writing.is_server else '{"__airflow_state_ref__": ')
    texts = [row.text for row in plain.all()]
    done = rotate(plain, AFTER, folder, writing)
    assert (done.rewritten, done.current) == (0, 5)
    assert [row.text for row in plain.all()] == texts
    clean(examine(folder, plain, AFTER, grace=0, now=2**61), folder, plain)
    assert values(plain, folder, AFTER) == HELD
    assert all((folder.read(name) or b"").startswith(b"o1e") for name in folder.names())


def test_a_value_that_is_over_the_bound_is_put_where_its_task_would_put_it(plain: SqliteRows, folder: Folder) -> None:
    rotate(plain, AFTER, folder, WORKER)
    row = next(row for row in plain.all() if row.name == "long")
    assert row.text.startswith('{"__airflow_state_ref__": "o1p' + row.places[0] + "/")


@pytest.mark.parametrize(("packer", "writing"), [(AFTER, Writing()), (Packer(), BOTH)])
def test_what_no_backend_would_encrypt_stays_and_is_counted(
    plain: SqliteRows, folder: Folder, packer: Packer, writing: Writing
) -> None:
    texts = [plain.text("value"), plain.text("long")]
    assert rotate(plain, packer, folder, writing).plain == 2
    assert [plain.text("value"), plain.text("long")] == texts


def test_what_a_worker_could_not_have_kept_stays_as_it_is(plain: SqliteRows, folder: Folder) -> None:
    for key, text in {"twice": '{"a": 1, "a": 2}', "null": "null", "nan": "NaN"}.items():
        plain.put_document(key, text)
    done = rotate(plain, AFTER, folder, WORKER)
    assert (done.rewritten, done.plain, done.unreadable) == (5, 3, [])
    assert [plain.text(key) for key in ("twice", "null", "nan")] == ['{"a": 1, "a": 2}', "null", "NaN"]


def test_a_plain_row_that_a_task_writes_meanwhile_is_not_overwritten(plain: SqliteRows, folder: Folder) -> None:
    class Busy(SqliteRows):
        def replace(self, row: Row, text: str) -> bool:
            if row.name == "long":
                self.put_document("long", '"newer"')
            return super().replace(row, text)

    busy = Busy(Path(str(plain.rows.execute("pragma database_list").fetchone()[2])))
    done = rotate(busy, AFTER, folder, WORKER)
    assert (done.rewritten, done.passed_over) == (4, 1)
    assert plain.text("long") == '"newer"'
    assert len([*folder.names()]) == 2  # both of "large"


def test_payloads_whose_place_is_not_told_are_not_taken_for_current(rows: SqliteRows) -> None:
    """Who then takes the old key away would lose them."""
    done = rotate(rows, BETWEEN, None)
    assert {problem.partition(":")[0] for problem in done.unreadable} == {"large", "both"}
    assert all("set [outlast] state_offload_url" in problem for problem in done.unreadable)
