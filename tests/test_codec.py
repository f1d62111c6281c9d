"""Values as canonical JSON text and back, exactly or not at all (contract 2)."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import InvalidValue, JsonValue, ValueTooLarge, codec
from support.exact import exact

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.integers(2**63 - 3, 2**64 + 3),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXTS, inner)),
    max_leaves=20,
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(max_size=3), st.dates()),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner), st.dictionaries(st.one_of(st.text(), st.integers(), st.none()), inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_dumped_is_loaded_exactly(value: JsonValue) -> None:
    text = codec.dump(value, allow_none=True)
    assert exact(codec.load(text), value)
    assert exact(codec.load(text.decode()), value)


@given(VALUES)
def test_another_reader_of_json_agrees(value: JsonValue) -> None:
    assert exact(json.loads(codec.dump(value, allow_none=True)), value)


@given(VALUES)
def test_the_text_is_canonical(value: JsonValue) -> None:
    """No blanks, keys in their order, and the same text again after reading."""
    text = codec.dump(value, allow_none=True)
    assert codec.dump(codec.load(text), allow_none=True) == text
    assert not re.search(rb"\s", re.sub(rb'"(?:[^"\\]|\\.)*"', b'""', text))
    if isinstance(value, dict):
        assert list(json.loads(text)) == list(value)


@given(ANYTHING)
def test_anything_is_kept_exactly_or_refused(value: Any) -> None:
    """Nothing is coerced silently."""
    try:
        text = codec.dump(value)
    except InvalidValue:
        text = None
    assert (text is not None) == (value is not None and exact_json(value))
    if text is not None:
        assert exact(codec.load(text), value)
        assert exact(codec.parse(text), value)


def exact_json(value: Any) -> bool:
    """Say, independently, whether a value is one of JSON's that can be kept."""
    match value:
        case None | bool():
            return True
        case float():
            return math.isfinite(value)
        case int():
            return abs(value) < 10**4000
        case str():
            return not any("\ud800" <= character <= "\udfff" for character in value)
        case list():
            return all(map(exact_json, value))
        case dict():
            return all(isinstance(key, str) and exact_json(key) for key in value) and all(
                map(exact_json, value.values())
            )
    return False


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "nul", "NaN", "Infinity", "-Infinity", "[NaN]", "'a'", "[1,]", '{"a":}', "{1:2}", "01", "+1", ".5",
        "1 2",
        "1e400", "-1e400", '"\\ud800"', '"\\udfff\\ud800"', '{"\\ud800": 1}', '"\t"', b'"\xff"',
        b"\xed\xa0\x80", "9" * 4001, "9" * 5000,
        "-" + "9" * 4001, "[" * 101 + "]" * 101, "[" * 100_000,
        '{"a":' * 101 + "1" + "}" * 101, "null", "\ufeff1", "undefined",
    ],
)  # fmt: skip
def test_json_that_could_not_be_kept_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidValue):
        codec.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-0", 0), ("-0.0", -0.0), ("1.0", 1.0), ("1e2", 100.0), ("1E+2", 100.0), ('"\\u00e9"', "é"),
        (" [ 1 ,2 ] ", [1, 2]),
        ('"\\ud83d\\ude00"', "\U0001f600"), ("9" * 4000, int("9" * 4000)),
        ('{"a":{"b":[null]}}', {"a": {"b": [None]}}), ('"\\u0000"', "\x00"),
        ("18446744073709551616", 2**64), ("1180591620717411303424", 2**70),
        ("5e-324", 5e-324), ("0.30000000000000004", 0.1 + 0.2),
        ("[" * 100 + "]" * 100, None),
    ],
)  # fmt: skip
def test_json_is_read_exactly(text: str, value: Any) -> None:
    found = codec.parse(text)
    assert value is None or exact(found, value)
    assert exact(codec.load(codec.dump(found)), found)


def test_null_is_a_value_only_where_it_is_allowed() -> None:
    assert codec.parse("null", allow_none=True) is None
    assert codec.dump(None, allow_none=True) == b"null"
    with pytest.raises(InvalidValue, match=r"delete\(key\)"):
        codec.dump(None)


def test_a_limit_of_ones_own() -> None:
    assert codec.dump("xx", limit=4) == b'"xx"'
    with pytest.raises(ValueTooLarge, match="5 bytes of JSON; at most 4"):
        codec.dump("xxx", limit=4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 1}', "$ has the key 'a' twice"),
        ('{"a": {"b": [0, {"c d": 1, "e": 2, "c d": 3}]}}', "$.a.b[1] has the key 'c d' twice"),
        (b'[{"\\u0061": 1, "a": 2}]', "$[0] has the key 'a' twice"),
        ('{"a": {"b": 1, "b": 2}, "c": {"d": 1, "d": 2}}', "$.a has the key 'b' twice"),
        ('{"": 1, "x": ' + "9" * 4000 + ', "": 2}', "$ has the key '' twice"),
    ],
)
def test_a_key_that_comes_twice_is_refused(text: str | bytes, said: str) -> None:
    """A decoder would keep the last one and say nothing."""
    with pytest.raises(InvalidValue) as refused:
        codec.parse(text)
    assert refused.value.message.startswith(said)


def test_a_key_may_come_again_in_another_object() -> None:
    text = '{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}'
    assert codec.parse(text) == {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]}


@pytest.mark.parametrize(("text", "answer"), [("1", True), ('{"a":1,"a":2}', True), ("one", False), ("NaN", False)])
def test_json_is_told_from_other_text(text: str, answer: bool) -> None:
    assert codec.is_json(text) is answer
