"""Say what of outlast's backends of Airflow 3.3 is set, and whether they and what they have kept can be used."""

from __future__ import annotations

from ...errors import BackendError, OutlastError
from . import where
from .backend_settings import BackendSettings, is_ours, read_settings
from .diagnosis import HOME, Diagnosis, package_version
from .metadata import AirflowRows, Row
from .packing import Packer, digest
from .payloads import MARKER, Payloads, new_name
from .readable import SAMPLE, is_whole

__all__ = ["look_at_backends", "look_at_payloads", "look_at_rows", "settings_named"]

PAYLOAD_SETTINGS = ("state_offload_url", "state_offload_above")
#: Values that cannot be read of which the first are named.
SHOWN = 3
BACKEND_SETTINGS = ("state_compress_above", "state_encryption_keys", *PAYLOAD_SETTINGS)


def settings_named() -> list[str]:
    """Return the settings of the backends that are made."""
    return [name for name in BACKEND_SETTINGS if where.option(name)]


def look_at_backends(found: Diagnosis) -> None:
    """Say which backends are set, and make those of outlast's."""
    worker = where.option("state_store_backend", "workers") or ""
    server = where.option("backend", "state_store") or ""
    found.facts["[workers] state_store_backend"] = worker or "none: values go to the database as they are"
    found.facts["[state_store] backend"] = server
    is_worker = _made(found, worker, "WorkerBackend", "[workers] state_store_backend", "MetastorePlusBackend")
    is_server = _made(found, server, "MetastorePlusBackend", "[state_store] backend", "WorkerBackend")
    told = settings_named()
    if told and not is_worker and not is_server:
        found.problems.append(
            f"[outlast] {', '.join(told)} have no effect: set [workers] state_store_backend = {HOME}.WorkerBackend "
            f"(or [state_store] backend = {HOME}.MetastorePlusBackend)"
        )
    elif is_server and not is_worker and any(name in PAYLOAD_SETTINGS for name in told):
        found.problems.append(
            f"[outlast] state_offload_url has no effect: set [workers] state_store_backend = {HOME}.WorkerBackend"
        )


def _made(found: Diagnosis, named: str, wanted: str, setting: str, other: str) -> bool:
    """Make the backend a setting names if it is outlast's; say whether it is the wanted one."""
    if is_ours(named, other):
        found.problems.append(f"{setting} is {named}, which is no backend for that place; use {HOME}.{wanted}")
    if not is_ours(named, wanted):
        return False
    from importlib import import_module

    try:
        getattr(import_module(named.rpartition(".")[0]), wanted)()
        read_settings().references()  # a worker's backend reads them when it is first asked
    except OutlastError as error:
        found.problems.append(error.message)
    except Exception as error:
        found.problems.append(f"{setting} = {named} cannot be made ({type(error).__name__}: {error}); check its path")
    return True


def look_at_payloads(found: Diagnosis) -> None:
    """Say what encrypts, and write and read a payload where they are kept."""
    settings = read_settings()
    found.facts["encryption"] = _counted(len(settings.keys), "key") if settings.keys else "none"
    if settings.keys:
        found.facts["cryptography"] = package_version("cryptography")
    place = settings.payloads()
    if place is None:
        return
    name = new_name(f"t{'0' * 31}/{'0' * 32}", b"o1jtrue")
    place.write(name, b"o1jtrue")
    read = place.read(name)
    place.remove(name)
    if read is None or digest(read) != name.rpartition("-")[2]:
        raise BackendError(f"{place.url} did not give back what was written to it; use another place for payloads")
    found.facts["payloads"] = f"{place.url}: written, read and removed one (it is marked by {MARKER})"


def look_at_rows(found: Diagnosis) -> None:
    """Read the newest values that outlast has packed: without the key, or with another one, none can be."""
    settings = read_settings()
    packer, payloads = settings.packer(), settings.payloads()
    try:
        rows = AirflowRows()
        newest = rows.newest(SAMPLE)
    except Exception as error:  # on a worker there is no database
        found.facts["packed values"] = f"not looked at: Airflow's database cannot be read here ({type(error).__name__})"
        return
    faults, gone = _faults(newest, packer, payloads)
    if gone:  # unless a task has replaced it since
        still = {(row.table, row.id, row.text) for row in rows.newest(SAMPLE)}
        left = [row for row in gone if (row.table, row.id, row.text) in still]
        faults += [f"the row {row.name} cannot be read: its payload is gone" for row in left]
    _tell(found, settings, len(newest), faults)


def _faults(rows: list[Row], packer: Packer, payloads: Payloads | None) -> tuple[list[str], list[Row]]:
    """Return what cannot be read, and why; and the rows whose payload is gone."""
    faults, gone = list[str](), list[Row]()
    for row in rows:
        try:
            if not is_whole(row, packer, payloads):
                gone.append(row)
        except BackendError as error:
            faults.append(error.message)
    return faults, gone


def _tell(found: Diagnosis, settings: BackendSettings, number: int, faults: list[str]) -> None:
    of = f"{len(faults):,} of the newest {_counted(number, 'packed value')}"
    if not faults:
        found.facts["packed values"] = f"the newest {number:,} can be read" if number else "none"
    elif not settings.is_worker and not settings.is_server:
        found.facts["packed values"] = f"{of} cannot be read here, where no backend of outlast's is set"
    else:
        found.facts["packed values"] = f"{of} cannot be read"
        more = f"; and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
        found.problems.append(f"{of} cannot be read: {'; '.join(faults[:SHOWN])}{more}")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"
