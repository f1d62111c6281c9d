"""Assets in DAG files: names, references, schedules, inlets and outlets, and their state and events in a task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import DagError, InvalidKey, InvalidValue, StaleAttempt
from outlast.dags.assets import (
    Asset,
    AssetAlias,
    AssetAll,
    AssetAny,
    AssetNameRef,
    AssetStates,
    AssetUriRef,
    AssetWatcher,
    Metadata,
    accessors,
    asset,
    condition_of,
    events_of,
    provide,
)
from outlast.dags.context import execute
from outlast.dags.graph import DAG
from outlast.dags.loading import load_file
from outlast.dags.operators import BaseOperator
from outlast.dags.task_functions import task
from outlast.dags.triggers import BaseEventTrigger, BaseTrigger
from outlast.event_requests import EventRow
from outlast.state import TaskState
from outlast.values import TaskScope, to_micros

from .conftest import WHEN, Attempts

ORDERS = Asset("orders", "s3://bucket/orders")
USERS = Asset("users")


class Step(BaseOperator):
    def execute(self, context): ...


# --- What an asset is --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "name", "uri"),
    [
        (Asset("a"), "a", "a"),
        (Asset(name="a"), "a", "a"),
        (Asset(uri="s3://b"), "s3://b", "s3://b"),
        (Asset("a", "s3://b"), "a", "s3://b"),
        (Asset("a", Path("/data/a.csv")), "a", "/data/a.csv"),
    ],
)
def test_the_name_or_uri_that_is_not_given_is_the_other_one(made: Asset, name: str, uri: str) -> None:
    assert (made.name, made.uri, os.fspath(made)) == (name, uri, uri)


def test_assets_of_the_same_name_and_uri_are_equal() -> None:
    same = Asset("orders", "s3://bucket/orders", extra={"owner": "ann"}, group="g")
    assert (same == ORDERS, hash(ORDERS) == hash(same), {ORDERS: 1}[same]) == (True, True, 1)
    assert Asset("orders") != ORDERS
    assert ORDERS != "orders"
    assert (same.extra, same.group, ORDERS.extra, ORDERS.group) == ({"owner": "ann"}, "g", {}, "asset")


@pytest.mark.parametrize(
    ("wrong", "error", "complaint"),
    [
        (lambda: Asset(), DagError, "needs a name or a URI"),
        (lambda: Asset(""), InvalidKey, "asset name is empty"),
        (lambda: Asset("a", "s3://\n"), InvalidKey, "asset URI"),
        (lambda: Asset(7), InvalidKey, "asset name is a int"),
        (lambda: Asset("a" * 1501), InvalidKey, "1,501 characters"),
        (lambda: Asset.ref(), DagError, "either name= or uri="),
        (lambda: Asset.ref(name="a", uri="b"), DagError, "either name= or uri="),
        (lambda: Asset.ref(name=""), InvalidKey, "empty"),
        (lambda: AssetAlias(""), InvalidKey, "asset alias is empty"),
        (lambda: Asset("a", watchers=["w"]), DagError, "watchers has 'w'"),
    ],
)
def test_what_is_no_asset(wrong: Callable[[], Any], error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        wrong()


def test_references_are_by_name_or_by_uri() -> None:
    assert (Asset.ref(name="orders"), Asset.ref(uri="s3://b")) == (AssetNameRef("orders"), AssetUriRef("s3://b"))
    assert ORDERS.matches("orders", None)
    assert AssetUriRef("s3://b").matches("whatever", "s3://b")
    assert not AssetNameRef("orders").matches(None, "orders")


class Watches(BaseEventTrigger):
    def serialize(self): ...

    async def run(self):
        yield


class Fires(BaseTrigger):
    def serialize(self): ...

    async def run(self):
        yield


def test_a_watcher_has_an_event_trigger() -> None:
    watcher = AssetWatcher("files", Watches())
    assert Asset("a", watchers=[watcher]).watchers == (watcher,)
    with pytest.raises(DagError, match="derive its trigger from BaseEventTrigger"):
        AssetWatcher("files", Fires())


# --- Schedules ---------------------------------------------------------------------------------------------


A, B, C = Asset("a"), Asset("b"), Asset("c", "s3://c")


@pytest.mark.parametrize(
    ("schedule", "fulfilled", "not_fulfilled"),
    [
        (A, ["a"], ["b", ""]),
        ([A], ["a"], ["b"]),
        ([A, B], ["ab", "abc"], ["a", "b", ""]),
        ((A, B), ["ab"], ["a"]),
        ({A, B}, ["ab"], ["a"]),
        (A & B, ["ab"], ["a", "b"]),
        (A | B, ["a", "b", "ab"], ["c", ""]),
        (A & B | C, ["c", "ab"], ["a", "b"]),
        (A & (B | C), ["ab", "ac"], ["a", "bc"]),
        ([A | B, C], ["ac", "bc"], ["ab", "c"]),
        (Asset.ref(name="a") & Asset.ref(uri="s3://c"), ["ac"], ["a", "c"]),
    ],
)
def test_a_dag_waits_for_assets(schedule: Any, fulfilled: list[str], not_fulfilled: list[str]) -> None:
    events = {"a": ("a", "a"), "b": ("b", "b"), "c": ("c", "s3://c")}
    condition = DAG("d", schedule=schedule).asset_condition
    assert condition is not None
    assert all(condition.satisfied([events[name] for name in names]) for names in fulfilled)
    assert not any(condition.satisfied([events[name] for name in names]) for names in not_fulfilled)


def test_a_condition_knows_its_assets() -> None:
    condition = condition_of([A | B, B & C])
    assert condition is not None
    assert condition.assets == (A, B, C)
    assert [condition.concerns(*event) for event in (("a", None), (None, "s3://c"), ("d", "d"))] == [True, True, False]
    assert (AssetAll(A, B), AssetAny(A, B)) == (A & B, A | B)
    assert A & B != A | B


@pytest.mark.parametrize("schedule", [None, "@daily", "0 3 * * *", [], 7])
def test_other_schedules_wait_for_no_asset(schedule: Any) -> None:
    made = DAG("d", schedule=schedule)
    assert (made.schedule, made.asset_condition) == (schedule, None)


@pytest.mark.parametrize(
    ("schedule", "complaint"),
    [
        (["a"], r"wait for 'a'; write schedule=\[Asset\('a'\)\]"),
        ([A, 7], "wait for 7"),
        ([AssetAlias("x")], "alias 'x'"),
        (AssetAlias("x"), "alias 'x'"),
    ],
)
def test_what_a_dag_cannot_wait_for(schedule: Any, complaint: str) -> None:
    with pytest.raises(DagError, match=complaint):
        DAG("d", schedule=schedule)


def test_only_conditions_can_be_joined() -> None:
    for join in (lambda: A & 7, lambda: A | "b", lambda: 7 & A):  # type: ignore[operator]
        with pytest.raises(TypeError, match="unsupported operand"):
            join()


# --- Inlets and outlets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (A, (A,)),
        ([A, B, A], (A, B)),
        ((A, Asset.ref(name="x")), (A, AssetNameRef("x"))),
        ({A}, (A,)),
        (AssetAlias("x"), (AssetAlias("x"),)),
        (A & B, (A, B)),
        ([], ()),
    ],
)
def test_inlets_and_outlets_are_one_asset_or_several(given: Any, kept: tuple[Any, ...]) -> None:
    assert (Step("s", inlets=given).inlets, Step("s", outlets=given).outlets) == (kept, kept)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("orders", r"outlets has the text 'orders'; write outlets=\[Asset\('orders'\)\]"),
        (["orders"], "outlets has the text 'orders'"),
        ([7], "outlets has 7; it takes assets"),
        (None, "outlets has None"),
    ],
)
def test_what_is_no_outlet(given: Any, complaint: str) -> None:
    with pytest.raises(DagError, match=complaint):
        Step("s", outlets=given)


# --- State -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[outlast.Store]:
    with outlast.connect(tmp_path / "state.db") as store:
        yield store


@pytest.fixture
def state(store: outlast.Store) -> TaskState:
    """The state of a task as its first attempt has it."""
    return store.task("d/r/t", attempt="new")


def states_of(state: TaskState, inlets: Any = (), outlets: Any = ()) -> AssetStates:
    found = accessors(state, Step("s", inlets=inlets).inlets, Step("s", outlets=outlets).outlets)
    assert found is not None
    return found


def test_a_task_without_assets_has_no_accessor(state: TaskState) -> None:
    assert accessors(state, (), ()) is None


def test_each_inlet_and_outlet_has_its_state(store: outlast.Store, state: TaskState) -> None:
    states = states_of(state, inlets=[USERS], outlets=[ORDERS])
    states[ORDERS].set("watermark", 7)
    states[USERS].set("watermark", 8)
    assert [store.asset(name).get("watermark") for name in ("orders", "users")] == [7, 8]
    assert store.asset(uri="s3://bucket/orders").get("watermark") == 7
    assert (list(states), len(states), ORDERS in states, Asset("x") in states) == ([USERS, ORDERS], 2, True, False)


@pytest.mark.parametrize(
    "key", [ORDERS, Asset.ref(name="orders"), Asset.ref(uri="s3://bucket/orders"), Asset("orders")]
)
def test_an_asset_may_be_named_by_what_is_known_of_it(state: TaskState, key: Any) -> None:
    assert states_of(state, outlets=[ORDERS])[key].scope == states_of(state, outlets=[ORDERS])[ORDERS].scope


@pytest.mark.parametrize("key", ["orders", 0, AssetAlias("orders"), None])
def test_what_is_no_asset_is_a_type_error(state: TaskState, key: Any) -> None:
    with pytest.raises(TypeError, match=r"by an Asset or Asset\.ref"):
        states_of(state, outlets=[ORDERS])[key]


@pytest.mark.parametrize("key", [USERS, Asset.ref(name="users"), Asset("orders", "s3://elsewhere")])
def test_an_asset_that_is_neither_inlet_nor_outlet_is_a_key_error_naming_it(state: TaskState, key: Any) -> None:
    with pytest.raises(KeyError, match="neither an inlet nor an outlet") as error:
        states_of(state, outlets=[ORDERS])[key]
    assert repr(key) in str(error.value)


@pytest.mark.parametrize(
    ("inlets", "outlets"),
    [
        ([ORDERS], []),
        ([], [ORDERS]),
        ([ORDERS], [ORDERS]),
        ([Asset.ref(name="orders")], [ORDERS]),
        ([Asset.ref(uri="s3://bucket/orders")], [ORDERS]),
        ([Asset("orders")], [ORDERS]),
        ([ORDERS, AssetAlias("alias")], []),
    ],
)
def test_with_exactly_one_asset_the_verbs_work_directly(
    store: outlast.Store, state: TaskState, inlets: list[Any], outlets: list[Any]
) -> None:
    states = states_of(state, inlets, outlets)
    states.set("watermark", 7)
    states.increment("watermark")
    assert (states.get("watermark"), states.keys(), states.entry("watermark").revision) == (8, ["watermark"], 2)
    assert [version.value for version in states.history("watermark")] == [8, 7]
    assert store.asset("orders", uri="s3://bucket/orders").get("watermark") == 8
    states.clear()
    assert store.asset("orders").items() == []


@pytest.mark.parametrize(("outlets", "count"), [([ORDERS, USERS], 2), ([ORDERS, USERS, A], 3), ([AssetAlias("x")], 0)])
def test_with_none_or_several_the_shorthand_says_how_many(state: TaskState, outlets: list[Any], count: int) -> None:
    states = states_of(state, outlets=outlets)
    for verb in ("get", "aset", "transaction", "history"):
        with pytest.raises(ValueError, match=f"exactly one asset, and this task has {count}"):
            getattr(states, verb)


def test_a_misspelt_verb_is_told(state: TaskState) -> None:
    with pytest.raises(AttributeError, match="no 'gett'; did you mean 'get'"):
        states_of(state, outlets=[ORDERS]).gett("x")


async def _awaiting(states: AssetStates) -> list[Any]:
    await states.aset("watermark", 7)
    await states[ORDERS].aincrement("watermark")
    async with states.transaction() as tx:
        await tx.aset("rows", await tx.aget("watermark"))
    return list(await states.aitems())


def test_the_awaiting_verbs_work_as_well(state: TaskState) -> None:
    import asyncio

    assert asyncio.run(_awaiting(states_of(state, outlets=[ORDERS]))) == [("rows", 8), ("watermark", 8)]


def test_asset_state_has_no_retention(state: TaskState) -> None:
    with pytest.raises(TypeError, match="retention"):
        states_of(state, outlets=[ORDERS]).set("watermark", 7, retention=None)


def test_who_wrote_is_the_task_with_its_full_scope(state: TaskState) -> None:
    states = states_of(state, outlets=[ORDERS])
    states.set("watermark", 7)
    writer = states.entry("watermark").writer
    assert (writer.kind, writer.attempt, writer.scope) == ("task", 1, TaskScope("d", "r", "t"))


def test_a_superseded_attempt_can_neither_read_nor_move_a_watermark(store: outlast.Store, state: TaskState) -> None:
    old = states_of(state, outlets=[ORDERS])
    old.set("watermark", 7)
    store.task("d/r/t", attempt="new")
    for call in (
        lambda: old.set("watermark", 8),
        lambda: old[ORDERS].get("watermark"),
        lambda: old.history("watermark"),
        lambda: list(old.watch(timeout=0)),
    ):
        with pytest.raises(StaleAttempt):
            call()
    assert store.asset("orders").get("watermark") == 7


def test_a_transaction_moves_a_task_and_its_assets_together(store: outlast.Store, state: TaskState) -> None:
    states = states_of(state, inlets=[USERS], outlets=[ORDERS])
    with state.transaction() as tx:
        tx.set("page", 3)
        tx.of(states[ORDERS]).set("watermark", 30)
        tx.of(states[USERS]).set("seen", True)
    with pytest.raises(RuntimeError):
        fail_half_way(state, states[ORDERS])
    assert (state.get("page"), states[ORDERS].get("watermark"), states[USERS].get("seen")) == (3, 30, True)


def fail_half_way(state: TaskState, orders: Any) -> None:
    with state.transaction() as tx:
        tx.set("page", 4)
        tx.of(orders).set("watermark", 40)
        raise RuntimeError


def test_with_one_asset_a_transaction_takes_the_accessor_itself(state: TaskState) -> None:
    states = states_of(state, inlets=[ORDERS], outlets=[ORDERS])
    with state.transaction() as tx:
        tx.set("page", 3)
        tx.of(states).increment("watermark", 30)
        assert tx.of(states).get("watermark") == 30
    with states.transaction() as tx:
        tx.of(state).set("page", tx.get("watermark"))
    assert (state.get("page"), states.get("watermark")) == (30, 30)


@pytest.mark.parametrize("first", [Asset("s3://b/o"), Asset("o")])
def test_an_asset_known_by_one_text_may_get_its_other_name_later(state: TaskState, first: Asset) -> None:
    """What a DAG file once called by its URI, or by its name, alone keeps its state when it gets the other one."""
    states_of(state, outlets=[first]).set("watermark", 7)
    assert states_of(state, outlets=[Asset("o", "s3://b/o")]).get("watermark") == 7
    states_of(state, outlets=[Asset("o", "s3://b/o")]).set("watermark", 8)
    assert states_of(state, inlets=[Asset.ref(name="o")]).get("watermark") == 8
    assert states_of(state, inlets=[Asset.ref(uri="s3://b/o")]).get("watermark") == 8


# --- In a task's context -----------------------------------------------------------------------------------


def ran(attempt: Attempts, what: Any, events: Any = ()) -> dict[str, Any]:
    """Run a task with what the runner gives it of assets; return its context."""
    operator = what.linked()
    context = attempt.context(operator)
    provide(context, attempt.store.task(f"{operator.dag.dag_id}/r/{operator.task_id}", attempt="new"), events)
    context["answer"] = execute(operator, context)
    return context


def test_a_function_gets_what_it_names(attempt: Attempts, dag: DAG) -> None:
    @task(outlets=ORDERS)
    def load(asset_state_store=None, outlets=None):
        asset_state_store.set("watermark", 7)
        return [outlet.name for outlet in outlets]

    assert ran(attempt, load())["answer"] == ["orders"]
    assert attempt.store.asset("orders").get("watermark") == 7


def test_a_task_without_assets_has_no_such_context_key(attempt: Attempts, dag: DAG) -> None:
    @task
    def bare(**context):
        return "asset_state_store" in context

    context = ran(attempt, bare())
    assert ("asset_state_store" in context, context["answer"]) == (False, False)


def test_each_outlet_has_an_event_when_the_task_has_succeeded(attempt: Attempts, dag: DAG) -> None:
    @task(outlets=[ORDERS, USERS, Asset.ref(name="x"), ORDERS], inlets=[A])
    def load(**context):
        context["outlet_events"][ORDERS].extra = {"rows": 7, "exact": 2**70}
        context["outlet_events"][Asset.ref(name="users")].extra["day"] = "today"

    context = ran(attempt, load())
    assert events_of(context["task"], context) == [
        ("orders", "s3://bucket/orders", '{"rows":7,"exact":1180591620717411303424}'),
        ("users", "users", '{"day":"today"}'),
        ("x", None, "{}"),
    ]


def test_a_task_may_yield_metadata(attempt: Attempts, dag: DAG) -> None:
    @task(outlets=[ORDERS, AssetAlias("parts")])
    def load():
        yield Metadata(ORDERS, {"rows": 7})
        yield Metadata(Asset("part-1"), {"rows": 8}, AssetAlias("parts"))
        yield "nothing of interest"
        return "done"

    context = ran(attempt, load())
    assert context["answer"] == "done"
    events = [("orders", "s3://bucket/orders", '{"rows":7}'), ("part-1", "part-1", '{"rows":8}')]
    assert events_of(context["task"], context) == events


def test_an_alias_stands_for_what_is_added_to_it(attempt: Attempts, dag: DAG) -> None:
    alias = AssetAlias("parts")

    @task(outlets=[alias])
    def load(**context):
        context["outlet_events"][alias].add(Asset("part-1"), extra={"rows": 7})
        context["outlet_events"][alias].add(Asset("part-2"))

    context = ran(attempt, load())
    assert events_of(context["task"], context) == [("part-1", "part-1", '{"rows":7}'), ("part-2", "part-2", "{}")]


def test_events_are_of_outlets_only(attempt: Attempts, dag: DAG) -> None:
    @task(inlets=[USERS], outlets=[ORDERS])
    def load(): ...

    events = ran(attempt, load())["outlet_events"]
    with pytest.raises(KeyError, match=r"users.* is no outlet of this task"):
        events[USERS]
    with pytest.raises(DagError, match="is an asset itself"):
        events[ORDERS].add(USERS)


@pytest.mark.parametrize("extra", [{"when": WHEN}, {"x": float("nan")}, {"x": (1, 2)}, {1: 2}, [1], {"x": "\ud800"}])
def test_an_extra_that_is_no_json_fails_the_task(attempt: Attempts, dag: DAG, extra: Any) -> None:
    @task(outlets=[ORDERS])
    def load(**context):
        context["outlet_events"][ORDERS].extra = extra

    context = ran(attempt, load())
    with pytest.raises(InvalidValue, match="the extra of Asset"):
        events_of(context["task"], context)


def test_a_task_sees_the_events_its_run_was_started_for(attempt: Attempts, dag: DAG) -> None:
    @task
    def read(**context):
        events = context["triggering_asset_events"]
        return {asset.name: [event.extra for event in found] for asset, found in events.items()}

    at = to_micros(datetime(2026, 11, 29, 1, tzinfo=UTC))
    source = TaskScope("producer", "p1", "load", 2)
    rows = [
        EventRow(4, "orders", "s3://bucket/orders", at, source, '{"rows":7}'),
        EventRow(5, "users", None, at, None, "{}"),
        EventRow(6, "orders", "s3://bucket/orders", at + 1, source, '{"rows":18446744073709551616}'),
    ]
    context = ran(attempt, read(), rows)
    assert context["answer"] == {"orders": [{"rows": 7}, {"rows": 2**64}], "users": [{}]}
    events = context["triggering_asset_events"]
    first = events[ORDERS][0]
    assert (first.source_dag_id, first.source_run_id, first.source_task_id, first.source_map_index) == (
        ("producer", "p1", "load", 2)
    )
    assert (first.id, first.asset, first.uri, first.timestamp) == (
        (4, ORDERS, "s3://bucket/orders", datetime(2026, 11, 29, 1, tzinfo=UTC))
    )
    assert events[Asset.ref(name="users")][0].source is None
    assert (list(events), A in events, Asset.ref(uri="s3://bucket/orders") in events) == ([ORDERS, USERS], False, True)


def test_a_run_started_by_a_person_has_no_events(attempt: Attempts, dag: DAG) -> None:
    @task
    def read(**context):
        return len(context["triggering_asset_events"])

    assert ran(attempt, read())["answer"] == 0


# --- @asset ------------------------------------------------------------------------------------------------


def test_a_function_can_be_an_asset(attempt: Attempts) -> None:
    @asset(schedule=[USERS], uri="s3://bucket/report", tags=["demo"])
    def report(self, users, context, params, task_state_store=None, limit=3):
        """What it is."""
        task_state_store.set("done", True)
        return [self.uri, users.name, context["run_id"], params, limit]

    assert (report, report.dag.dag_id, report.dag.tags) == (Asset("report", "s3://bucket/report"), "report", ("demo",))
    assert (report.dag.asset_condition, report.dag.doc_md) == (USERS, "What it is.")
    made = report.dag.tasks["report"]
    assert (made.inlets, made.outlets) == ((AssetNameRef("users"),), (report,))
    context = ran(attempt, made)
    assert context["answer"] == ["s3://bucket/report", "users", "r", {}, 3]
    assert events_of(made, context) == [("report", "s3://bucket/report", "{}")]
    context["asset_state_store"][report].set("watermark", 7)
    assert attempt.store.asset("report").get("watermark") == 7


def test_an_asset_function_may_be_bare_or_have_a_name_of_its_own() -> None:
    @asset
    def plain(): ...

    @asset(schedule=plain, name="other", dag_id="third")
    def named(): ...

    assert (plain, plain.dag.dag_id, plain.dag.schedule) == (Asset("plain"), "plain", None)
    assert (named, named.dag.dag_id, list(named.dag.tasks)) == (Asset("other"), "third", ["named"])
    assert named.dag.asset_condition == plain


def test_an_asset_function_may_be_a_task_with_options() -> None:
    @asset(schedule=None)
    @task(retries=3)
    def report(): ...

    assert report.dag.tasks["report"].retries == 3


def test_one_function_may_make_several_assets(attempt: Attempts) -> None:
    @asset.multi(schedule=USERS, outlets=[A, C])
    def both(self, context):
        context["outlet_events"][C].extra = {"rows": 7}
        return [made.name for made in self.assets]

    assert (both.assets, both.dag.dag_id, both.dag.tasks["both"].outlets) == ((A, C), "both", (A, C))
    context = ran(attempt, both.dag.tasks["both"])
    assert context["answer"] == ["a", "c"]
    assert events_of(context["task"], context) == [("a", "a", "{}"), ("c", "s3://c", '{"rows":7}')]
    assert DAG("after", schedule=both).asset_condition is both


def test_a_parameter_is_the_asset_of_that_name_in_the_file(tmp_path: Path, attempt: Attempts) -> None:
    (tmp_path / "d.py").write_text(
        "from outlast.dags.assets import Asset, asset\n"
        "raw = Asset('orders', 's3://bucket/orders')\n"
        "@asset(schedule=raw)\n"
        "def report(orders, users):\n"
        "    return [orders.uri, users.uri]\n"
    )
    dags = load_file(tmp_path / "d.py").dags
    assert list(dags) == ["report"]
    assert ran(attempt, dags["report"].tasks["report"])["answer"] == ["s3://bucket/orders", "users"]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda: asset(shedule=None)(lambda: None), "no argument 'shedule'; did you mean 'schedule'"),
        (lambda: asset("orders"), "put it above a function"),
        (lambda: asset.multi(outlets=[])(test_references_are_by_name_or_by_uri), "makes no asset"),
        (lambda: asset.multi(outlets=["a"])(test_references_are_by_name_or_by_uri), "has the text 'a'"),
    ],
)
def test_what_an_asset_function_cannot_be(wrong: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(DagError, match=complaint):
        wrong()


def test_an_asset_function_names_its_parameters() -> None:
    def spread(*args): ...

    def hidden(orders, /): ...

    for function, complaint in ((spread, r"\*args"), (hidden, "positional-only")):
        with pytest.raises(DagError, match=complaint):
            asset(function)
