"""outlast goes beside each version of Airflow without moving one of its pins."""

from __future__ import annotations

import pytest

from support.airflow_install import Installed, checked, only

pytestmark = [pytest.mark.airflow, pytest.mark.fast]

#: What an environment may get that has Airflow: the dependencies of outlast[airflow,postgres] where they are missing.
ADDED = {"apsw", "msgspec", "click", "rich", "psycopg", "psycopg-binary"}


def test_no_pin_of_airflows_is_moved(installed: Installed) -> None:
    before, after = only(installed.before), only(installed.after)
    assert {name: after.get(name) for name in before} == before
    assert after.keys() - before.keys() <= ADDED
    assert "apsw" in after


def test_what_is_installed_fits_together(installed: Installed) -> None:
    assert checked(installed.folder) == ""
