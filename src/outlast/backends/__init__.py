"""What a backend is, and which one a URL names."""

from __future__ import annotations

import importlib
import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import without_password
from ..errors import BackendError, ConfigError, OutlastError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..config import Config
    from ..tables import Tables
    from ..values import Clock
    from .schemas import Schema

__all__ = ["Backend", "file_of", "in_thread", "is_server", "open_backend", "path_of", "schema_of", "upgrade"]

T = TypeVar("T")
#: Seconds within which a fault of a batch comes at once; one that takes longer was waited for.
SHORT = 0.2


class Backend(ABC):
    """Answers requests (see `outlast.requests`), each atomically; safe to use from several threads.

    A class named by `[state_store] backend` is made as `Class(url, config, clock)`; its clock decides
    what has expired.
    """

    #: Whether it answers `Once`: keeps a reply under its call id, in the transaction it belongs to.
    keeps_replies: bool = False

    @abstractmethod
    def __init__(self, url: str, config: Config, clock: Clock) -> None: ...

    @abstractmethod
    def send(self, request: Any) -> Any:
        """Answer one request, blocking; raises an OutlastError. When it returns, a change is durable."""

    async def asend(self, request: Any) -> Any:
        """Answer one request, awaiting; unless overridden, `send` in a thread."""
        return await in_thread(self.send, request)

    def send_batch(self, requests: Sequence[Any]) -> list[Any]:
        """Answer several requests of the same kind in order, each by its reply or by the OutlastError it raised.

        Unless overridden, one by one; a backend that can shares what a commit costs among them.
        """
        return [self._outcome(request) for request in requests]

    def _together(self, answer: Callable[[], list[Any]], requests: Sequence[Any]) -> list[Any]:
        """Answer requests in one go; where that fails as a whole, one by one, unless all would fare alike.

        They would where nobody knows what became of them, and where a lock or a server was waited for in vain: each
        would wait as long again, while those who ask have waited already.
        """
        began = time.monotonic()
        try:
            return answer()
        except OutlastError as error:
            waited = time.monotonic() - began > SHORT
            if isinstance(error, BackendError) and (waited or error.outcome == "unknown"):
                return [error] * len(requests)
        return [self._outcome(request) for request in requests]

    def _outcome(self, request: Any) -> Any:
        try:
            return self.send(request)
        except OutlastError as error:
            return error

    def dump(self, take: Callable[[Tables], T]) -> T:
        """Let `take` read every table as of one moment, while others write on; ConfigError where there are none."""
        raise ConfigError(_NO_TABLES)

    def load(self, fill: Callable[[Tables, int], T]) -> T:
        """Let `fill`, told the time, write to every table in one transaction; ConfigError where there are none."""
        raise ConfigError(_NO_TABLES)

    @abstractmethod
    def close(self) -> None:
        """Release connections and files; safe to call twice."""


_NO_TABLES = (
    "backups are made of a SQLite file or a PostgreSQL database and restored into one, and this store is neither; "
    "for one behind a server give --store the file or the database's URL that the server was started with"
)


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Await a blocking call in a thread.

    When cancelled this ends when the thread has: what it writes would else come after what is written next.
    """
    import asyncio  # costs a blocking program 30 ms at import

    answer = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        while not answer.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([answer])
        if not answer.cancelled():
            answer.exception()  # taken note of
        raise


_SCHEMES = {
    "sqlite": "outlast.backends.sqlite:SQLiteBackend",
    "postgres": "outlast.backends.postgres:PostgresBackend",
    "postgresql": "outlast.backends.postgres:PostgresBackend",
    "postgresql+psycopg": "outlast.backends.postgres:PostgresBackend",
    "postgresql+psycopg2": "outlast.backends.postgres:PostgresBackend",
    "http": "outlast.backends.http:HTTPBackend",
    "https": "outlast.backends.http:HTTPBackend",
    "unix": "outlast.backends.http:HTTPBackend",
}


def open_backend(url: str, config: Config, clock: Clock) -> Backend:
    """Open the backend a URL names, or the one `[state_store] backend` does; a bare path is a SQLite file."""
    dotted = config.state_store.backend or _SCHEMES.get(_scheme(url))
    if dotted is None:
        scheme = _scheme(url)
        raise ConfigError(
            f"{without_password(url)!r} is not a store URL of this version of outlast, "
            f"which knows none that begin with {scheme}:; use a path, sqlite:///PATH, "
            "postgresql://HOST/NAME, http://HOST:PORT or unix:///PATH"
        )
    if url[:9].lower() == "sqlite://" and url[9:10] not in ("", "/"):
        raise ConfigError(f"{url!r} has two slashes, which begin a host's name; write sqlite:///{url[9:]} for a path")
    return _load(dotted)(url, config, clock)


def schema_of(url: str, config: Config) -> Schema:
    """Look at a store's schema and change nothing; ConfigError where it is newer, or was changed by hand."""
    from . import schemas

    return schemas.schema_of(url, config)


def upgrade(url: str, config: Config) -> Schema:
    """Make a store's schema or bring it forward, also when several do so at once; return what it was before."""
    from . import schemas

    return schemas.upgrade(url, config)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition(":")
    return scheme.lower() if separator and len(scheme) > 1 and "/" not in scheme and "\\" not in scheme else "sqlite"


def path_of(url: str) -> str | None:
    """Return the absolute path of the SQLite file a URL names (`sqlite:///PATH`, a bare path); None: in memory."""
    path = url[7:].removeprefix("///") if url[:7].lower() == "sqlite:" else url
    return None if path in ("", "//", ":memory:") else os.path.abspath(os.path.expanduser(path))


def file_of(url: str, config: Config) -> str | None:
    """Return the file a store is kept in; None for a server, a database, memory, or a backend of your own."""
    return path_of(url) if config.state_store.backend is None and _scheme(url) == "sqlite" else None


def is_server(url: str) -> bool:
    """Say whether a URL names an outlast server, rather than a file or a database."""
    return url.partition(":")[0].lower() in ("http", "https", "unix")


def _load(dotted: str) -> type[Backend]:
    module, _, name = dotted.partition(":") if ":" in dotted else dotted.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import the backend {dotted!r}: {error}") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import the backend {dotted!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise ConfigError(f"{dotted!r} is not a subclass of outlast.backends.Backend")
    return found
