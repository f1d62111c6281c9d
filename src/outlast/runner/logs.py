"""Where task logs are: one file an attempt, `FOLDER/DAG/RUN/TASK[/INDEX or item KEY]/attempt-N.log`."""

from __future__ import annotations

import os
from typing import TypeAlias

from ..errors import ConfigError
from ..log_files import run_folder, segment
from ..values import TaskScope

__all__ = ["Log", "check_logs", "log_of", "log_path", "trigger_log", "watcher_log"]

#: Whose log it is that a trigger writes: a task instance's, or a watcher's, by its name.
Log: TypeAlias = TaskScope | str


def check_logs(folder: str) -> None:
    """Raise ConfigError if task logs cannot be written to a folder; it is made if it does not exist."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder for task logs: {error}; see [runner] logs_dir") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"task logs cannot be written to {folder}; check its mode, or set [runner] logs_dir")


def log_path(folder: str, scope: TaskScope, attempt: int) -> str:
    """Return the log file of one attempt."""
    return os.path.join(
        run_folder(folder, scope.dag_id, scope.run_id),
        segment(scope.task_id),
        *_place(scope),
        f"attempt-{attempt}.log",
    )


def log_of(folder: str, log: Log) -> str:
    """Return the file for what a trigger logs."""
    return watcher_log(folder, log) if isinstance(log, str) else trigger_log(folder, log)


def trigger_log(folder: str, scope: TaskScope) -> str:
    """Return the file for what the triggers of a task instance log: beside the logs of its attempts."""
    return os.path.join(os.path.dirname(log_path(folder, scope, 1)), "trigger.log")


def watcher_log(folder: str, name: str) -> str:
    """Return the file for what a watcher of assets logs."""
    return os.path.join(folder, "watchers", f"{name}.log")


def _place(scope: TaskScope) -> list[str]:
    if scope.item is not None:  # whose attempts are counted wherever it is
        return [segment("item " + scope.item.replace("%", "%25").replace("/", "%2F"))]
    return [] if scope.map_index < 0 else [str(scope.map_index)]
