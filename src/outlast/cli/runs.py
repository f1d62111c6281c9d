"""`outlast runs`: look at runs, cancel, remove or prune them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, get_args

import click

from ..log_files import log_folder, remove_run_logs, run_folder
from ..people_requests import Touched
from ..run_requests import ENDED, RunDetail, RunRow, RunState
from ..runner.processes import kill_groups
from ..store import Store
from ..values import moment
from . import show
from .addresses import by_position, parse_run, run_argument
from .asking import confirm
from .jobs import Jobs, NotCancelled, not_cancelled_document, not_cancelled_line
from .opening import opened
from .options import Commands, Place, as_json, at_place, reveal
from .person import person
from .run_views import (
    age_text,
    clear_line,
    command_line,
    counts_text,
    dead_holder,
    detail_document,
    facts,
    failed_of,
    is_gone,
    is_held,
    params_of,
    process_text,
    resume_line,
    run_document,
    run_name,
    run_seconds,
    run_state_text,
    span,
    tasks_table,
    time_text,
)
from .show import Column

__all__ = ["runs"]

_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(cls=Commands)
def runs() -> None:
    """Look at runs, cancel, remove or prune them.

    A run has an ADDRESS, DAG/RUN.

    \b
    outlast runs ls                          the newest runs
    outlast runs show nightly/2026-11-29     one run with its task instances
    outlast runs cancel nightly/2026-11-29   end it before its time
    outlast runs rm nightly/2026-11-29       remove it with everything its tasks stored
    outlast runs prune --dry-run             what is old enough to go
    """


# --- ls ------------------------------------------------------------------------------------------------------


@runs.command(short_help="List runs, newest first.")
@at_place
@click.option("--dag", metavar="DAG", help="Only runs of this dag; a name, or a pattern with * and ?.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(get_args(RunState)), help="Only in this state; repeatable."
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Stop after so many.")
@as_json
def ls(place: Place, dag: str | None, states: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List runs, newest first: their state, their task instances by state, when they began and how long they took.

    A run shown as `running (runner gone)` is one whose runner died without a word: `outlast run` goes on with it.

    \b
    outlast runs ls
    outlast runs ls --dag 'night*' --state paused --state failed
    """
    with opened(place.url, create=False) as store:
        found = store.runs_as(person()).list(dag_id=dag, states=states, limit=limit)
        now = store.clock()
    if as_json:
        show.document([run_document(run, counts, now) for run, counts in found])
    elif not found:
        show.note("there are no such runs" if dag or states else "there are no runs yet; `outlast run FILE` starts one")
    else:
        columns = [Column("RUN"), Column("STATE"), Column("TASKS"), Column("STARTED", narrow="keep")]
        show.table([*columns, Column("DURATION", True)], [_run_cells(run, counts, now) for run, counts in found])


def _run_cells(run: RunRow, counts: Mapping[str, int], now: int) -> list[str]:
    return [
        run_name(run),
        run_state_text(run, counts, now),
        counts_text(counts),
        age_text(run.started_at),
        span(run_seconds(run, now)),
    ]


# --- show ----------------------------------------------------------------------------------------------------


@runs.command("show", short_help="Show one run with its task instances.")
@run_argument
@at_place
@reveal
@as_json
def show_run(place: Place, address: str, as_json: bool, reveal: bool) -> None:
    """Show one run: its state, file, parameters and runner, a row for each task instance, and what to type next.

    \b
    outlast runs show nightly/2026-11-29
    """
    dag_id, run_id = parse_run(address)
    with opened(place.url, create=False) as store:
        detail = store.runs_as(person()).get(dag_id, run_id)
        if as_json:
            show.document(detail_document(store, detail, reveal))
            return
        _show_facts(store, detail, reveal)
        show.line("")
        tasks_table(store, detail)
        _show_next(detail, store.clock(), place.url)


def _show_facts(store: Store, detail: RunDetail, reveal: bool) -> None:
    run, now = detail.run, store.clock()
    counts: Counter[str] = Counter(task.state for task in detail.tasks)
    facts(
        [
            ("run", run_name(run)),
            ("state", run_state_text(run, counts, now)),
            ("file", run.file),
            ("logical date", show.when(moment(run.logical_date))),
            ("parameters", _params_text(store, run, reveal)),
            ("started", time_text(run.started_at)),
            ("ended", time_text(run.ended_at)),
            ("took" if run.ended_at else "has taken", span(run_seconds(run, now))),
            ("runner", _runner_text(run, now)),
            ("tasks", counts_text(counts)),
        ]
    )


