"""What tasks written for Airflow are given and return: templates told, several outputs, tuples, parts of ti and run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import pytest

from outlast import BaseOperator, DagError, task
from outlast.dags.airflow_missing import NoSuchName
from outlast.dags.airflow_parts import BashOperator, PythonOperator
from outlast.dags.graph import DAG
from outlast.dags.template_texts import notes
from outlast.testing import load_dag

from .conftest import Attempts

TOLD = "is passed on as it is: outlast renders no templates; use the context in the task"


class Own(BaseOperator):
    template_fields = ("sql", "absent")

    def __init__(self, *, sql: Any, other: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sql, self.other = sql, other

    def execute(self, context: Any) -> Any:
        return self.sql


@task
def plain(day: Any, more: Any = None) -> None: ...


# --- Templates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "where", "text"),
    [
        (lambda: plain("{{ ds }}"), "the arguments of task plain", "{{ ds }}"),
        (lambda: plain(1, more={"a": [("x", "{% if x %}")]}), "the arguments of task plain", "{% if x %}"),
        (lambda: plain.expand(day=["a", "{{ ds }}"]), "the arguments of task plain", "{{ ds }}"),
        (lambda: plain.partial(more="{{ ds }}").expand(day=[1]), "the arguments of task plain", "{{ ds }}"),
        (lambda: plain.expand_kwargs([{"day": "{{ ds }}"}]), "the arguments of task plain", "{{ ds }}"),
        (lambda: Own(task_id="t", sql="{{ ds }}"), "sql of task t", "{{ ds }}"),
        (lambda: Own.partial(task_id="t").expand(sql=["{{ ds }}"]), "sql of task t", "{{ ds }}"),
        (
            lambda: PythonOperator(task_id="t", python_callable=print, op_args=["{{ ds }}"]),
            "op_args of task t",
            "{{ ds }}",
        ),
        (
            lambda: BashOperator(task_id="t", bash_command="x", env={"DAY": "{{ data_interval_start }} and then some"}),
            "env of task t",
            "{{ data_interval_start }} and then some",
        ),
    ],
)
def test_a_template_is_told_once_a_task(dag: DAG, make: Any, where: str, text: str) -> None:
    make()
    assert notes(dag) == [f"{text} in {where} {TOLD}"]


def test_other_texts_are_no_templates(dag: DAG) -> None:
    plain("{x} {", more=["%}", {"a": 1}])
    Own(task_id="t", sql="select 1", other="{{ mine }}")
    plain.expand(day=[1, "x"])
    assert notes(dag) == []


def test_a_template_in_a_mapped_command_is_refused_while_the_file_is_loaded(dag: DAG) -> None:
    for make in (
        lambda: BashOperator.partial(task_id="a").expand(bash_command=["true", "echo {{ ds }}"]),
        lambda: BashOperator.partial(task_id="b", bash_command="echo {{ ds }}").expand(env=[{}]),
        lambda: BashOperator.partial(task_id="c").expand_kwargs([{"bash_command": "{% x %}"}]),
    ):
        with pytest.raises(DagError, match="bash_command holds a template, and outlast has none"):
            make()


# --- Several outputs -------------------------------------------------------------------------------------


class Row(TypedDict):
    a: int


def as_dict() -> dict[str, int]:
    return {"a": 1, "b": 2}


def as_mapping() -> Mapping[str, int]:
    return {"a": 1}


def as_row() -> Row:
    return {"a": 1}


async def awaiting() -> dict:  # type: ignore[type-arg]
    return {"a": 1}


def unannotated():  # type: ignore[no-untyped-def]
    return {"a": 1}


@pytest.mark.parametrize(
    ("function", "options", "found"),
    [
        (as_dict, {}, 1),
        (as_mapping, {}, 1),
        (as_row, {}, 1),
        (awaiting, {}, 1),
        (unannotated, {}, None),
        (unannotated, {"multiple_outputs": True}, 1),
        (as_dict, {"multiple_outputs": False}, None),
    ],
)
def test_a_key_of_a_dict_is_an_output_of_its_own(
    dag: DAG, attempt: Attempts, function: Any, options: dict[str, Any], found: Any
) -> None:
    made = task(task_id="f", **options)(function)()

    @task
    def reads(whole: Any, part: Any, ti: Any = None) -> Any:
        return whole["a"], part, ti.xcom_pull("f", key="a"), ti.xcom_pull(["f"], key="a"), ti.xcom_pull("f", key="z")

    attempt(made)
    last = reads(made, made["a"]).linked()
    assert last.function(*last.args[:0], {"a": 1}, 1, attempt.context(last)["ti"]) == (1, 1, found, [found], None)


def test_the_outputs_of_a_mapped_task(dag: DAG, attempt: Attempts) -> None:
    def half(x: int) -> dict[str, int]:
        return {"half": x // 2}

    task(half).expand(x=[2, 4])
    reads = plain(1).linked()
    for index, value in enumerate([1, 2]):
        attempt.results.owner = "half", index
        attempt.results.push("return_value", {"half": value})
    ti = attempt.context(reads)["ti"]
    assert ti.xcom_pull("half", key="half") == [1, 2]
    assert ti.xcom_pull("half", key="half", map_indexes=1) == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [([1], "f returned list where its annotation, or multiple_outputs=True, says a dict"), ({1: 2}, "with the key 1;")],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_no_dict_of_texts_is_refused(
    dag: DAG, attempt: Attempts, value: Any, said: str, is_async: bool
) -> None:
    async def later() -> Any:
        return value

    made = task(task_id="f", multiple_outputs=True)(later if is_async else lambda: value)()
    with pytest.raises(TypeError, match=said):
        attempt(made)


def test_nothing_is_no_wrong_output(dag: DAG, attempt: Attempts) -> None:
    assert attempt(task(task_id="f", multiple_outputs=True)(lambda: None)()) is None


def test_annotations_that_are_texts(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(
        "from __future__ import annotations\nfrom outlast import DAG, task\n"
        "with DAG('d'):\n"
        "    @task\n    def f() -> dict[str, int]: ...\n"
        "    @task\n    def g() -> Unknown: ...\n"
        "    f()\n    g()\n"
    )
    tasks: Any = load_dag(tmp_path / "d.py").tasks
    assert (tasks["f"].multiple_outputs, tasks["g"].multiple_outputs) == (True, False)


# --- Parts of ti and of the run --------------------------------------------------------------------------


def test_what_a_task_instance_and_its_run_know(dag: DAG, attempt: Attempts) -> None:
    context = attempt.context(task(retries=3, task_id="f")(print)().linked(), try_number=2)
    ti, run = context["ti"], context["dag_run"]
    assert (ti.max_tries, ti.state, ti.operator, ti.pid) == (3, "running", "FunctionTask", os.getpid())
    assert (ti.hostname, ti.logical_date, ti.end_date) == (os.uname().nodename, context["logical_date"], None)
    assert ti.key == ("d", "f", "r", 2, -1)
    assert (run.run_type, run.state, run.run_after) == ("manual", "running", context["logical_date"])
    assert run.data_interval_end == context["logical_date"]


@pytest.mark.parametrize(
    ("of", "name", "said"),
    [
        ("ti", "log_url", "outlast's ti has no 'log_url'; `outlast logs DAG/RUN/TASK` prints the log of a task"),
        ("ti", "previous_ti", "outlast's ti has no 'previous_ti'; it looks up nothing of earlier runs"),
        ("ti", "try_numbr", "did you mean 'try_number'?"),
        ("ti", "zzz", "outlast's ti has no 'zzz'; it has dag_id, "),
        ("dag_run", "external_trigger", "outlast's dag_run has no 'external_trigger'; use run_type"),
        ("dag_run", "dag_di", "did you mean 'dag_id'?"),
    ],
)
def test_what_they_do_not_know_is_told(dag: DAG, attempt: Attempts, of: str, name: str, said: str) -> None:
    owner = attempt.context(plain(1).linked())[of]
    assert not hasattr(owner, name)
    with pytest.raises(NoSuchName) as caught:
        getattr(owner, name)
    assert said in str(caught.value)


# --- Event loops -----------------------------------------------------------------------------------------


def test_an_async_task_inside_an_event_loop_says_what_to_do(dag: DAG, attempt: Attempts) -> None:
    made = task(task_id="f")(awaiting)()

    async def runs() -> None:
        attempt(made)

    with pytest.raises(DagError, match="f is async, and an event loop runs in this thread already; call what runs it"):
        asyncio.run(runs())
