"""Callers on kept-alive connections, cheaper than the server they load: raw sockets, messages made beforehand."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

#: Stands in a message for a number that is another one each time.
NUMBER = b"0123456789"
#: Callers that one process plays.
EACH = 32

_new = multiprocessing.get_context("spawn")


class Load(NamedTuple):
    """What a number of callers got: calls a second, and how long each call took, in order of length."""

    rate: float
    seconds: list[float]

    def share(self, share: float) -> float:
        """Return the milliseconds that so large a share of the calls did not exceed."""
        return self.seconds[min(int(len(self.seconds) * share), len(self.seconds) - 1)] * 1000


def message(method: str, path: str, token: str | None = None, body: bytes = b"") -> bytes:
    """Return a request as it goes over the wire."""
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Accept-Encoding: identity"]
    if token is not None:
        head.append(f"Authorization: Bearer {token}")
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body


def load(port: int, messages: Sequence[bytes], seconds: float) -> Load:
    """Have one caller a message send it again and again, each waiting for its answer, for so many seconds."""
    parts = [messages[start : start + EACH] for start in range(0, len(messages), EACH)]
    begin = _new.Barrier(len(parts))
    ends = [_new.Pipe(duplex=False) for _ in parts]
    players = [
        _new.Process(target=_play, args=(port, part, seconds, place << 28, begin, sender))
        for place, (part, (_, sender)) in enumerate(zip(parts, ends, strict=True))
    ]
    for player in players:
        player.start()
    taken = [receiver.recv() for receiver, _ in ends]
    for player in players:
        player.join()
    return Load(sum(len(calls) for calls in taken) / seconds, sorted(call for calls in taken for call in calls))


def _play(port: int, messages: Sequence[bytes], seconds: float, number: int, begin: Any, sender: Connection) -> None:
    callers = [_Caller(port, text) for text in messages]
    selector = selectors.DefaultSelector()
    for caller in callers:
        selector.register(caller.socket, selectors.EVENT_READ, caller)
    begin.wait()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    for caller in callers:
        caller.send(number := number + 1)
    waiting = len(callers)
    while waiting:
        for key, _ in selector.select():
            took = key.data.received()
            if took is None:
                continue
            now = time.perf_counter()
            if now < end:
                taken.append(took)
                key.data.send(number := number + 1)
            else:
                waiting -= 1
    sender.send(taken)


class _Caller:
    """One connection with its message."""

    def __init__(self, port: int, text: bytes) -> None:
        self.text, self.data, self.began = text, b"", 0.0
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, number: int) -> None:
        self.began = time.perf_counter()
        self.socket.sendall(self.text.replace(NUMBER, b"%010d" % number))

    def received(self) -> float | None:
        """Take in what has come; return the seconds the call took once its answer is whole."""
        self.data += self.socket.recv(1 << 20)
        head, end, body = self.data.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            return None
        if not head.startswith(b"HTTP/1.1 2"):
            raise AssertionError(self.data[:2000].decode())
        self.data = b""
        return time.perf_counter() - self.began
