"""What may be seen of a reply: rows of other DAGs are left out, values of secret keys are masked; pure.

A list keeps its place to go on from, so a page may be shorter than asked for, or empty, and not be the last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from .. import deferral_requests, event_requests, people_requests, requests, run_requests, token_requests
from ..errors import Conflict, OutlastError
from ..event_requests import EventRow
from ..people_requests import AuditRow
from ..requests import FoundRow, Row
from ..run_requests import RunRow
from ..values import Scope, TaskScope
from .identity import Who

__all__ = ["MASK", "MASKED", "SEEN", "is_secret", "may_reveal", "told_size", "visible", "visible_error"]

T = TypeVar("T", bound=msgspec.Struct)

MASK: Final = "***"
#: The mask as stored JSON text.
MASKED: Final = f'"{MASK}"'
#: How the audit log holds a value that it does not keep.
_DIGEST = re.compile(r'"\d+ bytes, keyed digest [0-9a-f]+"')
#: What people do to tokens and secrets, which is for those who may do it too.
_TOKEN_ACTIONS: Final = frozenset({"create token", "revoke token", "rotate secret"})


def is_secret(name: str, secret_keys: Sequence[str]) -> bool:
    """Say whether the value under a key is one to be masked (`[state_store] secret_keys`)."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in secret_keys)


def may_reveal(who: Who) -> bool:
    """Say whether somebody gets secret values if they ask; at the workers' door, attempts need not."""
    return who.role not in ("viewer", "editor")


