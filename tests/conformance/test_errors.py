"""One tree of errors: contract 9, and the statuses of 10."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest

import outlast
from outlast import (
    BackendError,
    ConfigError,
    Conflict,
    DagError,
    InvalidKey,
    InvalidValue,
    NotFound,
    OutlastError,
    StaleAttempt,
    Unauthorized,
    ValueTooLarge,
)
from outlast.errors import rebuild
from support.verbs import Verbs

TABLE = [
    (ConfigError, "config", 500, 78, OutlastError),
    (InvalidKey, "invalid_key", 422, 65, ValueError),
    (InvalidValue, "invalid_value", 422, 65, ValueError),
    (ValueTooLarge, "value_too_large", 413, 65, InvalidValue),
    (Conflict, "conflict", 409, 9, OutlastError),
    (StaleAttempt, "stale_attempt", 409, 10, OutlastError),
    (NotFound, "not_found", 404, 4, LookupError),
    (Unauthorized, "unauthorized", 401, 77, OutlastError),
    (BackendError, "backend", 503, 69, OutlastError),
    (DagError, "dag", 422, 66, OutlastError),
]


@pytest.mark.parametrize(("kind", "code", "status", "exit_code", "base"), TABLE)
def test_the_tree(kind: type[OutlastError], code: str, status: int, exit_code: int, base: type) -> None:
    """Contract 9, 10."""
    assert (kind.code, kind.status, kind.exit_code) == (code, status, exit_code)
    assert issubclass(kind, OutlastError)
    assert issubclass(kind, base)


def all_kinds() -> list[type[OutlastError]]:
    return [
        kind
        for name in outlast.__all__
        if isinstance(kind := getattr(outlast, name), type) and issubclass(kind, OutlastError)
    ]


def test_the_table_is_complete_and_its_codes_are_unique() -> None:
    """Contract 9: each has a stable code of its own."""
    assert {kind for kind, *_ in TABLE} | {OutlastError} == set(all_kinds())
    codes = [kind.code for kind in all_kinds()]
    assert len(codes) == len(set(codes))
    assert 0 not in {kind.exit_code for kind in all_kinds()}


@pytest.mark.parametrize("kind", [kind for kind, *_ in TABLE])
def test_an_error_crosses_processes_as_itself(kind: type[OutlastError]) -> None:
    """Contract 9."""
    error = kind("what was wrong; what to do")
    for other in (
        pickle.loads(pickle.dumps(error)),
        copy.copy(error),
        rebuild(error.code, error.message, error.fields()),
    ):
        assert type(other) is kind
        assert (str(other), other.fields()) == (str(error), error.fields())


def test_a_conflict_carries_its_entry_across(store: Verbs) -> None:
    """Contract 4.3, 9."""
    state = store.task("dag/run/task", attempt=1)
    state.set("key", {"a": [1]})
    with pytest.raises(Conflict) as caught:
        state.compare_and_set("key", 2, revision=None)
    other = pickle.loads(pickle.dumps(caught.value))
    assert other.current == caught.value.current == state.entry("key")


def test_a_backend_error_says_whether_it_happened() -> None:
    """Contract 4.6."""
    assert BackendError("the disk is full").outcome == "failed"
    other = pickle.loads(pickle.dumps(BackendError("the reply was lost", outcome="unknown")))
    assert (other.outcome, other.fields()) == ("unknown", {"outcome": "unknown"})


def test_an_unknown_code_is_still_an_outlast_error() -> None:
    """Contract 9: from a newer server."""
    error = rebuild("something_new", "what it said", {})
    assert (type(error), str(error)) == (OutlastError, "what it said")


def test_a_users_subclass_does_not_take_the_place_of_its_base() -> None:
    """Contract 9: a program may derive its own errors."""

    class Mine(BackendError):
        def __init__(self) -> None:
            super().__init__("mine")

    try:
        assert type(rebuild("backend", "the disk is full", {"outcome": "failed"})) is BackendError
        assert type(pickle.loads(pickle.dumps(BackendError("the disk is full")))) is BackendError
    finally:
        del Mine
        gc.collect()
