"""Servers for tests: many applications behind one port in this process, and real server processes to be killed."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from outlast import Store
from outlast.config import ServerSettings

#: The person whose token a test's program shows.
PERSON = "ann@desk"


class House:
    """One listening server in a thread; each application lives under a path of its own, as long as its test."""

    def __init__(self) -> None:
        from outlast.server.listening import bound
        from outlast.server.serving import make_server

        self.apps: dict[str, Any] = {}
        self.moved_in = 0
        self.listener = bound(ServerSettings(port=0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        started = threading.Event()
        self.server = make_server(self, ServerSettings(), started.set)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()
        started.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.server.serve([self.listener]))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        name = scope["path"].split("/")[1]
        await self.apps[name]({**scope, "root_path": f"/{name}"}, receive, send)

    def move_in(self, store: Store, settings: ServerSettings | None = None) -> tuple[str, str]:
        """Serve a store; return its URL and an admin's token for it."""
        from outlast.server.app import make_app

        self.moved_in += 1
        name = str(self.moved_in)
        app = make_app(store, msgspec.structs.replace(settings or ServerSettings(), root_path=f"/{name}"))
        self.apps[name] = app
        return f"{self.url}/{name}", app.state.tokens.local(PERSON)

    def move_out(self, url: str) -> None:
        """Serve a store no more, and close it."""
        app = self.apps.pop(url.rpartition("/")[2])
        asyncio.run_coroutine_threadsafe(_ended(app.state), self.loop).result(30)
        app.state.store.close()


async def _ended(state: Any) -> None:
    """Let an application's parts end, as its lifespan would; what runs by itself was never started."""
    await state.feed_reader.close()
    await state.survey.close()
    await state.gate.close()


@functools.cache
def house() -> House:
    """Return this process's house, built when first needed."""
    return House()


class ServerProcess:
    """`outlast serve` in a process of its own, on one place for all its lives."""

    def __init__(self, store: Path, *options: str, port: int | None = None, uds: Path | None = None) -> None:
        self.store, self.options = store, options
        place = ("--uds", str(uds)) if uds is not None else ("--port", str(free_port() if port is None else port))
        self.command = [sys.executable, "-m", "outlast.cli", "serve", "--store", str(store), *place, *options]
        self.url = f"unix://{uds}" if uds is not None else f"http://127.0.0.1:{place[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> ServerProcess:
        """Start it, and return when it answers."""
        out, err = (self.store.with_suffix(end) for end in (".out", ".err"))
        with open(out, "w") as said, open(err, "w") as logged:
            self.process = subprocess.Popen(self.command, stdout=said, stderr=logged)
        while not out.read_text().startswith("Serving at") or not out.read_text().endswith("\n"):
            if self.process.poll() is not None:
                raise AssertionError(out.read_text() + err.read_text())
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """End it as a power cut would."""
        self._ended(signal.SIGKILL)

    def stop(self) -> tuple[int, str, str]:
        """End it as a service manager would; return its status, what it said and what it logged."""
        return self._ended(signal.SIGTERM)

    def _ended(self, number: int) -> tuple[int, str, str]:
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        status = process.wait(40)
        said, logged = (self.store.with_suffix(end).read_text() for end in (".out", ".err"))
        return status, said, logged

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Proxy:
    """Stands between client and server, and loses as many answers (or requests) as it is told to."""

    def __init__(self, url: str) -> None:
        host, _, port = url.rpartition("/")[2].rpartition(":")
        self.behind = host, int(port)
        self.lose_answers = self.lose_requests = 0
        self.connections = self.requests = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.behind) as server:
            while request := _message(client):
                self.requests += 1
                if self.lose_requests:
                    self.lose_requests -= 1
                    return
                server.sendall(request)
                answer = _message(server)
                if self.lose_answers:
                    self.lose_answers -= 1
                    return
                client.sendall(answer)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()


def _message(connection: socket.socket) -> bytes:
    """Return one whole HTTP message; nothing at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (chunk := connection.recv(65536)):
            return b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
