"""What triggers of another user log: written down where it belongs, nowhere else, and holding nobody up."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast.runner.log_relay import AFTERWARDS, PATIENCE, PIECE, LogRelay, LogSender, open_inside
from outlast.values import TaskScope

SCOPE = TaskScope("d", "r", "t")


class Ends:
    """Both ends in one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = folder.with_name(f"{folder.name}-own.log")
        self.own.write_text("said before\n")
        with open(self.own, "ab") as own:
            self.relay = LogRelay(str(folder), own.fileno())
        self.sender = LogSender(os.dup(self.relay.file))
        self.relay.order([("d", "r")], ["inbox"])

    def raw(self, data: bytes) -> None:
        """Send what no triggerer of ours would."""
        self.sender._socket.setblocking(True)
        self.sender._socket.send(data)

    def text(self, *path: str) -> str:
        """Let all that was sent be written, and read a file."""
        self.relay.close()
        return self.folder.joinpath(*path).read_text()

    def files(self) -> list[str]:
        self.relay.close()
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir())


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(tmp_path)
    yield ends
    ends.relay.close()
    ends.relay.given()
    ends.sender._socket.close()


def test_what_is_logged_lands_where_it_belongs(ends: Ends) -> None:
    ends.sender(SCOPE, "one\n")
    ends.sender("inbox", "two\n")
    ends.sender(TaskScope("d", "r", "each", 3), "three\n")
    ends.sender(TaskScope("d", "r", "each", -1, "a/b"), "four\n")
    ends.sender(SCOPE, "five: é\ud800\n")
    assert ends.text("d", "r", "t", "trigger.log") == "one\nfive: é\\ud800\n"
    assert ends.files() == [
        "d/r/each/3/trigger.log",
        "d/r/each/item a%2Fb/trigger.log",
        "d/r/t/trigger.log",
        "watchers/inbox.log",
    ]


def test_a_thousand_lines_and_a_long_one_arrive_whole(ends: Ends) -> None:
    lines = [f"line {number}\n" for number in range(1000)] + ["x" * (5 * PIECE + 7) + "\n"]
    for line in lines:
        ends.sender(SCOPE, line)
    assert ends.text("d", "r", "t", "trigger.log") == "".join(lines)


@pytest.mark.parametrize(
    "log",
    [
        TaskScope("d", "other", "t"),
        TaskScope("hr", "r", "t"),
        TaskScope("d", "r", ".."),
        TaskScope("d", "r", "../../../etc/cron.d/x"),
        TaskScope("d", "r", "t\0"),
        TaskScope("", "", ""),
        "outbox",
        "../inbox",
        "",
    ],
    ids=str,
)
def test_nothing_is_written_of_what_was_not_ordered(ends: Ends, log: Any) -> None:
    ends.sender(log, "mine now\n")
    ends.sender(SCOPE, "goes on\n")
    assert ends.text("d", "r", "t", "trigger.log") == "goes on\n"
    assert ends.files() == ["d/r/t/trigger.log"]


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"\xc1" * 100,
        b"",
        b"x" * 100_000,
        b"\x93" + msgspec.msgpack.encode(SCOPE) + b"\xc4\x01x" + b"\x91" * 60_000 + b"\xc0",
        b"\x92\x81\xa1z" + b"\x91" * 60_000 + b"\xc0",
        msgspec.msgpack.encode([{"type": "task", "dag_id": "d"}, b"x"]),
        msgspec.msgpack.encode(["/etc/passwd", b"x"]),
        msgspec.msgpack.encode([7, "text"]),
        b"\x92" * 5000,
    ],
    ids=range(10),
)
def test_what_makes_no_sense_is_passed_over(ends: Ends, data: bytes) -> None:
    ends.raw(data)
    ends.sender(SCOPE, "goes on\n")
    assert ends.text("d", "r", "t", "trigger.log") == "goes on\n"
    assert ends.files() == ["d/r/t/trigger.log"]


