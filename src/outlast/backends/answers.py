"""Which part of the SQL answers which request: state, runs, people's requests, the audit log."""

from __future__ import annotations

from typing import Any, Final

from .. import requests, run_requests
from ..config import Config
from .attempts import AttemptsSQL
from .events import EventsSQL
from .execute import Execute
from .lists import ListsSQL
from .merging import MergingSQL
from .people import PeopleSQL
from .runs import RunsSQL
from .sql import StateSQL

__all__ = ["READS", "WRITES", "Answers"]

#: Requests that change nothing, by the part and the method that answers them.
READS: Final[dict[type, tuple[str, str]]] = {
    requests.Read: ("state", "read"),
    requests.History: ("lists", "history"),
    requests.Changes: ("lists", "changes"),
    requests.Find: ("lists", "find"),
    requests.ListScopes: ("lists", "scopes"),
    run_requests.GetRun: ("runs", "get"),
    run_requests.ListRuns: ("runs", "list_runs"),
    run_requests.ListAttempts: ("attempts", "attempts"),
    run_requests.PullResults: ("attempts", "pull"),
    run_requests.ListAudit: ("audit", "list"),
    run_requests.GetDeferral: ("attempts", "deferral"),
    run_requests.ListDeferred: ("attempts", "deferred"),
    run_requests.ListEvents: ("events", "list"),
}
WRITES: Final[dict[type, tuple[str, str]]] = {
    requests.Open: ("state", "open"),
    requests.Commit: ("state", "commit"),
    requests.MergeAssets: ("merging", "merge"),
    run_requests.StartRun: ("runs", "start"),
    run_requests.HoldRun: ("runs", "hold"),
    run_requests.ReleaseRun: ("runs", "release"),
    run_requests.Begin: ("attempts", "begin"),
    run_requests.Renew: ("attempts", "renew"),
    run_requests.Report: ("attempts", "report"),
    run_requests.Resolve: ("attempts", "resolve"),
    run_requests.PushResult: ("attempts", "push"),
    run_requests.Fire: ("attempts", "fire"),
    run_requests.ExpandTask: ("expansion", "expand"),
    run_requests.AddEvents: ("events", "record"),
    run_requests.ConsumedUntil: ("events", "consumed"),
    run_requests.ClearTasks: ("people", "clear"),
    run_requests.MarkTask: ("people", "mark"),
    run_requests.CancelRun: ("people", "cancel"),
    run_requests.DeleteRun: ("people", "delete"),
    run_requests.PruneRuns: ("people", "prune"),
}


class Answers:
    """Every request a SQL database answers, over one `execute`, inside a transaction the caller holds."""

    def __init__(self, execute: Execute, config: Config) -> None:
        settings = config.state_store
        self.state = StateSQL(
            execute,
            history_versions=settings.history_versions,
            feed_hours=settings.feed_hours,
            secret_keys=settings.secret_keys,
        )
        runs = RunsSQL(self.state)
        people, events = PeopleSQL(runs), EventsSQL(execute)
        parts = {
            "state": self.state,
            "lists": ListsSQL(self.state),
            "merging": MergingSQL(self.state),
            "runs": runs,
            "attempts": AttemptsSQL(runs, events),
            "expansion": people.expansion,
            "events": events,
            "people": people,
            "audit": self.state.audit,
        }
        self._methods = {kind: getattr(parts[part], name) for kind, (part, name) in {**READS, **WRITES}.items()}

    def answer(self, request: Any, now: int) -> Any:
        """Answer one request at the moment `now`."""
        return self._methods[type(request)](request, now)
