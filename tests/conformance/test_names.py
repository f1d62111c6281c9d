"""Scopes and names: contract 1."""

from __future__ import annotations

from typing import Any

import pytest

from outlast import AssetScope, InvalidKey, TaskScope
from support.verbs import CALLS, Verbs

CONTROLS = [*map(chr, range(0x20)), "\x7f"]
SURROGATES = ["\ud800", "\udbff", "\udc00", "\udfff"]

GOOD_IDS = [
    "a",
    "a b",
    "...",
    ".a",
    "a.",
    "%2F",
    "?",
    "#",
    "\\",
    "\x80",
    "\u2028",
    "日本",
    "\U0001d4b3",
    "\U0010ffff",
    "x" * 250,
]
BAD_IDS = {
    "empty": "",
    "at most 250": "x" * 251,
    "contains '/'": "a/b",
    "may not be '.'": ".",
    "may not be '..'": "..",
    "begins or ends with a space": " a",
    "begins or ends": "a ",
    "begins": " ",
    "a NoneType": None,
    "is a int": 7,
    "is a bytes": b"a",
}
GOOD_KEYS = [
    *GOOD_IDS,
    "/",
    "//",
    "a/b",
    "a//b",
    "/a/",
    " a ",
    " ",
    ".../x",
    "a/.b",
    "a/..b",
    "a/b.",
    "x" * 512,
    "\U0001f600" * 512,
]
BAD_KEYS = {
    "empty": "",
    "at most 512": "x" * 513,
    "segment": ".",
    "'..'": "..",
    "a segment '.'": "./a",
    "between slashes": "a/../b",
    "HTTP clients": "a/.",
    "rewrite": "/..",
    "a NoneType": None,
    "is a int": 7,
    "is a bytes": b"a",
}
PLACES = ["dag_id", "run_id", "task_id"]


def named(**ids: Any) -> dict[str, Any]:
    return {"dag_id": "dag", "run_id": "run", "task_id": "task", **ids}


@pytest.mark.parametrize("place", PLACES)
def test_good_ids_are_kept_as_they_are(store: Verbs, place: str) -> None:
    """Contract 1.3."""
    for number, name in enumerate(GOOD_IDS):
        store.task(**named(**{place: name})).set("number", number)
    assert [store.task(**named(**{place: name})).get("number") for name in GOOD_IDS] == list(range(len(GOOD_IDS)))
    assert {getattr(info.scope, place) for info in store.scopes()} == set(GOOD_IDS)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", BAD_IDS)
def test_a_bad_id_is_refused_naming_the_rule(store: Verbs, place: str, rule: str) -> None:
    """Contract 1.3."""
    with pytest.raises(InvalidKey, match=place) as caught:
        store.task(**named(**{place: BAD_IDS[rule]}))
    assert rule in str(caught.value)


@pytest.mark.parametrize("place", PLACES)
def test_control_characters_and_lone_surrogates_are_refused_in_ids(store: Verbs, place: str) -> None:
    """Contract 1.3."""
    for character in [*CONTROLS, *SURROGATES]:
        with pytest.raises(InvalidKey):
            store.task(**named(**{place: f"a{character}b"}))


@pytest.mark.parametrize(
    "scope", [TaskScope("a/b", "run", "task"), TaskScope("dag", "", "task"), TaskScope("dag", "run", "\n")]
)
def test_a_scope_made_by_hand_keeps_the_rules_too(store: Verbs, scope: TaskScope) -> None:
    """Contract 1.3: at every way in."""
    with pytest.raises(InvalidKey):
        store.task(scope)


@pytest.mark.parametrize("index", [-2, 2**31, True, 1.0, "1", None])
def test_a_bad_map_index_is_refused(store: Verbs, index: Any) -> None:
    """Contract 1.1."""
    with pytest.raises(InvalidKey, match="map_index"):
        store.task("dag/run/task", map_index=index)


def test_an_address_may_be_written_as_one_word(store: Verbs) -> None:
    store.task(dag_id="nightly", run_id="2026-11-29", task_id="ingest").set("page", 1)
    store.task(dag_id="nightly", run_id="2026-11-29", task_id="ingest", map_index=3).set("page", 2)
    assert store.task("nightly/2026-11-29/ingest").get("page") == 1
    assert store.task("nightly/2026-11-29/ingest/-1").get("page") == 1
    assert store.task("nightly/2026-11-29/ingest/3").get("page") == 2
    assert store.task("nightly/2026-11-29/ingest", map_index=3).get("page") == 2
    assert store.task(TaskScope("nightly", "2026-11-29", "ingest", 3)).get("page") == 2


