"""The server of the `door` figures in a process of its own: the product's application, and a bare route beside it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

TICK = os.sysconf("SC_CLK_TCK")
#: What the bare route answers: as long as the answer to a write.
_ANSWER = b'{"reply":{"type":"receipt","revisions":[' + b"1" * 300 + b"]}}"


class Serving:
    """A server process: its port, tokens for an admin and a worker, and what it uses."""

    def __init__(self, store: str, folder: Path) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for a thousand streams, at both ends
        with open(folder / "server.log", "ab") as log:
            command = [sys.executable, "-P", __file__, store]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError((folder / "server.log").read_text())
        self.port, self.admin, self.worker = json.loads(line)

    @property
    def cpu(self) -> float:
        """Seconds of CPU used so far, the kernel's part included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    @property
    def memory(self) -> float:
        """MiB in memory now."""
        return memory_of(self.process.pid)

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(30)


def memory_of(pid: int) -> float:
    """Return the MiB a process has in memory."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def started(folder: Path, number: int) -> tuple[float, float]:
    """Start `outlast serve` on a new store; return the seconds until it could be reached, and its MiB then."""
    store = folder / f"started-{number}.db"
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "outlast.cli", "serve", "--store", str(store), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"Serving at"):
            assert process.poll() is None
        return time.perf_counter() - began, memory_of(process.pid)
    finally:
        process.terminate()
        process.wait(30)


# --- Inside ----------------------------------------------------------------------------------------------------------


def _serve(url: str) -> None:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    import outlast
    from outlast.config import Config, ServerSettings
    from outlast.requests import LIBRARY
    from outlast.server.app import make_app
    from outlast.server.listening import bound
    from outlast.server.serving import make_server
    from outlast.token_requests import BYTES, CreateToken, digest_of, token_text

    async def bare(request: Request) -> Response:
        await request.body()
        return Response(_ANSWER, media_type="application/json")

    settings = ServerSettings(port=0)
    with outlast.connect(url, config=Config()) as store, bound(settings) as listener:
        app = make_app(store, settings)
        app.router.routes.append(Route("/bare", bare, methods=["POST"]))
        worker = token_text("worker", os.urandom(BYTES))
        store.backend.send(CreateToken(digest_of(worker), "worker", "bench", LIBRARY, ("*",)))

        def reachable() -> None:
            print(json.dumps([listener.getsockname()[1], app.state.tokens.local("bench"), worker]), flush=True)

        server = make_server(app, settings, reachable, app.state.feed_reader.close)
        server.run(sockets=[listener])


if __name__ == "__main__":
    _serve(sys.argv[1])
