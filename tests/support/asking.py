"""Every request there is, once about a task scope and as one attempt of it: what tests of rights go through."""

from __future__ import annotations

from typing import Any

from outlast import deferral_requests as deferral
from outlast import event_requests as events
from outlast import people_requests as people
from outlast import requests as state
from outlast import run_requests as runs
from outlast import token_requests as access
from outlast.requests import Commit, Fence, Open, Operation, Part, Put, Read
from outlast.values import Cursor, TaskScope, Writer

from .runs import SUPERVISOR

#: Whose things nobody else is to get at …
VICTIM = TaskScope("hr", "r9", "pay")
HIS = Fence(VICTIM, 1, 1)
#: … and the attempt that tries.
MINE = TaskScope("sales", "r1", "extract")
OWN = Fence(MINE, 3, 1)
LIAR = Writer("person", name="somebody else")
SET: tuple[Operation, ...] = (Put("k", "1", None),)


def on(scope: TaskScope, fence: Fence) -> list[Any]:
    """Return every request there is, about one task scope and as one attempt of it."""
    place, holder = (scope.dag_id, scope.run_id), SUPERVISOR
    return [
        Open(scope, 99),
        Read(scope, None, fence=fence),
        Commit((Part(scope, SET),), fence, LIAR),
        state.Count(scope, "", fence),
        state.History(scope, "k", fence),
        state.Changes(scope, Cursor(1, 1), fence),
        state.Find(dag_id=scope.dag_id),
        state.ListScopes(dag_id=scope.dag_id),
        state.Feed(),
        state.Sweep(100),
        state.MergeAssets("a", "b", LIAR),
        state.ForgetAsset("a", None, LIAR),
        state.Inspect(),
        runs.StartRun(*place, (), "{}", "f", "d", 0, holder, 30.0),
        runs.HoldRun(*place, holder, 30.0),
        runs.ReleaseRun(*place, holder, "cancelled"),
        runs.GetRun(*place),
        runs.ListRuns(),
        runs.ListDags(),
        people.CancelRun(*place, LIAR),
        runs.DeleteRun(*place, LIAR, force=True),
        runs.PruneRuns(2**60, 1000),
        runs.Begin(scope, 1, holder, 30.0),
        runs.Renew(fence, 1e18),
        runs.Report(fence, "success"),
        deferral.GetDeferral(fence),
        deferral.ListDeferred((1, 2)),
        deferral.Fire(1, 1, "{}", dag_id=scope.dag_id),
        runs.ExpandTask(*place, scope.task_id, ()),
        runs.Resolve(scope, "failed"),
        runs.NoteAftermath(scope, 1),
        runs.ListAttempts(scope),
        people.ClearTasks(*place, ((scope.task_id, None),), LIAR, discard=True),
        people.MarkTask(scope, "success", LIAR),
        runs.PushResult(fence, "return_value", "1"),
        runs.PullResults(*place, (scope.task_id,), "return_value"),
        events.AddEvents(()),
        events.ListEvents(),
        events.ConsumedUntil(scope.dag_id),
        events.HoldWatchers((), holder, 30.0),
        people.ListAudit(),
        access.CreateToken(bytes(32), "admin", "me", LIAR),
        access.ListTokens(),
        access.RevokeToken(1, LIAR),
        access.MakeSecret(LIAR),
        access.FindToken(id=1),
        access.TouchToken(1),
        access.ListSecrets(),
    ]


def named(request: Any) -> str:
    return type(request).__name__


#: Each about the victim, by name.
ON_VICTIM = {named(request): request for request in on(VICTIM, HIS)}
