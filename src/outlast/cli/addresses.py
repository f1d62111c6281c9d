"""Runs and task instances as people write them, DAG/RUN and DAG/RUN/TASK[/INDEX], completed from the store."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from ..errors import InvalidKey, OutlastError
from ..run_requests import GetRun, ListRuns, RunDetail, RunPage
from ..store import Store
from ..values import TaskScope, check_id, item_scope, parse_task, task_scope
from .opening import opened

__all__ = ["by_position", "parse_instance", "parse_run", "run_argument", "task_argument", "tasks_argument"]

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


def parse_instance(address: str, item: str | None = None, map_index: int | None = None) -> TaskScope:
    """Return the task instance of an address DAG/RUN/TASK[/INDEX]; InvalidKey for anything else.

    `item` or `map_index` say which instance is meant where the address does not.
    """
    if len(address.split("/")) == 2:
        raise InvalidKey(f"{address!r} is a run; name a task of it: `outlast tasks ls {address}` shows them")
    scope = parse_task(address)
    if map_index is None:
        return item_scope(scope, item)
    if item is not None:
        raise click.UsageError("--item and --map-index exclude each other")
    if scope.map_index >= 0:
        raise InvalidKey(f"{address!r} has an index already; leave --map-index out")
    return task_scope(scope.dag_id, scope.run_id, scope.task_id, map_index)


def by_position(scope: TaskScope) -> str:
    """Return the address of a task instance as every command takes it, also where its state follows its item."""
    return str(msgspec.structs.replace(scope, item=None))


def run_argument(command: F) -> F:
    """Give a command the run it is about."""
    return click.argument("address", metavar="DAG/RUN", shell_complete=_complete_run)(command)


def task_argument(command: F) -> F:
    """Give a command the task instance it is about, as its `scope`."""

    @functools.wraps(command)
    def with_scope(*args: Any, address: str, item: str | None, map_index: int | None, **kwargs: Any) -> Any:
        return command(*args, scope=parse_instance(address, item, map_index), **kwargs)

    argument = click.argument("address", metavar="DAG/RUN/TASK[/INDEX]", shell_complete=_complete_task)
    return argument(_ITEM(_MAP_INDEX(with_scope)))  # type: ignore[return-value]


def tasks_argument(command: F) -> F:
    """Give a command the task instances it is about, one or more, as its `scopes`; with --failed, a run as its `of`."""

    @functools.wraps(command)
    def with_scopes(
        *args: Any,
        addresses: tuple[str, ...],
        item: tuple[str, ...],
        map_index: tuple[int, ...],
        failed: bool,
        **more: Any,
    ) -> Any:
        if failed:
            return command(*args, scopes=[], of=_failed_of(addresses, item or map_index), **more)
        return command(*args, scopes=_instances(addresses, item, map_index), of=None, **more)

    metavar = "DAG/RUN/TASK[/INDEX]…"
    argument = click.argument("addresses", metavar=metavar, nargs=-1, required=True, shell_complete=_complete_task)
    failed = click.option("--failed", is_flag=True, help="Every one that has failed or was cancelled, of a DAG/RUN.")
    return argument(_ITEMS(_MAP_INDEXES(failed(with_scopes))))  # type: ignore[return-value]


def _failed_of(addresses: Sequence[str], chosen: object) -> tuple[str, str]:
    """Return the run whose failed task instances are meant."""
    if len(addresses) > 1 or chosen:
        raise click.UsageError("--failed means every failed task instance of one run; give its DAG/RUN and no other")
    return parse_run(addresses[0])


def _instances(addresses: Sequence[str], items: Sequence[str], indexes: Sequence[int]) -> list[TaskScope]:
    """Return the task instances of some addresses, or of one with its items or indexes."""
    if len(addresses) > 1 and (items or indexes):
        raise click.UsageError("--item and --map-index say which instance of one task is meant; give one ADDRESS")
    if items and indexes:
        raise click.UsageError("--item and --map-index exclude each other")
    if not items and not indexes:
        return [parse_instance(address) for address in addresses]
    by_key = [parse_instance(addresses[0], item) for item in items]
    return by_key + [parse_instance(addresses[0], None, index) for index in indexes]


_ITEMS = click.option(
    "--item", metavar="KEY", multiple=True, help="The instance of this item, by the task's `map_key`; repeatable."
)
_MAP_INDEXES = click.option(
    "--map-index", metavar="INDEX", multiple=True, type=click.IntRange(min=0), help="The instance at INDEX; repeatable."
)
_ITEM = click.option("--item", metavar="KEY", help="The instance of this item, by the task's `map_key`.")
_MAP_INDEX = click.option("--map-index", metavar="INDEX", type=click.IntRange(min=0), help="The instance at INDEX.")


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
