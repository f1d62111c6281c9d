"""The SQLite file itself: where it is, opening it, its schema, and what is wrong with it.

Never opens the database file except through SQLite: closing any descriptor of it would drop the
locks SQLite holds in this process.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from contextlib import suppress
from typing import Any, Literal

import apsw

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from ..errors import BackendError, ConfigError
from ..requests import Inspected
from .execute import SQLITE
from .feed import FeedSQL
from .schema_steps import checksum, steps_of, version_of

__all__ = ["connect", "current", "explain", "inspect", "prepare", "too_many_open"]

logger = logging.getLogger("outlast")

#: The step of the schema that brings the feed.
FEED_STEP = 5

_APPLICATION_ID = 0x4F54_4C53  # "OTLS", in the header of the file
_MARK = b"outlast store\n"
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "glusterfs", "fuse.s3fs", "lustre"}


def prepare(path: str | None) -> None:
    """Check, before anything is opened, that a store can be kept at this path."""
    if path is None:
        return
    if fcntl is None:
        raise ConfigError("SQLite stores need Linux or macOS; on Windows use WSL, or the URL of an outlast server")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise ConfigError(f"the folder {folder} does not exist; create it, or name another path for the store")
    if os.path.isdir(path):
        raise ConfigError(f"{path} is a folder; name a file, for instance {os.path.join(path, 'outlast.db')}")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise ConfigError(f"cannot open {path} for writing; check its owner and its mode, or copy it to read the copy")
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            f"the folder {folder} cannot be written to, and a store needs files beside its own ({path}.lock, …); "
            "check its owner and its mode, or copy the store to read the copy"
        )
    kind = _file_system(folder)
    if kind in _NETWORK:
        raise ConfigError(
            f"{path} is on a network file system ({kind}), where SQLite's locks are not reliable; "
            "use a local disk, PostgreSQL, or an outlast server"
        )
    if os.path.exists(path) and os.stat(path).st_nlink > 1:
        raise ConfigError(
            f"{path} is one of several names of a file (hard links), and each name would have its own write-ahead log; "
            "remove the others, or copy the file and use the copy"
        )
    if os.path.exists(path) and os.path.getsize(path):
        _look(path)
    elif _was_created(path):
        raise BackendError(
            f"{path} is missing or empty although a store was created there; restore it from a backup, "
            f"or remove {path}.lock to begin a new store"
        )


def _look(path: str) -> None:
    """Refuse a file that is no store of ours before anything is written beside it.

    This takes no lock, and so may meet a store in the middle of another process's checkpoint: what then looks
    damaged is looked at again, with the locks, when it is opened.
    """
    uri = f"file:{path.replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?immutable=1"
    connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        with suppress(apsw.CorruptError):
            _refuse_foreign(connection, path)
    finally:
        connection.close()


def _file_system(folder: str) -> str:
    """Return the type of the file system a folder is on, "" where the system does not say."""
    best, kind = "", ""
    with suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        real = os.path.realpath(folder)
        for line in mounts:
            point, found = line.split(" ")[1:3]
            point = point.replace("\\040", " ")
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, found
    return kind


# --- Opening, and the schema -----------------------------------------------------------------------------


def connect(path: str | None, durability: str, create: bool) -> apsw.Connection:
    """Open a connection as this store needs it; the caller of the first one holds the file lock."""
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(path or ":memory:", flags=flags)
    try:
        connection.set_busy_timeout(30_000)
        _refuse_foreign(connection, path)
        connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma synchronous = {'full' if durability == 'full' else 'normal'}")
        connection.execute("pragma cache_size = -8000")
        if sys.platform == "darwin" and durability == "full":
            connection.execute("pragma fullfsync = 1")
        _upgrade(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_foreign(connection: apsw.Connection, path: str | None) -> None:
    owner, tables = connection.pragma("application_id"), connection.execute("select count(*) from sqlite_schema").get
    if owner != _APPLICATION_ID and tables:
        raise ConfigError(f"{path} is a SQLite database of another program; name another path for the store")


def _was_created(path: str) -> bool:
    with suppress(OSError), open(path + ".lock", "rb") as side:
        return side.read(len(_MARK)) == _MARK
    return False


def steps() -> list[str]:
    """Return the schema as numbered steps, the first one first."""
    return steps_of("sqlite")


def _upgrade(connection: apsw.Connection, path: str | None) -> None:
    """Bring the schema forward, in one transaction; refuse one that is newer or not ours."""
    texts = steps()
    version = _check_schema(connection, path, texts)
    if version == len(texts):
        return
    connection.execute("begin immediate")
    try:
        version = _check_schema(connection, path, texts)
        for text in texts[version:]:
            connection.execute(text)
        connection.execute(f"pragma application_id = {_APPLICATION_ID}")
        connection.execute(
            "create table if not exists meta (name text primary key, content text not null) without rowid"
        )
        facts = {"schema": str(len(texts)), "schema_checksum": checksum(texts)}
        for fact in facts.items():
            connection.execute("insert or replace into meta (name, content) values (?, ?)", fact)
        if version < FEED_STEP:
            FeedSQL(lambda sql, values: connection.execute(sql, values).fetchall(), SQLITE).begin()
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise
    if path is not None and version == 0:
        _mark(path)
        logger.warning("outlast: created a new store at %s", path)


def current(path: str) -> int:
    """Return the version of a file's schema, which stays as it is; 0 where there is none."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        _refuse_foreign(connection, path)
        return _check_schema(connection, path, steps())
    finally:
        connection.close()


