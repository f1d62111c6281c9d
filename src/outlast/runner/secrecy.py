"""What a runner keeps from the tasks it starts, as far as the system lets it: its own token.

Tasks that run as the runner's own user share its files all the same; only another user is a wall between them.
"""

from __future__ import annotations

import os
import sys

from .users import KEPT

__all__ = ["closed_to_others", "keep_token", "with_token"]

_PR_SET_DUMPABLE = 4

_kept: dict[str, str] = {}


def keep_token() -> None:
    """Take the token out of this process's environment, and close its memory to other processes of its user."""
    for name in KEPT:
        if name in os.environ:
            _kept[name] = os.environ.pop(name)
    closed_to_others()


def with_token() -> dict[str, str]:
    """Return the environment of a process that is to show the runner's token, too."""
    return {**os.environ, **_kept}


def closed_to_others() -> None:
    """Close this process's memory, and what it was started with, to others of its user: on Linux, but for root."""
    if sys.platform == "linux" and os.geteuid() != 0:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
