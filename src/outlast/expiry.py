"""When a value that is written expires: by its retention, and by the settings where it has none."""

from __future__ import annotations

from datetime import datetime, timedelta

from .values import NEVER_EXPIRE, to_micros

__all__ = ["expiry_of"]

_DAY = 24 * 3600 * 1_000_000
_LAST_MOMENT = to_micros(datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"))


def expiry_of(retention: timedelta | None, now: int, default_days: int) -> int | None:
    """Return when a value written at `now` expires, in microseconds; None for never (contract 3.1)."""
    if retention is None:
        return min(now + default_days * _DAY, _LAST_MOMENT) if default_days else None
    if not isinstance(retention, timedelta):
        raise TypeError(
            f"retention is a {type(retention).__name__}; use a timedelta, NEVER_EXPIRE or None: timedelta(days=7)"
        )
    if retention == NEVER_EXPIRE:
        return None
    if retention <= timedelta(0):
        raise ValueError(f"retention is {retention}; it must be positive: to remove a key use delete(key)")
    expires_at = now + retention // timedelta(microseconds=1)
    if expires_at > _LAST_MOMENT:
        raise ValueError(f"retention of {retention.days:,} days ends after the year 9999; use NEVER_EXPIRE")
    return expires_at
