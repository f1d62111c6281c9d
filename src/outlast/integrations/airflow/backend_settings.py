"""What `[outlast]` in Airflow's configuration says about both backends, read when one of them is made."""

from __future__ import annotations

import msgspec

from ...errors import ConfigError
from . import where
from .packing import COMPRESS_ABOVE, Packer
from .payloads import Payloads, open_payloads
from .references import OFFLOAD_ABOVE, References
from .rotation import Writing

__all__ = ["BackendSettings", "clears_on_success", "is_ours", "read_settings"]

TRUE = {"true", "t", "1"}  # as Airflow reads a flag


class BackendSettings(msgspec.Struct, frozen=True):
    """`state_compress_above`, `state_encryption_keys`, `state_offload_above` and `state_offload_url`.

    `is_worker` and `is_server` say whether WorkerBackend and MetastorePlusBackend are what Airflow is set to use here.
    """

    compress_above: int = COMPRESS_ABOVE
    keys: tuple[str, ...] = ()
    offload_above: int = OFFLOAD_ABOVE
    offload_url: str = ""
    retention_days: int = 30
    is_worker: bool = False
    is_server: bool = False

    def packer(self) -> Packer:
        """Return what packs and unpacks by these settings; ConfigError for a wrong key."""
        return Packer(self.compress_above, self.keys)

    def payloads(self) -> Payloads | None:
        """Return the place of large values; None where there is none."""
        return open_payloads(self.offload_url) if self.offload_url else None

    def writing(self) -> Writing:
        """Return which backends write here."""
        return Writing(self.is_worker, self.is_server, self.offload_above)

    def references(self) -> References:
        """Return what makes references by these settings."""
        return References(self.packer(), self.payloads(), self.offload_above)


def read_settings() -> BackendSettings:
    """Read the settings; ConfigError for a wrong one."""
    keys = where.option("state_encryption_keys") or ""
    return BackendSettings(
        _number("state_compress_above", COMPRESS_ABOVE),
        tuple(key.strip() for key in keys.split(",") if key.strip()),
        _number("state_offload_above", OFFLOAD_ABOVE),
        where.option("state_offload_url") or "",
        _number("default_retention_days", 30, "state_store"),
        is_ours(where.option("state_store_backend", "workers"), "WorkerBackend"),
        is_ours(where.option("backend", "state_store"), "MetastorePlusBackend"),
    )


def is_ours(named: str | None, name: str) -> bool:
    """Say whether a setting names the backend of outlast's that is called `name`."""
    return named is not None and named.startswith("outlast.") and named.rpartition(".")[2] == name


def clears_on_success() -> bool:
    """Say whether Airflow clears a task instance's state when it has succeeded."""
    return (where.option("clear_on_success", "state_store") or "").lower() in TRUE


def _number(name: str, default: int, section: str = "outlast") -> int:
    text = where.option(name, section)
    try:
        return default if text is None else int(text)
    except ValueError:
        raise ConfigError(f"[{section}] {name} is {text!r}; it is a whole number, by default {default}") from None