def told_size(size: int, secret_keys: Sequence[str]) -> int:
    """Return a sum of bytes as it is told where values may be masked: in whole KiB, lest it be that of one value."""
    return -(-size // 1024) * 1024 if secret_keys else size


def visible(reply: Any, who: Who, secret_keys: Sequence[str] = (), reveal: bool = False) -> Any:
    """Return a reply as `who` may see it; `reveal` leaves secret values as they are, but for viewers and editors."""
    return SEEN[type(reply)](reply, _Eye(who, tuple(secret_keys), reveal))


def visible_error(error: OutlastError, who: Who, secret_keys: Sequence[str] = (), reveal: bool = False) -> OutlastError:
    """Return an error as `who` may see it: a Conflict carries a row."""
    if isinstance(error, Conflict) and isinstance(error.current, Row):
        return Conflict(error.message, _Eye(who, tuple(secret_keys), reveal).row(error.current))
    return error


class _Eye:
    """How one asker sees rows."""

    def __init__(self, who: Who, secret_keys: tuple[str, ...], reveal: bool) -> None:
        self.who = who
        self.secret_keys = () if reveal and may_reveal(who) else secret_keys
        self.hides_writers = who.role != "attempt" and not who.sees_all
        self.changes_rows = bool(self.secret_keys) or self.hides_writers

    def sees(self, scope: Scope | None) -> bool:
        return not isinstance(scope, TaskScope) or self.who.may_see(scope.dag_id)

    def is_secret(self, name: str | None) -> bool:
        return name is not None and is_secret(name, self.secret_keys)

    def row(self, row: Row) -> Row:
        if self.hides_writers and not self.sees(row.writer.scope):
            row = _replaced(row, writer=_replaced(row.writer, scope=None))
        if row.text is not None and self.is_secret(row.name):
            row = _replaced(row, text=MASKED, kept=0)
        return row

    def rows(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        return tuple(map(self.row, rows)) if self.changes_rows else rows

    def found(self, rows: tuple[FoundRow, ...]) -> tuple[FoundRow, ...]:
        return tuple(_replaced(found, row=self.row(found.row)) for found in rows if self.sees(found.scope))

    def run(self, run: RunRow) -> RunRow:
        return _replaced(run, params=self.members(run.params)) if self.secret_keys else run

    def members(self, text: str) -> str:
        """Mask the members of a JSON object that have a secret key's name."""
        try:
            parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:  # no object
            return text
        if not any(map(self.is_secret, parts)):
            return text
        masked = msgspec.Raw(MASKED.encode())
        return msgspec.json.encode(
            {name: masked if self.is_secret(name) else part for name, part in parts.items()}
        ).decode()


def _same(reply: Any, eye: _Eye) -> Any:
    return reply


def _rows(reply: Any, eye: _Eye) -> Any:
    return _replaced(reply, rows=eye.rows(reply.rows)) if eye.changes_rows else reply


def _receipt(reply: requests.Receipt, eye: _Eye) -> Any:
    if not eye.changes_rows:
        return reply
    return _replaced(
        reply, rows=tuple(tuple(None if row is None else eye.row(row) for row in rows) for rows in reply.rows)
    )


def _found(reply: Any, eye: _Eye) -> Any:
    return _replaced(reply, rows=eye.found(reply.rows))


def _swept(reply: requests.Swept, eye: _Eye) -> Any:
    """The numbers are of everything: what has expired is nobody's any more."""
    return _replaced(reply, rows=eye.found(reply.rows))


def _scopes(reply: requests.ScopePage, eye: _Eye) -> Any:
    seen = (info for info in reply.scopes if eye.sees(info.scope))
    if not eye.secret_keys:
        return _replaced(reply, scopes=tuple(seen))
    return _replaced(
        reply, scopes=tuple(_replaced(info, bytes=told_size(info.bytes, eye.secret_keys)) for info in seen)
    )


def _feed(reply: requests.FeedPage, eye: _Eye) -> Any:
    rows = [
        happened if happened.row is None else _replaced(happened, row=eye.row(happened.row))
        for happened in reply.rows
        if eye.sees(happened.scope) and (happened.run is None or eye.who.may_see(happened.run[0]))
    ]
    return _replaced(reply, rows=tuple(rows))


def _run(reply: RunRow, eye: _Eye) -> Any:
    return eye.run(reply)


def _with_run(reply: Any, eye: _Eye) -> Any:
    return _replaced(reply, run=eye.run(reply.run))


def _runs(reply: run_requests.RunPage, eye: _Eye) -> Any:
    return _replaced(
        reply, runs=tuple((eye.run(run), counts) for run, counts in reply.runs if eye.who.may_see(run.dag_id))
    )


def _dags(reply: run_requests.DagPage, eye: _Eye) -> Any:
    return _replaced(reply, dags=tuple(row for row in reply.dags if eye.who.may_see(row.dag_id)))


def _pruned(reply: run_requests.Pruned, eye: _Eye) -> Any:
    return _replaced(reply, runs=tuple(run for run in reply.runs if eye.who.may_see(run[0])))


def _deferred(reply: deferral_requests.DeferredRows, eye: _Eye) -> Any:
    return _replaced(reply, rows=tuple(row for row in reply.rows if eye.sees(row.scope)))


def _events(reply: event_requests.Events, eye: _Eye) -> Any:
    return _replaced(reply, rows=tuple(_event(row, eye) for row in reply.rows))


def _event(row: EventRow, eye: _Eye) -> EventRow:
    """An event is its asset's, which everybody sees; the task it came from may be another matter."""
    source = row.source if eye.sees(row.source) else None
    return _replaced(row, source=source, extra=eye.members(row.extra) if eye.secret_keys else row.extra)


def _audit(reply: people_requests.AuditPage, eye: _Eye) -> Any:
    return _replaced(reply, rows=tuple(_audited(row, eye) for row in reply.rows if _is_audit_seen(row, eye.who)))


def _is_audit_seen(row: AuditRow, who: Who) -> bool:
    if row.dag_id is not None:
        return who.may_see(row.dag_id)
    return row.action not in _TOKEN_ACTIONS or (who.role == "admin" and who.sees_all)


def _audited(row: AuditRow, eye: _Eye) -> AuditRow:
    """Mask what was audited before its key became a secret one; digests stay."""
    if not eye.is_secret(row.name):
        return row
    before, after = (text if text is None or _DIGEST.fullmatch(text) else MASKED for text in (row.before, row.after))
    return _replaced(row, before=before, after=after)


def _replaced(value: T, **changes: Any) -> T:
    return msgspec.structs.replace(value, **changes)


Seeing: TypeAlias = Callable[[Any, _Eye], Any]

#: Every reply there is; one that is not here goes to nobody (KeyError).
SEEN: Final[dict[type, Seeing]] = {
    requests.Opened: _same,
    requests.Found: _rows,
    requests.Counted: _same,
    requests.Receipt: _receipt,
    requests.Versions: _rows,
    requests.Changed: _rows,
    requests.FindPage: _found,
    requests.ScopePage: _scopes,
    requests.Swept: _swept,
    requests.Merged: _same,
    requests.Forgotten: _same,
    requests.Inspected: _same,
    requests.FeedPage: _feed,
    run_requests.RunRow: _run,
    run_requests.RunDetail: _with_run,
    run_requests.RunPage: _runs,
    run_requests.DagPage: _dags,
    run_requests.Held: _with_run,
    people_requests.Touched: _with_run,
    run_requests.Pruned: _pruned,
    run_requests.TaskRow: _same,
    run_requests.Attempts: _same,
    run_requests.Expanded: _same,
    deferral_requests.Resumption: _same,
    deferral_requests.DeferredRows: _deferred,
    run_requests.Results: _same,
    event_requests.Events: _events,
    event_requests.HeldWatchers: _same,
    people_requests.AuditPage: _audit,
    token_requests.TokenRow: _same,
    token_requests.TokenPage: _same,
    token_requests.SecretMade: _same,
}
