"""Making one asset of two, one known by its name and one by its URI."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import Change, Conflict, InvalidKey, NotFound
from outlast.requests import ForgetAsset, Forgotten, MergeAssets, Merged
from support.runs import ANN
from support.verbs import Verbs

URI = "s3://bucket/orders"


@pytest.fixture
def named(store: Verbs) -> Verbs:
    return store.asset("orders")


@pytest.fixture
def placed(store: Verbs) -> Verbs:
    return store.asset(uri=URI)


def merge(store: Verbs, prefer: Any = None, name: str = "orders", uri: str = URI) -> Merged:
    merged: Merged = Verbs(store.real.backend, store.runner).send(MergeAssets(name, uri, ANN, prefer))
    return merged


def both(store: Verbs) -> list[list[tuple[str, Any]]]:
    """Return what there is by the name, by the URI and by both."""
    return [store.asset("orders").items(), store.asset(uri=URI).items(), store.asset("orders", uri=URI).items()]


def test_two_assets_that_are_one_are_told_how_to_be(store: Verbs, named: Verbs, placed: Verbs) -> None:
    named.set("a", 1)
    placed.set("b", 2)
    with pytest.raises(InvalidKey, match="outlast assets merge orders s3://bucket/orders"):
        store.asset("orders", uri=URI).get("a")
    assert merge(store) == Merged(("b",), ())
    assert both(store) == [[("a", 1), ("b", 2)]] * 3


def test_history_comes_along_and_watchers_are_told(store: Verbs, named: Verbs, placed: Verbs) -> None:
    named.set("a", 1)
    for number in (1, 2, 3):
        placed.set("b", number)
    cursor = list(named.watch(timeout=0))[-1].cursor
    merge(store)
    (change,) = named.watch(cursor, timeout=0)
    assert isinstance(change, Change)
    assert (change.key, change.entry.value, change.revision) == ("b", 3, 4)  # type: ignore[union-attr]
    assert [version.value for version in named.history("b")] == [3, 2, 1]
    revisions = [version.revision for version in named.history("b")]
    assert len(set(revisions)) == 3
    assert named.restore("b", revisions[-1]).value == 1


def test_different_values_under_one_key_are_a_conflict(store: Verbs, named: Verbs, placed: Verbs) -> None:
    named.set_many({"same": 1, "other": 2})
    placed.set_many({"same": 1, "other": 3, "only": 4})
    with pytest.raises(Conflict, match="different values under 'other'"):
        merge(store)
    assert (named.items(), placed.items()) == (
        [("other", 2), ("same", 1)],
        [("only", 4), ("other", 3), ("same", 1)],
    )


@pytest.mark.parametrize(("prefer", "stays", "gone"), [("name", 2, "3"), ("uri", 3, "2")])
def test_a_preference_decides_and_what_gives_way_is_audited(
    store: Verbs, runs: Verbs, named: Verbs, placed: Verbs, prefer: str, stays: int, gone: str
) -> None:
    named.set("other", 2)
    placed.set("other", 3)
    assert merge(store, prefer).dropped == ("other",)
    assert both(store) == [[("other", stays)]] * 3
    by_key = {row.name: row for row in runs.audit()}
    assert (by_key["other"].before, by_key["other"].after, by_key["other"].who) == (gone, str(stays), "ann@desk")
    assert by_key[None].action == "merge assets"


def test_a_deleted_key_gives_way_to_a_live_one(store: Verbs, named: Verbs, placed: Verbs) -> None:
    named.set_many({"a": 1, "b": 2})
    placed.set_many({"a": 3, "b": 4})
    named.delete("a")
    placed.delete("b")
    merge(store)
    assert named.items() == [("a", 3), ("b", 2)]


@pytest.mark.parametrize("known", ["orders", None])
def test_one_of_them_alone_gets_its_other_name(store: Verbs, known: str | None) -> None:
    (store.asset("orders") if known else store.asset(uri=URI)).set("a", 1)
    assert merge(store) == Merged((), ())
    assert both(store) == [[("a", 1)]] * 3
    assert merge(store) == Merged((), ())


def test_neither_of_them(store: Verbs) -> None:
    with pytest.raises(NotFound, match="neither an asset 'orders'"):
        merge(store)


def test_an_asset_that_has_another_name_or_uri_stays_what_it_is(store: Verbs, named: Verbs, placed: Verbs) -> None:
    store.asset("orders", uri="s3://elsewhere").set("a", 1)
    placed.set("b", 2)
    with pytest.raises(InvalidKey, match="this asset's URI is 's3://elsewhere'"):
        merge(store)
    with pytest.raises(InvalidKey, match="this asset's name is 'orders'"):
        merge(store, name="sales", uri="s3://elsewhere")
    assert placed.items() == [("b", 2)]


def test_what_is_written_afterwards_goes_on_from_there(store: Verbs, named: Verbs, placed: Verbs) -> None:
    named.set("a", 1)
    placed.set("n", 2)
    merge(store)
    assert placed.increment("n") == 3
    assert store.asset("orders", uri=URI).entry("n").revision == 3
    with named.transaction() as tx:
        tx.set("a", tx.get("n"))
    assert named.get("a") == 3


# --- forgetting --------------------------------------------------------------------------------------------------


def forget(store: Verbs, name: str | None, uri: str | None, *, whole: bool = False) -> Forgotten:
    forgotten: Forgotten = Verbs(store.real.backend, store.runner).send(ForgetAsset(name, uri, ANN, whole))
    return forgotten


def test_a_wrong_uri_is_taken_off_again(store: Verbs, runs: Verbs, named: Verbs) -> None:
    named.set("a", 1)
    merge(store)
    assert forget(store, None, URI) == Forgotten("orders", URI)
    assert (named.items(), store.asset(uri=URI).items()) == ([("a", 1)], [])
    store.asset(uri=URI).set("b", 2)
    assert (named.items(), store.asset(uri=URI).items()) == ([("a", 1)], [("b", 2)])
    [unnamed] = [row for row in runs.audit() if row.action == "unname asset"]
    assert (unnamed.who, unnamed.place) == ("ann@desk", f"asset {URI}")
    assert merge(store) == Merged(("b",), ())


def test_a_wrong_name_is_taken_off_again(store: Verbs, placed: Verbs) -> None:
    """Also one the asset had first, whose address it is found by."""
    store.asset("oders", uri=URI).set("a", 1)
    forget(store, "oders", None)
    store.asset("oders").set("b", 2)
    assert (placed.items(), store.asset("oders").items()) == ([("a", 1)], [("b", 2)])
    assert store.asset("orders", uri=URI).items() == [("a", 1)]


def test_an_asset_keeps_one_name(store: Verbs, named: Verbs) -> None:
    named.set("a", 1)
    with pytest.raises(Conflict, match="no other name"):
        forget(store, "orders", None)
    with pytest.raises(NotFound, match="there is no asset orderz"):
        forget(store, "orderz", None)
    assert named.items() == [("a", 1)]


def test_an_empty_asset_is_removed_with_its_names_and_history(store: Verbs, runs: Verbs) -> None:
    state = store.asset("orders", uri=URI)
    state.set("a", 1)
    with pytest.raises(Conflict, match=r"has entries \(a\)"):
        forget(store, "orders", None, whole=True)
    state.clear()
    assert forget(store, "orders", None, whole=True) == Forgotten("orders", URI)
    assert state.history("a") == []
    store.asset("orders", uri="s3://elsewhere").set("a", 2)
    assert store.asset(uri=URI).items() == []
    [removed] = [row for row in runs.audit() if row.action == "remove asset"]
    assert removed.before == f'{{"name":"orders","uri":"{URI}"}}'
