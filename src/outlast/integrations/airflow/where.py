"""Which store is meant, and what holds for it: Airflow's section `[outlast]`, read when first needed.

`[outlast] url` (`AIRFLOW__OUTLAST__URL`) or `conn_id` switches outlast on; OUTLAST_URL does too. Retention and the
like are taken from `[state_store]`, where Airflow 3.3 has them, so that the same file serves it later.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ...errors import ConfigError

if TYPE_CHECKING:
    from ...config import Config
    from ...store import Store

__all__ = [
    "SOON",
    "clear_on_success",
    "hidden_connection",
    "is_file",
    "is_native",
    "is_on",
    "make_store",
    "on_error",
    "open_store",
    "option",
]

#: Seconds for which a store is waited for that can be done without.
SOON = 3.0

#: Settings of outlast's own that Airflow 3.3 has under the same name.
_SHARED = ("default_retention_days", "max_value_storage_bytes", "clear_on_success")


def option(name: str, section: str = "outlast") -> str | None:
    """Return a setting of Airflow's configuration as text; None where there is none, or an empty one."""
    value = _conf().get(section, name, fallback=None)
    return value.strip() or None if isinstance(value, str) else None


@functools.cache
def is_on() -> bool:
    """Say whether a store is named at all; nothing is opened."""
    return bool(_url() or option("conn_id"))


@functools.cache
def is_native() -> bool:
    """Say whether this Airflow has a task state store of its own: 3.3 and later."""
    from airflow import __version__  # type: ignore[import-not-found, unused-ignore]

    return tuple(int(part) for part in __version__.split(".")[:2]) >= (3, 3)


def on_error() -> Literal["fail", "disable"]:
    """Return what a store that cannot be opened does to the task that wants it."""
    found = option("on_error") or "fail"
    if found not in ("fail", "disable"):
        raise ConfigError(f"Airflow's [outlast] on_error is {found!r}; write fail or disable")
    return cast(Literal["fail", "disable"], found)


@functools.cache
def clear_on_success() -> bool:
    """Say whether a task instance's entries go when it has succeeded."""
    return settings(None).state_store.clear_on_success


@functools.cache
def open_store() -> Store:
    """Return the store of this process; its connections are opened when used, and closed when idle."""
    return make_store()


def make_store(patience: float | None = None) -> Store:
    """Open the store once more; one that is away, and an answer, are waited for at most `patience` seconds."""
    import msgspec

    from ...store import connect

    url, config = _place()
    if patience is not None:
        client = config.client
        shorter = min(client.retry_for, patience), min(client.timeout, patience)
        client = msgspec.structs.replace(client, retry_for=shorter[0], timeout=shorter[1])
        config = msgspec.structs.replace(config, client=client)
    return connect(url, config=config)


def hidden_connection() -> str | None:
    """Return why the connection `[outlast] conn_id` names cannot be looked for from here; None where it can."""
    try:
        if conn_id := option("conn_id"):
            _look_up(conn_id)
    except _Hidden as hidden:
        return str(hidden)
    except Exception:  # opening the store says it
        return None
    return None


def is_file() -> bool:
    """Say whether the store is a file, which is not away for a while: it is waited for only where others write."""
    from ...backends import file_of

    return file_of(*_place()) is not None


def settings(token: str | None) -> Config:
    """Return outlast's own settings, from an outlast.toml in Airflow's home and from variables, with Airflow's."""
    from ... import config as configuration

    told = {f"OUTLAST__STATE_STORE__{name.upper()}": option(name, "state_store") for name in _SHARED}
    environ = {name: value for name, value in told.items() if value is not None} | dict(os.environ)
    if token is not None:
        environ[configuration.TOKEN_VARIABLE] = token
    return configuration.load(_home(), environ)


def _url() -> str | None:
    return option("url") or os.environ.get("OUTLAST_URL", "").strip() or None


def _home() -> Path:
    return Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()


@functools.cache
def _place() -> tuple[str, Config]:
    """Return the store's URL, and the settings it is opened with; a connection of Airflow's is looked up once."""
    url, token = _url(), option("token")
    if conn_id := option("conn_id"):
        named, password = _connection(conn_id)
        url, token = url or named, token or password
    if url is None:
        raise ConfigError("no store is named; set [outlast] url in airflow.cfg, or AIRFLOW__OUTLAST__URL")
    config = settings(token)
    _check_place(url, config)
    return url, config


