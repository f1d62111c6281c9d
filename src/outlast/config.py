"""Settings: `outlast.toml` and `OUTLAST__SECTION__KEY` variables, read once into one frozen object.

The structs below are the whole list: a field's type says what is allowed, its default what holds when nobody says
anything, its `Meta` how both are told to people. An environment variable wins over the file; an empty one counts as
not set. Each value remembers its origin.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import ConfigError

__all__ = [
    "ClientSettings",
    "Config",
    "RunnerSettings",
    "Setting",
    "StateStoreSettings",
    "StoreSettings",
    "load",
    "resolve_url",
    "without_password",
]

FILE_NAME = "outlast.toml"
PREFIX = "OUTLAST__"
URL_VARIABLE = "OUTLAST_URL"
FILE_VARIABLE = "OUTLAST_CONFIG"
DEFAULT_ORIGIN = "default"
DEFAULT_BATCH = 1000

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SQLITE = re.compile(r"sqlite:(///)?", re.IGNORECASE)
_DOTTED = r"^[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*$"


def default_parallelism() -> int:
    """Return one slot per usable CPU, at least 4 because tasks mostly wait, and at most 16 to spare memory."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, max(4, usable or 1))


def _allowed(text: str, **limits: Any) -> Meta:
    return Meta(extra={"allowed": text}, **limits)


def _help(text: str) -> Meta:
    return Meta(description=text)


_Flag = Annotated[bool, _allowed("true or false")]
_Count = Annotated[int, _allowed("a whole number, 0 or more", ge=0, le=2**31 - 1)]
_Positive = Annotated[int, _allowed("a whole number, 1 to 10000", ge=1, le=10_000)]
_Days = Annotated[int, _allowed("a whole number of days, 0 to 1000000", ge=0, le=1_000_000)]
_Wait = Annotated[float, _allowed("a number of seconds, 0 to 86400", ge=0, le=86_400)]
_Lease = Annotated[float, _allowed("a number of seconds above 0, 86400 at most", gt=0, le=86_400)]
_Durability = Annotated[Literal["full", "process"], _allowed('"full" or "process"')]
_Text = Annotated[str, Meta(min_length=1)]
_Place = Annotated[_Text | None, _allowed("a path or a URL")]
_Folder = Annotated[_Text | None, _allowed("a path")]
_Dotted = Annotated[Annotated[str, Meta(pattern=_DOTTED)] | None, _allowed("a dotted path like 'package.module:Class'")]
_Patterns = Annotated[tuple[str, ...], _allowed("a list of texts; in a variable, separated by commas")]


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `[store]`: which store is meant."""

    url: Annotated[
        _Place,
        _help(
            "The store to use: a file, or the URL of a database or server; OUTLAST_URL goes before it. "
            "A relative path starts at the folder of the outlast.toml it stands in."
        ),
    ] = None


class StateStoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `[state_store]`: how task and asset state is kept."""

    default_retention_days: Annotated[
        _Days, _help("Days after which a task's entry expires when its writer says nothing; 0 is never.")
    ] = 30
    clear_on_success: Annotated[
        _Flag, _help("Remove a task instance's entries in the transaction that records its success.")
    ] = False
    discard_on_clear: Annotated[
        _Flag, _help("Remove a task instance's entries when a person clears it to run again.")
    ] = False
    max_value_storage_bytes: Annotated[
        _Count, _help("Size above which the public API refuses a value and a worker's write is logged; 0 is no limit.")
    ] = 65535
    state_cleanup_batch_size: Annotated[
        _Count, _help("Expired entries the sweeper removes in one transaction; 0 means 1000.")
    ] = DEFAULT_BATCH
    history_versions: Annotated[
        _Count, _help("Values kept of each key, the present one included; 0 turns history off.")
    ] = 20
    durability: Annotated[
        _Durability,
        _help("What a finished write survives: full also a power loss, process the death of every process."),
    ] = "full"
    feed_hours: Annotated[_Positive, _help("Hours for which a watcher that comes back still learns of a deletion.")] = (
        24
    )
    backend: Annotated[_Dotted, _help("A backend class of your own, to answer instead of the one the URL names.")] = (
        None
    )
    secret_keys: Annotated[
        _Patterns, _help("Patterns (* and ?) of keys whose values are masked wherever state is shown or audited.")
    ] = ()

    @property
    def batch_size(self) -> int:
        """The entries the sweeper removes in one transaction, also where the setting was made by hand and is 0."""
        return self.state_cleanup_batch_size or DEFAULT_BATCH


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `[runner]`: how `outlast run` works."""

    parallelism: Annotated[
        _Positive,
        _help("Task instances run at the same time; by default the number of CPUs, at least 4 and at most 16."),
    ] = msgspec.field(default_factory=default_parallelism)
    crash_retries: Annotated[
        _Count, _help("Times an attempt that died (rather than failed) is run again, whatever its `retries`.")
    ] = 3
    lease_seconds: Annotated[
        _Lease, _help("Seconds after which an attempt that has not renewed its claim counts as dead.")
    ] = 30.0
    keep_runs_days: Annotated[
        _Days, _help("Days an ended run is kept with its state, history and logs; 0 is for ever.")
    ] = 90
    logs_dir: Annotated[
        _Folder,
        _help(
            "Folder for task logs; by default one beside the store. "
            "A relative path starts at the folder of the outlast.toml it stands in."
        ),
    ] = None


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `[client]`: how a worker talks to its store."""

    retry_for: Annotated[_Wait, _help("Seconds for which a call is tried again after a network or database fault.")] = (
        30.0
    )


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
    file: str | None = None
    origins: Mapping[str, str] = {}
    state_folder: str | None = None

    def origin(self, section: str, key: str) -> str:
        """Return where a value came from: "default", a file's path or an environment variable's name."""
        return self.origins.get(f"{section}.{key}", DEFAULT_ORIGIN)

    def explain(self) -> list[Setting]:
        """List every setting with its value, origin and meaning; a password in the store's URL is masked."""
        return [
            Setting(section, key, _shown(getattr(getattr(self, section), key)), self.origin(section, key), known.help)
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


def without_password(url: str) -> str:
    """Return a URL as it may be printed: passwords, in the authority and in the query, are replaced by `***`."""
    url = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"([?&](?:password|sslpassword|token)=)[^&#]*", r"\1***", url)


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "store": StoreSettings,
    "state_store": StateStoreSettings,
    "runner": RunnerSettings,
    "client": ClientSettings,
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
    limits, described = kind.__metadata__
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
            f"{given.origin}: [{given.section}] {given.key} = {given.value!r} is not allowed; give {known.allowed}."
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
        case ("store", "url") | ("runner", "logs_dir"):
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


def _shown(value: Any) -> Any:
    return without_password(value) if isinstance(value, str) else value


def _state_folder(env: Mapping[str, str]) -> str | None:
    state_home = env.get("XDG_STATE_HOME", "")
    if Path(state_home).is_absolute():  # the XDG rules say to ignore a relative one
        return str(Path(state_home) / "outlast")
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    if not home.is_absolute():
        return None
    return str(home / ("Library/Application Support" if sys.platform == "darwin" else ".local/state") / "outlast")
