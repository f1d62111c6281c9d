"""What a sweep finds and takes away, and what no row that somebody has written by hand brings it to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from outlast.errors import BackendError
from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payload_sweep import clean, examine, past_bound
from outlast.integrations.airflow.payloads import MARKER, Folder, ObjectStore, Payloads
from outlast.integrations.airflow.references import READ_MARGIN, References, payload_of
from outlast.testing import Clock

from .payload_objects import PLACE, Asset, keeper, large, put
from .rows_in_sqlite import SqliteRows, Task


def test_a_young_payload_may_still_be_waiting_for_its_reference(payloads: Payloads, rows: SqliteRows) -> None:
    clock = Clock()
    keeper(payloads, clock).refer(large("a"), Task(), "key", lambda: None)
    hour = 3600 * 1_000_000
    assert examine(payloads, rows, Packer(), grace=hour, now=clock()).young == 1
    found = examine(payloads, rows, Packer(), grace=hour, now=clock() + hour)
    assert (len(found.orphans), found.young) == (1, 0)


def test_a_row_past_its_time_goes_and_its_payload_after_it(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"), "over")
    put(references, rows, large("b"), "stays")
    rows.expired.add("over")
    found = examine(payloads, rows, Packer(), grace=0, now=2**61)
    assert [row.name for row, _ in found.expired] == ["over"]
    assert found.orphans == []
    assert clean(found, payloads, rows) == []
    assert [row.id[1] for row in rows.all()] == ["stays"]
    assert list(payloads.names()) == [payload_of(rows.reference("stays"))]


def test_a_row_that_was_written_anew_meanwhile_keeps_its_payload(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    rows.expired.add("key")
    found = examine(payloads, rows, Packer(), grace=0, now=2**61)
    put(references, rows, large("b"))
    assert clean(found, payloads, rows) == []
    assert references.resolve(rows.reference("key")) == large("b")


def test_what_is_no_payload_is_somebody_elses(tmp_path: Path, objects: ObjectStore, rows: SqliteRows) -> None:
    (tmp_path / "payloads").mkdir()
    for place in (Folder(str(tmp_path / "payloads")), objects):
        for name in ("report.csv", f"{PLACE}/notes", "t/old/2020"):
            place.write(name, b"not ours")
        found = examine(place, rows, Packer(), grace=0, now=2**61)
        assert (found.orphans, found.young) == ([], 0)
        assert past_bound(place, days=1, now=2**61) == []
        assert len(list(place.names())) == 3


def test_a_lost_row_stays_until_it_is_to_be_dropped(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    payloads.remove(payload_of(rows.reference("key")) or "")
    found = examine(payloads, rows, Packer(), grace=0, now=2**61)
    assert [row.name for row in found.lost] == ["key"]
    clean(found, payloads, rows)
    assert len(list(rows.all())) == 1
    clean(found, payloads, rows, drop_lost=True)
    assert list(rows.all()) == []


def test_a_place_that_is_not_mounted_loses_no_row(tmp_path: Path, rows: SqliteRows) -> None:
    put(keeper(Folder(str(tmp_path / "payloads"))), rows, large("a"))
    with pytest.raises(BackendError, match=MARKER):
        examine(Folder(str(tmp_path / "elsewhere")), rows, Packer(), grace=0, now=2**61)


UNREADABLE = [
    '{"__outlast__": "o1enothing"}',
    '{"__outlast__": "o1jnot JSON"}',
    '{"__outlast__": "o1z!"}',
    '{"__outlast__": "o1j' + "[" * 100_000 + '"}',
    "o1 no JSON",
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_row_that_cannot_be_read_keeps_what_may_be_its_own_and_the_rest_is_swept(
    payloads: Payloads, rows: SqliteRows, text: str
) -> None:
    """Whoever may edit a task instance can write such a row over REST."""
    clock, hour = Clock(), 3600 * 1_000_000
    references = keeper(payloads, clock)
    put(references, rows, large("a"), "right")
    put(references, rows, large("b"), "strange")
    orphan = payload_of(references.refer(large("c"), Task("another"), "key", lambda: None))
    own = payload_of(rows.reference("strange"))
    rows.put_document("strange", text)
    found = examine(payloads, rows, Packer(), grace=hour, now=clock() + hour)
    assert (found.orphans, found.young, found.withheld, found.kept) == ([orphan], 0, 1, 1)
    (problem,) = found.unreadable
    assert problem.startswith("the row strange cannot be read: ")
    assert clean(found, payloads, rows) == []
    assert set(payloads.names()) == {own, payload_of(rows.reference("right"))}
    rows.remove(next(row for row in rows.all() if row.name == "strange"))
    assert examine(payloads, rows, Packer(), grace=hour, now=clock() + hour).orphans == [own]


def test_a_row_that_was_given_anothers_reference_takes_that_payload_nowhere(
    payloads: Payloads, rows: SqliteRows
) -> None:
    """Over REST a key can be given any reference, and an expiry that is over."""
    references = keeper(payloads)
    put(references, rows, large("a"), "victim")
    put(references, rows, large("b"), "own")
    rows.put("forged", rows.reference("victim"))
    rows.put("own", rows.reference("victim"))
    rows.expired |= {"forged", "own"}
    found = examine(payloads, rows, Packer(), grace=0, now=2**61)
    assert {row.name for row, name in found.expired if name is None} == {"forged", "own"}
    assert clean(found, payloads, rows) == []
    assert [row.name for row in rows.all()] == ["victim"]
    assert references.resolve(rows.reference("victim")) == large("a")
    assert list(payloads.names()) == [payload_of(rows.reference("victim"))]


def test_a_payload_past_its_time_stays_while_another_row_has_its_reference(
    payloads: Payloads, rows: SqliteRows
) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"), "over")
    rows.put("copy", rows.reference("over"))
    rows.expired.add("over")
    assert clean(examine(payloads, rows, Packer(), grace=0, now=2**61), payloads, rows) == []
    assert references.resolve(rows.reference("copy")) == large("a")


@pytest.mark.parametrize("scope", [Task(), Asset()])
def test_a_task_whose_key_was_given_anothers_reference_removes_nothing_of_it(
    payloads: Payloads, rows: SqliteRows, scope: Any
) -> None:
    clock = Clock()
    references = keeper(payloads, clock)
    rows.put("victim", references.refer(large("a"), Task("another"), "victim", lambda: None))
    clock.advance(READ_MARGIN / 1_000_000)
    for letter in "bc":
        rows.put("key", rows.reference("victim"))
        put(references, rows, large(letter), scope=scope)
    put(references, rows, "small", scope=scope)
    references.after_success(lambda: True)
    assert references.resolve(rows.reference("victim")) == large("a")


def test_without_the_database_tasks_payloads_are_over_after_the_default_retention(payloads: Payloads) -> None:
    clock = Clock()
    references = keeper(payloads, clock)
    old = payload_of(references.refer(large("a"), Task(), "old", lambda: None))
    references.refer(large("a"), Asset(), "old", lambda: None)
    clock.advance(30 * 24 * 3600)
    references.refer(large("a"), Task(), "new", lambda: None)
    assert past_bound(payloads, days=30, now=clock()) == [old]


@pytest.mark.parametrize(
    ("packer", "why"),
    [
        (Packer(), "this process has no key"),
        (Packer(keys=[Fernet.generate_key().decode()]), "the key in [outlast] state_encryption_keys does not open"),
    ],
)
def test_without_the_right_key_a_sweep_says_so_of_a_workers_values(
    payloads: Payloads, rows: SqliteRows, packer: Packer, why: str
) -> None:
    """Its references need no key to be compared, so that all would look well."""
    right = Packer(keys=[Fernet.generate_key().decode()])
    references = References(right, payloads, 500)
    put(references, rows, 1, "small")
    put(references, rows, large("a"), "large")
    held = rows.text("small"), rows.text("large")
    assert examine(payloads, rows, right, grace=0, now=2**61).unreadable == []
    found = examine(payloads, rows, packer, grace=0, now=2**61)
    assert sorted(text.partition(" cannot")[0] for text in found.unreadable) == ["the row large", "the row small"]
    assert all(why in text for text in found.unreadable)
    assert (found.orphans, found.lost, found.kept) == ([], [], 1)
    assert clean(found, payloads, rows) == []
    assert (rows.text("small"), rows.text("large")) == held
    assert references.resolve(rows.reference("large")) == large("a")


def test_a_payload_that_was_changed_is_named_with_its_key(tmp_path: Path, rows: SqliteRows) -> None:
    folder = Folder(str(tmp_path / "payloads"))
    put(keeper(folder), rows, large("a"), "changed")
    (tmp_path / "payloads" / (payload_of(rows.reference("changed")) or "")).write_bytes(b"o1j1")
    (problem,) = examine(folder, rows, Packer(), grace=0, now=2**61).unreadable
    assert problem.startswith("the row changed cannot be read: the payload ")
    assert "is not what was written (4 bytes, another digest): restore it from a backup, or give up the key" in problem
