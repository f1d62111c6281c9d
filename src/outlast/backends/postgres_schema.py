"""The PostgreSQL database itself: where it is, connecting, its schema, and what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
import psycopg
from psycopg import errors as sqlstates

from ..config import without_password
from ..errors import BackendError, ConfigError, OutlastError
from ..requests import Inspected
from ..values import moment
from .execute import SQLITE, Execute
from .feed import FeedSQL
from .schema_steps import checksum, steps_of, version_of

__all__ = ["Place", "asked", "connect", "explained", "inspect", "is_pooled", "prepare", "upgrade"]

logger = logging.getLogger("outlast")

#: What processes that create or change the schema wait for each other by.
_LOCK = 0x4F54_4C53
#: Seconds a server may take to answer a new connection.
PATIENCE = 10
#: Seconds for which another's transaction may keep events from being told before that is a problem.
HELD_SECONDS = 10
#: The oldest server whose functions suffice: xid8, pg_current_xact_id.
OLDEST = 130000


class Place(msgspec.Struct, frozen=True):
    """A database and a schema in it; `url` is libpq's, `schema` "" where the role's search path says which."""

    url: str
    schema: str = ""

    @classmethod
    def of(cls, url: str) -> Place:
        """Read a store's URL: postgresql://, postgres:// or SQLAlchemy's postgresql+psycopg2://, with `?schema=`."""
        rest = url.partition("://")[2]
        base, _, query = rest.partition("?")
        given = parse_qsl(query, keep_blank_values=True)
        schema = next((value for name, value in given if name == "schema"), "")
        if any(name == "schema" and not value for name, value in given) or "\x00" in schema or len(schema) > 63:
            raise ConfigError(f"{without_password(url)!r}: schema= wants the name of a schema, 1 to 63 characters")
        query = urlencode([(name, value) for name, value in given if name != "schema"])
        return cls("postgresql://" + base + (f"?{query}" if query else ""), schema)

    @property
    def quoted_schema(self) -> str:
        """The schema as it is written in SQL."""
        return '"' + self.schema.replace('"', '""') + '"'

    def __str__(self) -> str:
        return without_password(self.url) + (f" (schema {self.schema})" if self.schema else "")


def connect(place: Place, patience: float) -> psycopg.Connection[Any]:
    """Open a connection on which every transaction is begun and ended by hand."""
    try:
        return psycopg.connect(
            place.url,
            autocommit=True,
            application_name="outlast",
            connect_timeout=max(2, min(PATIENCE, int(patience) or 2)),
        )
    except psycopg.OperationalError as error:
        if _is_refused(error):
            raise ConfigError(
                f"cannot use {place}: {_said(error)}; check the user, the password and the database's name"
            ) from error
        raise
    except (psycopg.ProgrammingError, UnicodeError, ValueError) as error:
        raise ConfigError(f"{without_password(place.url)!r} is not a URL of a PostgreSQL database: {error}") from error


def _is_refused(error: psycopg.Error) -> bool:
    """Say whether trying again is of no use: the server answers, but not to us."""
    text = str(error)
    refusals = ("password authentication failed", "no pg_hba.conf entry", "does not exist", "no password supplied")
    return any(refusal in text for refusal in refusals)


@contextmanager
def asked(place: Place, patience: float) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection for the length of a block; what goes wrong is said in words."""
    try:
        with connect(place, patience) as connection:
            yield connection
    except psycopg.Error as error:
        raise explained(error, place) from error


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Say whether a pooler stands between: then the process that answers is not the one that was connected to."""
    found = connection.execute("select pg_backend_pid()").fetchone()
    return found is not None and found[0] != connection.info.backend_pid


# --- The schema ------------------------------------------------------------------------------------------


def steps() -> list[str]:
    """Return the schema as numbered steps, the first one first."""
    return steps_of("postgres")


def prepare(connection: psycopg.Connection[Any], place: Place) -> None:
    """Make the schema where there is none yet; refuse one that is not as this version needs it."""
    if connection.info.server_version < OLDEST:
        raise ConfigError(f"{place} is PostgreSQL {connection.info.server_version // 10000}; outlast needs 13 or newer")
    version = current(connection, place)
    if version == 0:
        upgrade(connection, place)
    elif version < len(steps()):
        raise ConfigError(
            f"the schema of {place} is that of an older outlast (version {version}, this one needs {len(steps())}); "
            "run `outlast db upgrade` as a role that may change it"
        )


def current(connection: psycopg.Connection[Any], place: Place) -> int:
    """Return the schema's version, 0 where there is none; ConfigError for one that is newer or was changed."""
    found = connection.execute("select to_regclass(%s)", (_name(place, "meta"),)).fetchone()
    if found is None or found[0] is None:
        return 0
    facts = dict(connection.execute(f"select name, content from {_name(place, 'meta')}").fetchall())
    return version_of(facts, steps(), place) if int(facts.get("schema", "0")) else 0


def _name(place: Place, table: str) -> str:
    return f"{place.quoted_schema}.{table}" if place.schema else table


