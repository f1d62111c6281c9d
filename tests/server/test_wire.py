"""Requests, replies and errors cross the wire exactly, or are refused."""

from __future__ import annotations

import types
import typing
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast import (
    BackendError,
    Conflict,
    InvalidKey,
    InvalidValue,
    NotFound,
    OutlastError,
    StaleAttempt,
    Unauthorized,
    ValueTooLarge,
    token_requests,
    wire,
)
from outlast.backends import answers
from outlast.backends.sqlite import SQLiteBackend
from outlast.config import Config
from outlast.requests import Asked, Commit, Find, Inspect, Once, Open, Opened, Part, Put, Receipt, Row
from outlast.values import TaskScope, Writer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    datetime: st.datetimes(timezones=st.just(UTC)),
    types.NoneType: st.none(),
}
#: What a server asks of its own database, and never for anybody else.
OWN = {Once, token_requests.FindToken, token_requests.TouchToken, token_requests.ListSecrets}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return instances of a type as it is written in a field of a request."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(choice) for choice in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple and inner[-1] is ...:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, inner))
    if origin is dict:
        return st.dictionaries(*map(values, inner), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})
    raise AssertionError(f"{kind} is new: say how to make one")


@pytest.mark.parametrize("kind", list(wire.REPLIES), ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(st.data())
def test_every_request_and_its_reply_arrive_as_they_were_sent(kind: type, data: st.DataObject) -> None:
    request = data.draw(values(kind))
    call = wire.decode_call(wire.encode_call(request, "id"))
    assert (call.request, call.call_id) == (request, "id")
    reply = data.draw(values(wire.REPLIES[kind]))
    answer = wire.decode_answer(kind, wire.encode_answer(reply, "token"))
    assert (answer.reply, answer.token) == (reply, "token")


def test_no_request_is_missing() -> None:
    answered = {*answers.READS, *answers.WRITES, Inspect}
    assert set(wire.REPLIES) == answered - OWN


def test_a_request_is_answered_by_what_the_database_answers() -> None:
    backend = SQLiteBackend(":memory:", Config(), lambda: 0)
    assert backend._writer is not None
    methods = {kind: method for kind, method in backend._writer._methods.items() if kind not in OWN}
    backend.close()
    assert {kind: typing.get_type_hints(method)["return"] for kind, method in methods.items()} == {
        kind: reply for kind, reply in wire.REPLIES.items() if kind in methods
    }


def test_what_changes_nothing_is_known_as_such() -> None:
    """Only those need no call id; a read kept as a receipt would be answered with what is out of date."""
    assert set(wire.REPLIES) - wire.WRITES == {*answers.READS, Inspect} - OWN


def reachable(kind: Any) -> set[type]:
    """Return the structs a request is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return {kind}.union(*(reachable(hints[name]) for name in kind.__struct_fields__))
    return set().union(*(reachable(inner) for inner in typing.get_args(kind)))


def test_every_part_of_a_request_refuses_fields_it_does_not_know() -> None:
    for kind in set().union(*map(reachable, wire.REPLIES)):
        strict = kind.__struct_config__.forbid_unknown_fields or kind.__struct_config__.array_like
        assert strict, f"{kind.__name__} should derive from {Asked.__name__}"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"request": {"type": "nonsense"}}',
        b'{"request": {"deep": false}}',
        b'{"request": {"type": "inspect", "deeper": true}}',
        b'{"request": {"type": "inspect"}, "as": "admin"}',
        b'{"request": {"type": "inspect", "deep": 1}}',
        b'{"request": {"type": "inspect"}, "call_id": 7}',
        b'{"request": {"type": "find", "dag_id": "\\ud800"}}',
        b'{"request": {"type": "find_token", "id": 1}}',
        b'{"request": {"type": "once", "call_id": "x", "request": {"type": "inspect"}}}',
    ],
)
def test_anything_else_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidValue):
        wire.decode_call(sent)


def test_a_refusal_says_where() -> None:
    with pytest.raises(InvalidValue, match=r"unknown field `deeper`.*\$\.request"):
        wire.decode_call(b'{"request": {"type": "inspect", "deeper": true}}')


def test_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidValue, match="lone surrogate"):
        wire.encode_call(Find(dag_id="\ud800"))


def test_ten_megabytes_arrive() -> None:
    text = '"' + "\\n" * 5_000_000 + '"'
    commit = Commit((Part(TaskScope("d", "r", "t"), (Put("key", text, None),)),))
    assert wire.decode_call(wire.encode_call(commit)).request == commit


ROW = Row("key", "[1]", 3, 5, None, Writer("task", 2, None, TaskScope("d", "r", "t")))
ERRORS = [
    Conflict("changed", ROW),  # type: ignore[arg-type]
    Conflict("absent"),
    BackendError("lost", "unknown"),
    BackendError("away"),
    StaleAttempt("over"),
    NotFound("nowhere"),
    Unauthorized("no token"),
    InvalidKey("bad key"),
    InvalidValue("bad value"),
    ValueTooLarge("big"),
    OutlastError("odd"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{error.code} {error.message}")
def test_errors_cross_as_themselves(error: OutlastError) -> None:
    """Contract 9."""
    other = wire.decode_error(wire.encode_error(error))
    assert type(other) is type(error)
    assert (other.message, other.fields()) == (error.message, error.fields())


def test_an_error_of_a_later_version_is_an_error_still() -> None:
    other = wire.decode_error(b'{"error": {"code": "later", "message": "what to do", "fields": {"more": 1}}}')
    assert (type(other), other.message) == (OutlastError, "what to do")


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidValue):
        wire.decode_answer(Open, b"<html>")
    with pytest.raises(InvalidValue):
        wire.decode_answer(Open, wire.encode_answer(Receipt((), ())))
    assert wire.decode_answer(Open, wire.encode_answer(Opened(1, 2))).reply == Opened(1, 2)
