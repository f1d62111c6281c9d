"""Keeps a database file in use, and known, whatever else this process does with it.

SQLite's locks are POSIX locks: this process loses them when anything in it closes a descriptor of the
file, a copy or another SQLite library for instance; the next process then takes itself for the only
user and removes the write-ahead log. Locks of open file descriptions (Linux) stay, and so one guard
for each file in use holds those that say "in use". Its descriptors are closed last, for the same reason.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

try:
    import fcntl
except ImportError:  # Windows, which the SQLite backend refuses
    fcntl = None  # type: ignore[assignment]

from ..errors import BackendError

__all__ = ["Guard", "forget_all", "identity_of", "lost_text", "opening", "refuse_lost"]

#: Where the descriptor of a guard stands. Nobody reads through it, so one that stands elsewhere is not the guard's.
_PLACE = 0x4F_544C_5301
#: SQLite's lock bytes: the range of SHARED in the file, and the "dead man's switch" of the -shm file.
_SHARED, _SWITCH = (0x4000_0002, 510), (128, 1)

Identity = tuple[int, int]

_guards: dict[Identity, Guard] = {}
#: Held by who opens the first connection to a file and by who closes the last one.
opening = threading.RLock()


class Guard:
    """Holds one file for every store of this process that uses it."""

    def __init__(self, path: str) -> None:
        self.users = 0
        self._descriptors: list[int] = []
        try:
            self._open(path, *_SHARED)
            self.identity = _identity(os.fstat(self._descriptors[0]))
            self._open(os.path.realpath(path) + "-shm", *_SWITCH)
        except BaseException:
            self._close()
            raise
        os.lseek(self._descriptors[0], _PLACE, os.SEEK_SET)
        self._first = self._descriptors[0]

    @staticmethod
    def hold(path: str) -> Guard:
        """Return the guard of a file to which the caller has just opened a connection, `opening` held."""
        found = _guards.get(identity_of(path) or (0, 0))
        if found is None:
            found = Guard(path)
            _guards[found.identity] = found
        found.users += 1
        return found

    def lost(self) -> bool:
        """Tell whether somebody closed the descriptor, and then surely SQLite's too."""
        try:
            return os.lseek(self._first, 0, os.SEEK_CUR) != _PLACE
        except OSError:
            return True

    def leave(self, close_connections: Callable[[], None]) -> None:
        """Close the connections of one user; the last one gives the file free before."""
        with opening:
            self.users -= 1
            if self.users:
                close_connections()
                return
            _guards.pop(self.identity, None)
            try:
                for descriptor in self._descriptors:
                    _lock(descriptor, "F_UNLCK", 0, 0)
                close_connections()
            finally:
                self._close()

    def _open(self, path: str, start: int, length: int) -> None:
        self._descriptors.append(os.open(path, os.O_RDONLY))
        _lock(self._descriptors[-1], "F_RDLCK", start, length)

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def _lock(descriptor: int, kind: str, start: int, length: int) -> None:
    """Change a lock of an open file description, where the system has such; a length of 0 is the whole file."""
    how = getattr(fcntl, "F_OFD_SETLK", None)
    if how is not None:
        with suppress(OSError):  # a file system or kernel without them: as good as it was
            fcntl.fcntl(descriptor, how, struct.pack("hhqqi4x", getattr(fcntl, kind), os.SEEK_SET, start, length, 0))


def identity_of(path: str) -> Identity | None:
    """Return which file this is; None: there is none."""
    try:
        return _identity(os.stat(path))
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def refuse_lost(path: str) -> None:
    """Refuse a file that this process had open when its descriptors were closed: SQLite believes it still has."""
    found = _guards.get(identity_of(path) or (0, 0))
    if found is not None and found.lost():
        raise BackendError(lost_text(path))


def lost_text(path: str) -> str:
    """Say what became of a file whose guard is lost, and what to do."""
    return (
        f"something in this process closed the files of {path} while the store was open, and SQLite would now "
        "write elsewhere; start this process again, and close the store before you close descriptors"
    )


def forget_all() -> None:
    """Let go, in the child of a fork, of guards the parent goes on holding."""
    global opening
    opening = threading.RLock()
    for identity, guard in list(_guards.items()):
        if not guard.lost():  # else the numbers are another's by now
            del _guards[identity]
            guard._close()
