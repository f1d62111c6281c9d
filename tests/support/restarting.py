"""Servers that are killed again and again while they are used, and begin anew each time at the same port.

One process, the nursery, has imported the server and forks a new one in milliseconds: real processes and real SIGKILLs,
without the second that a program takes to start.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import mmap
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from outlast.config import Config
from outlast.token_requests import BYTES, token_text

#: Where the time is among the numbers that servers and tests share (0: it is what it is).
TIME = 0


class Job(msgspec.Struct, frozen=True):
    """What servers are to serve, where and to whom, and when they are killed.

    Each counts itself in the shared number `begun` once it answers, and in the next one the calls it has answered. From
    then it lives at most `life` seconds, or longer where none has lived to answer a call. It dies with `chance` at a
    call: before it is carried out, when it has been and before anything is answered, or between the head of the answer
    and its body.
    """

    url: str
    config: Config
    shared: str
    begun: int
    port: int
    token: str
    life: float
    chance: float


class Shared:
    """Numbers in a file that several processes see."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "a+b") as file:
            file.truncate(mmap.PAGESIZE)
            self.numbers = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("q")
        self._places = itertools.count(TIME + 1, 2)

    def place(self) -> int:
        """Return where there are two numbers of its own for one more server."""
        return next(self._places)


class RestartingServer:
    """One place that is served by one process after the other until it is closed."""

    def __init__(self, url: str, config: Config, shared: Shared, *, life: float = 0.3, chance: float = 0.15) -> None:
        self.shared, self.begun, self.token = shared, shared.place(), token_text("admin", os.urandom(BYTES))
        job = Job(url, config, shared.path, self.begun, low_port(), self.token, life, chance)
        self.url = f"http://127.0.0.1:{job.port}"
        self._keeper = nursery().start(job)

    @property
    def lives(self) -> int:
        """How many servers have begun to answer."""
        return self.shared.numbers[self.begun]

    def close(self) -> None:
        """Kill the last one; the test fails if one has ended otherwise."""
        assert nursery().kill(self._keeper) == -signal.SIGKILL, "a server ended by itself; what it said is above"


class Nursery:
    """Another process of the test's, in which servers are forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "support.restarting"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def start(self, job: Job) -> int:
        """Start servers, one after the other; return the process id of who does."""
        return self._told(("start", job))

    def kill(self, keeper: int) -> int:
        """End who starts servers, and the server of the moment; return how it ended."""
        return self._told(("kill", keeper))

    def _told(self, what: tuple[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            pickle.dump(what, self._process.stdin)
            self._process.stdin.flush()
            return int(pickle.load(self._process.stdout))


@functools.cache
def nursery() -> Nursery:
    """Return this process's nursery, which ends with it."""
    return Nursery()


#: Ports that are one process's at a time: more than it has servers.
PORTS = 64
_taken: deque[int] = deque()


def low_port() -> int:
    """Return a free port below those that clients are given, so that none of them takes it between two lives.

    It is this process's for long enough: another one's tests would else take it at such a moment, too. Of thousands of
    ports not all files stay open, since `select` knows none beyond the 1,024th.
    """
    places = f"/tmp/outlast-ports-{os.getuid()}"
    os.makedirs(places, mode=0o700, exist_ok=True)
    while True:
        port = random.randrange(15_000, 32_000)
        mine = os.open(f"{places}/{port}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.create_server(("127.0.0.1", port)):
                _taken.append(mine)
                if len(_taken) > PORTS:
                    os.close(_taken.popleft())
                return port
        os.close(mine)


# --- In the nursery's process --------------------------------------------------------------------------------


def _raise_servers() -> None:
    """Do what is asked on the standard input until it ends, and leave nobody behind."""
    _warm_up()
    keepers: set[int] = set()
    try:
        while True:
            what, on = pickle.load(sys.stdin.buffer)
            answer = _kept(on) if what == "start" else _ended(on)
            keepers ^= {answer if what == "start" else on}
            pickle.dump(answer, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        for keeper in keepers:
            _ended(keeper)


def _warm_up() -> None:
    """Import all that a server imports until it answers."""
    import outlast.backends.postgres  # noqa: F401
    from outlast import connect
    from outlast.config import ServerSettings
    from outlast.server.app import make_app
    from outlast.server.serving import make_server

    with connect(":memory:") as store:
        make_server(make_app(store, ServerSettings()), ServerSettings())


def _kept(job: Job) -> int:
    """Fork a keeper with a process group of its own, in which its servers are, too."""
    keeper = os.fork()
    if keeper == 0:
        try:
            os.setpgid(0, 0)
            os.close(0)
            os.dup2(2, 1)
            _keep(job)
        finally:
            os._exit(3)
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(keeper, keeper)
    return keeper


def _ended(keeper: int) -> int:
    os.killpg(keeper, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])


def _keep(job: Job) -> NoReturn:
    """Start a server whenever there is none, and kill those that live too long."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    numbers, life, nursery = Shared(job.shared).numbers, job.life, os.getppid()
    while os.getppid() == nursery:  # one that was killed leaves nobody behind either
        begun, answered = numbers[job.begun], numbers[job.begun + 1]
        server = os.fork()
        if server == 0:
            _serve(job)
        while numbers[job.begun] == begun and not signal.sigtimedwait({signal.SIGCHLD}, 0.001):
            pass
        signal.sigtimedwait({signal.SIGCHLD}, life * random.random())
        os.kill(server, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]) != -signal.SIGKILL:
            os._exit(3)
        life = job.life if numbers[job.begun + 1] > answered else min(2 * life, 10.0)
    os._exit(0)


def _serve(job: Job) -> NoReturn:
    """Serve until killed; whatever ends it otherwise is said."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _served(job)
    except BaseException as error:
        sys.stderr.write(f"a server for tests ended: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    os._exit(3)


def _served(job: Job) -> None:
    import gc
    import logging

    from outlast import connect
    from outlast.config import ServerSettings
    from outlast.server.app import make_app
    from outlast.server.identity import Who
    from outlast.server.listening import bound
    from outlast.server.serving import make_server
    from outlast.token_requests import digest_of
    from outlast.values import system_clock

    gc.disable()  # it does not live long enough
    logging.disable(logging.WARNING)
    numbers = Shared(job.shared).numbers
    settings = ServerSettings(port=job.port)
    store = connect(job.url, config=job.config, clock=(lambda: numbers[TIME]) if numbers[TIME] else system_clock)
    app = make_app(store, settings)
    app.state.tokens._local[digest_of(job.token)] = Who("admin", "ann@desk")

    def started() -> None:
        numbers[job.begun] += 1

    def one_more() -> None:
        numbers[job.begun + 1] += 1

    with bound(settings) as listener:
        make_server(_Dying(app, job.chance, one_more), settings, started).run(sockets=[listener])


class _Dying:
    """An application that takes its process with it now and then; without what runs by itself, as sweeping does."""

    def __init__(self, app: Any, chance: float, answered: Callable[[], None]) -> None:
        self.app, self.chance, self.answered = app, chance, answered
        self.random = random.Random()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        dies_at = self.random.randrange(4) if self.random.random() < self.chance else None
        passed = 0

        async def answered(message: Any) -> None:
            nonlocal passed
            passed += 1
            _die(passed == dies_at)
            await send(message)

        _die(dies_at == 0)
        await self.app(scope, receive, answered)
        self.answered()
        _die(dies_at == 3)


def _die(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _raise_servers()
