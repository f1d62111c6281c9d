"""What triggers of another user log: handed to the runner, which writes it down where only it may.

The other end is not believed: it names a task instance or a watcher, never a path, and the runner writes for those
only that it has ordered. A message is one packet, so that threads and forked processes need not take turns.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from io import FileIO

import msgspec

from ..errors import InvalidKey
from ..values import TaskScope, checked_scope
from .logs import Log, log_of

__all__ = ["LogRelay", "LogSender", "open_inside"]

#: Bytes of text in one message, and of a message at most.
PIECE, LONGEST = 32 * 1024, 64 * 1024
#: Seconds text may wait for the runner before it is lost.
PATIENCE = 1.0
#: Seconds for which what is not ordered any more may still be written about: it tidies up.
AFTERWARDS = 60.0
#: Seconds to write down what is left when the other end has gone.
GRACE = 3.0
#: Messages taken then at most: more than can be waiting.
LEFT = 4096

#: Packets: whole and in order. The second kind is for systems that lack the first.
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
_NEW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
#: What is waited for, and what says that nothing more comes but what is there.
_COMES, _OVER = select.POLLIN, select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class _Text(msgspec.Struct, frozen=True, array_like=True):
    """Something logged: whose it is, and a piece of it in UTF-8."""

    log: Log
    text: bytes


class LogRelay:
    """The runner's end: a thread that writes down, in the folder of the logs, what comes.

    What the other process says of itself comes by a pipe, and goes to `own`, an open file: who had that file could
    read and empty it.
    """

    def __init__(self, folder: str, own: int) -> None:
        self.folder = folder
        self._ordered: dict[Log | tuple[str, str], float] = {}
        self._open: tuple[Log, int] | None = None
        self._thread = threading.Thread(target=self._write_down, name="outlast-trigger-logs", daemon=True)
        with ExitStack() as made:
            self._own = made.enter_context(FileIO(os.dup(own), "wb"))
            self._ours, self._theirs = map(made.enter_context, socket.socketpair(socket.AF_UNIX, _KIND))
            self._heard, self._said = map(made.enter_context, _pipe())
            self._woken, self._wake = map(made.enter_context, _pipe())
            self._ours.setblocking(False)
            self._theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LONGEST)
            try:
                self._thread.start()
            except RuntimeError as error:  # how Python says that there may be no more threads
                raise OSError(errno.EAGAIN, f"{error}") from None
            made.pop_all()

    @property
    def file(self) -> int:
        """The open file that the other process is to be given."""
        return self._theirs.fileno()

    @property
    def output(self) -> int:
        """The open file that is to be the other process's standard output and error."""
        return self._said.fileno()

    def given(self) -> None:
        """Let go of the other ends: the other process has them."""
        self._theirs.close()
        self._said.close()

    def order(self, runs: Iterable[tuple[str, str]], watchers: Iterable[str]) -> None:
        """Say what may be written about from here on: runs, by their DAG's and their own id, and watchers by name."""
        now = time.monotonic()
        kept = {what: since for what, since in self._ordered.items() if now - since < AFTERWARDS}
        self._ordered = {**kept, **dict.fromkeys([*runs, *watchers], now)}

    def close(self) -> None:
        """Write down what has come, and take nothing more."""
        self.given()
        self._wake.close()
        self._thread.join(GRACE)

    def _write_down(self) -> None:
        with self._ours, self._heard, self._woken, self._own:
            self._listen()
        if self._open is not None:
            os.close(self._open[1])

    def _listen(self) -> None:
        """Take what comes, from either in turn, until neither has more to say or this end is closed."""
        sources = {self._ours.fileno(): self._take, self._heard.fileno(): self._take_own}
        waiting = select.poll()
        for file in (self._woken.fileno(), *sources):
            waiting.register(file, _COMES | _OVER)
        while sources:
            for file, what in waiting.poll():
                if file not in sources:
                    _take_rest(sources.values())
                    return
                if what & _OVER:
                    waiting.unregister(file)
                    _take_rest([sources.pop(file)])
                else:
                    sources[file]()

    def _take(self) -> None:
        """Take one message; of an empty one nobody can tell that it is not the end, so only `poll` says that."""
        data = self._ours.recv(LONGEST)
        with suppress(Exception):  # it may be anything: what is made up must not end the thread
            told = msgspec.msgpack.decode(data, type=_Text)
            self._append(self._allowed(told.log), told.text)

    def _take_own(self) -> None:
        data = os.read(self._heard.fileno(), LONGEST)
        with suppress(OSError):
            _write(self._own.fileno(), data)

    def _allowed(self, log: Log) -> Log:
        if isinstance(log, TaskScope):
            log = checked_scope(log)
        if (log if isinstance(log, str) else (log.dag_id, log.run_id)) not in self._ordered:
            raise InvalidKey(f"{log} is nothing that was ordered")
        return log

    def _append(self, log: Log, text: bytes) -> None:
        """Append to a file, which stays open for what comes next unless somebody has removed it meanwhile."""
        known, file = self._open or (None, -1)
        if known != log or os.fstat(file).st_nlink != 1:
            if self._open is not None:
                self._open = None
                os.close(file)
            file = open_inside(self.folder, log_of(self.folder, log))
            self._open = log, file
        _write(file, text)


