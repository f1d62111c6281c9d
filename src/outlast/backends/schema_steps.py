"""A schema as numbered steps forward, and what tells which of them a store has taken; for every SQL database."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence

from ..errors import ConfigError

__all__ = ["checksum", "steps_of", "version_of"]

_FOLDER = os.path.join(os.path.dirname(__file__), "schema")


def steps_of(database: str) -> list[str]:
    """Return a database's steps, the first one first; the files' names begin with the database's."""
    names = sorted(name for name in os.listdir(_FOLDER) if name.startswith(database + "_"))
    texts = []
    for name in names:
        with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
            texts.append(file.read())
    return texts


def checksum(texts: Sequence[str]) -> str:
    """Return what tells this schema from one that was changed by hand."""
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def version_of(facts: Mapping[str, str], texts: Sequence[str], where: object) -> int:
    """Return the version a store's facts tell, or raise ConfigError saying what to do with one that does not fit."""
    version = int(facts.get("schema", "0"))
    if version > len(texts):
        raise ConfigError(
            f"{where} was written by a newer outlast (schema {version}, this one knows {len(texts)}); "
            "upgrade outlast: pip install --upgrade outlast"
        )
    if facts.get("schema_checksum") != checksum(texts[:version]):
        raise ConfigError(
            f"the schema of {where} is not the one outlast made (version {version}); "
            "it was changed by hand or by a development version: restore a backup, or begin a new store"
        )
    return version
