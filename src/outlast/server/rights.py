"""Who may ask what: one table of request types and roles, and how each request is narrowed to its asker; pure.

What may be seen of a reply is in `masking`. Assets belong to no DAG: whoever may read sees them all; people change them
only with a token for every DAG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from .. import deferral_requests, event_requests, people_requests, requests, run_requests, token_requests
from ..errors import InvalidValue, NotFound, Unauthorized
from ..requests import Commit, Fence, Increment, Once, Part, Put, PutDefault, RemoveAll
from ..values import AssetScope, Scope, TaskScope, Writer
from .claims import leased, swept, watched
from .identity import Role, Who
from .masking import MASKED, is_secret, may_reveal, visible
from .own import own_fence, own_scope
from .wording import DOINGS, doing, takes, token_of

__all__ = ["RULES", "Rule", "allowed", "is_secret", "may_reveal", "require_role", "visible"]

T = TypeVar("T", bound=msgspec.Struct)

Narrowing: TypeAlias = Callable[[Any, Who], Any]


class Rule(NamedTuple):
    """Which roles may make a request at all, and what is left of it for one of them (or NotFound, or Unauthorized)."""

    roles: frozenset[Role]
    narrowed: Narrowing


def allowed(request: Any, who: Who, secret_keys: Sequence[str] = ()) -> Any:
    """Return a request as `who` may have it carried out.

    What an attempt's token says wins over what the request says. Raises NotFound for what `who` may not see,
    Unauthorized for what their role may not do, InvalidValue where a mask would be written over a secret.
    """
    if type(request) is Once:
        if type(request.request) is Once:
            raise Unauthorized("a request is sent once or again, not once within once")
        return Once(request.call_id, allowed(request.request, who, secret_keys))
    rule = RULES.get(type(request))
    if rule is None or who.role not in rule.roles:
        raise _not_for(who, request, takes(_NOBODY if rule is None else rule.roles, who.role))
    if type(request) is Commit and who.role in _PEOPLE:
        _refuse_unseen_values(request, who, secret_keys)
    return rule.narrowed(request, who)


def require_role(who: Who, kind: type) -> None:
    """Raise Unauthorized where a role makes no requests of a type at all: known before what is sent was read."""
    if who.role not in (roles := RULES[kind].roles):
        raise Unauthorized(f"{DOINGS[kind]} is not for {token_of(who.role)}{takes(roles, who.role)}")


def _refuse_unseen_values(commit: Commit, who: Who, secret_keys: Sequence[str]) -> None:
    """Refuse what somebody who sees a mask in the place of a value does to that value by mistake."""
    for operation in (operation for part in commit.parts for operation in part.operations):
        match operation:
            case Put() | PutDefault() if operation.text == MASKED and is_secret(operation.name, secret_keys):
                raise InvalidValue(
                    f"{MASKED} under {operation.name!r} is the mask of its secret value, not the value; "
                    "leave the key out, or write what it is to be"
                )
            case Increment() if not may_reveal(who) and is_secret(operation.name, secret_keys):
                raise InvalidValue(
                    f"{operation.name!r} is a secret key, whose value {token_of(who.role)} does not show; "
                    "write what it is to be instead of adding to it"
                )


# --- Narrowing -------------------------------------------------------------------------------------------------


def _as_is(request: Any, who: Who) -> Any:
    """A list (its reply is filtered), or something that concerns no DAG."""
    return request


def _everything(request: Any, who: Who) -> Any:
    """Only with a token for every DAG."""
    _require_all(request, who)
    return _by_person(request, who)


def _dag(request: Any, who: Who) -> Any:
    """About a DAG by its name."""
    _refuse_unseen(request.dag_id, who, f"run {request.dag_id}/{getattr(request, 'run_id', '')}")
    return _by_person(request, who)


def _placed(request: Any, who: Who) -> Any:
    """About one task instance."""
    _refuse_unseen(request.scope.dag_id, who, str(request.scope))
    return _by_person(request, who)


def _fenced(request: Any, who: Who) -> Any:
    """About an attempt: the token's own, or (the backend compares scope and id) one of a DAG that is seen."""
    if who.role == "attempt":
        return _replaced(request, fence=own_fence(who))
    _refuse_unseen(request.fence.scope.dag_id, who, str(request.fence.scope))
    return request


def _running(request: Any, who: Who) -> Any:
    """About an attempt that runs, and not for what is done after it."""
    if who.over:
        raise _not_for(who, request, " for what is due after it")
    return _fenced(request, who)


