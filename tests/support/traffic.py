"""Requests of every type at random, on few scopes, so that those who send them are in each other's way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from outlast import deferral_requests as deferral
from outlast import event_requests as events
from outlast import people_requests as people
from outlast import requests as state
from outlast import run_requests as runs
from outlast import token_requests as access
from outlast.backends import Backend
from outlast.backends.answers import READS, WRITES
from outlast.errors import OutlastError
from outlast.requests import Commit, Fence, Increment, Operation, Part, Put, Remove, RemoveAll
from outlast.values import AssetScope, Scope, TaskScope, Writer

from .runs import ANN, RUNNER, SUPERVISOR

RUNS = ("r1", "r2")
TASKS = ("a", "b", "c", "many")
NAMES = ("x", "y", "z")


class Traffic:
    """One sender: it makes requests that fit what is there, as far as that is known, and sends them."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend, self.random, self.seed = backend, random.Random(seed), seed
        self.sent: set[type] = set()
        self.position: str | None = None
        self.known: list[runs.TaskRow] = []
        self.calls = 0
        self.deck: list[Callable[[Traffic], Any]] = []
        self.turns = Counter[type]()

    def send(self, times: int) -> None:
        """Send so many requests; a refusal is an answer like any other."""
        for _ in range(times):
            self.deck = self.deck or self.random.sample(MAKERS, len(MAKERS))
            made = self.deck.pop()(self)
            self.sent.add(Commit if isinstance(made, list) else type(made))
            if isinstance(made, list):
                self.backend.send_batch(made)
                continue
            try:
                self.take(self.backend.send(made))
            except OutlastError as error:
                if error.code == "backend":
                    raise

    def take(self, reply: Any) -> None:
        if isinstance(reply, runs.RunDetail | people.Touched | runs.Expanded):
            self.known = list(reply.tasks) or self.known
        elif isinstance(reply, state.FeedPage):
            self.position = reply.position
        elif isinstance(reply, runs.TaskRow):
            self.known = [row for row in self.known if row.scope != reply.scope] + [reply]

    def turn(self, made: Sequence[Any]) -> Any:
        """Return one of some requests that one place makes, each in its turn: none is left out by chance."""
        place = type(made[0])
        self.turns[place] += 1
        return made[(self.seed + self.turns[place]) % len(made)]

    # --- what requests are made of ------------------------------------------------------------------------

    def run(self) -> tuple[str, str]:
        return "d", self.random.choice(RUNS)

    def task_scope(self) -> TaskScope:
        task = self.random.choice(TASKS)
        return TaskScope(*self.run(), task, self.random.randrange(3) if task == "many" else -1)

    def asset(self) -> AssetScope:
        name, uri = self.random.choice(("n1", "n2", None)), self.random.choice(("u1", "u2", None))
        return AssetScope(name, uri) if name or uri else AssetScope("n1")

    def scope(self) -> Scope:
        return self.task_scope() if self.random.random() < 0.6 else self.asset()

    def row(self) -> runs.TaskRow:
        return self.random.choice(self.known) if self.known else runs.TaskRow(self.task_scope(), 1, "waiting")

    def fence(self) -> Fence:
        row = self.row()
        return Fence(row.scope, row.attempt, row.scope_id)

    def operation(self) -> Operation:
        name = self.random.choice(NAMES)
        made: list[Operation] = [Put(name, "1", None), Increment("n", 1, None), Remove(name), RemoveAll()]
        return self.random.choice(made)

    def commit(self, parts: int = 1) -> Commit:
        scopes = {self.scope() for _ in range(parts)}
        made = tuple(Part(scope, (self.operation(), self.operation())) for scope in self.shuffled(scopes))
        fence = self.fence() if self.random.random() < 0.3 else None
        return Commit(made, fence, self.random.choice((ANN, Writer())), commit_id=self.call_id())

    def shuffled(self, scopes: set[Scope]) -> list[Scope]:
        ordered = sorted(scopes, key=str)
        self.random.shuffle(ordered)
        return ordered

    def call_id(self) -> str:
        self.calls += 1
        return f"{self.seed}.{self.calls // 2}"  # each of them twice


def one_part(of: Traffic) -> Any:
    return Commit((Part(of.scope(), (of.operation(),)),), None, of.random.choice((ANN, Writer())))


def several_parts(of: Traffic) -> Any:
    return of.commit(4)


def batch(of: Traffic) -> Any:
    return [of.commit(of.random.randrange(1, 5)) for _ in range(6)]


def new_scopes(of: Traffic) -> Any:
    names = [f"new{of.random.randrange(40)}" for _ in range(5)]
    return Commit(tuple(Part(TaskScope("d", "r3", name), (Put("x", "1", None),)) for name in dict.fromkeys(names)))


def opening(of: Traffic) -> Any:
    return state.Open(of.task_scope(), None)


def once(of: Traffic) -> Any:
    made = [state.Open(of.task_scope(), None), one_part(of), beginning(of), clearing(of)]
    return state.Once("call " + of.call_id(), of.turn(made))


def reading(of: Traffic) -> Any:
    scope = of.scope()
    made = [state.Read(scope, None), state.Read(scope, ("x",)), state.History(scope, "x"), state.Changes(scope, None)]
    made += [state.Count(scope), state.Feed(of.position), state.Find(dag_id="d"), state.ListScopes(), state.Inspect()]
    return of.turn(made)


