"""What a DAG file may say of the two names, where outlast has prepared for it; and that it says so to Airflow alone."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from support.airflow_home import Airflow

pytestmark = [pytest.mark.airflow(below="3.3"), pytest.mark.fast]

ASKED = """
import json, sys
from datetime import datetime
try:
    from airflow.sdk import dag, task
except ImportError:
    from airflow.decorators import dag, task
from airflow.settings import get_dagbag_import_timeout
assert float(get_dagbag_import_timeout("a_dag.py")) > 0


def told(define):
    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def asked():
        define(task)

    try:
        asked()
    except Exception as error:
        return type(error).__name__
    return "accepted"


def default(task):
    @task
    def f(task_state_store=None): ...
    f()


def none(task):
    @task
    def f(task_state_store): ...
    f()


def mapped(task):
    @task
    def f(x, task_state_store): ...
    f.expand(x=[1])


def mapped_default(task):
    @task
    def f(x, asset_state_store=None): ...
    f.expand(x=[1])


def other_default(task):
    @task
    def f(task_state_store="oops"): ...
    f()


def expanded(task):
    @task
    def f(task_state_store=None): ...
    f.expand(task_state_store=[1])


def never(task):
    from airflow.sdk import NEVER_EXPIRE
    from airflow.sdk.execution_time.context import NEVER_EXPIRE as same
    import outlast
    assert NEVER_EXPIRE is same is outlast.NEVER_EXPIRE


def mixin(task):
    from airflow.sdk import BaseOperator, ResumableJobMixin

    class Job(ResumableJobMixin, BaseOperator):
        def execute(self, context):
            return self.execute_resumable(context)

    assert Job(task_id="job").durable is True
    assert Job(task_id="other", durable=False).durable is False
    Job.partial(task_id="mapped").expand(durable=[True])


cases = [default, none, mapped, mapped_default, other_default, expanded, never, mixin]
print("ANSWER", json.dumps({case.__name__: told(case) for case in cases}))
"""


def answers(home: Airflow) -> dict[str, str]:
    said = home.run("python", "-W", "ignore", "-c", ASKED)
    found: dict[str, str] = json.loads(said.rpartition("ANSWER ")[2].splitlines()[0])
    return found


def test_parameters_are_told_apart_as_on_3_3(airflow_home: Callable[..., Airflow]) -> None:
    home = airflow_home(AIRFLOW__OUTLAST__URL="{home}/outlast.db")
    since_3 = "accepted" if home.installed.since >= (3,) else "ModuleNotFoundError"
    assert answers(home) == {
        "default": "accepted",
        "none": "accepted",
        "mapped": "accepted",
        "mapped_default": "accepted",
        "other_default": "ValueError",
        "expanded": "ValueError",
        "never": since_3,
        "mixin": since_3,
    }
    assert not (home.folder / "outlast.db").exists()


def test_without_the_setting_nothing_is_changed(airflow_home: Callable[..., Airflow]) -> None:
    assert answers(airflow_home())["none"] == "TypeError"
