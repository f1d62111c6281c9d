"""`outlast run FILE`: run a DAG file to its end in the foreground, and go on where a run was left."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..backends import is_server
from ..codec import is_json, parse
from ..config import without_password
from ..errors import BackendError, Conflict, DagError, InvalidValue, OutlastError
from ..run_requests import RunDetail, RunRow
from ..store import Store
from .opening import fixed_url, opened
from .options import Command, Place, at_place
from .person import person
from .run_views import clear_line, command_line, failed_of, run_name
from .show import count, note

if TYPE_CHECKING:
    from ..dags.graph import DAG
    from ..dags.loading import LoadedFile
    from ..runner.loop import Observer
    from ..runner.opening import Opening
    from ..runner.session import Ended

__all__ = ["run"]

EXITS = {"success": 0, "failed": 1, "cancelled": 3, "paused": 75}


@click.command(cls=Command, short_help="Run a DAG file to its end, and resume it after a crash.")
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.option("--dag", "dag_id", metavar="ID", help="Only this DAG of those in the files. Default: all of them.")
@click.option("--run-id", metavar="ID", help="Name the run; a run of that name that has not ended is gone on with.")
@click.option("--resume", is_flag=True, help="Go on with the newest run that has not ended, else start one (for cron).")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A parameter; JSON, or else plain text.")
@click.option("--logical-date", metavar="ISO", help="The moment the run is about, of a new run. Default: now.")
@click.option("--keep", is_flag=True, help="Stay at the end, and run what is cleared or marked later. Ctrl-C ends it.")
@click.option("--ui", is_flag=True, help="Show the page meanwhile, to this machine: prints a link to open.")
@click.option("--server", metavar="URL", help="A server as the store: workers know its URL and a token of their own.")
@click.option("--run-as", metavar="USER", help="The user workers run as, with --server and if this is root.")
@at_place
def run(
    files: Sequence[str],
    dag_id: str | None,
    run_id: str | None,
    resume: bool,
    params: Sequence[str],
    logical_date: str | None,
    keep: bool,
    ui: bool,
    server: str | None,
    run_as: str | None,
    place: Place,
) -> None:
    """Run the DAGs in FILE… to their end, in the foreground.

    A task that fails is tried again as its `retries` say; one whose process dies is tried again at once. The next
    attempt finds what the one before stored. Ctrl-C, SIGTERM or the death of this command is a pause: no retry is
    used, and the same command with --resume goes on; tasks that have finished are not run again. A DAG whose
    schedule is assets begins when they have been updated.

    \b
    outlast run ingest.py                       start a run
    outlast run ingest.py --resume              go on with the newest unfinished run, else start one
    outlast run ingest.py --param day=2026-11-29 --run-id 2026-11-29
    outlast run ingest.py --ui --keep           watch it in a browser, and run what is cleared there
    outlast run producer.py consumer.py         the consumer begins when the producer has updated its assets
    outlast run ingest.py --server https://state.example.org
                                                keep everything behind a server, with a runner's token

    The last line says how the run has ended, and what to type to go on with it.

    \b
    Exit status: 0 success, 1 failed, 3 cancelled, 75 paused;
    9 the run is being run already, or has ended; 66 a file or DAG is wrong;
    69 the store could not be reached any more; 77 the server does not take the token.
    """
    if run_id is not None and resume:
        raise click.UsageError("--run-id and --resume exclude each other: --run-id ID alone goes on with that run")
    wanted = _Wanted(run_id, resume, dict(_parameter(text) for text in params), _moment(logical_date))
    given = _given(place.url, server)
    url = fixed_url(given)
    dags = _dags(files, dag_id)
    for loaded, dag in dags:
        _say_schedule(dag, loaded.path)
    paths = [loaded.path for loaded, _ in dags]
    with opened(url, create=True, reveal=True) as store, _ready(store, run_as, paths) as store, _page(store, ui):
        end = _run(store, dags, wanted, keep)
        after = {each.run.id: _again(store, each, given) for each in end.runs}
    again = _Again(given, server is not None, run_as)
    if end.lost is not None:
        _say(end.lost.message)
    for each in end.runs:
        if each.problem:
            _say(each.problem)
        go_on = f"to go on: {_resume_line(files, dag_id, each.run, again, several=len(dags) > 1)}"
        _say_end(each.run, each.end, go_on if each.end == "paused" else after[each.run.id])
    for run in end.left:
        go_on = f"to go on: {_resume_line(files, dag_id, run, again, several=len(dags) > 1)}"
        _say_end(run, "left, as the store could not be reached", go_on)
    if not end.runs and not end.left:
        _say(f"no run: {', '.join(dag.dag_id for _, dag in dags)} begins when its assets are updated")
    sys.exit(end.lost.exit_code if end.lost is not None else _exit_status([each.end for each in end.runs]))


class _Again(msgspec.Struct, frozen=True):
    """What to type besides the run to go on with it: where it is, and as whom workers run."""

    url: str | None
    is_server: bool = False
    run_as: str | None = None


def _given(store: str | None, server: str | None) -> str | None:
    """Return the store's URL that a person gave, with one option or the other."""
    if server is None:
        return store
    if store is not None:
        raise click.UsageError("--server and --store exclude each other: a server is the store")
    if not is_server(server):
        raise click.UsageError(f"--server {without_password(server)!r} is no URL of a server; write https://HOST:PORT")
    return server


