"""DAGs: what they take, how tasks get into them, and the order of tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outlast import DagError, InvalidKey
from outlast.dags.graph import DAG, chain, current_dag, dag
from outlast.dags.operators import BaseOperator
from outlast.dags.task_functions import task


class Step(BaseOperator):
    def execute(self, context: object) -> None: ...


def steps(names: str, dag: DAG | None = None) -> list[Step]:
    return [Step(name, dag=dag) for name in names]


def edges(dag: DAG) -> set[str]:
    return {above + below for below, step in dag.tasks.items() for above in step.upstream_task_ids}


# --- Arguments -------------------------------------------------------------------------------------------


def test_a_dag_remembers_what_it_was_given() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = DAG(
        "nightly",
        description="d",
        schedule="@daily",
        start_date=start,
        end_date=start,
        catchup=True,
        tags={"b", "a"},
        doc_md="# d",
        params={"day": "today"},
        default_args={"retries": 3},
        max_active_runs=1,
        max_active_tasks=2,
        dagrun_timeout=90,
    )
    assert (made.dag_id, made.description, made.schedule, made.catchup) == ("nightly", "d", "@daily", True)
    assert (made.start_date, made.end_date, made.tags, made.doc_md) == (start, start, ("a", "b"), "# d")
    assert (made.params, made.default_args) == ({"day": "today"}, {"retries": 3})
    assert (made.max_active_runs, made.max_active_tasks, made.dagrun_timeout) == (1, 2, timedelta(seconds=90))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"schedul": "@daily"}, "DAG has no argument 'schedul'; did you mean 'schedule'?"),
        ({"xyzzy": 1}, "DAG has no argument 'xyzzy'; it takes catchup, dag_id, dag"),
        ({"start_date": "2026-01-01"}, "start_date is '2026-01-01'; use a datetime"),
        ({"end_date": 20260101}, "end_date is 20260101; use a datetime"),
        ({"tags": "demo"}, "tags is 'demo'; write a list: tags=['demo']"),
        ({"tags": 3}, "tags is 3"),
        ({"params": ["a"]}, "params is ['a']; use a dict"),
        ({"params": {1: "a"}}, "use a dict whose keys are names"),
        ({"default_args": "retries"}, "default_args is 'retries'; use a dict"),
        ({"max_active_runs": 0}, "max_active_runs is 0; it must be a whole number from 1 on"),
        ({"max_active_tasks": True}, "max_active_tasks is True"),
        ({"max_active_tasks": 1.5}, "max_active_tasks is 1.5"),
        ({"dagrun_timeout": timedelta(0)}, "dagrun_timeout is 0:00:00; it must be positive"),
        ({"dagrun_timeout": "1h"}, "dagrun_timeout is '1h'; use a timedelta"),
    ],
)
def test_a_wrong_argument_of_a_dag_is_refused_with_the_remedy(arguments: dict, complaint: str) -> None:
    with pytest.raises(DagError) as error:
        DAG("d", **arguments)
    assert complaint in error.value.message


def test_a_dag_id_keeps_the_rules_of_contract_1_3() -> None:
    with pytest.raises(InvalidKey, match="contains '/'"):
        DAG("a/b")


# --- Membership ------------------------------------------------------------------------------------------


def test_tasks_made_in_a_with_block_belong_to_its_dag() -> None:
    with DAG("d") as outer:
        (a,) = steps("a")
        with DAG("e") as inner:
            (b,) = steps("b")
        (c,) = steps("c")
    assert (list(outer.tasks.values()), list(inner.tasks.values())) == ([a, c], [b])
    assert (a.dag, b.dag, current_dag()) == (outer, inner, None)


def test_a_dag_that_fails_in_its_with_block_is_closed_all_the_same() -> None:
    with pytest.raises(RuntimeError, match="mine"), DAG("d"):
        raise RuntimeError("mine")
    assert current_dag() is None


def test_tasks_given_a_dag_belong_to_that_one(dag: DAG) -> None:
    other = DAG("other")
    steps("ab", other)
    assert (list(other.tasks), list(dag.tasks)) == (["a", "b"], [])


def test_a_dag_argument_that_is_none_of_the_kind_is_refused() -> None:
    with pytest.raises(DagError, match="dag is 'd'; pass the DAG itself"):
        Step("a", dag="d")


def test_a_second_task_of_the_same_id_is_refused(dag: DAG) -> None:
    steps("a")
    with pytest.raises(DagError, match="DAG 'd' has a task 'a' already; give this one another task_id"):
        steps("a")


def test_a_task_cannot_belong_to_two_dags(dag: DAG) -> None:
    (a,) = steps("a", DAG("other"))
    with pytest.raises(DagError, match="task 'a' belongs to DAG 'other', not to 'd'"):
        dag.add_task(a)


def test_a_task_without_a_dag_can_be_added_later() -> None:
    (a,) = steps("a")
    made = DAG("d")
    made.add_task(a)
    made.add_task(a)
    assert (a.dag, made.tasks) == (made, {"a": a})


# --- Links -----------------------------------------------------------------------------------------------


def test_every_way_of_saying_that_one_task_waits_for_another(dag: DAG) -> None:
    a, b, c, d, e, f, g, h, i = steps("abcdefghi")
    assert (a >> b) is b
    assert (d << c) is c
    e.set_upstream(d)
    e.set_downstream([f, g])
    assert ([f, g] >> h) is h
    assert ([a, b] << i) is i
    assert edges(dag) == {"ab", "cd", "de", "ef", "eg", "fh", "gh", "ia", "ib"}
    assert (h.upstream_task_ids, e.downstream_task_ids) == (("f", "g"), ("f", "g"))


def test_a_chain_of_arrows_through_a_list(dag: DAG) -> None:
    a, b, c, d = steps("abcd")
    a >> [b, c] >> d
    assert edges(dag) == {"ab", "ac", "bd", "cd"}


def test_lists_in_lists_are_flattened(dag: DAG) -> None:
    a, b, c, d = steps("abcd")
    a >> [b, (c, [d])]
    assert edges(dag) == {"ab", "ac", "ad"}


def test_saying_it_twice_is_saying_it_once(dag: DAG) -> None:
    a, b = steps("ab")
    a >> b
    b << a
    assert b.upstream_task_ids == ("a",)


def test_chain_joins_lists_of_the_same_length_one_to_one(dag: DAG) -> None:
    a, b, c, d, e, f = steps("abcdef")
    chain(a, [b, c], (d, e), f)
    assert edges(dag) == {"ab", "ac", "bd", "ce", "df", "ef"}


def test_chain_refuses_lists_of_different_lengths(dag: DAG) -> None:
    a, b, c = steps("abc")
    with pytest.raises(DagError, match="cannot join 2 tasks to 1 one to one; put a task in between"):
        chain([a, b], [c])


def test_a_link_brings_a_task_into_the_dag_of_the_other() -> None:
    made = DAG("d")
    a, b, c = *steps("a", made), *steps("bc")
    a >> b
    c >> b
    assert list(made.tasks) == ["a", "b", "c"]


def test_tasks_without_any_dag_cannot_be_linked() -> None:
    a, b = steps("ab")
    with pytest.raises(DagError, match="<Step a> and <Step b> belong to no DAG yet"):
        a >> b


def test_tasks_of_two_dags_cannot_be_linked() -> None:
    (a,), (b,) = steps("a", DAG("d")), steps("b", DAG("e"))
    with pytest.raises(DagError, match="task 'b' belongs to DAG 'e', not to 'd'"):
        a >> b


@pytest.mark.parametrize("other", ["b", None, 3, [None], {"a": 1}])
def test_what_is_no_task_cannot_be_linked(dag: DAG, other: object) -> None:
    (a,) = steps("a")
    with pytest.raises(DagError, match="is no task, so nothing can wait for it"):
        a >> other


def test_a_function_that_was_not_called_cannot_be_linked(dag: DAG) -> None:
    @task
    def load(rows, day, ti=None): ...

    (a,) = steps("a")
    for wrong in (lambda: a >> load, lambda: load >> a, lambda: [load] >> a, lambda: load >> load):
        with pytest.raises(DagError, match=r"load is not a task before it is called; write load\(rows, day\)"):
            wrong()


# --- Order -----------------------------------------------------------------------------------------------


def test_topological_order_keeps_the_order_of_definition_where_it_can(dag: DAG) -> None:
    a, b, _, d, e = steps("abcde")
    d >> b
    e >> a
    assert dag.topological() == ("c", "d", "e", "b", "a")


def test_every_task_comes_after_those_it_waits_for(dag: DAG) -> None:
    made = steps("abcdefgh")
    for above, below in ("ha", "gb", "fa", "ba", "hb", "ce", "ae"):
        dag.tasks[above] >> dag.tasks[below]
    order = dag.topological()
    assert sorted(order) == [step.task_id for step in made]
    assert all(order.index(above) < order.index(below) for above, below in edges(dag))


def test_a_cycle_is_refused_and_named_without_what_hangs_on_it() -> None:
    opened = DAG("d").__enter__()
    after, a, b, c, before = steps("zabcy")
    before >> a >> b >> c >> a
    c >> after
    with pytest.raises(DagError) as error:
        opened.__exit__(None, None, None)
    assert "wait for each other: c >> a >> b >> c; remove" in error.value.message


def test_a_task_that_waits_for_itself_is_refused(dag: DAG) -> None:
    (a,) = steps("a")
    with pytest.raises(DagError, match="task 'a' would wait for itself"):
        a >> a


def test_ten_thousand_tasks_in_a_line_are_no_trouble() -> None:
    made = DAG("d")
    line = [Step(f"t{n}", dag=made) for n in range(10_000)]
    chain(*line)
    assert made.topological() == tuple(f"t{n}" for n in range(10_000))


# --- Parameters of a run ---------------------------------------------------------------------------------


def test_given_parameters_override_the_defaults() -> None:
    made = DAG("d", params={"day": "today", "limit": 10})
    assert made.merged_params({"limit": None}) == {"day": "today", "limit": None}
    assert made.params == {"day": "today", "limit": 10}


def test_an_unknown_parameter_is_refused_naming_those_there_are() -> None:
    made = DAG("d", params={"day": "today", "limit": 10})
    with pytest.raises(DagError, match="no parameter 'limits'; did you mean 'limit'"):
        made.merged_params({"limits": 3})
    with pytest.raises(DagError, match="no parameter 'xyzzy'; it has day, limit"):
        made.merged_params({"xyzzy": 3})
    with pytest.raises(DagError, match="no parameter 'xyzzy'; it has none"):
        DAG("d").merged_params({"xyzzy": 3})


# --- Checks ----------------------------------------------------------------------------------------------


def test_a_dag_without_tasks_names_each_function_not_called_and_the_line_to_add() -> None:
    with DAG("d") as made:

        @task
        def extract(): ...

        @task(retries=3)
        def load(rows, *, day, ti=None, limit=3): ...

    with pytest.raises(DagError) as error:
        made.check()
    lines = [error.value.message.splitlines()[n] for n in (0, 1, 2)]
    assert lines[0].startswith("DAG 'd' has no tasks: extract (line ")
    assert lines[0].endswith(") are under @task but never called; add inside the DAG:")
    assert lines[1:] == ["    extract()", "    load(rows, day=...)"]


def test_a_dag_without_tasks_or_functions_says_what_a_task_is() -> None:
    with pytest.raises(DagError, match="has no tasks: put @task above a function and call it"):
        DAG("d").check()


def test_a_dag_with_tasks_may_leave_functions_uncalled(dag: DAG) -> None:
    @task
    def spare(): ...

    steps("a")
    dag.check()


def test_a_misspelt_default_argument_is_refused() -> None:
    made = DAG("d", default_args={"retires": 3})
    steps("a", made)
    with pytest.raises(DagError, match="no task of DAG 'd' takes 'retires' from default_args; did you mean 'retries'"):
        made.check()


def test_default_arguments_of_airflow_that_nothing_takes_are_let_pass() -> None:
    names = (
        "owner depends_on_past email email_on_failure email_on_retry start_date end_date pool queue priority_weight "
        "on_failure_callback on_success_callback on_retry_callback on_execute_callback on_skipped_callback weight_rule "
        "sla wait_for_downstream do_xcom_push max_active_tis_per_dag provide_context"
    )
    made = DAG("d", default_args=dict.fromkeys(names.split(), None))
    steps("a", made)
    made.check()


# --- Functions that make DAGs ----------------------------------------------------------------------------


def test_a_function_under_dag_makes_a_dag_of_its_name() -> None:
    @dag
    def nightly():
        """What it is for."""
        steps("a")

    made = nightly()
    assert (made.dag_id, list(made.tasks), made.doc_md) == ("nightly", ["a"], "What it is for.")
    assert nightly() is not made


@pytest.mark.parametrize("given", [("other",), ()])
def test_arguments_of_the_decorator_are_those_of_a_dag(given: tuple) -> None:
    @dag(*given, tags=["x"], doc_md="mine", **({} if given else {"dag_id": "other"}))
    def nightly():
        """Not this."""
        steps("a")

    made = nightly()
    assert (made.dag_id, made.tags, made.doc_md) == ("other", ("x",), "mine")


def test_a_wrong_argument_of_the_decorator_is_refused_where_it_stands() -> None:
    with pytest.raises(DagError, match="@dag has no argument 'catch_up'; did you mean 'catchup'"):
        dag(catch_up=False)(lambda: None)


def test_parameters_of_the_function_are_parameters_of_its_runs(attempt) -> None:
    @task
    def greet(name, times):
        return [name] * times

    @dag(params={"other": 1})
    def nightly(day="today", times=2):
        greet(day, times=times)

    made = nightly(times=1)
    assert made.params == {"other": 1, "day": "today", "times": 1}
    assert attempt(made.tasks["greet"]) == ["today"]
    assert attempt(made.tasks["greet"], day="monday", times=3) == ["monday"] * 3


def test_a_parameter_of_the_function_without_a_value_is_refused() -> None:
    @dag
    def nightly(day): ...

    with pytest.raises(
        DagError, match=r"nightly\(\): missing a required argument: 'day'; give its parameters defaults"
    ):
        nightly()


@pytest.mark.parametrize("use", [bool, list, len, lambda day: f"{day}", lambda day: [*day]])
def test_a_parameter_cannot_be_used_before_there_is_a_run(use) -> None:
    @dag
    def nightly(day="today"):
        use(day)

    with pytest.raises(DagError, match="<parameter day> is known only in a run; pass it to a task"):
        nightly()
