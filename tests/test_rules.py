"""What a commit means, decided alone: `rules.decide` against a plain dictionary, and its corners."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import Conflict, InvalidValue, StaleAttempt, TaskScope, ValueTooLarge, Writer
from outlast.requests import (
    Check,
    CheckPrefix,
    Commit,
    Fence,
    Increment,
    Operation,
    Part,
    Put,
    PutDefault,
    Remove,
    RemoveAll,
    Row,
)
from outlast.rules import MOST_ANSWERED, alive, check_fence, decide, expired, local, size_of, touches, without_skew
from outlast.values import FIRST_MOMENT, LAST_MOMENT

NOW = 1_000
SOMEBODY = Writer("person", name="ada")


def row(name: str, text: str | None, revision: int = 1, expires_at: int | None = None, **more: Any) -> Row:
    return Row(name, text, revision, 10, expires_at, Writer(), **more)


def decided(*operations: Operation, current: list[Row] | None = None, revision: int = 7) -> Any:
    return decide(operations, {stored.name: stored for stored in current or []}, revision, NOW, SOMEBODY)


def test_a_put_is_the_next_revision_and_remembers_what_was() -> None:
    """Contract 4.3, 4.8."""
    before = row("a", "1", version=4, kept=10)
    decision = decided(Put("a", "22", 5_000), current=[before])
    assert decision.revision == 8
    assert decision.rows == {"a": Row("a", "22", 8, NOW, 5_000, SOMEBODY, 5, 11)}
    assert (decision.past, decision.forget) == ([before], [])


def test_an_expired_row_counts_as_absent_and_its_history_goes() -> None:
    """Contract 3.3, 4.8: at the very microsecond."""
    stored = row("a", "1", expires_at=NOW, version=4, kept=10)
    decision = decided(Check("a", None), Put("a", "2", None), current=[stored])
    assert (decision.rows["a"].version, decision.rows["a"].kept) == (1, 0)
    assert (decision.past, decision.forget) == ([], ["a"])
    assert decided(Check("a", 1), current=[row("a", "1", expires_at=NOW + 1)]).revision == 7


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [Remove("a")],
        [Remove("gone")],
        [RemoveAll()],
        [PutDefault("present", "2", None)],
        [Put("a", "1", None), Remove("a")],
        [Put("gone", "1", None), Remove("gone")],
        [Put("expired", "1", None), RemoveAll()],
        [Check("present", 1), Check("a", None), Check("gone", None), Check("expired", None)],
        [CheckPrefix("p", (("present", 1),)), CheckPrefix("g", ()), CheckPrefix("e", ())],
    ],
)
def test_what_touches_nothing_live_is_no_commit(operations: list[Operation]) -> None:
    """Contract 4.3."""
    current = [row("gone", None), row("expired", "1", expires_at=NOW)]
    if RemoveAll() not in operations:
        current.append(row("present", "1"))
    decision = decided(*operations, current=current)
    assert (decision.revision, decision.rows, decision.past) == (7, {}, [])


def test_a_tombstone_keeps_the_expiry_so_that_history_goes_with_it() -> None:
    """Contract 4.8."""
    decision = decided(Remove("a"), current=[row("a", "1", expires_at=5_000)])
    assert (decision.rows["a"].text, decision.rows["a"].expires_at) == (None, 5_000)


@pytest.mark.parametrize("text", ['"1"', "1.0", "1e5", "true", "false", "[1]", "{}", "null", "-1.5"])
def test_only_an_int_can_be_incremented(text: str) -> None:
    """Contract 4.2."""
    with pytest.raises(InvalidValue, match="not an int"):
        decided(Increment("a", 1, None), current=[row("a", text)])


def test_a_conflict_carries_the_stored_row() -> None:
    """Contract 4.3."""
    stored = row("a", "1", revision=5)
    for wrong in (None, 4, 6):
        with pytest.raises(Conflict) as caught:
            decided(Check("a", wrong), current=[stored])
        assert caught.value.current is stored
    with pytest.raises(Conflict, match="changed since"):
        decided(CheckPrefix("a", ()), current=[stored])
    with pytest.raises(Conflict, match="changed since"):
        decided(CheckPrefix("", (("a", 4),)), current=[stored])


def test_what_must_be_loaded() -> None:
    assert touches([Put("a", "1", None), Check("b", 1), Remove("c")]) == ({"a", "b", "c"}, None)
    assert touches([CheckPrefix("x", ()), CheckPrefix("x", ())]) == (set(), "x")
    assert touches([CheckPrefix("x", ()), CheckPrefix("y", ())])[1] == ""
    assert touches([RemoveAll(), CheckPrefix("y", ())])[1] == ""
    assert touches([CheckPrefix("y", ()), RemoveAll()])[1] == ""


def test_a_fence_holds_for_one_attempt_of_one_life() -> None:
    """Contract 5.1."""
    fence = Fence(TaskScope("d", "r", "t"), 2, scope_id=9)
    check_fence(fence, 9, 2)
    for scope_id, newest in ((9, 3), (10, 2), (None, 0)):
        with pytest.raises(StaleAttempt):
            check_fence(fence, scope_id, newest)


def test_the_writer_is_stored_without_the_scope_it_wrote_to() -> None:
    scope = TaskScope("d", "r", "t")
    writer = Writer("task", 1, None, scope)
    assert local(writer, scope) == Writer("task", 1)
    assert local(writer, TaskScope("d", "r", "other")) == writer


def test_sizes_are_bytes() -> None:
    """Contract 2.4."""
    assert [size_of(text) for text in (None, "", "ab", "é", "\U0001f600")] == [0, 0, 2, 2, 4]


NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(-5, 5)
EXPIRIES = st.sampled_from([None, NOW - 1, NOW, NOW + 1])
OPERATIONS = st.one_of(
    st.builds(lambda name, n, at: Put(name, str(n), at), NAMES, NUMBERS, EXPIRIES),
    st.builds(lambda name, n: PutDefault(name, str(n), None), NAMES, NUMBERS),
    st.builds(lambda name, n: Increment(name, n, None), NAMES, NUMBERS),
    st.builds(Remove, NAMES),
    st.just(RemoveAll()),
)
ROWS = st.lists(
    st.builds(
        lambda name, n, revision, at: row(name, None if n is None else str(n), revision, at),
        NAMES,
        st.one_of(st.none(), NUMBERS),
        st.integers(1, 6),
        EXPIRIES,
    ),
    unique_by=lambda stored: stored.name,
)


@given(st.lists(OPERATIONS, max_size=6), ROWS)
def test_any_commit_is_what_a_dictionary_would_do(operations: list[Operation], stored: list[Row]) -> None:
    """Contract 3.3, 4.2, 4.3: operations in order, and one revision for all of them or none."""
    loaded = {one.name: one for one in stored}
    picture = {name: int(one.text or 0) for name, one in loaded.items() if alive(one, NOW)}
    before, answers = dict(picture), []
    touched: set[str] = set()
    for operation in operations:
        match operation:
            case Put():
                picture[operation.name] = int(operation.text)
                touched.add(operation.name)
                if operation.expires_at is not None and operation.expires_at <= NOW:
                    del picture[operation.name]
            case PutDefault():
                touched |= {operation.name} if operation.name not in picture else set()
                answers.append(picture.setdefault(operation.name, int(operation.text)))
            case Increment():
                picture[operation.name] = picture.get(operation.name, 0) + operation.by
                touched.add(operation.name)
                answers.append(picture[operation.name])
            case Remove():
                touched |= {operation.name} & picture.keys()
                picture.pop(operation.name, None)
            case _:
                touched |= picture.keys()
                picture.clear()
    decision = decide(operations, loaded, 7, NOW, SOMEBODY)
    after = loaded | decision.rows
    assert {name: int(one.text or 0) for name, one in after.items() if alive(one, NOW)} == picture
    assert decision.revision == 7 + bool(decision.rows)
    assert {name for name in touched if name in before or name in picture} <= set(decision.rows) <= touched
    assert all((one.revision, one.updated_at, one.writer) == (8, NOW, SOMEBODY) for one in decision.rows.values())
    assert set(decision.forget) == {name for name in decision.rows if name in loaded and expired(loaded[name], NOW)}
    assert {one.name for one in decision.past} == {name for name in decision.rows if name in loaded} - set(
        decision.forget
    )
    results = [
        int(result.text or 0)
        for operation, result in zip(operations, decision.results, strict=True)
        if isinstance(operation, PutDefault | Increment) and result is not None
    ]
    assert results == answers


def test_the_largest_value_is_always_answered_and_twice_is_not() -> None:
    """What a commit has written itself is counted when it is found; what it writes is not."""
    largest = f'"{"x" * (2**24 - 2)}"'
    found = PutDefault("a", "1", None)
    decision = decided(found, Increment("n", 1, None), current=[row("a", largest)])
    assert (decision.answered, decision.results[0].text) == (2**24 + 1, largest)
    assert decided(PutDefault("a", largest, None), Put("b", largest, None), found).answered == 2**24
    with pytest.raises(ValueTooLarge, match="set_default has found and increment has made"):
        decided(Put("a", largest, None), found, found)


def test_sums_of_many_digits_are_answered_so_often_only() -> None:
    """With what the parts before have answered."""
    current, sums = {"n": row("n", "1" * 4_000)}, [Increment("n", 1, None)] * 3
    before = MOST_ANSWERED - 3 * 4_000
    assert decide(sums, current, 7, NOW, SOMEBODY, before).answered == MOST_ANSWERED == 17 * 2**20
    with pytest.raises(ValueTooLarge):
        decide(sums, current, 7, NOW, SOMEBODY, before + 1)


@pytest.mark.parametrize(
    ("sent", "asked", "kept"),
    [(1, LAST_MOMENT, LAST_MOMENT), (LAST_MOMENT, FIRST_MOMENT, FIRST_MOMENT), (1, 5, 10**15 + 4)],
)
def test_an_expiry_corrected_for_a_clock_far_off_can_still_be_shown(sent: int, asked: int, kept: int) -> None:
    """Contract 2.2, 3.2."""
    commit = Commit((Part(TaskScope("d", "r", "t"), (Put("k", "1", asked),)),), sent_at=sent)
    [operation] = without_skew(commit, 10**15).parts[0].operations
    assert operation == Put("k", "1", kept)
