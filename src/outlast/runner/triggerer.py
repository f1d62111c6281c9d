"""The process that runs the triggers of deferred tasks: started by a runner, told where to look, and ended with it.

Run as `python -m outlast.runner.triggerer` with a `TriggererJob` as the first line of standard input. Each later
line is either `look` or `Orders`, which replace those before. The end of standard input ends it at once; what it
ran is run again, from what the store has of it, by the next one.

Which code runs here a task decides when it defers. So behind a server this process has a token for triggers only, and
where workers are another user's it is that user's too: it writes no logs then, but hands them over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ..errors import ConfigError
from .board import NOBODY, Board, Key
from .remote import Entrusted
from .secrecy import closed_to_others, with_token
from .watching import Watcher

if TYPE_CHECKING:
    from .log_relay import LogRelay
    from .users import User

__all__ = ["LocalTriggerer", "Orders", "TriggererJob", "main"]

#: Seconds it has to end by itself.
GRACE = 3.0


class TriggererJob(msgspec.Struct, frozen=True):
    """Everything a triggerer needs to know before it is told of runs.

    The store, and what it has been given for one behind a server; the folder of the logs, or the open file by which it
    hands them over; and the open file of the board that it shows itself on.
    """

    url: str
    board: int
    logs: str | None
    relay: int | None = None
    given: Entrusted | None = None


class Orders(msgspec.Struct, frozen=True):
    """The runs (their ids) whose deferred tasks to look after, with their DAG files; and the watchers of assets.

    `suspects` have held up the others before, and begin a little later than they. `token` takes the place of the one
    before.
    """

    runs: dict[int, str] = {}
    watchers: tuple[Watcher, ...] = ()
    suspects: tuple[Key, ...] = ()
    token: str | None = None


class LocalTriggerer:
    """A triggerer on this host, in a session of its own so that Ctrl-C reaches only the runner.

    It lives as long as its standard input is open, so not longer than the runner. What it says of itself is in
    `triggerer.log` in the folder of the logs; another user's gets a pipe in place of that file.
    """

    def __init__(
        self,
        url: str,
        logs: str,
        given: Entrusted | None = None,
        environ: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> None:
        """Start one, or raise OSError.

        It is given no token but what is `given` if it gets an environment of its own.
        """
        os.makedirs(logs, exist_ok=True)
        self.began = time.monotonic()
        self.orders, self.token = Orders(), None if given is None else given.client.token
        log = _own_log(logs, user)
        self.board: Board = Board()
        self.relay: LogRelay | None = None
        try:
            self.relay = None if user is None else _relay(logs, log)
            relay = None if self.relay is None else self.relay.file
            job = TriggererJob(url, self.board.file, logs if relay is None else None, relay, given)
            self._unsent = msgspec.json.encode(job) + b"\n"
            self.process = self._start(log, with_token() if environ is None else environ, user)
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(log)
        if self.relay is not None:
            self.relay.given()
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._send(b"")

    def _start(self, log: int, environ: Mapping[str, str], user: User | None) -> subprocess.Popen[bytes]:
        output, relay = (log, []) if self.relay is None else (self.relay.output, [self.relay.file])
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "outlast.runner.triggerer"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environ,
            pass_fds=[self.board.file, *relay],
            start_new_session=True,
            bufsize=0,
            **({} if user is None else user.options),
        )

    @property
    def ended(self) -> bool:
        """Say whether the process has exited."""
        return self.process.poll() is not None

    @property
    def end_text(self) -> str:
        """How the process has ended, in words."""
        status = self.process.returncode
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    @property
    def has_begun(self) -> bool:
        """Say whether its event loop has begun."""
        return self.board.beat_at > 0

    @property
    def silent_for(self) -> float:
        """Seconds since its event loop has given a sign of life, or since it was started."""
        return time.monotonic() - max(self.board.beat_at, self.began)

    @property
    def at_work(self) -> Key:
        """Whose code its event loop runs now, or else one of its threads."""
        return self.board.key if self.board.key != NOBODY else self.board.thread_key

    def look(
        self,
        runs: Mapping[int, str],
        watchers: Iterable[Watcher] = (),
        suspects: Iterable[Key] = (),
        *,
        now: bool = False,
    ) -> None:
        """Name the runs (their ids) to look at, with their DAG files; `now`: something of theirs has changed.

        It looks every second by itself, so that calling this often without `now` costs nothing.
        """
        orders = Orders(dict(runs), tuple(watchers), tuple(suspects), self.token)
        if orders != self.orders:
            self.orders = orders
            self._send(msgspec.json.encode(orders) + b"\n")
        elif now or self._unsent:
            self._send(b"look\n")

    def _send(self, data: bytes) -> None:
        """Write as much as the pipe takes, and keep the rest for the next time: a stopped process holds nobody up."""
        if data == b"look\n" and self._unsent:
            data = b""
        self._unsent += data
        with suppress(BlockingIOError, BrokenPipeError, ValueError):
            assert self.process.stdin is not None
            while self._unsent:
                written = self.process.stdin.write(self._unsent)
                if written is None:
                    return
                self._unsent = self._unsent[written:]

    def close(self) -> None:
        """End it, and wait until it has ended."""
        with suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._let_go()

    def _let_go(self) -> None:
        if self.relay is not None:
            self.relay.close()
        self.board.close()

    def kill(self) -> None:
        """End it at once, with what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def _relay(logs: str, own: int) -> LogRelay:
    from .log_relay import LogRelay

    return LogRelay(logs, own)


def _own_log(logs: str, user: User | None) -> int:
    path = os.path.join(logs, "triggerer.log")
    if user is None:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    from .log_relay import open_inside

    try:
        return open_inside(logs, path)
    except OSError as error:
        raise ConfigError(
            f"what the triggers' process says cannot be logged: {error}; that has to be a plain file, in a folder that "
            f"{user.name} cannot write to: see [runner] logs_dir"
        ) from None


def main() -> int:
    """Run triggers until standard input ends."""
    import signal

    from .trigger_loop import run_triggers

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    closed_to_others()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    return run_triggers(msgspec.json.decode(line, type=TriggererJob), sys.stdin.buffer)


if __name__ == "__main__":
    sys.exit(main())
