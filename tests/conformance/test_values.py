"""What can be stored, and what is refused: contract 2."""

from __future__ import annotations

import enum
import logging
import math
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from outlast import InvalidValue, ValueTooLarge
from support.exact import exact
from support.verbs import Verbs
from support.world import World

LIMIT = 16 * 1024 * 1024


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Plain(enum.Enum):
    ONE = 1


class Float64(float):
    """As numpy.float64: a subclass of float with a text of its own."""

    def __repr__(self) -> str:
        return f"np.float64({float(self)})"


class Int(int):
    def __repr__(self) -> str:
        return "Int()"

    def __index__(self) -> int:
        return 99


class Text(str):
    def __str__(self) -> str:
        return "something else"


class Row(dict[str, Any]):
    pass


class Rows(list[Any]):
    pass


class Int64:
    """As numpy.int64: no subclass of int, but with a way to one."""

    def tolist(self) -> int:
        return 7

    def __int__(self) -> int:
        return 7

    def __index__(self) -> int:
        return 7


Point = namedtuple("Point", "x y")


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for place in range(depth):
        value = [value] if kind == "list" or (kind == "mixed" and place % 2) else {"k": value}
    return value


VALUES: list[Any] = [
    "", "a", "é", "e\u0301", "\U0001f600", "\x00", "\x1f\x7f", "\u2028\u2029", '"\\/', "</script>", "\ufeff", "\uffff",
    "null", "1",
    0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**70, -(2**70),
    10**3999, 10**4000 - 1, -(10**4000) + 1,
    0.0, -0.0, 1.0, -1.5, 0.1 + 0.2, 1e-323, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308,
    1e16, 1e22, 1e23, 123456789012345680.0,
    math.pi, True, False, [], {}, [None], {"a": None}, [[], {}], [1, 1.0, True, "1"],
    {"b": 1, "a": 2, "": 3, "é": [1, {"x": [None, False]}]}, {"__proto__": 1, "a.b": 2, "$": 3},
    nested(100), nested(100, "dict"), nested(100, "mixed"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_a_value_comes_back_exactly(either: Verbs, number: int) -> None:
    """Contract 2.1: type for type, bit for bit, keys in their order."""
    value = VALUES[number]
    either.set("key", value)
    entry = either.entry("key")
    assert exact(either.get("key"), value)
    assert exact(entry.value, value)
    assert exact(either.items(), [("key", value)]) or exact(either.items()[0][1], value)
    assert exact(either.history("key")[0].value, value)


def test_all_values_together_inside_a_list_and_a_dict(state: Verbs) -> None:
    """Contract 2.1."""
    shallow = [
        value
        for value in VALUES
        if not (isinstance(value, list | dict) and str(value).count("[") + str(value).count("{") > 50)
    ]
    state.set("list", shallow)
    state.set("dict", {str(number): value for number, value in enumerate(shallow)})
    assert exact(state.get("list"), shallow)
    assert exact(list(state.get("dict").values()), shallow)


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Float64(0.1), 0.1),
        (Float64(-0.0), -0.0),
        (Int(5), 5),
        (Int(2**70), 2**70),
        (Text("real"), "real"),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Row(a=Rows([Level.HIGH])), {"a": [3]}),
        ({Colour.RED: Colour.RED}, {"red": "red"}),
        ({Text("real"): 1}, {"real": 1}),
    ],
)
def test_subclasses_are_stored_as_their_base_value(either: Verbs, value: Any, base: Any) -> None:
    """Contract 2.1: enums, numpy.float64, OrderedDict."""
    either.set("key", value)
    assert exact(either.get("key"), base)
    either.set("inside", [value, {"x": value}])
    assert exact(either.get("inside"), [base, {"x": base}])


def cycle(kind: str) -> Any:
    if kind == "list":
        outer: Any = [1]
        outer.append([outer])
    else:
        outer = {}
        outer["self"] = {"again": outer}
    return outer


