"""What one call costs: `set`, `get` and `set_many`, each beside apsw alone doing the same to the same file system."""

from __future__ import annotations

import cProfile
import pstats
from contextlib import closing

from measure import Contender, Line, Round, Setting, Spread, Target, in_turn, spread
from stores import Raw, connect, numbers, value

import outlast

KEY = "progress"
NAMES = [f"key-{number:03}" for number in range(100)]
ADDRESS = "nightly/2026-11-29/ingest"


def one_set(setting: Setting) -> list[Line]:
    """Measure `set`: durable, with twenty past values kept."""
    with _store(setting) as store, closing(_raw(setting)) as raw:
        rounds = in_turn([setting_one(store), raw_setting_one(raw)], 25, 40 if setting.quick else 160)
    return [
        Line("set: calls, against apsw alone", _rates(rounds), "×", Target("≥", 0.7)),
        Line("set: CPU above apsw alone", spread(ours.cpu - raw.cpu for ours, raw in rounds), "µs", Target("≤", 100)),
        Line("set: time of a call", spread(ours.wall for ours, _ in rounds), "µs"),
        Line("set: time of apsw alone", spread(raw.wall for _, raw in rounds), "µs"),
    ]


def one_get(setting: Setting) -> list[Line]:
    """Measure `get` of one key."""
    with _store(setting) as store, closing(_raw(setting)) as raw:
        raw.set(KEY, next(numbers))
        rounds = in_turn([getting_one(store), lambda calls: _repeat(raw, calls)], 1000, 10 if setting.quick else 40)
    return [
        Line("get: CPU of a call", spread(ours.cpu for ours, _ in rounds), "µs", Target("≤", 40)),
        Line("get: CPU of apsw alone", spread(raw.cpu for _, raw in rounds), "µs"),
    ]


def many_sets(setting: Setting) -> list[Line]:
    """Measure `set_many` of a hundred keys, with and without past values kept."""
    with _store(setting, 20) as kept, _store(setting, 0) as plain, closing(_raw(setting)) as raw:
        sides = [setting_many(kept), setting_many(plain), raw_setting_many(raw)]
        rounds = in_turn(sides, 4, 25 if setting.quick else 100)
    return [
        Line("set_many of 100, 20 past values, against apsw alone", _rates(rounds, 0), "×", Target("≥", 0.25)),
        Line("set_many of 100, no history, against apsw alone", _rates(rounds, 1), "×", Target("≥", 0.4)),
    ]


def profile(setting: Setting, name: str) -> None:
    """Print where the time of a call goes."""
    with _store(setting) as store:
        make, calls = {"set": (setting_one, 3000), "get": (getting_one, 20_000), "set_many": (setting_many, 100)}[name]
        contender = make(store)
        contender(calls // 10)
        profiler = cProfile.Profile()
        profiler.runcall(contender, calls)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


# --- The contenders -----------------------------------------------------------------------------------------------


def setting_one(store: outlast.Store) -> Contender:
    state = store.task(ADDRESS, attempt="new")

    def work(calls: int) -> None:
        for _ in range(calls):
            state.set(KEY, value(next(numbers)))

    return work


def raw_setting_one(raw: Raw) -> Contender:
    def work(calls: int) -> None:
        for _ in range(calls):
            raw.set(KEY, next(numbers))

    return work


def setting_many(store: outlast.Store) -> Contender:
    state = store.task(ADDRESS, attempt="new")

    def work(calls: int) -> None:
        for _ in range(calls):
            number = next(numbers)
            state.set_many({name: value(number) for name in NAMES})

    return work


def raw_setting_many(raw: Raw) -> Contender:
    def work(calls: int) -> None:
        for _ in range(calls):
            raw.set_many(NAMES, next(numbers))

    return work


def getting_one(store: outlast.Store) -> Contender:
    state = store.task(ADDRESS, attempt="new")
    state.set(KEY, value(next(numbers)))

    def work(calls: int) -> None:
        for _ in range(calls):
            state.get(KEY)

    return work


def _repeat(raw: Raw, calls: int) -> None:
    for _ in range(calls):
        raw.get(KEY)


def _store(setting: Setting, history: int = 20) -> outlast.Store:
    return connect(setting.folder / f"history-{history}.db", history_versions=history)


def _raw(setting: Setting) -> Raw:
    return Raw(setting.folder / "raw.db")


def _rates(rounds: list[tuple[Round, ...]], ours: int = 0) -> Spread:
    """Return how many calls one side makes while apsw alone, the last side, makes one."""
    return spread(sides[-1].wall / sides[ours].wall for sides in rounds)
