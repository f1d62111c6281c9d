"""Settings: `outlast.toml` and `OUTLAST__SECTION__KEY` variables, read once into one frozen object.

The structs of `settings` are the whole list. An environment variable wins over the file; an empty one counts as
not set. Each value remembers its origin.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .errors import ConfigError
from .settings import (
    DEFAULT_BATCH,
    ClientSettings,
    RunnerSettings,
    ServerSettings,
    StateStoreSettings,
    StoreSettings,
    default_parallelism,
)

__all__ = [
    "ClientSettings",
    "Config",
    "RunnerSettings",
    "ServerSettings",
    "Setting",
    "StateStoreSettings",
    "StoreSettings",
    "default_parallelism",
    "load",
    "local_token_file",
    "resolve_url",
    "without_password",
    "without_tokens",
]

FILE_NAME = "outlast.toml"
PREFIX = "OUTLAST__"
URL_VARIABLE = "OUTLAST_URL"
TOKEN_VARIABLE = "OUTLAST_TOKEN"
FILE_VARIABLE = "OUTLAST_CONFIG"
DEFAULT_ORIGIN = "default"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_TOKEN = re.compile(r"outl_[a-z]_[A-Za-z0-9_-]+")
_SQLITE = re.compile(r"sqlite:(///)?", re.IGNORECASE)


class Setting(msgspec.Struct, frozen=True):
    """One setting as it is shown to people: its value now, where that came from, and what it is for."""

    section: str
    key: str
    value: Any
    origin: str
    help: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, by section; `explain()` also says where each value came from."""

    store: StoreSettings = StoreSettings()
    state_store: StateStoreSettings = StateStoreSettings()
    runner: RunnerSettings = msgspec.field(default_factory=RunnerSettings)
    client: ClientSettings = ClientSettings()
    server: ServerSettings = ServerSettings()
    file: str | None = None
    origins: Mapping[str, str] = {}
    state_folder: str | None = None

    def origin(self, section: str, key: str) -> str:
        """Return where a value came from: "default", a file's path or an environment variable's name."""
        return self.origins.get(f"{section}.{key}", DEFAULT_ORIGIN)

    def explain(self) -> list[Setting]:
        """List every setting with its value, origin and meaning; a password in the store's URL is masked."""
        return [
            Setting(
                section, key, _shown(key, getattr(getattr(self, section), key)), self.origin(section, key), known.help
            )
            for section, keys in _known().items()
            for key, known in keys.items()
        ]


