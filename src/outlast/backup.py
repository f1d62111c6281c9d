"""A whole store as one file: written as of one moment, checked, and read into an empty store, of the same kind or not.

The file is lines of JSON: who wrote it and when; a line that names a table and its columns, then a row a line; at the
end how many rows each table has, the sum of their SHA-256, and the SHA-256 of everything before.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, TypeAlias

import msgspec

from .backends import Backend
from .errors import BackendError, ConfigError, InvalidValue
from .tables import TABLES, StoredRow, Table, Tables
from .values import Writer, moment

__all__ = ["Count", "Header", "Summary", "check", "check_header", "restore", "write"]

FORMAT = "outlast backup"
#: The newest version of the format, which is also the oldest.
VERSION = 1
#: Bytes of a first line: what has a longer one is something else.
LONGEST_HEADER = 64 * 1024
#: Rows between two reports of progress.
REPORT_EVERY = 1000
_BLOCK = 256 * 1024
_MODULUS = 1 << 256

Progress: TypeAlias = Callable[[int], object]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a backup: by which version, when and of which kind of database it was made."""

    format: str
    version: int
    outlast: str
    created_at: str
    backend: str
    schema: int
    tokens: bool


class Count(msgspec.Struct, frozen=True):
    """How many rows a table has, and the sum of their SHA-256 modulo 2^256, which knows no order."""

    rows: int
    sha256: str


class Summary(msgspec.Struct, frozen=True):
    """What a backup holds."""

    header: Header
    tables: dict[str, Count]

    def rows(self, *names: str) -> int:
        """Return how many rows some tables have together, without names all of them."""
        return sum(count.rows for name, count in self.tables.items() if not names or name in names)


class Section(msgspec.Struct, frozen=True):
    """The line before the rows of a table."""

    table: str
    columns: tuple[str, ...]


class Trailer(msgspec.Struct, frozen=True):
    """The last line: what has to have come before, and the newest id that each table has given."""

    tables: dict[str, Count]
    newest: dict[str, int]
    sha256: str


def _nothing(rows: int) -> None:
    """Tell nobody."""


_encode = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Header).decode
_section = msgspec.json.Decoder(Section).decode
_trailer = msgspec.json.Decoder(Trailer).decode
_row = msgspec.json.Decoder(list[int | str | None]).decode


def write(
    backend: Backend, file: IO[bytes], now: int, by: str, *, tokens: bool = True, progress: Progress = _nothing
) -> Summary:
    """Write everything that is in a store at one moment, `by` a version of outlast; others may go on writing to it.

    Without `tokens`, access tokens and the secrets that sign are left out. `progress` is told how many rows there
    were so far. Raises ConfigError for a store that is not a database.
    """
    return backend.dump(lambda tables: _Writing(file, progress).write(tables, now, by, tokens))


def check(file: IO[bytes], progress: Progress = _nothing) -> Summary:
    """Read a backup to its end and say what it holds; InvalidValue if it is none, is cut short or was changed.

    Raises ConfigError if it was written by a version of outlast newer than this one can read.
    """
    reading = _Reading(file, progress)
    for _, _, rows in reading.sections():
        for _ in rows:
            pass
    return Summary(reading.header, reading.trailer.tables)


def check_header(file: IO[bytes]) -> Header:
    """Read only who wrote a backup, and when; raises as `check` does."""
    return _Reading(file, _nothing).header


def restore(backend: Backend, file: IO[bytes], who: Writer, *, progress: Progress = _nothing) -> Summary:
    """Fill an empty store with a backup in one transaction, and compare what it then holds with what was read.

    Its feed begins anew, and `who` is audited. Raises ConfigError if there is anything in the store; the errors of
    `check`; BackendError if what was read back is something else. Nothing is changed then.
    """
    return backend.load(lambda tables, now: _filled(tables, _Reading(file, progress), who, now))


# --- Writing -------------------------------------------------------------------------------------------------


class _Tally:
    """Counts rows and adds up their digests."""

    def __init__(self) -> None:
        self.rows = self.total = 0

    def add(self, line: bytes) -> None:
        self.rows += 1
        self.total += int.from_bytes(hashlib.sha256(line).digest(), "big")

    @property
    def count(self) -> Count:
        return Count(self.rows, f"{self.total % _MODULUS:064x}")


