"""Equality as the store promises it: the same types all the way down, floats bit for bit, keys in order."""

from __future__ import annotations

import struct
from typing import Any


def exact(one: Any, other: Any) -> bool:
    """Say whether two JSON values are the same in type, in bits and in order."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return struct.pack("d", one) == struct.pack("d", other)
        case list():
            return len(one) == len(other) and all(map(exact, one, other))
        case dict():
            return exact(list(one), list(other)) and all(map(exact, one.values(), other.values()))
    return bool(one == other)
