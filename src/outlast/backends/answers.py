"""Which part of the SQL answers which request: state, runs, people's requests, the audit log."""

from __future__ import annotations

from typing import Any, Final

from .. import deferral_requests, event_requests, people_requests, requests, run_requests, token_requests
from ..config import Config
from .attempts import AttemptsSQL
from .commits import CommitsSQL
from .events import EventsSQL
from .execute import SQLITE, Dialect, Execute
from .lists import ListsSQL
from .merging import MergingSQL
from .people import PeopleSQL
from .receipts import ReceiptsSQL, digest_of
from .runs import RunsSQL
from .sql import StateSQL
from .sweep import SweepSQL
from .tokens import TokensSQL
from .watchers import WatchersSQL

__all__ = ["READS", "WRITES", "Answers"]

#: Requests that change nothing, by the part and the method that answers them.
READS: Final[dict[type, tuple[str, str]]] = {
    requests.Read: ("state", "read"),
    requests.Count: ("state", "count"),
    requests.History: ("lists", "history"),
    requests.Changes: ("lists", "changes"),
    requests.Find: ("lists", "find"),
    requests.ListScopes: ("lists", "scopes"),
    requests.Feed: ("feed", "read"),
    run_requests.GetRun: ("runs", "get"),
    run_requests.ListRuns: ("runs", "list_runs"),
    run_requests.ListDags: ("runs", "dags"),
    run_requests.ListAttempts: ("attempts", "attempts"),
    run_requests.PullResults: ("attempts", "pull"),
    people_requests.ListAudit: ("audit", "list"),
    deferral_requests.GetDeferral: ("attempts", "deferral"),
    deferral_requests.ListDeferred: ("attempts", "deferred"),
    event_requests.ListEvents: ("events", "list"),
    token_requests.ListTokens: ("tokens", "list"),
    token_requests.FindToken: ("tokens", "find"),
    token_requests.ListSecrets: ("tokens", "secrets"),
}
WRITES: Final[dict[type, tuple[str, str]]] = {
    requests.Open: ("state", "open"),
    requests.Commit: ("commits", "commit"),
    requests.Once: ("once", "once"),
    requests.Sweep: ("sweeping", "sweep"),
    requests.MergeAssets: ("merging", "merge"),
    requests.ForgetAsset: ("merging", "forget"),
    run_requests.StartRun: ("runs", "start"),
    run_requests.HoldRun: ("runs", "hold"),
    run_requests.ReleaseRun: ("runs", "release"),
    run_requests.Begin: ("attempts", "begin"),
    run_requests.Renew: ("attempts", "renew"),
    run_requests.Report: ("attempts", "report"),
    run_requests.Resolve: ("attempts", "resolve"),
    run_requests.NoteAftermath: ("attempts", "note_aftermath"),
    event_requests.HoldWatchers: ("watchers", "hold"),
    run_requests.PushResult: ("attempts", "push"),
    deferral_requests.Fire: ("attempts", "fire"),
    run_requests.ExpandTask: ("expansion", "expand"),
    event_requests.AddEvents: ("events", "record"),
    event_requests.ConsumedUntil: ("events", "consumed"),
    people_requests.ClearTasks: ("people", "clear"),
    people_requests.MarkTask: ("people", "mark"),
    people_requests.CancelRun: ("people", "cancel"),
    run_requests.DeleteRun: ("people", "delete"),
    run_requests.PruneRuns: ("people", "prune"),
    token_requests.CreateToken: ("tokens", "create"),
    token_requests.RevokeToken: ("tokens", "revoke"),
    token_requests.TouchToken: ("tokens", "touch"),
    token_requests.MakeSecret: ("tokens", "make_secret"),
}


#: Requests after which a run, or one of its task instances, may not be as it was. Those that say only sometimes of
#: which run (`HoldRun`, `Fire`, `PruneRuns`) note that themselves; that a lease was renewed is no change.
_STEERING: Final = frozenset(
    {
        run_requests.StartRun,
        run_requests.ReleaseRun,
        run_requests.Begin,
        run_requests.Report,
        run_requests.Resolve,
        run_requests.NoteAftermath,
        run_requests.ExpandTask,
        people_requests.ClearTasks,
        people_requests.MarkTask,
        people_requests.CancelRun,
        run_requests.DeleteRun,
    }
)


class Answers:
    """Every request a SQL database answers, over one `execute`, inside a transaction the caller holds."""

    def __init__(self, execute: Execute, config: Config, dialect: Dialect = SQLITE) -> None:
        settings = config.state_store
        self.state = StateSQL(
            execute,
            dialect,
            history_versions=settings.history_versions,
            feed_hours=settings.feed_hours,
            secret_keys=settings.secret_keys,
        )
        self.receipts = ReceiptsSQL(execute)
        self.commits = CommitsSQL(self.state, self.receipts)
        runs = RunsSQL(self.state, self.commits)
        people, events = PeopleSQL(runs), EventsSQL(self.state)
        parts = {
            "state": self.state,
            "commits": self.commits,
            "lists": ListsSQL(self.state),
            "feed": self.state.feed,
            "sweeping": SweepSQL(self.state),
            "merging": MergingSQL(self.state),
            "runs": runs,
            "attempts": AttemptsSQL(runs, events),
            "expansion": people.expansion,
            "events": events,
            "people": people,
            "audit": self.state.audit,
            "watchers": WatchersSQL(self.state),
            "tokens": TokensSQL(execute, self.state.audit),
            "once": self,
        }
        self._methods = {kind: getattr(parts[part], name) for kind, (part, name) in {**READS, **WRITES}.items()}

    def answer(self, request: Any, now: int) -> Any:
        """Answer one request at the moment `now`."""
        kind = type(request)
        reply = self._methods[kind](request, now)
        if kind in _STEERING:
            self.state.feed.run_changed(*_run_of(request), now)
        return reply

    def once(self, request: requests.Once, now: int) -> Any:
        """Carry a request out unless that was done under the same id; then answer what was answered first."""
        from .. import wire  # what only a server's calls need

        asked = digest_of(request.request)
        known = self.receipts.text(request.call_id, asked)
        if known is not None:
            return wire.decode_answer(type(request.request), known.encode()).reply
        reply = self.answer(request.request, now)
        self.receipts.keep_text(request.call_id, asked, wire.encode_answer(reply).decode(), now)
        return reply


def _run_of(request: Any) -> tuple[str, str]:
    """Return the dag id and run id of a request about a run or a task instance."""
    fence = getattr(request, "fence", None)
    place = fence.scope if fence is not None else getattr(request, "scope", request)
    return place.dag_id, place.run_id
