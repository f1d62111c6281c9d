"""Values in rows of Airflow's database: a JSON document that holds packed text, and every other one as it is."""

from __future__ import annotations

import json
from typing import Any

from .packing import Packer, as_bytes, as_text, is_text

__all__ = ["PACKED", "REFERENCE", "pack_row", "packed_text", "reference_in", "unpack_row"]

#: The key of a row whose value outlast has packed.
PACKED = "__outlast__"
#: The key of a row in which Airflow keeps what a worker's backend has made of a value.
REFERENCE = "__airflow_state_ref__"


def pack_row(packer: Packer, text: str) -> str:
    """Return a value's JSON text as a row holds it."""
    packed = packer.pack(text.encode("utf-8", "surrogatepass"))
    if packed[:3] == b"o1j" and packed_text(json.loads(text)) is None:
        return text  # nothing was gained: the row stays readable for everybody
    return json.dumps({PACKED: as_text(packed)})


def unpack_row(packer: Packer, row: str) -> str:
    """Return the value's JSON text of a row; BackendError when it is damaged or no key opens it."""
    if PACKED not in row:
        return row
    text = packed_text(json.loads(row))
    return row if text is None else packer.unpack(as_bytes(text)).decode("utf-8", "surrogatepass")


def packed_text(document: Any) -> str | None:
    """Return the packed text of a row's document; None where it is a plain one."""
    return _only(document, PACKED) if isinstance(document, dict) and is_text(document.get(PACKED)) else None


def reference_in(document: Any) -> str | None:
    """Return the reference that a worker's backend has made; None where a row holds the value itself."""
    return _only(document, REFERENCE) if isinstance(document, dict) else None


def _only(document: dict[str, Any], key: str) -> str | None:
    text = document.get(key)
    return text if len(document) == 1 and isinstance(text, str) else None
