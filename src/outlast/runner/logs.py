"""Where task logs are: one file an attempt, `FOLDER/DAG/RUN/TASK[/INDEX or item KEY]/attempt-N.log`."""

from __future__ import annotations

import hashlib
import os
import shutil

from ..config import Config, resolve_url
from ..errors import ConfigError
from ..values import TaskScope

__all__ = ["check_logs", "log_folder", "log_path", "remove_run_logs", "run_folder", "trigger_log", "watcher_log"]


def log_folder(config: Config, url: str) -> str:
    """Return the folder for task logs: `[runner] logs_dir`, else one beside the store's file."""
    if config.runner.logs_dir:
        return os.path.abspath(os.path.expanduser(config.runner.logs_dir))
    path = url.removeprefix("sqlite:").removeprefix("///") if url.startswith("sqlite:") else url
    if "://" in path or path == ":memory:":
        path = os.path.join(os.path.dirname(resolve_url(None, Config(state_folder=config.state_folder))[0]), "outlast")
    return os.path.abspath(os.path.expanduser(path)) + ".logs"


def check_logs(folder: str) -> None:
    """Raise ConfigError if task logs cannot be written to a folder; it is made if it does not exist."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder for task logs: {error}; see [runner] logs_dir") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"task logs cannot be written to {folder}; check its mode, or set [runner] logs_dir")


def run_folder(folder: str, dag_id: str, run_id: str) -> str:
    """Return the folder that holds the logs of one run."""
    return os.path.join(folder, _segment(dag_id), _segment(run_id))


def log_path(folder: str, scope: TaskScope, attempt: int) -> str:
    """Return the log file of one attempt."""
    return os.path.join(
        run_folder(folder, scope.dag_id, scope.run_id),
        _segment(scope.task_id),
        *_place(scope),
        f"attempt-{attempt}.log",
    )


def trigger_log(folder: str, scope: TaskScope) -> str:
    """Return the file for what the triggers of a task instance log: beside the logs of its attempts."""
    return os.path.join(os.path.dirname(log_path(folder, scope, 1)), "trigger.log")


def watcher_log(folder: str, name: str) -> str:
    """Return the file for what a watcher of assets logs."""
    return os.path.join(folder, "watchers", f"{name}.log")


def _place(scope: TaskScope) -> list[str]:
    if scope.item is not None:  # whose attempts are counted wherever it is
        return [_segment("item " + scope.item.replace("%", "%25").replace("/", "%2F"))]
    return [] if scope.map_index < 0 else [str(scope.map_index)]


def remove_run_logs(folder: str, dag_id: str, run_id: str) -> None:
    """Remove the logs of one run."""
    shutil.rmtree(run_folder(folder, dag_id, run_id), ignore_errors=True)


def _segment(name: str) -> str:
    """Return an id as a file name: file systems allow 255 bytes."""
    if len(name.encode()) <= 200:
        return name
    return f"{name[:40]}~{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"
