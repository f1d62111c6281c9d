"""Say how outlast is plugged into the Airflow beside it, and what is wrong, each with what to do."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from ... import __version__
from ...backends import file_of
from ...errors import BackendError, ConfigError, OutlastError, Unauthorized
from ...store import Store
from ...token_requests import role_of
from . import where
from .diagnosis import HOME, MISSING, Diagnosis, package_version

__all__ = ["examine"]

#: The first Airflow that has what the backport needs, and the first with a state store of its own.
OLDEST, NATIVE = (2, 10), (3, 3)
GROUPS = ("airflow.policy", "airflow.plugins")


def examine() -> Diagnosis:
    """Look at Airflow's version, outlast's entry points, the settings, the store, the backends and the payloads."""
    found = Diagnosis({"outlast": __version__, "python": f"{platform.python_version()} at {sys.executable}"}, [])
    numbers = _airflow(found)
    if numbers is None:
        return found
    looks: list[Callable[[], None]] = [lambda: _entry_points(found), lambda: _store(found, numbers)]
    if numbers >= NATIVE:
        from . import doctor_backends as backends

        looks += [lambda: backends.look_at_backends(found), lambda: backends.look_at_payloads(found)]
        looks += [lambda: backends.look_at_rows(found)]
    else:
        looks += [lambda: _policy(found), lambda: _left_for_later(found)]
    for look in looks:
        try:
            look()
        except OutlastError as error:
            found.problems.append(error.message)
    found.problems = list(dict.fromkeys(found.problems))  # several looks may need the same setting
    return found


def _airflow(found: Diagnosis) -> tuple[int, ...] | None:
    """Return Airflow's version; None where it is not there or too old."""
    if {package_version("apache-airflow"), package_version("apache-airflow-core")} == {MISSING}:
        found.facts["airflow"] = "none"
        found.problems.append(
            f"there is no Airflow in this environment ({sys.prefix}): install outlast where Airflow is, in the images "
            "of workers, DAG processors and servers alike, and run that one's `outlast`"
        )
        return None
    try:
        import airflow

        text = str(airflow.__version__)
    except Exception as error:
        found.problems.append(f"Airflow cannot be imported ({type(error).__name__}: {error}); `airflow info` says more")
        return None
    numbers = tuple(int(part) for part in text.split(".")[:2])
    found.facts["airflow"] = f"{text}, home {_home()}"
    found.facts["mechanism"] = _mechanism(numbers)
    if numbers < OLDEST:
        found.problems.append(f"Airflow {text} is too old: outlast works with 2.10 and later; upgrade Airflow")
        return None
    return numbers


def _home() -> str:
    return os.environ.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")


def _mechanism(numbers: tuple[int, ...]) -> str:
    if numbers < OLDEST:
        return "none for this version"
    if numbers < NATIVE:
        return "outlast puts task_state_store into the context (policy hook get_airflow_context_vars)"
    return "Airflow's own task_state_store; outlast may be its backend"


# --- Entry points ------------------------------------------------------------------------------------------


def _entry_points(found: Diagnosis) -> None:
    for group in GROUPS:
        ours = [point for point in entry_points(group=group) if point.value.startswith(f"{HOME}.")]
        if not ours:
            found.problems.append(
                f"the entry point outlast in the group {group} is not there: install outlast with pip into "
                f"{sys.prefix}, not by a path"
            )
            continue
        try:
            ours[0].load()
        except Exception as error:
            found.problems.append(f"{ours[0].value} cannot be loaded ({type(error).__name__}: {error}); reinstall")
        found.facts[group] = ours[0].value


def _policy(found: Diagnosis) -> None:
    """Look whether Airflow has taken the policy up: it reads entry points when it starts."""
    from airflow import settings

    get_manager = getattr(settings, "get_policy_plugin_manager", None)
    manager: Any = get_manager() if get_manager else getattr(settings, "POLICY_PLUGIN_MANAGER", None)
    if manager is None:
        found.facts["policy"] = "not asked: this Airflow does not tell"
        return
    names = [getattr(plugin, "__name__", "") for plugin in manager.get_plugins()]
    found.facts["policy"] = "taken up" if f"{HOME}.policy" in names else "not taken up"
    if f"{HOME}.policy" not in names:
        found.problems.append("Airflow has not taken up outlast's policy; restart its processes, then ask again")