def _start(request: run_requests.StartRun, who: Who) -> Any:
    """A new run of a DAG. Who names it learns nothing by being told that it is not one of theirs."""
    if not who.may_see(request.dag_id):
        raise NotFound(
            f"this token is for DAGs {', '.join(who.dags)}, and {request.dag_id} is none of them, so it starts no run "
            f"of it; `outlast token create --role {who.role} --dag PATTERN` makes one that does"
        )
    return _by_person(request, who)


def _report(request: run_requests.Report, who: Who) -> Any:
    """How an attempt has ended is its own to say, and that its own outlets have been updated."""
    if who.role == "attempt" and who.outlets is not None:
        for event in request.events:
            if (event.name, event.uri) not in who.outlets:
                raise NotFound(f"there is no outlet {event.name or event.uri} for an attempt of {own_fence(who).scope}")
    return _running(request, who)


def _aftermath(request: run_requests.NoteAftermath, who: Who) -> Any:
    """What is due after an attempt: its own, for an attempt; a person who cancels its job says so, as a runner does."""
    if who.role != "attempt":
        return _placed(request, who)
    scope = own_scope(request.scope, who)
    return _replaced(request, scope=scope, attempt=own_fence(who).attempt, assets=who.assets)


def _attempts(request: run_requests.ListAttempts, who: Who) -> Any:
    """The attempts of a task instance; of its own, for what is due after one of them."""
    if who.role != "attempt":
        return _placed(request, who)
    if not who.over:
        raise _not_for(who, request, " while it runs")
    return _replaced(request, scope=own_scope(request.scope, who))


def _state(request: Any, who: Who) -> Any:
    """Look at one scope; for an attempt, and for what is due after it, as long as no newer one has opened it."""
    if who.role == "attempt":
        return _replaced(request, scope=own_scope(request.scope, who), fence=own_fence(who))
    _refuse_tasks(request, [request.scope], who)
    _refuse_unseen_scope(request.scope, who)
    _refuse_foreign_fence(request, who)
    return request


def _commit(request: Commit, who: Who) -> Commit:
    """Change one scope or several."""
    if who.role == "attempt":
        fence = own_fence(who)
        parts = tuple(Part(own_scope(part.scope, who), part.operations) for part in request.parts)
        _refuse_erasing(request, parts, fence, who)
        return _replaced(request, parts=parts, fence=fence, writer=_writer_of(fence))
    _refuse_tasks(request, [part.scope for part in request.parts], who)
    for part in request.parts:
        _refuse_unseen_scope(part.scope, who)
        _refuse_part(request, part, who)
    _refuse_foreign_fence(request, who)
    _refuse_erasing(request, request.parts, request.fence, who)
    return _replaced(request, writer=_commit_writer(request, who))


def _refuse_erasing(request: Commit, parts: Sequence[Part], fence: Fence | None, who: Who) -> None:
    """Keep history, but for what a task that has succeeded takes away of its own, and for admins, who delete runs."""
    if who.role == "admin":
        return
    for part in parts:
        erases = any(isinstance(operation, RemoveAll) and operation.history for operation in part.operations)
        if erases and (fence is None or part.scope != fence.scope):
            raise _not_for(who, request, " where it erases history; leave that out, so that what goes can be restored")


def _refuse_part(request: Commit, part: Part, who: Who) -> None:
    """Leave tasks' state to their attempts and to people, and assets' to those who answer for every DAG."""
    of_asset = isinstance(part.scope, AssetScope)
    if who.role == "runner" and not of_asset and request.fence is None:
        raise _not_for(who, request, takes(_EDIT, who.role))
    if who.role in _PEOPLE and of_asset:
        _require_all(request, who)
    if request.fence is not None and not of_asset and part.scope != request.fence.scope and who.role != "admin":
        raise NotFound(f"there is no {part.scope} for attempt {request.fence.attempt} of {request.fence.scope}")


def _commit_writer(request: Commit, who: Who) -> Writer:
    if request.fence is not None:
        return _writer_of(request.fence)
    if who.role in ("runner", "triggers"):
        return Writer("trigger", name=request.writer.name)
    if who.role == "admin" and request.writer.kind in ("library", "trigger"):
        return Writer(request.writer.kind, name=request.writer.name)
    return Writer("person", name=who.name)


