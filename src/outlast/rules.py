"""What a commit means: compare-and-set, increment, put-if-absent, expiry, history, the new revision. Pure.

A database locks, loads and saves; this module decides, so that no two of them can disagree. A row
whose `expires_at` has come counts as absent, and its history with it (contract 3.3, 4.8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from .errors import Conflict, InvalidValue, StaleAttempt, ValueTooLarge
from .requests import (
    Check,
    CheckPrefix,
    Commit,
    Fence,
    Increment,
    Open,
    Operation,
    Origin,
    Put,
    PutDefault,
    Remove,
    RemoveAll,
    Row,
)
from .values import FIRST_MOMENT, LAST_MOMENT, MAX_DIGITS, Scope, Writer

__all__ = [
    "MOST_ANSWERED",
    "Decision",
    "alive",
    "check_fence",
    "check_writer",
    "decide",
    "expired",
    "is_new_run",
    "local",
    "size_of",
    "touches",
    "without_skew",
]

#: Microseconds a writer's clock may be away from ours without its expiry times being corrected (contract 3.2).
MOST_SKEW = 5_000_000
#: Bytes of values a commit may answer that it did not bring along: the largest there is, and room for small ones.
MOST_ANSWERED = 17 * 1024 * 1024
_BOUND = 10**MAX_DIGITS


class Decision(msgspec.Struct):
    """What to save: rows by name, the past rows to remember, the names whose history must go, each result.

    `erased` says that no past value of the scope may be left anywhere; `answered` counts the bytes of values that the
    results hold and the operations do not, those of the commit's parts before included.
    """

    revision: int
    rows: dict[str, Row]
    past: list[Row]
    forget: list[str]
    results: tuple[Row | None, ...]
    erased: bool = False
    answered: int = 0


def expired(row: Row, now: int) -> bool:
    """Say whether a row, live or a tombstone, is gone at `now`: at its very microsecond it is."""
    return row.expires_at is not None and row.expires_at <= now


def alive(row: Row | None, now: int) -> Row | None:
    """Return the row if a reader at `now` may see it."""
    return row if row is not None and row.text is not None and not expired(row, now) else None


def check_writer(fence: Fence, done: int) -> None:
    """Refuse the writes of an attempt that has succeeded: what it left is what counts (contract 6.3)."""
    if fence.attempt == done:
        raise StaleAttempt(f"attempt {fence.attempt} of {fence.scope} has succeeded; it can write no more")


def check_fence(fence: Fence, scope_id: int | None, newest: int) -> None:
    """Refuse an attempt when its scope is gone or a newer attempt has opened it (contract 5.1)."""
    if scope_id != fence.scope_id:
        raise StaleAttempt(f"{fence.scope} was deleted after attempt {fence.attempt} began; this attempt must stop")
    if newest != fence.attempt:
        raise StaleAttempt(f"attempt {fence.attempt} of {fence.scope} was superseded by attempt {newest}; it must stop")


def is_new_run(request: Open, newest: int, recorded: Origin) -> bool:
    """Say whether an attempt is of a new run that has an old one's name; StaleAttempt where it is of the older of two.

    A fence that an attempt without an origin has raised is a later try's of the same run, unless this one's run began
    after that. Where none has said which run it is of, or one has in another way (before the engine was upgraded: what
    stands before the colon differs), nothing else tells, and what somebody has prepared stays.
    """
    if request.origin is None or request.origin == recorded.origin:
        return False
    is_late = request.attempt is not None and request.attempt <= newest
    after = max(recorded.fenced_at, recorded.started or 0)
    if recorded.origin is None or _kind(request.origin) != _kind(recorded.origin):
        return is_late and request.started is not None and 0 < after < request.started
    if request.started is not None and recorded.started is not None and request.started < recorded.started:
        raise StaleAttempt(f"{request.scope} is now that of a later run of that name; this attempt must stop")
    return not (is_late and recorded.fenced_at and (request.started or 0) <= recorded.fenced_at)


def _kind(origin: str) -> str:
    return origin.partition(":")[0]


def size_of(text: str | None) -> int:
    """Return the bytes a stored text takes in UTF-8."""
    return 0 if text is None else len(text) if text.isascii() else len(text.encode())


def touches(operations: Iterable[Operation]) -> tuple[set[str], str | None]:
    """Return the names a commit must load, and the prefix of names to load as well (None: no prefix)."""
    names: set[str] = set()
    prefix: str | None = None
    for operation in operations:
        match operation:
            case RemoveAll():
                prefix = ""
            case CheckPrefix():
                prefix = operation.prefix if prefix in (None, operation.prefix) else ""
            case _:
                names.add(operation.name)
    return names, prefix


def decide(
    operations: Iterable[Operation],
    current: Mapping[str, Row],
    revision: int,
    now: int,
    writer: Writer,
    answered: int = 0,
) -> Decision:
    """Decide one commit on one scope from its loaded rows; raises Conflict or InvalidValue and changes nothing.

    `current` holds every stored row the operations touch, tombstones and expired ones included;
    `revision` is the scope's before the commit, `answered` that of the decision on the part before.
    """
    work = _Work(current, revision + 1, now, writer, answered)
    results = tuple([work.apply(operation) for operation in operations])
    return work.decision(revision, results)


class _Work:
    """A commit in the making: the rows as they would be."""

    def __init__(self, current: Mapping[str, Row], revision: int, now: int, writer: Writer, answered: int) -> None:
        self.current, self.revision, self.now, self.writer = current, revision, now, writer
        self.answered = answered
        self.new: dict[str, Row] = {}
        self.erased: list[str] = []

    def get(self, name: str) -> Row | None:
        return alive(self.new.get(name) or self.current.get(name), self.now)

    def apply(self, operation: Operation) -> Row | None:
        match operation:
            case Put():
                return self.put(operation.name, operation.text, self.expiry(operation))
            case PutDefault():
                return self.put_default(operation)
            case Increment():
                return self.told(self.increment(operation))
            case Remove():
                return _bare(self.remove(operation.name))
            case RemoveAll():
                self.remove_all(operation.history)
                return None
            case Check():
                return _bare(self.check(operation))
            case CheckPrefix():
                self.check_prefix(operation)
                return None

    def told(self, row: Row) -> Row:
        """Count a value that is answered though the operation is short: a small commit must not have a huge answer."""
        self.answered += size_of(row.text)
        if self.answered > MOST_ANSWERED:
            raise ValueTooLarge(
                f"the values that set_default has found and increment has made in this commit are more than"
                f" {MOST_ANSWERED >> 20} MiB; make several commits of it"
            )
        return row

    def expiry(self, operation: Put | Increment) -> int | None:
        stored = self.get(operation.name) if operation.keep_expiry else None
        return operation.expires_at if stored is None else stored.expires_at

    def put(self, name: str, text: str | None, expires_at: int | None) -> Row:
        before = self.current.get(name)
        version, kept, ring = 1, 0, 0
        if before is not None and not expired(before, self.now):
            version, kept, ring = before.version + 1, before.kept + size_of(before.text), before.ring
        row = Row(name, text, self.revision, self.now, expires_at, self.writer, version, kept, ring)
        self.new[name] = row
        return row

    def put_default(self, operation: PutDefault) -> Row:
        stored = self.get(operation.name)
        return self.put(operation.name, operation.text, operation.expires_at) if stored is None else self.told(stored)

    def increment(self, operation: Increment) -> Row:
        stored = self.get(operation.name)
        number = 0 if stored is None else _integer(stored)
        total = number + operation.by
        if abs(total) >= _BOUND:
            raise InvalidValue(f"{operation.name!r} would have more than {MAX_DIGITS:,} digits; store it as a str")
        return self.put(operation.name, str(total), self.expiry(operation))

    def remove(self, name: str) -> Row | None:
        stored = self.get(name)
        if stored is not None:
            self.put(name, None, stored.expires_at)
        return stored

    def remove_all(self, history: bool) -> None:
        for name in sorted({*self.current, *self.new}):
            self.remove(name)
        if history:
            self.erased = sorted(self.current)

    def check(self, operation: Check) -> Row | None:
        stored = self.get(operation.name)
        if (stored.revision if stored else None) != operation.revision:
            raise Conflict(_mismatch(operation.name, operation.revision, stored), stored)  # type: ignore[arg-type]
        return stored

    def check_prefix(self, operation: CheckPrefix) -> None:
        found = {name for name in self.current if name.startswith(operation.prefix)}
        present = tuple((row.name, row.revision) for name in sorted(found) if (row := self.get(name)))
        if present != operation.found:
            raise Conflict(f"keys beginning with {operation.prefix!r} changed since they were read; read them again")

    def decision(self, revision: int, results: tuple[Row | None, ...]) -> Decision:
        rows: dict[str, Row] = {}
        past: list[Row] = []
        forget, gone = list(self.erased), set(self.erased)
        for name, row in self.new.items():
            before = self.current.get(name)
            if row.text is None and alive(before, self.now) is None:
                continue
            rows[name] = row
            if before is not None and expired(before, self.now):
                forget.append(name)
            elif before is not None and name not in gone:
                past.append(before)
        for name in self.erased:
            if name in rows:
                rows[name] = msgspec.structs.replace(rows[name], version=1, kept=0, ring=0)
        return Decision(revision + bool(rows), rows, past, forget, results, bool(self.erased), self.answered)


def _bare(row: Row | None) -> Row | None:
    """Return a row without its value: who removes or checks a key has no use for it."""
    return None if row is None else msgspec.structs.replace(row, text=None)


def _integer(row: Row) -> int:
    text = row.text or ""
    if not text.removeprefix("-").isdecimal():
        kind = {'"': "str", "[": "list", "{": "dict", "t": "bool", "f": "bool"}.get(text[:1], "float")
        raise InvalidValue(f"{row.name!r} holds a {kind}, not an int; increment works on int values only")
    return int(text)


def _mismatch(name: str, wanted: int | None, stored: Row | None) -> str:
    expected = "absent" if wanted is None else f"at revision {wanted}"
    actual = f"at revision {stored.revision}" if stored else "absent"
    return f"{name!r} was expected {expected} but is {actual}; read it again and decide anew"


def local(writer: Writer, scope: Scope) -> Writer:
    """Return a writer as stored in a scope: the task that wrote is left out where it is the scope itself."""
    return Writer(writer.kind, writer.attempt, writer.name) if writer.scope == scope else writer


def without_skew(commit: Commit, now: int) -> Commit:
    """Return a commit whose expiry times are by our clock, where its writer's is more than `MOST_SKEW` away from it.

    `sent_at` is 0 where it is not known, and in what is returned after a correction.
    """
    skew = now - commit.sent_at
    if not commit.sent_at or abs(skew) <= MOST_SKEW:
        return commit
    parts = [
        msgspec.structs.replace(part, operations=tuple([_shifted(operation, skew) for operation in part.operations]))
        for part in commit.parts
    ]
    return msgspec.structs.replace(commit, parts=tuple(parts), sent_at=0)


def _shifted(operation: Operation, skew: int) -> Operation:
    if not isinstance(operation, Put | PutDefault | Increment) or operation.expires_at is None:
        return operation
    return msgspec.structs.replace(operation, expires_at=_shown(operation.expires_at + skew))


def _shown(moment: int) -> int:
    return min(max(moment, FIRST_MOMENT), LAST_MOMENT)
