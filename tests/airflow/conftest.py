"""Tests beside a real Airflow of one version, installed as it was in its time.

    make test-airflow VERSION=3.2.2
    make airflow-fast VERSION=2.11.2    # those marked `fast` alone, which `.ci/run` runs on 2.10.5, 2.11.2 and 3.3.2
    make soak-airflow                   # every version, one after the other
    OUTLAST_TEST_AIRFLOW=3.3.2 python -m pytest tests/airflow -m airflow        # from a tree; needs uv

A test file says which versions it is for, and is left out for others (not skipped):

    pytestmark = pytest.mark.airflow(below="3.3")       # or since="3.3", but="3.0", all or none

Fixtures:

* `installed` — the installation (`support.airflow_install.Installed`): `.version`, `.since` (numbers), `.programs`
  (the folder of its `airflow`, `python`, `outlast`), the frozen lists `.before` and `.after`. Made once in
  `.venv/airflow/VERSION` (OUTLAST_TEST_AIRFLOW_PLACE names another folder: two people at once need two) and
  kept; this tree's outlast is built and installed into it anew each time.
* `airflow_home` — makes homes (`support.airflow_home.Airflow`): `airflow_home(dags=FOLDER, AIRFLOW__OUTLAST__URL=…)`
  copies the DAG files (default: `tests/airflow/dags`), with a migrated SQLite database, and these variables for all
  of its processes (`{home}` in a value is the folder). `.command("dags", "list")`, `.run("python", …)`,
  `.dags_test("dag")`, `.noted()` (JSON lines the tasks wrote to the file `$NOTES`), `.rows("select …")` of Airflow's
  database, `.env`, `.url`.
* `with home.running() as stack:` starts the real processes (scheduler, triggerer; on 3.x API server, DAG processor,
  LocalExecutor). `stack.trigger("dag", "run1")` waits for the end and returns the run's state;
  `stack.restart("api-server")` is a SIGKILL and a new start; `stack.api("GET", "/api/v2/…")` is REST as an admin.

Airflow is heavy: one run at a time (no -n). In a DAG for `running()` a trigger fires, and a sensor looks again, only
when the scheduler has surely heard that the process before has ended (`dags/later.py`): on 3.x it otherwise fails the
task that goes on, "finished with state success, but … running". `Stack.logs()` names such tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import airflow_install
from support.airflow_home import Airflow
from support.airflow_install import Installed

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for other versions, and give the rest the time that Airflow takes."""
    unfit = [item for item in items if not _fits(item)]
    if unfit:
        config.hook.pytest_deselected(items=unfit)
        items[:] = [item for item in items if item not in unfit]
    for item in items:
        if item.get_closest_marker("airflow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


def _fits(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("airflow")
    if marker is None:
        return True
    version = _numbers(airflow_install.VERSION)
    since, below, but = (
        marker.kwargs.get(key, other) for key, other in (("since", "0"), ("below", "99"), ("but", "99"))
    )
    within = _numbers(since) <= version < _numbers(below)
    return within and version[: len(_numbers(but))] != _numbers(but)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.fixture(scope="session")
def installed() -> Installed:
    """This session's Airflow, with outlast."""
    return airflow_install.installed()


@pytest.fixture(scope="module")
def airflow_home(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Airflow]:
    """Make Airflow homes; a module's tests may share one."""

    def make(dags: Path = HERE / "dags", **settings: Any) -> Airflow:
        folder = tmp_path_factory.mktemp("airflow")
        told = {name: str(value).format(home=folder) for name, value in settings.items()}
        return Airflow(installed, folder, dags, told)

    return make