def _pull(request: run_requests.PullResults, who: Who) -> Any:
    """Results of a run; for an attempt, of its own."""
    if who.role != "attempt":
        return _dag(request, who)
    scope = own_fence(who).scope
    if (request.dag_id, request.run_id) != (scope.dag_id, scope.run_id):
        raise NotFound(f"there is no run {request.dag_id}/{request.run_id} for an attempt of {scope}")
    return request


def _runs(request: run_requests.ListRuns, who: Who) -> Any:
    """A list, whose reply is filtered; a number cannot be, so it is of DAGs that are seen."""
    if request.total and not who.sees_all:
        named = request.among if request.dag_id is None else (request.dag_id,)
        if not named:
            _require_all(request, who)
        for dag_id in named:
            _refuse_unseen(dag_id, who, f"DAG {dag_id}")
    return request


def _deferred(request: deferral_requests.ListDeferred, who: Who) -> Any:
    """A list, whose reply is filtered; the token that may come with it is given by one's own."""
    if request.entrust and who.role == "triggers":
        raise _not_for(who, request, " when another such token is asked for")
    return request


def _fire(request: deferral_requests.Fire, who: Who) -> Any:
    """Let an attempt go on: named by an id that says nothing of its DAG, so the request has to."""
    if request.dag_id is None:
        _require_all(request, who)
    else:
        _refuse_unseen(request.dag_id, who, f"task instance {request.scope_id}")
    return request


def _events(request: event_requests.AddEvents, who: Who) -> Any:
    """Events start DAGs that are not named."""
    if who.role in _PEOPLE:
        _require_all(request, who)
    return request


def _forget(request: requests.ForgetAsset, who: Who) -> Any:
    """One of an asset's names; the whole of it goes with its history, which is an admin's to take away."""
    if request.whole and who.role != "admin":
        raise _not_for(who, request, f" with its state and history{takes(_ADMIN, who.role)}")
    return _everything(request, who)


def _prune(request: run_requests.PruneRuns, who: Who) -> Any:
    """A runner tidies up as it goes; behind a server that is the server's business, so nothing is left to prune."""
    if who.role == "runner":
        return _replaced(request, limit=0, dry_run=True, writer=None)
    return _everything(request, who)


# --- Parts of that ---------------------------------------------------------------------------------------------


def _refuse_unseen(dag_id: str, who: Who, what: str) -> None:
    if not who.may_see(dag_id):
        raise NotFound(f"there is no {what}")


def _refuse_unseen_scope(scope: Scope, who: Who) -> None:
    if isinstance(scope, TaskScope):
        _refuse_unseen(scope.dag_id, who, str(scope))


def _refuse_tasks(request: Any, scopes: Sequence[Scope], who: Who) -> None:
    """Leave triggers the state of assets, in the name of no attempt."""
    if who.role == "triggers" and (request.fence is not None or any(isinstance(each, TaskScope) for each in scopes)):
        raise _not_for(who, request, " but for assets, and as no attempt")


def _refuse_foreign_fence(request: Any, who: Who) -> None:
    """A fence is believed of an attempt's token; of another only where there is nothing that it could get by one."""
    fence = request.fence
    if fence is not None and not (who.sees_all and who.role in ("admin", "runner")):
        raise Unauthorized(
            f"attempt {fence.attempt} of {fence.scope} is asked for with {token_of(who.role)}; "
            "use the attempt's own, which the reply to Open or Begin brings"
        )


def _require_all(request: Any, who: Who) -> None:
    if not who.sees_all:
        role = "runner" if who.role == "triggers" else who.role
        remedy = f"`outlast token create --role {role}` without --dag makes one"
        raise _not_for(who, request, f" of some DAGs only; it takes one for every DAG: {remedy}")


def _not_for(who: Who, request: Any, why: str) -> Unauthorized:
    return Unauthorized(f"{doing(request)} is not for {token_of(who.role)}{why}")


def _writer_of(fence: Fence) -> Writer:
    return Writer("task", fence.attempt, None, fence.scope)


def _by_person(request: Any, who: Who) -> Any:
    """Return a request with its asker as the person who is audited, if it names one."""
    return _replaced(request, writer=Writer("person", name=who.name)) if hasattr(request, "writer") else request


def _replaced(request: T, **changes: Any) -> T:
    return msgspec.structs.replace(request, **changes)


# --- The table -------------------------------------------------------------------------------------------------

_PEOPLE: Final[frozenset[Role]] = frozenset({"viewer", "editor", "admin"})