def reading_runs(of: Traffic) -> Any:
    made = [runs.GetRun(*of.run()), runs.ListRuns(total=True), runs.ListDags(), runs.ListAttempts(of.row().scope)]
    made += [runs.PullResults(*of.run(), TASKS, "return_value"), people.ListAudit(), deferral.GetDeferral(of.fence())]
    return of.turn([*made, deferral.ListDeferred((1, 2, 3)), events.ListEvents()])


def merging(of: Traffic) -> Any:
    name, uri = of.random.choice(("n1", "n2")), of.random.choice(("u1", "u2"))
    made = [state.MergeAssets(name, uri, ANN, of.random.choice(("name", "uri"))), state.ForgetAsset(None, uri, ANN)]
    return of.turn([*made, state.ForgetAsset(name, None, ANN, whole=of.random.random() < 0.5)])


def sweeping(of: Traffic) -> Any:
    return state.Sweep(of.random.choice((1, 50)), -100 * 24 * 3600 * 1_000_000)  # as in a hundred days


def starting(of: Traffic) -> Any:
    specs = [runs.TaskSpec("a"), runs.TaskSpec("b", upstream=("a",)), runs.TaskSpec("c", upstream=("b",))]
    many = runs.TaskSpec("many", upstream=("a",), mapped=True)
    ids = (of.random.randrange(1, 50),)
    alone = of.random.random() < 0.3
    return runs.StartRun(*of.run(), (*specs, many), "{}", "f", "d", 0, RUNNER, 0.0, ids, alone)


def holding(of: Traffic) -> Any:
    return runs.HoldRun(*of.run(), RUNNER, 0.0)


def releasing(of: Traffic) -> Any:
    return runs.ReleaseRun(*of.run(), RUNNER, of.random.choice(("paused", "failed")))


def beginning(of: Traffic) -> Any:
    row = of.row()
    return runs.Begin(row.scope, row.attempt, SUPERVISOR, 30.0)


def renewing(of: Traffic) -> Any:
    return runs.Renew(of.fence(), 30.0)


def reporting(of: Traffic) -> Any:
    outcome = of.random.choice(("success", "failed", "crashed", "paused", "deferred", "rescheduled"))
    put_off = deferral.Deferral("t", "{}", "m") if outcome == "deferred" else None
    new = (runs.NewEvent("n1", None),) if outcome == "success" else ()
    return runs.Report(of.fence(), outcome, "1", clear_state=True, deferral=put_off, events=new, retries=9)


def firing(of: Traffic) -> Any:
    row = of.row()
    return deferral.Fire(row.scope_id, row.attempt, "{}")


def expanding(of: Traffic) -> Any:
    keyed = of.random.random() < 0.5
    keys = of.random.sample(("k1", "k2", "k3", "k4"), 3)
    items = [runs.Item(str(of.random.randrange(3)), key if keyed else None) for key in keys]
    return runs.ExpandTask(*of.run(), "many", tuple(items))


def steering(of: Traffic) -> Any:
    row = of.row()
    made = [runs.Resolve(row.scope, "skipped"), runs.NoteAftermath(row.scope, row.attempt, of.random.random() < 0.5)]
    return of.turn([*made, runs.PushResult(of.fence(), "r", "1")])


def clearing(of: Traffic) -> Any:
    tasks = tuple((task, None) for task in of.random.sample(TASKS, 2))
    flags = {"discard": True, "downstream": of.random.random() < 0.5, "force": True}
    return people.ClearTasks(*of.run(), tasks, ANN, **flags)


def marking(of: Traffic) -> Any:
    return people.MarkTask(of.row().scope, of.random.choice(("success", "failed")), ANN, True)


def cancelling(of: Traffic) -> Any:
    return people.CancelRun(*of.run(), ANN)


def deleting(of: Traffic) -> Any:
    return runs.DeleteRun(*of.run(), ANN, force=True)


def pruning(of: Traffic) -> Any:
    return runs.PruneRuns(2**60, 10, writer=ANN)


def assets_events(of: Traffic) -> Any:
    made = [events.AddEvents((runs.NewEvent("n1", None),)), events.ConsumedUntil("d", of.random.randrange(9))]
    return of.turn([*made, events.HoldWatchers(("w1", "w2"), RUNNER, 1.0)])


def tokens(of: Traffic) -> Any:
    created = access.CreateToken(of.random.randbytes(32), "viewer", "ann", ANN)
    made = [created, access.RevokeToken(1, ANN), access.TouchToken(1), access.MakeSecret(ANN), access.ListSecrets()]
    return of.turn([*made, access.ListTokens(), access.FindToken(id=1)])


MAKERS = (
    *(one_part, several_parts, several_parts, batch, batch, new_scopes, opening, once, reading, reading_runs, merging),
    *(sweeping, starting, holding, releasing, beginning, beginning, renewing, reporting, reporting, firing, expanding),
    *(steering, clearing, marking, marking, cancelling, deleting, pruning, assets_events, tokens),
)
#: Every type of request a database answers.
TYPES = {*READS, *WRITES, state.Sweep, state.Inspect}
