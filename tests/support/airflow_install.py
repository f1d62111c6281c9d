"""An Airflow of one version, as it was installed in its time, with outlast's built wheel beside it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent.parent

#: The day each version is installed as of: the packages of a later day no longer work with it.
DATES = {
    "2.10.5": "2025-02-20",
    "2.11.2": "2026-04-15",
    "3.0.6": "2025-09-15",
    "3.1.8": "2026-04-15",
    "3.2.2": "2026-08-01",
    "3.3.2": None,
}
#: Read when the tests are collected: every test hides the variables of outlast's.
VERSION = os.environ.get("OUTLAST_TEST_AIRFLOW", "2.10.5")
PLACE = Path(os.environ.get("OUTLAST_TEST_AIRFLOW_PLACE", ROOT / ".venv" / "airflow"))
BUILT = os.environ.get("OUTLAST_TEST_INSTALLED") == "1"
PYTHONS = ("python3.12", "python3.11")  # what all of these versions run on
#: One whose operator has the mixin; without the client of Spark, which is large and not called.
SPARK = "apache-airflow-providers-apache-spark==6.3.4"
#: A provider of a later day than most of these versions, with the stand-in for ResumableJobMixin.
COMPAT, WITH_MIXIN = "apache-airflow-providers-common-compat", "1.23.0"


class Installed(msgspec.Struct, frozen=True):
    """An Airflow in a virtual environment: what was there before outlast was installed, and after."""

    version: str
    folder: Path
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def since(self) -> tuple[int, ...]:
        """The version as numbers, to be compared."""
        return tuple(int(part) for part in self.version.split("."))

    @property
    def programs(self) -> Path:
        """The folder of `airflow`, `python` and `outlast`."""
        return self.folder / "bin"


@functools.cache
def installed(version: str = VERSION, mixin: bool = False) -> Installed:
    """Return Airflow with this tree's outlast, installing what is not there yet; seconds where a cache is warm.

    `mixin` makes another environment, with the provider that has ResumableJobMixin.
    """
    folder = PLACE / (f"{version}-mixin" if mixin else version)
    before = folder / "before.txt"
    if not before.exists():
        _install_airflow(version, folder, mixin)
        before.write_text("\n".join(frozen(folder)))
    _uv("pip", "uninstall", "--quiet", "--python", str(folder), "outlast")
    wheel = _wheel(folder)
    _uv("pip", "install", "--quiet", "--compile-bytecode", "--python", str(folder), f"{wheel}[airflow,postgres]")
    return Installed(version, folder, tuple(before.read_text().split("\n")), tuple(frozen(folder)))


def frozen(folder: Path) -> list[str]:
    """Return what is installed, as `pip freeze` says it."""
    return _uv("pip", "freeze", "--quiet", "--python", str(folder)).splitlines()


def checked(folder: Path) -> str:
    """Return what `pip check` finds wrong; nothing where all fits."""
    done = subprocess.run([_program(), "pip", "check", "--python", str(folder)], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr + done.stdout


def _install_airflow(version: str, folder: Path, mixin: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python = next((found for name in PYTHONS if (found := _usable(name))), None)
    assert python, f"Airflow {version} needs one of {', '.join(PYTHONS)}"
    _uv("venv", "--quiet", "--python", python, str(folder))
    date = DATES[version]
    dated = ["--exclude-newer", date] if date else []
    into = ["--quiet", "--compile-bytecode", "--python", str(folder)]
    undated = ["--exclude-newer-package", f"{COMPAT}=2100-01-01", f"{COMPAT}=={WITH_MIXIN}"] if mixin and date else []
    _uv("pip", "install", *into, *dated, *undated, f"apache-airflow=={version}")
    if mixin:
        _uv("pip", "install", *into, "--no-deps", SPARK)


def _usable(name: str) -> str | None:
    """Return a Python's own path, where it starts at all: a version manager's stand-in may not."""
    path = shutil.which(name)
    asked = [path or "", "-c", "import sys; print(sys.executable)"]
    done = subprocess.run(asked, capture_output=True, text=True) if path else None
    return done.stdout.strip() if done is not None and done.returncode == 0 else None


def _wheel(folder: Path) -> Path:
    """Return the wheel that `make` has built, or build this tree's."""
    if BUILT:
        return next((ROOT / "build" / "wheel").glob("*.whl"))
    shutil.rmtree(folder / "wheel", ignore_errors=True)
    _uv("build", "--quiet", "--wheel", "--out-dir", str(folder / "wheel"), str(ROOT))
    return next((folder / "wheel").glob("*.whl"))


def _uv(*arguments: str) -> str:
    kept = {"UV_CACHE_DIR": str(PLACE / "cache")} | os.environ  # a test's home is another one each time
    done = subprocess.run([_program(), *arguments], env=kept, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"uv {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


@functools.cache
def _program() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    assert found, "the tests beside Airflow need uv: make test-airflow installs it"
    return found


def only(lines: Sequence[str]) -> dict[str, str]:
    """Return names and versions of a frozen list, without outlast itself."""
    pairs = (line.partition("==") for line in lines if "==" in line)
    return {name: version for name, _, version in pairs}
