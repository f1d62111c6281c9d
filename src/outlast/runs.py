"""Runs and task instances as people see and steer them: list, show, clear, mark, cancel, delete, prune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from .codec import load
from .errors import NotFound
from .finding import is_pattern, matches
from .people_requests import AuditPage, AuditRow, CancelRun, ClearTasks, ListAudit, MarkTask, Touched
from .plans import Plan, awaiting, blocking
from .run_requests import (
    Attempts,
    DeleteRun,
    GetRun,
    ListAttempts,
    ListRuns,
    ProcessRef,
    Pruned,
    PruneRuns,
    PullResults,
    Results,
    RunDetail,
    RunPage,
    RunRow,
)
from .values import JsonValue, TaskScope, Writer, check_key

if TYPE_CHECKING:
    from .backends import Backend
    from .config import Config
    from .values import Clock

__all__ = ["Runs"]

Counted: TypeAlias = list[tuple[RunRow, dict[str, int]]]
Names: TypeAlias = list[tuple[str, str]]
Audited: TypeAlias = list[AuditRow]

_DAY = 24 * 3600 * 1_000_000


class Runs:
    """Made by `Store.runs_as()`. What it changes is audited under `writer`; each verb has an awaiting twin."""

    def __init__(self, backend: Backend, config: Config, clock: Clock, writer: Writer) -> None:
        self.backend, self.config, self.clock, self.writer = backend, config, clock, writer

    def _list(self, *, dag_id: str | None = None, states: Sequence[str] = (), limit: int = 100) -> Plan[Counted]:
        """Return runs, newest first, each with the number of its task instances by state.

        `dag_id` is a name, or a pattern (`*`, `?`, `[…]`, case counts).
        """
        exact = dag_id if dag_id is None or not is_pattern(dag_id) else None
        found: Counted = []
        before: int | None = None
        while len(found) < limit:
            page: RunPage = yield ListRuns(exact, tuple(states), before, _page(limit - len(found), dag_id, exact))
            found += [counted for counted in page.runs if dag_id is None or matches(counted[0].dag_id, dag_id)]
            before = page.before
            if before is None:
                break
        return found[:limit]

    def _get(self, dag_id: str, run_id: str) -> Plan[RunDetail]:
        """Return a run with its task instances; NotFound if there is none."""
        return (yield GetRun(dag_id, run_id))  # type: ignore[no-any-return]

    def _attempts(self, scope: TaskScope) -> Plan[Attempts]:
        """Return a task instance with all its attempts, oldest first; NotFound if no run has it."""
        return (yield ListAttempts(scope))  # type: ignore[no-any-return]

    def _result(self, scope: TaskScope, name: str = "return_value") -> Plan[JsonValue]:
        """Return what a task instance returned, or pushed under a name; NotFound if there is no such result."""
        indexes = (scope.map_index,)
        found: Results = yield PullResults(scope.dag_id, scope.run_id, (scope.task_id,), name, indexes)
        if not found.rows:
            raise NotFound(f"{scope} has no result {name!r}; it has not succeeded yet, or returned nothing")
        return load(found.rows[0][2])

    def _clear(
        self,
        dag_id: str,
        run_id: str,
        tasks: Sequence[str | tuple[str, int]],
        *,
        discard: bool | None = None,
        downstream: bool = False,
        force: bool = False,
        dry_run: bool = False,
        forget: Sequence[str] = (),
    ) -> Plan[Touched]:
        """Have task instances run again, keeping their state unless `discard` (None: as tasks and settings say).

        `tasks` are task ids (every index of a mapped one) or (task id, map index); they lose the keys to `forget`, all
        in one step. Conflict while an index of a
        mapped task runs that was not named, unless `force`; NotFound for a task instance the run does not have.
        """
        chosen = tuple((task, None) if isinstance(task, str) else task for task in tasks)
        default = self.config.state_store.discard_on_clear
        keys = tuple(check_key(key) for key in forget)
        flags = (discard, downstream, force, dry_run, default, keys)
        return (yield ClearTasks(dag_id, run_id, chosen, self.writer, *flags))  # type: ignore[no-any-return]

    def _mark(self, scope: TaskScope, state: Literal["success", "failed", "cancelled"]) -> Plan[Touched]:
        """Set a task instance's state by hand; an attempt that runs is fenced.

        Conflict when one that has ended is to be cancelled.
        """
        clear_state = self.config.state_store.clear_on_success
        return (yield MarkTask(scope, state, self.writer, clear_state))  # type: ignore[no-any-return]

    def _cancel(self, dag_id: str, run_id: str) -> Plan[Touched]:
        """Cancel a run and what has not ended of it; Conflict if it has ended."""
        return (yield CancelRun(dag_id, run_id, self.writer))  # type: ignore[no-any-return]

    def _delete(
        self, dag_id: str, run_id: str, *, force: bool = False, instead_of: ProcessRef | None = None
    ) -> Plan[None]:
        """Remove a run with its state, history and results; Conflict while it is being run, unless `force`.

        The hold of `instead_of`, a runner known to be dead, does not count.
        """
        yield DeleteRun(dag_id, run_id, self.writer, force, instead_of)

    def _prune(
        self,
        *,
        keep_days: int | None = None,
        dry_run: bool = False,
        removed: Callable[[Names], None] | None = None,
    ) -> Plan[Names]:
        """Remove runs that ended more than `keep_days` ago (None: `[runner] keep_runs_days`; 0: none); return them.

        `removed` is told of each batch as (dag id, run id), so that what belongs to it elsewhere can go as well.
        """
        days = self.config.runner.keep_runs_days if keep_days is None else keep_days
        names: Names = []
        more = days > 0
        while more:
            limit = 1_000_000 if dry_run else 20
            batch: Pruned = yield PruneRuns(self.clock() - days * _DAY, limit, dry_run, self.writer)
            names, more = [*names, *batch.runs], batch.more
            if removed is not None:
                removed([*batch.runs])
        return names

    def _audit(self, *, dag_id: str | None = None, limit: int = 100) -> Plan[Audited]:
        """Return what people changed, newest first; `dag_id` is a name, or a pattern."""
        exact = dag_id if dag_id is None or not is_pattern(dag_id) else None
        found: Audited = []
        before: int | None = None
        while len(found) < limit:
            page: AuditPage = yield ListAudit(before, _page(limit - len(found), dag_id, exact), exact)
            found += [row for row in page.rows if dag_id is None or matches(row.dag_id or "", dag_id)]
            before = page.before
            if before is None:
                break
        return found[:limit]

    list, alist = blocking(_list), awaiting(_list)
    get, aget = blocking(_get), awaiting(_get)
    attempts, aattempts = blocking(_attempts), awaiting(_attempts)
    result, aresult = blocking(_result), awaiting(_result)
    clear, aclear = blocking(_clear), awaiting(_clear)
    mark, amark = blocking(_mark), awaiting(_mark)
    cancel, acancel = blocking(_cancel), awaiting(_cancel)
    delete, adelete = blocking(_delete), awaiting(_delete)
    prune, aprune = blocking(_prune), awaiting(_prune)
    audit, aaudit = blocking(_audit), awaiting(_audit)


def _page(left: int, wanted: str | None, exact: str | None) -> int:
    """Return how many to ask for: no more than are left, or a full page where a pattern passes over some."""
    return min(left, 500) if wanted == exact else 500
