"""Airflow's import paths: they mean outlast's names where there is no Airflow, and never shadow one that is there."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import DagError
from outlast.dags import airflow_names, airflow_parts
from outlast.dags.airflow_table import HOMES, MODULES
from outlast.dags.graph import DAG
from outlast.dags.loading import LoadedFile, load_file
from outlast.dags.outcomes import SkipTask, TaskError
from support.airflow import forgotten


@pytest.fixture(autouse=True)
def no_airflow() -> Iterator[None]:
    with forgotten():
        yield


@pytest.fixture
def installed() -> None:
    airflow_names.install()


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], LoadedFile]:
    def load(source: str) -> LoadedFile:
        (tmp_path / "d.py").write_text(source)
        return load_file(tmp_path / "d.py")

    return load


A_DAG = "with DAG('d'):\n    @task\n    def t(): ...\n    t()\n"


# --- What the names mean ---------------------------------------------------------------------------------


def test_the_names_are_outlasts_own(load: Callable[[str], LoadedFile]) -> None:
    loaded = load(f"from airflow.sdk import DAG, NEVER_EXPIRE, BaseOperator, chain, task\n{A_DAG}")
    module = sys.modules[f"outlast_dag_{loaded.digest}"]
    assert module.DAG is outlast.DAG
    assert module.BaseOperator is outlast.BaseOperator
    assert module.NEVER_EXPIRE is outlast.NEVER_EXPIRE
    assert module.task is outlast.task
    assert module.chain is outlast.chain
    assert list(loaded.dags) == ["d"]


def test_every_name_of_every_module_can_be_imported(installed: None) -> None:
    for module, names in MODULES.items():
        found = importlib.import_module(module)
        assert found.__all__ == sorted(names)
        for name in names:
            assert getattr(found, name) is not None, f"{module}.{name}"
    assert set(HOMES) == set().union(*MODULES.values())


def test_a_star_import_works(load: Callable[[str], LoadedFile]) -> None:
    assert list(load(f"from airflow.sdk import *\n{A_DAG}").dags) == ["d"]


def test_a_module_can_be_reached_through_its_parents(load: Callable[[str], LoadedFile]) -> None:
    source = (
        "import airflow.sdk.exceptions\nfrom airflow import sdk\nfrom airflow.utils import timezone\n"
        "assert timezone.utcnow().tzinfo is timezone.utc\n"
        "DAG, task = airflow.sdk.DAG, sdk.task\nairflow.exceptions.AirflowSkipException\n"
    )
    assert list(load(source + A_DAG).dags) == ["d"]


def test_names_are_found_in_code_that_runs_later(load: Callable[[str], LoadedFile]) -> None:
    source = (
        "from airflow.sdk import DAG, task\n"
        "with DAG('d'):\n    @task\n    def t():\n        from airflow.exceptions import AirflowSkipException\n"
        "        raise AirflowSkipException('later')\n    t()\n"
    )
    with pytest.raises(SkipTask, match="later"):
        load(source).dags["d"].tasks["t"].function()  # type: ignore[attr-defined]


def test_the_exceptions_have_airflows_family_tree(installed: None) -> None:
    errors: Any = importlib.import_module("airflow.exceptions")
    for name in ("Skip", "Fail", "Config", "NotFound", "Reschedule"):
        assert issubclass(getattr(errors, f"Airflow{name}Exception"), errors.AirflowException)
    assert issubclass(errors.AirflowSensorTimeout, errors.AirflowException)
    assert issubclass(errors.TaskDeferralError, errors.AirflowException)
    for name in ("AirflowTaskTimeout", "TaskDeferred"):
        assert not issubclass(getattr(errors, name), Exception)
    assert str(errors.AirflowException("as in Airflow", 3)) == "('as in Airflow', 3)"
    assert importlib.import_module("airflow.sdk.exceptions").AirflowException is errors.AirflowException


def test_the_version_is_that_of_the_names_and_says_whose_they_are(installed: None) -> None:
    import airflow  # type: ignore[import-not-found, unused-ignore]

    assert airflow.__version__ == f"3.3.2+outlast.{outlast.__version__}"


def test_nothing_is_installed_before_a_file_is_loaded() -> None:
    code = "import sys, outlast, outlast.dags.graph, outlast.cli\nimport airflow"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=30)
    assert "ModuleNotFoundError: No module named 'airflow'" in done.stderr


def test_a_second_installation_changes_nothing(installed: None) -> None:
    finders = list(sys.meta_path)
    airflow_names.install()
    assert sys.meta_path == finders


# --- What there is not -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "from airflow.sdk import Variable",
            "no Variable in airflow.sdk, and no Airflow is installed; it keeps no var",
        ),
        ("from airflow.models import Variable", "no Variable in airflow.models"),
        ("from airflow.hooks.base import BaseHook", "no airflow.hooks, and no Airflow is installed; it keeps no conn"),
        ("from airflow.sdk import CronTriggerTimetable", "run the file from cron"),
        ("from airflow.sdk import TaskGroup", "tasks are not grouped"),
        ("from airflow.sdk import StartOfDayMapper", "assets have no partitions"),
        ("from airflow.sdk import tsk", "did you mean 'task'?"),
        ("from airflow.utils.state import Nothing", "it has DagRunState, State, TaskInstanceState"),
        ("from airflow.providers.amazon.aws.operators.s3 import S3ListOperator", "no airflow.providers.amazon"),
        ("from airflow.providers.standard.sensors.filesystem import FileSensor", "use @task.sensor"),
        ("import airflow.sdk.definition", "did you mean 'definitions'?"),
        ("import airflow.nowhere", "it has Asset, DAG, Dataset, XComArg, configuration, datasets, decorators"),
        ("from airflow.sdk import Zzz", "docs/airflow.md lists what there is"),
    ],
)
def test_what_is_missing_is_said_with_what_there_is_instead(
    line: str, said: str, load: Callable[[str], LoadedFile], tmp_path: Path
) -> None:
    with pytest.raises(DagError) as caught:
        load(f"from airflow.sdk import DAG\n{line}\n")
    assert caught.value.message.startswith(f"{tmp_path / 'd.py'}:2: outlast has no ")
    assert said in caught.value.message


def test_what_is_missing_is_an_import_error_a_file_can_catch(load: Callable[[str], LoadedFile]) -> None:
    source = (
        "from airflow.sdk import DAG, task\n"
        "try:\n    from airflow.sdk import Variable\nexcept ImportError as error:\n    Variable = error\n"
        "try:\n    import airflow.providers.amazon\nexcept ImportError as error:\n    amazon = error\n"
    )
    loaded = load(source + A_DAG)
    module = sys.modules[f"outlast_dag_{loaded.digest}"]
    assert isinstance(module.Variable, airflow_names.NotInOutlast)
    assert isinstance(module.amazon, airflow_names.NotInOutlast)


def test_what_tools_look_for_in_a_module_is_no_missing_feature(installed: None) -> None:
    import airflow.sdk  # type: ignore[import-not-found, unused-ignore]

    assert not hasattr(airflow.sdk, "__wrapped__")
    assert "DAG" in dir(airflow.sdk)
    assert "outlast" in repr(airflow.sdk)


# --- An Airflow that is installed ------------------------------------------------------------------------


def package(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").removesuffix("/init")
        path = path / "__init__.py" if name.endswith("__init") else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are imported from."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_an_installed_airflow_is_what_a_file_gets(load: Callable[[str], LoadedFile], elsewhere: Path) -> None:
    package(elsewhere, airflow__init="", airflow__sdk__init="class DAG:\n    def __init__(self, name): ...\n")
    with pytest.raises(DagError, match="an Airflow is installed here") as caught:
        load("from airflow.sdk import DAG\nd = DAG('d')\n")
    assert "write `from outlast import …`" in caught.value.message
    assert sys.modules["airflow.sdk"].__file__ == str(elsewhere / "airflow" / "sdk" / "__init__.py")


def test_what_an_installed_airflow_lacks_is_lacking(load: Callable[[str], LoadedFile], elsewhere: Path) -> None:
    """An Airflow 2 has no airflow.sdk, and must not be given ours."""
    package(elsewhere, airflow__init="__version__ = '2.11.0'\n", airflow__decorators="task = None\n")
    with pytest.raises(DagError, match=r"No module named 'airflow\.sdk'"):
        load("import airflow\nassert airflow.__version__ == '2.11.0'\nfrom airflow.sdk import DAG\n")
    with pytest.raises(DagError, match=r"No module named 'airflow\.triggers'"):
        load("from airflow.triggers.base import BaseTrigger\n")


def test_airflows_sdk_alone_counts_as_installed(load: Callable[[str], LoadedFile], elsewhere: Path) -> None:
    package(elsewhere, airflow__sdk__init="mine = 7\n")
    with pytest.raises(DagError, match="defines no DAG"):
        load("from airflow.sdk import mine\nassert mine == 7\n")


def test_an_airflow_that_was_imported_before_stays(load: Callable[[str], LoadedFile], elsewhere: Path) -> None:
    package(elsewhere, airflow__init="", airflow__sdk__init="")
    theirs = importlib.import_module("airflow")
    with pytest.raises(DagError, match="cannot import name 'DAG'"):
        load("from airflow.sdk import DAG\n")
    assert sys.modules["airflow"] is theirs


def test_a_file_for_outlast_runs_beside_an_installed_airflow(
    load: Callable[[str], LoadedFile], elsewhere: Path
) -> None:
    package(elsewhere, airflow__init="raise SystemExit('imported')\n")
    assert list(load(f"from outlast import DAG, task\n{A_DAG}").dags) == ["d"]


def test_airflows_home_beside_the_file_is_no_airflow(load: Callable[[str], LoadedFile], tmp_path: Path) -> None:
    """~/airflow, with settings and DAG files, can be imported as a package of nothing but folders."""
    package(tmp_path, airflow__dags__shared="value = 3\n", airflow__plugins__mine__init="value = 4\n")
    (tmp_path / "airflow" / "airflow.cfg").write_text("[core]\n")
    source = (
        "from airflow.sdk import DAG, task\nfrom airflow.dags import shared\nfrom airflow.plugins import mine\n"
        "import airflow\nassert (shared.value, mine.value) == (3, 4)\nassert 'outlast' in airflow.__version__\n"
    )
    assert list(load(source + A_DAG).dags) == ["d"]


# --- What is defined for it ------------------------------------------------------------------------------


def test_a_param_is_its_default(attempt: Any) -> None:
    with DAG("d", params={"limit": airflow_param(10, description="rows at most", type="integer"), "day": "x"}) as dag:

        @outlast.task
        def t(params):
            return params

        t()
    assert dag.params == {"limit": 10, "day": "x"}
    assert attempt(dag.tasks["t"], limit=3) == {"limit": 3, "day": "x"}
    with pytest.raises(DagError, match="lacks a default"):
        airflow_param(type="string")


def airflow_param(*args: Any, **kwargs: Any) -> Any:
    airflow_names.install()
    return importlib.import_module("airflow.sdk").Param(*args, **kwargs)


def test_python_operator_calls_with_arguments_and_context(dag: DAG, attempt: Any) -> None:
    def plain(a, b, ti, *, c=0):
        return [a, b, c, ti.task_id]

    def whole(*args, **context):
        return [*args, context["c"], context["run_id"]]

    async def later(ti):
        return ti.task_id

    op = airflow_parts.PythonOperator
    first = op(task_id="first", python_callable=plain, op_args=[1], op_kwargs={"b": 2, "c": 3})
    second = op(task_id="second", python_callable=whole, op_args=[first.output[0]], op_kwargs={"c": 5})
    assert attempt(first) == [1, 2, 3, "first"]
    assert attempt(second) == [1, 5, "r"]
    assert second.upstream_task_ids == ("first",)
    assert attempt(op(task_id="third", python_callable=later)) == "third"
    with pytest.raises(DagError, match="python_callable"):
        op(task_id="fourth", python_callable=plain(1, 2, first))


def test_bash_operator_runs_a_command(
    dag: DAG, attempt: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    op = airflow_parts.BashOperator
    monkeypatch.setenv("GIVEN", "outside")
    assert attempt(op(task_id="a", bash_command="echo one; echo two >&2; echo; echo three")) == "three"
    assert capsys.readouterr().out == "one\ntwo\n\nthree\n"
    assert attempt(op(task_id="b", bash_command="echo $GIVEN-$MORE", env={"MORE": "x"})) == "-x"
    assert attempt(op(task_id="c", bash_command="echo $GIVEN-$MORE", env={"MORE": "x"}, append_env=True)) == "outside-x"
    assert attempt(op(task_id="d", bash_command="pwd", cwd=str(tmp_path))) == str(tmp_path)
    temporary = attempt(op(task_id="e", bash_command="touch file; pwd"))
    assert not os.path.exists(temporary)
    assert attempt(op(task_id="f", bash_command="echo x", do_xcom_push=False)) is None
    assert attempt(op(task_id="g", bash_command="true")) == ""


def test_bash_operator_ends_as_its_command_does(dag: DAG, attempt: Any) -> None:
    op = airflow_parts.BashOperator
    with pytest.raises(SkipTask, match="99"):
        attempt(op(task_id="a", bash_command="exit 99"))
    with pytest.raises(TaskError, match="exit status 3"):
        attempt(op(task_id="b", bash_command="exit 3"))
    with pytest.raises(SkipTask):
        attempt(op(task_id="c", bash_command="exit 3", skip_on_exit_code=[3, 4]))
    with pytest.raises(TaskError):
        attempt(op(task_id="d", bash_command="exit 99", skip_on_exit_code=None))
    with pytest.raises(DagError, match="template"):
        op(task_id="e", bash_command="echo {{ ds }}")


def test_empty_operator_and_the_order_of_lists(dag: DAG, attempt: Any) -> None:
    a, b, c, d = (airflow_parts.EmptyOperator(task_id=name) for name in "abcd")
    airflow_parts.chain_linear([a, b], [c, d])
    assert c.upstream_task_ids == d.upstream_task_ids == ("a", "b")
    e = airflow_parts.EmptyOperator(task_id="e")
    airflow_parts.cross_downstream([c, d], [e])
    assert e.upstream_task_ids == ("c", "d")
    assert attempt(a) is None


def test_trigger_rules_are_those_outlast_has(dag: DAG) -> None:
    rules = airflow_parts.TriggerRule
    assert airflow_parts.EmptyOperator(task_id="a", trigger_rule=rules.ALL_DONE).trigger_rule == "all_done"
    with pytest.raises(DagError, match="use one of"):
        airflow_parts.EmptyOperator(task_id="b", trigger_rule=rules.ONE_SUCCESS)
    assert f"{rules.NONE_FAILED}" == "none_failed"


def test_settings_come_from_the_environment_or_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = airflow_parts.conf
    assert conf.getboolean("operators", "default_deferrable", fallback=False) is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert conf.getboolean("operators", "default_deferrable", fallback=False) is True
    assert conf.getint("core", "parallelism", fallback=3) == 3
    assert conf.getfloat("core", "pause", fallback="0.5") == 0.5
    with pytest.raises(airflow_parts.AirflowConfigException, match=r"\[core\] dags_folder"):
        conf.get("core", "dags_folder")
    monkeypatch.setenv("AIRFLOW__CORE__X", "perhaps")
    with pytest.raises(airflow_parts.AirflowConfigException, match="true or false"):
        conf.getboolean("core", "x")


def test_times_have_a_time_zone() -> None:
    two = timezone(timedelta(hours=2))
    assert airflow_parts.aware(2026, 1, 2) == datetime(2026, 1, 2, tzinfo=UTC)
    assert airflow_parts.parse("2026-01-02T03:00:00+02:00") == datetime(2026, 1, 2, 1, tzinfo=UTC)
    assert airflow_parts.parse("2026-01-02") == datetime(2026, 1, 2, tzinfo=UTC)
    assert airflow_parts.make_aware(datetime(2026, 1, 2, tzinfo=two)).tzinfo is two
    assert airflow_parts.convert_to_utc(datetime(2026, 1, 2, tzinfo=two)).hour == 22  # type: ignore[union-attr]
    assert airflow_parts.convert_to_utc(None) is None
    assert airflow_parts.utcnow().tzinfo is airflow_parts.utc


def test_a_parameter_named_context_is_the_whole_of_it(dag: DAG, attempt: Any) -> None:
    @outlast.task
    def whole(context=None):
        return sorted(context) == sorted(outlast.get_current_context())

    @outlast.task
    def given(context, more=1):
        return [context, more]

    assert attempt(whole()) is True
    assert attempt(given(5)) == [5, 1]
    assert attempt(given(context={"own": 1})) == [{"own": 1}, 1]
