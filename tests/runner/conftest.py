"""A ground of its own for each test of the runner, on which nothing is left running afterwards."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.remote import Remote, made
from support.running import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """A place for DAG files, whose runs have leases that do not lapse by chance."""
    yield from _ground(tmp_path, 10.0)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Ground]:
    """The same with leases of a second, for what is about their lapse."""
    yield from _ground(tmp_path, 1.0)


@pytest.fixture
def remote() -> Iterator[Remote]:
    """A server, and a place for DAG files whose workers are nobody's where the tests run as root."""
    place = made()
    yield place
    place.close()


def _ground(folder: Path, lease: float) -> Iterator[Ground]:
    if sys.platform != "linux":
        pytest.skip("optional: processes are looked at in /proc")
    signals = (signal.SIGINT, signal.SIGHUP)  # ignored where tests run in the background, and that is inherited
    ignored = [name for name in signals if signal.getsignal(name) == signal.SIG_IGN]
    for name in ignored:
        signal.signal(name, signal.SIG_DFL)
    ground = Ground(folder / "ground", lease)
    try:
        yield ground
    finally:
        ground.close()
        for name in ignored:
            signal.signal(name, signal.SIG_IGN)
