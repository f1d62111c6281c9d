"""Rounds taken in turn, the spread of what they measured, and the lines of the table.

A shared machine gets faster and slower by itself, so contenders take turns within one run and are
compared round by round: a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

MICRO = 1e6

#: Does its work so many times.
Contender = Callable[[int], None]


class Setting(NamedTuple):
    """What a figure needs to know: a folder of its own, whether to be quick, and whom to tell how far it is."""

    folder: Path
    quick: bool
    progress: Callable[[str], None]


class Round(NamedTuple):
    """What one round took, by the clock and of CPU (the kernel's part included)."""

    wall: float
    cpu: float


class Spread(NamedTuple):
    """The smallest, middle and largest of what the rounds measured."""

    low: float
    median: float
    high: float


class Target(NamedTuple):
    """What a figure should be: `sign` is "≥" or "≤"; `worst` holds the worst round to it, not the middle one."""

    sign: str
    bound: float
    worst: bool = False

    def met(self, spread: Spread) -> bool:
        """Say whether the figure is as it should be."""
        if self.sign == "≥":
            return (spread.low if self.worst else spread.median) >= self.bound
        return (spread.high if self.worst else spread.median) <= self.bound


class Line(NamedTuple):
    """One line of the table; without a target it is there for comparison."""

    what: str
    spread: Spread
    unit: str
    target: Target | None = None


def spread(values: Iterable[float]) -> Spread:
    """Return the smallest, middle and largest of some values."""
    ordered = sorted(values)
    return Spread(ordered[0], statistics.median(ordered), ordered[-1])


def in_turn(contenders: Sequence[Contender], calls: int, rounds: int) -> list[tuple[Round, ...]]:
    """Let contenders take turns and return each round's microseconds a call.

    A first round does not count; each later one begins with another contender.
    """
    for contender in contenders:
        contender(calls)
    taken = []
    for number in range(rounds):
        turns = [(number + place) % len(contenders) for place in range(len(contenders))]
        measured = {turn: _measure(contenders[turn], calls) for turn in turns}
        taken.append(tuple(measured[place] for place in range(len(contenders))))
    return taken


def _measure(contender: Contender, calls: int) -> Round:
    wall, cpu = time.perf_counter(), time.process_time()
    contender(calls)
    return Round((time.perf_counter() - wall) / calls * MICRO, (time.process_time() - cpu) / calls * MICRO)
