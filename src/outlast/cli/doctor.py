"""`outlast doctor`: which store is meant and why, and whether it is well."""

from __future__ import annotations

import os
import platform
from typing import Any

import click
import msgspec

from .. import __version__
from .. import config as configuration
from ..backends import file_of
from ..config import Config
from ..errors import BackendError, ConfigError, OutlastError
from ..store import connect
from . import show
from .opening import refuse_lost, stands_at
from .options import Command, Place, as_json, at_place

__all__ = ["doctor"]


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong, in a sentence with what to do, and the exit status it calls for."""

    text: str
    exit_code: int = BackendError.exit_code


class Report(msgspec.Struct):
    """What was found out; filled in step by step, as far as one gets."""

    facts: dict[str, str]
    problems: list[Problem]
    store: str | None = None
    origin: str | None = None
    exists: bool | None = None


@click.command(cls=Command, short_help="Say which store is meant, and whether it is well.")
@at_place
@click.option("--deep", is_flag=True, help="Read everything that is stored and check it; may take long.")
@as_json
def doctor(place: Place, deep: bool, as_json: bool) -> None:
    """Say which store is meant and why, and whether it is well. It creates nothing and repairs nothing.

    Exit 0: all is well, or there is no store yet. Exit 69: the store is damaged or out of reach. Exit 78: a setting,
    the store's place or its version is wrong. Every problem is told with what to do.

    \b
    outlast doctor
    outlast doctor --deep
    outlast doctor --store /srv/state/outlast.db --json
    """
    report = Report({"outlast": __version__, "python": f"{platform.python_version()} on {platform.system()}"}, [])
    try:
        _examine(report, place.url, deep)
    except OutlastError as error:
        report.problems.append(Problem(error.message, error.exit_code))
    if as_json:
        show.document(_report_document(report))
    else:
        show.diagnosis(report.facts, [problem.text for problem in report.problems])
    raise click.exceptions.Exit(max((problem.exit_code for problem in report.problems), default=0))


def _examine(report: Report, url: str | None, deep: bool) -> None:
    settings = configuration.load()
    report.facts["settings file"] = settings.file or f"none (no {configuration.FILE_NAME} here or in a folder above)"
    resolved, origin = configuration.resolve_url(url, settings)
    report.store = configuration.without_password(resolved)
    report.origin = "--store" if url else origin
    report.facts["store"] = f"{report.store} ({_why(report.origin)})"
    path = file_of(resolved, settings)
    report.exists = None if path is None else stands_at(path)
    if path is not None and not report.exists:
        _examine_place(report, path, origin)
    else:
        _examine_store(report, url, settings, deep)


def _why(origin: str) -> str:
    return "the default, since none is named" if origin == configuration.DEFAULT_ORIGIN else f"named by {origin}"


def _examine_place(report: Report, path: str, origin: str) -> None:
    """Say what stands in the way of a store that is not there yet."""
    refuse_lost(path)
    folder = os.path.dirname(path)
    report.facts["state"] = f"not created yet; the first write creates {path}"
    if origin == configuration.DEFAULT_ORIGIN:  # this folder is made when needed
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise ConfigError(f"the folder {folder} does not exist; create it, or name another path for the store")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} is not writable for this account; change its mode, or name another path")


def _examine_store(report: Report, url: str | None, settings: Config, deep: bool) -> None:
    with connect(url, config=settings) as store:
        inspected = store.inspect(deep=deep)
    report.facts |= dict(inspected.facts)
    report.problems += [Problem(text) for text in inspected.problems]
    report.facts["checked"] = "everything that is stored" if deep else "that it opens and reads (--deep: all of it)"


def _report_document(report: Report) -> dict[str, Any]:
    return {
        "well": not report.problems,
        "store": {"url": report.store, "origin": report.origin, "exists": report.exists},
        "facts": report.facts,
        "problems": report.problems,
    }
