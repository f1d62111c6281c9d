"""A store with something in every table, and what is in a store as a backup has it."""

from __future__ import annotations

import io
from typing import Any

import msgspec

from outlast import Store, backup
from outlast.event_requests import AddEvents, ConsumedUntil, HoldWatchers, NewEvent
from outlast.run_requests import PushResult, TaskSpec
from outlast.tables import TABLES
from outlast.token_requests import CreateToken, MakeSecret, digest_of
from outlast.values import NEVER_EXPIRE

from .runs import ANN, RUNNER, Desk

TOKEN = "outl_v_" + "7" * 43
#: What is hard to carry from one database to another.
VALUES: dict[str, Any] = {
    "big": 2**70,
    "small": -(2**63),
    "nul": "a\x00b",
    "emoji": "🦆 \u2028 \ud7ff \uffff",
    "deep": [[[{"k": [1.5e300, -0.0, None, True]}]]],
    "empty": {},
    "quotes": "\\N \\. \t\n\r\"'%s ?",
    "long": "x" * 100_000,
    "a key with blanks/and ünïcödé": 1,
}


def fill(store: Store) -> None:
    """Put something in every table: state with history and tombstones, a run in the middle, events, tokens."""
    state = store.task("dag 🦆/rün 1/task", attempt="new", writer=ANN)
    for key, value in VALUES.items():
        state.set(key, "before")
        state.set(key, value, retention=NEVER_EXPIRE)
    state.set("gone", 1)
    state.delete("gone")
    store.task("dag/run/each", item="a 🦆 key", writer=ANN).set("place", 1)
    store.asset("orders", uri="s3://bucket/orders", writer=ANN).set("watermark", "2026-11-29")
    desk = Desk(store.backend)
    flags = TaskSpec("flags", clear_on_success=True, discard_on_clear=False)
    desk.start("zebra", ("apple", "zebra"), flags, TaskSpec("each", mapped=True), "mango")
    desk.ran("zebra", "failed", error="ValueError: a 🦆\nof many")
    desk.begin("mango")
    desk.send(PushResult(desk.fence("mango"), "rows", "[1, 2.50]"))
    desk.send(AddEvents((NewEvent("orders", None, '{"n":1}'),)))
    desk.send(ConsumedUntil("consumer"))
    desk.send(HoldWatchers(("ab12",), RUNNER, 30.0))
    desk.send(CreateToken(digest_of(TOKEN), "viewer", "ann", ANN))
    desk.send(MakeSecret(ANN))
    assert all(contents(store).values())


def made(store: Store, **how: Any) -> bytes:
    """Return a backup of a store."""
    file = io.BytesIO()
    backup.write(store.backend, file, store.clock(), "0.0.test", **how)
    return file.getvalue()


def restored(store: Store, data: bytes, **how: Any) -> backup.Summary:
    """Fill a store with a backup."""
    return backup.restore(store.backend, io.BytesIO(data), ANN, **how)


def contents(store: Store) -> dict[str, list[Any]]:
    """Return every row of every table in order, but for what restoring audits."""
    return rows_of(made(store))


def rows_of(data: bytes) -> dict[str, list[Any]]:
    """Return the rows of a backup; task instances by id, since SQLite has them in that order only."""
    found: dict[str, list[Any]] = {name: [] for name in TABLES}
    rows: list[Any] = []
    for line in data.splitlines()[1:-1]:
        known = msgspec.json.decode(line)
        if isinstance(known, dict):
            rows = found[known["table"]]
        else:
            rows.append(known)
    found["audit"] = [row for row in found["audit"] if row[3] != "restore"]
    found["task"].sort(key=lambda row: row[0])
    return found
