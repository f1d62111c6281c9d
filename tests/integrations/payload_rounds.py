"""Run tasks that set, delete and clear values in Airflow's order, and SIGKILL each at a moment nobody chose.

A program: FOLDER (of payloads) DATABASE (Airflow's rows, as far as they matter) OPERATIONS SEED. It prints what became
of it as JSON. Children are forked from one process without threads, since a fresh interpreter each would take minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time

import msgspec

from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payloads import Folder, read_checked
from outlast.integrations.airflow.references import References, payload_of

TASKS, KEYS = 4, 3


class Task(msgspec.Struct, frozen=True):
    """What Airflow's scope of a task has."""

    task_id: str
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1


def main(folder: str, database: str, wanted: int, seed: int) -> None:
    chance, done, kills, lost = random.Random(seed), 0, 0, 0
    while done < wanted or kills <= wanted // 100:  # on a busy machine a process gets far before it is killed
        done, kills = done + one_life(folder, database, chance), kills + 1
        lost += len(without_payload(folder, database))
    be_killed_between(folder, database)
    print(json.dumps({"operations": done, "kills": kills, "lost": lost}))


def be_killed_between(folder: str, database: str) -> None:
    """End as chance does not always: with a payload that is referred to, and one whose writer died before its row."""
    if os.fork() == 0:
        references, rows = References(Packer(), Folder(folder), offload_above=200), opened(database)
        for key in ("key/0", "key/1"):
            reference = references.refer(os.urandom(400).hex(), Task("task0"), key, lambda: None)
            if key == "key/0":
                rows.execute("insert or replace into state values (?, ?, ?)", ("task0", key, reference))
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()


def one_life(folder: str, database: str, chance: random.Random) -> int:
    """Let a task's process run for a while and kill it; return how much it has done."""
    reader, writer = os.pipe()
    seed = chance.random()
    child = os.fork()
    if child == 0:
        os.close(reader)
        work(folder, database, random.Random(seed), writer)
    os.close(writer)
    done, enough = 0, chance.randrange(1, 100)
    while done < enough:
        done += len(os.read(reader, 1)) or sys.exit("the task's process ended by itself")
    time.sleep(chance.uniform(0, 0.002))  # into the middle of an operation, of which there are several a millisecond
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while told := os.read(reader, 4096):  # what it had done when it was killed
        done += len(told)
    os.close(reader)
    return done


def work(folder: str, database: str, chance: random.Random, told: int) -> None:
    """Do one thing after the other, for ever, each in the order in which Airflow 3.3 does it."""
    try:
        references = References(Packer(), Folder(folder), offload_above=200)
        rows = opened(database)
        while True:
            step(references, rows, chance)
            os.write(told, b".")
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def step(references: References, rows: sqlite3.Connection, chance: random.Random) -> None:
    task, key = Task(f"task{chance.randrange(TASKS)}"), f"key/{chance.randrange(KEYS)}"
    match chance.choices(["set", "get", "delete", "clear", "succeed"], [60, 20, 10, 5, 5])[0]:
        case "set":
            value = chance.randbytes(chance.choice([10, 60, 400, 3000])).hex()
            reference = references.refer(value, task, key, lambda: reference_of(rows, task, key))
            rows.execute("insert or replace into state values (?, ?, ?)", (task.task_id, key, reference))
        case "get":
            stored = reference_of(rows, task, key)
            assert stored is None or isinstance(references.resolve(stored), str)
        case "delete":
            rows.execute("delete from state where task = ? and key = ?", (task.task_id, key))
            references.forget(task, key)
        case "clear":
            rows.execute("delete from state where task = ?", (task.task_id,))
            references.forget_all(task)
        case "succeed":  # clear_on_success: the backend is told before the rows go
            references.forget_all(task, later=True)
            rows.execute("delete from state where task = ?", (task.task_id,))
            references.after_success(lambda: True)


def opened(database: str) -> sqlite3.Connection:
    return sqlite3.connect(database, isolation_level=None)


def reference_of(rows: sqlite3.Connection, task: Task, key: str) -> str | None:
    found = rows.execute("select reference from state where task = ? and key = ?", (task.task_id, key)).fetchone()
    return found[0] if found else None


def without_payload(folder: str, database: str) -> list[str]:
    """Return the references whose payload is not there, or is another."""
    place = Folder(folder)
    with sqlite3.connect(database) as rows:
        names = [payload_of(reference) for (reference,) in rows.execute("select reference from state")]
    return [name for name in names if name is not None and read_checked(place, name) is None]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