def _params_text(store: Store, run: RunRow, reveal: bool) -> str:
    params, masked = params_of(run, store.config, reveal)
    return ", ".join(f"{name}={show.value_text(value, name in masked)}" for name, value in params.items())


def _runner_text(run: RunRow, now: int) -> str:
    if run.holder is None:
        return ""
    if is_held(run, now):
        return process_text(run.holder)
    why = "is dead" if dead_holder(run) else f"has shown no sign of life since {time_text(run.lease_until)}"
    return f"{process_text(run.holder)} {why}"


def _show_next(detail: RunDetail, now: int, url: str | None) -> None:
    """Say what to type next where a run needs somebody."""
    run = detail.run
    failed, again = failed_of(detail), clear_line(detail, url)
    if run.state == "paused" or is_gone(run, now):
        show.note(f"to go on: {resume_line(run, url)}")
    elif run.state in ENDED and again is not None:
        one = len(failed) == 1
        show.note(f"to run {'it' if one else 'them'} again: {again}")
        log = command_line("logs", by_position(failed[0].scope), url=url)
        show.note(f"its log: {log}" if one else f"the log of the first: {log}")


# --- cancel --------------------------------------------------------------------------------------------------


@runs.command(short_help="End a run before its time.")
@run_argument
@at_place
@_yes
@as_json
def cancel(place: Place, address: str, yes: bool, as_json: bool) -> None:
    """End a run before its time: what has not ended of it is cancelled. Asks first, on a terminal.

    Attempts that run can store nothing more from that moment; the run's runner notices within a second and stops
    them. The jobs that resumable tasks have submitted are cancelled, where their operators have a `cancel_job`: by
    the runner, or else by this command, which then says which it could not cancel. State is kept, and
    `outlast tasks clear` runs a task again.

    \b
    outlast runs cancel nightly/2026-11-29
    """
    dag_id, run_id = parse_run(address)
    with opened(place.url, create=False) as store:
        verbs = store.runs_as(person())
        detail = verbs.get(dag_id, run_id)
        jobs = Jobs(store, detail.run)
        if not yes and detail.run.state not in ENDED:
            confirm(_cancelling(detail, jobs), "Cancel it?", "nothing was cancelled")
        touched = verbs.cancel(dag_id, run_id)
        held = is_held(touched.run, store.clock())
        left = [] if held and detail.run.state not in ENDED else jobs.cancel(touched.tasks)
    if as_json:
        show.document(_cancelled_document(touched, held, left))
        return
    number = show.count(len(touched.tasks), "task instance")
    if detail.run.state in ENDED:
        show.line(f"{run_name(touched.run)} had ended; what was still due after {number} of it was tried again")
    else:
        _show_cancelled(touched.run, number, held)
    for job in left:
        show.line(not_cancelled_line(job))


def _show_cancelled(run: RunRow, number: str, held: bool) -> None:
    show.line(f"cancelled {run_name(run)}: {number} had not ended")
    if held:
        show.line(f"its runner ({process_text(run.holder)}) notices within a second and stops what still runs")
    else:
        show.line("no runner holds it: it has ended now")


def _cancelling(detail: RunDetail, jobs: Jobs) -> str:
    unended = [task for task in detail.tasks if task.state not in ENDED]
    running = sum(task.state == "running" for task in unended)
    of = f"{len(unended)} of {show.count(len(detail.tasks), 'task instance')}"
    told = f"{run_name(detail.run)}: {of} have not ended, {running} of them run. {jobs.prospect(unended)}"
    return told.strip()


def _cancelled_document(touched: Touched, held: bool, left: list[NotCancelled]) -> dict[str, Any]:
    return {
        "run": run_name(touched.run),
        "cancelled": [by_position(task.scope) for task in touched.tasks],
        "runner_stops_it": held,
        "not_cancelled": [not_cancelled_document(job) for job in left],
    }


# --- rm ------------------------------------------------------------------------------------------------------


