"""Requests, replies and errors as bytes, for both ends of the wire: JSON by msgspec, strict, integers exact.

A call is `{"call_id": …, "request": {"type": "read", …}}`, an answer `{"reply": …, "token": …}` or
`{"error": {"code", "message", "fields"}}`. What a request answers with is known from its type, so a reply
needs no name of its own.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Final, Literal

import msgspec

from . import deferral_requests, event_requests, people_requests, requests, run_requests, token_requests
from .errors import InvalidValue, OutlastError, rebuild
from .requests import Row

__all__ = [
    "REPLIES",
    "WRITES",
    "Answer",
    "Call",
    "decode_answer",
    "decode_call",
    "decode_error",
    "encode_answer",
    "encode_call",
    "encode_error",
]

#: Every request that may cross, with what it is answered by. Those a server asks its own database may not.
REPLIES: Final[dict[type, Any]] = {
    requests.Open: requests.Opened,
    requests.Read: requests.Found,
    requests.Count: requests.Counted,
    requests.Commit: requests.Receipt,
    requests.History: requests.Versions,
    requests.Changes: requests.Changed,
    requests.Find: requests.FindPage,
    requests.ListScopes: requests.ScopePage,
    requests.Sweep: requests.Swept,
    requests.MergeAssets: requests.Merged,
    requests.ForgetAsset: requests.Forgotten,
    requests.Inspect: requests.Inspected,
    requests.Feed: requests.FeedPage,
    run_requests.StartRun: run_requests.RunDetail,
    run_requests.HoldRun: run_requests.Held,
    run_requests.ReleaseRun: run_requests.RunRow,
    run_requests.GetRun: run_requests.RunDetail,
    run_requests.ListRuns: run_requests.RunPage,
    run_requests.ListDags: run_requests.DagPage,
    people_requests.CancelRun: people_requests.Touched,
    run_requests.DeleteRun: run_requests.Pruned,
    run_requests.PruneRuns: run_requests.Pruned,
    run_requests.Begin: run_requests.TaskRow,
    run_requests.Renew: run_requests.TaskRow,
    run_requests.Report: run_requests.TaskRow,
    deferral_requests.GetDeferral: deferral_requests.Resumption,
    deferral_requests.ListDeferred: deferral_requests.DeferredRows,
    deferral_requests.Fire: deferral_requests.DeferredRows,
    run_requests.ExpandTask: run_requests.Expanded,
    run_requests.Resolve: run_requests.TaskRow,
    run_requests.NoteAftermath: run_requests.TaskRow,
    run_requests.ListAttempts: run_requests.Attempts,
    people_requests.ClearTasks: people_requests.Touched,
    people_requests.MarkTask: people_requests.Touched,
    run_requests.PushResult: run_requests.TaskRow,
    run_requests.PullResults: run_requests.Results,
    event_requests.AddEvents: event_requests.Events,
    event_requests.ListEvents: event_requests.Events,
    event_requests.ConsumedUntil: event_requests.Events,
    event_requests.HoldWatchers: event_requests.HeldWatchers,
    people_requests.ListAudit: people_requests.AuditPage,
    token_requests.CreateToken: token_requests.TokenRow,
    token_requests.ListTokens: token_requests.TokenPage,
    token_requests.RevokeToken: token_requests.TokenRow,
    token_requests.MakeSecret: token_requests.SecretMade,
}

#: Those that change nothing: sent again, they need no call id.
_READS: Final = frozenset(
    {
        requests.Read,
        requests.Count,
        requests.History,
        requests.Changes,
        requests.Find,
        requests.ListScopes,
        requests.Inspect,
        requests.Feed,
        run_requests.GetRun,
        run_requests.ListRuns,
        run_requests.ListDags,
        run_requests.ListAttempts,
        run_requests.PullResults,
        people_requests.ListAudit,
        deferral_requests.GetDeferral,
        deferral_requests.ListDeferred,
        event_requests.ListEvents,
        token_requests.ListTokens,
    }
)
#: Those that may change something, and are to be applied once even if their reply is lost.
WRITES: Final = frozenset(REPLIES) - _READS


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request as it is sent; repeated under the same `call_id` it is applied once.

    `reveal` asks for the values of secret keys, for whoever may have them; an attempt has its own anyway.
    """

    request: Any
    call_id: str | None = None
    reveal: bool = False


class Answer(msgspec.Struct, frozen=True):
    """One reply as it is sent, with a token for the attempt it is about, if that has a new one."""

    reply: Any
    token: str | None = None


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str
    fields: _Fields | None = None


class _Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    """What errors carry beside their message: `Conflict.current` and `BackendError.outcome`."""

    current: Row | None | msgspec.UnsetType = msgspec.UNSET
    outcome: Literal["failed", "unknown"] | msgspec.UnsetType = msgspec.UNSET


class _Failure(msgspec.Struct, frozen=True):
    error: _Error


_encode = msgspec.json.Encoder().encode


def encode_call(request: Any, call_id: str | None = None, *, reveal: bool = False) -> bytes:
    """Return a request as it is sent; InvalidValue for text that is not valid Unicode."""
    return _encoded(Call(request, call_id, reveal))


def decode_call(data: bytes) -> Call:
    """Read a request; InvalidValue, saying where, for one that is unknown or has an unknown, wrong or missing field."""
    return _decoded(_calls(), data, "call")  # type: ignore[no-any-return]


def encode_answer(reply: Any, token: str | None = None) -> bytes:
    """Return a reply as it is sent."""
    return _encoded(Answer(reply, token))


def decode_answer(kind: type, data: bytes) -> Answer:
    """Read the answer to a request of this type; InvalidValue for anything else."""
    return _decoded(_answers(kind), data, "answer")  # type: ignore[no-any-return]


def encode_error(error: OutlastError) -> bytes:
    """Return an error as it is sent."""
    return _encoded({"error": {"code": error.code, "message": error.message, "fields": error.fields()}})


def decode_error(data: bytes) -> OutlastError:
    """Make the error again that a server has sent; InvalidValue for anything else."""
    error = _decoded(_failures(), data, "answer").error
    fields = error.fields
    carried = {name: getattr(fields, name) for name in ("current", "outcome")} if fields is not None else {}
    return rebuild(
        error.code, error.message, {name: value for name, value in carried.items() if value is not msgspec.UNSET}
    )


def _encoded(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{error.object[:40]!r}… has a lone surrogate, which is not valid Unicode text") from None


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes, what: str) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError:
        raise InvalidValue(f"this is not a {what} outlast understands: it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise InvalidValue(f"this is not a {what} outlast understands: {error}; compare the versions") from None


@functools.cache
def _calls() -> msgspec.json.Decoder[Any]:
    first, *others = REPLIES
    known: Any = functools.reduce(operator.or_, others, first)
    return msgspec.json.Decoder(_with(Call, "request", known))


@functools.cache
def _answers(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_with(Answer, "reply", REPLIES[kind]))


@functools.cache
def _failures() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_Failure)


def _with(envelope: type[msgspec.Struct], name: str, kind: Any) -> Any:
    """Return the envelope with its content's type filled in."""
    return msgspec.defstruct(envelope.__name__, [(name, kind)], bases=(envelope,), frozen=True)
