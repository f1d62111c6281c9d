"""Where the logs of runs are, `FOLDER/DAG/RUN`, and removing them: for runners, which write them, and for servers."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable

from .config import Config, resolve_url
from .errors import ConfigError

__all__ = ["log_folder", "remove_logs", "remove_run_logs", "run_folder", "segment"]


def log_folder(config: Config, url: str) -> str:
    """Return the folder for task logs: `[runner] logs_dir`, else one beside the store's file."""
    if config.runner.logs_dir:
        return os.path.abspath(os.path.expanduser(config.runner.logs_dir))
    path = url.removeprefix("sqlite:").removeprefix("///") if url.startswith("sqlite:") else url
    if "://" in path or path == ":memory:":
        path = os.path.join(os.path.dirname(resolve_url(None, Config(state_folder=config.state_folder))[0]), "outlast")
    return os.path.abspath(os.path.expanduser(path)) + ".logs"


def run_folder(folder: str, dag_id: str, run_id: str) -> str:
    """Return the folder that holds the logs of one run."""
    return os.path.join(folder, segment(dag_id), segment(run_id))


def remove_run_logs(folder: str, dag_id: str, run_id: str) -> None:
    """Remove the logs of one run."""
    shutil.rmtree(run_folder(folder, dag_id, run_id), ignore_errors=True)


def remove_logs(config: Config, url: str, runs: Iterable[tuple[str, str]]) -> None:
    """Remove the logs of runs of a store from the folder that belongs to it."""
    try:
        folder = log_folder(config, url)
    except ConfigError:  # of a database, and there is no home: nobody can have written any here
        return
    for dag_id, run_id in runs:
        remove_run_logs(folder, dag_id, run_id)


def segment(name: str) -> str:
    """Return an id as a file name: file systems allow 255 bytes."""
    if len(name.encode()) <= 200:
        return name
    return f"{name[:40]}~{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"
