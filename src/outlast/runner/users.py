"""The user that workers run as, where that is another than the runner's: what they get, and what is done as them."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from ..config import RunnerSettings
from ..errors import ConfigError
from ..run_requests import ProcessRef

__all__ = ["User", "check", "environment", "kill_groups", "user_of"]

#: Variables every worker of another user is given, where the runner has them.
PASSED = ("PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "PYTHON*", "VIRTUAL_ENV")
#: Variables no worker is ever given.
KEPT = frozenset({"OUTLAST_TOKEN", "OUTLAST__CLIENT__TOKEN"})
#: Seconds the check may take that a DAG file can be read.
CHECK_FOR = 60.0

_CHECK = "import sys, outlast.runner.worker\nfor path in sys.argv[1:]: open(path, 'rb').close()"


class User(msgspec.Struct, frozen=True):
    """A user of this machine, with all their groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def options(self) -> dict[str, Any]:
        """What `subprocess` takes to run a program as them."""
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}


@cache
def _named(name: str) -> User:
    import pwd

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"there is no user {name!r} on this machine; [runner] run_as names one") from None
    return User(name, found.pw_uid, found.pw_gid, tuple(os.getgrouplist(name, found.pw_gid)), found.pw_dir)


def user_of(settings: RunnerSettings) -> User | None:
    """Return the user that workers run as, None: the runner's own; ConfigError if this process may not do that."""
    if settings.run_as is None:
        return None
    user = _named(settings.run_as)
    if user.uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise ConfigError(
            f"only root can have workers run as {user.name}; start `outlast run` as root, or as {user.name}"
        )
    return user


def environment(user: User | None, settings: RunnerSettings, url: str) -> dict[str, str]:
    """Return the environment of a worker whose store is behind a server: without the runner's token.

    One of another user has only what it needs, and what `[runner] pass_environment` names.
    """
    told = {"OUTLAST__CLIENT__FIND_TOKEN": "false"}
    if user is None:
        return _without(os.environ, KEPT) | told
    names = (*PASSED, *settings.pass_environment)
    passed = {
        name: value for name, value in os.environ.items() if any(fnmatch.fnmatchcase(name, each) for each in names)
    }
    who = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "OUTLAST_URL": url}
    return _without(passed, KEPT) | who | told


def _without(environ: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def check(user: User, environ: Mapping[str, str], files: Iterable[str]) -> None:
    """Raise ConfigError if a user cannot start workers here: run the interpreter, import outlast, read the files."""
    command = [sys.executable, "-P", "-c", _CHECK, *files]
    try:
        tried = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_FOR, **user.options
        )
        why = tried.stderr.decode(errors="replace").strip().rpartition("\n")[2] if tried.returncode else None
    except (OSError, subprocess.SubprocessError) as error:
        why = f"{error}"
    if why is not None:
        raise ConfigError(
            f"workers cannot run as {user.name}: {why or 'the interpreter does not start'}; that user must be able to "
            f"run {sys.executable}, to import outlast, and to read the DAG files"
        )


def kill_groups(user: User | None, found: Iterable[ProcessRef | None]) -> None:
    """Kill process groups that the store names, which a worker may have made up: no more than its user could kill."""
    from . import processes

    if user is None:
        processes.kill_groups(found)
        return
    groups = [each for each in found if each is not None and processes.has_group(each)]
    if groups:
        names = " ".join(f"-{each.pid}" for each in groups)
        command = ["/bin/sh", "-c", f"kill -s KILL -- {names}"]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL, **user.options)
        processes.wait_for(groups)
