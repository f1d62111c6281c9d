"""Bodies are read strictly: whatever is sent, it is either what it says or InvalidValue."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import InvalidValue, codec
from outlast.config import Config
from outlast.server.airflow_shapes import TaskStateStoreBody
from outlast.server.bodies import canonical, decode

VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner | st.none(), max_size=4) | st.dictionaries(st.text(), inner | st.none(), max_size=4),
    max_leaves=8,
)


@given(VALUES, st.sampled_from(["", " ", "\n\t "]))
def test_a_value_is_kept_as_its_canonical_text(value: object, blank: str) -> None:
    sent = msgspec.json.encode(value)
    body = decode(b'{"value":' + blank.encode() + sent + blank.encode() + b"}", TaskStateStoreBody)
    assert canonical(body.value, Config()) == codec.dump(value).decode()  # type: ignore[arg-type]
    assert body.expires_at == "default"


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_anything_else_is_refused_and_breaks_nothing(data: bytes) -> None:
    for sent in (data, b'{"value":' + data + b"}", b'{"value":[' + data + b'],"expires_at":null}'):
        try:
            canonical(decode(sent, TaskStateStoreBody).value, Config())
        except InvalidValue:
            continue


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"value": 1, "value": 1}', "the key 'value' twice"),
        (b'{"value": {"a": {"b": 1, "b": 1}}}', "the key 'b' twice"),
        (b'{"value": 1, "expires_at": 5}', "$.expires_at"),
        (b'{"value": 1, "expires": null}', "expires"),
        (b"{}", "value"),
        (b'{"value": nan}', "not JSON"),
        (b'{"value": "\xff"}', "not JSON"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, told: str) -> None:
    with pytest.raises(InvalidValue, match=told.replace("$", r"\$")):
        canonical(decode(data, TaskStateStoreBody).value, Config())


def test_the_limit_on_a_values_size_can_be_lifted() -> None:
    raw = msgspec.Raw(msgspec.json.encode("x" * 70_000))
    with pytest.raises(InvalidValue, match="max_value_storage_bytes = 65,535"):
        canonical(raw, Config())
    assert len(canonical(raw, Config(), limited=False)) == 70_002
