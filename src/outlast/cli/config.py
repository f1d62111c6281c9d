"""`outlast config`: show the settings that hold, and where each of them comes from."""

from __future__ import annotations

import click
import msgspec

from .. import config as configuration
from ..config import Setting
from . import show
from .options import Commands, Place, as_json, at_place
from .show import Column

__all__ = ["config"]


@click.group(cls=Commands)
def config() -> None:
    """Show the settings that hold."""


@config.command("show", short_help="List every setting, its value and its origin.")
@at_place
@as_json
def show_settings(place: Place, as_json: bool) -> None:
    """List every setting with its value now and where that came from: a file, a variable, or the default.

    The file is the nearest outlast.toml upward, or the one OUTLAST_CONFIG names; OUTLAST__SECTION__KEY goes before
    it. With --json each setting's meaning is told as well.

    \b
    outlast config show
    OUTLAST__STATE_STORE__HISTORY_VERSIONS=0 outlast config show --json
    """
    settings = [_with_store(setting, place.url) for setting in configuration.load().explain()]
    if as_json:
        show.document(settings)
    else:
        columns = [Column("SETTING"), Column("VALUE"), Column("ORIGIN")]
        show.table(columns, [[f"{s.section}.{s.key}", _text(s), s.origin] for s in settings])


def _with_store(setting: Setting, url: str | None) -> Setting:
    """Return a setting as `--store` changes it."""
    if url is None or (setting.section, setting.key) != ("store", "url"):
        return setting
    return msgspec.structs.replace(setting, value=configuration.without_password(url), origin="--store")


def _text(setting: Setting) -> str:
    return "(not set)" if setting.value is None else msgspec.json.encode(setting.value).decode()
