"""Where a server listens: the socket, who can reach it, and the token it leaves for its own user."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..config import Config, ServerSettings, local_token_file
from ..errors import ConfigError

__all__ = ["bound", "is_local", "left_for_own_user", "listening", "tls_problem", "url_of"]

BACKLOG = 2048


def is_local(settings: ServerSettings) -> bool:
    """Say whether only this machine can reach what these settings listen on."""
    if settings.uds is not None or settings.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(settings.host.strip("[]")).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


def bound(settings: ServerSettings) -> socket.socket:
    """Return the socket to listen on; ConfigError, with what to do, if it cannot be had."""
    return _unix_socket(settings.uds) if settings.uds is not None else _tcp_socket(settings.host, settings.port)


@contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """Listen for the length of a block. What it leaves in the file system goes with it, unless that is another's now.

    A server that lets calls in flight end does not listen any more, so that its successor may have begun to.
    """
    with bound(settings) as listener:
        own = _identity(settings.uds)
        try:
            yield listener
        finally:
            if settings.uds is not None and own == _identity(settings.uds):
                with suppress(OSError):
                    os.unlink(settings.uds)


def _identity(path: str | None) -> tuple[int, ...] | None:
    """Return what tells a file from another of that name; the number alone is given again."""
    try:
        found = None if path is None else os.lstat(path)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns)


def url_of(settings: ServerSettings, listener: socket.socket) -> str:
    """Return the URL for `connect`."""
    if settings.uds is not None:
        return f"unix://{os.path.abspath(settings.uds)}"
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://{_place(settings, listener)}{settings.root_path}"


def tls_problem(settings: ServerSettings, error: OSError) -> ConfigError:
    """Return what is wrong with the certificate and its key, where they cannot be used."""
    certificate, key = settings.tls_certificate or "", settings.tls_key or settings.tls_certificate or ""
    for path in (certificate, key):
        if (problem := _unreadable(path)) is not None:
            return ConfigError(f"cannot use the certificate: {path} cannot be read: {problem}")
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return ConfigError(f"the key in {key} is not that of {certificate}; name its own with --tls-key")
    if settings.tls_key is None and not _has_key(certificate):
        return ConfigError(f"{certificate} has no private key in it; name the file that has it with --tls-key")
    return ConfigError(f"cannot use the certificate {certificate} with the key in {key}: {error}; both are to be PEM")


def _unreadable(path: str) -> str | None:
    try:
        with open(path, "rb"):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _has_key(path: str) -> bool:
    with open(path, "rb") as file:
        return b"PRIVATE KEY" in file.read()


def _place(settings: ServerSettings, listener: socket.socket) -> str:
    if settings.uds is not None:
        return os.path.abspath(settings.uds)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{host}:{listener.getsockname()[1]}"


def _tcp_socket(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error}; name an address of this machine with --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port, 0 for a free one"
        ) from error
    return listener


def _unix_socket(path: str) -> socket.socket:
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o666)  # a token is needed all the same; the folder says who may come as far as here
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; choose another --uds") from error
    return listener


def _remove_dead(path: str) -> None:
    """Remove a socket nobody listens on any more: its server was killed."""
    if not os.path.exists(path):
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError(f"{path} is a file, not a socket, and is left alone; choose another --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1.0)
        try:
            other.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError(f"another server listens on {path}; stop it, or choose another --uds")


@contextmanager
def left_for_own_user(config: Config, settings: ServerSettings, listener: socket.socket, token: str) -> Iterator[None]:
    """Leave a token in a file only this user can read, for as long as the server runs."""
    path = local_token_file(config, _place(settings, listener))
    if path is None:
        yield
        return
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _write_private(path, token)
    try:
        yield
    finally:
        _remove_own(path, token)


def _write_private(path: str, text: str) -> None:
    """Replace a file at once; nobody reads half of it, nor what another user has prepared in its place."""
    draft = f"{path}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(draft)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text + "\n")
    os.replace(draft, path)


def _remove_own(path: str, token: str) -> None:
    with suppress(OSError):
        with open(path, encoding="ascii") as file:
            mine = file.read().strip() == token
        if mine:  # not that of a server started since
            os.unlink(path)