@runs.command(short_help="Remove a run with everything its tasks stored.")
@run_argument
@at_place
@click.option("--force", is_flag=True, help="Also while a runner holds it; what runs is stopped.")
@_yes
@as_json
def rm(place: Place, address: str, force: bool, yes: bool, as_json: bool) -> None:
    """Remove a run with the state of its tasks, its history, results and logs. Asks first, on a terminal.

    Nothing brings them back. What assets keep stays. A run that a runner holds is refused without --force.

    \b
    outlast runs rm nightly/2026-11-29
    """
    dag_id, run_id = parse_run(address)
    with opened(place.url, create=False) as store:
        verbs = store.runs_as(person())
        detail = verbs.get(dag_id, run_id)
        entries = sum(info.entries for info in store.scopes(dag_id=dag_id, run_id=run_id))
        what = f"{show.count(len(detail.tasks), 'task instance')} and {show.count(entries, 'entry', 'entries')}"
        if not yes and (force or not is_held(detail.run, store.clock())):
            told = f"{run_name(detail.run)} has {what}. They go with their history, results and logs, for good."
            confirm(told, "Remove it?", "nothing was removed")
        verbs.delete(dag_id, run_id, force=force, instead_of=dead_holder(detail.run))
        kill_groups([process for task in detail.tasks for process in (task.supervisor, task.child)])
        logs = log_folder(store.config, store.url)
        remove_run_logs(logs, dag_id, run_id)
    if as_json:
        show.document({"removed": run_name(detail.run), "task_instances": len(detail.tasks), "entries": entries})
    else:
        show.line(f"removed {run_name(detail.run)}: {what}, and the logs in {run_folder(logs, dag_id, run_id)}")


# --- prune ---------------------------------------------------------------------------------------------------


@runs.command(short_help="Remove runs that ended long ago.")
@at_place
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option(
    "--keep-days",
    type=click.IntRange(min=1, max=1_000_000),
    metavar="N",
    help="Keep what ended less than N days ago; default: `[runner] keep_runs_days`.",
)
@_yes
@as_json
def prune(place: Place, dry_run: bool, keep_days: int | None, yes: bool, as_json: bool) -> None:
    """Remove runs that ended long ago, with state, history, results and logs. Asks first, on a terminal.

    Events of assets that are as old go too, once no run is left that made them or was started for them, and no DAG is
    still to be started for them. A run that has not ended stays, however old. `outlast run` does the same by itself, a
    few runs at a time. It works in batches, so that writers need not wait; interrupted, it goes on the next time.

    \b
    outlast runs prune --dry-run
    outlast runs prune --keep-days 30
    """
    with opened(place.url, create=False) as store:
        verbs = store.runs_as(person())
        days = store.config.runner.keep_runs_days if keep_days is None else keep_days
        names = verbs.prune(keep_days=days, dry_run=True)
        if not dry_run:
            if names and not yes:
                told = f"{show.count(len(names), 'run')} ended more than {show.count(days, 'day')} ago."
                confirm(told, "Remove them for good?", "nothing was removed")
            names = verbs.prune(keep_days=days, removed=_remover(store, len(names)))
    _show_pruned(names, days, dry_run, as_json)


def _remover(store: Store, total: int) -> Callable[[list[tuple[str, str]]], None]:
    """Return what removes the logs of each batch and tells a person how far it is."""
    logs, done = log_folder(store.config, store.url), 0

    def removed(batch: list[tuple[str, str]]) -> None:
        nonlocal done
        for dag_id, run_id in batch:
            remove_run_logs(logs, dag_id, run_id)
        done += len(batch)
        if sys.stderr.isatty():
            end = "\r\x1b[K" if not batch or done >= total else ""
            click.echo(f"\rremoved {done:,} of {total:,} runs …{end}", nl=False, err=True)

    return removed


def _show_pruned(names: list[tuple[str, str]], days: int, dry_run: bool, as_json: bool) -> None:
    addresses = [f"{dag_id}/{run_id}" for dag_id, run_id in names]
    if as_json:
        show.document({"dry_run": dry_run, "keep_days": days, "runs": addresses})
    elif not days:
        show.line(
            "[runner] keep_runs_days is 0, so runs are kept for ever; --keep-days N removes those older than that."
        )
    elif not names:
        show.line(f"No run ended more than {show.count(days, 'day')} ago.")
    elif dry_run:
        show.line(f"Would remove {show.count(len(names), 'run')} that ended more than {show.count(days, 'day')} ago:")
        for name in addresses:
            show.line(name)
    else:
        show.line(f"Removed {show.count(len(names), 'run')} that ended more than {show.count(days, 'day')} ago.")
