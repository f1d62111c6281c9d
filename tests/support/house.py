"""A store with a run made by hand, a DAG file full of triggers, and triggerers that look after them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast import Store, connect
from outlast.config import Config, StateStoreSettings
from outlast.deferral_requests import Deferral, DeferredRow, GetDeferral, ListDeferred
from outlast.event_requests import EventRow, ListEvents
from outlast.run_requests import TaskSpec
from outlast.runner.triggerer import LocalTriggerer

from .runs import Desk

PATIENCE = 20.0

TRIGGERS = '''
import asyncio, contextlib, datetime, logging, os, sys, threading, time
from pathlib import Path
from outlast import DAG, task
from outlast.dags.triggers import BaseEventTrigger, BaseTrigger, TriggerEvent

HERE = Path(__file__).parent
THREAD = threading.current_thread().name

def mark(text):
    with open(HERE / "marks", "a") as file:
        file.write(f"{text}\\n")

class Base(BaseTrigger):
    def __init__(self, **kwargs):
        super().__init__()
        self.kwargs = kwargs

    def serialize(self):
        return "file:" + type(self).__name__, self.kwargs

class Now(Base):
    """Fires what it is given."""
    async def run(self):
        yield TriggerEvent(self.kwargs.get("payload"))

class File(Base):
    """Fires when there is a file, and marks what happens to it."""
    async def run(self):
        mark(f"run {self.kwargs['name']}")
        try:
            while not (HERE / self.kwargs["name"]).exists():
                await asyncio.sleep(0.02)
            yield TriggerEvent((HERE / self.kwargs["name"]).read_text())
            mark("second event wanted")
        except asyncio.CancelledError:
            mark(f"cancelled {self.kwargs['name']}")
            raise
        finally:
            mark(f"left {self.kwargs['name']}")

    async def cleanup(self):
        mark(f"cleanup {self.kwargs['name']}")

class Raises(Base):
    async def run(self):
        await asyncio.sleep(0)
        deeper()
        yield TriggerEvent(1)

    async def cleanup(self):
        mark("cleanup after raising")
        raise LookupError("in cleanup")

def deeper():
    raise RuntimeError("the far side is down")

class Nothing(Base):
    async def run(self):
        if self.kwargs.get("never"):
            yield TriggerEvent(1)

class NoGenerator(Base):
    async def run(self):
        return TriggerEvent(1)

class NoEvent(Base):
    async def run(self):
        yield {"done": True}

class Exits(Base):
    async def run(self):
        sys.exit(3)
        yield TriggerEvent(1)

class CancelsItself(Base):
    async def run(self):
        task = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_later(0.05, task.cancel)
        await task
        yield TriggerEvent(1)

class BadStart(Base):
    def __init__(self, **kwargs):
        raise ValueError("no such bucket")

    async def run(self):
        yield TriggerEvent(1)

class Moment(Base):
    async def run(self):
        yield TriggerEvent({"rows": [{"when": datetime.datetime(2026, 11, 29)}]})

class Types(Base):
    async def run(self):
        yield TriggerEvent({name: type(value).__name__ for name, value in self.kwargs.items()})

class Talks(Base):
    async def run(self):
        print("printed", end="\\n")
        self.log.info("logged by %s", "the trigger")
        logging.getLogger("elsewhere").warning("warned")
        await asyncio.to_thread(print, "from a thread")
        yield TriggerEvent(1)

class Blocks(Base):
    async def run(self):
        mark("blocking")
        time.sleep(self.kwargs["seconds"])
        yield TriggerEvent(1)

class Stubborn(Base):
    async def run(self):
        mark("stubborn")
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        yield TriggerEvent(1)

class Hogs(Base):
    """Does not let go of the event loop; or a task it has started does not."""
    async def run(self):
        mark("hogging")
        if self.kwargs.get("child"):
            await asyncio.create_task(self.hog())
        await self.hog()
        yield TriggerEvent(1)

    async def hog(self):
        time.sleep(3600)

class Dies(Base):
    """Ends the process of all triggers, in one way or another."""
    async def run(self):
        mark("dying")
        await asyncio.sleep(0.01)
        if self.kwargs["how"] == "in a thread":
            await asyncio.to_thread(os._exit, 3)
        if self.kwargs["how"] == "in a task":
            await asyncio.create_task(self.die())
        if self.kwargs["how"] == "by a signal":
            os.kill(os.getpid(), 11)
        await self.die()
        yield TriggerEvent(1)

    async def die(self):
        os._exit(3)

class Beats(BaseEventTrigger):
    """Says again and again which process it runs in."""
    def serialize(self):
        return "file:Beats", {}

    async def run(self):
        while True:
            yield TriggerEvent(os.getpid())
            await asyncio.sleep(0.05)

class Writes(BaseEventTrigger):
    """Keeps which process it runs in, in the state of its asset, and says so, again and again."""
    def serialize(self):
        return "file:Writes", {}

    async def run(self):
        while True:
            await self.asset_state_store.aset("by", os.getpid())
            yield TriggerEvent(os.getpid())
            await asyncio.sleep(0.02)

class Ticks(BaseEventTrigger):
    """Counts in the state of its asset, and says each number; every second one breaks it."""
    def __init__(self, **kwargs):
        assert self.asset_state_store is None

    def serialize(self):
        return "file:Ticks", {}

    async def run(self):
        ticks = await self.asset_state_store.aincrement("ticks")
        yield TriggerEvent({"tick": ticks})
        if ticks == 2:
            raise RuntimeError("broken")
        yield TriggerEvent("and")
        await asyncio.sleep(0 if ticks < 3 else 60)

with DAG("d"):
    task(lambda: 1, task_id="t")()
'''


class House:
    """A store with one run, a DAG file with triggers, and triggerers that look after it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.logs = folder, folder / "d.py", folder / "logs"
        self.file.write_text(TRIGGERS)
        self.place = folder / "s.db"
        self.store: Store = connect(self.place, config=Config(state_store=StateStoreSettings(durability="process")))
        self.desk = Desk(self.store.backend, "d", "r")
        self.started: list[LocalTriggerer] = []

    def run(self, *tasks: str | TaskSpec) -> int:
        return self.desk.start(*tasks or ("t",), lease=3600.0).run.id

    def triggerer(self, run: int = 1) -> LocalTriggerer:
        made = LocalTriggerer(str(self.place), str(self.logs))
        self.started.append(made)
        made.look({run: str(self.file)})
        return made

    def defer(
        self, path: str, task_id: str = "t", index: int = -1, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Let an attempt begin (or go on) and be deferred."""
        text = json.dumps(kwargs)
        if self.desk.task(task_id, index).state != "running":
            self.desk.begin(task_id, index)
        deferral = Deferral(path if "." in path else f"file:{path}", text, "done", "{}", timeout)
        self.desk.report(self.desk.fence(task_id, index), "deferred", deferral=deferral)

    def event(self, task_id: str = "t", seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until a task may go on, let it, and return what came of its trigger."""
        self.until(lambda: self.desk.task(task_id).state == "scheduled", f"{task_id} fires", seconds)
        self.desk.begin(task_id)
        text = self.store.backend.send(GetDeferral(self.desk.fence(task_id))).event
        event: dict[str, Any] = json.loads(text)
        return event

    def waiting(self, run: int = 1) -> list[DeferredRow]:
        return list(self.store.backend.send(ListDeferred((run,))).rows)

    @property
    def marks(self) -> list[str]:
        path = self.folder / "marks"
        return path.read_text().splitlines() if path.exists() else []

    def marked(self, text: str, times: int = 1) -> None:
        self.until(lambda: self.marks.count(text) >= times, f"mark {text!r}")

    def events(self) -> list[EventRow]:
        return list(self.store.backend.send(ListEvents()).rows)

    def log(self, task_id: str = "t") -> str:
        path = self.logs / "d" / "r" / task_id / "trigger.log"
        return path.read_text() if path.exists() else ""

    @property
    def own_log(self) -> str:
        return (self.logs / "triggerer.log").read_text()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.own_log}\n{self.log()}"
            time.sleep(0.01)

    def close(self) -> None:
        for made in self.started:
            made.process.kill()
            made.close()
        self.store.close()
