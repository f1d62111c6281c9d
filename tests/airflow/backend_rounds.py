"""Use both backends on Airflow's own database in Airflow's order, SIGKILLed at moments nobody chose, as keys change.

A program for the Python of an installed Airflow 3.3: OPERATIONS SEED, in the environment of its home, where the DAG
`keeps` has the run `run1`. The place of payloads fails now and then, where it is the one of `raising_files`. It prints
what became of it as JSON. Children are forked from one process, which itself never opens Airflow's database.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import raising_files  # noqa: F401 (its file system is known from then on)
from airflow.state import AssetScope, TaskScope
from airflow.state.metastore import AssetStateStoreWriterKind

from outlast.errors import BackendError
from outlast.integrations.airflow.backend_settings import read_settings
from outlast.integrations.airflow.metadata import AirflowRows
from outlast.integrations.airflow.metastore_backend import MetastorePlusBackend
from outlast.integrations.airflow.packing import Packer
from outlast.integrations.airflow.payload_sweep import clean, examine
from outlast.integrations.airflow.payloads import Folder, read_checked
from outlast.integrations.airflow.references import References, payload_of
from outlast.integrations.airflow.rotation import rotate
from outlast.integrations.airflow.rows import REFERENCE, reference_in, unpack_row

KEYS = "AIRFLOW__OUTLAST__STATE_ENCRYPTION_KEYS"
OLD, NEW = os.environ["OLD_KEY"], os.environ["NEW_KEY"]
HOME, FAILURES = os.environ["AIRFLOW_HOME"], ["", "", "", "rm_file", "find", "find rm_file", "write", "read"]
#: What the keys are in each quarter of the operations.
QUARTERS = [OLD, f"{OLD},{NEW}", f"{NEW},{OLD}", f"{NEW},{OLD}"]


def main(wanted: int, seed: int) -> None:
    chance, done, lives, rotations = random.Random(seed), 0, 0, 0
    while done < wanted:
        quarter = done * 4 // wanted
        os.environ[KEYS] = QUARTERS[quarter]
        fail(chance.choice(FAILURES))
        if quarter > 1 and lives % 10 == 0:
            fail("")
            rotations += forked(rotated, chance.uniform(0, 0.5) if chance.random() < 0.5 else None)
        done, lives = done + one_life(chance), lives + 1
        assert (missing := without_payload()) == [], missing
    fail("")
    forked(left_over)
    forked(rotated)
    forked(swept)
    os.environ[KEYS] = NEW
    forked(all_readable)
    print(json.dumps({"operations": done, "lives": lives, "rotations": rotations, **counted()}))


def fail(calls: str) -> None:
    with open(os.environ["FAILING"], "w") as file:
        file.write(calls)


# --- Processes ---------------------------------------------------------------------------------------------


def one_life(chance: random.Random) -> int:
    """Let a task's process run for a while and kill it; return how much it has done."""
    reader, writer = os.pipe()
    seed = chance.random()
    child = os.fork()
    if child == 0:
        ended_with(lambda: work(random.Random(seed), writer))
    os.close(writer)
    done, enough = 0, chance.randrange(1, 120)
    while done < enough:
        done += len(os.read(reader, 1)) or sys.exit("the task's process ended by itself")
    time.sleep(chance.uniform(0, 0.006))  # into the middle of an operation, which takes some milliseconds
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while told := os.read(reader, 4096):  # what it had done when it was killed
        done += len(told)
    os.close(reader)
    return done