def _ready(store: Store, run_as: str | None, files: Sequence[str]) -> Store:
    """Return a store as a runner needs it, having checked that workers can start."""
    from ..runner.patience import patient
    from ..runner.secrecy import keep_token
    from ..runner.starting import Starter

    if run_as is not None:
        settings = msgspec.structs.replace(store.config.runner, run_as=run_as)
        store.config = msgspec.structs.replace(store.config, runner=settings)
    starter = Starter(store)
    starter.check(files)
    if starter.is_remote:
        keep_token()
        if starter.user is None:
            _say("tasks run as this user, so they can read its tokens; with --run-as USER, as root, they cannot")
    return patient(store)


def _page(store: Store, is_wanted: bool) -> AbstractContextManager[None]:
    """Return what shows the page while there is something to see, if it is wanted."""
    if not is_wanted:
        return nullcontext()
    from .ui import page_of

    return page_of(store, _say)


def _say_end(run: RunRow, state: str, then: str | None) -> None:
    """Say in one line how a run has ended, and what to type to go on with it."""
    _say(f"run {run_name(run)}: {state}{'' if then is None else f'; {then}'}")


def _again(store: Store, ended: Ended, url: str | None) -> str | None:
    """Return how to run again what has failed, also of a run that is a success; None where nothing has."""
    if ended.end not in ("failed", "success"):
        return None
    try:
        detail: RunDetail = store.runs_as(person()).get(ended.run.dag_id, ended.run.run_id)
    except OutlastError:
        return None
    line, number = clear_line(detail, url), len(failed_of(detail))
    if line is None:
        return None
    though = f"though {count(number, 'task instance')} failed; " if ended.end == "success" else ""
    return f"{though}to run {'it' if number == 1 else 'them'} again: {line}"


def _resume_line(files: Sequence[str], dag_id: str | None, run: RunRow, again: _Again, *, several: bool) -> str:
    chosen = dag_id or (run.dag_id if several else None)
    words = [*files, *(["--dag", chosen] if chosen else []), "--run-id", run.run_id]
    words += ["--run-as", again.run_as] if again.run_as else []
    if again.is_server:
        return command_line("run", *words, "--server", str(again.url), url=None)
    return command_line("run", *words, url=again.url)


class _End(msgspec.Struct, frozen=True):
    """How it all ended: runs that have, in the order in which they did, and those left when the store was `lost`."""

    runs: list[Ended]
    left: list[RunRow]
    lost: BackendError | None


