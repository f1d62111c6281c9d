"""A thousand event streams on one server: what a writer feels of them, when they hear of a write, and their memory."""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from loading import NUMBER, Load, message
from measure import Line, Setting, Target, spread
from serving import Serving

STREAMS = 1000
#: Seconds between two looks at what streams have brought: a delivery may be told that much too late.
LISTEN_EVERY = 0.005

_new = multiprocessing.get_context("spawn")

#: Sends a numbered write and waits for its answer.
Write = Callable[[int], None]


def streaming(server: Serving, setting: Setting, write: Write) -> list[Line]:
    """Measure a writer who pauses 5 ms between calls, without streams and with a thousand that see everything."""
    rounds = []
    for number in range(1 if setting.quick else 3):
        setting.progress(f"door: {STREAMS:,} streams, round {number + 1}")
        rounds.append(_round(server, write, 200 if setting.quick else 500, number))
    alone, beside, delivery, memory = zip(*rounds, strict=True)
    ratios = [with_them / without for without, with_them in zip(alone, beside, strict=True)]
    return [
        Line("a writer's p99, no streams", spread(alone), "ms"),
        Line(f"a writer's p99, {STREAMS:,} streams", spread(beside), "ms"),
        Line("the same, against none", spread(ratios), "×", Target("≤", 2)),
        Line(f"{STREAMS:,} streams: delivery, p99", spread(delivery), "ms", Target("≤", 1000)),
        Line(f"{STREAMS:,} streams: the server's memory", spread(memory), "MiB", Target("≤", 300)),
    ]


def _round(server: Serving, write: Write, calls: int, number: int) -> tuple[float, float, float, float]:
    """Return the writer's p99 without streams and with them, the delivery's (ms), and the server's MiB."""
    first = 1 + number * 2_000_000
    alone, _ = _written(write, calls, first)
    with _Listeners(server) as listeners:
        beside, sent = _written(write, calls, first + 1_000_000)
        time.sleep(1.5)
        memory = server.memory
    delivery = Load(0, sorted(late for heard in listeners.heard.values() for late in _late(sent, heard)))
    assert len(delivery.seconds) == STREAMS * calls, "a stream has not heard of the last write"
    return alone.share(0.99), beside.share(0.99), delivery.share(0.99), memory


def _written(write: Write, calls: int, first: int) -> tuple[Load, dict[int, float]]:
    taken, sent = [], {}
    for number in range(first, first + calls):
        began = time.perf_counter()
        write(number)
        sent[number] = time.perf_counter()
        taken.append(sent[number] - began)
        time.sleep(0.005)
    return Load(0, sorted(taken)), sent


def _late(sent: dict[int, float], heard: list[tuple[int, float]]) -> Iterator[float]:
    """Yield how long after each write a stream had its value or a newer one: of a key that is written fast, not all."""
    place = 0
    for number, at in sent.items():
        while place < len(heard) and heard[place][0] < number:
            place += 1
        if place == len(heard):
            return
        yield heard[place][1] - at


class _Listeners:
    """Streams that are open in a process of their own, and what each has heard when."""

    def __init__(self, server: Serving) -> None:
        self.stop, (self.ready, sender) = _new.Event(), _new.Pipe(duplex=False)
        self.process = _new.Process(target=_listen, args=(server.port, server.admin, self.stop, sender))
        self.heard: dict[int, list[tuple[int, float]]] = {}

    def __enter__(self) -> _Listeners:
        self.process.start()
        self.ready.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.heard = self.ready.recv()
        self.process.join()


def _listen(port: int, token: str, stop: Any, sender: Connection) -> None:
    heard: dict[int, list[tuple[int, float]]] = {}
    ask = message("GET", "/api/outlast/v1/events?dag=nightly", token)
    with selectors.DefaultSelector() as selector:
        for number in range(STREAMS):
            stream = socket.create_connection(("127.0.0.1", port))
            stream.sendall(ask)
            stream.setblocking(False)
            selector.register(stream, selectors.EVENT_READ, heard.setdefault(number, []))
            if number % 50 == 49:
                time.sleep(0.05)
        time.sleep(2)
        sender.send("ready")
        while not stop.is_set():
            for key, _ in selector.select(0.2):
                data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                assert data, "a stream ended"
                now = time.perf_counter()
                key.data.extend((int(part[: len(NUMBER)]), now) for part in data.split(b'"cursor":"c')[1:])
            time.sleep(LISTEN_EVERY)  # a thousand clients would each be on a core of their own
    sender.send(heard)
