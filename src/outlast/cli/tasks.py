"""`outlast tasks`: look at the task instances of a run; clear, cancel or mark them."""

from __future__ import annotations

from typing import Any, Literal

import click

from ..errors import NotFound
from ..people_requests import Touched
from ..run_requests import ENDED, Attempts, RunDetail, TaskRow
from ..store import Store
from ..values import Entry, JsonValue, TaskScope
from . import show
from .addresses import by_position, parse_run, run_argument, task_argument
from .asking import confirm
from .clearing import clear
from .explain import explain
from .jobs import Jobs, NotCancelled, not_cancelled_document, not_cancelled_line
from .meant import meant
from .opening import opened, state_of
from .options import Commands, Place, as_json, at_place, reveal
from .person import person
from .run_views import (
    age_text,
    attempt_document,
    command_line,
    facts,
    first_line,
    in_order,
    is_gone,
    is_held,
    process_text,
    resume_line,
    since_to,
    span,
    state_text,
    task_document,
    tasks_table,
    time_text,
)
from .show import Column

__all__ = ["attempts_of", "tasks"]


@click.group(cls=Commands)
def tasks() -> None:
    """Look at the task instances of a run; clear, cancel or mark them.

    A task instance has an ADDRESS, DAG/RUN/TASK, or DAG/RUN/TASK/INDEX where it is mapped.

    \b
    outlast tasks ls nightly/2026-11-29                    the task instances of a run
    outlast tasks show nightly/2026-11-29/ingest           one of them, with its attempts and what it has stored
    outlast tasks explain nightly/2026-11-29/ingest        what its next attempt would do, and why
    outlast tasks result nightly/2026-11-29/ingest         what it has returned
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
            show.document([task_document(store, task, now) for task in in_order(detail.tasks)])
        else:
            tasks_table(store, detail)


# --- show ----------------------------------------------------------------------------------------------------


@tasks.command("show", short_help="Show one task instance, its attempts and what it has stored.")
@task_argument
@at_place
@as_json
def show_task(place: Place, scope: TaskScope, as_json: bool) -> None:
    """Show one task instance: its state, every attempt and how it ended, its result, and the keys it has stored.

    \b
    outlast tasks show nightly/2026-11-29/ingest
    outlast tasks show nightly/2026-11-29/load/3
    outlast tasks show nightly/2026-11-29/copy --item orders.csv
    """
    with opened(place.url, create=False) as store:
        found, detail = attempts_of(store, scope)
        entries = state_of(store, found.task.scope).entries()
        if as_json:
            attempts = [attempt_document(attempt) for attempt in found.attempts]
            keys = [_key_document(entry) for entry in entries]
            more = {"result": _shown_result(store, found.task, reveal=False), "attempts": attempts, "keys": keys}
            show.document({**task_document(store, found.task, store.clock()), **more})
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
        raise meant(scope, detail) or error from None


def _show_task(store: Store, found: Attempts, detail: RunDetail) -> None:
    task, now = found.task, store.clock()
    gone = is_gone(detail.run, now)
    facts(
        [
            ("task", by_position(task.scope)),
            ("item", task.scope.item or ""),
            ("state", state_text(task.state, gone)),
            ("waits for", ", ".join(task.upstream)),
            ("try", str(task.attempt or "")),
            ("failures", str(task.failures or "")),
            ("crashes", str(task.crashes or "")),
            ("next attempt", time_text(task.due_at) if task.state == "up_for_retry" else ""),
            ("runs in", process_text(task.child) if task.state == "running" and not gone else ""),
            ("error", task.error or ""),
            ("result", _result_text(store, task)),
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


# --- result --------------------------------------------------------------------------------------------------

#: The name of what a task returns.
_RETURNED = "return_value"


@tasks.command(short_help="Print what a task instance has returned.")
@task_argument
@at_place
@click.option("--key", default=_RETURNED, show_default=True, help="What it has pushed under this key instead.")
@reveal
@as_json
def result(place: Place, scope: TaskScope, key: str, as_json: bool, reveal: bool) -> None:
    """Print what a task instance has returned, or pushed under a key, as JSON. Exit 4: there is no such result.

    \b
    outlast tasks result nightly/2026-11-29/ingest
    outlast tasks result nightly/2026-11-29/ingest --key rows --json
    """
    with opened(place.url, create=False) as store:
        found, _ = attempts_of(store, scope)
        value = store.runs_as(person()).result(found.task.scope, key)
        hidden = show.is_secret(store.config, key, reveal)
    if as_json:
        shown = {"key": key, "value": None if hidden else value, "masked": hidden}
        show.document({"address": by_position(found.task.scope), **shown})
    else:
        show.value(value, hidden, raw=False)


def _shown_result(store: Store, task: TaskRow, reveal: bool) -> JsonValue:
    """Return what a task instance has returned; None where there is nothing, or it is masked."""
    if show.is_secret(store.config, _RETURNED, reveal):
        return None
    try:
        return store.runs_as(person()).result(task.scope)
    except NotFound:
        return None


def _result_text(store: Store, task: TaskRow) -> str:
    value = _shown_result(store, task, reveal=False)
    return "" if value is None else show.cut(show.value_text(value))


# --- cancel and mark -----------------------------------------------------------------------------------------


@tasks.command(short_help="End one task instance before its time.")
@task_argument
@at_place
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def cancel(place: Place, scope: TaskScope, yes: bool, as_json: bool) -> None:
    """End one task instance before its time, and with it what waits for it. Asks first, on a terminal.

    An attempt that runs can store nothing more from that moment and is stopped within a second. The job a resumable
    task has submitted is cancelled with it, where its operator has a `cancel_job`: by the run's runner, or else by
    this command, which then says which job it could not cancel. Its state is kept, and `outlast tasks clear` runs it
    again. The rest of the run goes on.

    \b
    outlast tasks cancel nightly/2026-11-29/ingest
    """
    with opened(place.url, create=False) as store:
        found, detail = attempts_of(store, scope)
        task, jobs = found.task, Jobs(store, detail.run)
        if not yes and task.state not in ENDED:
            told = f"{by_position(task.scope)} is {task.state}. {jobs.prospect([task])}".strip()
            confirm(told, "Cancel it?", "nothing was cancelled")
        touched = store.runs_as(person()).mark(task.scope, "cancelled")
        is_left = task.state not in ENDED and is_held(touched.run, store.clock())  # to the runner
        left = [] if is_left else jobs.cancel(touched.tasks)
        _show_touched(touched, task, store.clock(), place, as_json, left)


@tasks.command(short_help="Take a task instance for done, or for failed.")
@click.argument("state", type=click.Choice(["success", "failed"]))
@task_argument
@at_place
@as_json
def mark(place: Place, state: Literal["success", "failed"], scope: TaskScope, as_json: bool) -> None:
    """Take a task instance for done, or for failed, without running it.

    An attempt that runs is stopped. What had given up because of it waits again when it is marked success. One that
    has ended so already is left as it is.

    \b
    outlast tasks mark success nightly/2026-11-29/ingest
    outlast tasks mark failed nightly/2026-11-29/load/3
    """
    with opened(place.url, create=False) as store:
        found, _ = attempts_of(store, scope)
        touched = store.runs_as(person()).mark(found.task.scope, state)
        _show_touched(touched, found.task, store.clock(), place, as_json)


def _show_touched(
    touched: Touched,
    before: TaskRow,
    now: int,
    place: Place,
    as_json: bool,
    left: list[NotCancelled] | None = None,
) -> None:
    """Say what a task instance was and is, and what goes on with its run."""
    run, (task,) = touched.run, touched.tasks
    held = is_held(run, now)
    go_on = None if held or run.state in ENDED else resume_line(run, place.url)
    if as_json:
        facts_of = {"address": by_position(task.scope), "before": before.state, "state": task.state}
        jobs = {} if left is None else {"not_cancelled": [not_cancelled_document(job) for job in left]}
        show.document({**facts_of, "run_state": run.state, "runner": held, "go_on": go_on, **jobs})
        return
    if before.state == task.state:
        show.line(f"{by_position(task.scope)} is {task.state} already; nothing was changed")
        for job in left or ():
            show.line(not_cancelled_line(job))
        if before.aftermath is not None and left == []:
            show.line("what was due after its end is done: a job it had submitted does not run any more")
        return
    show.line(f"{by_position(task.scope)} was {before.state} and is {task.state}")
    for job in left or ():
        show.line(not_cancelled_line(job))
    if before.state == "running" and held:
        show.line("its attempt is being stopped")
    if go_on is not None:
        show.line(f"to go on with the run: {go_on}")
