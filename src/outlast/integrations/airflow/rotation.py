"""Write what is plain, or encrypted with an older key, anew under the first one, while tasks go on."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import msgspec

from ... import codec
from ...errors import BackendError, InvalidValue
from ...values import Clock, system_clock
from .metadata import Row, Rows
from .packing import Packer, as_bytes, as_text, is_text
from .payloads import Payloads, new_name, read_checked
from .readable import document_of
from .references import OFFLOAD_ABOVE, payload_of, pointer
from .rows import PACKED, REFERENCE, pack_row, packed_text, reference_in

__all__ = ["Rotated", "Writing", "rotate"]

#: What has come of a row: the field of `Rotated` that counts it.
Outcome: TypeAlias = Literal["rewritten", "current", "passed_over", "plain"]


class Rotated(msgspec.Struct):
    """How many values were written anew, were current already, or were changed meanwhile; and which cannot be read.

    `plain` ones stay as they are: no backend of outlast's would encrypt them here, or they are no strict JSON.
    """

    rewritten: int = 0
    current: int = 0
    passed_over: int = 0
    plain: int = 0
    unreadable: list[str] = []


class Writing(msgspec.Struct, frozen=True):
    """Which backends write here: values that are plain are written anew as these would write them."""

    is_worker: bool = False
    is_server: bool = False
    offload_above: int = OFFLOAD_ABOVE


def rotate(
    rows: Rows,
    packer: Packer,
    payloads: Payloads | None,
    writing: Writing = Writing(),  # noqa: B008 (frozen)
    *,
    clock: Clock = system_clock,
) -> Rotated:
    """Write anew what is not encrypted with the packer's first key.

    A row that somebody changes meanwhile is left alone: it was written with the first key.
    A payload that was written anew leaves the old one to the sweep: a task may be about to read it.
    """
    done = Rotated()
    for row in rows.all():
        try:
            as_it_is = document_of(None, row)
            if packed_text(as_it_is) is None and reference_in(as_it_is) is None:
                has_come_of_it = _encrypt(row, rows, packer, payloads, writing, clock)
            else:
                has_come_of_it = _rotate(row, packed_text(as_it_is), rows, packer, payloads, clock)
        except BackendError as error:
            done.unreadable.append(f"{row.name}: {error.message}")
            continue
        setattr(done, has_come_of_it, getattr(done, has_come_of_it) + 1)
    return done


def _encrypt(
    row: Row, rows: Rows, packer: Packer, payloads: Payloads | None, writing: Writing, clock: Clock
) -> Outcome:
    """Write a plain row anew as the backends would that write here."""
    if not packer.encrypts:
        return "plain"
    reference = _reference(row, packer, payloads, writing, clock) if writing.is_worker else None
    text = row.text if reference is None else json.dumps({REFERENCE: reference})
    if writing.is_server:
        text = pack_row(packer, text)
    return "plain" if text == row.text else _replace(row, text, rows, payload_of(reference), payloads)


def _reference(row: Row, packer: Packer, payloads: Payloads | None, writing: Writing, clock: Clock) -> str | None:
    """Return a worker's reference to a plain row's value, its payload written; None for what is no strict JSON."""
    try:
        packed = packer.pack(codec.dump(codec.parse(row.text)))
    except InvalidValue:
        return None
    text = as_text(packed)
    if payloads is None or not row.places or len(text) <= writing.offload_above:
        return text
    name = new_name(row.places[0], packed, clock)
    payloads.write(name, packed)
    return pointer(name)


def _rotate(
    row: Row, outer: str | None, rows: Rows, packer: Packer, payloads: Payloads | None, clock: Clock
) -> Outcome:
    """Write a row anew, which holds packed text or (None) a plain reference."""
    document = document_of(packer, row)
    reference = reference_in(document)
    new_reference = None if reference is None else _anew(reference, packer, payloads, clock)
    is_outer_current = outer is None or packer.is_current(as_bytes(outer))
    if is_outer_current and new_reference in (None, reference):
        return "current"
    inner: Any = document if new_reference is None else {REFERENCE: new_reference}
    text = json.dumps(inner)
    if outer is not None:
        text = json.dumps({PACKED: as_text(packer.pack(text.encode()))})
    written = None if new_reference == reference else payload_of(new_reference)
    return _replace(row, text, rows, written, payloads)


def _replace(row: Row, text: str, rows: Rows, written: str | None, payloads: Payloads | None) -> Outcome:
    """Put another text in a row's place; the payload `written` for it goes where the row has changed meanwhile."""
    if rows.replace(row, text):
        return "rewritten"
    if written is not None and payloads is not None:
        payloads.remove(written)
    return "passed_over"


def _anew(reference: str, packer: Packer, payloads: Payloads | None, clock: Clock) -> str:
    """Return a reference to the same value, kept with the first key; the same one where it is."""
    name = payload_of(reference)
    if name is None:
        if not is_text(reference) or packer.is_current(as_bytes(reference)):
            return reference
        return as_text(packer.pack(packer.unpack(as_bytes(reference))))
    if payloads is None:
        raise BackendError("its payload is outside the database; set [outlast] state_offload_url")
    packed = read_checked(payloads, name)
    if packed is None or packer.is_current(packed):
        return reference
    anew = packer.pack(packer.unpack(packed))
    written = new_name(name.rpartition("/")[0], anew, clock)
    payloads.write(written, anew)
    return pointer(written)
