"""What the tests of payloads share: an object store that fails where a test says, and keys set in Airflow's order."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from fsspec.implementations.memory import MemoryFileSystem

from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payloads import Payloads
from outlast.integrations.airflow.references import References
from outlast.testing import Clock

from .rows_in_sqlite import SqliteRows, Task

__all__ = ["PLACE", "Asset", "Raising", "keeper", "large", "put"]

PLACE = "t" + "1" * 31 + "/" + "2" * 32


class Asset(msgspec.Struct, frozen=True):
    """What Airflow's scope of an asset has."""

    name: str | None = "orders"
    uri: str | None = None


class Raising(MemoryFileSystem):
    """Objects in memory; the calls named in `failing` raise."""

    protocol = "raising"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failing: ClassVar[set[str]] = set()

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self.refuse("pipe_file")
        super().pipe_file(path, value, **options)

    def cat_file(self, path: str, **options: Any) -> bytes:
        self.refuse("cat_file")
        found: bytes = super().cat_file(path, **options)
        return found

    def rm_file(self, path: str) -> None:
        self.refuse("rm_file")
        super().rm_file(path)

    def find(self, path: str, **options: Any) -> Any:
        self.refuse("find")
        return super().find(path, **options)

    def exists(self, path: str, **options: Any) -> bool:
        self.refuse("exists")
        return bool(super().exists(path, **options))

    def refuse(self, call: str) -> None:
        if call in self.failing:
            raise ConnectionResetError(f"no {call} today")


def large(letter: str) -> str:
    return letter * 300


def keeper(payloads: Payloads, clock: Clock | None = None) -> References:
    return References(Packer(-1), payloads, 100, clock or Clock())


def put(references: References, rows: SqliteRows, value: Any, key: str = "key", scope: Any = Task()) -> None:  # noqa: B008
    """Set a value in Airflow's order: the reference is made, then the row."""
    rows.put(key, references.refer(value, scope, key, lambda: rows.held(key)))
