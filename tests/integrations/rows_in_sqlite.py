"""Airflow's rows of state as far as a sweep and a rotation see them, in a plain SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from outlast.integrations.airflow.metadata import Row
from outlast.integrations.airflow.references import place_of
from outlast.integrations.airflow.rows import REFERENCE

__all__ = ["SqliteRows", "Task"]


class Task(msgspec.Struct, frozen=True):
    """What Airflow's scope of a task has."""

    task_id: str = "task"
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1


class SqliteRows:
    """Rows of (task, key, reference), or of a whole JSON document where `plain`."""

    def __init__(self, path: Path) -> None:
        self.rows = sqlite3.connect(path, isolation_level=None)
        self.rows.execute("create table if not exists state (task, key, reference, primary key (task, key))")
        self.expired: set[str] = set()

    def put(self, key: str, reference: str) -> None:
        self.rows.execute("insert or replace into state values ('task', ?, ?)", (key, reference))

    def put_document(self, key: str, text: str) -> None:
        """Write a row that holds its whole document."""
        self.put(key, "document:" + text)

    def text(self, key: str) -> str:
        return next(row.text for row in self.all() if row.id[1] == key)

    def reference(self, key: str) -> str:
        found: str = json.loads(self.text(key))[REFERENCE]
        return found

    def held(self, key: str) -> str | None:
        """Return the reference of a key as Airflow answers a task; None where there is none."""
        kept = self.rows.execute("select reference from state where key = ?", (key,)).fetchone()
        return kept[0] if kept else None

    def all(self) -> Iterator[Row]:
        for task, key, kept in self.rows.execute("select task, key, reference from state").fetchall():
            text = kept[9:] if kept.startswith("document:") else json.dumps({REFERENCE: kept})
            yield Row("task", (task, key), key, text, key in self.expired, (place_of(Task(task), key),))

    def replace(self, row: Row, text: str) -> bool:
        new = "document:" + text
        return bool(self._change("update state set reference = ? where task = ? and key = ?", row, new))

    def remove(self, row: Row) -> bool:
        return bool(self._change("delete from state where task = ? and key = ?", row))

    def _change(self, statement: str, row: Row, *values: str) -> int:
        if all(now.text != row.text for now in self.all() if now.id == row.id):
            return 0
        return self.rows.execute(statement, (*values, *row.id)).rowcount