def load(start: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read the settings that hold for a process.

    `start` is the folder from which `outlast.toml` is looked for upward (default: the current one), unless
    OUTLAST_CONFIG names the file. `environ` defaults to the process's environment. Raise `ConfigError` for a file
    that cannot be read and for an unknown or wrong section, key or value.
    """
    env = os.environ if environ is None else environ
    file = _find_file(start, env)
    sections: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    origins = {}
    for given in [*_from_file(file), *_from_environ(env)]:
        sections[given.section][given.key] = _checked(given)
        origins[f"{given.section}.{given.key}"] = given.origin
    if not sections["client"].get("find_token", True) and origins.get("client.token") == file:
        sections["client"].pop("token", None)
    built: dict[str, Any] = {section: _SECTIONS[section](**values) for section, values in sections.items()}
    return Config(**built, file=file, origins=origins, state_folder=_state_folder(env))


def resolve_url(explicit: str | None, config: Config) -> tuple[str, str]:
    """Return which store is meant and who said so.

    `explicit` goes first, then OUTLAST_URL and `[store] url`, then a file in the user's state folder: never one in
    the current directory, which would lose the state of a cron job. Raise `ConfigError` when there is no such folder.
    """
    if explicit:
        return explicit, "argument"
    if config.store.url:
        return config.store.url, config.origin("store", "url")
    if config.state_folder is None:
        raise ConfigError(f"No store is named and there is no home folder to keep one in; set {URL_VARIABLE}.")
    return str(Path(config.state_folder) / "outlast.db"), DEFAULT_ORIGIN


def local_token_file(config: Config, place: str) -> str | None:
    """Return where a server that listens only to this machine leaves a token for its own user.

    `place` is "HOST:PORT", or a Unix socket's path. None when there is no state folder.
    """
    if config.state_folder is None:
        return None
    if place.startswith("/"):
        name = "unix" + place.replace("/", "_")
    else:
        host, _, port = place.rpartition(":")
        own = host in ("localhost", "::1", "[::1]") or host.startswith("127.")
        name = f"{'localhost' if own else host}_{port}"
    return os.path.join(config.state_folder, "servers", name[-200:])


def without_password(url: str) -> str:
    """Return a URL as it may be printed: passwords, in the authority and in the query, and tokens become `***`."""
    url = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    url = re.sub(r"^(https?://)[^/@]*@", r"\1***@", url, flags=re.IGNORECASE)  # where no user belongs
    return without_tokens(re.sub(r"([?&](?:password|sslpassword|token)=)[^&#]*", r"\1***", url))


def without_tokens(text: str) -> str:
    """Return a text as it may be printed or logged: what looks like a token of ours is cut after `outl_`."""
    return _TOKEN.sub("outl_***", text)


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "store": StoreSettings,
    "state_store": StateStoreSettings,
    "runner": RunnerSettings,
    "client": ClientSettings,
    "server": ServerSettings,
}


class _Given(msgspec.Struct, frozen=True):
    """A value somebody gave, not yet checked; `folder` is the file's, None for an environment variable."""

    section: str
    key: str
    value: Any
    origin: str
    folder: Path | None = None


class _Known(msgspec.Struct, frozen=True):
    kind: Any
    allowed: str
    help: str


@functools.cache
def _known() -> dict[str, dict[str, _Known]]:
    """Return every setting by section and key, as the structs define them."""
    return {
        section: {field.name: _described(field.type) for field in msgspec.structs.fields(struct)}
        for section, struct in _SECTIONS.items()
    }


def _described(kind: Any) -> _Known:
    *_, limits, described = kind.__metadata__
    return _Known(kind, limits.extra["allowed"], described.description)


def _find_file(start: Path | None, env: Mapping[str, str]) -> str | None:
    if named := env.get(FILE_VARIABLE):
        return str(Path(os.path.expanduser(named)).absolute())
    try:
        folder = Path(start or Path.cwd()).absolute()
    except FileNotFoundError:  # the current directory has been removed
        return None
    return next((str(at / FILE_NAME) for at in (folder, *folder.parents) if os.path.isfile(at / FILE_NAME)), None)


def _from_file(file: str | None) -> Iterator[_Given]:
    if file is None:
        return
    for section, table in _parsed(file).items():
        _check_section(section, file)
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {section} = {table!r} is not allowed; write a section, [{section}], with keys.")
        for key, value in table.items():
            yield _Given(section, key, value, file, Path(file).parent)


def _parsed(file: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(file, "rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # broken TOML, or not UTF-8
        raise ConfigError(f"{file} is not valid TOML: {error}.") from error


def _from_environ(env: Mapping[str, str]) -> Iterator[_Given]:
    for name in sorted(env):
        if name.startswith(PREFIX) and env[name].strip():
            section, _, key = name.removeprefix(PREFIX).lower().partition("__")
            _check_section(section, name)
            yield _Given(section, key, env[name].strip(), name)
    if url := env.get(URL_VARIABLE, "").strip():
        yield _Given("store", "url", url, URL_VARIABLE)
    if token := env.get(TOKEN_VARIABLE, "").strip():
        yield _Given("client", "token", token, TOKEN_VARIABLE)


def _check_section(section: str, origin: str) -> None:
    if section in _SECTIONS:
        return
    if section == "workers":
        raise ConfigError(
            f"{origin}: [workers] is a section of Airflow's that outlast does not need; "
            "docs/airflow.md says what takes its place."
        )
    homes = [home for home, keys in _known().items() if section in keys]
    if homes:
        raise ConfigError(f"{origin}: {section} stands outside a section; it belongs under [{homes[0]}].")
    names = ", ".join(f"[{name}]" for name in _SECTIONS)
    raise ConfigError(f"{origin}: there is no section [{section}]{_nearest(section, _SECTIONS)}; there are {names}.")


def _checked(given: _Given) -> Any:
    known = _look_up(given)
    in_file = given.folder is not None
    value = given.value if in_file else _plain(given.value, known.kind)
    try:
        value = msgspec.convert(value, known.kind, strict=in_file)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{given.origin}: [{given.section}] {given.key} = {_shown(given.key, given.value)!r} is not allowed; "
            f"give {known.allowed}."
        ) from error
    return _finished(given, value)


def _look_up(given: _Given) -> _Known:
    keys = _known()[given.section]
    if given.key in keys:
        return keys[given.key]
    where = f"{given.origin}: [{given.section}] has no key {given.key!r}"
    homes = [home for home, others in _known().items() if given.key in others]
    if homes:
        raise ConfigError(f"{where}; {given.key} belongs under [{homes[0]}].")
    raise ConfigError(f"{where}{_nearest(given.key, keys)}; it has {', '.join(keys)}.")


def _plain(text: str, kind: Any) -> Any:
    """Return a variable's text in the shape its setting has: a list is separated by commas."""
    if kind.__origin__ == tuple[str, ...]:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _finished(given: _Given, value: Any) -> Any:
    match given.section, given.key:
        case "state_store", "state_cleanup_batch_size":
            return value or DEFAULT_BATCH
        case (
            ("store", "url")
            | ("runner", "logs_dir")
            | ("client", "ca_file")
            | ("server", "uds" | "tls_certificate" | "tls_key")
        ):
            return _anchored(value, given.folder)
        case _:
            return value


def _anchored(place: str, folder: Path | None) -> str:
    """Return a place with its path made absolute when a file gave it; other URLs stay as they are."""
    sqlite = _SQLITE.match(place)
    scheme = sqlite[0] if sqlite else ""
    path = place[len(scheme) :]
    if path in ("", ":memory:") or (not scheme and _URL.match(path)):
        return place
    path = os.path.expanduser(path)
    return scheme + (path if folder is None else str(folder / path))


def _nearest(word: str, words: Mapping[str, Any]) -> str:
    import difflib

    near = difflib.get_close_matches(word, words, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _shown(key: str, value: Any) -> Any:
    if key == "token":
        return None if value is None else "***"
    return without_password(value) if isinstance(value, str) else value


def _state_folder(env: Mapping[str, str]) -> str | None:
    state_home = env.get("XDG_STATE_HOME", "")
    if Path(state_home).is_absolute():  # the XDG rules say to ignore a relative one
        return str(Path(state_home) / "outlast")
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    if not home.is_absolute():
        return None
    return str(home / ("Library/Application Support" if sys.platform == "darwin" else ".local/state") / "outlast")
