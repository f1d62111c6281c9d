"""What people changed: one row a change, in the transaction that makes it; secret values as a digest only.

The digest is keyed with a secret of the store: equal values look equal, and nobody finds out which by trying.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..people_requests import AuditPage, AuditRow, ListAudit
from .execute import Execute
from .paging import page_of

__all__ = ["Audit"]

#: A longer value is audited as its size and digest.
LONGEST = 64 * 1024
#: What the key of digests is called among the store's facts. No backup has it: a restored store begins another.
KEY = "audit_key"


class Audit:
    """Writes and reads the audit log through one connection."""

    def __init__(self, execute: Execute, secret_keys: Sequence[str]) -> None:
        self.execute, self.secret_keys = execute, tuple(secret_keys)

    def record(
        self,
        now: int,
        who: str,
        action: str,
        place: str,
        *,
        dag_id: str | None = None,
        name: str | None = None,
        before: str | None = None,
        after: str | None = None,
    ) -> None:
        """Add a row; `before` and `after` are JSON text, None where there is nothing."""
        self.execute(
            "insert into audit (at, who, action, place, dag_id, name, old, new) values (?, ?, ?, ?, ?, ?, ?, ?)",
            (now, who, action, place, dag_id, name, self._shown(name, before), self._shown(name, after)),
        )

    def _shown(self, name: str | None, text: str | None) -> str | None:
        if text is None:
            return None
        secret = name is not None and any(fnmatchcase(name, pattern) for pattern in self.secret_keys)
        if not secret and len(text) <= LONGEST:
            return text
        data = text.encode()
        digest = hashlib.blake2b(data, digest_size=16, key=self._key()).hexdigest()
        return f'"{len(data)} bytes, keyed digest {digest}"'

    def _key(self) -> bytes:
        """Return the key, made when it is first needed; not remembered, as the transaction that makes it may fail."""
        asked = "select content from meta where name = ?"
        found = self.execute(asked, (KEY,))
        if not found:
            made = (KEY, os.urandom(32).hex())
            self.execute("insert into meta (name, content) values (?, ?) on conflict (name) do nothing", made)
            found = self.execute(asked, (KEY,))
        return bytes.fromhex(found[0][0])

    def list(self, request: ListAudit, now: int) -> AuditPage:
        """Return one page, newest first: of as many rows as were asked for, or of as many as texts leave room for."""
        where, values = ("", []) if request.dag_id is None else (" and dag_id = ?", [request.dag_id])
        begin, limit = request.before if request.before is not None else 2**62, request.limit
        sizes = self.execute(
            "select id, coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0) from audit"
            f" where id < ?{where} order by id desc limit ?",
            (begin, *values, limit),
        )
        page, more = page_of(each for each in sizes)
        if not page:
            return AuditPage(())
        rows = self.execute(
            "select id, at, who, action, place, name, old, new, dag_id from audit"
            f" where id < ? and id >= ?{where} order by id desc",
            (begin, page[-1][0], *values),
        )
        return AuditPage(tuple(AuditRow(*row) for row in rows), page[-1][0] if more or len(page) == limit else None)
