"""What `outlast airflow doctor` finds out, and what several of its looks need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import msgspec

__all__ = ["HOME", "MISSING", "Diagnosis", "package_version"]

HOME = "outlast.integrations.airflow"
MISSING = "not installed"


class Diagnosis(msgspec.Struct):
    """What was found out, and what is wrong, in sentences with what to do."""

    facts: dict[str, str]
    problems: list[str]


def package_version(name: str) -> str:
    """Return the version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return MISSING
