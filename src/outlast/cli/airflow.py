"""`outlast airflow`: how outlast is plugged into an Airflow; state into Airflow's own store and back; its upkeep.

Only these commands import the integration, and only some of them need an Airflow beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..config import DEFAULT_ORIGIN, load, resolve_url
from ..errors import ConfigError
from ..values import system_clock
from . import show
from .opening import opened
from .options import Commands, Mistake, Place, as_json, at_place, duration
from .person import person

if TYPE_CHECKING:
    from ..integrations.airflow.airflow_rest import AirflowApi
    from ..integrations.airflow.backend_settings import BackendSettings
    from ..integrations.airflow.payload_sweep import Findings
    from ..integrations.airflow.payloads import Payloads
    from ..integrations.airflow.transfer import Outcome, Unpacking

__all__ = ["airflow"]

F = TypeVar("F", bound=Callable[..., Any])

TOKEN, PASSWORD = "OUTLAST_AIRFLOW_TOKEN", "OUTLAST_AIRFLOW_PASSWORD"
GRACE = timedelta(hours=1)
#: Lines of a list that are shown to people; documents have them all.
SHOWN = 20
_MICROSECOND = timedelta(microseconds=1)


@click.group(cls=Commands, short_help="Look at an Airflow's use of outlast; move state there or back; sweep.")
def airflow() -> None:
    """Look at how outlast is plugged into an Airflow, move state into Airflow's own store or out of it, and sweep.

    \b
    outlast airflow doctor
    outlast airflow export /srv/state/outlast.db --to http://airflow.example:8080
    outlast airflow sweep
    """


def with_airflow(option: str) -> Callable[[F], F]:
    """Give a command the options that say which Airflow, and as whom."""

    def with_options(command: F) -> F:
        for add in (
            click.option("--password", envvar=PASSWORD, hidden=True),
            click.option("--user", metavar="NAME", help=f"Whom to log in as; the password is in {PASSWORD}."),
            click.option("--token", metavar="TOKEN", envvar=TOKEN, help=f"A token of Airflow's; better in {TOKEN}."),
            click.option(option, "airflow_url", metavar="URL", required=True, help="Airflow's web address."),
        ):
            command = add(command)
        return command

    return with_options


# --- doctor --------------------------------------------------------------------------------------------------


@airflow.command(short_help="Say how outlast is plugged into this Airflow, and what is wrong.")
@as_json
def doctor(as_json: bool) -> None:
    """Say how outlast is plugged into the Airflow of this environment, and what is wrong, each with what to do.

    It looks at Airflow's version and the mechanism for it, outlast's entry points, the settings in [outlast], the store
    and its server, and from 3.3 on at the backends and the place of large values (it writes one and removes it).
    Exit 0: all is well. Exit 78: something is wrong.

    \b
    outlast airflow doctor
    AIRFLOW__OUTLAST__URL=/srv/state/outlast.db outlast airflow doctor --json
    """
    from ..integrations.airflow.doctor import examine

    found = examine()
    if as_json:
        show.document({"well": not found.problems, "facts": found.facts, "problems": found.problems})
    else:
        show.diagnosis(found.facts, found.problems)
    raise click.exceptions.Exit(ConfigError.exit_code if found.problems else 0)


# --- export and import -------------------------------------------------------------------------------------


@airflow.command("export", short_help="Write what a store holds into an Airflow 3.3.")
@click.argument("store", metavar="STORE")
@with_airflow("--to")
@click.option("--dag", "dag_id", metavar="DAG", help="Only this dag's tasks, and no assets.")
@click.option("--overwrite", is_flag=True, help="Also replace what Airflow's tasks have written since.")
@click.option(
    "--journal",
    metavar="FILE",
    default="outlast-to-airflow.journal",
    show_default=True,
    help="Where it is noted what is done, so that the same command goes on.",
)
@as_json
def exporting(
    store: str,
    airflow_url: str,
    token: str | None,
    user: str | None,
    password: str | None,
    dag_id: str | None,
    overwrite: bool,
    journal: str,
    as_json: bool,
) -> None:
    """Write the live entries of a store into an Airflow 3.3 over its REST API, each with its expiry.

    The DAG runs must be there: upgrade Airflow first. Interrupted, the same command goes on; done twice, nothing
    changes. What Airflow holds otherwise is left alone. What it cannot hold is listed at the end, and the exit status
    is then 65.

    \b
    outlast airflow export /srv/state/outlast.db --to http://airflow.example:8080
    outlast airflow export https://outlast.example --to https://airflow.example --dag nightly
    """
    from ..integrations.airflow.transfer import Journal, export_state

    api = _api(airflow_url, token, user, password)
    done = Journal(journal, api.url)
    try:
        with opened(store, create=False, reveal=True) as source, Progress("exported") as progress:
            outcome = export_state(source, api, done, dag_id=dag_id, overwrite=overwrite, progress=progress.tell)
    finally:
        done.close()
    _end(outcome, "Airflow", as_json)


@airflow.command("import", short_help="Write what an Airflow 3.3 holds into a store.")
@at_place
@with_airflow("--from")
@click.option("--dag", "dag_id", metavar="DAG", help="Only this dag's tasks, and no assets.")
@click.option("--overwrite", is_flag=True, help="Also replace other values in the store.")
@as_json
def importing(
    place: Place,
    airflow_url: str,
    token: str | None,
    user: str | None,
    password: str | None,
    dag_id: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write what an Airflow 3.3 holds into a store over its REST API, each entry with its expiry.

    Values that a backend of outlast's has packed need its settings: run it where Airflow is, or they are listed at the
    end with what else cannot be taken over (exit status 65). Done twice, nothing changes.

    \b
    outlast airflow import --from http://airflow.example:8080 --store /srv/state/outlast.db
    """
    from ..integrations.airflow.transfer import import_state

    if place.url is None and resolve_url(None, load())[1] == DEFAULT_ORIGIN:
        raise click.UsageError("name the store that state is to go to: --store, or OUTLAST_URL")
    api = _api(airflow_url, token, user, password)
    with opened(place.url, create=True) as store, Progress("imported") as progress:
        outcome = import_state(
            api,
            store,
            writer=person(),
            unpacking=_unpacking(),
            dag_id=dag_id,
            overwrite=overwrite,
            progress=progress.tell,
        )
    _end(outcome, "the store", as_json)


