"""Compare payloads with the references in the database: find what a crash has left over, and take it away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from ...errors import BackendError
from .metadata import Row, Rows
from .packing import Packer
from .payloads import Payloads, written_at
from .readable import SAMPLE, is_whole, reference_of
from .references import is_payload, payload_of

__all__ = ["Findings", "clean", "examine", "past_bound", "remove_all"]

_DAY = 24 * 3600 * 1_000_000


class Findings(msgspec.Struct):
    """What a comparison has found.

    `orphans` are payloads that no row refers to, `young` of those written too recently to say. `expired` are rows past
    their time, each with the payload that goes with it; `lost` are rows whose payload is gone. `kept` payloads are
    referred to. `unreadable` says which rows cannot be read and why; `withheld` payloads could be theirs.
    """

    orphans: list[str] = []
    young: int = 0
    expired: list[tuple[Row, str | None]] = []
    lost: list[Row] = []
    kept: int = 0
    unreadable: list[str] = []
    withheld: int = 0


def examine(payloads: Payloads, rows: Rows, packer: Packer, *, grace: int, now: int) -> Findings:
    """Compare; `grace` (microseconds) is the age up to which a payload may still wait for its reference.

    Payloads are listed before the rows are read: one whose reference came first would otherwise look like an orphan.
    A row may hold anything, since whoever may edit a task instance can write it over REST. So one that cannot be read
    keeps the payloads of its own key, and no others; and one past its time takes none along but its own.
    """
    names = [name for name in payloads.names() if is_payload(name)]
    referred, unreadable, unsure = _read(packer, rows)
    held = Counter(name for _, name in referred)
    strangers = [name for name in names if name not in held]
    certain = [name for name in strangers if name.rpartition("/")[0] not in unsure]
    orphans = [name for name in certain if (written_at(name) or 0) <= now - grace]
    present = set(names)
    return Findings(
        orphans,
        len(certain) - len(orphans),
        [(row, name if _is_own(row, name) and held[name] == 1 else None) for row, name in referred if row.is_expired],
        [row for row, name in referred if name not in present and payloads.read(name) is None],
        sum(name in present for name in held),
        unreadable + _unreadable(payloads, packer, [pair for pair in referred if pair[1] in present]),
        len(strangers) - len(certain),
    )


def clean(findings: Findings, payloads: Payloads, rows: Rows, *, drop_lost: bool = False) -> list[str]:
    """Take away what was found, a row always before its payload; return what could not be done, in sentences."""
    expired = [name for row, name in findings.expired if rows.remove(row) and name is not None]
    if drop_lost:
        for row in findings.lost:
            rows.remove(row)
    return remove_all(payloads, [*expired, *findings.orphans])


def past_bound(payloads: Payloads, *, days: int, now: int) -> list[str]:
    """Return the payloads of tasks that are older than the default retention, without looking into the database."""
    bound = now - days * _DAY
    names = (name for name in payloads.names("") if name.startswith("t") and is_payload(name))
    return [name for name in names if (written_at(name) or now) <= bound]


def remove_all(payloads: Payloads, names: Iterable[str]) -> list[str]:
    """Remove payloads; return what could not be, in sentences."""
    failed = []
    for name in names:
        try:
            payloads.remove(name)
        except BackendError as error:
            failed.append(error.message)
    return failed


def _read(packer: Packer, rows: Rows) -> tuple[list[tuple[Row, str]], list[str], set[str]]:
    """Return rows with the payload each refers to, which cannot be read, and the places of those ones' payloads."""
    referred, unreadable, unsure = list[tuple[Row, str]](), list[str](), set[str]()
    for row in rows.all():
        try:
            name = _payload_of_row(packer, row)
        except BackendError as error:
            unreadable.append(error.message)
            unsure.update(row.places)
            continue
        if name is not None:
            referred.append((row, name))
    return referred, unreadable, unsure


def _payload_of_row(packer: Packer, row: Row) -> str | None:
    if "o1" not in row.text:  # neither packed nor a reference
        return None
    return payload_of(reference_of(packer, row))


def _unreadable(payloads: Payloads, packer: Packer, referred: list[tuple[Row, str]]) -> list[str]:
    """Return which of the newest payloads cannot be read, and why: with a wrong key all look well from outside."""
    newest = sorted(referred, key=lambda pair: written_at(pair[1]) or 0, reverse=True)
    found = []
    for row, _ in newest[:SAMPLE]:
        try:
            is_whole(row, packer, payloads)
        except BackendError as error:
            found.append(error.message)
    return found


def _is_own(row: Row, name: str) -> bool:
    return name.rpartition("/")[0] in row.places
