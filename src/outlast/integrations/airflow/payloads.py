"""Where large values are kept outside the database: a folder, or an object store that fsspec has a driver for.

A payload is written once, under a name nothing else ever has (`SCOPE/KEY/WHEN-DIGEST`), and never changed. So a reader
needs no lock, and taking one away can only hurt whoever still has its name.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from ...errors import BackendError, ConfigError
from ...values import Clock, system_clock
from .packing import digest

__all__ = ["MARKER", "Folder", "ObjectStore", "Payloads", "new_name", "open_payloads", "read_checked", "written_at"]

#: The file that tells a place of payloads from an empty folder, for instance one whose disk is not mounted.
MARKER = "outlast-payloads.txt"
_MARKER_TEXT = (
    b"Large values of Airflow's state store, kept by outlast. The database has their names: keep this folder.\n"
)


class Payloads(Protocol):
    """A place of payloads. Every method raises BackendError when the place is out of reach."""

    url: str

    def write(self, name: str, data: bytes) -> None:
        """Write a payload; when it returns, the payload is there as a whole and durable."""

    def read(self, name: str) -> bytes | None:
        """Return a payload; None when it is certain that there is none of that name."""

    def names(self, beginning: str = "") -> Iterator[str]:
        """List the payloads of a scope (`SCOPE/`), of a key (`SCOPE/KEY/`) or all."""

    def remove(self, name: str) -> None:
        """Take a payload away; nothing happens when there is none."""


def open_payloads(url: str) -> Payloads:
    """Return the place a folder's path or an fsspec URL names; ConfigError when there is no driver for it."""
    scheme, mark, rest = url.partition("://")
    if mark and scheme not in ("file", "local"):
        return ObjectStore(url)
    path = rest if mark else url
    if not os.path.isabs(path):
        raise ConfigError(f"[outlast] state_offload_url is {url!r}; give an absolute path, or a URL such as s3://b/dir")
    return Folder(path)


def new_name(place: str, data: bytes, clock: Clock = system_clock) -> str:
    """Return the name of a new payload at a place (`SCOPE/KEY`): unique, telling when it was written, and checkable."""
    return f"{place}/{clock():016x}{secrets.token_hex(4)}-{digest(data)}"


def written_at(name: str) -> int | None:
    """Return when a payload was written, in microseconds since 1970, as its name tells; None for a strange name."""
    stamp, dash, _ = name.rpartition("/")[2].partition("-")
    if not dash or len(stamp) != 24:
        return None
    try:
        return int(stamp[:16], 16)
    except ValueError:
        return None


def read_checked(payloads: Payloads, name: str) -> bytes | None:
    """Return a payload whose digest is as its name says; None when it is gone, BackendError when it was changed."""
    data = payloads.read(name)
    if data is not None and digest(data) != name.rpartition("-")[2]:
        raise BackendError(
            f"the payload {name} in {payloads.url} is not what was written ({len(data):,} bytes, another digest): "
            "restore it from a backup, or give up the key that refers to it (`delete(KEY)` in the task, or DELETE on "
            "…/state-store/KEY over REST); `outlast airflow rotate` reads all payloads and names the key"
        )
    return data


