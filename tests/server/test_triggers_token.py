"""The token of triggers: what it may, row by row, and when it ends; what a task decides to run has no other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import outlast
from outlast import NotFound, StaleAttempt, Store, Unauthorized, connect
from outlast import deferral_requests as deferral
from outlast import event_requests as events
from outlast import requests as state
from outlast import run_requests as runs
from outlast.config import ClientSettings, Config
from outlast.requests import Commit, Once, Part, Read
from outlast.runner.trigger_host import RENEW_AFTER
from outlast.server import airflow_api, outlast_api
from outlast.server.identity import Who
from outlast.server.rights import RULES, allowed
from outlast.server.signing import TriggersClaims
from outlast.server.tokens import REMEMBERED, TRIGGERS_SECONDS, UNLISTED_SECONDS, Tokens
from outlast.token_requests import BYTES, CreateToken, MakeSecret, RevokeToken, digest_of, token_text
from outlast.values import AssetScope, Writer
from support.asking import LIAR, MINE, ON_VICTIM, OWN, SET, VICTIM, named, on
from support.clock import Clock, Ticks
from support.homes import settings
from support.public import Door
from support.runs import ANN, RUNNER, SUPERVISOR, Desk
from support.servers import house

ORDERS = AssetScope("orders")
TRIGGERS = Who("triggers", "triggers", ("sales",), 1)
#: All that the code of triggers, and what runs it, asks.
MAY: dict[str, Any] = {
    named(request): request
    for request in (
        deferral.ListDeferred((1,)),
        deferral.Fire(1, 1, "{}", dag_id="sales"),
        events.HoldWatchers(("w",), SUPERVISOR, 30.0),
        events.AddEvents((runs.NewEvent("orders", None),)),
        Read(ORDERS, None),
        state.Count(ORDERS),
        state.History(ORDERS, "k"),
        state.Changes(ORDERS, None),
        Commit((Part(ORDERS, SET),), None, Writer("trigger", name="mod.Polls")),
    )
}


# --- What it may -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MAY))
def test_triggers_ask_what_they_are_for(name: str) -> None:
    assert allowed(MAY[name], TRIGGERS) == MAY[name]
    assert allowed(Once("c", MAY[name]), TRIGGERS) == Once("c", MAY[name])


@pytest.mark.parametrize("name", sorted(set(ON_VICTIM) - set(MAY)))
def test_triggers_ask_nothing_else(name: str) -> None:
    own = {named(request): request for request in on(MINE, OWN)}
    for request in (ON_VICTIM[name], own[name]):
        with pytest.raises(Unauthorized, match="is not for the token of triggers"):
            allowed(request, TRIGGERS)


def test_the_role_stands_in_the_table_for_these_requests_alone() -> None:
    assert {kind.__name__ for kind, rule in RULES.items() if "triggers" in rule.roles} == set(MAY)


@pytest.mark.parametrize("name", ["Read", "Count", "History", "Changes", "Commit"])
def test_triggers_reach_no_task_s_state_and_nothing_as_an_attempt(name: str) -> None:
    unfenced = {named(request): msgspec.structs.replace(request, fence=None) for request in state_of(MINE)}
    fenced = msgspec.structs.replace(MAY[name], fence=OWN)
    for request in (unfenced[name], fenced, ON_VICTIM[name]):
        for who in (TRIGGERS, Who("triggers", "triggers")):
            with pytest.raises(Unauthorized, match="but for assets, and as no attempt"):
                allowed(request, who)


def state_of(scope: Any) -> list[Any]:
    return [request for request in on(scope, OWN) if hasattr(request, "fence") and named(request) in MAY]


def test_a_task_s_state_is_not_written_beside_an_asset_s() -> None:
    for parts in ((Part(MINE, SET), Part(ORDERS, SET)), (Part(ORDERS, SET), Part(VICTIM, SET))):
        with pytest.raises(Unauthorized):
            allowed(Commit(parts, None, LIAR), TRIGGERS)


def test_whatever_a_trigger_says_of_itself_it_writes_as_a_trigger() -> None:
    for said in (LIAR, Writer("task", 7, None, MINE), Writer("library", name="x")):
        commit = allowed(Commit((Part(ORDERS, SET),), None, said), TRIGGERS)
        assert commit.writer == Writer("trigger", name=said.name)


def test_triggers_wake_tasks_of_their_dags_only() -> None:
    with pytest.raises(NotFound):
        allowed(deferral.Fire(2, 1, "{}", dag_id="hr"), TRIGGERS)
    with pytest.raises(Unauthorized, match="some DAGs only"):
        allowed(deferral.Fire(2, 1, "{}"), TRIGGERS)
    every = Who("triggers", "triggers")
    assert allowed(deferral.Fire(2, 1, "{}"), every) == deferral.Fire(2, 1, "{}")


def test_triggers_get_no_other_token_by_theirs() -> None:
    with pytest.raises(Unauthorized, match="another such token"):
        allowed(deferral.ListDeferred((), entrust=True), TRIGGERS)


# --- Given, and how it ends --------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with outlast.connect(tmp_path / "store.db", clock=clock) as store:
        yield store


ENTRUST = deferral.ListDeferred((), entrust=True)


def given(tokens: Tokens, who: Who) -> str:
    token = asyncio.run(tokens.exchanged(ENTRUST, deferral.DeferredRows(()), who))
    assert token is not None
    return token


def who_shows(tokens: Tokens, token: str) -> Who:
    return asyncio.run(tokens.who(token))


def listed(store: Store, tokens: Tokens, seconds: int | None = None) -> Who:
    """Return a runner with a token in the store, good for so long."""
    text = token_text("runner", os.urandom(BYTES))
    until = None if seconds is None else store.clock() + seconds * 1_000_000
    store.backend.send(CreateToken(digest_of(text), "runner", "box", ANN, ("*",), until))
    return who_shows(tokens, text)


@pytest.mark.parametrize("role", ["runner", "admin"])
def test_a_token_of_triggers_is_for_the_dags_of_who_asks_for_it(store: Store, clock: Clock, role: Any) -> None:
    tokens = Tokens(store.backend, clock)
    began = clock.now // 1_000_000 * 1_000_000
    who = who_shows(tokens, given(tokens, Who(role, "box", ("sales", "s*"))))
    until = began + UNLISTED_SECONDS * 1_000_000
    assert who == Who("triggers", "triggers", ("sales", "s*"), None, until=until)


def test_a_list_of_what_is_deferred_brings_none_unasked(store: Store, clock: Clock) -> None:
    tokens = Tokens(store.backend, clock)
    asked = asyncio.run(tokens.exchanged(deferral.ListDeferred(()), deferral.DeferredRows(()), Who("runner", "box")))
    assert asked is None


def test_a_token_of_triggers_ends_after_a_day(store: Store, clock: Clock) -> None:
    tokens = Tokens(store.backend, clock)
    ends_after(clock, tokens, given(tokens, listed(store, tokens)), TRIGGERS_SECONDS)


def ends_after(clock: Clock, tokens: Tokens, token: str, seconds: int) -> None:
    clock.move(seconds=seconds - 2)
    assert who_shows(tokens, token).role == "triggers"
    clock.move(seconds=2)
    with pytest.raises(Unauthorized, match="has expired; the runner that started them gets another"):
        who_shows(tokens, token)


def test_triggers_of_an_admin_that_ends_with_a_server_have_an_hour(store: Store, clock: Clock) -> None:
    first, second = Tokens(store.backend, clock), Tokens(store.backend, clock)
    admin = first.local("root")
    token = given(first, who_shows(first, admin))
    with pytest.raises(Unauthorized):
        who_shows(second, admin)
    ends_after(clock, second, token, 3600)


def test_a_runner_asks_for_a_younger_one_before_the_shortest_ends() -> None:
    assert 2 * RENEW_AFTER <= UNLISTED_SECONDS <= TRIGGERS_SECONDS


def test_a_token_of_triggers_ends_with_that_of_their_runner(store: Store, clock: Clock) -> None:
    tokens = Tokens(store.backend, clock)
    runner = listed(store, tokens, seconds=90)
    token = given(tokens, runner)
    until = who_shows(tokens, token).until
    assert until is not None
    assert runner.until is not None
    assert runner.until - 1_000_000 < until <= runner.until
    ends_after(clock, tokens, token, 90)


def test_triggers_do_not_outlast_a_runner_s_token_whatever_theirs_says(store: Store, clock: Clock) -> None:
    tokens = Tokens(store.backend, clock)
    runner = listed(store, tokens, seconds=90)
    token = asyncio.run(tokens._signing.signed(TriggersClaims, TRIGGERS_SECONDS, dags=("*",), by=runner.token_id))
    assert who_shows(tokens, token).role == "triggers"
    clock.move(seconds=91)
    later = Tokens(store.backend, clock)
    with pytest.raises(Unauthorized, match="token 1, for which this one was given, is not good any more"):
        who_shows(later, token)


def test_a_token_of_triggers_is_good_under_two_secrets(store: Store, clock: Clock) -> None:
    ticks = Ticks()
    tokens = Tokens(store.backend, clock, ticks)
    token = given(tokens, Who("runner", "box"))
    store.backend.send(MakeSecret(ANN))
    ticks.now += REMEMBERED
    assert who_shows(tokens, token).role == "triggers"
    store.backend.send(MakeSecret(ANN))
    ticks.now += REMEMBERED
    with pytest.raises(Unauthorized, match="not known here"):
        who_shows(tokens, token)


def test_a_token_of_triggers_opens_no_page(store: Store, clock: Clock) -> None:
    tokens = Tokens(store.backend, clock)
    with pytest.raises(Unauthorized, match="session has ended"):
        asyncio.run(tokens.who_of_session(given(tokens, Who("admin", "ann"))))


# --- Through a server ------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Iterator[Door]:
    """A server, to an admin."""
    store = connect(tmp_path / "served.db", config=settings(secret_keys=("*password",)), clock=clock)
    url, token = house().move_in(store)
    yield Door(url, store, clock, token)
    house().move_out(url)


def opened(door: Door) -> Store:
    return connect(door.url, config=Config(client=ClientSettings(token=door.token, retry_for=1.0, find_token=False)))


def entrusted(door: Door) -> Door:
    """Return the same routes for the triggers of who asks."""
    with opened(door) as store:
        backend: Any = store.backend
        backend.send(ENTRUST)
        token = backend.triggers_token()
        assert backend.triggers_token() is None
    return Door(door.url, door.store, door.clock, token)


@pytest.mark.http
def test_triggers_see_what_is_deferred_in_their_dags_and_wake_it(served: Door) -> None:
    waits = deferral.Deferral("m.T", "{}", "done")
    for dag_id in ("sales", "hr"):
        desk = served.desk("r1", dag_id)
        desk.start("t")
        desk.begin("t")
        desk.report(desk.fence("t"), "deferred", deferral=waits)
    with opened(entrusted(served.as_role("runner", "sales"))) as store:
        (row,) = store.backend.send(deferral.ListDeferred((1, 2))).rows
        assert row.scope.dag_id == "sales"
        store.backend.send(deferral.Fire(row.scope_id, 1, '{"event":1}', dag_id="sales"))
        with pytest.raises(NotFound):
            store.backend.send(deferral.Fire(row.scope_id + 1, 1, '{"event":1}', dag_id="hr"))
    states = {dag_id: served.desk("r1", dag_id).task("t").state for dag_id in ("sales", "hr")}
    assert states == {"sales": "scheduled", "hr": "deferred"}


@pytest.mark.http
def test_triggers_have_the_state_of_assets_with_its_secrets(served: Door) -> None:
    with opened(entrusted(served.as_role("runner", "sales"))) as store:
        asset = store.asset("orders", writer=Writer("trigger", name="mod.Polls"))
        asset.set("password", "hunter2")
        assert (asset.get("password"), len(asset.history("password"))) == ("hunter2", 1)
        assert asset.entry("password").writer == Writer("trigger", name="mod.Polls")
        with pytest.raises(Unauthorized):
            store.task("sales/r1/t").items()


@pytest.mark.http
def test_a_call_of_triggers_is_not_one_of_their_runner_s(served: Door) -> None:
    runner = served.as_role("runner")
    for number, door in enumerate((runner, entrusted(runner))):
        with opened(door) as store:
            store.backend.send(Once("c" * 32, events.AddEvents((runs.NewEvent(f"a{number}", None),))))
    found = served.store.backend.send(events.ListEvents()).rows
    assert [event.name for event in found] == ["a0", "a1"]


#: Pages, and what is not an operation of an API.
PLACES = ["/", "/runs/sales/r1", "/assets", "/health", "/metrics"]


@pytest.mark.http
def test_triggers_find_every_public_door_shut(served: Door) -> None:
    served.store.asset("orders").set("page", "of orders")
    triggers = entrusted(served)
    places = {"dag_id": "d", "run_id": "r", "dag_run_id": "r", "task_id": "t", "map_index": "0", "key": "page"}
    for operation in (*airflow_api.OPERATIONS.all, *outlast_api.OPERATIONS.all):
        path = operation.path.replace("{key:path}", "{key}").format(**places, asset_id=1)
        answer = triggers.ask(operation.method, path, json={"value": 1} if operation.body is not None else ...)
        assert answer.status == (200 if operation.is_open else 401), (path, answer.text)
        assert operation.is_open or "the token of triggers is good at the workers' door only" in answer.text
    for path in PLACES:
        answer = triggers.get(path, headers={"Accept": "text/html"})
        assert (answer.status, "of orders" in answer.text) == (401, False), (path, answer.text)
    assert served.store.asset("orders").items() == [("page", "of orders")]


@pytest.mark.http
def test_the_end_of_the_runner_s_token_is_that_of_its_triggers(served: Door) -> None:
    runner = served.as_role("runner")
    with opened(entrusted(runner)) as triggers:
        triggers.backend.send(deferral.ListDeferred((1,)))
        served.store.backend.send(RevokeToken(1, ANN))

        def refused() -> bool:
            try:
                triggers.backend.send(deferral.ListDeferred((1,)))
            except Unauthorized as error:
                return "token 1, for which this one was given, is not good any more" in error.message
            return False

        until = time.monotonic() + 5 * REMEMBERED
        while not refused():
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.http
def test_a_younger_token_takes_the_place_of_one_that_has_expired(served: Door, clock: Clock) -> None:
    runner = served.as_role("runner")
    old = entrusted(runner)
    with opened(old) as store:
        backend: Any = store.backend
        clock.move(seconds=TRIGGERS_SECONDS + 1)
        with pytest.raises(Unauthorized, match="expired"):
            backend.send(deferral.ListDeferred((1,)))
        young = entrusted(runner).token
        assert young is not None
        backend.show(young)
        assert backend.send(deferral.ListDeferred((1,))).rows == ()


@pytest.mark.http
def test_nobody_but_a_runner_or_an_admin_gets_one(served: Door) -> None:
    for role in ("viewer", "editor", "worker"):
        with opened(served.as_role(role)) as store, pytest.raises(Unauthorized, match="listing deferred tasks"):
            store.backend.send(ENTRUST)
    desk = Desk(served.store.backend, "sales")
    desk.start("t", holder=RUNNER)
    with opened(served) as runner:
        scope = Desk(runner.backend, "sales").begin("t").scope
        backend: Any = runner.backend
        token = backend.attempt_token(desk.fence("t"))
    with opened(Door(served.url, served.store, served.clock, token)) as attempt:
        with pytest.raises(Unauthorized, match="listing deferred tasks"):
            attempt.backend.send(ENTRUST)
        served.store.task(scope, attempt="new")
        with pytest.raises(StaleAttempt):
            attempt.backend.send(Read(scope, None))
