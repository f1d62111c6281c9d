"""Attacks through the workers' door of a real application: with another task's token, an older attempt's, or none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import outlast
from outlast import Store, wire
from outlast.config import Config, ServerSettings, StateStoreSettings
from outlast.requests import Commit, Fence, Open, Part, Put, Read
from outlast.run_requests import Begin, GetRun, Renew
from outlast.server.app import make_app
from outlast.token_requests import (
    CreateToken,
    ListTokens,
    RevokeToken,
    TokenRole,
    digest_of,
    token_text,
)
from outlast.values import AssetScope, TaskScope, Writer
from support.asking import HIS, MINE, ON_VICTIM, VICTIM
from support.browsing import Browser, Page
from support.clock import Clock
from support.runs import ANN, SUPERVISOR, Desk

ORDERS, SALARIES = AssetScope("orders"), AssetScope("salaries")


class Door:
    """The workers' door of an application over a store, as somebody with a token comes to it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.app: Any = make_app(store, ServerSettings())
        self.browser = Browser(self.app, "http://localhost")

    def token(self, role: TokenRole, *dags: str) -> str:
        text = token_text(role, (role + "".join(dags)).encode().ljust(32)[:32])
        self.store.backend.send(CreateToken(digest_of(text), role, role, ANN, dags or ("*",)))
        return text

    def ask(self, token: str | None, request: Any, *, reveal: bool = False) -> Page:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.browser.ask("POST", "/execution/call", headers, wire.encode_call(request, reveal=reveal))

    def code(self, token: str | None, request: Any) -> str:
        """Return the error's code, or that there is none."""
        page = self.ask(token, request)
        return str(page.json()["error"]["code"]) if page.status != 200 else "ok"

    def reply(self, token: str, request: Any, *, reveal: bool = False) -> Any:
        page = self.ask(token, request, reveal=reveal)
        assert page.status == 200, page.text
        return page.json()

    def opened(self, token: str, scope: TaskScope = MINE, *assets: AssetScope) -> str:
        """Exchange a worker's token for an attempt's."""
        return str(self.reply(token, Open(scope, None, assets))["token"])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door(clock: Clock) -> Iterator[Door]:
    """A server whose store has a run of somebody else, with state of a task and of an asset."""
    config = Config(state_store=StateStoreSettings(secret_keys=("password",)))
    with outlast.connect(":memory:", config=config, clock=clock) as store:
        Desk(store.backend, VICTIM.dag_id, VICTIM.run_id).start(VICTIM.task_id)
        store.task(VICTIM, attempt="new").set("salary", 100)
        store.asset("salaries").set("total", 100)
        door = Door(store)
        yield door
        asyncio.run(door.app.state.gate.close())


def untouched(store: Store) -> dict[str, Any]:
    """Return what the victim has."""
    return {
        "state": store.task(VICTIM).items(),
        "asset": store.asset("salaries").items(),
        "run": store.runs_as(ANN).get(VICTIM.dag_id, VICTIM.run_id),
        "tokens": [(row.id, row.revoked_at) for row in store.backend.send(ListTokens()).rows],
    }


# --- An attempt's token ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ON_VICTIM))
def test_an_attempt_s_token_gets_nothing_of_another_s(door: Door, name: str) -> None:
    token = door.opened(door.token("worker"))
    before, request = untouched(door.store), ON_VICTIM[name]
    page = door.ask(token, request)
    assert page.status in (401, 404, 409, 422), page.text
    assert "100" not in page.text
    assert untouched(door.store) == before


def test_an_attempt_s_token_is_good_for_its_own_scope_and_assets(door: Door) -> None:
    token = door.opened(door.token("worker"), MINE, ORDERS)
    parts = (Part(MINE, (Put("page", "1", None),)), Part(ORDERS, (Put("seen", "2", None),)))
    assert door.code(token, Commit(parts)) == "ok"
    assert door.store.task(MINE).items() == [("page", 1)]
    entry = door.store.asset("orders").entry("seen")
    assert entry is not None
    assert entry.writer == Writer("task", 1, None, MINE)
    assert door.code(token, Read(SALARIES, None)) == "not_found"
    parts = (Part(MINE, (Put("page", "9", None),)), Part(SALARIES, (Put("total", "9", None),)))
    assert door.code(token, Commit(parts)) == "not_found"
    assert door.store.task(MINE).get("page") == 1


def test_an_older_attempt_gets_nothing(door: Door) -> None:
    worker = door.token("worker")
    older, newer = door.opened(worker), door.opened(worker)
    newest = Fence(MINE, 2, 2)
    for request in (
        Read(MINE, None),
        Read(MINE, None, fence=newest),
        Commit((Part(MINE, (Put("a", "1", None),)),), newest),
    ):
        assert door.code(older, request) == "stale_attempt"
        assert door.code(newer, request) == "ok"


