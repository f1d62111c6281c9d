"""`outlast db`: make a store's schema, bring it forward, or check it."""

from __future__ import annotations

import click

from .. import config as configuration
from ..backends import schema_of, upgrade
from ..config import Config
from ..errors import ConfigError
from . import show
from .options import Commands, Place, as_json, at_place

__all__ = ["db"]


@click.group(cls=Commands)
def db() -> None:
    """Make a database's schema, bring it forward, or check it.

    Opening a store makes a schema that is not there yet, and brings a SQLite file forward. A PostgreSQL schema that
    is there is changed by `outlast db upgrade` only, run by a role that may; programs may then use one that may not.
    """


def _meant(place: Place) -> tuple[str, Config]:
    settings = configuration.load()
    return configuration.resolve_url(place.url, settings)[0], settings


@db.command("upgrade", short_help="Make the schema, or bring it forward.")
@at_place
@as_json
def upgrading(place: Place, as_json: bool) -> None:
    """Make the schema, or bring it to the version this outlast needs, in one transaction.

    Several may do so at once: one does the work, the others wait for it. Done already, nothing happens.

    \b
    outlast db upgrade --store 'postgresql://owner@db.example/app?schema=outlast'
    """
    before = upgrade(*_meant(place))
    if as_json:
        show.document(_document(before.store, before.needed, before.needed))
    elif before.version == before.needed:
        show.line(f"{before.store}: schema version {before.needed} already")
    else:
        since = f" (was {before.version})" if before.version else ""
        show.line(f"{before.store}: schema version {before.needed}{since}")


@db.command(short_help="Print the schema's version.")
@at_place
@as_json
def current(place: Place, as_json: bool) -> None:
    """Print the schema's version and change nothing; 0 where there is none.

    \b
    outlast db current
    """
    found = schema_of(*_meant(place))
    if as_json:
        show.document(_document(found.store, found.version, found.needed))
    else:
        show.line(str(found.version))


@db.command(short_help="Say whether the schema is as this outlast needs it.")
@at_place
def check(place: Place) -> None:
    """Say whether the schema is as this outlast needs it; change nothing.

    Exit 0: it is. Exit 78: there is none, it is older or newer, or it was changed by hand.

    \b
    outlast db check && systemctl start outlast
    """
    found = schema_of(*_meant(place))
    if found.version == 0:
        raise ConfigError(f"{found.store} has no outlast schema; run `outlast db upgrade` as a role that may make it")
    if found.version < found.needed:
        raise ConfigError(
            f"the schema of {found.store} is version {found.version}, and this outlast needs {found.needed}; "
            "run `outlast db upgrade` as a role that may change it"
        )
    show.line(f"{found.store}: schema version {found.version}, as it should be")


def _document(store: str, version: int, needed: int) -> dict[str, object]:
    return {"store": store, "version": version, "needed": needed}
