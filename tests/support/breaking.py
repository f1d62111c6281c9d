"""Makes a store's file fail, and heal again, under whoever has it open."""

from __future__ import annotations

from pathlib import Path

import apsw


def rename_table(file: Path, table: str, name: str) -> None:
    """Give a table of a SQLite file another name: what needs it fails until it has its own again."""
    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(5000)
    connection.execute("pragma legacy_alter_table = on")
    connection.execute(f"alter table {table} rename to {name}")
    connection.close()
