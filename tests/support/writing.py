"""Every request that writes, once, and a stage where each has something to do: for tests of lost answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast import Store
from outlast import deferral_requests as deferral
from outlast import event_requests as events
from outlast import people_requests as people
from outlast import requests as state
from outlast import run_requests as runs
from outlast import token_requests as access
from outlast.requests import Commit, Increment, Part, Put
from outlast.values import AssetScope, TaskScope

from .clock import Clock
from .runs import ANN, RUNNER, SUPERVISOR, Desk

DAY = 24 * 3600 * 1_000_000


class Stage:
    """A run whose tasks are in every state, assets, events, a token and something to sweep; apart from other stages."""

    def __init__(self, store: Store, clock: Clock, number: int = 1) -> None:
        self.number, self.dag = number, f"nightly{number}"
        self.backend, self.clock, self.desk = store.backend, clock, Desk(store.backend, self.dag)
        self.script = TaskScope(f"script{number}", "r1", "task")
        self.table, self.place = AssetScope(f"table{number}"), AssetScope(None, f"s3://place{number}")
        self.both = AssetScope(f"name{number}", f"s3://uri{number}")
        self._old_run()
        self._run()
        self._state()
        self.backend.send(access.MakeSecret(ANN))
        token: access.TokenRow = self.backend.send(access.CreateToken(self.digest("ann"), "viewer", "ann", ANN))
        self.token_id = token.id
        clock.move(days=2)

    def digest(self, name: str) -> bytes:
        """Return what stands for a token of this stage."""
        return f"{name} {self.number}".encode().ljust(32)

    def _old_run(self) -> None:
        old = Desk(self.backend, self.dag, "r0")
        old.start("load")
        old.ran("load")
        old.release("success")
        self.clock.move(days=20)

    def _run(self) -> None:
        desk = self.desk
        desk.start("idle", "busy", "put_off", "spare", runs.TaskSpec("many", mapped=True), runs.TaskSpec("late"))
        desk.begin("busy")
        desk.begin("put_off")
        put_off = deferral.Deferral("t.T", "{}", "resume")
        desk.report(desk.fence("put_off"), "deferred", deferral=put_off)
        desk.ran("late", "failed")

    def _state(self) -> None:
        soon = self.clock() + 3600 * 1_000_000
        self._put(self.script, Put("key", "1", soon), Put("other", "2", None))
        self._put(self.table, Put("watermark", "1", None))
        self._put(self.place, Put("rows", "2", None))
        self._put(self.both, Put("rows", "2", None))
        self._put(self.desk.scope("busy"), Put("page", "3", None))
        self.backend.send(events.AddEvents((runs.NewEvent("n1", None),)))
        self.backend.send(events.ConsumedUntil(f"consumer{self.number}"))

    def _put(self, scope: Any, *operations: Any) -> None:
        self.backend.send(Commit((Part(scope, operations),)))


def _adding(stage: Stage, *others: Part, commit_id: str | None = None) -> Commit:
    adding = Part(stage.script, (Increment("n", 1, None), Put("key", '"text"', None)))
    return Commit((adding, *others), commit_id=commit_id)


def _report(stage: Stage) -> Any:
    event = runs.NewEvent("n1", "u9", "{}")
    return runs.Report(stage.desk.fence("busy"), "success", '"result"', events=(event,), clear_state=True)


def _fire(stage: Stage) -> Any:
    row = stage.desk.task("put_off")
    return deferral.Fire(row.scope_id, row.attempt, '"event"')


#: What is sent, by a name that begins with its type's.
MADE: dict[str, Callable[[Stage], Any]] = {
    "Open": lambda stage: state.Open(stage.script, None),
    "Commit": _adding,
    "Commit with an id": lambda stage: _adding(stage, commit_id=f"c{stage.number}"),
    "Commit of two scopes": lambda stage: _adding(stage, Part(stage.table, (Increment("n", 1, None),))),
    "Once": lambda stage: state.Once(f"o{stage.number}", state.Open(stage.script, None)),
    "MergeAssets": lambda stage: state.MergeAssets(str(stage.table.name), str(stage.place.uri), ANN),
    "ForgetAsset": lambda stage: state.ForgetAsset(stage.both.name, None, ANN),
    "StartRun": lambda stage: runs.StartRun(stage.dag, "r2", TASKS, "{}", "f", "d", 0, RUNNER, 30.0, (1,)),
    "HoldRun": lambda stage: runs.HoldRun(stage.dag, "r1", RUNNER, 60.0),
    "ReleaseRun": lambda stage: runs.ReleaseRun(stage.dag, "r1", RUNNER, "paused"),
    "Begin": lambda stage: runs.Begin(stage.desk.scope("idle"), 0, SUPERVISOR, 30.0),
    "Renew": lambda stage: runs.Renew(stage.desk.fence("busy"), 60.0),
    "Report": _report,
    "Resolve": lambda stage: runs.Resolve(stage.desk.scope("spare"), "skipped"),
    "NoteAftermath": lambda stage: runs.NoteAftermath(stage.desk.scope("late"), 1),
    "HoldWatchers": lambda stage: events.HoldWatchers(("w1", f"w{stage.number}"), RUNNER, 30.0),
    "PushResult": lambda stage: runs.PushResult(stage.desk.fence("busy"), "rows", "7"),
    "Fire": _fire,
    "ExpandTask": lambda stage: runs.ExpandTask(stage.dag, "r1", "many", (runs.Item("1", None), runs.Item("2", None))),
    "AddEvents": lambda stage: events.AddEvents((runs.NewEvent("n1", None), runs.NewEvent("n2", None))),
    "ConsumedUntil": lambda stage: events.ConsumedUntil(f"another{stage.number}"),
    "ClearTasks": lambda stage: people.ClearTasks(stage.dag, "r1", (("late", None),), ANN, discard=True),
    "MarkTask": lambda stage: people.MarkTask(stage.desk.scope("spare"), "success", ANN),
    "CancelRun": lambda stage: people.CancelRun(stage.dag, "r1", ANN),
    "DeleteRun": lambda stage: runs.DeleteRun(stage.dag, "r1", ANN, force=True),
    "PruneRuns": lambda stage: runs.PruneRuns(stage.clock() - 5 * DAY, 10, writer=ANN),
    "CreateToken": lambda stage: access.CreateToken(stage.digest("bob"), "viewer", "bob", ANN),
    "RevokeToken": lambda stage: access.RevokeToken(stage.token_id, ANN),
    "TouchToken": lambda stage: access.TouchToken(stage.token_id),
    "MakeSecret": lambda stage: access.MakeSecret(ANN),
    "Sweep": lambda stage: state.Sweep(100),
}
TASKS = (runs.TaskSpec("a"), runs.TaskSpec("b", upstream=("a",)))


def type_of(name: str) -> str:
    return name.partition(" ")[0]