def _mark(path: str) -> None:
    with open(path + ".lock", "r+b") as side:
        side.write(_MARK)


def _check_schema(connection: apsw.Connection, path: str | None, texts: list[str]) -> int:
    """Return the schema's version (0: none yet), or raise ConfigError saying what to do."""
    if not connection.execute("select count(*) from sqlite_schema where name = 'meta'").get:
        return 0
    facts: dict[Any, Any] = dict(connection.execute("select name, content from meta").fetchall())  # type: ignore[arg-type]
    return version_of(facts, texts, path)


# --- What is wrong, in words -----------------------------------------------------------------------------


def explain(
    error: apsw.Error, path: str | None, outcome: Literal["failed", "unknown"] = "failed"
) -> BackendError | ConfigError:
    """Return a SQLite error as one that says what to do."""
    where = path or "the store"
    if isinstance(error, apsw.CantOpenError | apsw.IOError) and _too_many_open():
        return BackendError(too_many_open(where), outcome)
    match error:
        case apsw.NotADBError():
            text = f"{where} is no outlast store, or it is damaged; name another file, or see `outlast doctor`"
            text += " and restore a backup"
        case apsw.CorruptError():
            text = f"{where} is damaged ({error}); copy the files away, see `outlast doctor`, restore a backup"
        case apsw.FullError():
            text = f"the disk that holds {where} is full; free some space and try again"
        case apsw.BusyError() | apsw.LockedError():
            text = f"another program keeps {where} locked ({error}); end it, then try again"
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return ConfigError(f"cannot open {where} for writing ({error}); check its owner, its mode and its folder's")
        case _:
            text = f"SQLite failed on {where}: {error}"
    return BackendError(text, outcome)


def too_many_open(where: str) -> str:
    """Say that this process, or the system, has no descriptor left."""
    return f"cannot use {where}: too many files are open; close some, or raise the limit (`ulimit -n`), and try again"


def _too_many_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def inspect(connection: apsw.Connection, path: str | None, deep: bool, now: int) -> Inspected:
    """Say what `outlast doctor` needs to know about this file; `deep` reads every page."""
    count = "select (select count(*) from scope), (select count(*) from entry where value is not null),"
    count += " (select count(*) from entry where expires_at <= ?), (select count(*) from history)"
    scopes, entries, unswept, past = connection.execute(count, (now,)).get
    facts = {
        "backend": f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
        "file": path or ":memory:",
        "bytes": str(_size(path)),
        "write-ahead log bytes": str(_size(path and path + "-wal")),
        "schema version": str(len(steps())),
        "scopes": str(scopes),
        "entries": str(entries),
        "expired, not yet swept": str(unswept),
        "past versions": str(past),
    }
    problems: list[str] = []
    if deep:
        connection.set_progress_handler(lambda: False, 100_000)  # a chance for Ctrl-C
        found = [row[0] for row in connection.execute("pragma integrity_check(20)").fetchall()]
        connection.set_progress_handler(None)
        problems = [f"the file is damaged: {line}" for line in found if line != "ok"]
    return Inspected(tuple(facts.items()), tuple(problems))


def _size(path: str | None) -> int:
    with suppress(OSError):
        return os.path.getsize(path) if path else 0
    return 0