def upgrade(connection: psycopg.Connection[Any], place: Place) -> int:
    """Bring the schema forward in one transaction, alone; return the version it had."""
    texts = steps()
    try:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
            # Locking a table makes this process hear of tables made meanwhile; the advisory lock alone does not.
            connection.execute("select 1 from pg_catalog.pg_namespace limit 1")
            version = current(connection, place)
            if version < len(texts):
                if place.schema:
                    connection.execute(f"create schema if not exists {place.quoted_schema}")
                    connection.execute(f"set local search_path to {place.quoted_schema}")
                _apply(connection, texts, version)
    except sqlstates.InsufficientPrivilege as error:
        raise ConfigError(
            f"{place} has no outlast schema and this role may not make it ({_said(error)}); "
            "run `outlast db upgrade` once as a role that may, then grant this one the use of its tables"
        ) from error
    if version == 0:
        logger.warning("outlast: created a new store in %s", place)
    return version


def _apply(connection: psycopg.Connection[Any], texts: list[str], version: int) -> None:
    connection.execute('create table if not exists meta (name text collate "C" primary key, content text not null)')
    for text in texts[version:]:
        connection.execute(text)
    facts = {"schema": str(len(texts)), "schema_checksum": checksum(texts)}
    upsert = "insert into meta values (%s, %s) on conflict (name) do update set content = excluded.content"
    for fact in facts.items():
        connection.execute(upsert, fact)
    if version == 0:
        FeedSQL(_execute(connection), msgspec.structs.replace(SQLITE, number=("xid", "number"))).begin()


def _execute(connection: psycopg.Connection[Any]) -> Execute:
    def execute(sql: str, values: Any) -> list[Any]:
        cursor = connection.execute(sql.replace("?", "%s"), values)
        return cursor.fetchall() if cursor.description is not None else []

    return execute


# --- What is wrong, in words -----------------------------------------------------------------------------


def explained(error: psycopg.Error, place: Place) -> OutlastError:
    """Return a PostgreSQL error as one that says what to do."""
    match error:
        case sqlstates.UndefinedTable() | sqlstates.UndefinedColumn() | sqlstates.InvalidSchemaName():
            return ConfigError(f"{place} has no outlast schema, or another one: {_said(error)}; run `outlast db check`")
        case sqlstates.InsufficientPrivilege():
            return ConfigError(
                f"the role may not use the tables in {place}: {_said(error)}; grant it select, insert, update and "
                "delete on all of them and usage on their sequences"
            )
        case sqlstates.DiskFull():
            return BackendError(f"the disk of {place} is full; free some space and try again")
        case sqlstates.ReadOnlySqlTransaction():
            return BackendError(f"{place} is a read-only copy; name the primary server")
    return BackendError(f"PostgreSQL failed on {place}: {_said(error)}")


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def inspect(connection: psycopg.Connection[Any], place: Place, pooled: bool) -> Inspected:
    """Say what `outlast doctor` needs to know about this database."""
    sql = (
        "select (select count(*) from scope), (select count(*) from entry where value is not null),"
        " (select count(*) from entry where expires_at <= (extract(epoch from clock_timestamp()) * 1000000)::bigint),"
        " (select count(*) from history), pg_database_size(current_database()), current_schema(),"
        " (select count(*) from feed where xid >= pg_snapshot_xmax(pg_current_snapshot()))"
    )
    found = connection.execute(sql).fetchone()
    assert found is not None
    scopes, entries, unswept, past, size, schema, ahead = found
    version = connection.info.server_version
    facts = {
        "backend": f"PostgreSQL {version // 10000}.{version % 10000} (psycopg {psycopg.__version__})",
        "database": str(place),
        "schema": str(schema),
        "through a pooler": "yes" if pooled else "no",
        "database bytes": str(size),
        "schema version": str(len(steps())),
        "scopes": str(scopes),
        "entries": str(entries),
        "expired, not yet swept": str(unswept),
        "past versions": str(past),
    }
    problems = []
    if ahead:
        problems.append(
            f"{ahead} rows of the feed come from another database cluster, so that watchers would wait for ever; "
            "restore with `outlast restore`, which begins a new feed"
        )
    if (held_back := _held_back(connection)) is not None:
        problems.append(held_back)
    return Inspected(tuple(facts.items()), tuple(problems))


def _held_back(connection: psycopg.Connection[Any]) -> str | None:
    """Say whose open transaction keeps events from being told, where that has lasted."""
    found = connection.execute(
        "select min(at), (extract(epoch from clock_timestamp()) * 1000000)::bigint from feed"
        " where xid >= pg_snapshot_xmin(pg_current_snapshot()) and xid < pg_snapshot_xmax(pg_current_snapshot())"
    ).fetchone()
    if found is None or found[0] is None or found[1] - found[0] < HELD_SECONDS * 1_000_000:
        return None
    open_one = connection.execute(_OLDEST_OPEN).fetchone()
    who = "look for it in pg_stat_activity and pg_prepared_xacts" if open_one is None else open_one[0]
    return (
        f"events are held back since {moment(found[0])} by a transaction that is still open somewhere in this database "
        f"cluster ({who}); none is lost, and all come when it ends"
    )


_OLDEST_OPEN = """
select who from (
    select format('process %s of database "%s" and user "%s"; select pg_terminate_backend(%s) ends it',
        pid, datname, usename, pid) as who, age(backend_xid) as age
    from pg_stat_activity where backend_xid is not null
    union all
    select format('prepared as %s in database "%s"; rollback prepared ends it', gid, database), age(transaction)
    from pg_prepared_xacts
) as open_ones order by age desc limit 1"""