def _check_place(url: str, config: Config) -> None:
    """Refuse a path that would mean another file in each process: their current folders differ."""
    from ...backends import file_of

    file = file_of(url, config)
    path = url[7:].removeprefix("///") if url[:7].lower() == "sqlite:" else url
    if file is None or os.path.isabs(os.path.expanduser(path)):
        return
    raise ConfigError(
        f"[outlast] url is {url!r}, a path that depends on the folder a worker happens to be in; "
        f"write an absolute one, such as {_home() / 'outlast.db'}"
    )


def _connection(conn_id: str) -> tuple[str, str | None]:
    """Return the URL a connection of Airflow's names, and its password where that is a token."""
    try:
        found = _look_up(conn_id)
    except _Hidden as hidden:
        raise ConfigError(str(hidden)) from hidden
    kind, password = str(found.conn_type or ""), found.password or None
    if kind in ("outlast", "http", "https", "generic"):
        scheme = "https" if kind == "https" or str(found.schema or "") == "https" else "http"
        return f"{scheme}://{_authority(found.host, found.port)}", password
    if kind in ("postgres", "postgresql"):
        return _postgres(found), None
    if kind == "sqlite":
        return str(found.host or found.schema or ""), None
    raise ConfigError(
        f"connection {conn_id!r} ([outlast] conn_id) has type {kind!r}; use http or https (a server, its token as the "
        "password), postgres, or sqlite (the file as the host)"
    )


class _Hidden(Exception):
    """A connection is neither among variables nor in a secrets backend, and Airflow's database is out of reach."""


def _look_up(conn_id: str) -> Any:
    try:
        from airflow.sdk import BaseHook  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from airflow.hooks.base import BaseHook  # type: ignore[import-not-found, unused-ignore]
    try:
        return BaseHook.get_connection(conn_id)
    except Exception as error:
        is_missing = type(error).__name__ == "AirflowNotFoundException"  # it lives elsewhere in each version
        found = None if _is_in_task() else _in_database(conn_id)
        if found is None and not is_missing:
            raise
        if found is None:
            raise ConfigError(
                f"there is no connection {conn_id!r}, which [outlast] conn_id names; create it, or name another"
            ) from error
        return found


def _is_in_task() -> bool:
    """Say whether a supervisor answers here, which has asked Airflow's database already."""
    return hasattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS")


def _in_database(conn_id: str) -> Any:
    """Return a connection from Airflow's database, where 3.x does not look outside a task; _Hidden if that is away."""
    try:
        from airflow.models import Connection  # type: ignore[import-not-found, unused-ignore]
        from airflow.utils.session import create_session  # type: ignore[import-not-found, unused-ignore]
        from sqlalchemy import select

        with create_session() as session:
            found = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
            session.expunge_all()
            return found
    except Exception as error:
        raise _Hidden(
            f"the connection {conn_id!r}, which [outlast] conn_id names, can only be seen from inside a task: here it "
            "is neither among the variables AIRFLOW_CONN_… nor in a secrets backend, and Airflow's database cannot be "
            f"read ({type(error).__name__})"
        ) from error


def _postgres(found: Any) -> str:
    from urllib.parse import quote, urlencode

    user = quote(found.login or "", safe="")
    if found.password:
        user += ":" + quote(found.password, safe="")
    query = urlencode({name: str(value) for name, value in (found.extra_dejson or {}).items()})
    place = f"{user}@{_authority(found.host, found.port)}" if user else _authority(found.host, found.port)
    return f"postgresql://{place}/{quote(found.schema or '', safe='')}" + (f"?{query}" if query else "")


def _authority(host: str | None, port: int | None) -> str:
    return f"{host or 'localhost'}:{port}" if port else host or "localhost"


@functools.cache
def _conf() -> Any:
    """Return Airflow's configuration; a worker may have the SDK's alone."""
    try:
        from airflow.configuration import conf  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from airflow.sdk.configuration import conf  # type: ignore[import-not-found, no-redef, unused-ignore]
    return conf
