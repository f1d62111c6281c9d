"""How much may be claimed or freed at once, and what may be claimed: for a day at most, and watchers only; pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import InvalidValue
from ..event_requests import HoldWatchers
from ..requests import Sweep
from .identity import Who

__all__ = ["LONGEST_LEASE", "MOST_SWEPT", "leased", "swept", "watched"]

#: Seconds a lease may be asked for at most: as many as the setting allows.
LONGEST_LEASE = 86_400.0
#: Entries that are swept in one batch at most: writers wait for its end.
MOST_SWEPT = 10_000
#: What a watcher is known by. A claim of the server's own has a blank in its name.
_WATCHER = re.compile("[0-9a-z]{1,64}")


def leased(narrowed: Callable[[Any, Who], Any]) -> Callable[[Any, Who], Any]:
    """Return how a claim is narrowed, of any kind: nothing makes itself look alive for ever."""

    def narrow(request: Any, who: Who) -> Any:
        return narrowed(msgspec.structs.replace(request, lease=min(request.lease, LONGEST_LEASE)), who)

    return narrow


def watched(request: HoldWatchers, who: Who) -> HoldWatchers:
    """Claims on watchers, and on nothing else; that a process is dead is believed of its own host's only."""
    for watcher in request.watchers:
        if not _WATCHER.fullmatch(watcher):
            raise InvalidValue(f"{watcher[:80]!r} is no watcher; they are known by small letters and digits")
    dead = tuple(process for process in request.dead if process.host == request.holder.host)
    return msgspec.structs.replace(request, dead=dead)


def swept(request: Sweep, who: Who) -> Sweep:
    """What has expired is nobody's any more, so it goes whoever asks; not more in a batch than writers can wait for."""
    return msgspec.structs.replace(request, limit=min(request.limit, MOST_SWEPT))