REFUSED: dict[str, tuple[Any, str]] = {
    "tuple": ((1, 2), r"\$ is a tuple; store list\(value\)"),
    "namedtuple": (Point(1, 2), r"Point; store value._asdict\(\)"),
    "set": ({1}, r"\$ is a set; store sorted\(value\)"),
    "frozenset": (frozenset(), "frozenset; store sorted"),
    "bytes": (b"a", r"\$ is a bytes; store value.hex"),
    "bytearray": (bytearray(), "bytearray; store value.hex"),
    "memoryview": (memoryview(b""), "memoryview"),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), r"datetime; store value.isoformat\(\)"),
    "date": (date(2026, 1, 1), r"date; store value.isoformat\(\)"),
    "time": (time(), r"time; store value.isoformat\(\)"),
    "timedelta": (timedelta(1), r"timedelta; store value.total_seconds\(\)"),
    "Decimal": (Decimal("1.5"), r"Decimal; store str\(value\)"),
    "Fraction": (Fraction(1, 3), r"Fraction; store str\(value\)"),
    "complex": (1j, "complex"),
    "UUID": (UUID(int=1), r"UUID; store str\(value\)"),
    "path": (Path("a"), r"store str\(value\)"),
    "enum": (Plain.ONE, r"Plain; store value.value"),
    "numpy.int64": (Int64(), r"Int64; store value.tolist\(\)"),
    "object": (object(), "object; store a dict of its parts"),
    "function": (print, "builtin_function"),
    "generator": ((n for n in [1]), r"generator; store list\(value\)"),
    "range": (range(3), r"range; store list\(value\)"),
    "UserDict": (UserDict(), "UserDict"),
    "NaN": (math.nan, "nan"),
    "Infinity": (math.inf, "inf"),
    "-Infinity": (-math.inf, "-inf"),
    "subclassed NaN": (Float64("nan"), "nan"),
    "4,001 digits": (10**4000, "4,000 digits; store it as a str"),
    "-4,001 digits": (-(10**4000), "4,000 digits"),
    "subclassed 4,001 digits": (Int(10**4000), "4,000 digits"),
    "int key": ({1: "a"}, r"the key 1, a int; JSON keys are str: use str\(key\)"),
    "None key": ({None: "a"}, "the key None"),
    "bool key": ({True: "a"}, "the key True"),
    "tuple key": ({(1,): "a"}, "a tuple"),
    "lone surrogate": ("a\ud800b", "lone surrogate"),
    "low surrogate": ("\udfff", "lone surrogate"),
    "surrogate key": ({"\udc00": 1}, "lone surrogate"),
    "surrogate pair as two": ("\ud83d\ude00", "lone surrogate"),
    "list cycle": (cycle("list"), "cycle"),
    "dict cycle": (cycle("dict"), "cycle"),
    "101 lists": (nested(101), "nested deeper than 100"),
    "101 dicts": (nested(101, "dict"), "nested deeper than 100"),
    "5000 lists": (nested(5000), "nested deeper than 100"),
}  # fmt: skip

WRITES: dict[str, Callable[[Verbs, Any], Any]] = {
    "set": lambda state, value: state.set("key", value),
    "set_many": lambda state, value: state.set_many({"a good one": 1, "key": value}),
    "set_default": lambda state, value: state.set_default("key", value),
    "compare_and_set": lambda state, value: state.compare_and_set("key", value, revision=None),
    "update": lambda state, value: state.update("key", lambda old: value),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused_before_anything_is_written(state: Verbs, what: str) -> None:
    """Contract 2.2: at every verb, also deep inside and beside good values; the message has the remedy."""
    value, remedy = REFUSED[what]
    for write in WRITES.values():
        with pytest.raises(InvalidValue, match=remedy):
            write(state, value)
    if not what.endswith("lists") and not what.endswith("dicts") and "cycle" not in what:
        with pytest.raises(InvalidValue, match=r"\$\.rows\[3\]\.when"):
            state.set("key", {"rows": [1, 2, 3, {"when": value}]})
    with pytest.raises(InvalidValue):
        state.set("key", [value])
    assert state.keys() == []
    with state.transaction() as tx, pytest.raises(InvalidValue):
        tx.set("key", value)
    assert (state.keys(), state.history("key")) == ([], [])


def test_the_place_and_the_remedy_are_named(state: Verbs) -> None:
    """Contract 2.2: as in the contract's example."""
    said = r"^key 'key': \$\.rows\[3\]\.when is a .*datetime; store value\.isoformat\(\)$"
    with pytest.raises(InvalidValue, match=said):
        state.set("key", {"rows": [0, 1, 2, {"when": datetime(2026, 1, 1)}]})
    with pytest.raises(InvalidValue, match=r"\$\['odd key'\]\[0\] is a set"):
        state.set("key", {"odd key": [set()]})


@pytest.mark.parametrize("write", WRITES)
def test_none_is_stored_only_inside(state: Verbs, write: str) -> None:
    """Contract 2.1: `set(key, None)` is InvalidValue, which is a ValueError."""
    with pytest.raises(ValueError, match=r"None.*delete\(key\)") as caught:
        WRITES[write](state, None)
    assert isinstance(caught.value, InvalidValue)
    WRITES[write](state, [None])
    assert state.get("key") == [None]


def test_a_surrogate_pair_written_as_one_character_is_text(state: Verbs) -> None:
    """Contract 2.1: only lone surrogates are no Unicode."""
    state.set("key", "\U0001f600")
    assert state.get("key") == "\U0001f600"


def test_the_same_list_twice_is_no_cycle(state: Verbs) -> None:
    shared = [1]
    state.set("key", [shared, shared, {"again": shared}])
    assert state.get("key") == [[1], [1], {"again": [1]}]


@pytest.mark.parametrize("value", [False, 0, 0.0, -0.0, "", [], {}])
def test_falsy_values_are_returned_as_stored(either: Verbs, value: Any) -> None:
    """Contract 2.3."""
    either.set("key", value)
    assert exact(either.get("key", "the default"), value)
    assert exact(either.set_default("key", "another"), value)
    assert exact(either.update("key", lambda old: [old]), [value])
    assert either.keys() == ["key"]


def test_every_get_returns_a_fresh_object(either: Verbs) -> None:
    """Contract 2.3: neither the caller's object nor a former answer is shared."""
    mine = {"rows": [1]}
    either.set("key", mine)
    mine["rows"].append(2)
    first = either.get("key")
    first["rows"].append(3)
    assert either.get("key") == either.entry("key").value == {"rows": [1]}
    stored = either.set_default("key", {})
    stored["x"] = 1
    assert either.get("key") == {"rows": [1]}


def test_in_a_transaction_objects_are_fresh_too(either: Verbs) -> None:
    """Contract 2.3, 4.4."""
    either.set("old", [1])
    with either.transaction() as tx:
        mine = [1]
        tx.set("new", mine)
        mine.append(2)
        for key in ("old", "new"):
            tx.get(key).append(3)
            assert tx.get(key) == [1]
    assert either.items() == [("new", [1]), ("old", [1])]


def test_update_gets_a_copy_of_its_own(either: Verbs) -> None:
    """Contract 2.3: changing the argument and failing changes nothing."""
    either.set("key", [1])

    def spoil(value: list[int]) -> None:
        value.append(2)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        either.update("key", spoil)
    assert either.get("key") == [1]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "max_value_storage_bytes" in record.getMessage()]


