"""Packing: exact, smaller where that pays, unreadable without a key, and readable while keys change."""

from __future__ import annotations

import json

import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import BackendError, ConfigError
from outlast.integrations.airflow.packing import Packer, as_bytes, as_text, is_text
from outlast.integrations.airflow.rows import pack_row, unpack_row

KEY, OTHER = Fernet.generate_key().decode(), Fernet.generate_key().decode()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([(), (KEY,), (OTHER, KEY)]), st.integers(-1, 50))
def test_a_row_comes_back_character_by_character(value: object, keys: tuple[str, ...], above: int) -> None:
    text = json.dumps(value)
    packer = Packer(above, keys)
    row = pack_row(packer, text)
    json.loads(row)  # a row is a JSON document, whatever is in it
    assert unpack_row(packer, row) == text


def test_what_looks_like_a_packed_row_comes_back_as_it_is() -> None:
    text = json.dumps({"__outlast__": "o1jtrue"})
    assert unpack_row(Packer(), pack_row(Packer(), text)) == text


def test_a_plain_row_passes_through() -> None:
    for text in ('{"a": 1}', '"__outlast__"', '{"__outlast__": 7}', '{"__outlast__": "o1jtrue", "more": 1}'):
        assert unpack_row(Packer(keys=[KEY]), text) == text


def test_only_what_gets_smaller_is_compressed() -> None:
    packer = Packer(10)
    assert packer.pack(b"1234567890") == b"o1j1234567890"
    assert packer.pack(b"a" * 1000)[:3] == b"o1z"
    assert len(as_text(packer.pack(b"a" * 1000))) < 100
    assert Packer(-1).pack(b"a" * 1000) == b"o1j" + b"a" * 1000


def test_text_and_bytes_are_two_forms_of_the_same() -> None:
    for packer in (Packer(), Packer(0), Packer(0, [KEY])):
        packed = packer.pack(b'"' + b"a" * 500 + b'"')
        assert as_bytes(as_text(packed)) == packed
        assert is_text(as_text(packed))


def test_what_is_encrypted_is_not_readable_and_needs_a_key() -> None:
    packed = Packer(keys=[KEY]).pack(b'"secret"')
    assert b"secret" not in packed
    with pytest.raises(BackendError, match="this process has no key"):
        Packer().unpack(packed)
    with pytest.raises(BackendError, match="state_encryption_keys does not open a stored value"):
        Packer(keys=[OTHER]).unpack(packed)


def test_the_first_key_encrypts_and_every_key_decrypts() -> None:
    old = Packer(keys=[KEY]).pack(b"1")
    both = Packer(keys=[OTHER, KEY])
    assert both.unpack(old) == b"1"
    assert not both.is_current(old)
    new = both.pack(b"1")
    assert both.is_current(new)
    assert Packer(keys=[OTHER]).unpack(new) == b"1"


def test_a_wrong_key_is_named_by_its_place() -> None:
    with pytest.raises(ConfigError, match=r"key 2 of .* is not a Fernet key"):
        Packer(keys=[KEY, "short"])


@pytest.mark.parametrize("packed", [b"o1zdamaged", b"o2j1", b"", b"true"])
def test_damage_is_an_error_and_no_value(packed: bytes) -> None:
    with pytest.raises(BackendError):
        Packer().unpack(packed)


def test_a_changed_token_is_damage() -> None:
    packed = bytearray(Packer(keys=[KEY]).pack(b"1"))
    packed[20] ^= 1
    with pytest.raises(BackendError):
        Packer(keys=[KEY]).unpack(bytes(packed))
