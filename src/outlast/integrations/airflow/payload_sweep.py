"""Compare payloads with the references in the database: find what a crash has left over, and take it away."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from ...errors import BackendError, OutlastError
from .metadata import Row, Rows
from .packing import Packer
from .payloads import Payloads, written_at
from .references import is_payload, payload_of
from .rows import reference_in, unpack_row

__all__ = ["Findings", "clean", "document_of", "examine", "past_bound", "remove_all"]

_DAY = 24 * 3600 * 1_000_000


class Findings(msgspec.Struct):
    """What a comparison has found.

    `orphans` are payloads that no row refers to, `young` of those written too recently to say. `expired` are rows past
    their time, each with its payload; `lost` are rows whose payload is gone. `kept` payloads are referred to.
    """

    orphans: list[str] = []
    young: int = 0
    expired: list[tuple[Row, str]] = []
    lost: list[Row] = []
    kept: int = 0


def examine(payloads: Payloads, rows: Rows, packer: Packer, *, grace: int, now: int) -> Findings:
    """Compare; `grace` (microseconds) is the age up to which a payload may still wait for its reference.

    Payloads are listed before the rows are read: one whose reference came first would otherwise look like an orphan.
    A row that cannot be read ends it with BackendError, because its payload would look like one too.
    """
    names = [name for name in payloads.names() if is_payload(name)]
    referred = [(row, name) for row in rows.all() if (name := _payload_of_row(packer, row))]
    held = {name for _, name in referred}
    strangers = [name for name in names if name not in held]
    orphans = [name for name in strangers if (written_at(name) or 0) <= now - grace]
    present = set(names)
    return Findings(
        orphans,
        len(strangers) - len(orphans),
        [(row, name) for row, name in referred if row.is_expired],
        [row for row, name in referred if name not in present and payloads.read(name) is None],
        sum(name in present for name in held),
    )


def clean(findings: Findings, payloads: Payloads, rows: Rows, *, drop_lost: bool = False) -> list[str]:
    """Take away what was found, a row always before its payload; return what could not be done, in sentences."""
    expired = [name for row, name in findings.expired if rows.remove(row)]
    if drop_lost:
        for row in findings.lost:
            rows.remove(row)
    return remove_all(payloads, [*expired, *findings.orphans])


def past_bound(payloads: Payloads, *, days: int, now: int) -> list[str]:
    """Return the payloads of tasks that are older than the default retention, without looking into the database."""
    bound = now - days * _DAY
    names = (name for name in payloads.names("") if name.startswith("t") and is_payload(name))
    return [name for name in names if (written_at(name) or now) <= bound]


def document_of(packer: Packer, row: Row) -> Any:
    """Return what a row holds, unpacked: a value, or a worker's reference; BackendError where it cannot be read."""
    try:
        return json.loads(unpack_row(packer, row.text))
    except ValueError as error:
        raise BackendError(f"the row {row.name} is not JSON: {error}") from error
    except OutlastError as error:
        raise BackendError(f"the row {row.name} cannot be read: {error.message}") from error


def _payload_of_row(packer: Packer, row: Row) -> str | None:
    if "o1" not in row.text:  # neither packed nor a reference
        return None
    return payload_of(reference_in(document_of(packer, row)))


def remove_all(payloads: Payloads, names: Iterable[str]) -> list[str]:
    """Remove payloads; return what could not be, in sentences."""
    failed = []
    for name in names:
        try:
            payloads.remove(name)
        except BackendError as error:
            failed.append(error.message)
    return failed