class _Wanted(msgspec.Struct, frozen=True):
    """Which run of a DAG is meant, and what a new one begins with."""

    run_id: str | None
    resume: bool
    params: dict[str, Any]
    logical_date: datetime | None


def _dags(files: Sequence[str], dag_id: str | None) -> list[tuple[LoadedFile, DAG]]:
    """Return the DAGs of the files, or the one that is meant."""
    from ..dags.loading import load_file, pick_dag

    loaded = [load_file(file) for file in files]
    found = [(each, dag) for each in loaded for dag in each.dags.values()]
    if dag_id is None:
        twins = [name for name, number in Counter(dag.dag_id for _, dag in found).items() if number > 1]
        if twins:
            raise DagError(f"{twins[0]!r} is the id of two DAGs in these files; run them one after the other")
        return found
    chosen = [(each, dag) for each, dag in found if dag.dag_id == dag_id]
    return chosen or [(loaded[0], pick_dag(loaded[0], dag_id))]


def _run(store: Store, dags: list[tuple[LoadedFile, DAG]], wanted: _Wanted, keep: bool) -> _End:
    from ..runner.opening import Opening
    from ..runner.session import Session
    from .progress import Display

    taken: dict[int, RunRow] = {}
    lost: BackendError | None = None
    with Display(store) as display:

        def observe(dag: DAG, run: RunRow) -> Observer:
            taken[run.id] = run
            return display.observe(dag, run)

        session = Session(store, observe, display.say, keep=keep)
        openings = [Opening(store, loaded, dag, display.say, _countdown) for loaded, dag in dags]
        known = [opening for opening in openings if wanted.run_id is not None and opening.exists(wanted.run_id)]
        for opening in known or openings:
            row = _open(store, opening, wanted, alone=len(openings) == 1)
            if row is not None:
                session.add(opening, row)
        for opening in openings:
            if opening.dag.asset_condition is not None:
                session.consume(opening)
        try:
            session.run()
        except BackendError as error:
            lost = error
    last = {each.run.id: each for each in session.ended}  # one that stays may end a run again
    left = [run for run in taken.values() if run.id not in last] if lost is not None else []
    return _End(list(last.values()), left, lost)


def _open(store: Store, opening: Opening, wanted: _Wanted, *, alone: bool) -> RunRow | None:
    """Take up or start the run of a DAG that is meant; None for one that waits for assets."""
    from ..runner.opening import new_run_id, newest_unfinished

    dag = opening.dag
    unfinished = newest_unfinished(store, dag.dag_id) if wanted.resume or dag.asset_condition is not None else None
    chosen = unfinished if wanted.run_id is None else wanted.run_id
    if chosen is not None and opening.exists(chosen):
        try:
            return opening.resume(chosen, wanted.params)
        except Conflict as error:
            if dag.asset_condition is None or wanted.run_id is not None:
                raise
            opening.say(f"{error.message}; meanwhile {dag.dag_id} waits for its assets")
            return None
    if dag.asset_condition is not None and (wanted.run_id is None or not alone):
        return None
    run_id = new_run_id(store.clock()) if chosen is None else chosen
    try:
        return opening.start(run_id, wanted.params, wanted.logical_date, unless_unfinished=wanted.resume)
    except Conflict:
        unfinished = newest_unfinished(store, dag.dag_id) if wanted.resume else None
        if unfinished is None:
            raise
        return opening.resume(unfinished, wanted.params)  # somebody has started it meanwhile


def _exit_status(ends: Sequence[str]) -> int:
    """Return the exit status of the worst end there was."""
    worst = ("paused", "failed", "cancelled", "success")
    return EXITS[next((end for end in worst if end in ends), "success")]


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--param {text!r}: write KEY=VALUE, for instance --param day=2026-11-29")
    try:
        return name, parse(value, allow_none=True)
    except InvalidValue as error:
        if is_json(value):  # but not such as can be kept
            raise InvalidValue(f"--param {name}: {error.message}") from None
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
