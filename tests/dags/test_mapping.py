"""Mapped tasks: what can be mapped over and what is refused, the items of a run, and their instances."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from outlast import DagError
from outlast.dags import mapping
from outlast.dags.context import TaskInstance
from outlast.dags.graph import DAG, dag
from outlast.dags.operators import BaseOperator
from outlast.dags.references import Result
from outlast.dags.sensors import BaseSensorOperator, PokeReturnValue
from outlast.dags.task_functions import task
from outlast.runner.planner import graph_of

from .conftest import Attempts, Rows


@task
def extract():
    return ["a", "b"]


@task
def copy(x, y=0, *, z=0, ti=None, task_state_store=None):
    return [list(x) if isinstance(x, tuple) else x, y, z]


class Load(BaseOperator):
    """An operator with arguments of its own."""

    def __init__(self, *, source, target="there", **kwargs):
        super().__init__(**kwargs)
        self.source, self.target = source, target

    def execute(self, context):
        return [self.source, self.target]


class Run:
    """Expands mapped tasks as a runner does, and runs their instances as workers do."""

    def __init__(self, attempt: Attempts) -> None:
        self.attempt = attempt

    def items(self, what: Any, **params: Any) -> list[mapping.MapItem]:
        return mapping.items(what.linked(), self.attempt.results.pull, params)

    def keys(self, what: Any) -> list[str | None]:
        return [item.key for item in self.items(what)]

    def instance(self, what: Any, index: int, **named: Any) -> BaseOperator:
        ti: TaskInstance = self.attempt.context(what.linked(), map_index=index)["ti"]
        return mapping.instance(what.linked(), index, ti, **named)

    def __call__(self, what: Any) -> list[Any]:
        """Run every instance, and return what they returned."""
        indexes = range(len(self.items(what)))
        return [self.attempt(self.instance(what, index), map_index=index) for index in indexes]


@pytest.fixture
def run(attempt: Attempts) -> Run:
    return Run(attempt)


# --- Lists, dicts and results ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ([1, 2], [1, 2]),
        ((1, None), [1, None]),
        (range(2), [0, 1]),
        ({"a": 1, "b": 2}, [("a", 1), ("b", 2)]),
        (MappingProxyType({3: 4}), [(3, 4)]),
        ([], []),
        ({}, []),
        ([[1], {"a": 2}, "text"], [[1], {"a": 2}, "text"]),
    ],
)
def test_a_literal_is_mapped_over(dag: DAG, run: Run, given: Any, seen: list[Any]) -> None:
    made = copy.expand(x=given)
    assert [run.instance(made, index).kwargs for index in range(len(run.items(made)))] == [{"x": x} for x in seen]


def test_several_arguments_are_a_cross_product_whose_first_changes_slowest(dag: DAG, run: Run) -> None:
    made = copy.expand(z=[1, 2], x={"a": "b"}, y=(3, 4, 5))
    assert run(made) == [[["a", "b"], y, z] for z in (1, 2) for y in (3, 4, 5)]


def test_partial_is_the_same_for_all(dag: DAG, run: Run) -> None:
    assert run(copy.partial(y=1).partial(z=2).expand(x=["a", "b"])) == [["a", 1, 2], ["b", 1, 2]]


def test_expand_kwargs_gives_each_its_own_arguments(dag: DAG, run: Run) -> None:
    made = copy.partial(z=9).expand_kwargs([{"x": 1}, {"x": 2, "y": 3}, MappingProxyType({"x": 4})])
    assert run(made) == [[1, 0, 9], [2, 3, 9], [4, 0, 9]]


def test_a_result_is_mapped_over_once_it_is_known(dag: DAG, run: Run, attempt: Attempts) -> None:
    above = extract()
    made = copy.partial(y=above).expand(x=above)
    assert dag.tasks["copy"].upstream_task_ids == ("extract",)
    attempt(above)
    assert run(made) == [["a", ["a", "b"], 0], ["b", ["a", "b"], 0]]


def test_parts_of_a_result_and_what_was_pushed_are_mapped_over(dag: DAG, run: Run, attempt: Attempts) -> None:
    @task
    def both(ti=None):
        ti.xcom_push("pushed", [1, 2])
        return {"dict": {"k": "v"}, "dicts": [{"x": 1}]}

    above = both()
    made = [copy.expand(x=above["dict"]), copy.expand(x=above["pushed"]), copy.expand_kwargs(above["dicts"])]
    attempt(above)
    assert [run(one) for one in made] == [[[["k", "v"], 0, 0]], [[1, 0, 0], [2, 0, 0]], [[1, 0, 0]]]


def test_results_inside_a_literal_are_put_in(dag: DAG, run: Run, attempt: Attempts) -> None:
    above = extract()
    made = copy.expand_kwargs([{"x": above[0], "y": [above[1]]}, {"x": 1}])
    other = copy.expand(x=[above, {"k": above[0]}])
    assert {dag.tasks[name].upstream_task_ids for name in ("copy", "copy__1")} == {("extract",)}
    attempt(above)
    assert run(made) == [["a", ["b"], 0], [1, 0, 0]]
    assert run(other) == [[["a", "b"], 0, 0], [{"k": "a"}, 0, 0]]


def test_a_dict_of_arguments_may_be_a_result_itself(dag: DAG, run: Run, attempt: Attempts) -> None:
    @task
    def arguments():
        return {"x": 7}

    above = arguments()
    made = copy.expand_kwargs([above, {"x": 8}])
    attempt(above)
    assert run(made) == [[7, 0, 0], [8, 0, 0]]


def test_a_parameter_of_the_run_is_mapped_over(run: Run) -> None:
    @dag
    def made_of(names=()):
        copy.expand(x=names)

    made = made_of().tasks["copy"]
    assert len(run.items(made, names=["a", "b", "c"])) == 3
    with pytest.raises(DagError, match="'copy' is mapped over <parameter names>, which is 'abc'; it must be a list"):
        run.items(made, names="abc")


def test_the_results_of_a_mapped_task_are_a_list_in_the_items_order(dag: DAG, run: Run, attempt: Attempts) -> None:
    @task
    def total(parts):
        return parts

    first = copy.expand(x=[1, 2, 3])
    again = copy.expand(x=first)
    reduced = total(again)
    assert len(run(first)) == 3
    assert run(again) == [[[x, 0, 0], 0, 0] for x in (1, 2, 3)]
    assert attempt(reduced) == [[[x, 0, 0], 0, 0] for x in (1, 2, 3)]


@pytest.mark.parametrize("value", [None, 3, "text", True, 1.5])
def test_a_result_that_is_no_list_is_refused_naming_the_tasks(
    dag: DAG, run: Run, attempt: Attempts, value: object
) -> None:
    @task
    def odd():
        return value

    above = odd()
    made = copy.expand(x=above)
    attempt(above)
    with pytest.raises(DagError, match=rf"^task 'copy' is mapped over <result of odd>, which is {value!r}; it must be"):
        run.items(made)


@pytest.mark.parametrize("value", [{"x": 1}, 3])
def test_a_result_that_is_no_list_of_dicts_is_refused(dag: DAG, run: Run, attempt: Attempts, value: object) -> None:
    @task
    def odd():
        return value

    above = odd()
    made = copy.expand_kwargs(above)
    attempt(above)
    with pytest.raises(DagError, match=r"<result of odd>, which is .*; it must be a list of dicts"):
        run.items(made)


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        (3, r"item 1 is 3; expand_kwargs\(\) takes dicts"),
        ({"nr": 1}, r"item 1: copy\(\) has no argument 'nr'"),
        ({"y": 1}, r"item 1: copy\(\) lacks 'x'"),
        ({"x": 1, "z": 2}, r"item 1: copy was given 'z' twice, by partial\(\) and by expand_kwargs\(\)"),
        ({"x": 1, "ti": 2}, r"item 1: copy\(\) .*'ti'"),
    ],
)
def test_what_an_item_lacks_or_has_too_much_is_said_with_its_place(
    dag: DAG, run: Run, attempt: Attempts, item: object, complaint: str
) -> None:
    @task
    def arguments():
        return [{"x": 1}, item]

    above = arguments()
    made = copy.partial(z=1).expand_kwargs(above)
    attempt(above)
    with pytest.raises(DagError, match=f"^task 'copy', {complaint}"):
        run.items(made)
    with pytest.raises(DagError, match=complaint):
        copy.partial(z=1).expand_kwargs([{"x": 1}, item])


def test_without_strict_an_item_goes_before_partial(dag: DAG, run: Run) -> None:
    assert run(copy.partial(z=1).expand_kwargs([{"x": 1}, {"x": 2, "z": 3}], strict=False)) == [[1, 0, 1], [2, 0, 3]]


def test_a_result_that_is_not_there_is_an_error_unless_a_skip_is_allowed(dag: DAG, run: Run) -> None:
    above = extract()
    for rule, seen in (("all_success", None), ("all_done", None), ("none_failed", [])):
        made = copy.override(trigger_rule=rule).expand(x=above)
        if seen is None:
            with pytest.raises(DagError, match="there is no <result of extract> in this run"):
                run.items(made)
        else:
            assert run.items(made) == seen


def test_more_items_than_a_run_can_look_after_are_refused(dag: DAG, run: Run, attempt: Attempts) -> None:
    @task
    def many(n):
        return [0] * n

    above = many(mapping.MAX_ITEMS + 1)
    made = copy.expand(x=above)
    attempt(above)
    with pytest.raises(DagError, match="task 'copy' is mapped over 10,001 items; at most 10,000"):
        run.items(made)
    with pytest.raises(DagError, match=r"copy.expand\(\) is mapped over 10,100 items"):
        copy.expand(x=range(100), y=range(101))
    with pytest.raises(DagError, match=r"copy.expand_kwargs\(\) is mapped over 10,001 items"):
        copy.expand_kwargs([{"x": 1}] * 10_001)
    assert len(run.items(copy.expand(x=range(100), y=range(100)))) == 10_000


# --- The mapped task -------------------------------------------------------------------------------------


def test_a_mapped_task_looks_like_an_operator(dag: DAG) -> None:
    options = {"retries": 3, "retry_delay": 5, "trigger_rule": "all_done", "execution_timeout": 60}
    limits = {"max_active_tis_per_dag": 3, "max_active_tis_per_dagrun": 2}
    made = copy.override(**options, **limits, map_index_template="{{ x }}").expand(x=[1]).linked()
    assert dag.tasks == {"copy": made}
    assert (made.mapped, extract().linked().mapped) == (True, False)
    assert (made.retries, made.retry_delay, made.trigger_rule) == (3, timedelta(seconds=5), "all_done")
    assert (made.execution_timeout, made.map_index_template) == (timedelta(seconds=60), "{{ x }}")
    assert (made.max_active_tis_per_dag, made.max_active_tis_per_dagrun, made.map_key) == (3, 2, None)
    assert (made.dag, repr(made), repr(made.output)) == (dag, "<MappedTask copy>", "<result of copy>")


def test_its_limits_are_those_of_the_planner(dag: DAG) -> None:
    for most in ({}, {"max_active_tis_per_dag": 3}, {"max_active_tis_per_dag": 3, "max_active_tis_per_dagrun": 2}):
        copy.override(**most).expand(x=[1])
    assert [node.most for node in graph_of(dag).values()] == [None, 3, 2]


def test_a_second_expansion_of_a_function_is_a_second_task(dag: DAG) -> None:
    twice = copy.partial(y=1)
    twice.expand(x=[1])
    twice.expand(x=[2])
    copy(1)
    assert list(dag.tasks) == ["copy", "copy__1", "copy__2"]
    dag.check()


def test_it_stands_at_either_end_of_an_arrow(dag: DAG) -> None:
    above, below = extract(), extract()
    made = Load.partial(task_id="load").expand(source=[1])
    above >> made >> below
    assert (made.upstream_task_ids, made.downstream_task_ids) == (("extract",), ("extract__1",))


def test_an_instance_is_a_plain_task_of_the_same_dag(dag: DAG, run: Run) -> None:
    made = copy.override(retries=2).expand(x=[1])
    made >> extract()
    one = run.instance(made, 0)
    assert (one.mapped, one.retries, one.task_id, one.dag) == (False, 2, "copy", dag)
    assert one.downstream_task_ids == ("extract",)
    assert dag.tasks["copy"] is made.linked()


def test_the_mapped_task_itself_does_not_run(dag: DAG, attempt: Attempts) -> None:
    with pytest.raises(DagError, match="task 'copy' is mapped: its instances run"):
        attempt(copy.expand(x=[1]))


# --- Operators -------------------------------------------------------------------------------------------


def test_an_operator_is_mapped_over_its_own_arguments(dag: DAG, run: Run, attempt: Attempts) -> None:
    above = extract()
    made = Load.partial(task_id="load", target="here", retries=4).expand(source=above)
    assert (dag.tasks["load"], made.retries, made.upstream_task_ids) == (made, 4, ("extract",))
    attempt(above)
    assert run(made) == [["a", "here"], ["b", "here"]]
    assert run(Load.partial(task_id="other").expand_kwargs([{"source": 1}, {"source": 2, "target": 3}])) == [
        [1, "there"],
        [2, 3],
    ]
    assert copy.partial(y=made.output).expand(x=[1]).linked().upstream_task_ids == ("load",)


def test_the_constructor_is_given_values_not_results(dag: DAG, run: Run, attempt: Attempts) -> None:
    class Upper(Load):
        def __init__(self, *, source, **kwargs):
            super().__init__(source=source.upper(), **kwargs)

    above = extract()
    made = Upper.partial(task_id="upper", target=above).expand(source=above)
    attempt(above)
    assert run(made) == [["A", ["a", "b"]], ["B", ["a", "b"]]]


def test_default_args_hold_for_mapped_tasks_and_give_way(run: Run) -> None:
    with DAG("d", default_args={"retries": 2, "target": "default", "source": "none"}) as dag:
        made = [
            Load.partial(task_id="a").expand(source=[1]),
            Load.partial(task_id="b", retries=1).expand(source=[1], target=[2]),
            Load.partial(task_id="c").expand_kwargs([{"target": 3}]),
            copy.expand(x=[1]),
        ]
    dag.check()
    assert [dag.tasks[name].retries for name in ("a", "b", "c", "copy")] == [2, 1, 2, 2]
    assert [run(one) for one in made] == [[[1, "default"]], [[1, 2]], [["none", 3]], [[1, 0, 0]]]


def test_a_default_argument_that_only_a_mapped_task_nearly_takes_is_found() -> None:
    with DAG("d", default_args={"targe": 1}) as dag:
        Load.partial(task_id="a").expand(source=[1])
    with pytest.raises(DagError, match="'targe' from default_args; did you mean 'target'"):
        dag.check()


def test_sensors_are_mapped_too(dag: DAG, run: Run) -> None:
    class Look(BaseSensorOperator):
        def __init__(self, *, place, **kwargs):
            super().__init__(**kwargs)
            self.place = place

        def poke(self, context):
            return PokeReturnValue(True, self.place)

    @task.sensor(poke_interval=5, retries=1)
    def look(place):
        return PokeReturnValue(True, place)

    made = look.expand(place=["a", "b"])
    assert (made.linked().retries, run.instance(made, 0).poke_interval) == (1, 5.0)
    assert run(made) == ["a", "b"]
    assert run(Look.partial(task_id="l").expand(place=["a"], poke_interval=[1, 2])) == ["a", "a"]


# --- What is refused -------------------------------------------------------------------------------------


class Abstract(BaseOperator, ABC):
    @abstractmethod
    def where(self): ...

    def execute(self, context): ...


@task
def late(x, y):
    return x


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: copy.expand(), r"copy.expand\(\) was given nothing to map over"),
    (lambda: copy.partial(x=1).expand(), r"copy.expand\(\) was given nothing to map over"),
    (lambda: copy.partial(x=1).expand(x=[1]), r"copy was given 'x' twice, by partial\(\) and by expand\(\)"),
    (lambda: copy.partial(x=1).partial(x=1), r"copy was given 'x' twice"),
    (lambda: copy.expand(nr=[1]), r"copy\(\) has no argument 'nr'"),
    (lambda: copy.partial(nr=1), r"copy.partial\(\) has no argument 'nr'"),
    (lambda: copy.expand(y=[1]), r"copy\(\) lacks 'x'"),
    (lambda: late.partial(x=1).expand(x=[2]), "'x' twice"),
    (lambda: late.expand(x=[1]), r"late\(\) lacks 'y'"),
    (lambda: copy.expand(x=[1], task_state_store=[1]), "'task_state_store', which every task gets|no argument 'task_s"),
    (lambda: copy.partial(ti=1), r"copy.partial\(\) .*'ti'"),
    (lambda: copy.expand(x=3), r"copy.expand\(x=…\) was given 3; it takes a list.*to partial\(\)"),
    (lambda: copy.expand(x="abc"), "was given 'abc'; .*write a list around it"),
    (lambda: copy.expand(x=b"abc"), "was given b'abc'; .*write a list around it"),
    (lambda: copy.expand(x=None), "was given None"),
    (lambda: copy.expand(x={1, 2}), r"a set has no order, so make it sorted\(…\)"),
    (lambda: copy.expand(x=iter([1])), r"make it list\(…\)"),
    (lambda: copy.expand(x=(n for n in [1])), r"make it list\(…\)"),
    (lambda: copy.expand(x=extract), "call it, for its result"),
    (lambda: copy.expand(x=Load(task_id="l", source=1)), r"give its \.output"),
    (lambda: copy.expand_kwargs({"x": [1]}), r"copy.expand_kwargs\(\) was given a dict; it takes a list of dicts"),
    (lambda: copy.expand_kwargs("x"), "was given 'x'"),
    (lambda: copy.expand_kwargs([1]), "item 0 is 1; expand_kwargs"),
    (lambda: copy.expand_kwargs([{1: 2}]), "dicts whose keys are names"),
    (lambda: copy.partial(y=1)(2), r"copy.partial\(\) is to be expanded, not called; write copy.partial\(...\).expand"),
    (lambda: copy.partial(y=1) >> extract(), r"copy.partial\(\) is no task before it is expanded"),
    (lambda: copy.expand(x=[1]).expand(y=[1]), r"<result of copy> has no expand\(\); .*with all lists at once"),
    (lambda: copy(1).partial(y=1), r"<result of copy> has no partial\(\)"),
    (lambda: extract().map(str), r"<result of extract> has no map\(\); do it in the task"),
    (lambda: extract().zip(extract()), r"has no zip\(\); zip the lists in a task"),
    (lambda: Load.partial(), r"Load.partial\(\) lacks 'task_id'"),
    (lambda: Load.partial(source=1), r"Load.partial\(\) lacks 'task_id'"),
    (lambda: Load.partial(task_id="l", sorce=1), r"Load.partial\(\) has no argument 'sorce'; did you mean 'source'"),
    (lambda: Load.partial(task_id="l").expand(sorce=[1]), "Load has no argument 'sorce'; did you mean 'source'"),
    (lambda: Load.partial(task_id="l").expand(target=[1]), "Load lacks 'source'"),
    (
        lambda: Load.partial(task_id="l").expand(source=[1], retries=[1]),
        "Load cannot be mapped over 'retries'; give it",
    ),
    (lambda: Load.partial(task_id="l").expand(task_id=["a"]), "Load cannot be mapped over 'task_id'"),
    (
        lambda: Load.partial(task_id="l").expand_kwargs([{"source": 1, "puddle": 2}]),
        "item 0: Load has no argument 'puddle'",
    ),
    (lambda: Load.partial(task_id="l", source=1).expand(source=[1]), "Load was given 'source' twice"),
    (lambda: Load.partial(task_id="l").expand(source=[1]).expand(target=[1]), "task 'l' is expanded already"),
    (lambda: BaseOperator.partial(task_id="b"), "BaseOperator has no work to do"),
    (lambda: Abstract.partial(task_id="b"), "Abstract has no work to do"),
    (lambda: copy.override(max_active_tis_per_dag=0).expand(x=[1]), "max_active_tis_per_dag is 0; it must be a whole"),
    (lambda: copy.override(max_active_tis_per_dagrun=True)(1), "max_active_tis_per_dagrun is True; it must be a whole"),
    (lambda: copy.override(map_key=3).expand(x=[1]), "map_key is 3; use a function"),
    (lambda: copy.override(map_index_template=3).expand(x=[1]), "map_index_template is 3; use a text"),
]


@pytest.mark.parametrize(("attempted", "complaint"), REFUSED)
def test_what_cannot_be_mapped_is_refused(attempted: Callable[[], Any], complaint: str) -> None:
    with DAG("d"), pytest.raises(DagError, match=complaint):
        attempted()


@pytest.mark.parametrize(
    "expanded",
    [lambda: copy.expand(x=[1]), lambda: copy.expand_kwargs([]), lambda: Load.partial(task_id="l").expand(source=[1])],
)
def test_a_task_is_mapped_inside_a_dag_only(expanded: Callable[[], Any]) -> None:
    with pytest.raises(DagError, match="was mapped outside a DAG"):
        expanded()


def test_the_dag_may_be_an_option() -> None:
    made = DAG("d")
    copy.override(dag=made).expand(x=[1])
    Load.partial(task_id="load", dag=made).expand(source=[1])
    assert list(made.tasks) == ["copy", "load"]


@pytest.mark.parametrize(
    ("unfinished", "line"),
    [(lambda: copy.partial(y=1), "copy.partial"), (lambda: Load.partial(task_id="l"), "Load.partial")],
)
def test_a_partial_that_is_never_expanded_is_an_error_of_the_dag(unfinished: Callable[[], Any], line: str) -> None:
    with DAG("d") as dag:
        unfinished()
    with pytest.raises(DagError, match=rf"{line}\(\) is never expanded; write {line}\(...\).expand"):
        dag.check()


def test_a_partial_made_of_another_counts_for_it() -> None:
    with DAG("d") as dag:
        copy.partial(y=1).partial(z=2).expand(x=[1])
    dag.check()


def test_a_task_that_is_not_mapped_any_more_says_so(dag: DAG, run: Run) -> None:
    with pytest.raises(DagError, match="task 'extract' is not mapped any more"):
        run.instance(extract(), 0)


# --- Keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("map_key", "keys"),
    [
        (lambda item: item["id"], ["a", "7"]),
        ("{x[id]}", ["a", "7"]),
        ("{id}", ["a", "7"]),
        ("{item[id]}", ["a", "7"]),
        ("nr-{[id]}", ["nr-a", "nr-7"]),
    ],
)
def test_the_key_of_an_item_is_made_by_a_function_or_a_template(
    dag: DAG, run: Run, map_key: Any, keys: list[str]
) -> None:
    assert run.keys(copy.override(map_key=map_key).expand(x=[{"id": "a"}, {"id": 7}])) == keys


def test_with_several_arguments_the_item_is_all_of_them(dag: DAG, run: Run) -> None:
    keyed = copy.override(map_key="{x}/{y}")
    assert run.keys(keyed.expand(x=["a", "b"], y=[1, 2])) == ["a/1", "a/2", "b/1", "b/2"]
    assert run.keys(keyed.expand_kwargs([{"x": "c", "y": 3}])) == ["c/3"]
    by_function = copy.override(map_key=lambda item: f"{item['x']}")
    assert run.keys(by_function.expand_kwargs([{"x": "c"}, {"x": "d"}])) == ["c", "d"]
    assert run.keys(by_function.expand(x=["a"], y=[1])) == ["a"]


def test_an_operator_may_have_keys_and_most_tasks_have_none(dag: DAG, run: Run) -> None:
    assert run.keys(Load.partial(task_id="load", map_key="{source}").expand(source=["a", "b"])) == ["a", "b"]
    assert run.keys(copy.expand(x=["a"])) == [None]


def test_equal_keys_are_refused_naming_both(dag: DAG, run: Run) -> None:
    made = copy.override(map_key="{x[0]}").expand(x=["ant", "bee", "cow", "bat"])
    with pytest.raises(DagError, match="map_key of task 'copy' gives 'b' for items 1 and 3; make the keys differ"):
        run.items(made)


@pytest.mark.parametrize(
    ("map_key", "complaint"),
    [
        ("{nr}", "KeyError: 'nr'; the item is 'ant'"),
        (lambda item: item["id"], "TypeError: .*; the item is 'ant'"),
        (lambda item: None, "None, which is neither text nor a whole number"),
        (lambda item: True, "True, which is neither"),
        (lambda item: "", "item is empty"),
        (lambda item: "a\nb", "control character"),
        (lambda item: "a" * 513, "513 characters"),
        ("{", "ValueError: "),
    ],
)
def test_a_key_that_is_none_is_refused_with_its_place(dag: DAG, run: Run, map_key: Any, complaint: str) -> None:
    with pytest.raises(DagError, match=f"^map_key of task 'copy', item 0: .*{complaint}"):
        run.items(copy.override(map_key=map_key).expand(x=["ant"]))


def test_an_instance_with_a_key_finds_its_item_wherever_it_is_now(dag: DAG, run: Run) -> None:
    made = copy.override(map_key="{x}").expand(x=["a", "b", "c"])
    assert run.instance(made, 1, key="b").kwargs == {"x": "b"}
    assert run.instance(made, 0, key="c").kwargs == {"x": "c"}
    assert run.instance(made, 9, key="a").kwargs == {"x": "a"}
    with pytest.raises(DagError, match="the item of copy/d is there no more; put it back"):
        run.instance(made, 1, key="d")


# --- Digests ---------------------------------------------------------------------------------------------


def digests(run: Run, items: Sequence[Any]) -> list[str]:
    return [item.digest for item in run.items(copy.expand(x=items))]


def test_equal_items_have_equal_digests(dag: DAG, run: Run) -> None:
    pairs: list[Any] = [{"a": 1, "b": [2.5, None]}, {"b": [2.5, None], "a": 1}, (1, 2), [1, 2], 10**30, 10**30]
    pairs += [Decimal("1.5"), Decimal("1.5"), timedelta(days=2), timedelta(days=2), complex(1, 2), complex(1, 2)]
    found = digests(run, pairs)
    assert found[::2] == found[1::2]
    assert "" not in found


def test_other_items_have_other_digests(dag: DAG, run: Run) -> None:
    found = digests(
        run, [1, 1.0, True, "1", None, [1], {"a": 1}, {"a": 2}, {"b": 1}, "", 10**30, complex(1, 2), "\ud800"]
    )
    assert len(set(found)) == len(found)
    assert "" not in found


def test_what_cannot_be_told_apart_has_no_digest(dag: DAG, run: Run) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    assert digests(run, [object(), [object()], {"a": Odd()}]) == ["", "", ""]


def test_the_digest_is_of_the_item_alone(dag: DAG, run: Run) -> None:
    one, other = copy.partial(y=1).expand(x=[1]), copy.partial(y=2, z=3).expand(x=[1])
    assert run.items(one) == run.items(other)


def test_digests_are_the_same_in_every_process(dag: DAG, run: Run) -> None:
    code = (
        "from outlast import DAG, task\n"
        "from outlast.dags import mapping\n"
        "@task\n"
        "def copy(x): ...\n"
        "with DAG('d'): made = copy.expand(x=[{'a', 'b', 'c'}, {'k': frozenset('xyz')}, 1j])\n"
        "print([item.digest for item in mapping.items(made.linked(), None)])\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_an_instance_is_not_made_of_another_item_than_its_run_began_with(dag: DAG, run: Run) -> None:
    before, after = copy.expand(x=["a", "b"]), copy.expand(x=["a", "c"])
    known = [item.digest for item in run.items(before)]
    assert run.instance(after, 0, digest=known[0]).kwargs == {"x": "a"}
    assert run.instance(after, 1, digest="").kwargs == {"x": "c"}
    with pytest.raises(DagError, match="the item of copy__1/1 is not the one this run has begun with"):
        run.instance(after, 1, digest=known[1])
    with pytest.raises(DagError, match=r"the item of copy__1/2 is there no more.* has 2 items"):
        run.instance(after, 2)


def test_rows_of_results_are_asked_for_as_a_store_answers(dag: DAG) -> None:
    """What the runner passes is asked for a task, a name and any map index."""
    rows = Rows()
    rows.owner = ("extract", -1)
    rows.push("return_value", [1, 2, 3])
    assert len(mapping.items(copy.expand(x=Result(extract().linked())).linked(), rows.pull)) == 3