def test_an_expired_token_says_whether_the_attempt_is_superseded(door: Door, clock: Clock) -> None:
    worker = door.token("worker")
    token = door.opened(worker)
    clock.move(days=2)
    assert door.code(token, Read(MINE, None)) == "unauthorized"
    door.opened(worker)
    assert door.code(token, Read(MINE, None)) == "stale_attempt"


def test_a_renewal_brings_a_new_token(door: Door, clock: Clock) -> None:
    runner = door.token("runner")
    Desk(door.store.backend, MINE.dag_id, MINE.run_id).start(MINE.task_id)
    begun = door.reply(runner, Begin(MINE, 0, SUPERVISOR, 30.0, (ORDERS,)))
    token, fence = begun["token"], Fence(MINE, 1, begun["reply"]["scope_id"])
    clock.move(hours=13)
    renewed = door.reply(token, Renew(fence, 30.0))["token"]
    clock.move(hours=13)
    assert door.code(token, Read(MINE, None)) == "unauthorized"
    assert door.code(renewed, Read(ORDERS, None)) == "ok"


def test_the_workers_door_shows_secrets_to_attempts_and_not_to_viewers(door: Door) -> None:
    token = door.opened(door.token("worker"))
    door.reply(token, Commit((Part(MINE, (Put("password", '"hunter2"', None),)),)))
    assert door.reply(token, Read(MINE, None))["reply"]["rows"][0]["text"] == '"hunter2"'
    for role in ("viewer", "editor"):
        assert door.reply(door.token(role), Read(MINE, None))["reply"]["rows"][0]["text"] == '"***"'  # type: ignore[arg-type]
    admin = door.token("admin")
    assert door.reply(admin, Read(MINE, None))["reply"]["rows"][0]["text"] == '"***"'
    assert door.reply(admin, Read(MINE, None), reveal=True)["reply"]["rows"][0]["text"] == '"hunter2"'


# --- Other tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ON_VICTIM))
def test_without_a_token_nobody_gets_anything(door: Door, name: str) -> None:
    before = untouched(door.store)
    page = door.ask(None, ON_VICTIM[name])
    assert page.status == 401
    assert untouched(door.store) == before


def test_a_worker_s_token_opens_scopes_of_its_dags_and_does_nothing_else(door: Door) -> None:
    worker = door.token("worker", "sales*")
    assert door.code(worker, Open(VICTIM, None)) == "not_found"
    assert door.code(worker, Open(MINE, None)) == "ok"
    for request in (Read(MINE, None), Commit((Part(MINE, (Put("a", "1", None),)),)), GetRun("sales", "r1")):
        assert door.code(worker, request) == "unauthorized"
    assert door.store.task(VICTIM).items() == [("salary", 100)]


def test_a_forged_fence_does_not_reach_another_dag_by_its_scope_s_id(door: Door) -> None:
    runner = door.token("runner", "sales")
    door.opened(runner)
    assert door.code(runner, Read(MINE, None, fence=Fence(MINE, 1, HIS.scope_id))) == "unauthorized"
    assert door.code(door.token("viewer", "sales"), Read(VICTIM, None)) == "not_found"


def test_a_revoked_token_ends_at_once(door: Door) -> None:
    worker = door.token("worker")
    token = door.opened(worker)
    door.store.backend.send(RevokeToken(1, ANN))
    ticks = door.app.state.tokens.ticks
    door.app.state.tokens.ticks = lambda: ticks() + 1
    for shown in (worker, token):
        assert door.code(shown, Read(MINE, None)) == "unauthorized"


def test_tokens_are_made_through_a_server_without_it_seeing_them(door: Door) -> None:
    text = token_text("viewer", b"n" * 32)
    made = door.reply(door.token("admin"), CreateToken(digest_of(text), "viewer", "new", Writer("person", name="liar")))
    assert made["reply"]["name"] == "new"
    assert door.code(text, Read(VICTIM, None)) == "ok"
    assert door.store.runs_as(ANN).audit(limit=1)[0].who == "admin"
    assert door.code(text, CreateToken(bytes(32), "admin", "more", ANN)) == "unauthorized"


def test_nothing_that_proves_anything_is_logged(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    worker = door.token("worker")
    attempt, code = door.opened(worker), door.app.state.tokens.link("ann")
    door.ask(attempt, Read(VICTIM, None))
    door.ask(attempt[:-1], Read(MINE, None))
    door.ask(f"{worker}0", Read(MINE, None))
    door.browser.get(f"/login?once={code}")
    door.browser.get(f"/login?once={code}")
    door.browser.post("/login", {"token": worker}, {"Origin": "http://localhost"})
    told = caplog.text + "".join(str(record.args) for record in caplog.records)
    for secret in (worker, attempt, attempt.split(".")[2], code, *door.browser.cookies.values()):
        assert secret not in told
    logging.getLogger("outlast").debug("this much is logged")
    assert "this much is logged" in caplog.text
