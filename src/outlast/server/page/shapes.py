"""What the API answers, as the page reads it: values stay the text they were sent as, digit for digit."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ..outlast_shapes import ScopeShape, TaskShape

__all__ = ["Entries", "Entry", "Found", "FoundOne", "History", "Run", "RunDetail", "Runs", "Version", "Writer"]


class Writer(msgspec.Struct):
    kind: str
    attempt: int | None
    name: str | None
    scope: str | None

    def __str__(self) -> str:
        if self.kind == "task":
            return f"{self.scope} attempt {self.attempt}" if self.scope else f"attempt {self.attempt}"
        return f"{self.kind} {self.name}" if self.name else self.kind


class Entry(msgspec.Struct):
    key: str
    value: msgspec.Raw
    masked: bool
    bytes: int | None
    revision: int
    etag: str | None
    updated_at: datetime
    expires_at: datetime | None
    writer: Writer


class Entries(msgspec.Struct):
    entries: list[Entry]
    revision: int
    after: str | None


class Version(msgspec.Struct):
    value: msgspec.Raw
    masked: bool
    deleted: bool
    revision: int
    at: datetime
    writer: Writer


class History(msgspec.Struct):
    key: str
    versions: list[Version]


class FoundOne(msgspec.Struct):
    scope: ScopeShape
    entry: Entry


class Found(msgspec.Struct):
    found: list[FoundOne]
    more: bool


class Run(msgspec.Struct):
    dag_id: str
    run_id: str
    state: str
    params: msgspec.Raw
    file: str
    logical_date: datetime
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    tasks: dict[str, int]


class Runs(msgspec.Struct):
    runs: list[Run]
    before: int | None


class RunDetail(msgspec.Struct):
    run: Run
    task_instances: list[TaskShape]