def _pipe() -> tuple[FileIO, FileIO]:
    """Return both ends of a new pipe; what is read from it is there already."""
    theirs = os.pipe()
    os.set_blocking(theirs[0], False)
    return FileIO(theirs[0], "rb"), FileIO(theirs[1], "wb")


def _take_rest(takes: Iterable[Callable[[], None]]) -> None:
    for take in takes:
        with suppress(OSError):
            for _ in range(LEFT):
                take()


def _write(file: int, text: bytes) -> None:
    while text:
        text = text[os.write(file, text) :]


def open_inside(folder: str, path: str) -> int:
    """Open a file for appending, with the folders it is in; OSError where something below `folder` is a link."""
    at = os.open(folder, _FOLDER)
    try:
        *folders, name = os.path.relpath(path, folder).split(os.sep)
        for each in folders:
            with suppress(FileExistsError):
                os.mkdir(each, dir_fd=at)
            inner = os.open(each, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        file = os.open(name, _NEW, 0o666, dir_fd=at)
    finally:
        os.close(at)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(file)
        raise OSError(f"{path} is no file of its own")
    return file


class LogSender:
    """The triggerer's end. A runner that takes nothing for a second holds nobody up any longer: text is lost then."""

    def __init__(self, file: int) -> None:
        os.set_inheritable(file, False)
        self._socket = socket.socket(fileno=file)
        self._socket.setblocking(False)
        self._writable = select.poll()  # `select` knows no file beyond the 1,024th, and triggers may have many open
        self._writable.register(self._socket, select.POLLOUT)
        self._lost = 0

    def __call__(self, log: Log, text: str) -> None:
        """Hand over text, in pieces that arrive whole or not at all."""
        data = text.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), PIECE):
            self._send(msgspec.msgpack.encode(_Text(log, data[start : start + PIECE])))

    def _send(self, piece: bytes) -> None:
        until = time.monotonic() + (0.0 if self._lost else PATIENCE)
        while True:
            try:
                self._socket.send(piece)
            except BlockingIOError:
                if (left := until - time.monotonic()) <= 0:
                    self._lost += 1
                    return
                self._writable.poll(left * 1000)
            except OSError:  # the runner has gone, and this process is about to
                return
            else:
                break
        if self._lost:
            lost, self._lost = self._lost, 0
            note = f"outlast: {lost} pieces of what triggers have logged are lost: the runner took none for a while"
            print(note, file=sys.__stderr__, flush=True)
