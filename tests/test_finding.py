"""Finding entries across scopes: names and patterns, conditions on the value, ages, sizes (store.find)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast import codec, finding
from outlast.errors import InvalidValue
from outlast.finding import Where
from outlast.requests import Find

HOUR = 3600 * 1_000_000


class Clock:
    """A clock the test moves."""

    now = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[outlast.Store]:
    with outlast.connect(":memory:", clock=clock) as store:
        for dag in ("nightly", "Nightly", "weekly"):
            for run in ("r1", "r2"):
                store.task(f"{dag}/{run}/ingest").set_many({"page": 1, "rows/a": 2})
        store.asset("orders").set("watermark", 7)
        yield store


def places(found: list[finding.Match]) -> list[str]:
    return [f"{match.scope} {match.entry.key}" for match in found]


# --- names -----------------------------------------------------------------------------------------------


def test_without_criteria_every_entry_of_every_task_is_found_by_scope_and_key(store: outlast.Store) -> None:
    assert places(store.find())[:3] == ["nightly/r1/ingest page", "nightly/r1/ingest rows/a", "nightly/r2/ingest page"]
    assert len(store.find()) == 12


@pytest.mark.parametrize(
    ("criteria", "count"),
    [
        ({"dag": "nightly"}, 4),
        ({"dag": "night*"}, 4),
        ({"dag": "?ightly"}, 8),
        ({"dag": "[Nn]ightly", "run": "r2"}, 4),
        ({"dag": "NIGHTLY"}, 0),
        ({"task": "in*", "key": "page"}, 6),
        ({"key": "rows/*"}, 6),
        ({"key": "rows"}, 0),
        ({"run": "r2", "key": "*"}, 6),
        ({"dag": ""}, 0),
    ],
)
def test_names_and_patterns_choose(store: outlast.Store, criteria: dict[str, str], count: int) -> None:
    assert len(store.find(**criteria)) == count


def test_an_exact_id_is_looked_up_by_the_backend_and_a_pattern_is_not() -> None:
    plan = finding.find(lambda: 0, dag="nightly", run="r*", task="ingest")
    assert next(plan) == Find("nightly", None, "ingest", limit=finding.PAGE)


@pytest.mark.parametrize(
    ("pattern", "ending"),
    [("*job_id", "job_id"), ("*", ""), ("*a*", ""), ("**", ""), ("?a", ""), ("*\0", ""), ("a", "")],
)
def test_the_end_of_keys_is_looked_up_by_the_backend(pattern: str, ending: str) -> None:
    assert next(finding.find(lambda: 0, key=pattern)).ending == ending


def test_a_name_with_brackets_is_found_by_itself(store: outlast.Store) -> None:
    store.task("d[1]/r/t").set("k[0]", 1)
    assert places(store.find(dag="d[1]", key="k[0]")) == ["d[1]/r/t k[0]"]


def test_assets_are_searched_instead_of_tasks(store: outlast.Store) -> None:
    assert places(store.find(assets=True)) == ["asset orders watermark"]
    with pytest.raises(ValueError, match="belong to no dag"):
        store.find(assets=True, dag="nightly")


# --- values ----------------------------------------------------------------------------------------------

VALUE: dict[str, Any] = {
    "rows": 120,
    "share": 0.5,
    "big": 2**70,
    "state": "done",
    "ok": True,
    "none": None,
    "a b": 1,
    "Größe": 3,
    "with-dash": 4,
    "items": [{"id": 7}, {"id": None}, []],
}


@pytest.mark.parametrize(
    "where",
    [
        "$",
        "$.rows",
        "$.none",
        "$.rows > 100",
        "$.rows>=120",
        "  $.rows  ==  120.0 ",
        "$.share < 1",
        "$.big == 1180591620717411303424",
        "$.big > 1180591620717411303423",
        "$.big != 1.1805916207174117e21",
        '$.state == "done"',
        "$.state == 'done'",
        '$.state < "dz"',
        "$.ok == true",
        "$.ok != 1",
        "$.none == null",
        '$["a b"] == 1',
        "$['a b']",
        '$["\\u0061 b"]',
        "$.Größe == 3",
        "$.with-dash == 4",
        "$.items[0].id == 7",
        "$.items[-1] == []",
        "$.items[1].id == null",
        '$.items == [{"id": 7}, {"id": null}, []]',
        '$.items[0] != {"id": true}',
    ],
)
def test_a_condition_that_holds(where: str) -> None:
    assert Where(where).accepts(VALUE)


@pytest.mark.parametrize(
    "where",
    [
        "$.absent",
        "$.absent == null",
        "$.absent != 1",
        "$.items[3]",
        "$.items[-4]",
        "$.items.id",
        "$.state[0]",
        "$.rows.more",
        "$.items[1].id != null",
        "$.rows > 120",
        '$.rows == "120"',
        '$.rows > "1"',
        "$.rows < true",
        "$.ok == 1",
        "$.ok > 0",
        "$.none < 1",
        "$.items > []",
        "$.big == 1180591620717411303425",
        '$.state == "Done"',
    ],
)
def test_a_condition_that_does_not_hold(where: str) -> None:
    assert not Where(where).accepts(VALUE)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("rows > 1", r"does not begin with \$"),
        ("", r"does not begin with \$"),
        ("$.rows = 1", "cannot be read from '= 1' on"),
        ("$..rows", "cannot be read from '..rows' on"),
        ("$.rows >", "cannot be read from '>' on"),
        ("$[rows]", r"cannot be read from '\[rows\]' on"),
        ("$.items[0", r"cannot be read from '\[0' on"),
        ("$.state == done", "'done' is not JSON"),
        ("$.rows > 1 and $.ok", r"'1 and \$.ok' is not JSON"),
        ("$.rows < NaN", "'NaN' is not JSON"),
        ('$["\\x"]', "is not JSON"),
    ],
)
def test_a_condition_that_cannot_be_read_says_what_is_allowed(store: outlast.Store, where: str, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as caught:
        store.find(where=where)
    assert "$.rows > 100" in caught.value.message


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inside, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON)
def test_every_value_equals_its_own_json(value: Any) -> None:
    literal = codec.dump(value, allow_none=True).decode()
    assert Where(f"$ == {literal}").accepts(value)
    assert not Where(f"$ != {literal}").accepts(value)


NUMBER = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBER, NUMBER)
def test_numbers_compare_as_the_exact_numbers_they_are(one: float, other: float) -> None:
    literal = codec.dump(other).decode()
    assert Where(f"$ < {literal}").accepts(one) == (Fraction(one) < Fraction(other))
    assert Where(f"$ >= {literal}").accepts(one) == (Fraction(one) >= Fraction(other))
    assert Where(f"$ == {literal}").accepts(one) == (Fraction(one) == Fraction(other))


@given(JSON)
def test_true_is_not_one_at_any_depth(value: Any) -> None:
    assert not Where("$ == [1]").accepts([True])
    assert Where("$ == [[1]]").accepts([value]) == (value == [1] and type(value[0]) in (int, float))


# --- ages and sizes ----------------------------------------------------------------------------------------


def test_ages_are_of_the_last_write_and_include_their_end(store: outlast.Store, clock: Clock) -> None:
    clock.now += 2 * HOUR
    store.task("new/r/t").set("k", 1)
    old, new = store.find(older_than=timedelta(hours=2)), store.find(newer_than=timedelta(hours=2))
    assert (len(old), len(new)) == (12, 13)
    assert places(store.find(newer_than=timedelta(hours=1))) == ["new/r/t k"]
    assert store.find(older_than=timedelta(hours=2, microseconds=1)) == []


def test_expiring_within_finds_what_will_expire_and_not_what_never_does(store: outlast.Store, clock: Clock) -> None:
    state = store.task("new/r/t")
    state.set("soon", 1, retention=timedelta(hours=1))
    state.set("never", 1, retention=outlast.NEVER_EXPIRE)
    assert places(store.find(expiring_within=timedelta(hours=1))) == ["new/r/t soon"]
    assert store.find(expiring_within=timedelta(minutes=59)) == []
    clock.now += HOUR
    assert store.find(key="soon") == []


def test_sizes_are_bytes_of_json(store: outlast.Store) -> None:
    store.task("new/r/t").set("k", "é" * 4)
    assert places(store.find(min_bytes=10)) == ["new/r/t k"]
    assert store.find(min_bytes=11) == []
    assert len(store.find(max_bytes=9)) == 12


# --- pages and limits --------------------------------------------------------------------------------------


def test_more_than_a_page_is_found_whole_and_a_limit_ends_the_search(store: outlast.Store) -> None:
    count = 2 * finding.PAGE + 5
    store.task("many/r/t").set_many({f"{number:05}": number for number in range(count)})
    assert [match.entry.value for match in store.find(dag="many")] == list(range(count))
    last = store.find(dag="many", where=f"$ >= {count - 3}", limit=2)
    assert [match.entry.value for match in last] == [count - 3, count - 2]
    assert len(store.find(limit=3)) == 3


def test_a_limit_alone_asks_for_no_more_than_it_needs() -> None:
    assert next(finding.find(lambda: 0, limit=3)).limit == 3
    assert next(finding.find(lambda: 0, limit=3, key="k")).limit == finding.PAGE


@pytest.mark.parametrize(
    ("criteria", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": True}, TypeError),
        ({"limit": "3"}, TypeError),
        ({"min_bytes": -1}, ValueError),
        ({"max_bytes": 1.5}, TypeError),
        ({"older_than": 3}, TypeError),
        ({"newer_than": timedelta(-1)}, ValueError),
        ({"dag": 7}, TypeError),
        ({"key": b"k"}, TypeError),
        ({"where": 7}, TypeError),
    ],
)
def test_a_wrong_criterion_is_refused(store: outlast.Store, criteria: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        store.find(**criteria)


def test_the_awaiting_twin_finds_the_same(store: outlast.Store) -> None:
    assert asyncio.run(store.afind(dag="night*", where="$ > 1")) == store.find(dag="night*", where="$ > 1") != []