def test_a_run_that_is_over_may_be_written_about_for_a_while(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.relay.order([("d", "later")], [])
    ends.sender(SCOPE, "tidies up\n")
    at = time.monotonic() + AFTERWARDS + 1
    until = time.monotonic() + 10
    while not (ends.folder / "d" / "r" / "t" / "trigger.log").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    with monkeypatch.context() as later:
        later.setattr(time, "monotonic", lambda: at)
        ends.relay.order([("d", "later")], [])
    ends.sender(SCOPE, "too late\n")
    ends.sender(TaskScope("d", "later", "t"), "now\n")
    assert ends.text("d", "later", "t", "trigger.log") == "now\n"
    assert (ends.folder / "d" / "r" / "t" / "trigger.log").read_text() == "tidies up\n"


def test_a_log_that_is_removed_begins_anew(ends: Ends) -> None:
    path = ends.folder / "d" / "r" / "t" / "trigger.log"
    ends.sender(SCOPE, "before\n")
    until = time.monotonic() + 10
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    path.unlink()
    ends.sender(SCOPE, "after\n")
    assert ends.text("d", "r", "t", "trigger.log") == "after\n"


# --- What the other process says of itself ------------------------------------------------------------------


def test_what_it_says_of_itself_is_appended_to_a_file_it_does_not_have(ends: Ends) -> None:
    output = os.dup(ends.relay.output)
    os.write(output, b"hello\n")
    os.set_blocking(output, False)
    assert stat.S_ISFIFO(os.fstat(output).st_mode)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(output, 0)
    os.write(output, b"again\n")
    ends.sender(SCOPE, "goes on\n")
    assert ends.text("d", "r", "t", "trigger.log") == "goes on\n"
    assert ends.own.read_text() == "said before\nhello\nagain\n"
    os.close(output)


def test_either_end_may_go_before_the_other(ends: Ends) -> None:
    log = ends.folder / "d" / "r" / "t" / "trigger.log"
    output = os.dup(ends.relay.output)
    ends.relay.given()
    os.close(output)
    ends.sender(SCOPE, "still heard\n")
    until = time.monotonic() + 10
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    ends.sender._socket.close()
    ends.relay._thread.join(10)
    assert not ends.relay._thread.is_alive()
    assert log.read_text() == "still heard\n"


def test_an_end_that_will_send_no_more_costs_no_time_and_the_other_goes_on(ends: Ends) -> None:
    output = os.dup(ends.relay.output)
    ends.sender._socket.shutdown(socket.SHUT_WR)
    used = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - used < 0.1
    os.write(output, b"still here\n")
    ends.relay.close()
    assert ends.own.read_text() == "said before\nstill here\n"
    os.close(output)


def test_a_close_waits_for_no_one_who_keeps_the_other_ends_open(ends: Ends) -> None:
    output = os.dup(ends.relay.output)
    began = time.monotonic()
    ends.relay.close()
    assert time.monotonic() - began < 1.0
    assert not ends.relay._thread.is_alive()
    with pytest.raises(BrokenPipeError):
        os.write(output, b"to nobody\n")
    os.close(output)


def test_what_cannot_have_a_thread_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if sys.platform != "linux":
        pytest.skip("optional: open files are counted in /proc")
    monkeypatch.setattr(threading.Thread, "start", refused)
    with open(tmp_path / "own", "wb") as own:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="can't start new thread"):
            LogRelay(str(tmp_path), own.fileno())
        assert os.listdir("/proc/self/fd") == before


# --- Links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "dangling", "folder", "hard", "fifo"])
def test_no_link_is_followed(ends: Ends, tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    target, log = elsewhere / "trigger.log", ends.folder / "d" / "r" / "t" / "trigger.log"
    log.parent.mkdir(parents=True)
    if kind != "dangling":
        target.write_text("precious\n")
    if kind == "folder":
        log.parent.rmdir()
        log.parent.symlink_to(elsewhere)
    elif kind == "hard":
        log.hardlink_to(target)
    elif kind == "fifo":
        os.mkfifo(log)
    else:
        log.symlink_to(target)
    ends.sender(SCOPE, "overwritten\n")
    ends.sender("inbox", "goes on\n")
    assert ends.text("watchers", "inbox.log") == "goes on\n"
    assert [path.read_text() for path in elsewhere.iterdir()] == ([] if kind == "dangling" else ["precious\n"])


def test_the_triggerer_s_own_log_is_no_link_either(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "triggerer.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"triggerer\.log"):
        open_inside(str(tmp_path / "logs"), str(tmp_path / "logs" / "triggerer.log"))
    assert not (tmp_path / "elsewhere").exists()


# --- A runner that takes nothing -----------------------------------------------------------------------------


def test_a_runner_that_takes_nothing_holds_a_trigger_up_for_a_second_once(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sender, sent = LogSender(theirs.detach()), 200
    with ours, closing(sender._socket):
        began = time.monotonic()
        for _ in range(sent):
            sender(SCOPE, "x" * PIECE)
        assert PATIENCE <= time.monotonic() - began < 3 * PATIENCE
        kept = len(received(ours))
        sender(SCOPE, "again")
        assert b"again" in received(ours)[0]
    assert 0 < kept < sent
    assert f"{sent - kept} pieces of what triggers have logged are lost" in capfd.readouterr().err


def received(end: socket.socket) -> list[bytes]:
    """Return the messages that wait."""
    end.setblocking(False)
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(end.recv(2 * PIECE))
    return found


def test_a_sender_whose_runner_has_gone_goes_on(ends: Ends) -> None:
    ends.relay.close()
    ends.sender(SCOPE, "to nobody\n")
    assert ends.files() == []
