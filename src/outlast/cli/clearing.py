"""`outlast tasks clear`: have task instances run again, with or without what they had stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import click
import msgspec

from .. import codec
from ..errors import Conflict, InvalidKey, NotFound, OutlastError
from ..people_requests import Touched, refuse_running
from ..run_requests import ENDED, RunRow, TaskRow
from ..store import Store
from ..values import Entry, JsonValue, TaskScope
from . import show
from .addresses import by_position, tasks_argument
from .asking import confirm, is_asked, pick
from .jobs import Job, Jobs, not_cancelled_line
from .opening import opened, state_of
from .options import Command, Place, as_json, at_place
from .person import person
from .run_views import failed_of, in_order, is_held, resume_line, run_name

__all__ = ["clear"]

#: Task instances listed before a question; the others are counted.
_SHOWN = 20
#: Keys told of one task instance.
_KEYS = 6

Stored: TypeAlias = dict[TaskScope, list[Entry]]


@click.command(cls=Command, short_help="Have task instances run again.")
@tasks_argument
@at_place
@click.option("--downstream", is_flag=True, help="Also everything that waits for them, at any distance.")
@click.option(
    "--keep-state/--discard-state",
    "keep",
    default=None,
    help="Keep what they stored, or remove it; default: asked on a terminal, else `[state_store] discard_on_clear`.",
)
@click.option("--forget", metavar="KEY", multiple=True, help="Remove this key in the same step, and keep the others.")
@click.option(
    "--cancel-job",
    is_flag=True,
    help="First cancel the jobs they have submitted, as `outlast tasks cancel` does; if one goes on, clear nothing.",
)
@click.option("--force", is_flag=True, help="Also instances of a mapped task that run; they are stopped first.")
@click.option("--dry-run", is_flag=True, help="Only say what would be cleared.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def clear(
    place: Place,
    scopes: list[TaskScope],
    of: tuple[str, str] | None,
    downstream: bool,
    keep: bool | None,
    forget: tuple[str, ...],
    cancel_job: bool,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Have task instances of a run run again, all in one step. Without INDEX every instance of a mapped task is meant.

    What they have stored is kept, unless you choose otherwise: so a task finds the job it had submitted, or goes on
    after the last item done. Discarding begins from the start; a job that still runs is forgotten by it, not
    cancelled, unless --cancel-job is given. Retries are counted anew and results go. Tasks below that were skipped or
    gave up because of them are cleared as well. An attempt that runs is stopped.

    \b
    outlast tasks clear nightly/2026-11-29/ingest
    outlast tasks clear nightly/2026-11-29/load/3 nightly/2026-11-29/load/4 --discard-state
    outlast tasks clear nightly/2026-11-29/load/3 --forget cursor
    outlast tasks clear nightly/2026-11-29/train --discard-state --cancel-job
    outlast tasks clear nightly/2026-11-29/ingest --downstream --dry-run
    outlast tasks clear nightly/2026-11-29/copy --item a.csv --item b.csv
    outlast tasks clear nightly/2026-11-29 --failed
    """
    with opened(place.url, create=False) as store:
        verbs = store.runs_as(person())
        dag_id, run_id, chosen = _chosen(store, scopes) if of is None else (*of, _failed(store, *of))
        would = _ordered(verbs.clear(dag_id, run_id, chosen, downstream=downstream, dry_run=True))
        stored: Stored = {task.scope: state_of(store, task.scope).entries() for task in would.tasks}
        jobs = _Submitted(store, would, stored, cancel_job)
        stored = {
            scope: _without(entries, forget if _is_meant(scope, chosen) else ()) for scope, entries in stored.items()
        }
        discard = (False if forget else None) if keep is None else not keep
        if not (yes or dry_run or as_json) and is_asked():
            _tell(store, would, stored)
            discard = _ask(store, would, stored, discard, jobs)
        likely = store.config.state_store.discard_on_clear if discard is None else discard
        if dry_run:
            _show_dry(store, would, stored, likely, jobs, as_json)
            return
        with jobs.telling():
            if cancel_job:
                if not force:
                    refuse_running(would.tasks, [place for place in chosen if not isinstance(place, str)])
                jobs.cancel()
            flags = {"downstream": downstream, "force": force}
            touched = _ordered(verbs.clear(dag_id, run_id, chosen, discard=discard, forget=forget, **flags))
        keys = sum(map(len, stored.values()))
        _show_cleared(touched, keys, likely, is_held(touched.run, store.clock()), jobs.forgotten(), place, as_json)


def _ordered(touched: Touched) -> Touched:
    return msgspec.structs.replace(touched, tasks=tuple(in_order(touched.tasks)))


def _chosen(store: Store, scopes: Sequence[TaskScope]) -> tuple[str, str, list[str | tuple[str, int]]]:
    """Return the run, and the tasks (or task and index) of it that are meant."""
    from .tasks import attempts_of

    runs = {(scope.dag_id, scope.run_id) for scope in scopes}
    if len(runs) > 1:
        raise InvalidKey("these task instances are of different runs; clear one run after the other")
    dag_id, run_id = runs.pop()
    found = [attempts_of(store, scope)[0].task.scope if scope.item is not None else scope for scope in scopes]
    return dag_id, run_id, [_place(scope) for scope in found]


