"""Functions under `@task`: calls, results passed on, and what they get from the context."""

from __future__ import annotations

import functools

import pytest

from outlast import DagError
from outlast.dags.context import CONTEXT_KEYS
from outlast.dags.graph import DAG
from outlast.dags.task_functions import task


@task
def extract():
    return {"rows": [1, 2, 3], "when": {"day": "monday"}}


@task
def give(value):
    return value


# --- Calls -----------------------------------------------------------------------------------------------


def test_a_call_makes_a_task_and_runs_nothing(dag: DAG) -> None:
    ran = []

    @task
    def work():
        ran.append(1)

    result = work()
    assert (list(dag.tasks), repr(result), ran) == (["work"], "<result of work>", [])


def test_a_second_call_makes_a_second_task(dag: DAG) -> None:
    for _ in range(3):
        extract()
    give(1)
    assert list(dag.tasks) == ["extract", "extract__1", "extract__2", "give"]


def test_numbers_that_are_taken_are_passed_over(dag: DAG) -> None:
    extract.override(task_id="extract__1")()
    for _ in range(3):
        extract()
    assert list(dag.tasks) == ["extract__1", "extract", "extract__2", "extract__3"]


def test_override_changes_options_of_one_call_only(dag: DAG) -> None:
    again = extract.override(task_id="again", retries=2)
    again()
    again()
    extract()
    assert {task_id: made.retries for task_id, made in dag.tasks.items()} == {"again": 2, "again__1": 2, "extract": 0}


def test_the_plain_function_can_be_called() -> None:
    assert extract.function()["rows"] == [1, 2, 3]
    assert (extract.__name__, extract.__wrapped__) == ("extract", extract.function)


def test_a_call_outside_a_dag_says_how_to_run_the_plain_function() -> None:
    with pytest.raises(
        DagError, match=r"extract\(\) was called outside a DAG.*or extract.function\(\) to run the plain"
    ):
        extract()


def test_the_dag_may_be_an_option_of_the_function() -> None:
    made = DAG("d")
    task(dag=made)(lambda: None)()
    assert list(made.tasks) == ["<lambda>"]


def test_text_given_to_the_decorator_is_refused() -> None:
    with pytest.raises(DagError, match=r"use keyword arguments: @task\(task_id='extract'\)"):
        task("extract")


def test_any_callable_can_be_a_task(attempt, dag: DAG) -> None:
    class Doubler:
        def __call__(self, number, ti):
            return [number * 2, ti.task_id]

    assert attempt(task(Doubler())(2)) == [4, "Doubler"]
    assert attempt(task(functools.partial(pow, 2), task_id="power")(5)) == 32


def test_a_callable_whose_parameters_cannot_be_read_is_refused() -> None:
    with pytest.raises(DagError, match=r"the parameters of .* cannot be read; wrap it"):
        task(dict)


def test_the_parameters_of_a_wrapped_function_are_those_of_the_function_inside(attempt, dag: DAG) -> None:
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return [function(*args, **kwargs)] * 2

        return wrapper

    @task
    @twice
    def work(number, *, ti=None):
        return [number, ti.try_number]

    assert attempt(work(5), try_number=3) == [[5, 3], [5, 3]]
    with pytest.raises(DagError, match=r"work\(\) lacks 'number'"):
        work()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda f: f(), "f() lacks 'a', 'c'; give a value, or a default"),
        (lambda f: f(1), "f() lacks 'c'"),
        (lambda f: f(c=1), "f() lacks 'a'"),
        (lambda f: f(1, 2, 3, c=4), "f() takes at most 2 positional arguments and was given 3"),
        (lambda f: f(1, a=2, c=3), "f() was given 'a' twice, by position and by keyword"),
        (lambda f: f(1, c=3, cc=4), "f() has no argument 'cc'; did you mean 'c'?"),
        (lambda f: f(1, c=3, limits=4), "f() has no argument 'limits'; it takes a, b, c"),
    ],
)
def test_a_call_the_function_would_not_take_is_refused_where_it_stands(dag: DAG, call, complaint: str) -> None:
    @task
    def f(a, b=2, *, c, ti=None): ...

    with pytest.raises(DagError) as error:
        call(f)
    assert complaint in error.value.message
    assert dag.tasks == {}


def test_an_argument_by_position_only_cannot_be_given_by_keyword(dag: DAG) -> None:
    @task
    def f(a, /): ...

    with pytest.raises(DagError, match=r"f\(\) has no argument 'a'"):
        f(a=1)
    f(1)


# --- Results passed on -----------------------------------------------------------------------------------


