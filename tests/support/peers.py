"""A port that notes which processes connect to it, and answers none of them."""

from __future__ import annotations

import os
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


class Listener:
    """Takes connections on loopback and hangs up; `pids` are the processes at their other ends (Linux)."""

    def __init__(self, port: int = 0) -> None:
        self.pids: set[int] = set()
        self._asked = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def wait(self, seconds: float) -> None:
        """Wait for the first connection."""
        assert self._asked.wait(seconds), f"nobody connected to port {self.port} within {seconds} s"

    def _listen(self) -> None:
        while True:
            try:
                connection, (_, port) = self._socket.accept()
            except OSError:
                return
            with connection:
                self.pids |= _processes_at(port, self.port)
                self._asked.set()

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def _processes_at(port: int, other: int) -> set[int]:
    """Return who has the socket that is bound to a port and connected to another, both of this machine."""
    asked = re.compile(rf"^ *\d+: \w+:{port:04X} \w+:{other:04X} \w+ \S+ \S+ \S+ +\d+ +\d+ (\d+)", re.MULTILINE)
    sockets = {f"socket:[{inode}]" for inode in asked.findall(Path("/proc/net/tcp").read_text())}
    return {int(path.parent.parent.name) for path in Path("/proc").glob("[0-9]*/fd/*") if _target(path) in sockets}


def _target(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:  # it is gone, or another user's
        return None
