"""What stands between a client and its server and cuts connections: at random, or exactly where a COMMIT is."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from typing import Literal

from .postgres import server

#: What a server answers to a COMMIT, and how a client asks for one.
COMMITTED, COMMIT = b"COMMIT\x00", b"commit"


class Cutter:
    """Carries bytes to and fro, and cuts a connection with some chance: rarely at a question, often at an answer."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self.port, self.random = port, random.Random(seed)
        self.cuts = self.swallowed = 0
        self.chance = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as to_server:
            threading.Thread(target=self._back, args=(to_server, client), daemon=True).start()
            with suppress(OSError):
                self._forward(client, to_server)
            for end in (client, to_server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _forward(self, client: socket.socket, to_server: socket.socket) -> None:
        while data := client.recv(65536):
            passed = self._of_question(data)
            to_server.sendall(data[:passed])
            if passed is not None:
                return

    def _back(self, to_server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := to_server.recv(65536):
                passed = self._of_answer(data)
                client.sendall(data[:passed])
                if passed is not None:
                    client.shutdown(socket.SHUT_RDWR)
                    return

    def _of_question(self, data: bytes) -> int | None:
        """Return how much of what a client sends the server is to get before the connection is cut; None: it is not."""
        # A server that gets all of it may still be at it, and nobody hears its answer.
        return self.random.choice((0, len(data) // 2, len(data))) if self._is_cut(self.chance / 8) else None

    def _of_answer(self, data: bytes) -> int | None:
        if not self._is_cut(self.chance):
            return None
        self.swallowed += 1
        return self.random.choice((0, 0, len(data) // 2))

    def _is_cut(self, chance: float) -> bool:
        cut = self.random.random() < chance
        self.cuts += cut
        return cut


class PostgresCutter(Cutter):
    """Stands before PostgreSQL: of answers it loses those to a COMMIT."""

    def __init__(self, port: int, seed: int = 0, schema: str = "cut") -> None:
        super().__init__(port, seed)
        self.url = f"postgresql://outlast@{self.place}/postgres?schema={schema}"

    def _of_answer(self, data: bytes) -> int | None:
        return super()._of_answer(data) if COMMITTED in data else None


class CommitCutter(PostgresCutter):
    """Cuts one connection when told to: where the next COMMIT is asked for, or where it is answered."""

    def __init__(self, schema: str) -> None:
        super().__init__(server().port, schema=schema)
        self.next: Literal["question", "answer"] | None = None

    def _of_question(self, data: bytes) -> int | None:
        return 0 if COMMIT in data and self._cut_at("question") else None

    def _of_answer(self, data: bytes) -> int | None:
        return 0 if COMMITTED in data and self._cut_at("answer") else None

    def _cut_at(self, what: str) -> bool:
        if self.next != what:
            return False
        self.next, self.cuts = None, self.cuts + 1
        return True
