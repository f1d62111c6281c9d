"""What became of writes whose reply may have been lost: kept under an id for an hour, so that each happens once.

With a reply goes a digest of what was asked, so that an id that is used for something else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from ..errors import Conflict
from ..requests import Commit, Receipt
from .execute import Execute
from .rows import marks, padded

__all__ = ["KEPT", "ReceiptsSQL", "asked_of", "digest_of"]

#: Microseconds a receipt is kept.
KEPT = 3600 * 1_000_000

_encode = msgspec.json.Encoder().encode
_receipt = msgspec.json.Decoder(Receipt).decode


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

    def find(self, asked: Mapping[str, str]) -> dict[str | None, Receipt]:
        """Return the receipts of those commits that were carried out before, given what `asked_of` says of all."""
        return {id: _receipt(text) for id, text in self._texts(asked)}

    def keep(self, receipts: Mapping[str, tuple[Receipt, int]], asked: Mapping[str, str], now: int) -> None:
        """Keep what became of commits under their ids, each with the id of the scope it goes with."""
        for id in sorted(receipts):  # who keeps some of the same waits for us, and we not for him
            receipt, scope_id = receipts[id]
            self.keep_text(id, asked[id], _encode(receipt).decode(), now, scope_id)

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
        """Remove the receipts that go with a scope, because no past value of it is to be left."""
        self.execute("delete from receipt where scope_id = ?", (scope_id,))

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

    def prune(self, now: int, limit: int) -> int:
        """Remove at most so many receipts nobody can ask for any more; return how many."""
        rows = self.execute("select id from receipt where at <= ? order by at limit ?", (now - KEPT, limit))
        for (id,) in rows:
            self.execute("delete from receipt where id = ?", (id,))
        return len(rows)
