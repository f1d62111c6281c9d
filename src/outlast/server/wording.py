"""What each request does, in the words of an error that a person reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from .. import deferral_requests, event_requests, people_requests, requests, run_requests, token_requests

__all__ = ["DOINGS", "doing", "takes", "token_of"]

#: The roles that tokens are made for, with the one that may least first.
_LEAST_FIRST: Final = ("worker", "viewer", "editor", "runner", "admin")

#: What somebody does who makes a request of a type.
DOINGS: Final[dict[type, str]] = {
    requests.Open: "opening a task scope",
    requests.Read: "reading state",
    requests.Commit: "writing this state",
    requests.Count: "counting entries",
    requests.History: "reading a key's history",
    requests.Changes: "watching a scope",
    requests.Find: "searching state",
    requests.ListScopes: "listing scopes",
    requests.Feed: "following changes",
    requests.Sweep: "sweeping what has expired",
    requests.MergeAssets: "merging assets",
    requests.ForgetAsset: "forgetting an asset",
    requests.Inspect: "inspecting the store",
    run_requests.StartRun: "starting a run",
    run_requests.HoldRun: "taking over a run",
    run_requests.ReleaseRun: "letting go of a run",
    run_requests.GetRun: "looking at a run",
    run_requests.ListRuns: "listing runs",
    run_requests.ListDags: "listing DAGs",
    people_requests.CancelRun: "cancelling a run",
    run_requests.DeleteRun: "deleting a run",
    run_requests.PruneRuns: "pruning runs",
    run_requests.Begin: "beginning an attempt",
    run_requests.Renew: "renewing an attempt's claim",
    run_requests.Report: "reporting how an attempt ended",
    deferral_requests.GetDeferral: "looking at a deferral",
    deferral_requests.ListDeferred: "listing deferred tasks",
    deferral_requests.Fire: "waking a deferred task",
    run_requests.ExpandTask: "expanding a mapped task",
    run_requests.Resolve: "ending a task that did not run",
    run_requests.NoteAftermath: "doing what is due after an attempt",
    run_requests.ListAttempts: "listing attempts",
    people_requests.ClearTasks: "clearing tasks",
    people_requests.MarkTask: "marking a task",
    run_requests.PushResult: "storing a result",
    run_requests.PullResults: "reading results",
    event_requests.AddEvents: "adding events of assets",
    event_requests.ListEvents: "listing events of assets",
    event_requests.ConsumedUntil: "looking which events a DAG has seen",
    event_requests.HoldWatchers: "watching for events of assets",
    people_requests.ListAudit: "reading the audit log",
    token_requests.CreateToken: "making a token",
    token_requests.ListTokens: "listing tokens",
    token_requests.RevokeToken: "revoking a token",
    token_requests.MakeSecret: "rotating the signing secret",
    token_requests.FindToken: "looking up a token",
    token_requests.TouchToken: "noting a token's use",
    token_requests.ListSecrets: "reading signing secrets",
}


def doing(request: object) -> str:
    """Return what a request does, as the beginning of a sentence."""
    return DOINGS.get(type(request), "this")


def takes(roles: Collection[str], role: str) -> str:
    """Return, as the end of a sentence, whose tokens it takes where `role` may not, and how one of them is made."""
    may = [each for each in _LEAST_FIRST if each in roles]
    if not may:
        return ""
    *others, last = [f"{each}'s" for each in may]
    named = f"{', '.join(others)} or {last}" if others else last
    article = token_of(may[0]).partition(" ")[0]
    own = "; or open an attempt first (attempt=…)" if role == "worker" and "attempt" in roles else ""
    return f"; it takes {article} {named}: `outlast token create --role {may[0]}` makes one{own}"


def token_of(role: str) -> str:
    """Return whose token a role's is, with its article."""
    if role == "triggers":
        return "the token of triggers"
    return f"{'an' if role[0] in 'ae' else 'a'} {role}'s token"
