"""Lists across scopes: contract 1.1, 3.3 and 4.3, as a person sees them."""

from __future__ import annotations

from datetime import timedelta

from outlast import AssetScope, ScopeInfo, TaskScope
from outlast.requests import Find
from support.clock import Clock
from support.verbs import Verbs


def test_scopes_are_listed_with_their_counts(store: Verbs, clock: Clock) -> None:
    """Contract 4.3, 5.1: revision, newest attempt, live entries and their bytes."""
    state = store.task("dag/run/task", attempt=3)
    state.set_many({"a": "é", "b": 22})
    clock.move(seconds=1)
    state.delete("b")
    store.asset("table", uri="s3://table").set("key", 1)
    assert store.scopes() == [ScopeInfo(TaskScope("dag", "run", "task"), 2, 3, 1, 4, clock.shows(), 1)]
    assert store.scopes(assets=True) == [ScopeInfo(AssetScope("table", "s3://table"), 1, 0, 1, 1, clock.shows(), 2)]


def test_scopes_are_chosen_by_their_ids(store: Verbs) -> None:
    for address in ("a/x/t", "a/y/t", "a/y/u", "b/x/t", "b/x/t/0"):
        store.task(address).set("key", 1)
    assert [str(info.scope) for info in store.scopes(dag_id="a")] == ["a/x/t", "a/y/t", "a/y/u"]
    assert [str(info.scope) for info in store.scopes(dag_id="a", run_id="y")] == ["a/y/t", "a/y/u"]
    assert [str(info.scope) for info in store.scopes(task_id="t", dag_id="b")] == ["b/x/t", "b/x/t/0"]
    assert store.scopes(dag_id="A") == store.scopes(run_id="") == []


def test_lists_of_thousands_come_whole(store: Verbs) -> None:
    for number in range(1100):
        store.real.task("dag/run/task", map_index=number).set("key", number)
    assert [info.scope.map_index for info in store.scopes()] == list(range(1100))
    assert [match.entry.value for match in store.find(key="key")] == list(range(1100))


def test_finding_sees_what_reading_sees(store: Verbs, clock: Clock) -> None:
    """Contract 3.3, 4.1: live entries only, and each scope's own."""
    one, two, asset = store.task("dag/run/one"), store.task("dag/run/two"), store.asset("table")
    one.set("key", 1)
    one.set("short", 1, retention=timedelta(hours=1))
    two.set("key", 2)
    two.delete("key")
    asset.set("key", 3)
    clock.move(hours=1)
    assert [(str(match.scope), match.entry) for match in store.find()] == [("dag/run/one", one.entry("key"))]
    assert [(str(match.scope), match.entry) for match in store.find(assets=True)] == [
        ("asset table", asset.entry("key"))
    ]
    assert store.find(run="other") == []


def test_keys_are_found_by_their_end(store: Verbs) -> None:
    """As they are: case counts, and what stands for anything elsewhere does not here."""
    state = store.task("dag/run/task")
    state.set_many(dict.fromkeys(["job.intent", "é.intent", ".intent", "intent", "job.INTENT", "jobXintent"], 1))
    for ending, keys in ((".intent", [".intent", "job.intent", "é.intent"]), ("_intent", []), ("%", [])):
        assert [found.row.name for found in store.real.backend.send(Find(ending=ending)).rows] == keys