def _is_meant(scope: TaskScope, chosen: Sequence[str | tuple[str, int]]) -> bool:
    return scope.task_id in chosen or (scope.task_id, scope.map_index) in chosen


def _without(entries: list[Entry], keys: Sequence[str]) -> list[Entry]:
    return [entry for entry in entries if entry.key not in keys]


def _failed(store: Store, dag_id: str, run_id: str) -> list[str | tuple[str, int]]:
    """Return the task instances of a run that have failed or were cancelled."""
    found = failed_of(store.runs_as(person()).get(dag_id, run_id))
    if not found:
        raise NotFound(f"run {dag_id}/{run_id} has no failed task instance; `outlast tasks ls` shows how they are")
    return [_place(task.scope) for task in found]


def _place(scope: TaskScope) -> str | tuple[str, int]:
    return scope.task_id if scope.map_index < 0 else (scope.task_id, scope.map_index)


class _Submitted:
    """The jobs of what is to be cleared: those a clear that discards would forget, or cancels first if `first`."""

    def __init__(self, store: Store, would: Touched, stored: Stored, first: bool) -> None:
        self.store, self.run, self.first, self.known = store, would.run, first, Jobs(store, would.run)
        found = [self.known.of(task, stored[task.scope]) for task in would.tasks]
        self.all: list[Job] = [job for job in found if job is not None]
        self.ended: list[str] = []
        self.cancelled: list[str] = []

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Say what was cancelled if then nothing is cleared."""
        try:
            yield
        except (OutlastError, click.exceptions.Exit):
            if self.ended or self.cancelled or self.first:
                ended = [f"cancelled meanwhile: {', '.join(self.ended)}"] if self.ended else []
                jobs = [f"jobs that do not run any more: {', '.join(self.cancelled)}"] if self.cancelled else []
                show.note("; ".join(["nothing was cleared", *ended, *jobs]))
            raise

    def cancel(self) -> None:
        """Cancel them, ending what runs before; where one goes on nothing is to be cleared, which ends the command."""
        verbs = self.store.runs_as(person())
        for job in self.all:
            if job.task.state not in ENDED:
                with suppress(Conflict):  # it has ended by itself meanwhile
                    verbs.mark(job.task.scope, "cancelled")
                    self.ended.append(job.address)
        left = self.known.cancel([job.task for job in self.all])
        for one in left:
            show.note(not_cancelled_line(one))
        if left:
            going_on = {one.address for one in left}
            self.cancelled = [f"{job.name} of {job.address}" for job in self.all if job.address not in going_on]
            raise click.exceptions.Exit(1)
        self.cancelled = [f"{job.name} of {job.address}" for job in self.all]
        for job in self.all:
            show.note(f"{job.name} of {job.address} does not run any more")

    def forgotten(self) -> list[Job]:
        """Return those that nothing leads to any more, and that nobody has cancelled."""
        return [] if self.first else [job for job in self.all if self.known.is_forgotten(job)]


# --- Asking --------------------------------------------------------------------------------------------------


def _tell(store: Store, would: Touched, stored: Stored) -> None:
    """Say what would be cleared, how much of it runs, and what each has stored."""
    show.note(f"{run_name(would.run)}: {_what(would.tasks)} would run again:")
    for task in would.tasks[:_SHOWN]:
        keys = _keys_text(store, stored[task.scope])
        show.note(f"  {by_position(task.scope)} ({task.state}){'' if keys is None else f', has stored {keys}'}")
    if len(would.tasks) > _SHOWN:
        show.note(f"  … and {len(would.tasks) - _SHOWN} more")


def _what(tasks: tuple[TaskRow, ...]) -> str:
    running = sum(task.state == "running" for task in tasks)
    stops = f", {running} of them running now, which would be stopped" if running else ""
    return f"{show.count(len(tasks), 'task instance')}{stops}"


def _keys_text(store: Store, entries: list[Entry]) -> str | None:
    """Return the keys with their sizes, None for none."""
    if not entries:
        return None
    shown = ", ".join(f"{entry.key} ({_bytes(entry)} bytes)" for entry in entries[:_KEYS])
    return shown + (f" and {show.count(len(entries) - _KEYS, 'more key')}" if len(entries) > _KEYS else "")


def _bytes(entry: Entry) -> int:
    return len(codec.dump(entry.value))


def _ask(store: Store, would: Touched, stored: Stored, discard: bool | None, jobs: _Submitted) -> bool | None:
    """Ask whether to go on and, where it matters and is not said yet, what to do with the state."""
    if jobs.first:
        for job in jobs.all:
            show.note(f"{job.name} of {job.address} is cancelled first.")
    if discard is not None or not any(stored.values()):
        _confirm(discard, jobs)
        return discard
    entries, said = _telling(stored, jobs)
    show.note(f"keep:    the next attempt {_next_with(store, entries, said)}")
    show.note(f"discard: the next attempt {_next_without(said, jobs.first)}")
    answer = pick("Their state:", ["keep", "discard", "stop"], _default(store))
    if answer == "stop":
        show.note("nothing was cleared")
        raise click.exceptions.Exit(1)
    return bool(answer == "discard")


def _default(store: Store) -> str:
    return "discard" if store.config.state_store.discard_on_clear else "keep"


def _telling(stored: Stored, jobs: _Submitted) -> tuple[list[Entry], Job | None]:
    """Return what stands for all that is stored: the state of a task instance with a job, else the first there is."""
    if jobs.all:
        return stored[jobs.all[0].task.scope], jobs.all[0]
    return next(entries for entries in stored.values() if entries), None


def _confirm(discard: bool | None, jobs: _Submitted) -> None:
    told = {None: "None of them has stored anything.", True: "Their state is discarded.", False: "Their state is kept."}
    lines = [] if jobs.first or not discard else [_would_forget(job) for job in jobs.all[:_SHOWN]]
    confirm("\n".join([*lines, told[discard]]), "Clear them?", "nothing was cleared")


def _next_with(store: Store, entries: list[Entry], job: Job | None) -> str:
    """Say what an attempt finds that has these entries, as far as their keys tell."""
    if job is not None:
        return f"finds {job.name} and asks whether it still runs"
    found = {entry.key: entry for entry in entries if not show.is_secret(store.config, entry.key, reveal=False)}
    done = next((_done(entry.value) for entry in found.values() if _done(entry.value) is not None), None)
    if done is not None:
        return f"goes on after item {done:,}"
    keys = ", ".join(entry.key for entry in entries[:_KEYS])
    return f"finds {keys}{' and more' if len(entries) > _KEYS else ''}, and goes on from there"


def _done(value: JsonValue) -> int | None:
    """Return how many items a checkpoint's mark, or a progress, says are done."""
    match value:
        case {"done": int(done)}:
            return done
    return None


