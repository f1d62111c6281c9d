"""What is seen of a reply: rows of other DAGs left out, with paging still right; values of secret keys masked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import outlast
from outlast import Conflict, InvalidValue, Store, wire
from outlast.backends import Backend
from outlast.backends.answers import READS, WRITES
from outlast.config import Config, StateStoreSettings
from outlast.event_requests import AddEvents, Events, ListEvents
from outlast.people_requests import ListAudit
from outlast.requests import (
    Changes,
    Check,
    Commit,
    Feed,
    Find,
    FoundRow,
    History,
    Increment,
    ListScopes,
    Part,
    Put,
    Read,
    Row,
    Sweep,
    Swept,
)
from outlast.run_requests import GetRun, HoldRun, NewEvent, PruneRuns, StartRun
from outlast.server.identity import Who
from outlast.server.masking import MASKED, SEEN, is_secret, may_reveal, visible, visible_error
from outlast.server.rights import allowed
from outlast.token_requests import CreateToken
from outlast.values import AssetScope, TaskScope, Writer
from support.runs import ANN, RUNNER, Desk

SECRETS = ("*password", "api_?ey")
SECRET = {"password": "hunter2", "api_key": 41, "page": 7}
MASKED_SECRET = {"api_key": MASKED, "page": "7", "password": MASKED}
SCOPE = TaskScope("sales", "r1", "extract")
VIEWER, EDITOR, ADMIN = Who("viewer", "v"), Who("editor", "e"), Who("admin", "a")
ATTEMPT = Who("attempt", "t", ("sales",))
SALES = Who("viewer", "ann", ("s*",))


class Seen(Backend):
    """Answers as a server would answer one asker."""

    def __init__(self, backend: Backend, who: Who, reveal: bool = False) -> None:
        self.backend, self.who, self.reveal = backend, who, reveal

    def send(self, request: Any) -> Any:
        try:
            reply = self.backend.send(allowed(request, self.who, SECRETS))
        except outlast.OutlastError as error:
            raise visible_error(error, self.who, SECRETS, self.reveal) from error
        return visible(reply, self.who, SECRETS, self.reveal)

    def close(self) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    config = Config(state_store=StateStoreSettings(secret_keys=SECRETS))
    with outlast.connect(":memory:", config=config) as store:
        yield store


def as_seen(store: Store, who: Who, reveal: bool = False) -> Store:
    return Store(Seen(store.backend, who, reveal), store.url, store.origin, store.config, store.clock)


def texts(reply: Any) -> dict[str, str | None]:
    return {row.name: row.text for row in reply.rows}


# --- The table -------------------------------------------------------------------------------------------------


def test_every_reply_there_is_stands_in_the_table(store: Store) -> None:
    assert {kind for kind in wire.REPLIES.values() if isinstance(kind, type)} <= set(SEEN)
    asked = set(READS) | set(WRITES)
    assert {kind.__name__ for kind in asked} - {kind.__name__ for kind in wire.REPLIES} <= {
        "FindToken",
        "TouchToken",
        "ListSecrets",
        "Feed",
        "Once",
    }


def test_a_reply_that_is_not_in_the_table_goes_to_nobody() -> None:
    with pytest.raises(KeyError):
        visible({"password": 1}, ADMIN)


# --- Secret keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "reveal", "masked"),
    [
        (VIEWER, False, True),
        (VIEWER, True, True),
        (EDITOR, True, True),
        (ADMIN, False, True),
        (ADMIN, True, False),
        (ATTEMPT, False, True),
        (ATTEMPT, True, False),
        (Who("runner", "r"), False, True),
        (Who("runner", "r"), True, False),
    ],
    ids=lambda value: value.role if isinstance(value, Who) else str(value),
)
def test_secrets_are_masked_unless_a_program_or_an_admin_asks(
    store: Store, who: Who, reveal: bool, masked: bool
) -> None:
    store.task(SCOPE).set_many(SECRET)
    reply = store.backend.send(Read(SCOPE, None))
    expected = MASKED_SECRET if masked else {"api_key": "41", "page": "7", "password": '"hunter2"'}
    assert texts(visible(reply, who, SECRETS, reveal)) == expected
    assert may_reveal(who) is (who.role not in ("viewer", "editor"))


def test_no_sum_of_bytes_tells_the_length_of_a_secret(store: Store) -> None:
    orders = store.asset("orders")
    orders.set("password", "hunter2")
    reply = store.backend.send(ListScopes(assets=True))
    for who, reveal, told in ((VIEWER, True, 1024), (EDITOR, False, 1024), (ADMIN, False, 1024), (ADMIN, True, 9)):
        assert [info.bytes for info in visible(reply, who, SECRETS, reveal).scopes] == [told]
    assert [info.bytes for info in visible(reply, VIEWER).scopes] == [9]
    orders.clear()
    [empty] = visible(store.backend.send(ListScopes(assets=True)), VIEWER, SECRETS).scopes
    assert empty.bytes == 0


def test_no_way_of_reading_tells_a_secret(store: Store) -> None:
    state = store.task(SCOPE)
    state.set_many(SECRET)
    seen = Seen(store.backend, VIEWER)
    before = seen.send(Feed()).position
    state.set("password", "hunter3")
    assert len(seen.send(Feed(before)).rows) == 1
    for request in (
        Read(SCOPE, ("password",)),
        History(SCOPE, "password"),
        Changes(SCOPE, None),
        Find(),
        Feed(before),
    ):
        told = msgspec.json.encode(seen.send(request))
        assert b"password" in told
        assert b"hunter" not in told, request


def test_no_way_of_writing_tells_a_secret(store: Store) -> None:
    store.task(SCOPE).set_many({"password": "hunter2", "api_key": 41})
    editor = as_seen(store, EDITOR)
    state = editor.task(SCOPE)
    with pytest.raises(InvalidValue, match="an editor's token does not show"):
        state.increment("api_key")
    assert state.set_default("password", "x") == "***"
    with pytest.raises(Conflict) as refused:
        state.compare_and_set("password", "x", revision=99)
    assert refused.value.current is not None
    assert refused.value.current.value == "***"
    assert store.task(SCOPE).items() == [("api_key", 41), ("password", "hunter2")]
    assert as_seen(store, ADMIN, reveal=True).task(SCOPE).increment("api_key") == 42


def test_a_receipt_and_a_conflict_are_masked(store: Store) -> None:
    seen = Seen(store.backend, EDITOR)
    operations = (Put("password", '"hunter2"', None), Increment("page", 1, None))
    receipt = seen.send(Commit((Part(SCOPE, operations),)))
    assert [row and row.text for row in receipt.rows[0]] == [MASKED, "1"]
    with pytest.raises(Conflict) as refused:
        seen.send(Commit((Part(SCOPE, (Check("password", 9),)),)))
    current: Any = refused.value.current
    assert (current.text, current.revision) == (MASKED, 1)


def test_a_secret_is_not_found_by_its_value(store: Store) -> None:
    store.task(SCOPE).set_many(SECRET)
    viewer = as_seen(store, VIEWER)
    assert viewer.find(where='$ == "hunter2"') == []
    assert viewer.find(where="$ > 10") == []
    assert [found.entry.key for found in viewer.find(where="$ == 7")] == ["page"]
    assert viewer.find(key="password", min_bytes=6) == []


def test_parameters_of_runs_and_extras_of_events_are_masked(store: Store) -> None:
    params = '{"api_key":"k","n":1180591620717411303424,"deep":{"password":1}}'
    store.backend.send(StartRun("sales", "r1", (), params, "f.py", "d", 0, RUNNER, 60.0))
    store.backend.send(AddEvents((NewEvent("orders", None, '{"password":[1],"rows":3}'), NewEvent("b", None, "[1]"))))
    viewer = Seen(store.backend, VIEWER)
    masked = '{"api_key":"***","n":1180591620717411303424,"deep":{"password":1}}'
    assert viewer.send(GetRun("sales", "r1")).run.params == masked
    assert [row.extra for row in viewer.send(ListEvents()).rows] == ['{"password":"***","rows":3}', "[1]"]
    held = store.backend.send(HoldRun("sales", "r1", RUNNER, 60.0))
    assert visible(held, VIEWER, SECRETS).run.params == masked
    assert visible(held, Who("runner", "r"), SECRETS, reveal=True).run.params == params
    assert [run.params for run, _ in as_seen(store, VIEWER).runs_as(ANN).list()] == [masked]


def test_the_audit_log_tells_digests_of_secrets(store: Store) -> None:
    state = store.task(SCOPE, writer=ANN)
    state.set("password", "hunter2")
    row = Seen(store.backend, VIEWER).send(ListAudit()).rows[0]
    assert row.after is not None
    assert row.after.startswith('"9 bytes, keyed digest ')


def test_what_was_audited_before_its_key_was_secret_is_masked(store: Store) -> None:
    state = store.task(SCOPE, writer=ANN)
    state.set("token", "hunter2")
    page = store.backend.send(ListAudit())
    assert visible(page, VIEWER, ("token",)).rows[0].after == MASKED
    assert visible(page, ADMIN, ("token",), reveal=True).rows[0].after == '"hunter2"'


@pytest.mark.parametrize(
    ("name", "secret"), [("password", True), ("db.password", True), ("Password", False), ("api_key", True)]
)
def test_which_keys_are_secret(name: str, secret: bool) -> None:
    assert is_secret(name, SECRETS) is secret
    assert not is_secret(name, ())
    assert is_secret("[x]", ("[x]",))


# --- Other DAGs ------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(store: Store) -> Store:
    """A store of two DAGs, of which the other comes first, last and in between."""
    for number in range(12):
        for dag_id in ("hr", "sales", "hr"):
            scope = TaskScope(dag_id, f"r{number}", "t")
            store.task(scope, writer=ANN).set("page", number)
    for number in range(4):
        for dag_id in ("hr", "sales"):
            Desk(store.backend, dag_id, f"run{number}").start("t")
    return store


def test_lists_hold_what_may_be_seen_however_they_are_paged(mixed: Store) -> None:
    viewer = as_seen(mixed, SALES)
    assert {info.scope.dag_id for info in viewer.scopes() if isinstance(info.scope, TaskScope)} == {"sales"}
    assert len(viewer.scopes()) == 16
    assert [found.entry.value for found in viewer.find(limit=5)] == [0, 1, 2, 3, 4]
    assert viewer.find(dag="hr") == []
    runs = viewer.runs_as(ANN)
    assert [run.run_id for run, _ in runs.list(limit=3)] == ["run3", "run2", "run1"]
    assert runs.list(dag_id="hr") == []
    assert [row.dag_id for row in runs.audit(limit=7)] == ["sales"] * 7
    assert runs.audit(dag_id="hr") == []


def test_small_pages_reach_the_end(mixed: Store) -> None:
    seen = Seen(mixed.backend, SALES)
    found: list[FoundRow] = []
    after, pages = None, 0
    while True:
        page = seen.send(Find(after=after, limit=1))
        found, pages, after = [*found, *page.rows], pages + 1, page.after
        if after is None:
            break
    assert len(found) == 12
    assert pages > 24


def test_the_feed_tells_of_what_may_be_seen(mixed: Store) -> None:
    seen = Seen(mixed.backend, SALES)
    start = seen.send(Feed()).position
    for dag_id in ("hr", "sales", "hr"):
        mixed.task(TaskScope(dag_id, "r0", "t")).set("page", 99)
    page = seen.send(Feed(start))
    assert [str(happened.scope) for happened in page.rows if happened.row] == ["sales/r0/t"]
    assert seen.send(Feed(page.position)).rows == ()


def test_an_event_s_source_in_another_dag_is_not_told(store: Store) -> None:
    desk = Desk(store.backend, "hr")
    desk.start("t")
    desk.begin("t")
    desk.report(desk.fence("t"), "success", events=(NewEvent("orders", None),))
    page: Events = Seen(store.backend, SALES).send(ListEvents())
    assert [(row.name, row.source) for row in page.rows] == [("orders", None)]
    assert Seen(store.backend, VIEWER).send(ListEvents()).rows[0].source == desk.scope("t")


def test_a_writer_in_another_dag_is_not_told(store: Store) -> None:
    orders = AssetScope("orders")
    by = Writer("task", 1, None, TaskScope("hr", "r1", "t"))
    store.backend.send(Commit((Part(orders, (Put("k", "1", None),)),), None, by))
    assert Seen(store.backend, SALES).send(Read(orders, None)).rows[0].writer == Writer("task", 1)
    assert Seen(store.backend, VIEWER).send(Read(orders, None)).rows[0].writer == by
    asset = Who("attempt", "t", ("sales",))
    assert visible(store.backend.send(Read(orders, None)), asset).rows[0].writer == by


def test_a_sweep_lists_what_may_be_seen(store: Store) -> None:
    def found(dag_id: str) -> FoundRow:
        return FoundRow(1, TaskScope(dag_id, "r", "t"), Row("password", '"x"', 1, 0, 1, ANN))

    reply = Swept(2, 0, False, (found("hr"), found("sales")))
    seen = visible(reply, Who("admin", "a", ("s*",)), SECRETS)
    assert [(row.scope.dag_id, row.row.text) for row in seen.rows] == [("sales", MASKED)]
    assert Seen(store.backend, Who("runner", "r", ("s*",))).send(Sweep(10)).entries == 0


def test_pruned_runs_of_other_dags_are_not_named(mixed: Store) -> None:
    reply = mixed.backend.send(PruneRuns(2**60, 1000, dry_run=True))
    assert visible(reply, SALES).runs == ()
    assert Seen(mixed.backend, Who("runner", "r")).send(PruneRuns(2**60, 1000)).runs == ()
    assert len(mixed.runs_as(ANN).list()) == 8


def test_what_is_done_to_tokens_is_for_admins(store: Store) -> None:
    store.asset("orders", writer=ANN).set("k", 1)
    store.backend.send(CreateToken(bytes(32), "viewer", "ann", ANN))

    def actions(who: Who) -> list[str]:
        return [row.action for row in Seen(store.backend, who).send(ListAudit()).rows]

    assert actions(ADMIN) == ["create token", "set"]
    for who in (VIEWER, EDITOR, Who("admin", "a", ("s*",))):
        assert actions(who) == ["set"]
