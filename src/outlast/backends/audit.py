"""What people changed: one row a change, in the transaction that makes it; secret values as a digest only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..run_requests import AuditPage, AuditRow, ListAudit
from .execute import Execute

__all__ = ["Audit"]

#: A longer value is audited as its size and digest.
LONGEST = 64 * 1024


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
        return f'"{len(data)} bytes, blake2b {hashlib.blake2b(data, digest_size=16).hexdigest()}"'

    def list(self, request: ListAudit, now: int) -> AuditPage:
        """Return one page, newest first."""
        where, values = ("", []) if request.dag_id is None else (" and dag_id = ?", [request.dag_id])
        rows = self.execute(
            f"select id, at, who, action, place, name, old, new, dag_id from audit where id < ?{where}"
            " order by id desc limit ?",
            (request.before if request.before is not None else 2**62, *values, request.limit),
        )
        last = rows[-1][0] if len(rows) == request.limit else None
        return AuditPage(tuple(AuditRow(*row) for row in rows), last)
