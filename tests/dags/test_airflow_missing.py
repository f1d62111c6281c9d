"""What outlast lacks of Airflow's is said where it is asked for, with what there is instead."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import outlast
from outlast import Asset, BaseOperator, DagError, ResumableJobMixin, SkipTask, get_current_context, task
from outlast.dags import airflow_names
from outlast.dags.airflow_missing import NoSuchName, NotInContext
from outlast.dags.airflow_parts import PythonOperator
from outlast.dags.graph import DAG
from support.airflow import forgotten

ORDERS = Asset("orders")


# --- Modules ---------------------------------------------------------------------------------------------


@pytest.fixture
def sdk() -> Iterator[Any]:
    """The module airflow.sdk, as DAG files find it."""
    with forgotten():
        airflow_names.install()
        yield importlib.import_module("airflow.sdk")


def test_asking_a_module_for_what_it_lacks_is_as_with_any_module(sdk: Any) -> None:
    assert not hasattr(sdk, "Variable")
    assert getattr(sdk, "Connection", "none") == "none"
    assert hasattr(sdk, "definitions")
    with pytest.raises(NoSuchName, match=r"no Variable in airflow\.sdk, and no Airflow is installed; it keeps no var"):
        sdk.Variable  # noqa: B018


def test_importing_what_a_module_lacks_is_an_import_error_also_after_it_was_asked_for(sdk: Any) -> None:
    assert not hasattr(sdk, "Variable")
    with pytest.raises(ImportError, match=r"no Variable in airflow\.sdk, and no Airflow is installed; it keeps no var"):
        exec("from airflow.sdk import Variable")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("from airflow.sdk import BaseTrigger", "airflow.triggers.base"),
        ("from airflow.sdk import TriggerEvent", "airflow.triggers.base"),
        ("from airflow.sdk import AirflowSkipException", "airflow.sdk.exceptions"),
        ("from airflow.sdk import BashOperator", "airflow.providers.standard.operators.bash"),
        ("from airflow.sdk import TimeDeltaTrigger", "airflow.providers.standard.triggers.temporal"),
        ("from airflow.triggers.base import DAG", "airflow.sdk"),
        ("from airflow import BaseOperator", "airflow.sdk"),
    ],
)
def test_a_name_of_another_module_is_said_to_be_there(line: str, place: str, sdk: Any) -> None:
    with pytest.raises(ImportError) as caught:
        exec(line)
    assert str(caught.value).endswith(f"; import it from {place}")
    exec(line.replace(line.split()[1], place))


# --- Decorators and DAGs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("branch", "raise AirflowSkipException"),
        ("short_circuit", "raise AirflowSkipException"),
        ("bash", "use BashOperator"),
        ("virtualenv", "with BashOperator"),
        ("external_python", "with BashOperator"),
        ("docker", "as a job"),
        ("kubernetes", "as a job"),
        ("sensr", "did you mean 'sensor'?"),
        ("quite_else", "put the work into a function under @task"),
    ],
)
def test_a_decorator_that_is_missing_says_what_to_use(name: str, said: str) -> None:
    assert not hasattr(task, name)
    with pytest.raises(DagError) as caught:
        getattr(task, name)
    assert caught.value.message.startswith(f"outlast has no @task.{name}; ")
    assert said in caught.value.message


def test_task_python_is_task(dag: DAG, attempt: Any) -> None:
    @task.python
    def plain():
        return 1

    @task.python(task_id="named", retries=3)
    def other():
        return 2

    assert [attempt(plain()), attempt(other())] == [1, 2]
    assert dag.tasks["named"].retries == 3


def test_dag_test_says_what_runs_a_dag(dag: DAG) -> None:
    assert not hasattr(dag, "test")
    with pytest.raises(DagError, match=r"no dag\.test\(\); `outlast run FILE` runs it"):
        dag.test()
    with pytest.raises(AttributeError, match="<DAG d> has no attribute 'tset'"):
        dag.tset()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"multiple_outputs": 1}, "multiple_outputs is 1; use True or False"),
        ({"start_date": None}, "no argument 'start_date'; give it to the DAG"),
        ({"retry_policy": None}, "no argument 'retry_policy'; use retries="),
    ],
)
def test_an_argument_of_airflows_says_what_to_do_about_it(option: dict[str, Any], said: str) -> None:
    with pytest.raises(DagError, match=said):
        task(**option)(print)


# --- What a function asks for ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["var", "conn", "macros", "inlet_events", "prev_start_date_success", "next_ds"])
@pytest.mark.parametrize("default", ["", "=None"])
def test_a_parameter_the_context_cannot_fill_is_refused_where_the_task_is_made(
    name: str, default: str, dag: DAG
) -> None:
    space: dict[str, Any] = {}
    exec(f"def f(x=1, *, {name}{default}): ...", space)
    function = task(space["f"])
    said = rf"f\(\) asks for '{name}', which outlast's context does not have; \w+"
    for make in (function, lambda: function.expand(x=[1])):
        with pytest.raises(DagError, match=said):
            make()
    with pytest.raises(DagError, match=f"asks for '{name}'"):
        PythonOperator(task_id="op", python_callable=space["f"])
    function(**{name: 3})
    function.partial(**{name: 3}).expand(x=[1])
    PythonOperator(task_id="given", python_callable=space["f"], op_kwargs={name: 3})


def test_a_parameter_with_a_default_of_its_own_asks_for_nothing(dag: DAG, attempt: Any) -> None:
    @task
    def f(conn="sqlite://", asset_state_store="none"):
        return [conn, asset_state_store]

    assert attempt(f()) == ["sqlite://", "none"]


@pytest.mark.parametrize("default", ["", "=None"])
def test_the_state_of_assets_is_refused_to_a_task_without_assets(default: str, dag: DAG) -> None:
    space: dict[str, Any] = {}
    exec(f"def f(*, asset_state_store{default}, x=1): ...", space)
    function, bare = task(outlets=[ORDERS])(space["f"]), task(space["f"])
    for make in (bare, lambda: bare.expand(x=[1]), lambda: PythonOperator(task_id="p", python_callable=space["f"])):
        with pytest.raises(DagError, match=r"add inlets=\[asset\] or outlets=\[asset\] to it"):
            make()
    function()
    function.expand(x=[1])
    PythonOperator(task_id="with", python_callable=space["f"], inlets=[ORDERS])


def test_assets_in_default_args_count() -> None:
    with DAG("d", default_args={"inlets": [ORDERS]}) as dag:

        @task
        def f(asset_state_store=None): ...

        f()
    assert dag.tasks["f"].inlets == (ORDERS,)


# --- What a task looks up --------------------------------------------------------------------------------


def by_keywords(name: str) -> Callable[..., Any]:
    return lambda **context: context[name]


def by_call(name: str) -> Callable[..., Any]:
    return lambda: get_current_context()[name]


def in_a_call_below(name: str) -> Callable[..., Any]:
    def look(context: dict[str, Any]) -> Any:
        return context[name]

    return lambda **context: look(context)


def awaiting(name: str) -> Callable[..., Any]:
    async def look(**context: Any) -> Any:
        return context[name]

    return look


@pytest.mark.parametrize("way", [by_keywords, by_call, in_a_call_below, awaiting])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("var", "outlast's context has no 'var'; it keeps no variables; use the DAG's params"),
        ("inlet_events", "outlast's context has no 'inlet_events'; what was known of an inlet is in its state"),
        ("asset_state_store", "there is no asset_state_store in a task without assets; add inlets=[asset] or outlets="),
    ],
)
def test_looking_up_what_a_context_lacks_says_what_there_is(
    way: Callable[[str], Callable[..., Any]], name: str, said: str, dag: DAG, attempt: Any
) -> None:
    with pytest.raises(NotInContext) as caught:
        attempt(task(task_id="t")(way(name))())
    assert isinstance(caught.value, KeyError)
    assert str(caught.value).startswith(said)


def test_an_operator_is_told_too(dag: DAG, attempt: Any) -> None:
    class Look(BaseOperator):
        def execute(self, context):
            return context["macros"]

    with pytest.raises(NotInContext, match="it has no templates"):
        attempt(Look(task_id="t"))


def test_a_key_error_of_the_tasks_own_stays_what_it_is(dag: DAG, attempt: Any) -> None:
    @task
    def mine():
        return {"x": 1}["var"]

    @task
    def caught(**context):
        try:
            return context["var"]
        except KeyError as error:
            return str(error)

    @task
    def unknown(**context):
        return context["nothing"]

    for work in (mine, unknown):
        with pytest.raises(KeyError) as raised:
            attempt(work())
        assert type(raised.value) is KeyError
    assert attempt(caught()) == "'var'"


# --- Classes ---------------------------------------------------------------------------------------------


def test_the_mixin_after_base_operator_is_refused_as_the_class_is_made() -> None:
    said = r"Late has ResumableJobMixin after BaseOperator, .* write class Late\(ResumableJobMixin, BaseOperator\)"
    with pytest.raises(DagError, match=said):

        class Late(BaseOperator, ResumableJobMixin): ...


def test_the_mixin_is_refused_however_it_gets_behind() -> None:
    class Half(ResumableJobMixin): ...

    class Own(BaseOperator):
        def execute(self, context):
            raise SkipTask

    class Right(Half, Own): ...

    assert issubclass(Right, outlast.ResumableJobMixin)
    with pytest.raises(DagError, match="after BaseOperator"):

        class Wrong(Own, Half): ...


def test_the_other_name_of_durable_is_known() -> None:
    class Job(ResumableJobMixin, BaseOperator):
        def execute(self, context): ...

        submit_job = get_job_status = is_job_active = is_job_succeeded = poll_until_complete = get_job_result = execute

    with pytest.raises(DagError, match=r"no argument 'resume_on_retry'; .* it is called durable"):
        Job(task_id="j", resume_on_retry=False)
    assert Job(task_id="j", durable=False).durable is False