@pytest.mark.parametrize("write", WRITES)
def test_above_the_soft_limit_a_write_succeeds_with_one_warning(
    world: World, caplog: pytest.LogCaptureFixture, write: str
) -> None:
    """Contract 2.4: naming key, size and limit; counted in UTF-8 bytes of compact JSON."""
    state = world.open(max_value_storage_bytes=10).task("dag/run/task")
    with caplog.at_level(logging.WARNING):
        WRITES[write](state, "éééé")  # 8 bytes and the quotes
        assert warnings_of(caplog) == []
        state.clear()
        WRITES[write](state, "éééé!")
    (message,) = warnings_of(caplog)
    assert all(part in message for part in ("'key'", "11 bytes", "= 10"))
    assert state.get("key") == "éééé!"


def test_the_soft_limit_is_65535_bytes_by_default_and_0_is_none(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Contract 2.4."""
    state = world.open().task("dag/run/task")
    state.set("key", "x" * 65533)
    assert warnings_of(caplog) == []
    state.set("key", "x" * 65534)
    assert len(warnings_of(caplog)) == 1
    world.open(max_value_storage_bytes=0).task("dag/run/task").set("key", "x" * 100_000)
    assert len(warnings_of(caplog)) == 1


def test_a_warning_comes_once_a_write_in_a_transaction_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Contract 2.4."""
    state = world.open(max_value_storage_bytes=10).task("dag/run/task")
    with state.transaction() as tx:
        tx.set("key", "x" * 20)
        tx.get("key")
    assert len(warnings_of(caplog)) == 1
    state.get("key")
    state.increment("number")
    assert len(warnings_of(caplog)) == 1


def test_16_mib_is_the_hard_limit(world: World) -> None:
    """Contract 2.4."""
    state = world.open(max_value_storage_bytes=0).task("dag/run/task")
    largest = "x" * (LIMIT - 2)
    state.set("key", largest)
    assert state.get("key") == largest
    for write in WRITES.values():
        with pytest.raises(ValueTooLarge, match=r"16,777,217 bytes.*at most 16,777,216") as caught:
            write(state, largest + "x")
        assert (isinstance(caught.value, InvalidValue), caught.value.status) == (True, 413)
    with pytest.raises(ValueTooLarge):
        state.set("key", ["é" * (LIMIT // 2)])
    assert state.get("key") == largest


def test_no_stored_value_makes_a_later_list_fail(state: Verbs) -> None:
    """Contract 2.2: whatever was accepted can be listed."""
    for number, value in enumerate(VALUES):
        state.set(f"key {number:03}", value)
    assert len(state.items()) == len(state.entries()) == len(state.keys()) == len(VALUES)