# --- The store ---------------------------------------------------------------------------------------------


def _store(found: Diagnosis, numbers: tuple[int, ...]) -> None:
    where.on_error()
    if not where.is_on():
        found.facts["store"] = "none named"
        if numbers < NATIVE:
            found.problems.append(
                "no store is named, so tasks get no task_state_store: set [outlast] url in airflow.cfg or "
                "AIRFLOW__OUTLAST__URL, for instance to an absolute path, for all of Airflow's processes"
            )
        return
    if (hidden := where.hidden_connection()) is not None:
        found.facts["store"] = f"not looked at: {hidden}"
        return
    named = where.option("url") or os.environ.get("OUTLAST_URL", "")
    path = file_of(named, where.settings(None)) if named else None
    if path is not None and os.path.isabs(named.removeprefix("sqlite:///")) and not os.path.exists(path):
        found.facts["store"] = f"{path}, not created yet: the first task that uses it does that"
        _look_at_folder(os.path.dirname(path))
        return
    with where.make_store(where.SOON) as store:
        _look_at_store(found, store)


def _look_at_store(found: Diagnosis, store: Store) -> None:
    found.facts["store"] = repr(store).removeprefix("<Store ").removesuffix(">")
    role, refused = _role(store), None
    if role in ("viewer", "editor"):
        found.problems.append(
            f"the token is a {role}'s, with which no task can open its state: `outlast token create --role worker` "
            "makes one for Airflow"
        )
    try:
        reached = _reached(store)
    except Unauthorized as error:
        reached, refused = "yes, with a token that may not look into the store as a whole", error
    server = _server_version(store)
    if server is not None:
        found.facts["versions"] = f"outlast {__version__} here, {server} at the server"
    if refused is not None and not _is_to_be_expected(store, role, server):
        raise refused
    found.facts["store reachable"] = reached


def _is_to_be_expected(store: Store, role: str | None, server: str | None) -> bool:
    """Say whether a server that refused a look into the whole store may be all right for tasks, or was told of."""
    backend: Any = store.backend
    if not backend.own_token():
        raise ConfigError(
            f"{store.url} wants a token, and none is set: `outlast token create --role worker` makes one for Airflow; "
            "set [outlast] token in airflow.cfg, AIRFLOW__OUTLAST__TOKEN or OUTLAST_TOKEN, for all of its processes"
        )
    return role in ("viewer", "editor") or (server is not None and role in ("worker", "runner"))


def _look_at_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        raise ConfigError(f"the folder {folder} does not exist; create it, or name another path in [outlast] url")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} is not writable for this account; change its mode, or name another path")


def _reached(store: Store) -> str:
    inspected = store.inspect()
    if inspected.problems:
        raise BackendError("; ".join(inspected.problems))
    return "yes, and well"


def _role(store: Store) -> str | None:
    """Return the role of the token a server is asked with; None where there is no server, or no token."""
    if not store.url.startswith(("http://", "https://", "unix://")):
        return None
    backend: Any = store.backend
    return role_of(backend.own_token() or "")


def _server_version(store: Store) -> str | None:
    """Return the version of the server behind a store; None where there is none, or it does not tell."""
    if not store.url.startswith(("http://", "https://")):
        return None
    import json
    import urllib.request

    backend: Any = store.backend
    request = urllib.request.Request(f"{store.url.rstrip('/')}/openapi.json")
    if token := backend.own_token():
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=where.SOON) as answer:
            return str(json.load(answer)["info"]["version"])
    except (OSError, ValueError, KeyError):
        return None


# --- Settings of later versions -----------------------------------------------------------------------------


def _left_for_later(found: Diagnosis) -> None:
    """Tell of settings that have no effect on this version, and are no mistake."""
    from .doctor_backends import settings_named

    told = settings_named()
    if told:
        found.facts["settings for 3.3"] = f"{', '.join(told)}: without effect before Airflow 3.3"
