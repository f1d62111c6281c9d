"""What a triggerer shows its runner without being asked: signs of life, and which trigger has the event loop now."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Coroutine, Generator
from typing import Any, TypeAlias

__all__ = ["NOBODY", "Board", "Key", "Shown"]

#: A deferral: scope id, attempt, number. A watcher of assets is (a negative number, 0, 0).
Key: TypeAlias = tuple[int, int, int]

NOBODY: Key = (0, 0, 0)

_BEAT, _KEY = struct.Struct("<d"), struct.Struct("<qqq")
_SIZE = _BEAT.size + 2 * _KEY.size


class Board:
    """A few bytes of memory two processes share; the file they are in has no name.

    It is looked at by reading the file: the memory of a file that the other process has cut short ends who touches it.
    """

    def __init__(self, file: int | None = None) -> None:
        """Make one, or use that of an open file."""
        self._file = None
        if file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self._file.truncate(_SIZE)
            file = self._file.fileno()
        self.file = file
        self._memory = mmap.mmap(file, _SIZE)

    @property
    def beat_at(self) -> float:
        """When there was the last sign of life, by `time.monotonic`, which processes share; 0 before the first."""
        moment: float = _BEAT.unpack(self._read(_BEAT, 0))[0]
        return moment

    @beat_at.setter
    def beat_at(self, moment: float) -> None:
        _BEAT.pack_into(self._memory, 0, moment)

    @property
    def key(self) -> Key:
        """Whose code runs in the event loop now."""
        return _KEY.unpack(self._read(_KEY, _BEAT.size))

    @key.setter
    def key(self, key: Key) -> None:
        _KEY.pack_into(self._memory, _BEAT.size, *key)

    @property
    def thread_key(self) -> Key:
        """Whose code was the last to begin in a thread, of what runs in threads now."""
        return _KEY.unpack(self._read(_KEY, _BEAT.size + _KEY.size))

    @thread_key.setter
    def thread_key(self, key: Key) -> None:
        _KEY.pack_into(self._memory, _BEAT.size + _KEY.size, *key)

    def _read(self, kind: struct.Struct, place: int) -> bytes:
        return os.pread(self.file, kind.size, place).ljust(kind.size, b"\0")

    def close(self) -> None:
        """Let it go; the other process keeps its own."""
        self._memory.close()
        if self._file is not None:
            self._file.close()


class Shown(Coroutine[Any, Any, None]):
    """A coroutine whose key is on a board while its code runs."""

    def __init__(self, work: Coroutine[Any, Any, None], board: Board, key: Key) -> None:
        self._work, self._board, self._key = work, board, key

    def send(self, value: Any) -> Any:
        self._board.key = self._key
        try:
            return self._work.send(value)
        finally:
            self._board.key = NOBODY

    def throw(self, *error: Any) -> Any:
        self._board.key = self._key
        try:
            return self._work.throw(*error)
        finally:
            self._board.key = NOBODY

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()
