"""What is no whole backup is refused, and so is a store that is not empty; nothing is changed then."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from outlast import Store, backup
from outlast.errors import BackendError, ConfigError, InvalidValue
from outlast.tables import TABLES
from support.everything import contents, fill, made, restored, rows_of

from .conftest import NEW_HOMES


@NEW_HOMES
def test_a_store_with_anything_in_it_is_refused(full: Store, open_new: Any, other: Any) -> None:
    there = open_new(other)
    there.task("a/b/c").set("k", 1)
    before = contents(there)
    with pytest.raises(ConfigError, match=r"not empty \(scope: 1, entry: 1\)"):
        restored(there, made(full))
    assert contents(there) == before


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    lines = data.splitlines(keepends=True)
    middle = len(lines) // 2
    yield "the end is missing", data[:-1]
    yield "the last line is missing", b"".join(lines[:-1])
    yield "a line is missing", b"".join(lines[:middle] + lines[middle + 1 :])
    yield "a line is twice there", b"".join(lines[: middle + 1] + lines[middle:])
    yield "half of it is missing", data[: len(data) // 2]
    yield "only the first line", lines[0]
    yield "something follows", data + b"[1]\n"
    yield "a value was changed", data.replace(b"2026-11-29", b"2026-11-30", 1)
    yield "a table is twice there", data.replace(b'{"table":"secret"', lines[3] + b'{"table":"secret"', 1)
    yield "the header was changed", data.replace(b'"backend":"', b'"backend":"x', 1)
    yield "a row is longer", data.replace(b"\n[1,", b"\n[1,1,", 1)
    yield "a row holds something else", data.replace(b"\n[1,", b"\n[{},", 1)
    yield "no text", data.replace("🦆".encode(), b"\xff\xfe", 1)
    yield "its ends", lines[0] + lines[-1]


@NEW_HOMES
def test_a_file_that_is_not_whole_is_refused_with_nothing_changed(open_new: Any, other: Any) -> None:
    source, there = open_new(), open_new(other)
    fill(source)
    data = made(source)
    for why, broken in damaged(data):
        assert broken != data, why
        with pytest.raises(InvalidValue, match="damaged or was changed"):
            backup.check(io.BytesIO(broken))
        with pytest.raises((InvalidValue, BackendError)):  # a row that is twice there may be the database's to refuse
            restored(there, broken)
        assert not any(contents(there).values()), why
    restored(there, data)
    assert contents(there) == contents(source)


@pytest.mark.parametrize("text", [b"", b"\n", b"{}\n", b"SQLite format 3\x00" * 20, b"x" * 200_000, b'{"format":1}\n'])
def test_a_file_of_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidValue, match="no backup of outlast's"):
        backup.check(io.BytesIO(text))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"version":1', b'"version":2,"more":[]', r"newer outlast \(9\.1\) in format 2, and this one reads up to 1"),
        (b'"table":"consumer"', b'"table":"wishes"', "has a table 'wishes', .* newer outlast"),
        (b'"columns":["id","at"', b'"columns":["id","soul"', "has a column 'soul' in audit, .* newer outlast"),
    ],
)
def test_a_file_of_a_newer_version_is_refused(open_new: Any, old: bytes, new: bytes, said: str) -> None:
    data = made(open_new()).replace(b'"outlast":"0.0.test"', b'"outlast":"9.1"')
    assert old in data
    with pytest.raises(ConfigError, match=said):
        backup.check(io.BytesIO(data.replace(old, new, 1)))


def test_a_file_of_an_older_version_lacks_columns_that_have_a_default(open_new: Any) -> None:
    source, there = open_new(), open_new()
    fill(source)
    data = made(source)
    columns = TABLES["asset_event"].columns
    old = b",".join(b'"%s"' % name.encode() for name in columns)
    assert columns[-1] == "extra"
    shorter = data.replace(old, old.removesuffix(b',"extra"'), 1)
    (row,) = rows_of(data)["asset_event"]
    shorter = shorter.replace(msgspec.json.encode(row), msgspec.json.encode(row[:-1]), 1)
    restored(there, signed(shorter))
    assert contents(there)["asset_event"] == [[*row[:-1], "{}"]]


@pytest.mark.parametrize("cut", [30, 1000, -9, -1])
def test_a_compressed_file_that_is_cut_is_refused(open_new: Any, cut: int) -> None:
    store = open_new()
    fill(store)
    packed = gzip.compress(made(store))
    with pytest.raises(InvalidValue, match=r"damaged|no backup"):
        backup.check(gzip.GzipFile(fileobj=io.BytesIO(packed[:cut])))


def test_a_compressed_file_with_a_changed_byte_is_refused(open_new: Any) -> None:
    store = open_new()
    fill(store)
    packed = bytearray(gzip.compress(made(store)))
    packed[len(packed) // 2] ^= 1
    with pytest.raises((InvalidValue, ConfigError), match=r"damaged|changed|no backup"):
        backup.check(gzip.GzipFile(fileobj=io.BytesIO(bytes(packed))))


def trailer(data: bytes) -> Any:
    return msgspec.json.decode(data.splitlines()[-1])


def signed(data: bytes) -> bytes:
    """Return a file with the end its lines call for."""
    lines = data.splitlines(keepends=True)[:-1]
    file = io.BytesIO()
    newest = trailer(data)["newest"]
    counts: dict[str, Any] = {}
    tally = backup._Tally()
    for line in lines[1:]:
        if line.startswith(b"{"):
            tally = backup._Tally()
            counts[msgspec.json.decode(line)["table"]] = tally
        else:
            tally.add(line[:-1])
    file.write(b"".join(lines))
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    end = backup.Trailer({name: known.count for name, known in counts.items()}, newest, digest)
    return file.getvalue() + msgspec.json.encode(end) + b"\n"
