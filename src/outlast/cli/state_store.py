"""`outlast state-store`: look after the place where state is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from ..requests import FoundRow, Swept
from ..values import TaskScope, moment
from . import show
from .opening import opened
from .options import Commands, Place, as_json, at_place
from .show import Column

__all__ = ["state_store"]


@click.group("state-store", cls=Commands)
def state_store() -> None:
    """Look after the place where state is kept."""


@state_store.command(short_help="Free the space of what has expired.")
@at_place
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--verbose", "-v", is_flag=True, help="Say after each batch how much has been deleted.")
@as_json
def clean(place: Place, dry_run: bool, verbose: bool, as_json: bool) -> None:
    """Free the space of what has expired: entries with their history, and task scopes left with nothing.

    Nothing depends on it, since what has expired is gone at that moment for every reader; writers also clean up
    as they go. It works in batches of `[state_store] state_cleanup_batch_size`, each a commit of its own, so that
    writers need not wait and Ctrl-C loses nothing.

    \b
    outlast state-store clean --dry-run
    outlast state-store clean -v
    """
    with opened(place.url, create=False) as store:
        swept = store.sweep(dry_run=dry_run, progress=None if dry_run else _progress(verbose))
    if sys.stderr.isatty() and not dry_run:
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        show.document(_swept_document(swept, dry_run))
    elif swept.entries == swept.scopes == 0:
        show.line("Nothing to delete.")
    elif dry_run:
        _show_rows(swept)
    else:
        scopes = f" and {show.count(swept.scopes, 'empty scope')}" if swept.scopes else ""
        show.line(f"Deleted {show.count(swept.entries, 'expired entry', 'expired entries')}{scopes}.")


def _progress(verbose: bool) -> Callable[[int], None]:
    """Return what tells a person how far it is: lines if asked, else one line that a terminal rewrites."""

    def tell(deleted: int) -> None:
        if verbose:
            show.note(f"deleted {deleted:,} so far")
        elif sys.stderr.isatty():
            click.echo(f"\rdeleted {deleted:,} so far …", nl=False, err=True)

    return tell


def _show_rows(swept: Swept) -> None:
    show.line(f"Would delete {show.count(swept.entries, 'expired entry', 'expired entries')}:")
    columns = [
        Column("DAG"),
        Column("RUN"),
        Column("TASK"),
        Column("INDEX", True),
        Column("KEY"),
        Column("EXPIRED", narrow="keep"),
    ]
    show.table(columns, [_row(found) for found in swept.rows])


def _row(found: FoundRow) -> list[str]:
    scope = found.scope
    assert isinstance(scope, TaskScope)  # what an asset keeps does not expire
    place = [scope.dag_id, scope.run_id, scope.task_id, scope.item or str(scope.map_index)]
    return [*place, found.row.name, show.age(moment(found.row.expires_at or 0))]


def _swept_document(swept: Swept, dry_run: bool) -> dict[str, Any]:
    rows = [
        {
            "scope": show.scope_document(found.scope),
            "key": found.row.name,
            "expires_at": moment(found.row.expires_at or 0),
        }
        for found in swept.rows
    ]
    return {"dry_run": dry_run, "entries": swept.entries, "scopes": swept.scopes, "rows": rows}
