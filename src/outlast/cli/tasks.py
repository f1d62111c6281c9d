"""`outlast tasks`: look at the task instances of a run; clear, cancel or mark them."""

from __future__ import annotations

from typing import Any, Literal

import click

from ..errors import NotFound
from ..run_requests import ENDED, Attempts, RunDetail, TaskRow, Touched
from ..store import Store
from ..values import Entry, TaskScope
from . import show
from .addresses import by_position, parse_instance, parse_run, run_argument, task_argument
from .asking import confirm
from .cancelling import cancel_jobs
from .clearing import clear
from .explain import explain
from .opening import opened, state_of
from .options import Place, as_json, at_place
from .person import person
from .run_views import (
    age_text,
    attempt_document,
    command_line,
    facts,
    first_line,
    is_gone,
    is_held,
    process_text,
    resume_line,
    run_name,
    since_to,
    span,
    state_text,
    task_document,
    tasks_table,
    time_text,
)
from .show import Column

__all__ = ["tasks"]


@click.group()
def tasks() -> None:
    """Look at the task instances of a run; clear, cancel or mark them.

    A task instance has an ADDRESS, DAG/RUN/TASK, or DAG/RUN/TASK/INDEX where it is mapped.

    \b
    outlast tasks ls nightly/2026-11-29                    the task instances of a run
    outlast tasks show nightly/2026-11-29/ingest           one of them, with its attempts and what it has stored
    outlast tasks explain nightly/2026-11-29/ingest        what its next attempt would do, and why
    outlast tasks clear nightly/2026-11-29/ingest          have it run again
    outlast tasks mark success nightly/2026-11-29/ingest   take it for done
    """


tasks.add_command(clear)
tasks.add_command(explain)


# --- ls ------------------------------------------------------------------------------------------------------


@tasks.command(short_help="List the task instances of a run.")
@run_argument
@at_place
@as_json
def ls(place: Place, address: str, as_json: bool) -> None:
    """List the task instances of a run: their state, tries, failures and crashes, times, progress and last error.

    Progress is what the task itself has stored under `progress` or `rows_loaded`.

    \b
    outlast tasks ls nightly/2026-11-29
    """
    with opened(place.url, create=False) as store:
        detail = store.runs_as(person()).get(*parse_run(address))
        if as_json:
            now = store.clock()
            show.document([task_document(store, task, now) for task in detail.tasks])
        else:
            tasks_table(store, detail)


# --- show ----------------------------------------------------------------------------------------------------


@tasks.command("show", short_help="Show one task instance, its attempts and what it has stored.")
@task_argument
@at_place
@as_json
def show_task(place: Place, address: str, as_json: bool) -> None:
    """Show one task instance: its state, every attempt and how it ended, and the keys it has stored with their sizes.

    \b
    outlast tasks show nightly/2026-11-29/ingest
    outlast tasks show nightly/2026-11-29/load/3
    """
    scope = parse_instance(address)
    with opened(place.url, create=False) as store:
        found, detail = attempts_of(store, scope)
        entries = state_of(store, found.task.scope).entries()
        if as_json:
            attempts = [attempt_document(attempt) for attempt in found.attempts]
            keys = [_key_document(entry) for entry in entries]
            show.document({**task_document(store, found.task, store.clock()), "attempts": attempts, "keys": keys})
            return
        _show_task(store, found, detail)
        _show_keys(entries)
    _show_next(found.task, detail, place.url)


def attempts_of(store: Store, scope: TaskScope) -> tuple[Attempts, RunDetail]:
    """Return a task instance with its attempts, and its run; NotFound says what the run has instead."""
    verbs = store.runs_as(person())
    detail = verbs.get(scope.dag_id, scope.run_id)
    try:
        return verbs.attempts(scope), detail
    except NotFound as error:
        raise _not_there(scope, detail) or error from None


def _not_there(scope: TaskScope, detail: RunDetail) -> NotFound | None:
    """Return an error that names what was probably meant; None where nothing is like it."""
    import difflib

    of_task = [task.scope.map_index for task in detail.tasks if task.scope.task_id == scope.task_id]
    if of_task and scope.map_index < 0:
        return NotFound(f"{scope} is mapped; name one of its instances: {scope}/{min(of_task)} to /{max(of_task)}")
    if of_task == [-1]:
        return NotFound(f"{scope.task_id} is not mapped; its address is {str(scope).rpartition('/')[0]}")
    if of_task:
        return NotFound(f"there is no {scope}; the task's instances are {min(of_task)} to {max(of_task)}")
    names = {task.scope.task_id for task in detail.tasks}
    near = difflib.get_close_matches(scope.task_id, names, n=3)
    run = run_name(detail.run)
    hint = f"did you mean {' or '.join(near)}?" if near else f"`outlast tasks ls {run}` lists those it has"
    return NotFound(f"run {run} has no task {scope.task_id}; {hint}")


