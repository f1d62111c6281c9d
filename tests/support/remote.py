"""A place to run DAG files behind a real server, with workers of another user where that is possible."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from outlast import connect
from outlast.config import Config, StateStoreSettings
from outlast.requests import LIBRARY
from outlast.token_requests import BYTES, CreateToken, digest_of, token_text

from .running import PROGRAM, Ground, Program
from .servers import ServerProcess

#: Who workers run as where the tests run as root.
NOBODY = "nobody"


class Remote(Ground):
    """A folder with DAG files, and a server of a store elsewhere: a file, or the URL of a database."""

    def __init__(self, lease: float = 10.0, url: str | None = None, user: str | None = None) -> None:
        self.root = Path(
            tempfile.mkdtemp(prefix="outlast-remote-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        )
        self.root.chmod(0o755)
        super().__init__(self.root / "ground", lease)
        self.folder.chmod(0o777)
        self.secret = self.root / "secret"
        self.secret.mkdir(mode=0o700)
        self.place: Any = url or self.secret / "s.db"
        self.user, self.python = user, sys.executable if user is None else able(user)
        del self.env["OUTLAST_URL"]
        path = [self.env["PYTHONPATH"], *(each for each in sys.path if each.endswith("site-packages"))]
        self.env |= {
            "PYTHONPATH": os.pathsep.join(path),
            "OUTLAST_TOKEN": self.token("runner"),
            "OUTLAST__RUNNER__LOGS_DIR": str(self.secret / "logs"),
            "XDG_STATE_HOME": str(self.secret / "state"),
            "OUTLAST__RUNNER__PASS_ENVIRONMENT": "GROUND",
        }
        self.server = self.another_server()
        self.server.start()

    def another_server(self) -> ServerProcess:
        """Return a server of the same store that is not started yet."""
        name = self.secret / f"server-{len(list(self.secret.iterdir()))}.db"
        name.with_suffix(".out").touch()
        made = ServerProcess(name)
        made.command[made.command.index(str(name))] = str(self.place)
        return made

    def token(self, role: Any, dags: tuple[str, ...] = ("*",)) -> str:
        """Make a token, as `outlast token create` does."""
        text = token_text(role, os.urandom(BYTES))
        self.send(CreateToken(digest_of(text), role, "test", LIBRARY, dags))
        return text

    def start(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        before: list[str] | None = None,
        server: ServerProcess | None = None,
    ) -> Program:
        """Begin `outlast run`, of d.py unless said otherwise."""
        given = arguments if any(argument.endswith(".py") for argument in arguments) else ("d.py", *arguments)
        where = ["--server", (server or self.server).url, *(["--run-as", self.user] if self.user else [])]
        return self._begin([self.python, *PROGRAM[1:], "run", *given, *where], self.env | (env or {}))

    @property
    def store(self) -> Any:
        if self._store is None:
            config = Config(state_store=StateStoreSettings(durability="process"))
            self._store = connect(self.place, config=config)
        return self._store

    def log(self, task_id: str, attempt: int = 1, run_id: str = "r") -> str:
        return (self.secret / "logs" / "d" / run_id / task_id / f"attempt-{attempt}.log").read_text()

    def close(self) -> None:
        super().close()
        if self.server.process is not None:
            self.server.kill()
        shutil.rmtree(self.root, ignore_errors=True)


@functools.cache
def able(user: str) -> str | None:
    """Return an interpreter of this version that a user can run, and import what the tests do with."""
    if os.geteuid() != 0:
        return None
    found = pwd.getpwnam(user)
    path = os.pathsep.join([str(Path(connect.__code__.co_filename).parent.parent), *sys.path])
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            tried = subprocess.run(
                [python, "-P", "-c", "import outlast.runner.worker, outlast.backends.http"],
                env={"PYTHONPATH": path},
                cwd="/",
                capture_output=True,
                user=found.pw_uid,
                group=found.pw_gid,
                extra_groups=[],
                check=False,
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    return None


def made(url: str | None = None, lease: float = 10.0) -> Remote:
    """Return such a place, whose workers are nobody's where the tests run as root."""
    return Remote(lease, url, NOBODY if able(NOBODY) else None)