@pytest.mark.parametrize(
    "word", ["", "a", "a/b", "a/b/c/d", "a/b/c/1/2", "a//c", "a/b/c/--1", "a/b/c/-2", "a/b/c/" + "9" * 5000]
)
def test_a_word_that_is_no_address_is_refused(store: Verbs, word: str) -> None:
    with pytest.raises(InvalidKey):
        store.task(word)


def test_keys_may_hold_anything_but_dot_segments_and_control_characters(either: Verbs) -> None:
    """Contract 1.3."""
    for number, key in enumerate(GOOD_KEYS):
        either.set(key, number)
    assert [either.get(key) for key in GOOD_KEYS] == list(range(len(GOOD_KEYS)))
    assert either.keys() == sorted(GOOD_KEYS)


@pytest.mark.parametrize("rule", BAD_KEYS)
def test_a_bad_key_is_refused_naming_the_rule(either: Verbs, rule: str) -> None:
    """Contract 1.3: `delete(".")` clears nothing."""
    either.set("key", 1)
    for verb in (either.get, either.delete, either.entry, either.history, either.increment):
        with pytest.raises(InvalidKey) as caught:
            verb(BAD_KEYS[rule])
        assert rule in str(caught.value)
    assert either.items() == [("key", 1)]


def test_every_verb_refuses_a_bad_key(either: Verbs) -> None:
    """Contract 1.3."""
    for character in [*CONTROLS, *SURROGATES]:
        key = f"a{character}b"
        for call in (
            lambda key: either.get(key),
            lambda key: either.set(key, 1),
            lambda key: either.set_many({"good": 1, key: 1}),
            lambda key: either.set_default(key, 1),
            lambda key: either.compare_and_set(key, 1, revision=None),
            lambda key: either.update(key, lambda value: 1),
            lambda key: either.restore(key, 1),
            lambda key: either.keys(key),
            lambda key: either.items(key),
            lambda key: either.entries(key),
        ):
            with pytest.raises(InvalidKey):
                call(key)
    assert either.keys() == []


def test_a_prefix_may_end_anywhere_in_a_key(either: Verbs) -> None:
    """Contract 4.2: a prefix is no key, so what stands before the next character may be a dot."""
    either.set_many({".hidden": 1, "a/.hidden": 2, "a/..x": 3})
    assert either.keys(".") == [".hidden"]
    assert either.keys("a/.") == ["a/..x", "a/.hidden"]
    assert either.keys("a/..") == ["a/..x"]


def test_case_blanks_and_composition_are_kept_apart(either: Verbs) -> None:
    """Contract 1.3: compared code point by code point."""
    keys = ["a", "A", " a", "a ", "\u00e9", "e\u0301", "ß", "ss", "ſ", "s", "İ", "i", "K", "\u212a"]
    either.set_many({key: number for number, key in enumerate(keys)})
    assert [either.get(key) for key in keys] == list(range(len(keys)))
    either.delete("A")
    assert either.get("a") == 0


def test_neighbours_see_nothing_of_each_other(store: Verbs) -> None:
    """Contract 1.1, 4.1: runs, tasks, indices and scopes with similar names."""
    scopes = [
        TaskScope("a", "b", "c"),
        TaskScope("a", "b", "c", 0),
        TaskScope("a", "b", "c", 1),
        TaskScope("a", "b", "c", 11),
        TaskScope("a", "b", "C"),
        TaskScope("a", "b", "cc"),
        TaskScope("ab", "c", "c"),
        TaskScope("a", "bc", "c"),
        TaskScope("a", "b,c", "c"),
        TaskScope("a", 'b","c', "c"),
        TaskScope("b", "a", "c"),
        TaskScope("asset", "a", "c"),
    ]
    for number, scope in enumerate(scopes):
        store.task(scope).set("key", number)
    store.asset("a").set("key", "asset a")
    store.asset(uri="a").set("key", "uri a")
    assert [store.task(scope).items() for scope in scopes] == [[("key", n)] for n in range(len(scopes))]
    assert store.asset("a").get("key") == "asset a"
    assert store.asset(uri="a").get("key") == "uri a"
    store.task(scopes[0]).clear()
    assert [store.task(scope).get("key") for scope in scopes] == [None, *range(1, len(scopes))]


