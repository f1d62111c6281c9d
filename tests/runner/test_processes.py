"""Telling processes apart, and killing the right ones only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from outlast.run_requests import ProcessRef
from outlast.runner import processes
from support.running import exists, state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="optional: processes are looked at in /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def ended(sleeper: subprocess.Popen[bytes]) -> bool:
    try:
        return sleeper.wait(5) is not None
    except subprocess.TimeoutExpired:
        return False


def with_helper() -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that leads a group, and another one in that group."""
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


def test_this_process_is_here_and_alive() -> None:
    assert processes.is_here(processes.me())
    assert processes.is_alive(processes.me())


def test_a_process_is_recognised(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.identify(sleeper.pid)
    assert processes.is_alive(found)
    assert found == processes.identify(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert not processes.is_alive(found)


def test_what_is_left_of_a_dead_process_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.identify(sleeper.pid)
    sleeper.kill()
    while state_of(sleeper.pid) != "Z":
        time.sleep(0.01)
    assert not processes.is_alive(found)


def test_a_later_process_with_the_same_pid_is_another_one(sleeper: subprocess.Popen[bytes]) -> None:
    recycled = msgspec.structs.replace(processes.identify(sleeper.pid), started="before")
    assert not processes.is_alive(recycled)
    assert not processes.kill_group(recycled)
    processes.kill_groups([recycled])
    assert exists(sleeper.pid)


def test_a_process_of_another_host_is_not_looked_for(sleeper: subprocess.Popen[bytes]) -> None:
    elsewhere = msgspec.structs.replace(processes.identify(sleeper.pid), host="elsewhere.test")
    assert not processes.is_here(elsewhere)
    assert not processes.is_alive(elsewhere)
    assert not processes.kill_group(elsewhere)
    assert exists(sleeper.pid)


def test_a_stopped_group_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    processes.kill_groups([processes.identify(sleeper.pid), None])
    assert ended(sleeper)


def test_the_whole_group_is_killed() -> None:
    leader, helper = with_helper()
    processes.kill_groups([processes.identify(leader.pid)])
    leader.wait(5)
    gone_soon(helper)


@pytest.mark.parametrize("reaped", [True, False])
def test_a_group_whose_leader_has_died_is_killed(reaped: bool) -> None:
    leader, helper = with_helper()
    found = processes.identify(leader.pid)
    leader.kill()
    if reaped:
        leader.wait(5)
    while not reaped and state_of(leader.pid) != "Z":
        time.sleep(0.01)
    assert exists(helper)
    processes.kill_groups([found])
    gone_soon(helper)
    leader.wait(5)


def test_a_group_without_its_leader_is_left_alone_after_a_restart_of_the_machine() -> None:
    leader, helper = with_helper()
    found = msgspec.structs.replace(processes.identify(leader.pid), started="other-boot:1")
    leader.kill()
    leader.wait(5)
    processes.kill_groups([found])
    time.sleep(0.05)
    assert exists(helper)
    os.kill(helper, signal.SIGKILL)


def test_nothing_is_killed_for_a_process_that_never_was() -> None:
    assert not processes.kill_group(ProcessRef(os.uname().nodename, 2**22 + 1, ""))
    assert not processes.kill_group(None)


def gone_soon(pid: int) -> None:
    deadline = time.monotonic() + 5
    while exists(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