def _api(url: str, token: str | None, user: str | None, password: str | None) -> AirflowApi:
    from ..integrations.airflow.airflow_rest import AirflowApi

    if user is not None and password is None and token is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"the password of {user} is to be in {PASSWORD}")
        password = click.prompt(f"Password of {user}", hide_input=True, err=True)
    api = AirflowApi(url, token=token, user=user, password=password)
    api.version()
    return api


def _unpacking() -> Unpacking:
    """Return what unpacks values, with the settings of the Airflow beside; without one, nothing does."""
    from ..integrations.airflow.transfer import Unpacking

    try:
        settings = _settings()
    except ConfigError:
        return Unpacking()
    return Unpacking(settings.packer(), settings.references())


class Progress:
    """One line that a terminal rewrites while entries are moved; otherwise a line every thousand."""

    def __init__(self, done: str) -> None:
        self.done, self.told = done, 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", nl=False, err=True)

    def tell(self, outcome: Outcome) -> None:
        number = outcome.written + outcome.same + len(outcome.skipped)
        if sys.stderr.isatty():
            click.echo(f"\r{number:,} entries, {outcome.written:,} {self.done} …", nl=False, err=True)
        elif number - self.told >= 1000:
            self.told = number
            show.note(f"{number:,} entries, {outcome.written:,} {self.done}")


def _end(outcome: Outcome, target: str, as_json: bool) -> None:
    if as_json:
        show.document({"written": outcome.written, "same": outcome.same, "skipped": outcome.skipped})
    else:
        for skipped in outcome.skipped:
            show.line(f"not taken over: {skipped.what}: {skipped.why}")
        entries = show.count(outcome.written, "entry", "entries")
        show.line(
            f"{entries} written to {target}, {outcome.same:,} there already, {len(outcome.skipped):,} not taken over"
        )
    raise click.exceptions.Exit(Mistake.exit_code if outcome.skipped else 0)


# --- Upkeep of large and of encrypted values -----------------------------------------------------------------


