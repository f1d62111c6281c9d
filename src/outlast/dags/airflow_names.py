"""Airflow's import paths for outlast's own names, so that a DAG file written for Airflow runs where there is none.

Loading a DAG file installs a finder for `airflow` and what is below it. Where an Airflow is installed it stands
aside; a name outlast has nothing for is an ImportError that says so, and what there is instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ..errors import DagError
from .airflow_missing import NoSuchName
from .arguments import did_you_mean

__all__ = ["AIRFLOW_VERSION", "NotInOutlast", "install", "installed"]

#: The version whose names these are; what `airflow.__version__` begins with.
AIRFLOW_VERSION = "3.3.2"


class NotInOutlast(DagError, ImportError):
    """A DAG file imports something of Airflow's that outlast does not have; says what there is instead."""


def install() -> None:
    """Have `import airflow…` find outlast's own names wherever it would find nothing; again, it changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def installed() -> str:
    """Say what it means for a DAG file that an Airflow has been imported; an empty text where none has been."""
    if "airflow" not in sys.modules or _is_ours("airflow"):
        return ""
    return (
        "an Airflow is installed here, so `from airflow… import` means Airflow's own DAGs; "
        "write `from outlast import …`, or run the file in an environment without Airflow"
    )


def _is_ours(module: str) -> bool:
    return isinstance(sys.modules.get(module), _Names)


def _modules() -> dict[str, frozenset[str]]:
    from .airflow_table import MODULES  # most DAG files have no need of it

    return MODULES


# --- Modules ---------------------------------------------------------------------------------------------


class _Names(ModuleType):
    """A module of Airflow's; its names are looked up when they are first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = _value(self.__name__, name)
        setattr(self, name, value)
        return value  # `from … import name` of one that is missing goes on to the finder, for an ImportError

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *_modules()[self.__name__]})


def _value(module: str, name: str) -> Any:
    """Return what a name means in outlast; NoSuchName, an AttributeError, where it means nothing."""
    from .airflow_table import HOMES

    known = _modules()
    if name in known[module]:
        home, _, attribute = HOMES[name].partition(":")
        return getattr(importlib.import_module(f".{home}", __package__), attribute)
    if f"{module}.{name}" in known:
        return importlib.import_module(f"{module}.{name}")
    raise NoSuchName(_missing(f"{module}.{name}"))


def _missing(path: str) -> str:
    """Say that outlast has no module or name of that path, and what it has."""
    from .airflow_table import instead_of

    module, _, name = path.rpartition(".")
    names = _modules().get(module, frozenset())
    below = [other.removeprefix(f"{module}.") for other in _modules() if other.startswith(f"{module}.")]
    known = {*names, *(other for other in below if "." not in other)}
    hint = instead_of(path) or did_you_mean(name, known).removeprefix("; ")
    listed = ", ".join(sorted(known)) if known and len(known) <= 25 else ""
    hint = hint or (f"it has {listed}" if listed else "docs/airflow.md lists what there is")
    what = f"{name} in {module}" if names and module != "airflow" else path
    return f"outlast has no {what}, and no Airflow is installed; {hint}"


# --- Finding them ----------------------------------------------------------------------------------------


class _Finder:
    """Finds `airflow` and its modules where nobody else does; both finder and loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load one of these modules, None for any other; NotInOutlast for one of Airflow's it lacks."""
        package, _, rest = name.partition(".")
        if package != "airflow" or (rest and not _is_ours(package)):
            return None
        other = PathFinder.find_spec(name, path) if rest else self._elsewhere(name)
        folders = _blank_folders(other)
        if folders is None:
            return other
        if name not in _modules():
            if folders:
                return other
            raise NotInOutlast(_missing(name))
        spec = ModuleSpec(name, self, origin="outlast", is_package=True)  # type: ignore[arg-type]
        spec.submodule_search_locations = folders
        return spec

    def _elsewhere(self, name: str) -> ModuleSpec | None:
        """Return what the others find."""
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, None)
            if spec is not None:
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty module of these."""
        return _Names(spec.name, f"Airflow's {spec.name}, as far as outlast has it.")

    def exec_module(self, module: ModuleType) -> None:
        """Give it what it does not look up."""
        from .. import __version__

        vars(module)["__all__"] = sorted(_modules()[module.__name__])
        if module.__name__ in ("airflow", "airflow.sdk"):
            vars(module)["__version__"] = f"{AIRFLOW_VERSION}+outlast.{__version__}"


def _blank_folders(other: ModuleSpec | None) -> list[str] | None:
    """Return the folders of a package that is nothing but folders; None where there is code, as in an Airflow.

    A folder named `airflow` that only holds settings and DAG files, as Airflow's home does, would else count as one.
    """
    if other is None:
        return []
    folders = list(other.submodule_search_locations or ())
    code = other.origin is not None or not folders
    sdk = any(os.path.isfile(os.path.join(folder, "sdk", "__init__.py")) for folder in folders)
    return None if code or sdk else folders
