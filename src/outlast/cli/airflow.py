"""`outlast airflow`: how outlast is plugged into an Airflow; state into Airflow's own store and back; its upkeep.

Only these commands import the integration, and only some of them need an Airflow beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..backends import file_of
from ..config import DEFAULT_ORIGIN, load, resolve_url
from ..errors import ConfigError, NotFound
from ..values import system_clock
from . import show
from .airflow_said import Progress, end_sweep, end_transfer, listed
from .opening import opened, refuse_lost, stands_at
from .options import Commands, Mistake, Place, as_json, at_place, duration
from .person import person

if TYPE_CHECKING:
    from ..integrations.airflow.airflow_rest import AirflowApi
    from ..integrations.airflow.backend_settings import BackendSettings
    from ..integrations.airflow.payloads import Payloads
    from ..integrations.airflow.transfer import Overwrite, Unpacking

__all__ = ["airflow"]

F = TypeVar("F", bound=Callable[..., Any])

TOKEN, PASSWORD = "OUTLAST_AIRFLOW_TOKEN", "OUTLAST_AIRFLOW_PASSWORD"
GRACE = timedelta(hours=1)
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


def overwriting(target: str, replacing: str) -> Callable[[F], F]:
    """Give a command the options that say what of its target may be replaced."""

    def with_options(command: F) -> F:
        older = f"Also replace other values in {target}, if last written before {replacing}."
        newer = f"Also replace those written later than {replacing}: what was done since is lost."
        command = click.option("--overwrite-newer", is_flag=True, help=newer)(command)
        return click.option("--overwrite", is_flag=True, help=older)(command)

    return with_options


def _overwrite(older: bool, newer: bool) -> Overwrite:
    return "all" if newer else "older" if older else "nothing"


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
@overwriting("Airflow", "the store's")
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
    overwrite_newer: bool,
    journal: str,
    as_json: bool,
) -> None:
    """Write the live entries of a store into an Airflow 3.3 over its REST API, each with its expiry.

    The DAG runs must be there: upgrade Airflow first. Interrupted, the same command goes on; done twice, nothing
    changes, and what has changed in Airflow since it was exported stays. What Airflow holds otherwise is left alone;
    --overwrite replaces what was written there before the store's entry. What Airflow cannot hold is listed at the
    end, and the exit status is then 65.

    \b
    outlast airflow export /srv/state/outlast.db --to http://airflow.example:8080
    outlast airflow export https://outlast.example --to https://airflow.example --dag nightly
    """
    from ..integrations.airflow.export_journal import Journal
    from ..integrations.airflow.transfer import export_state

    _refuse_missing(store)
    api = _api(airflow_url, token, user, password)
    done = Journal(journal, api.url)
    try:
        with opened(store, create=False, reveal=True) as source, Progress("exported") as progress:
            outcome = export_state(
                source,
                api,
                done,
                dag_id=dag_id,
                overwrite=_overwrite(overwrite, overwrite_newer),
                progress=progress.tell,
            )
    finally:
        done.close()
    end_transfer(outcome, "Airflow", as_json)


@airflow.command("import", short_help="Write what an Airflow 3.3 holds into a store.")
@at_place
@with_airflow("--from")
@click.option("--dag", "dag_id", metavar="DAG", help="Only this dag's tasks, and no assets.")
@overwriting("the store", "Airflow's")
@as_json
def importing(
    place: Place,
    airflow_url: str,
    token: str | None,
    user: str | None,
    password: str | None,
    dag_id: str | None,
    overwrite: bool,
    overwrite_newer: bool,
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
            overwrite=_overwrite(overwrite, overwrite_newer),
            progress=progress.tell,
        )
    end_transfer(outcome, "the store", as_json)


def _refuse_missing(store: str) -> None:
    """Raise NotFound where there is nothing to export; whatever else is wrong with a store shows when it is opened."""
    settings = load()
    path = file_of(resolve_url(store, settings)[0], settings)
    if path is not None and not stands_at(path):
        refuse_lost(path)
        raise NotFound(
            f"there is no store at {path}, so there is nothing to export; give the file, or the URL, that Airflow's "
            "tasks have used ([outlast] url)"
        )


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
    settings = _settings_of_33()
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
    end_sweep(found, failed, delete, drop_lost, as_json)


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
        listed(f"{'Removed' if delete else 'Would remove'} {show.count(len(names), 'value')} {over}", names)
        if not names:
            show.line(f"There is no value {over}.")
        for problem in failed:
            show.line(f"PROBLEM: {problem}")
    raise click.exceptions.Exit(Mistake.exit_code if failed else 0)


@airflow.command(short_help="Encrypt, with the first key, what is plain or kept under an older one.")
@as_json
def rotate(as_json: bool) -> None:
    """Write anew what is not encrypted with the first key of [outlast] state_encryption_keys, while tasks go on.

    Plain values from before the backend or its keys are encrypted too, as the backends set here would write them. It
    runs where Airflow and its database are, with the settings of the workers and of the API server. When it is done,
    and `outlast airflow sweep` has removed the large values it has replaced, the older keys can be taken from the
    setting. Exit 65: something cannot be read.

    \b
    outlast airflow rotate
    """
    from ..integrations.airflow.metadata import AirflowRows
    from ..integrations.airflow.rotation import rotate as run_rotation

    settings = _settings_of_33()
    done = run_rotation(AirflowRows(), settings.packer(), settings.payloads(), settings.writing())
    if as_json:
        told = {"rewritten": done.rewritten, "current": done.current, "changed_meanwhile": done.passed_over}
        show.document({**told, "plain": done.plain, "unreadable": done.unreadable})
    else:
        for problem in done.unreadable:
            show.line(f"PROBLEM: {problem}")
        entries = show.count(done.rewritten, "value")
        show.line(f"{entries} written anew, {done.current:,} current already, {done.passed_over:,} changed meanwhile.")
        if done.plain:
            show.line(f"{show.count(done.plain, 'value')} left plain: {_why_plain(settings)}.")
    raise click.exceptions.Exit(Mistake.exit_code if done.unreadable else 0)


def _why_plain(settings: BackendSettings) -> str:
    if not settings.keys:
        return "[outlast] state_encryption_keys is not set here"
    if not settings.is_worker and not settings.is_server:
        return (
            "no backend of outlast's is set here to write them ([workers] state_store_backend or [state_store] backend)"
        )
    return "a worker's backend cannot keep them exactly; a task that sets them anew is told why"


def _settings_of_33() -> BackendSettings:
    settings = _settings()
    from ..integrations.airflow import where

    if not where.is_native():
        raise ConfigError("this needs Airflow 3.3 or later: what it looks after is kept by the state store of that one")
    return settings


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
