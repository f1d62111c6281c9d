"""The nouns: addresses, cursors, moments."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import AssetScope, Change, Cursor, Entry, InvalidKey, Reset, ScopeInfo, TaskScope, Version, Writer
from outlast.values import address, moment, parse_task, system_clock, to_micros

IDS = st.text("ab, \"'[]-1é", min_size=1, max_size=4)
SCOPES = st.one_of(
    st.builds(TaskScope, IDS, IDS, IDS, st.integers(-1, 12)),
    st.builds(TaskScope, IDS, IDS, IDS, st.just(3), IDS),
    st.builds(AssetScope, IDS),
    st.builds(AssetScope, st.none(), IDS),
)


@given(SCOPES, SCOPES)
def test_different_scopes_have_different_addresses(one: TaskScope | AssetScope, other: TaskScope | AssetScope) -> None:
    """Contract 1.1: whatever stands in the names."""
    assert (address(one) == address(other)) == (one == other)
    assert len(address(one)) == 16


def test_an_item_is_found_wherever_it_stands() -> None:
    """Contract 6.5."""
    assert address(TaskScope("d", "r", "t", 3, "k")) == address(TaskScope("d", "r", "t", 5, "k"))
    assert address(TaskScope("d", "r", "t", 3, "k")) != address(TaskScope("d", "r", "t", 3))


@given(
    st.builds(
        TaskScope, st.text("ab-.é", min_size=3), st.text("ab", min_size=1), st.just("t"), st.integers(-1, 2**31 - 1)
    )
)
def test_a_printed_scope_is_an_address(scope: TaskScope) -> None:
    assert parse_task(str(scope)) == scope


@pytest.mark.parametrize(
    "word", [None, 7, b"a/b/c", "a/b", "a/b/c/x", "a/b/c/٣", "a/b/c/1/2", "a/b/c/ 1", "a/b/c/-2", "a/b/c/+1"]
)
def test_what_is_no_address_is_refused(word: object) -> None:
    with pytest.raises(InvalidKey):
        parse_task(word)  # type: ignore[arg-type]


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_is_exact(when: datetime) -> None:
    assert moment(to_micros(when)) == when


def test_moments_of_other_zones_and_of_none() -> None:
    zone = timezone(timedelta(hours=5, minutes=45))
    assert to_micros(datetime(1970, 1, 1, 5, 45, tzinfo=zone)) == 0
    with pytest.raises(ValueError, match="no time zone"):
        to_micros(datetime(2026, 1, 1))


def test_the_systems_clock_tells_microseconds() -> None:
    assert abs(moment(system_clock()) - datetime.now(UTC)) < timedelta(seconds=5)


@given(st.integers(0), st.integers(0))
def test_a_cursor_is_text_and_back(scope_id: int, revision: int) -> None:
    cursor = Cursor(scope_id, revision)
    assert Cursor.parse(str(cursor)) == cursor


def test_values_are_frozen_and_cross_processes() -> None:
    now, writer = moment(0), Writer("task", 1, None, TaskScope("d", "r", "t"))
    entry = Entry("key", {"a": [1]}, 3, now, None, writer)
    values = [
        entry,
        Version("key", None, True, 3, now, writer),
        Cursor(1, 2),
        Change("key", entry, 3, Cursor(1, 3)),
        Reset((entry,), Cursor(1, 3)),
        ScopeInfo(TaskScope("d", "r", "t"), 3, 1, 1, 9, now),
        AssetScope("name", "uri"),
    ]
    for value in values:
        assert pickle.loads(pickle.dumps(value)) == value
        with pytest.raises(AttributeError):
            value.key = 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("writer", "text"),
    [
        (Writer(), "library"),
        (Writer("person", name="ada"), "person ada"),
        (Writer("task", 2), "attempt 2"),
        (Writer("task", 2, None, TaskScope("d", "r", "t", 0)), "d/r/t/0 attempt 2"),
        (Writer("trigger", name="tick"), "trigger tick"),
    ],
)
def test_a_writer_in_words(writer: Writer, text: str) -> None:
    assert str(writer) == text


def test_scopes_in_words() -> None:
    assert [
        str(scope)
        for scope in (TaskScope("d", "r", "t"), TaskScope("d", "r", "t", 0), TaskScope("d", "r", "t", 0, "k"))
    ] == [
        "d/r/t",
        "d/r/t/0",
        "d/r/t --item k",
    ]
    assert [str(AssetScope("n", "u")), str(AssetScope(None, "u"))] == ["asset n", "asset u"]