def test_a_result_is_replaced_by_its_value_and_makes_the_edge(attempt, dag: DAG) -> None:
    rows = extract()
    passed = give(rows)
    assert passed.task.upstream_task_ids == ("extract",)
    attempt(rows)
    assert attempt(passed) == {"rows": [1, 2, 3], "when": {"day": "monday"}}


def test_a_part_of_a_result(attempt, dag: DAG) -> None:
    rows = extract()
    attempt(rows)
    assert attempt(give(rows["rows"])) == [1, 2, 3]
    assert attempt(give(rows["rows"][-1])) == 3
    assert attempt(give(rows["when"]["day"])) == "monday"
    assert repr(rows["rows"][-1]) == "<result of extract['rows'][-1]>"


def test_results_inside_lists_tuples_and_dicts(attempt, dag: DAG) -> None:
    one, two = give.override(task_id="one")(1), give.override(task_id="two")(2)
    seen = []
    together = task(lambda *args, **kwargs: seen.append((args, kwargs["key"])))(
        [one, (two, {"deep": [one]})], 7, key={"two": two}
    )
    assert together.task.upstream_task_ids == ("one", "two")
    for result in (one, two, together):
        attempt(result)
    assert seen == [(([1, (2, {"deep": [1]})], 7), {"two": 2})]


def test_falsy_and_absent_values_are_results_like_others(attempt, dag: DAG) -> None:
    for value in (None, 0, "", [], False):
        made = give.override(task_id=f"a{value!r}")(value)
        attempt(made)
        assert attempt(give(made)) == value


def test_a_function_may_ignore_the_result_it_waits_for(dag: DAG) -> None:
    assert (give(1) >> give(2)).task.upstream_task_ids == ("give",)


@pytest.mark.parametrize("use", [bool, list, len, lambda rows: f"{rows}", lambda rows: [*rows], lambda rows: rows or 1])
def test_a_result_cannot_be_used_while_the_dag_is_defined(dag: DAG, use) -> None:
    rows = extract()
    with pytest.raises(DagError, match="<result of extract> is known only in a run; pass it to a task as an argument"):
        use(rows)


@pytest.mark.parametrize("part", [None, True, 1.5, slice(1, 2)])
def test_a_part_is_a_key_or_a_position(dag: DAG, part: object) -> None:
    with pytest.raises(DagError, match="has no part"):
        extract()[part]


# --- The context -----------------------------------------------------------------------------------------


def test_what_a_function_names_it_gets_from_the_context(attempt, dag: DAG) -> None:
    @task
    def work(number, ti, *, run_id, task_state_store=None, ds="x", unknown="default"):
        task_state_store.set("number", number)
        return [number, ti.try_number, run_id, ds, unknown]

    assert attempt(work(number=5), try_number=2) == [5, 2, "r", "2026-11-29", "default"]
    assert attempt.store.task("d/r/work").get("number") == 5


def test_with_any_keyword_a_function_gets_the_whole_context(attempt, dag: DAG) -> None:
    got = {}

    @task
    def work(number, ti=None, **context):
        got.update(context, ti=ti, number=number)

    attempt(work(1, extra=2))
    of_assets = {"asset_state_store", "outlet_events", "triggering_asset_events"}
    assert set(got) == (CONTEXT_KEYS - of_assets) | {"number", "extra"}
    assert got["ti"] is got["task_instance"]


def test_a_function_without_parameters_gets_nothing(attempt, dag: DAG) -> None:
    assert attempt(extract())["rows"] == [1, 2, 3]


@pytest.mark.parametrize("name", sorted(CONTEXT_KEYS))
def test_a_name_of_the_context_cannot_be_given(dag: DAG, name: str) -> None:
    @task
    def whole(**context): ...

    with pytest.raises(DagError, match=f"was given '{name}', which every task gets from its context: leave it out"):
        whole(**{name: 1})


def test_a_name_of_the_context_given_by_position_says_how_to_give_the_others(dag: DAG) -> None:
    @task
    def work(ti, number): ...

    with pytest.raises(DagError, match=r"was given 'ti', .* give the other arguments by keyword"):
        work(5)
    work(number=5)


def test_a_parameter_the_task_has_no_value_for_keeps_its_default(attempt, dag: DAG) -> None:
    @task
    def work(asset_state_store="none here"):
        return asset_state_store

    assert attempt(work()) == "none here"


def test_an_async_function_is_run_to_its_end_with_its_context(attempt, dag: DAG) -> None:
    @task
    async def work(task_state_store=None):
        await task_state_store.aset("seen", 1)
        return await task_state_store.aget("seen")

    assert attempt(work()) == 1


def test_what_a_function_raises_is_raised_as_it_is(attempt, dag: DAG) -> None:
    @task
    def work():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        attempt(work())
