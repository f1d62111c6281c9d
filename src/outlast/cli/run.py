"""`outlast run FILE`: run a DAG file to its end in the foreground, and go on where a run was left."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..codec import parse
from ..errors import DagError, InvalidValue
from ..store import Store
from .opening import opened
from .options import Place, at_place
from .show import note

if TYPE_CHECKING:
    from ..dags.graph import DAG
    from ..runner.opening import Opening

__all__ = ["run"]

EXITS = {"success": 0, "failed": 1, "cancelled": 3, "paused": 75}


@click.command(short_help="Run a DAG file to its end, and resume it after a crash.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--dag", "dag_id", metavar="ID", help="Which DAG of the file, when it has several.")
@click.option("--run-id", metavar="ID", help="Name the run; a run of that name that has not ended is gone on with.")
@click.option("--resume", is_flag=True, help="Go on with the newest run that has not ended, else start one (for cron).")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter; JSON, or else plain text.")
@click.option("--logical-date", metavar="ISO", help="The moment the run is about, of a new run. Default: now.")
@at_place
def run(
    file: str,
    dag_id: str | None,
    run_id: str | None,
    resume: bool,
    params: Sequence[str],
    logical_date: str | None,
    place: Place,
) -> None:
    """Run the DAG in FILE to its end, in the foreground.

    A task that fails is tried again as its `retries` say; one whose process dies is tried again at once. The next
    attempt finds what the one before stored. Ctrl-C, SIGTERM or the death of this command is a pause: no retry is
    used, and the same command with --resume goes on; tasks that have finished are not run again.

    \b
    outlast run ingest.py                       start a run
    outlast run ingest.py --resume              go on with the newest unfinished run, else start one
    outlast run ingest.py --param day=2026-11-29 --run-id 2026-11-29

    Exit status: 0 success, 1 failed, 3 cancelled, 75 paused.
    """
    if run_id is not None and resume:
        raise click.UsageError("--run-id and --resume exclude each other: --run-id ID alone goes on with that run")
    from ..dags.loading import load_file, pick_dag

    given = dict(_parameter(text) for text in params)
    loaded = load_file(file)
    dag = pick_dag(loaded, dag_id)
    _say_schedule(dag, file)
    with opened(place.url, create=True) as store:
        from ..runner.opening import Opening

        opening = Opening(store, loaded, dag, _say, _countdown)
        end, chosen, problem = _run(store, dag, opening, run_id, resume, given, _moment(logical_date))
    if problem:
        _say(problem)
    if end == "paused":
        command = ["outlast", "run", file, *(["--dag", dag_id] if dag_id else []), "--run-id", chosen]
        command += ["--store", place.url] if place.url else []
        _say(f"paused; to go on: {shlex.join(command)}")
    sys.exit(EXITS[end])


def _run(
    store: Store,
    dag: DAG,
    opening: Opening,
    run_id: str | None,
    resume: bool,
    params: dict[str, Any],
    logical_date: datetime | None,
) -> tuple[str, str, str | None]:
    from ..runner.loop import Runner
    from ..runner.opening import new_run_id, newest_unfinished
    from .progress import display

    chosen = newest_unfinished(store, dag.dag_id) if resume else run_id
    if chosen is not None and opening.exists(chosen):
        row = opening.resume(chosen, params)
    else:
        row = opening.start(chosen or new_run_id(store.clock()), params, logical_date)
    with display(store, dag, row) as observer:
        runner = Runner(store, dag, row, observer)
        end = runner.run()
    return end, row.run_id, runner.problem


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--param {text!r}: write KEY=VALUE, for instance --param day=2026-11-29")
    try:
        return name, parse(value, allow_none=True)
    except InvalidValue:
        return name, value


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--logical-date {text!r}: write an ISO date, for instance 2026-11-29") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}


def _say_schedule(dag: DAG, file: str) -> None:
    """Say once that a time schedule is not acted on, with the line cron needs."""
    schedule = dag.schedule
    if not isinstance(schedule, str) or schedule in ("@once", "@continuous"):
        return
    line = _PRESETS.get(schedule, schedule)
    if len(line.split()) != 5:
        raise DagError(f"schedule={schedule!r} of {dag.dag_id} is neither a cron expression nor a preset like '@daily'")
    command = f"{shlex.quote(os.path.abspath(sys.argv[0]))} run {shlex.quote(os.path.abspath(file))} --resume"
    _say(f"the schedule {schedule!r} is not acted on here; for cron: {line} {command}")


def _say(text: str) -> None:
    from .progress import unseen

    with unseen():
        note(f"outlast: {text}")


def _countdown(seconds: float) -> None:
    """Tell how long the runner before may still be alive."""
    text = f"another host holds this run; it is taken over in {seconds:.0f} s unless it shows signs of life"
    click.echo(f"\r{text} " if sys.stderr.isatty() else f"outlast: {text}", err=True, nl=not sys.stderr.isatty())
