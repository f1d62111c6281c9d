"""Write what is encrypted with an older key anew under the first one, while tasks go on."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ...errors import BackendError
from ...values import Clock, system_clock
from .metadata import Row, Rows
from .packing import Packer, as_bytes, as_text, is_text
from .payload_sweep import document_of
from .payloads import Payloads, new_name, read_checked
from .references import payload_of, pointer
from .rows import PACKED, REFERENCE, packed_text, reference_in

__all__ = ["Rotated", "rotate"]


class Rotated(msgspec.Struct):
    """How many values were written anew, were current already, or were changed meanwhile; and which cannot be read."""

    rewritten: int = 0
    current: int = 0
    passed_over: int = 0
    unreadable: list[str] = []


def rotate(rows: Rows, packer: Packer, payloads: Payloads | None, *, clock: Clock = system_clock) -> Rotated:
    """Write anew what is not encrypted with the packer's first key.

    A row that somebody changes meanwhile is left alone: it was written with the first key. Plain rows stay plain.
    A payload that was written anew leaves the old one to the sweep: a task may be about to read it.
    """
    done = Rotated()
    for row in rows.all():
        if "o1" not in row.text:  # neither packed nor a reference
            continue
        try:
            as_it_is = document_of(None, row)
            if packed_text(as_it_is) is None and reference_in(as_it_is) is None:
                continue
            is_replaced = _rotate(row, packed_text(as_it_is), rows, packer, payloads, clock)
        except BackendError as error:
            done.unreadable.append(f"{row.name}: {error.message}")
            continue
        match is_replaced:
            case None:
                done.current += 1
            case True:
                done.rewritten += 1
            case False:
                done.passed_over += 1
    return done


def _rotate(
    row: Row, outer: str | None, rows: Rows, packer: Packer, payloads: Payloads | None, clock: Clock
) -> bool | None:
    """Return whether the row, packed text or (None) a plain reference, was replaced; None where it need not be."""
    document = document_of(packer, row)
    reference = reference_in(document)
    new_reference = None if reference is None else _anew(reference, packer, payloads, clock)
    is_outer_current = outer is None or packer.is_current(as_bytes(outer))
    if is_outer_current and new_reference in (None, reference):
        return None
    inner: Any = document if new_reference is None else {REFERENCE: new_reference}
    text = json.dumps(inner)
    if outer is not None:
        text = json.dumps({PACKED: as_text(packer.pack(text.encode()))})
    is_replaced = rows.replace(row, text)
    written = payload_of(new_reference)
    if not is_replaced and written is not None and new_reference != reference and payloads is not None:
        payloads.remove(written)
    return is_replaced


def _anew(reference: str, packer: Packer, payloads: Payloads | None, clock: Clock) -> str:
    """Return a reference to the same value, kept with the first key; the same one where it is."""
    name = payload_of(reference)
    if name is None:
        if not is_text(reference) or packer.is_current(as_bytes(reference)):
            return reference
        return as_text(packer.pack(packer.unpack(as_bytes(reference))))
    packed = None if payloads is None else read_checked(payloads, name)
    if packed is None or packer.is_current(packed) or payloads is None:
        return reference
    anew = packer.pack(packer.unpack(packed))
    written = new_name(name.rpartition("/")[0], anew, clock)
    payloads.write(written, anew)
    return pointer(written)