def forked(call: Callable[[], None], killed_after: float | None = None) -> bool:
    """Run something in a process of its own, which may be killed; say whether it came to its end."""
    child = os.fork()
    if child == 0:
        ended_with(call)
    if killed_after is not None:
        time.sleep(killed_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if killed_after is None and status:
        sys.exit(f"{call} has failed")
    return status == 0


def ended_with(call: Callable[[], None]) -> NoReturn:
    try:
        call()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# --- What tasks do -----------------------------------------------------------------------------------------


def work(chance: random.Random, told: int) -> None:
    """Do one thing after the other, for ever, each in the order in which Airflow 3.3 does it."""
    task = Task(chance, read_settings().references(), MetastorePlusBackend())
    while True:
        task.step()
        os.write(told, b".")


class Task:
    """A process that uses the state of some tasks and of an asset."""

    def __init__(self, chance: random.Random, references: References, server: MetastorePlusBackend) -> None:
        self.chance, self.references, self.server = chance, references, server
        self.asset_id = query("select id from asset where name = 'orders'")[0][0]

    def step(self) -> None:
        """Set, get, delete or clear; what the place of payloads refuses has not happened."""
        number, key = self.chance.randrange(5), f"key/{self.chance.randrange(3)}"
        scope = TaskScope("keeps", "run1", f"task{number}", -1) if number < 4 else AssetScope(name="orders")
        verb = self.chance.choices([self.set, self.get, self.delete, self.clear], [60, 20, 10, 10])[0]
        try:
            verb(scope, AssetScope(asset_id=self.asset_id) if number == 4 else scope, key)
        except BackendError as error:
            if "the object store does not" not in error.message:
                raise

    def set(self, scope: Any, stored: Any, key: str) -> None:
        size = self.chance.choice([10, 60, 2000, 5000])
        value = {"of": [name_of(scope), key], "value": self.chance.randbytes(size).hex()}
        reference = self.references.refer(value, scope, key, lambda: self.held(stored, key))
        text = json.dumps({REFERENCE: reference})
        if isinstance(scope, AssetScope):
            self.server.set_asset_state_store(stored, key, text, kind=AssetStateStoreWriterKind.WATCHER)
            return
        ahead = self.chance.choice([None, timedelta(hours=1), timedelta(seconds=-1)])
        self.server.set(stored, key, text, expires_at=ahead and datetime.now(UTC) + ahead)

    def get(self, scope: Any, stored: Any, key: str) -> None:
        if (reference := self.held(stored, key)) is not None:
            value: Any = self.references.resolve(reference)
            assert value["of"] == [name_of(scope), key], value

    def delete(self, scope: Any, stored: Any, key: str) -> None:
        self.server.delete(stored, key)
        self.references.forget(scope, key)

    def clear(self, scope: Any, stored: Any, key: str) -> None:
        """Clear; or succeed with `clear_on_success`, where the backend is told before the rows go."""
        if isinstance(scope, TaskScope) and self.chance.random() < 0.5:
            self.references.forget_all(scope, later=True)
            self.server.clear(stored)
            self.references.after_success(lambda: True)
        else:
            self.server.clear(stored)
            self.references.forget_all(scope)

    def held(self, stored: Any, key: str) -> str | None:
        text = self.server.get(stored, key)
        return None if text is None else reference_in(json.loads(text))


def name_of(scope: Any) -> str:
    return scope.task_id if isinstance(scope, TaskScope) else str(scope.name)


# --- Upkeep, and what is looked at -------------------------------------------------------------------------


def left_over() -> None:
    """End as chance does not always: with a payload that stays, one past its time, and one without its row."""
    references, server = read_settings().references(), MetastorePlusBackend()
    scope = TaskScope("keeps", "run1", "task0", -1)
    for key, ahead in (("key/0", timedelta(hours=1)), ("key/1", timedelta(seconds=-1)), ("key/0", None)):
        value = {"of": ["task0", key], "value": os.urandom(4000).hex()}
        reference = references.refer(value, scope, key, nobody)
        if ahead is not None:
            server.set(scope, key, json.dumps({REFERENCE: reference}), expires_at=datetime.now(UTC) + ahead)


def nobody() -> NoReturn:
    raise LookupError


def rotated() -> None:
    settings = read_settings()
    done = rotate(AirflowRows(), settings.packer(), settings.payloads())
    assert done.unreadable == [], done


def swept() -> None:
    """One sweep is enough."""
    settings, rows = read_settings(), AirflowRows()
    payloads = settings.payloads()
    assert payloads is not None
    found = examine(payloads, rows, settings.packer(), grace=0, now=2**61)
    assert found.orphans, found
    assert found.expired, found
    assert (found.lost, found.unreadable, found.withheld) == ([], [], 0), found
    assert clean(found, payloads, rows) == []
    again = examine(payloads, rows, settings.packer(), grace=0, now=2**61)
    assert (again.orphans, again.expired, again.lost, again.kept > 0) == ([], [], [], True), again
    assert len(list(payloads.names())) == again.kept


def all_readable() -> None:
    """With the new key alone."""
    settings, rows = read_settings(), AirflowRows()
    references, packer = settings.references(), settings.packer()
    for row in rows.all():
        value: Any = references.resolve(json.loads(unpack_row(packer, row.text))[REFERENCE])
        assert row.name.endswith(" " + value["of"][1]), row


def without_payload() -> list[str]:
    """Return the references whose payload is not there, or is another."""
    return [name for name in referred() if read_checked(place(), name) is None]


def referred() -> list[str]:
    packer = Packer(keys=[NEW, OLD])
    tables = "select value from task_state_store union all select value from asset_state_store"
    references = [reference_in(json.loads(unpack_row(packer, text))) for (text,) in query(tables)]
    return [name for reference in references if (name := payload_of(reference)) is not None]


def counted() -> dict[str, int]:
    return {"payloads": len(list(place().names())), "referred": len(referred())}


def place() -> Folder:
    return Folder(f"{HOME}/payloads")


def query(statement: str) -> list[Any]:
    connection = sqlite3.connect(f"{HOME}/airflow.db", timeout=30)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