class _Writing:
    """Writes lines in blocks, and knows the digest of all of them."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self.file, self.progress, self.digest = file, progress, hashlib.sha256()
        self.block = bytearray()
        self.total = 0

    def write(self, tables: Tables, now: int, by: str, tokens: bool) -> Summary:
        created_at = moment(now).isoformat().replace("+00:00", "Z")
        header = Header(
            format=FORMAT,
            version=VERSION,
            outlast=by,
            created_at=created_at,
            backend=tables.backend,
            schema=tables.schema(),
            tokens=tokens,
        )
        self._line(_encode(header))
        chosen = [table for table in TABLES.values() if tokens or not table.access]
        counts = {table.name: self._table(tables, table) for table in chosen}
        newest = tables.newest()
        self._flush()
        self._line(_encode(Trailer(counts, newest, self.digest.hexdigest())))
        self._flush()
        return Summary(header, counts)

    def _table(self, tables: Tables, table: Table) -> Count:
        self._line(_encode(Section(table.name, table.columns)))
        tally = _Tally()
        for row in tables.rows(table, table.columns):
            line = _encode(row)
            tally.add(line)
            self._line(line)
            self.total += 1
            if not self.total % REPORT_EVERY:
                self.progress(self.total)
        return tally.count

    def _line(self, line: bytes) -> None:
        self.block += line
        self.block += b"\n"
        if len(self.block) > _BLOCK:
            self._flush()

    def _flush(self) -> None:
        self.digest.update(self.block)
        self.file.write(self.block)
        self.block = bytearray()


# --- Reading -------------------------------------------------------------------------------------------------


class _Reading:
    """Reads a backup section by section, each to its end, and refuses what is not as it was written."""

    trailer: Trailer

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self.progress, self.digest = progress, hashlib.sha256()
        self.number = self.total = 0
        first = next(_lines(iter(lambda: file.readline(LONGEST_HEADER), b"")), b"")
        self.header = _checked_header(first)
        self.digest.update(first)
        self.lines = _lines(file)

    def sections(self) -> Iterator[tuple[Table, tuple[str, ...], Iterator[StoredRow]]]:
        """Yield each table, its columns and its rows, which have to be taken before going on."""
        counts: dict[str, Count] = {}
        self.last = next(self.lines, b"")
        while not self.last.startswith(b'{"tables":'):
            line = self.last
            table, columns = _checked_section(self._parsed(_section, line), counts)
            self.digest.update(line)
            tally = _Tally()
            yield table, columns, self._rows(tally, len(columns))
            counts[table.name] = tally.count
        self._end(self._parsed(_trailer, self.last), counts)

    def _rows(self, tally: _Tally, width: int) -> Iterator[StoredRow]:
        for line in self.lines:
            if not line.startswith(b"["):
                self.last = line
                return
            self.digest.update(line)
            row: StoredRow = self._parsed(_row, line)
            if len(row) != width:
                raise _broken("a row has more or fewer values than its table has columns")
            tally.add(line[:-1])
            self.total += 1
            if not self.total % REPORT_EVERY:
                self.progress(self.total)
            yield row
        self.last = b""

    def _parsed(self, decode: Callable[[bytes], Any], line: bytes) -> Any:
        if not line.endswith(b"\n"):
            raise _broken("it ends too early: part of it is missing")
        try:
            return decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _broken("it has a line that no backup has") from None

    def _end(self, trailer: Trailer, counts: dict[str, Count]) -> None:
        if counts != trailer.tables or self.digest.hexdigest() != trailer.sha256:
            wrong = [name for name, count in trailer.tables.items() if counts.get(name) != count]
            raise _broken(f"its checksum is wrong{': see ' + ', '.join(wrong) if wrong else ''}")
        if next(self.lines, b""):
            raise _broken("something follows its end")
        self.trailer = trailer


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines; of a compressed file, as long as it can be read."""
    lines = iter(file)
    while True:
        try:
            line = next(lines, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _broken(f"it cannot be uncompressed: {error}") from None
        if not line:
            return
        yield line


def _checked_header(line: bytes) -> Header:
    """Return the header; a newer one may have more in it, and is then refused by its version."""
    try:
        known: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        known = {}
    if known.get("format") != FORMAT:
        raise InvalidValue("this is no backup of outlast's: name a file that `outlast backup` has written")
    version = known.get("version")
    if type(version) is int and version > VERSION:
        raise ConfigError(
            f"this backup was written by a newer outlast ({known.get('outlast')}) in format {version}, and this one "
            f"reads up to {VERSION}; {_UPGRADE}"
        )
    try:
        return _header(line)
    except msgspec.DecodeError:
        raise _broken("its first line is not as it was written") from None


def _checked_section(section: Section, seen: dict[str, Count]) -> tuple[Table, tuple[str, ...]]:
    table = TABLES.get(section.table)
    if table is None:
        raise _unknown(f"table {section.table!r}")
    if strange := sorted(set(section.columns) - set(table.columns)):
        raise _unknown(f"column {strange[0]!r} in {section.table}")
    if section.table in seen or len(set(section.columns)) < len(section.columns):
        raise _broken(f"{section.table} is in it twice")
    return table, section.columns


_UPGRADE = "upgrade outlast: pip install --upgrade outlast"


def _unknown(what: str) -> ConfigError:
    return ConfigError(
        f"this backup has a {what}, which this version does not know: a newer outlast wrote it, or it was changed; "
        f"{_UPGRADE}"
    )


def _broken(why: str) -> InvalidValue:
    return InvalidValue(f"this backup is damaged or was changed: {why}; nothing of it was used. Use another copy of it")


# --- Filling a store -----------------------------------------------------------------------------------------


def _filled(tables: Tables, reading: _Reading, who: Writer, now: int) -> Summary:
    tables.lock()
    _refuse_used(tables)
    filled = {}
    for table, columns, rows in reading.sections():
        tally = _Tally()
        tables.fill(table, columns, _tallied(map(tables.stored, rows), tally))
        for _ in rows:  # whoever inserts may stop before the end is seen
            pass
        filled[table, columns] = tally.count
    for (table, columns), count in filled.items():
        if _counted(tables.rows(table, columns)) != count:
            raise BackendError(f"what was written to {table.name} reads back as something else; nothing was restored")
    about = {"created_at": reading.header.created_at, "rows": sum(count.rows for count in filled.values())}
    tables.begin_anew(reading.trailer.newest, who.name or who.kind, _encode(about).decode(), now)
    return Summary(reading.header, reading.trailer.tables)


def _refuse_used(tables: Tables) -> None:
    counts = tables.counts()
    if not counts:
        return
    shown = ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items())
    raise ConfigError(
        f"this store is not empty ({shown}), and a backup is only restored into one that is; "
        "name a file, database or schema with no store in it yet"
    )


def _tallied(rows: Iterable[StoredRow], tally: _Tally) -> Iterator[StoredRow]:
    for row in rows:
        tally.add(_encode(row))
        yield row


def _counted(rows: Iterable[StoredRow]) -> Count:
    tally = _Tally()
    for row in rows:
        tally.add(_encode(row))
    return tally.count
