"""Operators: what they take, default arguments, and results given to them."""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from datetime import timedelta

import pytest

from outlast import DagError, InvalidKey
from outlast.dags.context import get_current_context
from outlast.dags.graph import DAG
from outlast.dags.operators import BaseOperator
from outlast.dags.task_functions import task


class Copy(BaseOperator):
    """An operator with arguments of its own."""

    def __init__(self, *, source, target="there", **kwargs):
        super().__init__(**kwargs)
        self.source, self.target = source, target

    def execute(self, context):
        return [self.source, self.target]


class Step(BaseOperator):
    def execute(self, context): ...


# --- Arguments -------------------------------------------------------------------------------------------


def test_the_defaults_of_a_task() -> None:
    made = Step("a")
    assert (made.task_id, made.retries, made.retry_delay, made.trigger_rule) == ("a", 0, timedelta(0), "all_success")
    assert (made.retry_exponential_backoff, made.max_retry_delay, made.execution_timeout) == (False, None, None)
    assert (made.clear_state_on_success, made.discard_state_on_clear, made.doc_md) == (None, None, None)
    assert (made.inlets, made.outlets, made.dag) == ((), (), None)


@pytest.mark.parametrize("name", ["retry_delay", "max_retry_delay", "execution_timeout"])
@pytest.mark.parametrize("given", [timedelta(minutes=1.5), 90, 90.0])
def test_a_duration_is_a_timedelta_or_seconds(name: str, given: object) -> None:
    assert getattr(Step("a", **{name: given}), name) == timedelta(seconds=90)


@pytest.mark.parametrize("rule", ["all_success", "all_done", "none_failed"])
def test_a_trigger_rule_may_be_an_enum_of_text_and_is_kept_as_text(rule: str) -> None:
    given = enum.StrEnum("Rule", {"RULE": rule}).RULE
    made = Step("a", trigger_rule=given)
    assert made.trigger_rule == rule
    assert type(made.trigger_rule) is str


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"retires": 3}, "Copy has no argument 'retires'; did you mean 'retries'?"),
        ({"sorce": 3}, "Copy has no argument 'sorce'; did you mean 'source'?"),
        ({"xyzzy": 3}, "Copy has no argument 'xyzzy'; it takes clear_state_on_success, dag, disc"),
        ({"retries": -1}, "retries is -1; it must be a whole number from 0 on"),
        ({"retries": True}, "retries is True"),
        ({"retries": "3"}, "retries is '3'"),
        ({"retry_delay": -1}, "retry_delay is -1 day, 23:59:59; it must be zero or more"),
        ({"retry_delay": True}, "retry_delay is True; use a timedelta"),
        ({"retry_delay": float("nan")}, "retry_delay is nan seconds"),
        ({"retry_delay": 1e300}, "retry_delay is 1e+300 seconds, which is no time span"),
        ({"max_retry_delay": "1h"}, "max_retry_delay is '1h'; use a timedelta"),
        ({"execution_timeout": 0}, "execution_timeout is 0:00:00; it must be positive"),
        ({"retry_exponential_backoff": 2.0}, "retry_exponential_backoff is 2.0; use True or False"),
        ({"clear_state_on_success": "yes"}, "clear_state_on_success is 'yes'; use True or False"),
        ({"discard_state_on_clear": 1}, "discard_state_on_clear is 1; use True or False"),
        (
            {"trigger_rule": "one_success"},
            "trigger_rule is 'one_success'; use one of all_success, all_done, none_failed",
        ),
        ({"inlets": "orders"}, "inlets has the text 'orders'; write inlets=[Asset('orders')]"),
    ],
)
def test_a_wrong_argument_of_a_task_is_refused_with_the_remedy(arguments: dict, complaint: str) -> None:
    with pytest.raises(DagError) as error:
        Copy(task_id="a", source=1, **arguments)
    assert complaint in error.value.message


def test_a_task_id_keeps_the_rules_of_contract_1_3() -> None:
    with pytest.raises(InvalidKey, match="contains '/'"):
        Step("a/b")


def test_a_task_that_was_refused_is_not_in_the_dag(dag: DAG) -> None:
    with pytest.raises(DagError):
        Copy(task_id="a", source=1, retries=-1)
    assert dag.tasks == {}


def test_an_operator_that_does_not_call_its_base_is_refused() -> None:
    class Forgetful(Step):
        def __init__(self, **kwargs):
            self.mine = 1

    with pytest.raises(DagError, match=r"Forgetful.__init__ does not call super\(\).__init__\(\*\*kwargs\)"):
        Forgetful(task_id="a")


def test_an_operator_without_work_is_refused() -> None:
    class Idle(BaseOperator): ...

    with pytest.raises(DagError, match=r"Idle has no work to do; define execute\(self, context\)"):
        Idle("a")


