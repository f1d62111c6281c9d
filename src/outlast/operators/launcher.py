"""The process between a worker and a command it has submitted: outlives both, and writes down how the command ended.

Run as a script with `{"folder": …, "command": […], "cwd": …}` on standard input; it uses the standard library only.
It makes itself a session, and the folder its own: of several launchers for one folder only the first runs the command.

    lock      held for as long as the launcher lives
    job.json  the launcher: host, pid, start time; written before the command is started
    stdout    what the command has written
    stderr
    status.json  its exit status, once it has ended; negative for the signal it died by
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from functools import cache
from typing import Any

__all__ = ["JOB", "STATUS", "host", "is_alive", "read", "started", "write"]

JOB, STATUS = "job.json", "status.json"
#: Exit status of a command that cannot be started, as a shell has it.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def main() -> None:
    """Become a process of its own, and run the command unless another launcher has."""
    spec = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    lock = os.open(os.path.join(spec["folder"], "lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(0)
    if read(spec["folder"], JOB) is None:
        try:
            os.chdir(spec["cwd"] or ".")
            _run(spec["folder"], spec["command"])
        except OSError as error:
            os.write(2, f"{error}\n".encode())
    os._exit(0)


def _run(folder: str, command: list[str]) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it must stay to say how the command ended
    null = os.open(os.devnull, os.O_RDWR)
    write(folder, JOB, {"host": host(), "pid": os.getpid(), "started": started(os.getpid())})
    for place in (0, 1, 2):  # from here on nothing is said to the worker, which takes what is for a refusal
        os.dup2(null, place)
    pid = os.fork()
    if pid == 0:
        _become(folder, command)
    _, status = os.waitpid(pid, 0)
    write(folder, STATUS, {"exit_status": os.waitstatus_to_exitcode(status), "ended_at": time.time()})


def _become(folder: str, command: list[str]) -> None:
    """Turn this fork into the command."""
    try:
        for place, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), place)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
    finally:
        os._exit(70)


# --- What both sides know ----------------------------------------------------------------------------------


def write(folder: str, name: str, facts: dict[str, Any]) -> None:
    """Write a file all at once, so that it is read whole or not at all, also after a power loss."""
    part = os.path.join(folder, f"{name}.{os.getpid()}")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(facts, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, os.path.join(folder, name))


def read(folder: str, name: str) -> dict[str, Any] | None:
    """Return what is in a file, None where there is none."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            facts: dict[str, Any] = json.load(file)
            return facts
    except FileNotFoundError:
        return None


def host() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


@cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """Return when a process started, with the boot it belongs to; None if there is none, or only its remains."""
    if sys.platform == "linux":
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"
    import subprocess  # which a launcher on Linux need not load

    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, since = shown.stdout.strip().partition(" ")
    return since.strip() if since and not state.startswith("Z") else None


def is_alive(job: dict[str, Any]) -> bool:
    """Say whether a job of this host still runs: its launcher, or what that has left of its group if it was killed.

    While a group has members the system gives its number to no other process; a boot ends all of them.
    """
    since = started(job["pid"])
    if since is not None:
        return bool(since == job["started"])
    if not job["started"].startswith(f"{_boot()}:"):
        return False
    try:
        os.killpg(job["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _has_members(job["pid"])


def _has_members(group: int) -> bool:
    """Say whether more than remains of dead processes is in a group."""
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2] == str(group) and fields[0] not in "ZX":
            return True
    return not os.path.isdir("/proc/self")


if __name__ == "__main__":
    main()
