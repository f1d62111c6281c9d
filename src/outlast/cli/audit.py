"""`outlast audit`: what people have changed, newest first."""

from __future__ import annotations

import re
from typing import Any

import click
import msgspec

from ..config import Config
from ..people_requests import AuditRow
from ..values import moment
from . import show
from .opening import opened
from .options import Command, Place, as_json, at_place
from .person import person
from .show import Column

__all__ = ["audit"]

#: How the log holds a value that it does not keep: `"12 bytes, keyed digest …"`.
_DIGEST = re.compile(r'"\d+ bytes, keyed digest [0-9a-f]+"')
#: Characters of a value in the table, at most.
_WIDTH = 40


@click.command(cls=Command, short_help="Show what people have changed, and when.")
@at_place
@click.option("--dag", metavar="DAG", help="Only what belongs to this dag; a name, or a pattern with * and ?.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Stop after so many.")
@as_json
def audit(place: Place, dag: str | None, limit: int, as_json: bool) -> None:
    """Show what people have changed, newest first: who, when, where, and what was there before and after.

    Keys that `[state_store] secret_keys` names, and values over 64 KiB, are told by size and digest only. What tasks
    write by themselves is not here: `outlast state history` shows that.

    \b
    outlast audit
    outlast audit --dag nightly --limit 10 --json
    """
    with opened(place.url, create=False) as store:
        rows = store.runs_as(person()).audit(dag_id=dag, limit=limit)
        pairs = [(row, _is_hidden(row, store.config)) for row in rows]
    if as_json:
        show.document([_document(*pair) for pair in pairs])
    elif not rows:
        show.note("nobody has changed anything")
    else:
        columns = [Column("WHEN", narrow="keep"), Column("WHO"), Column("ACTION"), Column("WHERE"), Column("KEY")]
        show.table(
            [*columns, Column("BEFORE", narrow="cut"), Column("AFTER", narrow="cut")], [_cells(*pair) for pair in pairs]
        )


def _is_hidden(row: AuditRow, config: Config) -> bool:
    """Say whether values were audited before their key became a secret one."""
    texts = [text for text in (row.before, row.after) if text is not None]
    secret = row.name is not None and show.is_secret(config, row.name, reveal=False)
    return secret and not all(_DIGEST.fullmatch(text) for text in texts)


def _cells(row: AuditRow, hidden: bool) -> list[str]:
    values = [show.MASK if hidden and text is not None else text or "" for text in (row.before, row.after)]
    where = [show.age(moment(row.at)), row.who, row.action, row.place, row.name or ""]
    return [*where, *(show.cut(value, _WIDTH) for value in values)]


def _document(row: AuditRow, hidden: bool) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": moment(row.at),
        "who": row.who,
        "action": row.action,
        "place": row.place,
        "dag_id": row.dag_id,
        "key": row.name,
        "before": _json(row.before, hidden),
        "after": _json(row.after, hidden),
        "masked": hidden,
    }


def _json(text: str | None, hidden: bool) -> msgspec.Raw | None:
    return None if text is None or hidden else msgspec.Raw(text.encode())
