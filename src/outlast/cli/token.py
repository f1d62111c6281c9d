"""`outlast token`: who may use a server, as tokens: make, list and revoke them; rotate the secret that signs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import click

from ..store import Store
from ..token_requests import (
    BYTES,
    ROLES,
    CreateToken,
    ListTokens,
    MakeSecret,
    RevokeToken,
    TokenPage,
    TokenRole,
    TokenRow,
    digest_of,
    token_text,
)
from ..values import moment
from . import show
from .opening import opened
from .options import Commands, Place, as_json, as_mistake, at_place, duration
from .person import person
from .show import Column

__all__ = ["token"]

_MICROSECOND = timedelta(microseconds=1)
_LONGEST = timedelta(days=36_500)


def _lifetime(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    span = duration(ctx, param, value)
    if span is not None and not timedelta(0) < span <= _LONGEST:
        raise click.BadParameter(f"{value!r} is not 1s to {_LONGEST.days}d; without it a token is good until revoked")
    return span


@click.group(cls=Commands)
def token() -> None:
    """Say who may use a server: make tokens, list and revoke them.

    \b
    viewer   reads, secrets masked
    editor   also writes state, clears, marks and cancels
    admin    everything, tokens and deletion included
    worker   opens task scopes, and then reaches each with that attempt's own token only
    runner   also starts runs, begins, renews and reports attempts

    A program sends its token from OUTLAST_TOKEN or `[client] token`. On the machine of a server that listens to
    nobody else, none is needed by whoever started it.
    """


@token.command(short_help="Make a token and print it, this once.")
@at_place
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it is good for.")
@click.option("--dag", "dags", metavar="PATTERN", multiple=True, help="Only these dags (*, ?, […]); may be repeated.")
@click.option(
    "--expires", metavar="SPAN", callback=_lifetime, help="How long it is good: 12h, 30d; else until revoked."
)
@click.option("--name", metavar="TEXT", help="Whom the audit log names; by default you, as user@machine.")
@as_json
def create(
    place: Place, role: TokenRole, dags: tuple[str, ...], expires: timedelta | None, name: str | None, as_json: bool
) -> None:
    """Make a token and print it. The store keeps a digest only, so it cannot be shown again.

    Standard output gets the token and nothing else: TOKEN=$(outlast token create --role worker).

    \b
    outlast token create --role viewer --expires 30d --name ann
    outlast token create --role worker --dag 'sales_*' --dag nightly
    """
    made = token_text(role, os.urandom(BYTES))
    with opened(place.url, create=True) as store, as_mistake():
        request = CreateToken(
            digest_of(made), role, name or str(person().name), person(), dags or ("*",), _end(store, expires)
        )
        row: TokenRow = store.backend.send(request)
    if as_json:
        show.document({**_document(row, store.clock()), "token": made})
        return
    show.note(f"token {row.id}: {row.role} of {', '.join(row.dags)} as {row.name}, {_until(row)}; shown only this once")
    click.echo(made)


def _end(store: Store, expires: timedelta | None) -> int | None:
    return None if expires is None else store.clock() + expires // _MICROSECOND


@token.command(short_help="List tokens.")
@at_place
@click.option("--all", "everything", is_flag=True, help="Also those that are revoked or expired.")
@as_json
def ls(place: Place, everything: bool, as_json: bool) -> None:
    """List tokens, oldest first: role, dags, expiry and last use (to the minute), but never the tokens themselves.

    \b
    outlast token ls
    outlast token ls --all --json
    """
    with opened(place.url, create=False) as store:
        now = store.clock()
        rows = [row for row in _rows(store) if everything or row.good(now)]
    if as_json:
        show.document([_document(row, now) for row in rows])
    elif not rows:
        show.note("there is no token; `outlast token create --role viewer` makes one")
    else:
        columns = [Column("ID", True), Column("ROLE"), Column("NAME"), Column("DAGS"), Column("CREATED", narrow="keep")]
        columns += [Column("EXPIRES", narrow="keep"), Column("USED", narrow="keep"), Column("STATUS", narrow="keep")]
        show.table(columns, [_cells(row, now) for row in rows])


def _rows(store: Store) -> list[TokenRow]:
    rows: list[TokenRow] = []
    after: int | None = 0
    while after is not None:
        page: TokenPage = store.backend.send(ListTokens(after))
        rows, after = [*rows, *page.rows], page.after
    return rows


@token.command(short_help="End tokens for good.")
@at_place
@click.argument("ids", metavar="ID...", nargs=-1, type=click.IntRange(min=1), required=True)
def revoke(place: Place, ids: tuple[int, ...]) -> None:
    """End tokens for good, by the ids that `ls` shows; servers refuse them within a second.

    So are the tokens of attempts that were begun with them, and sessions of the page.

    \b
    outlast token revoke 3
    """
    with opened(place.url, create=False) as store:
        for id in ids:
            row: TokenRow = store.backend.send(RevokeToken(id, person()))
            show.line(f"token {row.id} ({row.role}, {row.name}) is revoked")


@token.command("rotate-secret", short_help="Sign attempts' tokens with a new secret.")
@at_place
def rotate_secret(place: Place) -> None:
    """Sign attempts' tokens and the page's sessions with a new secret from now on.

    What the one before has signed stays good, so nothing that runs is disturbed; what an older one has signed is
    refused from now on. To make worthless whatever was signed so far, rotate twice: workers then have to open the
    scopes of running attempts anew, and people to log in again.

    \b
    outlast token rotate-secret
    """
    with opened(place.url, create=True) as store:
        made = store.backend.send(MakeSecret(person()))
    show.line(f"secret {made.id} signs from now on; what the one before has signed stays good")


# --- What is shown ---------------------------------------------------------------------------------------------


def _until(row: TokenRow) -> str:
    return "good until revoked" if row.expires_at is None else f"good until {show.when(moment(row.expires_at))}"


def _status(row: TokenRow, now: int) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "good" if row.good(now) else "expired"


def _cells(row: TokenRow, now: int) -> list[str]:
    times = [show.age(_moment(at), absent) for at, absent in ((row.expires_at, "never"), (row.used_at, "never"))]
    created = show.age(moment(row.created_at))
    return [str(row.id), row.role, row.name, " ".join(row.dags), created, *times, _status(row, now)]


def _document(row: TokenRow, now: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "role": row.role,
        "name": row.name,
        "dags": row.dags,
        "status": _status(row, now),
        "created_at": moment(row.created_at),
        "expires_at": _moment(row.expires_at),
        "revoked_at": _moment(row.revoked_at),
        "used_at": _moment(row.used_at),
    }


def _moment(at: int | None) -> Any:
    return None if at is None else moment(at)
