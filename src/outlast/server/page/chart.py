"""A small chart of a number's history: one line, from the oldest kept version to the newest; pure geometry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from .shapes import Version

__all__ = ["HEIGHT", "WIDTH", "Chart", "chart"]

WIDTH: Final = 300.0
HEIGHT: Final = 40.0


class Chart(msgspec.Struct, frozen=True):
    """Points of a line in a box of WIDTH × HEIGHT, the least and the largest number as stored, and its time span."""

    points: str
    least: str
    largest: str
    seconds: float


def chart(versions: Sequence[Version]) -> Chart | None:
    """Return the chart of versions (newest first), None unless two of them or more are numbers."""
    numbers = [
        (version.at.timestamp(), number, bytes(version.value).decode())
        for version in reversed(versions)
        if (number := _number(version)) is not None
    ]
    if len(numbers) < 2:
        return None
    begin, end = numbers[0][0], numbers[-1][0]
    least, largest = min(numbers, key=lambda each: each[1]), max(numbers, key=lambda each: each[1])
    across, up = (end - begin) or 1.0, (largest[1] / 2 - least[1] / 2) or 1.0  # halves: the whole may be infinite
    points = [
        f"{(at - begin) / across * WIDTH:.1f},{HEIGHT - (number / 2 - least[1] / 2) / up * HEIGHT:.1f}"
        for at, number, _ in numbers
    ]
    return Chart(" ".join(points), least[2], largest[2], end - begin)


def _number(version: Version) -> float | None:
    if version.masked or version.deleted:
        return None
    try:
        number = float(bytes(version.value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
