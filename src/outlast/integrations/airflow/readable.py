"""What rows hold, and whether it can be read here: with these keys, and from this place of payloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import BackendError, OutlastError
from .metadata import Row
from .packing import Packer, as_bytes, is_text
from .payloads import Payloads, read_checked
from .references import payload_of
from .rows import reference_in, unpack_row

__all__ = ["SAMPLE", "document_of", "is_whole", "reference_of"]

#: Values that are read to see whether all can be: a wrong key opens none of them.
SAMPLE = 50


def document_of(packer: Packer | None, row: Row) -> Any:
    """Return what a row holds: a value, or a worker's reference; BackendError where it cannot be read.

    Without a packer what is packed is returned as it is.
    """
    with _naming(row):
        return json.loads(row.text if packer is None else unpack_row(packer, row.text))


def reference_of(packer: Packer, row: Row) -> str | None:
    """Return the reference a row holds; BackendError where it, or the value that is kept inside it, cannot be read."""
    reference = reference_in(document_of(packer, row))
    if reference is not None and is_text(reference):
        with _naming(row):
            packer.unpack(as_bytes(reference))
    return reference


def is_whole(row: Row, packer: Packer, payloads: Payloads | None) -> bool:
    """Read the value of a row, its payload too; False when that is gone, BackendError where it cannot be read."""
    name = payload_of(reference_of(packer, row))
    if name is None:
        return True
    with _naming(row):
        if payloads is None:
            raise BackendError("its payload is outside the database; set [outlast] state_offload_url")
        packed = read_checked(payloads, name)
        if packed is not None:
            packer.unpack(packed)
    return packed is not None


@contextmanager
def _naming(row: Row) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise BackendError(f"the row {row.name} cannot be read: it is not JSON: {error}") from error
    except RecursionError:
        raise BackendError(f"the row {row.name} cannot be read: it is nested too deep") from None
    except OutlastError as error:
        raise BackendError(f"the row {row.name} cannot be read: {error.message}") from error
