"""Tell processes apart over time: a pid alone may have been given to another one since."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from ..run_requests import ProcessRef

__all__ = [
    "has_group",
    "identify",
    "is_alive",
    "is_for_want_of_room",
    "is_here",
    "is_stopped",
    "kill_group",
    "kill_groups",
    "me",
    "wait_for",
]


@cache
def _host() -> str:
    return os.uname().nodename


@cache
def _boot() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read(8)
    return ""


def _started(pid: int) -> str | None:
    """Return when a process started, in the system's own words; None if there is none (or only its remains)."""
    if sys.platform == "linux":
        with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            return None if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"
        return None
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, since = shown.stdout.strip().partition(" ")
    return since.strip() if since and not state.startswith("Z") else None


def identify(pid: int) -> ProcessRef:
    """Return what to remember of a process to recognise it later."""
    return ProcessRef(_host(), pid, _started(pid) or "")


def me() -> ProcessRef:
    """Return what to remember of this process."""
    return identify(os.getpid())


def is_stopped(process: ProcessRef) -> bool:
    """Say whether a process is stopped, so that it does nothing for now; where that cannot be told, it is not."""
    with suppress(OSError), open(f"/proc/{process.pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] in "Tt"
    return False


def is_here(process: ProcessRef) -> bool:
    """Say whether a process is (or was) on this host, so that it can be looked at."""
    return process.host == _host()


def is_alive(process: ProcessRef) -> bool:
    """Say whether that very process still runs on this host."""
    return is_here(process) and _started(process.pid) == process.started


def kill_group(process: ProcessRef | None, how: signal.Signals = signal.SIGKILL) -> bool:
    """Signal the process group a process leads or led, unless its pid has been given to another one.

    Returns whether there was such a group.
    """
    if process is None or not has_group(process):
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, how)
        return True
    return False


def has_group(process: ProcessRef) -> bool:
    """Say whether a process leads or led the group of its number, unless that has been given to another one."""
    return is_alive(process) or _has_led(process)


def _has_led(process: ProcessRef) -> bool:
    """Say whether a group of that number can only be what a dead leader has left: the system keeps the pid for it."""
    same_boot = bool(_boot()) and process.started.startswith(f"{_boot()}:")
    return is_here(process) and same_boot and _started(process.pid) is None


def kill_groups(processes: Iterable[ProcessRef | None], seconds: float = 5.0) -> None:
    """Kill process groups and wait until their leaders are gone, at most `seconds`."""
    wait_for([process for process in processes if process is not None and kill_group(process)], seconds)


def wait_for(killed: Iterable[ProcessRef], seconds: float = 5.0) -> None:
    """Wait until processes are gone, at most `seconds`."""
    left, deadline = list(killed), time.monotonic() + seconds
    while any(is_alive(process) for process in left) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_for_want_of_room(error: OSError) -> bool:
    """Say whether a process could not be started because there are too many, or too many open files, or no memory."""
    return error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
