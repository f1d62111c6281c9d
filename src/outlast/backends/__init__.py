"""What a backend is, and which one a URL names."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..config import without_password
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config import Config
    from ..values import Clock

__all__ = ["Backend", "file_of", "open_backend", "path_of"]


class Backend(ABC):
    """Answers requests (see `outlast.requests`), each atomically; safe to use from several threads.

    A class named by `[state_store] backend` is made as `Class(url, config, clock)`; its clock decides
    what has expired.
    """

    @abstractmethod
    def __init__(self, url: str, config: Config, clock: Clock) -> None: ...

    @abstractmethod
    def send(self, request: Any) -> Any:
        """Answer one request, blocking; raises an OutlastError. When it returns, a change is durable."""

    async def asend(self, request: Any) -> Any:
        """Answer one request, awaiting; unless overridden, `send` in a thread.

        A cancelled call ends when the thread has: what it writes would else come after what is written next.
        """
        import asyncio  # costs a blocking program 30 ms at import

        answer = asyncio.get_running_loop().run_in_executor(None, self.send, request)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            while not answer.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()  # taken note of
            raise

    @abstractmethod
    def close(self) -> None:
        """Release connections and files; safe to call twice."""


_SCHEMES = {"sqlite": "outlast.backends.sqlite:SQLiteBackend"}


def open_backend(url: str, config: Config, clock: Clock) -> Backend:
    """Open the backend a URL names, or the one `[state_store] backend` does; a bare path is a SQLite file."""
    dotted = config.state_store.backend or _SCHEMES.get(_scheme(url))
    if dotted is None:
        scheme = _scheme(url)
        raise ConfigError(
            f"{without_password(url)!r} is not a store URL of this version of outlast, "
            f"which knows none that begin with {scheme}:; use a path, or sqlite:///PATH"
        )
    if url[:9].lower() == "sqlite://" and url[9:10] not in ("", "/"):
        raise ConfigError(f"{url!r} has two slashes, which begin a host's name; write sqlite:///{url[9:]} for a path")
    return _load(dotted)(url, config, clock)


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
