"""Which calls make a scope, and which leave no trace: contract 5.2."""

from __future__ import annotations

import pytest

from outlast import Conflict, NotFound
from outlast.requests import Commit, Part, Put
from support.verbs import CALLS, Verbs

READS = ["get", "entry", "keys", "items", "entries", "history"]


@pytest.mark.parametrize("verb", READS)
def test_a_read_makes_no_scope(store: Verbs, verb: str) -> None:
    """Contract 5.2."""
    CALLS[verb](store.task("dag/run/task"))
    CALLS[verb](store.asset("table"))
    assert store.scopes() + store.scopes(assets=True) == []


@pytest.mark.parametrize("verb", ["delete", "clear"])
def test_a_write_that_changes_nothing_makes_no_scope(store: Verbs, verb: str) -> None:
    """Contract 4.3, 5.2: a mistyped address leaves no trace."""
    CALLS[verb](store.task("dag/run/task"))
    CALLS[verb](store.asset("table"))
    assert store.scopes() + store.scopes(assets=True) == []


def test_a_write_that_fails_makes_no_scope(store: Verbs) -> None:
    """Contract 4.4, 5.2."""
    for target in (store.task("dag/run/task"), store.asset("table")):
        with pytest.raises(Conflict):
            target.compare_and_set("key", 1, revision=4)
    assert store.scopes() + store.scopes(assets=True) == []


def test_watching_and_reading_in_a_transaction_make_no_scope(store: Verbs) -> None:
    """Contract 5.2: a transaction that only read is a read."""
    for target in (store.task("dag/run/task"), store.asset("table")):
        list(target.watch(timeout=0))
        with target.transaction() as tx:
            tx.get("key"), tx.keys()
    assert store.scopes() + store.scopes(assets=True) == []


def test_the_rest_api_never_makes_a_scope(store: Verbs) -> None:
    """Contract 5.2: what its commits ask for is NotFound where there is no scope."""
    task = store.task("dag/run/task")
    request = Commit((Part(task.scope, (Put("key", "1", None),)),), create=False)
    with pytest.raises(NotFound):
        store.real.backend.send(request)
    assert store.scopes() == []
    task.set("key", 0)
    store.real.backend.send(request)
    assert task.get("key") == 1