def _show_task(store: Store, found: Attempts, detail: RunDetail) -> None:
    task, now = found.task, store.clock()
    gone = is_gone(detail.run, now)
    facts(
        [
            ("task", str(task.scope)),
            ("state", state_text(task.state, gone)),
            ("waits for", ", ".join(task.upstream)),
            ("try", str(task.attempt or "")),
            ("failures", str(task.failures or "")),
            ("crashes", str(task.crashes or "")),
            ("next attempt", time_text(task.due_at) if task.state == "up_for_retry" else ""),
            ("runs in", process_text(task.child) if task.state == "running" and not gone else ""),
            ("error", task.error or ""),
        ]
    )
    if found.attempts:
        show.line("")
        columns = [Column("ATTEMPT", True), Column("STATE"), Column("STARTED", narrow="keep"), Column("ELAPSED", True)]
        rows = [_attempt_cells(found, place, now, gone) for place in range(len(found.attempts))]
        show.table([*columns, Column("WHERE"), Column("ERROR", narrow="cut")], rows)


def _attempt_cells(found: Attempts, place: int, now: int, gone: bool) -> list[str]:
    attempt = found.attempts[place]
    ended_at = attempt.ended_at if attempt.state != "running" else None if gone else now
    times = [age_text(attempt.started_at), span(since_to(attempt.started_at, ended_at))]
    error = show.cut(first_line(attempt.error))
    state = state_text(attempt.state, gone)
    return [str(attempt.number), state, *times, process_text(attempt.supervisor), error]


def _show_keys(entries: list[Entry]) -> None:
    show.line("")
    if not entries:
        show.line("it has stored nothing")
        return
    columns = [Column("KEY"), Column("BYTES", True), Column("REVISION", True), Column("CHANGED", narrow="keep")]
    show.table([*columns, Column("EXPIRES", narrow="keep"), Column("BY")], [_key_cells(entry) for entry in entries])


def _key_cells(entry: Entry) -> list[str]:
    times = [show.age(entry.updated_at), show.age(entry.expires_at, "never")]
    return [entry.key, str(_bytes(entry)), str(entry.revision), *times, str(entry.writer)]


def _key_document(entry: Entry) -> dict[str, Any]:
    document = show.entry_document(entry, hidden=True)
    return {name: value for name, value in document.items() if name not in ("value", "masked")}


def _bytes(entry: Entry) -> int:
    size: int = show.entry_document(entry, hidden=True)["bytes"]
    return size


def _show_next(task: TaskRow, detail: RunDetail, url: str | None) -> None:
    if task.attempt:
        show.note(f"its log: {command_line('logs', by_position(task.scope), url=url)}")
    if task.state in ENDED and task.state != "success":
        show.note(f"to run it again: {command_line('tasks', 'clear', by_position(task.scope), url=url)}")


# --- cancel and mark -----------------------------------------------------------------------------------------


@tasks.command(short_help="End one task instance before its time.")
@task_argument
@at_place
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def cancel(place: Place, address: str, yes: bool, as_json: bool) -> None:
    """End one task instance before its time, and with it what waits for it. Asks first, on a terminal.

    An attempt that runs can store nothing more from that moment and is stopped within a second; the job a resumable
    task has submitted is cancelled with it. Its state is kept, and `outlast tasks clear` runs it again. The rest of
    the run goes on.

    \b
    outlast tasks cancel nightly/2026-11-29/ingest
    """
    scope = parse_instance(address)
    with opened(place.url, create=False) as store:
        found, _ = attempts_of(store, scope)
        if not yes and found.task.state not in ENDED:
            told = f"{scope} is {found.task.state}. A job it has submitted is cancelled with it."
            confirm(told, "Cancel it?", "nothing was cancelled")
        touched = store.runs_as(person()).mark(found.task.scope, "cancelled")
        if not is_held(touched.run, store.clock()):
            cancel_jobs(store, touched.run, touched.tasks)
        _show_touched(touched, found.task, store.clock(), place, as_json)


@tasks.command(short_help="Take a task instance for done, or for failed.")
@click.argument("state", type=click.Choice(["success", "failed"]))
@task_argument
@at_place
@as_json
def mark(place: Place, state: Literal["success", "failed"], address: str, as_json: bool) -> None:
    """Take a task instance for done, or for failed, without running it.

    An attempt that runs is stopped. What had given up because of it waits again when it is marked success.

    \b
    outlast tasks mark success nightly/2026-11-29/ingest
    outlast tasks mark failed nightly/2026-11-29/load/3
    """
    scope = parse_instance(address)
    with opened(place.url, create=False) as store:
        found, _ = attempts_of(store, scope)
        touched = store.runs_as(person()).mark(found.task.scope, state)
        _show_touched(touched, found.task, store.clock(), place, as_json)


def _show_touched(touched: Touched, before: TaskRow, now: int, place: Place, as_json: bool) -> None:
    """Say what a task instance was and is, and what goes on with its run."""
    run, (task,) = touched.run, touched.tasks
    held = is_held(run, now)
    go_on = None if held or run.state in ENDED else resume_line(run, place.url)
    if as_json:
        facts_of = {"address": by_position(task.scope), "before": before.state, "state": task.state}
        show.document({**facts_of, "run_state": run.state, "runner": held, "go_on": go_on})
        return
    show.line(f"{task.scope} was {before.state} and is {task.state}")
    if before.state == "running" and held:
        show.line("its attempt is being stopped")
    if go_on is not None:
        show.line(f"to go on with the run: {go_on}")
