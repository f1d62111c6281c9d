"""Every setting: a section is a struct, a field's type says what is allowed, its default what holds unasked.

The `Meta` of a field says both to people. `config` reads them from a file and from variables.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "DEFAULT_BATCH",
    "ClientSettings",
    "RunnerSettings",
    "ServerSettings",
    "StateStoreSettings",
    "StoreSettings",
    "default_parallelism",
]

DEFAULT_BATCH = 1000
#: What is shown in the place of a secret.
SECRET = "***"
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
_Bytes = Annotated[int, _allowed("a whole number of bytes, 1024 or more", ge=1024, le=2**31 - 1)]
_Port = Annotated[int, _allowed("a port, 0 to 65535", ge=0, le=65_535)]
_Durability = Annotated[Literal["full", "process"], _allowed('"full" or "process"')]
_Text = Annotated[str, Meta(min_length=1)]
_Place = Annotated[_Text | None, _allowed("a path or a URL")]
_Folder = Annotated[_Text | None, _allowed("a path")]
_User = Annotated[_Text | None, _allowed("the name of a user of this machine")]
_Secret = Annotated[_Text | None, _allowed("a token as `outlast token create` prints it")]
_Host = Annotated[_Text, _allowed("an address or a host's name")]
_Path = Annotated[Annotated[str, Meta(pattern=r"^(/[^/?#]+)*$")], _allowed("nothing, or a path like /outlast")]
_Dotted = Annotated[Annotated[str, Meta(pattern=_DOTTED)] | None, _allowed("a dotted path like 'package.module:Class'")]
_Names = Annotated[tuple[str, ...], _allowed("a list of texts; in a variable, separated by commas")]
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
    run_as: Annotated[
        _User,
        _help("The user workers and triggers run as; takes a runner that runs as root, and a server as the store."),
    ] = None
    pass_environment: Annotated[
        _Names, _help("Variables (* and ? allowed) that workers of another user are given, beside a few that all get.")
    ] = ()


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `[client]`: how a worker talks to its store."""

    retry_for: Annotated[_Wait, _help("Seconds for which a call is tried again after a network or database fault.")] = (
        30.0
    )
    timeout: Annotated[_Lease, _help("Seconds one try of a call may take before the connection counts as lost.")] = 60.0
    token: Annotated[
        _Secret, _help("The token shown to a server; OUTLAST_TOKEN goes before it. It is printed nowhere.")
    ] = None
    ca_file: Annotated[
        _Folder,
        _help("Certificates of authorities, PEM, that vouch for a server beside those the system knows."),
    ] = None
    find_token: Annotated[
        _Flag,
        _help(
            "Look for a token in outlast.toml and in the file a server leaves for its own user; workers of a run "
            "behind a server have this off."
        ),
    ] = True

    def __repr__(self) -> str:
        shown = None if self.token is None else SECRET
        return (
            f"ClientSettings(retry_for={self.retry_for}, timeout={self.timeout}, token={shown!r}, "
            f"ca_file={self.ca_file!r}, find_token={self.find_token})"
        )


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `[server]`: how `outlast serve` listens."""

    host: Annotated[_Host, _help("The address listened on; one that others can reach needs a token to exist.")] = (
        "127.0.0.1"
    )
    port: Annotated[_Port, _help("The port listened on; 0 takes a free one.")] = 8765
    uds: Annotated[_Folder, _help("A Unix socket listened on instead of host and port.")] = None
    root_path: Annotated[_Path, _help("The path under which a proxy shows the server.")] = ""
    names: Annotated[
        _Names, _help("Names under which browsers reach the server, beside localhost; others are refused.")
    ] = ()
    trusted_proxies: Annotated[
        _Names, _help("Addresses of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.")
    ] = ()
    tls_certificate: Annotated[_Folder, _help("File with the certificate (chain) for https, PEM.")] = None
    tls_key: Annotated[_Folder, _help("File with the certificate's key, PEM, if not in the same file.")] = None
    max_body_bytes: Annotated[
        _Bytes, _help("Size above which a request's body is refused; the workers' door takes twice as much.")
    ] = 17 * 1024 * 1024
    request_seconds: Annotated[
        _Lease, _help("Seconds a request may take to arrive, headers and body each, before it is given up.")
    ] = 30.0
    drain_seconds: Annotated[
        _Wait, _help("Seconds calls in flight may take to end when the server is told to stop.")
    ] = 30.0
