"""The context of an attempt: its keys, the task instance, results by name, and what results stand for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from outlast import DagError, InvalidKey, InvalidValue
from outlast.dags.assets import Asset
from outlast.dags.context import CONTEXT_KEYS, DagRun, TaskInstance, build_context, get_current_context, resolve
from outlast.dags.graph import DAG
from outlast.dags.operators import BaseOperator
from outlast.dags.task_functions import task


class Step(BaseOperator):
    def execute(self, context):
        return context["params"]


@pytest.fixture
def ti(attempt, dag: DAG) -> TaskInstance:
    return attempt.context(Step("me"))["ti"]


def kept(ti: TaskInstance, **values: object) -> None:
    """Leave results: `a=1` is what task a returned, `a__key=1` what it pushed, a dict what each index returned."""
    for name, value in values.items():
        owner, _, key = name.partition("__")
        for index, one in value.items() if isinstance(value, dict) else [(-1, value)]:
            ti.results.owner = owner, index
            ti.results.push(key or "return_value", one)


# --- Keys ------------------------------------------------------------------------------------------------


def test_the_keys_of_a_context(attempt, dag: DAG) -> None:
    context = attempt.context(Step("a", inlets=[Asset("x")], outlets=[Asset("y")]), map_index=2, try_number=3)
    assert set(context) == CONTEXT_KEYS - {"asset_state_store", "outlet_events", "triggering_asset_events"}
    ti = context["ti"]
    assert (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.try_number) == ("d", "r", "a", 2, 3)
    assert (ti.task, ti.dag_run, context["task_instance"]) == (context["task"], context["dag_run"], ti)
    assert (context["dag"], context["run_id"], context["task_instance_key_str"]) == (dag, "r", "d__a__20261129")
    assert (context["inlets"], context["outlets"]) == ((Asset("x"),), (Asset("y"),))


@pytest.mark.parametrize(("map_index", "shown"), [(-1, "d/r/a"), (0, "d/r/a/0"), (2, "d/r/a/2")])
def test_a_task_instance_shows_its_address_and_try(attempt, dag: DAG, map_index: int, shown: str) -> None:
    ti = attempt.context(Step("a"), map_index=map_index, try_number=3)["ti"]
    assert repr(ti) == f"<TaskInstance {shown} try 3>"


def test_the_logical_date_in_every_form(attempt, dag: DAG) -> None:
    context = attempt.context(Step("a"))
    moment = datetime(2026, 11, 29, 4, 5, 6, tzinfo=UTC)
    assert {context[key] for key in ("logical_date", "data_interval_start", "data_interval_end")} == {moment}
    assert {key: context[key] for key in ("ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz")} == {
        "ds": "2026-11-29",
        "ds_nodash": "20261129",
        "ts": "2026-11-29T04:05:06+00:00",
        "ts_nodash": "20261129T040506",
        "ts_nodash_with_tz": "20261129T040506+0000",
    }


def test_the_logical_date_is_shown_in_utc(attempt, dag: DAG) -> None:
    step = Step("a")
    east = datetime(2026, 11, 30, 1, tzinfo=timezone(timedelta(hours=3)))
    context = build_context(
        dag=dag,
        task=step,
        run_id="r",
        try_number=1,
        logical_date=east,
        params={},
        task_state_store=attempt.store.task("d/r/a"),
        results=attempt.results,
    )
    assert context["ds"] == "2026-11-29"


def test_parameters_of_the_run(attempt) -> None:
    with DAG("d", params={"day": "today", "limit": 1}):
        step = Step("a")
    context = attempt.context(step, day="monday")
    assert context["params"] == context["dag_run"].params == context["dag_run"].conf == {"day": "monday", "limit": 1}


def test_the_current_context_is_there_only_while_a_task_runs(attempt, dag: DAG) -> None:
    @task
    def outer():
        before = get_current_context()
        inner = attempt(Step("inner"))
        return [before["ti"].task_id, get_current_context() is before, inner]

    assert attempt(outer()) == ["outer", True, {}]
    with pytest.raises(DagError, match="no task is running here, so there is no context"):
        get_current_context()


def test_the_current_context_is_left_when_a_task_raises(attempt, dag: DAG) -> None:
    @task
    def work():
        raise KeyError

    with pytest.raises(KeyError):
        attempt(work())
    with pytest.raises(DagError):
        get_current_context()


# --- Results by name -------------------------------------------------------------------------------------


def test_a_pushed_value_is_pulled_by_its_name(ti: TaskInstance) -> None:
    ti.xcom_push("path", {"to": ["x"]})
    assert ti.xcom_pull(key="path") == {"to": ["x"]}
    assert ti.xcom_pull("me", "path") == {"to": ["x"]}
    assert ti.xcom_pull("other", "path", default=5) == 5


def test_what_cannot_be_kept_is_refused(ti: TaskInstance) -> None:
    with pytest.raises(InvalidKey):
        ti.xcom_push("a/../b", 1)
    with pytest.raises(InvalidValue, match=r"\$ is a set"):
        ti.xcom_push("a", {1})


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"task_ids": "a"}, 1),
        ({"task_ids": "none"}, None),
        ({"task_ids": "nothing"}, None),
        ({"task_ids": "nothing", "default": 7}, 7),
        ({"task_ids": "none", "default": 7}, None),
        ({"task_ids": ["b", "a"]}, [2, 1]),
        ({"task_ids": ["b", "nothing", "a"]}, [2, None, 1]),
        ({"task_ids": ("a",)}, [1]),
        ({"task_ids": []}, []),
        ({"task_ids": "many"}, [10, 12]),
        ({"task_ids": "many", "map_indexes": 2}, 12),
        ({"task_ids": "many", "map_indexes": 1, "default": 7}, 7),
        ({"task_ids": "many", "map_indexes": [2, 1, 0]}, [12, None, 10]),
        ({"task_ids": "single"}, [5]),
        ({"task_ids": "single", "map_indexes": 0}, 5),
        ({"task_ids": "a", "map_indexes": -1}, 1),
        ({"task_ids": ["a", "many"]}, [1, 10, 12]),
        ({"task_ids": "a", "key": "k"}, "named"),
        ({}, None),
    ],
)
def test_what_is_pulled(ti: TaskInstance, asked: dict, answer: object) -> None:
    kept(ti, a=1, b=2, none=None, many={0: 10, 2: 12}, single={0: 5}, a__k="named")
    assert ti.xcom_pull(**asked) == answer


# --- What results stand for ------------------------------------------------------------------------------


def test_resolve_replaces_references_and_nothing_else(ti: TaskInstance, dag: DAG) -> None:
    kept(ti, a={-1: {"x": [1, 2]}})
    result, other = Step("a").output, object()
    given = {"whole": result, "part": [result["x"][1], (result["x"], other)], "plain": [1]}
    assert resolve(given, ti) == {"whole": {"x": [1, 2]}, "part": [2, ([1, 2], other)], "plain": [1]}
    assert given["whole"] is result


def test_what_has_no_references_is_returned_as_it_is(ti: TaskInstance) -> None:
    cycle: list = [1]
    cycle.append(cycle)
    for value in ({"a": [1]}, (1,), cycle, "x", None):
        assert resolve(value, ti) is value


def test_a_mapped_task_stands_for_the_list_of_its_results(ti: TaskInstance, dag: DAG) -> None:
    kept(ti, many={0: "a", 1: "b"}, single={0: "a"})
    assert resolve(Step("many").output, ti) == ["a", "b"]
    assert resolve(Step("single").output, ti) == ["a"]
    assert resolve(dag.tasks["many"].output[1], ti) == "b"


def test_a_part_may_be_one_the_task_has_pushed(ti: TaskInstance, dag: DAG) -> None:
    kept(ti, a={-1: {"x": 1}}, a__x=2, a__y=[3, {"z": 4}], b=5, b__x=6, c__x=7)
    a, b, c = (Step(name).output for name in "abc")
    assert resolve([a["x"], a["y"], a["y"][1]["z"], b["x"], c["x"]], ti) == [1, [3, {"z": 4}], 4, 6, 7]


@pytest.mark.parametrize("path", [(), ("y",), ("x", 5), ("x", "y"), (0,), ("y", "z")])
def test_a_missing_result_is_an_error_that_names_the_task(ti: TaskInstance, dag: DAG, path: tuple) -> None:
    result = Step("a").output
    if path:
        kept(ti, a={-1: {"x": [1]}})
    for step in path:
        result = result[step]
    with pytest.raises(DagError, match=r"there is no <result of a.*> in this run; see what task 'a' returned"):
        resolve([result], ti)
    assert resolve([result], ti, required=False) == [None]


@pytest.mark.parametrize(("rule", "fails"), [("all_success", True), ("none_failed", False), ("all_done", False)])
def test_a_task_that_runs_whatever_became_of_those_above_gets_none(attempt, dag: DAG, rule: str, fails: bool) -> None:
    @task(trigger_rule=rule)
    def clean(rows):
        return ["cleaned", rows]

    made = clean(Step("above").output)
    if fails:
        with pytest.raises(DagError, match="there is no <result of above>"):
            attempt(made)
    else:
        assert attempt(made) == ["cleaned", None]


def test_a_run_is_a_value() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert DagRun("d", "r", when, {"a": 1}) == DagRun("d", "r", when, {"a": 1})