def test_every_attempt_of_a_task_instance_sees_the_same_entries(store: Verbs) -> None:
    """Contract 1.1, 6.1."""
    store.task("dag/run/task", attempt=1).set("job", "j-7")
    assert store.task("dag/run/task", attempt=2).get("job") == "j-7"
    assert store.task("dag/run/task").get("job") == "j-7"


def test_an_asset_is_one_whether_named_or_addressed(store: Verbs) -> None:
    """Contract 1.2."""
    store.asset("orders", uri="s3://lake/orders").set("watermark", 7)
    assert store.asset("orders").get("watermark") == 7
    assert store.asset(uri="s3://lake/orders").get("watermark") == 7
    assert [str(info.scope) for info in store.scopes(assets=True)] == ["asset orders"]


@pytest.mark.parametrize("first", [{"name": "orders"}, {"uri": "s3://lake/orders"}])
def test_an_asset_learns_its_other_name(store: Verbs, first: dict[str, str]) -> None:
    """Contract 1.2."""
    store.asset(**first).set("watermark", 7)
    store.asset("orders", uri="s3://lake/orders").set("seen", True)
    assert (
        store.asset("orders").items()
        == store.asset(uri="s3://lake/orders").items()
        == [("seen", True), ("watermark", 7)]
    )
    assert [info.scope for info in store.scopes(assets=True)] == [AssetScope("orders", "s3://lake/orders")]


def test_two_assets_are_not_taken_for_one(store: Verbs) -> None:
    """Contract 1.2: a name and a URI that belong to different assets address neither."""
    store.asset("orders", uri="s3://lake/orders").set("watermark", 7)
    store.asset("lines", uri="s3://lake/lines").set("watermark", 8)
    for call in CALLS.values():
        with pytest.raises(InvalidKey):
            call(store.asset("orders", uri="s3://lake/lines"))
    assert store.asset("orders").items() == [("watermark", 7)]
    assert store.asset("lines").items() == [("watermark", 8)]


def test_an_asset_with_another_uri_is_not_the_one_of_that_name(store: Verbs) -> None:
    """Contract 1.2: what is known under another URI is not read or written by mistake."""
    store.asset("orders", uri="s3://lake/orders").set("watermark", 7)
    other = store.asset("orders", uri="s3://elsewhere/orders")
    with pytest.raises(InvalidKey):
        other.get("watermark")
    with pytest.raises(InvalidKey):
        other.set("watermark", 8)
    assert store.asset("orders").get("watermark") == 7


@pytest.mark.parametrize(
    "name", ["x", " x ", ".", "..", "a/../b", "s3://bucket/a b?c#d%", "x" * 1500, "\U0001f600" * 1500]
)
def test_good_asset_names_and_uris(store: Verbs, name: str) -> None:
    """Contract 1.3."""
    store.asset(name).set("as", "name")
    store.asset(uri=name).set("as", "uri")
    assert (store.asset(name).get("as"), store.asset(uri=name).get("as")) == ("name", "uri")


@pytest.mark.parametrize("name", ["", "x" * 1501, "a\nb", "a\x7f", "\ud800", 7])
def test_bad_asset_names_and_uris(store: Verbs, name: Any) -> None:
    """Contract 1.3."""
    with pytest.raises(InvalidKey, match="asset name"):
        store.asset(name)
    with pytest.raises(InvalidKey, match="asset URI"):
        store.asset(uri=name)
    with pytest.raises(InvalidKey, match="a name or a URI"):
        store.asset()


def test_an_asset_outlives_runs_and_belongs_to_none(store: Verbs) -> None:
    """Contract 1.2, 7: every task writes the same asset."""
    for run in ("one", "two"):
        store.task(f"dag/{run}/task", attempt="new").asset("orders").increment("loads")
    assert store.asset("orders").get("loads") == 2
    store.task("dag/two/task").clear()
    assert store.asset("orders").get("loads") == 2