class Folder:
    """Payloads as files, each written aside, synced and renamed."""

    def __init__(self, path: str) -> None:
        self.url = self.path = os.path.normpath(path)
        self._is_marked = False

    def write(self, name: str, data: bytes) -> None:
        """Write a payload, synced to disk with its folder."""
        try:
            self._mark()
            self._write(os.path.join(self.path, name), data)
        except OSError as error:
            raise BackendError(f"cannot write a payload into {self.path}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Return a payload; None when there is none in a folder that is one of payloads."""
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            if os.path.exists(os.path.join(self.path, MARKER)):
                return None
            raise BackendError(_unmarked(self.path)) from None
        except OSError as error:
            raise BackendError(f"cannot read a payload in {self.path}: {error}") from error

    def names(self, beginning: str = "") -> Iterator[str]:
        """List payloads, and what a killed writer has left beside them."""
        top = os.path.join(self.path, beginning)
        for folder, _, files in os.walk(top, onerror=_refuse_unless_gone):
            for file in files:
                name = os.path.relpath(os.path.join(folder, file), self.path)
                if name != MARKER:
                    yield name.replace(os.sep, "/")

    def remove(self, name: str) -> None:
        """Remove a payload, and its key's and scope's folder when they are empty."""
        path = os.path.join(self.path, name)
        try:
            with suppress(FileNotFoundError):
                os.remove(path)
        except OSError as error:
            raise BackendError(f"cannot remove a payload in {self.path}: {error}") from error
        with suppress(OSError):  # not empty, or gone already
            os.rmdir(os.path.dirname(path))
            os.rmdir(os.path.dirname(os.path.dirname(path)))

    def _mark(self) -> None:
        marker = os.path.join(self.path, MARKER)
        if not self._is_marked and not os.path.exists(marker):
            os.makedirs(self.path, mode=0o700, exist_ok=True)  # one that is there may be shared by several accounts
            self._write(marker, _MARKER_TEXT)
        self._is_marked = True

    def _write(self, path: str, data: bytes) -> None:
        aside = f"{path}.{secrets.token_hex(4)}.part"
        descriptor = self._create(aside)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.rename(aside, path)
        except OSError:
            with suppress(OSError):
                os.remove(aside)
            raise
        self._sync_folders(os.path.dirname(path))

    def _create(self, path: str) -> int:
        """Create a file; its folder is made as often as somebody who found it empty takes it away."""
        folder = os.path.dirname(path)
        for _ in range(100):
            os.makedirs(folder, exist_ok=True)
            with suppress(FileNotFoundError):
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        raise OSError(f"{folder} is removed as soon as it is made")

    def _sync_folders(self, folder: str) -> None:
        """Make the names durable, from the file's folder up to the folder of payloads."""
        _sync(folder)
        while folder != self.path:
            folder = os.path.dirname(folder)
            _sync(folder)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise BackendError(f"cannot list payloads: {error}") from error


def _unmarked(place: str) -> str:
    return (
        f"{place} is no place of payloads, since it has no {MARKER}: mount the disk or name the right place in "
        "[outlast] state_offload_url"
    )


class ObjectStore:
    """Payloads as objects of an fsspec file system, which puts an object as a whole or not at all."""

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ConfigError(
                f"[outlast] state_offload_url = {_shown(url)} needs fsspec; pip install 'fsspec'"
            ) from None
        self.url = _shown(url)
        self._is_marked = False
        try:
            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"[outlast] state_offload_url = {self.url} cannot be opened: {_text(error)}") from None
        except Exception as error:  # some drivers connect at once
            raise BackendError(f"cannot reach {self.url}: {_text(error)}") from error
        self._root = self._root.rstrip("/")

    def write(self, name: str, data: bytes) -> None:
        """Put a payload."""
        try:
            if not self._is_marked and not self._files.exists(self._at(MARKER)):
                self._put(MARKER, _MARKER_TEXT)
            self._is_marked = True
            self._put(name, data)
        except Exception as error:  # every driver has errors of its own
            raise BackendError(f"cannot write a payload to {self.url}: {_text(error)}") from error

    def read(self, name: str) -> bytes | None:
        """Return a payload; None when there is none in a place that is one of payloads."""
        try:
            return bytes(self._files.cat_file(self._at(name)))
        except FileNotFoundError:
            self._refuse_strange_place()
            return None
        except Exception as error:
            raise BackendError(f"cannot read a payload of {self.url}: {_text(error)}") from error

    def names(self, beginning: str = "") -> Iterator[str]:
        """List payloads, past any listing the driver remembers."""
        try:
            self._files.invalidate_cache()
            paths = self._files.find(self._at(beginning).rstrip("/"))
        except FileNotFoundError:
            return
        except Exception as error:
            raise BackendError(f"cannot list the payloads of {self.url}: {_text(error)}") from error
        start = len(self._root) + 1
        yield from (path[start:] for path in paths if path[start:] != MARKER)

    def remove(self, name: str) -> None:
        """Remove a payload."""
        try:
            with suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))
        except Exception as error:
            raise BackendError(f"cannot remove a payload of {self.url}: {_text(error)}") from error

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _put(self, name: str, data: bytes) -> None:
        path = self._at(name)
        try:
            self._files.pipe_file(path, data)
        except FileNotFoundError:  # a file system with folders
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)

    def _refuse_strange_place(self) -> None:
        try:
            is_there = self._files.exists(self._at(MARKER))
        except Exception as error:
            raise BackendError(f"cannot read {self.url}: {_text(error)}") from error
        if not is_there:
            raise BackendError(_unmarked(self.url))


def _shown(url: str) -> str:
    """Return a URL as it may stand in a log: whatever comes before the host is taken for a secret."""
    return re.sub(r"://[^/\s]*@", "://***@", url)


def _text(error: Any) -> str:
    return _shown(f"{type(error).__name__}: {error}")
