"""A large store: the bytes an entry takes, and what its size does to a read."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from measure import Contender, Line, Setting, Spread, Target, in_turn, spread
from stores import connect, numbers

import outlast
from outlast import JsonValue, TaskScope

NAMES = (
    "attempts",
    "cursor",
    "etag",
    "last_done",
    "last_page",
    "progress",
    "remote_job_id",
    "rows_loaded",
    "started_at",
    "watermark",
)
#: Keys that are read; a large store has the pages of few of them in SQLite's own cache.
KEYS = 4000
READS = 1000


def size(setting: Setting) -> list[Line]:
    """Measure the bytes of an entry in a large store, and a `get` from it against one from a small store."""
    scopes = 10_000 if setting.quick else 100_000
    large, small = setting.folder / "large.db", setting.folder / "small.db"
    _fill(large, scopes, setting)
    _fill(small, 100, setting)
    entries = scopes * len(NAMES)
    bytes_each = large.stat().st_size / entries
    with connect(large, durability="process") as large_store, connect(small, durability="process") as small_store:
        sides = [_getting(large_store, scopes), _getting(small_store, 100)]
        rounds = in_turn(sides, READS, 10 if setting.quick else 40)
    return [
        Line(f"size: bytes an entry, of {entries:,}", Spread(bytes_each, bytes_each, bytes_each), "", Target("≤", 150)),
        Line(
            f"size: get from {entries:,} against 1,000 entries",
            spread(large_round.wall / small_round.wall for large_round, small_round in rounds),
            "×",
            Target("≤", 1.5),
        ),
        Line(f"size: get from {entries:,} entries", spread(large_round.wall for large_round, _ in rounds), "µs"),
    ]


def _scope(number: int) -> TaskScope:
    """Return one of the scopes that twenty DAGs of fifty tasks leave behind, one run after the other."""
    run, task = divmod(number, 1000)
    day, month = run % 28 + 1, run // 28 + 1
    run_id = f"scheduled__2026-{month:02}-{day:02}T00:00:00+00:00"
    return TaskScope(f"dag_{task % 20:02}", run_id, f"task_{task // 20:02}")


def _fill(path: Path, scopes: int, setting: Setting) -> None:
    """Write ten entries in each scope, one call a scope; closing the store leaves all of it in the file."""
    with connect(path, durability="process", history_versions=0) as store:
        for number in range(scopes):
            if number % 1000 == 0:
                setting.progress(f"size: {number * len(NAMES):,} of {scopes * len(NAMES):,} entries")
            store.task(_scope(number)).set_many({name: _value(next(numbers)) for name in NAMES})


def _value(number: int) -> JsonValue:
    return {"page": number, "rows": number * 100}


def _getting(store: outlast.Store, scopes: int) -> Contender:
    """Return a contender that reads keys chosen at random, the same ones in every run, each from time to time."""
    choice = random.Random(2)
    chosen = [choice.randrange(scopes) for _ in range(KEYS)]
    states = {number: store.task(_scope(number), attempt="new") for number in chosen}
    picked = [(states[number], choice.choice(NAMES)) for number in chosen]
    coming = itertools.cycle(picked)

    def work(calls: int) -> None:
        for state, name in itertools.islice(coming, calls):
            state.get(name)

    work(KEYS)
    return work