def _next_without(job: Job | None, cancelled: bool) -> str:
    if job is None:
        return "begins from the start, as if none had run before"
    return f"submits its job anew{'' if cancelled else ', even if the old one is still running'}"


def _would_forget(job: Job) -> str:
    return f"{job.name} of {job.address} would be forgotten, not cancelled: if it runs, it goes on. {_remedy(job)}"


def _has_forgotten(job: Job) -> str:
    return f"{job.name} of {job.address} was forgotten, not cancelled: if it runs, it goes on and is yours to end."


def _remedy(job: Job) -> str:
    if job.task.state in ENDED:
        return "To end it first: --cancel-job"
    return f"To end it first: --cancel-job, or outlast tasks cancel {job.address}"


# --- What was done -------------------------------------------------------------------------------------------


def _show_dry(store: Store, would: Touched, stored: Stored, discard: bool, jobs: _Submitted, as_json: bool) -> None:
    keys = sum(map(len, stored.values()))
    left = jobs.all if discard and not jobs.first else []
    if as_json:
        show.document(_document(would, discard, keys, True, None, left))
        return
    show.line(f"would clear {_what(would.tasks)}; {_state_text(keys, discard)}")
    for task in would.tasks:
        text = _keys_text(store, stored[task.scope])
        show.line(f"{by_position(task.scope)} ({task.state}){'' if text is None else f', has stored {text}'}")
    for job in left:
        show.line(_would_forget(job))


def _show_cleared(
    touched: Touched, keys: int, discard: bool, held: bool, forgotten: list[Job], place: Place, as_json: bool
) -> None:
    run = touched.run
    go_on = None if held else resume_line(run, place.url)
    if as_json:
        show.document(_document(touched, discard, keys, False, go_on, forgotten))
        return
    show.line(f"cleared {show.count(len(touched.tasks), 'task instance')}; {_state_text(keys, discard)}")
    for task in touched.tasks if len(touched.tasks) <= _SHOWN else ():
        show.line(f"  {by_position(task.scope)}")
    for job in forgotten:
        show.line(_has_forgotten(job))
    show.line(_going_on(run) if go_on is None else f"to run them: {go_on}")


def _going_on(run: RunRow) -> str:
    assert run.holder is not None
    return f"the run's runner (process {run.holder.pid} on {run.holder.host}) goes on with them"


def _state_text(keys: int, discard: bool) -> str:
    if not keys:
        return "they have stored nothing"
    return f"{show.count(keys, 'key')} {'discarded' if discard else 'kept'}"


def _document(
    touched: Touched, discard: bool, keys: int, dry_run: bool, go_on: str | None, forgotten: list[Job]
) -> dict[str, Any]:
    return {
        "run": run_name(touched.run),
        "dry_run": dry_run,
        "cleared": [by_position(task.scope) for task in touched.tasks],
        "keys": keys,
        "discarded": discard,
        "forgotten": [{"address": job.address, "job": job.name} for job in forgotten],
        "go_on": go_on,
    }