_NOBODY: Final[frozenset[Role]] = frozenset()
_ADMIN: Final[frozenset[Role]] = frozenset({"admin"})
_EDIT: Final[frozenset[Role]] = frozenset({"editor", "admin"})
_READ: Final[frozenset[Role]] = frozenset({"viewer", "editor", "admin", "runner"})
_RUN: Final[frozenset[Role]] = frozenset({"runner", "admin"})
_OPEN: Final[frozenset[Role]] = frozenset({"worker", "runner", "admin"})
_ATTEMPT: Final[frozenset[Role]] = frozenset({"attempt"})
_TRIGGERS: Final[frozenset[Role]] = frozenset({"triggers"})
#: What the code of triggers is given: the state of assets, and what they look for and tell.
_WATCH: Final = _RUN | _TRIGGERS

#: Every request there is. One that is not here is refused, whoever asks.
RULES: Final[dict[type, Rule]] = {
    requests.Open: Rule(_OPEN, _placed),
    requests.Read: Rule(_READ | _ATTEMPT | _TRIGGERS, _state),
    requests.Commit: Rule(_EDIT | _WATCH | _ATTEMPT, _commit),
    requests.Count: Rule(_READ | _ATTEMPT | _TRIGGERS, _state),
    requests.History: Rule(_READ | _ATTEMPT | _TRIGGERS, _state),
    requests.Changes: Rule(_READ | _ATTEMPT | _TRIGGERS, _state),
    requests.Find: Rule(_READ, _as_is),
    requests.ListScopes: Rule(_READ, _as_is),
    requests.Feed: Rule(_READ, _as_is),
    requests.Sweep: Rule(_RUN, swept),
    requests.MergeAssets: Rule(_EDIT, _everything),
    requests.ForgetAsset: Rule(_EDIT, _forget),
    requests.Inspect: Rule(_ADMIN, _everything),
    run_requests.StartRun: Rule(_RUN, leased(_start)),
    run_requests.HoldRun: Rule(_RUN, leased(_dag)),
    run_requests.ReleaseRun: Rule(_RUN, _dag),
    run_requests.GetRun: Rule(_READ, _dag),
    run_requests.ListRuns: Rule(_READ, _runs),
    run_requests.ListDags: Rule(_READ, _as_is),
    people_requests.CancelRun: Rule(_EDIT, _dag),
    run_requests.DeleteRun: Rule(_ADMIN, _dag),
    run_requests.PruneRuns: Rule(_RUN, _prune),
    run_requests.Begin: Rule(_RUN, leased(_placed)),
    run_requests.Renew: Rule(_RUN | _ATTEMPT, leased(_running)),
    run_requests.Report: Rule(_RUN | _ATTEMPT, _report),
    deferral_requests.GetDeferral: Rule(_RUN | _ATTEMPT, _running),
    deferral_requests.ListDeferred: Rule(_WATCH, _deferred),
    deferral_requests.Fire: Rule(_WATCH, _fire),
    run_requests.ExpandTask: Rule(_RUN, _dag),
    run_requests.Resolve: Rule(_RUN, _placed),
    run_requests.NoteAftermath: Rule(_EDIT | _RUN | _ATTEMPT, _aftermath),
    run_requests.ListAttempts: Rule(_READ | _ATTEMPT, _attempts),
    people_requests.ClearTasks: Rule(_EDIT, _dag),
    people_requests.MarkTask: Rule(_EDIT, _placed),
    run_requests.PushResult: Rule(_RUN | _ATTEMPT, _fenced),
    run_requests.PullResults: Rule(_READ | _ATTEMPT, _pull),
    event_requests.AddEvents: Rule(_EDIT | _WATCH, _events),
    event_requests.ListEvents: Rule(_READ, _as_is),
    event_requests.ConsumedUntil: Rule(_RUN, _dag),
    event_requests.HoldWatchers: Rule(_WATCH, leased(watched)),
    people_requests.ListAudit: Rule(_READ, _as_is),
    token_requests.CreateToken: Rule(_ADMIN, _everything),
    token_requests.ListTokens: Rule(_ADMIN, _everything),
    token_requests.RevokeToken: Rule(_ADMIN, _everything),
    token_requests.MakeSecret: Rule(_ADMIN, _everything),
    token_requests.FindToken: Rule(_NOBODY, _as_is),
    token_requests.TouchToken: Rule(_NOBODY, _as_is),
    token_requests.ListSecrets: Rule(_NOBODY, _as_is),
}
