"""Places of payloads, and which payloads go when; the object store is one of fsspec's that fails where a test says."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from outlast.errors import BackendError, ConfigError, InvalidValue
from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payload_sweep import clean, examine
from outlast.integrations.airflow.payloads import MARKER, Folder, ObjectStore, Payloads, new_name, open_payloads
from outlast.integrations.airflow.references import READ_MARGIN, payload_of
from outlast.testing import Clock

from .payload_objects import PLACE, Asset, Raising, keeper, large, put
from .rows_in_sqlite import SqliteRows, Task

# --- Places ----------------------------------------------------------------------------------------------


def test_a_place_gives_back_what_was_written(payloads: Payloads) -> None:
    name = new_name(PLACE, b"data")
    payloads.write(name, b"data")
    assert payloads.read(name) == b"data"
    assert list(payloads.names()) == [name]
    assert list(payloads.names(PLACE + "/")) == [name]
    assert list(payloads.names("t" + "9" * 31 + "/")) == []
    payloads.remove(name)
    payloads.remove(name)
    assert payloads.read(name) is None
    assert list(payloads.names()) == []


def test_a_place_that_is_not_one_is_out_of_reach_and_not_empty(tmp_path: Path, objects: ObjectStore) -> None:
    for place in (Folder(str(tmp_path / "unmounted")), objects):
        with pytest.raises(BackendError, match=MARKER):
            place.read(new_name(PLACE, b"data"))


def test_a_folder_has_no_empty_folders_and_no_halves(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "payloads"))
    name = new_name(PLACE, b"data")
    folder.write(name, b"data")
    folder.remove(name)
    assert os.listdir(folder.path) == [MARKER]
    half = tmp_path / "payloads" / f"{new_name(PLACE, b'data')}.0123abcd.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"da")  # a writer was killed
    found = examine(folder, SqliteRows(tmp_path / "rows.db"), Packer(), grace=0, now=2**61)
    assert len(found.orphans) == 1
    clean(found, folder, SqliteRows(tmp_path / "rows.db"))
    assert os.listdir(folder.path) == [MARKER]


def test_a_folder_that_is_made_is_private_and_one_that_is_there_may_be_shared(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    before = os.umask(0o027)
    try:
        for place in (tmp_path / "made", shared):
            Folder(str(place)).write(f"{PLACE}/payload", b"data")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((place / PLACE / "payload").stat().st_mode) for place in (tmp_path / "made", shared)]
    assert modes == [0o640, 0o640]
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700


@pytest.mark.parametrize("written", ["{}/payloads/", "{}//x/../payloads", "file://{}/payloads/"])
def test_a_folder_may_be_written_in_several_ways(tmp_path: Path, written: str) -> None:
    place = open_payloads(written.format(tmp_path))
    assert place.url == str(tmp_path / "payloads")
    place.write(f"{PLACE}/payload", b"data")
    assert list(Folder(str(tmp_path / "payloads")).names()) == [f"{PLACE}/payload"]


def test_a_relative_path_and_an_unknown_scheme_are_refused() -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        open_payloads("state/payloads")
    with pytest.raises(ConfigError, match="nosuchscheme"):
        open_payloads("nosuchscheme://bucket/dir")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("raising://user:s3cr@t@bucket/state", "raising://***@bucket/state"),
        ("raising://bucket/a@b", "raising://bucket/a@b"),
    ],
)
def test_credentials_in_a_url_are_not_shown(objects: ObjectStore, url: str, shown: str) -> None:
    place = open_payloads(url)
    assert place.url == shown
    Raising.failing |= {"pipe_file", "cat_file"}
    for call in (lambda: place.write("name", b"data"), lambda: place.read("name")):
        with pytest.raises(BackendError) as error:
            call()
        assert "s3cr" not in str(error.value)


def test_nor_in_the_url_of_a_driver_that_is_missing() -> None:
    with pytest.raises(ConfigError, match=re.escape("nosuchscheme://***@bucket")) as error:
        open_payloads("nosuchscheme://user:secret@bucket")
    assert "secret" not in str(error.value)


def test_a_driver_that_connects_at_once_is_out_of_reach() -> None:
    with pytest.raises(BackendError, match=re.escape("cannot reach ftp://***@127.0.0.1:1/state")):
        open_payloads("ftp://user:secret@127.0.0.1:1/state")


# --- Values ----------------------------------------------------------------------------------------------


def test_small_values_are_in_the_reference_and_large_ones_outside(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, {"a": 1}, "small")
    put(references, rows, large("a"), "large")
    assert rows.reference("small") == 'o1j{"a":1}'
    name = payload_of(rows.reference("large"))
    assert list(payloads.names()) == [name]
    assert references.resolve(rows.reference("small")) == {"a": 1}
    assert references.resolve(rows.reference("large")) == large("a")


def test_what_json_would_bend_is_refused_before_anything_is_written(payloads: Payloads) -> None:
    with pytest.raises(InvalidValue, match=r"\$\[0\] is a tuple"):
        keeper(payloads).refer([(1, 2)], Task(), "key", lambda: None)  # type: ignore[list-item]
    assert list(payloads.names()) == []


def test_the_last_payload_goes_when_the_database_holds_the_next(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    for letter in "abcdef":
        put(references, rows, large(letter))
        assert references.resolve(rows.reference("key")) == large(letter)
        assert len(list(payloads.names())) <= 2
    references.after_success(lambda: True)
    assert list(payloads.names()) == [payload_of(rows.reference("key"))]


def test_a_large_value_that_became_small_leaves_nothing(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    put(references, rows, "small")
    references.after_success(lambda: True)
    assert list(payloads.names()) == []


def test_success_also_removes_what_a_killed_try_has_left(payloads: Payloads, rows: SqliteRows) -> None:
    killed = keeper(payloads)
    for letter in "ab":
        put(killed, rows, large(letter))
    killed.refer(large("c"), Task(), "key", lambda: rows.reference("key"))
    second = keeper(payloads)
    assert second.resolve(rows.reference("key")) == large("b")
    put(second, rows, large("d"))
    second.after_success(lambda: True)
    assert list(payloads.names()) == [payload_of(rows.reference("key"))]


def test_a_payload_stays_when_its_reference_never_came_into_the_database(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    for letter in "bcd":  # the API server refuses each
        references.refer(large(letter), Task(), "key", lambda: rows.reference("key"))
    assert references.resolve(rows.reference("key")) == large("a")


def test_nothing_is_removed_while_the_database_cannot_be_asked(payloads: Payloads, rows: SqliteRows) -> None:
    def nobody() -> str | None:
        raise LookupError("an event loop is running here")

    references = keeper(payloads)
    for letter in "abc":
        rows.put("key", references.refer(large(letter), Task(), "key", nobody))
    assert len(list(payloads.names())) == 3
    put(references, rows, large("d"))
    assert len(list(payloads.names())) == 2


def test_the_payload_of_an_earlier_try_goes_too(payloads: Payloads, rows: SqliteRows) -> None:
    put(keeper(payloads), rows, large("a"))
    second = keeper(payloads)
    put(second, rows, large("b"))
    put(second, rows, large("c"))
    held = payload_of(rows.reference("key"))
    assert held in set(payloads.names())
    assert len(list(payloads.names())) == 2


def test_an_assets_payload_stays_for_whoever_may_be_reading_it(payloads: Payloads, rows: SqliteRows) -> None:
    clock = Clock()
    references = keeper(payloads, clock)
    for letter in "abc":
        put(references, rows, large(letter), scope=Asset())
    assert len(list(payloads.names())) == 3
    clock.advance(READ_MARGIN / 1_000_000)
    put(references, rows, large("d"), scope=Asset())
    assert len(list(payloads.names())) == 2


def test_delete_and_clear_remove_payloads_of_their_scope_only(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    for task in ("one", "two"):
        for key in ("a", "b"):
            put(references, rows, large(task[0]), f"{key}", scope=Task(task))
    assert len(list(payloads.names())) == 4
    keeper(payloads).forget(Task("one"), "a")
    assert len(list(payloads.names())) == 3
    keeper(payloads).forget_all(Task("one"))
    assert len(list(payloads.names())) == 2
    keeper(payloads).forget_all(Task("two"))
    assert list(payloads.names()) == []


def test_clearing_before_success_is_recorded_waits_for_it(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    references.forget_all(Task(), later=True)
    assert references.resolve(rows.reference("key")) == large("a")  # the worker may die here, and the task run again
    references.after_success(lambda: True)
    assert list(payloads.names()) == []


def test_a_success_that_is_not_recorded_removes_nothing(
    payloads: Payloads, rows: SqliteRows, caplog: pytest.LogCaptureFixture
) -> None:
    """A try that Airflow has given up goes on to its end, and its listeners are called; a later one has the payload."""

    def unknown() -> bool:
        raise LookupError("the supervisor did not answer")

    for is_recorded in (lambda: False, unknown):
        references = keeper(payloads)
        put(references, rows, large("a"))
        references.forget_all(Task(), later=True)
        references.after_success(is_recorded)
        references.after_success(lambda: True)  # what was left is the sweep's
        assert references.resolve(rows.reference("key")) == large("a")
    assert "is not what Airflow has recorded" in caplog.text
    assert "left to `outlast airflow sweep`: the supervisor did not answer" in caplog.text


def test_a_try_that_airflow_has_given_up_removes_nothing(payloads: Payloads, rows: SqliteRows) -> None:
    """To it Airflow says of every key that there is none."""
    zombie, later = keeper(payloads), keeper(payloads)
    put(zombie, rows, large("a"))
    assert later.resolve(rows.reference("key")) == large("a")
    for letter in "bc":  # its PUT is refused
        zombie.refer(large(letter), Task(), "key", lambda: None)
    zombie.after_success(lambda: False)
    assert later.resolve(rows.reference("key")) == large("a")


def test_clearing_leaves_what_another_thread_is_about_to_set(payloads: Payloads, rows: SqliteRows) -> None:
    references, clock = keeper(payloads), Clock()
    references.clock = clock
    made: list[str] = []
    setting = threading.Thread(target=lambda: made.append(references.refer(large("a"), Task(), "key", lambda: None)))
    setting.start()
    setting.join()
    references.forget_all(Task())
    rows.put("key", made[0])
    assert references.resolve(rows.reference("key")) == large("a")
    clock.advance(READ_MARGIN / 1_000_000)
    references.forget_all(Task())
    assert list(payloads.names()) == []


def test_a_thread_can_clear_for_the_one_that_has_set(payloads: Payloads, rows: SqliteRows) -> None:
    references, me = keeper(payloads), threading.get_ident()
    put(references, rows, large("a"))
    clearing = threading.Thread(target=references.forget_all, args=(Task(), me))
    clearing.start()
    clearing.join()
    assert list(payloads.names()) == []


# --- An object store that fails --------------------------------------------------------------------------


def test_a_write_that_fails_is_an_error_and_leaves_the_old_value(objects: ObjectStore, rows: SqliteRows) -> None:
    references = keeper(objects)
    put(references, rows, large("a"))
    Raising.failing.add("pipe_file")
    with pytest.raises(BackendError, match="no pipe_file today"):
        put(references, rows, large("b"))
    Raising.failing.clear()
    assert references.resolve(rows.reference("key")) == large("a")
    put(references, rows, large("c"))
    assert references.resolve(rows.reference("key")) == large("c")


def test_a_read_that_fails_is_an_error_and_no_absence(objects: ObjectStore, rows: SqliteRows) -> None:
    references = keeper(objects)
    put(references, rows, large("a"))
    for call in ("cat_file", "exists"):
        Raising.failing.add(call)
        name = payload_of(rows.reference("key")) or ""
        with pytest.raises(BackendError, match=f"no {call} today"):
            references.resolve("o1p" + (name if call == "cat_file" else new_name(PLACE, b"none")))
        Raising.failing.clear()


def test_clear_delete_and_what_comes_after_success_never_raise(
    objects: ObjectStore, rows: SqliteRows, caplog: pytest.LogCaptureFixture
) -> None:
    references = keeper(objects)
    for letter in "abc":
        put(references, rows, large(letter))
    for failing in ({"find"}, {"rm_file"}, {"find", "rm_file", "exists"}):
        Raising.failing |= failing
        references.forget(Task(), "key")
        references.forget_all(Task())
        references.forget_all(Task(), later=True)
        references.after_success(lambda: True)
        put(references, rows, "small")
        Raising.failing.clear()
    assert "is left to `outlast airflow sweep`" in caplog.text
    assert list(objects.names())
    rows.remove(next(rows.all()))
    assert clean(examine(objects, rows, Packer(), grace=0, now=2**61), objects, rows) == []
    assert list(objects.names()) == []


# --- What went wrong with a payload ----------------------------------------------------------------------


def test_a_lost_payload_is_none_with_a_line_in_the_log(
    payloads: Payloads, rows: SqliteRows, caplog: pytest.LogCaptureFixture
) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    name = payload_of(rows.reference("key")) or ""
    payloads.remove(name)
    with caplog.at_level(logging.ERROR):
        assert references.resolve(rows.reference("key")) is None
    assert name in caplog.text


def test_a_changed_payload_is_an_error(payloads: Payloads, rows: SqliteRows) -> None:
    references = keeper(payloads)
    put(references, rows, large("a"))
    name = payload_of(rows.reference("key")) or ""
    payloads.write(name, b'o1j"another"')
    with pytest.raises(BackendError, match="is not what was written"):
        references.resolve(rows.reference("key"))


@pytest.mark.parametrize("reference", ["o1p../../../etc/passwd", "s3://bucket/key", "o1p", "o9x"])
def test_a_strange_reference_is_an_error(payloads: Payloads, reference: str) -> None:
    with pytest.raises(BackendError, match="not one of outlast's"):
        keeper(payloads).resolve(reference)


def test_a_reference_of_airflows_own_is_its_value(payloads: Payloads) -> None:
    assert keeper(payloads).resolve('{"a": 1}') == {"a": 1}
