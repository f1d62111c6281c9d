"""Runs and task instances as people write them, DAG/RUN and DAG/RUN/TASK[/INDEX], completed from the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from ..errors import InvalidKey, OutlastError
from ..run_requests import GetRun, ListRuns, RunDetail, RunPage
from ..store import Store
from ..values import TaskScope, check_id, parse_task
from .opening import opened

__all__ = ["parse_instance", "parse_run", "run_argument", "task_argument", "tasks_argument"]

F = TypeVar("F", bound=Callable[..., Any])

#: Runs offered for one completion, at most: a person is waiting.
MOST = 200


def parse_run(address: str) -> tuple[str, str]:
    """Return the dag id and run id of an address DAG/RUN; InvalidKey for anything else."""
    parts = address.split("/")
    if len(parts) != 2:
        more = "; that is the address of a task instance" if len(parts) in (3, 4) else ""
        raise InvalidKey(f"{address!r} is not a run{more}; write DAG/RUN, as `outlast runs ls` shows it")
    return check_id(parts[0], "dag_id"), check_id(parts[1], "run_id")


def parse_instance(address: str) -> TaskScope:
    """Return the task instance of an address DAG/RUN/TASK[/INDEX]; InvalidKey for anything else."""
    if len(address.split("/")) == 2:
        raise InvalidKey(f"{address!r} is a run; name a task of it: `outlast tasks ls {address}` shows them")
    return parse_task(address)


def by_position(scope: TaskScope) -> str:
    """Return the address of a task instance as every command takes it, also where its state follows its item."""
    return str(msgspec.structs.replace(scope, item=None))


def run_argument(command: F) -> F:
    """Give a command the run it is about."""
    return click.argument("address", metavar="DAG/RUN", shell_complete=_complete_run)(command)


def task_argument(command: F) -> F:
    """Give a command the task instance it is about."""
    return click.argument("address", metavar="DAG/RUN/TASK[/INDEX]", shell_complete=_complete_task)(command)


def tasks_argument(command: F) -> F:
    """Give a command the task instances it is about, one or more."""
    metavar = "DAG/RUN/TASK[/INDEX]…"
    argument = click.argument("addresses", metavar=metavar, nargs=-1, required=True, shell_complete=_complete_task)
    return argument(command)


def _complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, _runs)


def _complete_task(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, incomplete, _tasks if incomplete.count("/") >= 2 else _runs_to_go_on)


def _complete(ctx: click.Context, incomplete: str, names: Callable[[Store, str], list[str]]) -> list[CompletionItem]:
    logging.getLogger("outlast").disabled = True  # a warning would land in the middle of the line
    try:
        with opened(ctx.params.get("url"), create=False) as store:
            return [CompletionItem(name) for name in names(store, incomplete) if name.startswith(incomplete)]
    except OutlastError:
        return []


def _runs(store: Store, incomplete: str) -> list[str]:
    dag_id = incomplete.partition("/")[0] if "/" in incomplete else None
    page: RunPage = store.backend.send(ListRuns(dag_id, limit=MOST))
    return [f"{run.dag_id}/{run.run_id}" for run, _ in page.runs]


def _runs_to_go_on(store: Store, incomplete: str) -> list[str]:
    return [f"{name}/" for name in _runs(store, incomplete)]


def _tasks(store: Store, incomplete: str) -> list[str]:
    dag_id, run_id, *_ = incomplete.split("/")
    detail: RunDetail = store.backend.send(GetRun(dag_id, run_id))
    return [by_position(task.scope) for task in detail.tasks]
