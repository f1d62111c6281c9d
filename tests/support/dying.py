"""A process that works on a store and dies (or stops) at a named point; run as a script, told what to do in JSON.

The points are reached through SQLite's own hooks, so nothing in outlast knows of them:
a statement about to run, the commit hook, the hook after a commit, a write or sync of one of the files.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import apsw

from outlast import connect
from outlast.config import Config, StateStoreSettings

JOB: dict[str, Any] = {}
COUNTS: dict[str, int] = {}


def reached(point: str) -> bool:
    """Say whether this is the moment: the wanted time that the wanted point is passed after arming."""
    if not COUNTS.get("armed") or not point.startswith(JOB.get("point", "never")):
        return False
    COUNTS["passed"] = COUNTS.get("passed", 0) + 1
    return COUNTS["passed"] == JOB.get("nth", 1)


def end() -> None:
    """Die, or stop until somebody lets this process go on."""
    os.kill(os.getpid(), signal.SIGSTOP if JOB.get("stop") else signal.SIGKILL)


def acknowledge(number: int) -> None:
    os.write(1, f"{number}\n".encode())


def install(connection: apsw.Connection) -> None:
    """Hook a new connection."""

    def statement(cursor: Any, sql: str, bindings: Any) -> bool:
        if reached(f"statement {sql}"):
            end()
        return True

    def commit() -> bool:
        if reached("commit hook"):
            end()
        return False

    def committed(connection: apsw.Connection, database: str, pages: int) -> int:
        if reached("committed"):
            end()
        return 0

    connection.exec_trace = statement
    connection.set_commit_hook(commit)
    if JOB.get("checkpoint_pages"):
        connection.wal_autocheckpoint(JOB["checkpoint_pages"])
    elif JOB.get("point") == "committed":
        connection.set_wal_hook(committed)


class DyingFile(apsw.VFSFile):
    """A file during whose writes and syncs one can die; a write is then torn in the middle."""

    def __init__(self, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self.kind = (
            "wal" if flags[0] & apsw.SQLITE_OPEN_WAL else "main" if flags[0] & apsw.SQLITE_OPEN_MAIN_DB else "other"
        )

    def xWrite(self, data: bytes, offset: int) -> None:
        if reached(f"write {self.kind}"):
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            end()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if reached(f"sync {self.kind}"):
            end()
        super().xSync(flags)
        if reached(f"synced {self.kind}"):
            end()


class DyingVFS(apsw.VFS):
    """The system's files, opened as ones to die in."""

    def __init__(self) -> None:
        super().__init__("dying", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> DyingFile:
        return DyingFile(name, flags)


def config() -> Config:
    return Config(state_store=StateStoreSettings(durability=JOB.get("durability", "full"), history_versions=5))


def write_many() -> None:
    """Write three keys at once, over and over; the last time dying."""
    if not JOB["arm_at"]:
        COUNTS["armed"] = 1
    with connect(JOB["path"], config=config()) as store:
        state = store.task("dag/run/task", attempt=1)
        for number in range(1, JOB["writes"] + 1):
            if number == JOB["arm_at"]:
                COUNTS["armed"] = 1
            with state.transaction() as tx:
                tx.set_many({"a": number, "b": number, "c": str(number) * JOB.get("size", 100)})
                tx.of(store.asset("table")).set("watermark", number)
            acknowledge(number)


def write_once() -> None:
    """Write one key, through the point at which to stop."""
    with connect(JOB["path"], config=config()) as store:
        state = store.task("dag/run/task")
        COUNTS["armed"] = 1
        state.set("key", "mine")
        acknowledge(1)
        acknowledge(state.entry("key").revision)  # type: ignore[union-attr]


def increment() -> None:
    """Increment one number, over and over."""
    with connect(JOB["path"], config=config()) as store:
        state = store.task("dag/run/task")
        for _ in range(JOB["writes"]):
            acknowledge(state.increment("n"))


def go_through() -> None:
    """Go through items with a checkpoint, appending each to a file before it is recorded."""
    with connect(JOB["path"], config=config()) as store:
        state = store.task("dag/run/task", attempt="new")
        options = {"every": JOB.get("every", 1), "id": str if JOB.get("by_id") else None}
        steps = state.checkpoint([f"item {number}" for number in range(JOB["items"])], **options)
        if JOB.get("awaiting"):
            asyncio.run(go_through_awaiting(steps))
            return
        for item in steps:
            body(item)


async def go_through_awaiting(steps: Any) -> None:
    async for item in steps:
        body(item)


def body(item: str) -> None:
    with open(JOB["output"], "a") as output:
        output.write(item + "\n")
    if item == JOB.get("arm_at_item"):
        COUNTS["armed"] = 1


WORK: dict[str, Callable[[], None]] = {
    "write_many": write_many,
    "write_once": write_once,
    "increment": increment,
    "go_through": go_through,
}


def main() -> None:
    JOB.update(json.loads(sys.argv[1]))
    files = DyingVFS() if "point" in JOB else None  # the default for as long as the object lives
    if files is not None:
        apsw.connection_hooks.append(install)
    WORK[JOB["work"]]()


if __name__ == "__main__":
    main()
