"""What became of writes whose reply may have been lost: kept under an id for an hour, so that each happens once.

With a reply goes a digest of what was asked, so that an id that is used for something else is refused. A commit's has
no values in it: those it asked to write are in the request when that comes again, and the others it answered are kept
apart, each part's with its scope, and go where no past value of that is to be left. That it was carried out stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from ..errors import Conflict
from ..requests import Commit, Increment, Operation, Put, PutDefault, Receipt, Row
from .execute import Execute
from .rows import marks, padded

__all__ = ["KEPT", "ReceiptsSQL", "asked_of", "digest_of"]

#: Microseconds a receipt is kept.
KEPT = 3600 * 1_000_000

_encode = msgspec.json.Encoder().encode
_receipt = msgspec.json.Decoder(Receipt).decode
_read_texts = msgspec.json.Decoder(tuple[str | None, ...]).decode


def asked_of(commits: Iterable[Commit]) -> dict[str, str]:
    """Return a digest of what each commit that has an id asks for; Conflict where two of one id differ.

    Sent again, a commit has another `sent_at`, and what is to expire by default does so later.
    """
    asked: dict[str, str] = {}
    for commit in commits:
        if commit.commit_id is not None:
            digest = digest_of(
                [(part.scope, [_without_times(each) for each in part.operations]) for part in commit.parts]
            )
            if asked.setdefault(commit.commit_id, digest) != digest:
                raise _reused()
    return asked


def digest_of(request: Any) -> str:
    """Return what is kept of a request."""
    return blake2b(_encode(request), digest_size=16).hexdigest()


def _without_times(operation: Any) -> Any:
    timed = getattr(operation, "expires_at", None) is not None
    return msgspec.structs.replace(operation, expires_at=None) if timed else operation


def _reused() -> Conflict:
    return Conflict("this id was used before, for another request; send each under an id of its own, of random bytes")


class ReceiptsSQL:
    """Keeps receipts through one connection, in the transaction they are for."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute

    def find(self, commits: Iterable[Commit], asked: Mapping[str, str]) -> dict[str | None, Receipt | Conflict]:
        """Return what those commits that were carried out before are answered, given what `asked_of` says of all."""
        kept = {id: _receipt(text) for id, text in self._texts(asked)}
        return {each.commit_id: self._whole(each, kept[each.commit_id]) for each in commits if each.commit_id in kept}

    def keep(self, done: Iterable[tuple[Commit, Receipt, Sequence[int]]], asked: Mapping[str, str], now: int) -> None:
        """Keep receipts of commits, each with the ids of its parts' scopes; 0: no value of that part is to be left."""
        found = {commit.commit_id: (commit, receipt, scopes) for commit, receipt, scopes in done if commit.commit_id}
        ordered = sorted(found.items())  # who keeps some of the same waits for us, and we not for him
        for id, (commit, receipt, scopes) in ordered:
            for place, scope_id in enumerate(scopes):
                texts = [
                    _apart(*each) for each in zip(commit.parts[place].operations, receipt.rows[place], strict=True)
                ]
                if scope_id and texts.count(None) < len(texts):
                    self.keep_text(_values_of(id, place), "", _encode(texts).decode(), now, scope_id)
        for id, (_, receipt, _) in ordered:
            self.keep_text(id, asked[id], _encode(_without_values(receipt)).decode(), now)

    def text(self, id: str, asked: str) -> str | None:
        """Return the reply kept under an id as text; Conflict if it is of another request."""
        return dict(self._texts({id: asked})).get(id)

    def keep_text(self, id: str, asked: str, text: str, now: int, scope_id: int | None = None) -> None:
        """Keep a reply that is text already."""
        self.execute(
            "insert into receipt (id, scope_id, asked, reply, at) values (?, ?, ?, ?, ?)",
            (id, scope_id, asked, text, now),
        )

    def forget(self, scope_id: int) -> None:
        """Remove the values that go with a scope, because no past one of it is to be left."""
        self.execute("delete from receipt where scope_id = ?", (scope_id,))

    def _whole(self, commit: Commit, receipt: Receipt) -> Receipt | Conflict:
        """Return a receipt with its values; Conflict where one is gone that there is no answer without."""
        asked = {_values_of(commit.commit_id, place): "" for place in range(len(commit.parts))}
        found = {id: _read_texts(text) for id, text in self._texts(asked)}
        try:
            rows = [
                _filled(part.operations, rows, found.get(_values_of(commit.commit_id, place), ()))
                for place, (part, rows) in enumerate(zip(commit.parts, receipt.rows, strict=True))
            ]
        except Conflict as gone:
            return gone
        return Receipt(receipt.revisions, tuple(rows))

    def _texts(self, asked: Mapping[str, str]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for part in padded(list(asked)):
            for id, digest, text in self.execute(
                f"select id, asked, reply from receipt where id in ({marks(part)})", part
            ):
                if digest != asked[id]:
                    raise _reused()
                found.append((id, text))
        return found

    def oldest(self) -> int | None:
        """Return when the oldest receipt was written."""
        rows = self.execute("select min(at) from receipt", ())
        return rows[0][0] if rows else None

    def prune(self, now: int, limit: int, skip: str) -> int:
        """Remove at most so many receipts nobody can ask for any more, passing over locked ones; return how many."""
        rows = self.execute(f"select id from receipt where at <= ? order by at limit ?{skip}", (now - KEPT, limit))
        for (id,) in rows:
            self.execute("delete from receipt where id = ?", (id,))
        return len(rows)


# --- values, kept apart --------------------------------------------------------------------------------------


def _values_of(id: str | None, place: int) -> str:
    """Return under which id the values of a commit's part are kept; no commit's own id is like that."""
    return f"values {place} of {id}"


def _apart(operation: Operation, row: Row | None) -> str | None:
    """Return the value an operation was answered with, where there is no answer without it."""
    return row.text if row is not None and isinstance(operation, Increment | PutDefault) else None


def _without_values(receipt: Receipt) -> Receipt:
    rows = [tuple([None if row is None else _with_text(row, None) for row in part]) for part in receipt.rows]
    return Receipt(receipt.revisions, tuple(rows))


def _filled(
    operations: Sequence[Operation], rows: Sequence[Row | None], texts: Sequence[str | None]
) -> tuple[Row | None, ...]:
    kept = texts or (None,) * len(rows)
    return tuple(
        [
            None if row is None else _with_text(row, _text_of(operation, row, text))
            for operation, row, text in zip(operations, rows, kept, strict=True)
        ]
    )


def _text_of(operation: Operation, row: Row, kept: str | None) -> str | None:
    match operation:
        case Put():
            return operation.text
        case Increment() | PutDefault() if kept is None:
            raise Conflict(
                f"this commit was carried out when it was first sent; what {row.name!r} was then is gone, because state"
                " was cleared or removed since. Read what is there now; it is not carried out again under this id"
            )
    return kept  # of what was only removed or looked at, none has to be known


def _with_text(row: Row, text: str | None) -> Row:
    return msgspec.structs.replace(row, text=text)
