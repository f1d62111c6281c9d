"""Tasks that wait for triggers behind a server, and a triggerer there that is kept at work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outlast import Store, connect
from outlast.config import ClientSettings, Config, RunnerSettings
from outlast.runner.trigger_host import TriggerHost
from outlast.runner.watching import Watcher

from .house import TRIGGERS, House
from .remote import Remote
from .runs import Desk

#: What a DAG file of tests of triggers begins with, after its prelude.
WAITS = '''
import asyncio, gc
from outlast import BaseOperator, connect
from outlast.config import load
from outlast.dags.triggers import BaseTrigger, TriggerEvent

class Calls(BaseTrigger):
    """Fires what a function of this file returns; which one, whoever defers says."""
    def __init__(self, name, *given):
        super().__init__()
        self.name, self.given = name, given

    def serialize(self):
        return f"{__name__}.Calls", {"name": self.name}

    async def run(self):
        yield TriggerEvent(await asyncio.to_thread(globals()[self.name]))

class Wait(BaseOperator):
    def __init__(self, name, **more):
        super().__init__(**more)
        self.name = name

    def execute(self, context):
        self.defer(trigger=Calls(self.name), method_name="done")

    def done(self, context, event):
        context["task_state_store"].set("seen", event)

def tried(act, *given):
    try:
        return f"GOT {act(*given)!r}"
    except Exception as error:
        return getattr(error, "code", type(error).__name__)

def read(path, size=100):
    with open(path, "rb") as file:
        return file.read(size)

'''


class Kept(House):
    """A house behind a server, with a host whose triggerer is nobody's where that is possible."""

    def __init__(self, remote: Remote, monkeypatch: pytest.MonkeyPatch, **host: Any) -> None:
        remote.folder.joinpath("d.py").write_text(TRIGGERS)
        self.folder, self.file = remote.folder, remote.folder / "d.py"
        self.logs, self.store, self.started = remote.secret / "logs", remote.store, []
        self.desk = Desk(remote.store.backend, "d", "r")
        runner = RunnerSettings(run_as=remote.user, logs_dir=str(self.logs))
        client = ClientSettings(token=remote.env["OUTLAST_TOKEN"])
        monkeypatch.setattr(sys, "executable", remote.python)
        monkeypatch.setenv("PYTHONPATH", remote.env["PYTHONPATH"] + os.pathsep + os.pathsep.join(sys.path))
        self.watchers: Sequence[Watcher] = ()
        self.asked: Store = connect(remote.server.url, config=Config(client=client, runner=runner))
        self.said: list[str] = []
        self.host = TriggerHost(self.asked, self.said.append, **host)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 40.0) -> None:
        """Wait as a runner does, looking after the triggerer meanwhile."""

        def looked() -> Any:
            self.host.look({1: str(self.file)}, self.watchers, wanted=True, news=False, names=[("d", "r")])
            return condition()

        super().until(looked, what, seconds)

    def end(self) -> None:
        """End the triggerer, and what has been opened here."""
        self.host.close()
        self.asked.close()