@airflow.command(short_help="Compare large values with Airflow's database; list or remove what nothing refers to.")
@click.option("--delete", is_flag=True, help="Remove what is listed; without it nothing changes.")
@click.option(
    "--grace",
    metavar="SPAN",
    callback=duration,
    default="1h",
    show_default=True,
    help="Younger ones may be on their way into the database: leave them.",
)
@click.option("--drop-lost", is_flag=True, help="With --delete: also remove rows whose value is lost.")
@click.option("--even-all", is_flag=True, help="Go on although the database refers to none of them.")
@click.option("--by-age", is_flag=True, help="Without the database: tasks' values past the default retention.")
@as_json
def sweep(delete: bool, grace: timedelta, drop_lost: bool, even_all: bool, by_age: bool, as_json: bool) -> None:
    """Compare the large values kept outside Airflow's database with the rows that refer to them.

    Lists values no row refers to, rows past their time with their values, rows whose value is lost, and rows that
    cannot be read, whose values stay. With --delete the first two are removed, a row always before its value. It runs
    where Airflow and its database are, with the workers' [outlast] settings; once a day is enough. Exit 65: values were
    lost, rows cannot be read, or something could not be removed.

    \b
    outlast airflow sweep
    outlast airflow sweep --delete
    """
    settings = _settings()
    payloads = settings.payloads()
    if payloads is None:
        raise ConfigError("no large values are kept outside the database: [outlast] state_offload_url is not set")
    if by_age:
        _sweep_by_age(settings, payloads, delete, as_json)
        return
    from ..integrations.airflow.metadata import AirflowRows
    from ..integrations.airflow.payload_sweep import clean, examine

    rows = AirflowRows()
    found = examine(payloads, rows, settings.packer(), grace=grace // _MICROSECOND, now=system_clock())
    if delete and not even_all and not found.kept and len(found.orphans) > 1:
        raise Mistake(
            f"no row of this database refers to any of the {len(found.orphans):,} values in {payloads.url}; if it is "
            "the right database, say --even-all"
        )
    failed = clean(found, payloads, rows, drop_lost=drop_lost) if delete else []
    _show_sweep(found, failed, delete, drop_lost, as_json)


def _show_sweep(found: Findings, failed: list[str], delete: bool, drop_lost: bool, as_json: bool) -> None:
    lost = [row.name for row in found.lost]
    if as_json:
        expired = [row.name for row, _ in found.expired]
        told = {"deleted": delete, "orphans": found.orphans, "expired": expired, "lost": lost}
        unsure = {"unreadable": found.unreadable, "withheld": found.withheld}
        show.document({**told, **unsure, "young": found.young, "kept": found.kept, "failed": failed})
    else:
        verb = "Removed" if delete else "Would remove"
        _listed(f"{verb} {show.count(len(found.orphans), 'value')} that nothing refers to", found.orphans)
        names = [row.name for row, _ in found.expired]
        _listed(f"{verb} {show.count(len(names), 'row')} past their time, with their values", names)
        _listed(f"{show.count(len(lost), 'row')} whose value is lost{' removed' if delete and drop_lost else ''}", lost)
        unreadable = f"{show.count(len(found.unreadable), 'row')} that cannot be read"
        _listed(f"{unreadable}, left with {show.count(found.withheld, 'value')} that may be theirs", found.unreadable)
        show.line(f"{found.kept:,} values are referred to, {found.young:,} are too young to say.")
        for problem in failed:
            show.line(f"PROBLEM: {problem}")
    is_left = found.unreadable or (lost and not (delete and drop_lost))
    raise click.exceptions.Exit(Mistake.exit_code if failed or is_left else 0)


def _listed(title: str, names: list[str]) -> None:
    if names:
        show.line(f"{title}:")
        for name in names[:SHOWN]:
            show.line(f"  {name}")
        if len(names) > SHOWN:
            show.line(f"  and {len(names) - SHOWN:,} more")


def _sweep_by_age(settings: BackendSettings, payloads: Payloads, delete: bool, as_json: bool) -> None:
    from ..integrations.airflow.payload_sweep import past_bound, remove_all

    if settings.retention_days <= 0:
        raise Mistake("[state_store] default_retention_days is 0: values have no age at which they are over")
    names = past_bound(payloads, days=settings.retention_days, now=system_clock())
    failed = remove_all(payloads, names) if delete else []
    if as_json:
        show.document({"deleted": delete, "orphans": names, "failed": failed})
    else:
        over = f"of tasks, over {settings.retention_days} days old"
        _listed(f"{'Removed' if delete else 'Would remove'} {show.count(len(names), 'value')} {over}", names)
        if not names:
            show.line(f"There is no value {over}.")
        for problem in failed:
            show.line(f"PROBLEM: {problem}")
    raise click.exceptions.Exit(Mistake.exit_code if failed else 0)


@airflow.command(short_help="Encrypt anew, with the first key, what is kept under an older one.")
@as_json
def rotate(as_json: bool) -> None:
    """Write anew what is not encrypted with the first key of [outlast] state_encryption_keys, while tasks go on.

    It runs where Airflow and its database are. When it is done, and `outlast airflow sweep` has removed the large
    values it has replaced, the older keys can be taken from the setting. Exit 65: something cannot be read.

    \b
    outlast airflow rotate
    """
    from ..integrations.airflow.metadata import AirflowRows
    from ..integrations.airflow.rotation import rotate as run_rotation

    settings = _settings()
    done = run_rotation(AirflowRows(), settings.packer(), settings.payloads())
    if as_json:
        told = {"rewritten": done.rewritten, "current": done.current, "changed_meanwhile": done.passed_over}
        show.document({**told, "unreadable": done.unreadable})
    else:
        for problem in done.unreadable:
            show.line(f"PROBLEM: {problem}")
        entries = show.count(done.rewritten, "value")
        show.line(f"{entries} written anew, {done.current:,} current already, {done.passed_over:,} changed meanwhile.")
    raise click.exceptions.Exit(Mistake.exit_code if done.unreadable else 0)


def _settings() -> BackendSettings:
    """Return the settings of the backends; ConfigError where there is no Airflow to have them."""
    from ..integrations.airflow.backend_settings import read_settings

    try:
        return read_settings()
    except ImportError:
        raise ConfigError(
            f"there is no Airflow in this environment ({sys.prefix}): run the `outlast` that is installed "
            "beside Airflow"
        ) from None