def test_a_class_with_abstract_methods_can_be_mixed_in() -> None:
    class Job(ABC):
        @abstractmethod
        def submit(self): ...

    class Half(Job, Step): ...

    class Whole(Half):
        def submit(self): ...

    assert Whole("a").task_id == "a"
    with pytest.raises(TypeError, match="abstract"):
        Half("a")


# --- Default arguments -----------------------------------------------------------------------------------


class Mixin:
    def __init__(self, *, durable=True, **kwargs):
        super().__init__(**kwargs)
        self.durable = durable


class Job(Mixin, Copy): ...


def test_default_arguments_reach_every_constructor_that_takes_them() -> None:
    defaults = {"retries": 2, "source": "x", "durable": False, "owner": "me"}
    with DAG("d", default_args=defaults):
        job, step = Job(task_id="a", target="y"), Step("b")
    assert (job.retries, job.source, job.target, job.durable) == (2, "x", "y", False)
    assert step.retries == 2
    assert not hasattr(step, "source")


def test_an_argument_that_is_given_wins_over_the_default() -> None:
    with DAG("d", default_args={"retries": 2, "task_id": "z"}):
        assert Step("a", retries=0).retries == 0
        assert Step(task_id="b").task_id == "b"


def test_default_arguments_come_from_the_dag_that_is_given() -> None:
    with DAG("d", default_args={"retries": 2}):
        assert Step("a", dag=DAG("e", default_args={"retries": 5})).retries == 5


def test_a_default_argument_does_not_reach_a_constructor_that_hides_it() -> None:
    class Closed(Step):
        def __init__(self, *, task_id):
            super().__init__(task_id)

    with DAG("d", default_args={"retries": 2}):
        assert Closed(task_id="a").retries == 0


# --- Running ---------------------------------------------------------------------------------------------


def test_an_operator_gets_the_context_and_returns_its_result(attempt, dag: DAG) -> None:
    class Work(BaseOperator):
        def execute(self, context):
            assert context is get_current_context()
            assert context["task"] is self
            context["task_state_store"].set("seen", True)
            return context["ti"].task_id

    assert attempt(Work("a")) == "a"
    assert attempt.store.task("d/r/a").get("seen") is True


def test_execute_may_be_async(attempt) -> None:
    class Work(BaseOperator):
        async def execute(self, context):
            await context["task_state_store"].aset("seen", 1)
            return await get_current_context()["task_state_store"].aget("seen")

    assert attempt(Work("a")) == 1


def test_a_result_given_to_an_operator_is_an_edge_and_becomes_its_value(attempt, dag: DAG) -> None:
    first = Copy(task_id="first", source={"path": "p"})
    second = Copy(task_id="second", source=first.output, target={"all": [first.output[0]["path"]]})
    assert second.upstream_task_ids == ("first",)
    attempt(first)
    assert attempt(second) == [[{"path": "p"}, "there"], {"all": ["p"]}]


def test_the_dag_keeps_its_references_when_a_task_has_run(attempt, dag: DAG) -> None:
    first = Copy(task_id="first", source=1)
    second = Copy(task_id="second", source=first.output)
    attempt(first)
    before = second.source
    assert attempt(second)[0] == [1, "there"]
    first.source = 2
    attempt(first)
    assert second.source is before
    assert attempt(second)[0] == [2, "there"]


def test_an_operator_logs_under_the_name_of_its_class(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Copy(task_id="a", source=1).log.info("copied")
    assert caplog.record_tuples[0][0].endswith("test_operators.Copy")


# --- Functions: the options they share with operators ----------------------------------------------------


def test_options_of_a_task_function_are_those_of_a_task(dag: DAG) -> None:
    @task(task_id="x", retries=3, retry_delay=5, trigger_rule="all_done", clear_state_on_success=True)
    def work():
        """Why."""

    made = work().task
    assert (made.task_id, made.retries, made.retry_delay, made.trigger_rule) == (
        "x",
        3,
        timedelta(seconds=5),
        "all_done",
    )
    assert (made.clear_state_on_success, made.doc_md) == (True, "Why.")


def test_default_arguments_reach_task_functions() -> None:
    @task(retry_delay=5)
    def work(): ...

    with DAG("d", default_args={"retries": 2, "retry_delay": 7, "function": None, "args": 1}):
        made = work().task
    assert (made.retries, made.retry_delay) == (2, timedelta(seconds=5))


@pytest.mark.parametrize("wrong", [{"retires": 3}, {"function": print}, {"kwargs": {}}])
def test_a_wrong_option_is_refused_where_it_stands(wrong: dict) -> None:
    with pytest.raises(DagError, match=f"@task has no argument '{next(iter(wrong))}'"):
        task(**wrong)(lambda: None)
