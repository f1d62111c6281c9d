"""Who may do what: every request type for every role, narrowed to DAGs and to attempts; attacks get nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

import outlast
from outlast import InvalidValue, NotFound, Store, Unauthorized, wire
from outlast import deferral_requests as deferral
from outlast import event_requests as events
from outlast import people_requests as people
from outlast import requests as state
from outlast import run_requests as runs
from outlast import token_requests as access
from outlast.backends.answers import READS, WRITES
from outlast.requests import Asked, Commit, Fence, Once, Open, Opened, Operation, Part, Put, Read
from outlast.server.claims import LONGEST_LEASE
from outlast.server.identity import Role, Who
from outlast.server.rights import RULES, allowed
from outlast.server.wording import DOINGS
from outlast.values import AssetScope, TaskScope, Writer
from support.asking import HIS, LIAR, MINE, ON_VICTIM, OWN, SET, VICTIM, named, on
from support.runs import SUPERVISOR, Desk

MODULES = (state, runs, deferral, events, people, access)
ORDERS, ROWS = AssetScope("orders"), AssetScope("rows", "s3://rows")
ATTEMPT = Who("attempt", "sales/r1/extract attempt 3", ("sales",), 1, OWN, (ORDERS, ROWS))

ROLES: tuple[Role, ...] = ("viewer", "editor", "admin", "worker", "runner", "attempt")
_LOOK = {"Read", "History", "Changes", "Find", "ListScopes", "Feed", "GetRun", "ListRuns", "ListAttempts"}
_LOOK |= {"Count", "ListDags", "PullResults", "ListEvents", "ListAudit"}
_EDIT = {"Commit", "MergeAssets", "ForgetAsset", "CancelRun", "ClearTasks", "MarkTask", "AddEvents", "NoteAftermath"}
_RUN = {"Commit", "Sweep", "StartRun", "HoldRun", "ReleaseRun", "PruneRuns", "Begin", "Renew", "Report", "GetDeferral"}
_RUN |= {"ListDeferred", "Fire", "ExpandTask", "Resolve", "NoteAftermath", "PushResult", "AddEvents", "ConsumedUntil"}
_RUN |= {"HoldWatchers"}
_RULE = {"DeleteRun", "Inspect", "CreateToken", "ListTokens", "RevokeToken", "MakeSecret"}
_ATTEMPT = {"Read", "Count", "Commit", "History", "Changes", "GetDeferral", "PushResult", "PullResults", "Renew"}
_ATTEMPT |= {"Report", "NoteAftermath"}
#: What each role may ask at all: the sentence "Who may do what", request by request.
MAY: dict[str, set[str]] = {
    "viewer": _LOOK,
    "editor": _LOOK | _EDIT,
    "admin": _LOOK | _EDIT | _RUN | _RULE | {"Open"},
    "worker": {"Open"},
    "runner": _LOOK | _RUN | {"Open"},
    "attempt": _ATTEMPT,
}
#: What only the server itself asks.
SERVERS = {"FindToken", "TouchToken", "ListSecrets"}


#: Lists, whose replies are filtered, and what concerns no DAG.
LISTS = {
    "Find",
    "ListDags",
    "ListScopes",
    "Feed",
    "Sweep",
    "ListRuns",
    "ListDeferred",
    "ListEvents",
    "HoldWatchers",
    "ListAudit",
}


# --- The table -------------------------------------------------------------------------------------------------


def test_every_request_there_is_stands_in_the_table() -> None:
    found = {thing for module in MODULES for thing in vars(module).values() if inspect.isclass(thing)}
    asked = {kind for kind in found if issubclass(kind, Asked) and kind.__struct_config__.tag is not None}
    asked -= set(get_args(Operation))
    assert asked == set(RULES)
    assert (set(READS) | set(WRITES) | set(wire.REPLIES)) - {Once} <= set(RULES)  # Once is what is in it
    assert {type(request) for request in ON_VICTIM.values()} == set(RULES)


def test_a_request_that_is_not_in_the_table_is_refused() -> None:
    class Surprise(Asked, frozen=True, tag="surprise"):
        pass

    for request in (Surprise(), 1, None, "read"):
        with pytest.raises(Unauthorized):
            allowed(request, Who("admin", "ann"))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_what_it_is_for_and_nothing_else(role: Role) -> None:
    who = ATTEMPT if role == "attempt" else Who(role, "ann")
    own = {named(request): request for request in on(MINE, OWN)}
    if role == "runner":
        own["Commit"] = Commit((Part(ORDERS, SET),), None, Writer("trigger", name="t"))
    if role in ("viewer", "editor"):
        own = {name: without_fence(request) for name, request in own.items()}
    may = set()
    for name, request in own.items():
        try:
            allowed(request, who)
        except Unauthorized:
            continue
        may.add(name)
    assert may == MAY[role]


def without_fence(request: Any) -> Any:
    is_state = isinstance(request, Read | Commit | state.Count | state.History | state.Changes)
    return msgspec.structs.replace(request, fence=None) if is_state else request


def test_runs_are_counted_only_among_dags_that_are_seen() -> None:
    some, every = Who("viewer", "ann", ("sales", "s*")), Who("viewer", "ann")
    for request in (
        runs.ListRuns(total=True),
        runs.ListRuns("hr", total=True),
        runs.ListRuns(among=("sales", "hr"), total=True),
    ):
        assert allowed(request, every) == request
        with pytest.raises((NotFound, Unauthorized)):
            allowed(request, some)
    for request in (runs.ListRuns("sales", total=True), runs.ListRuns(among=("sales", "stock"), total=True)):
        assert allowed(request, some) == request


@pytest.mark.parametrize("name", sorted(SERVERS))
@pytest.mark.parametrize("role", ROLES)
def test_nobody_is_told_secrets_or_looks_up_tokens(role: Role, name: str) -> None:
    with pytest.raises(Unauthorized):
        allowed(ON_VICTIM[name], Who(role, "ann"))


@pytest.mark.parametrize(
    ("role", "request_", "message"),
    [
        (
            "editor",
            "DeleteRun",
            "deleting a run is not for an editor's token; it takes an admin's: "
            "`outlast token create --role admin` makes one",
        ),
        (
            "worker",
            "Read",
            "reading state is not for a worker's token; it takes a viewer's, editor's, runner's or admin's: "
            "`outlast token create --role viewer` makes one; or open an attempt first (attempt=…)",
        ),
        (
            "viewer",
            "Open",
            "opening a task scope is not for a viewer's token; it takes a worker's, runner's or admin's: "
            "`outlast token create --role worker` makes one",
        ),
        (
            "runner",
            "Commit",
            "writing this state is not for a runner's token; it takes an editor's or admin's: "
            "`outlast token create --role editor` makes one",
        ),
        ("admin", "FindToken", "looking up a token is not for an admin's token"),
    ],
)
def test_a_refusal_says_which_token_it_takes(role: Role, request_: str, message: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        allowed(without_fence(ON_VICTIM[request_]), Who(role, "ann"))
    assert refused.value.message == message


@pytest.mark.parametrize("name", sorted(set(ON_VICTIM) - SERVERS))
@pytest.mark.parametrize("role", sorted(set(ROLES) - {"attempt"}))
def test_the_token_a_refusal_names_may(role: Role, name: str) -> None:
    request = without_fence(ON_VICTIM[name])
    for message in filter(None, (refusal(request, Who(role, "ann", dags)) for dags in (("*",), ("hr",)))):
        [named] = re.findall("`outlast token create --role ([a-z]+)`", message)
        allowed(request, Who(named, "ann"))


def refusal(request: Any, who: Who) -> str | None:
    try:
        allowed(request, who)
    except Unauthorized as error:
        return error.message
    except NotFound:
        pass
    return None


def test_every_request_is_told_of_in_words() -> None:
    assert set(DOINGS) == set(RULES)
    assert len(set(DOINGS.values())) == len(DOINGS)
    assert all(words.split()[0].endswith("ing") for words in DOINGS.values())


# --- DAG patterns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(ON_VICTIM) - LISTS - SERVERS))
@pytest.mark.parametrize("role", ["viewer", "editor", "admin", "worker", "runner"])
def test_what_is_of_another_dag_is_not_there(role: Role, name: str) -> None:
    who, request = Who(role, "ann", ("sales", "s?les*")), without_fence(ON_VICTIM[name])
    if role == "runner" and name in ("PruneRuns", "AddEvents"):  # harmless, as another test says; and of no DAG
        allowed(request, who)
        return
    with pytest.raises((NotFound, Unauthorized)) as refused:
        allowed(request, who)
    everything = {"MergeAssets", "ForgetAsset", "Inspect", "AddEvents", "PruneRuns"} | {
        n for n in MAY["admin"] if "Token" in n
    }
    if name in MAY[role] - everything - {"MakeSecret"} and (role, name) != ("runner", "Commit"):
        assert refused.type is NotFound


@pytest.mark.parametrize(
    "name", ["MergeAssets", "ForgetAsset", "AddEvents", "CreateToken", "RevokeToken", "MakeSecret", "PruneRuns"]
)
def test_what_concerns_every_dag_takes_a_token_for_every_dag(name: str) -> None:
    with pytest.raises(Unauthorized, match="every DAG"):
        allowed(ON_VICTIM[name], Who("admin", "ann", ("*s*", "hr")))
    allowed(ON_VICTIM[name], Who("admin", "ann", ("hr", "*")))


@pytest.mark.parametrize(
    ("pattern", "dag_id", "seen"),
    [
        ("*", "hr", True),
        ("hr", "hr", True),
        ("hr", "HR", False),
        ("h?", "hr", True),
        ("h", "hr", False),
        ("*r", "hr", True),
        ("[a]", "a", True),
        ("[a]", "[a]", True),
        ("", "hr", False),
    ],
)
def test_dag_patterns(pattern: str, dag_id: str, seen: bool) -> None:
    assert Who("viewer", "ann", (pattern,)).may_see(dag_id) is seen
    assert not Who("viewer", "ann", ()).may_see(dag_id)


def test_a_runner_of_some_dags_fires_only_theirs() -> None:
    who = Who("runner", "box", ("sales",))
    with pytest.raises(Unauthorized):
        allowed(deferral.Fire(2, 1, "{}"), who)
    with pytest.raises(NotFound):
        allowed(deferral.Fire(2, 1, "{}", dag_id="hr"), who)
    allowed(deferral.Fire(2, 1, "{}", dag_id="sales"), who)


def test_firing_under_a_false_dag_does_nothing(store: Store) -> None:
    desk = Desk(store.backend, "hr")
    desk.start("wait")
    task = store.backend.send(runs.Begin(TaskScope("hr", "r1", "wait"), 0, SUPERVISOR, 30.0))
    fence = Fence(task.scope, task.attempt, task.scope_id)
    waits = deferral.Deferral("m.T", "{}", "done")
    store.backend.send(runs.Report(fence, "deferred", deferral=waits))
    for dag_id, after in (("sales", "deferred"), ("hr", "scheduled")):
        store.backend.send(deferral.Fire(task.scope_id, 1, '{"event": 1}', dag_id=dag_id))
        assert store.backend.send(runs.ListAttempts(task.scope)).task.state == after


def test_a_runner_prunes_nothing_of_a_server_s() -> None:
    pruned = allowed(runs.PruneRuns(2**60, 1000), Who("runner", "box"))
    assert (pruned.limit, pruned.dry_run, pruned.writer) == (0, True, None)


def test_who_starts_a_run_of_another_dag_is_told_what_their_token_is_for() -> None:
    who = Who("runner", "box", ("n4*", "etl"))
    with pytest.raises(NotFound) as refused:
        allowed(ON_VICTIM["StartRun"], who)
    assert refused.value.message == (
        "this token is for DAGs n4*, etl, and hr is none of them, so it starts no run of it; "
        "`outlast token create --role runner --dag PATTERN` makes one that does"
    )
    with pytest.raises(NotFound, match=r"^there is no run hr/r9$"):
        allowed(ON_VICTIM["GetRun"], who)


ERASING: tuple[Operation, ...] = (state.RemoveAll(history=True),)


@pytest.mark.parametrize("role", ["editor", "runner", "triggers"])
@pytest.mark.parametrize("scope", [MINE, ORDERS], ids=str)
def test_nobody_but_an_admin_erases_history_from_outside(role: Role, scope: Any) -> None:
    who = Who(role, "ann")
    if role == "editor":
        allowed(Commit((Part(scope, (state.RemoveAll(),)),)), who)
    allowed(Commit((Part(scope, ERASING),)), Who("admin", "ann"))
    with pytest.raises(Unauthorized):
        allowed(Commit((Part(scope, ERASING),)), who)


def test_an_attempt_erases_its_own_task_s_history_and_no_asset_s() -> None:
    for who in (ATTEMPT, Who("runner", "box")):
        commit = Commit((Part(MINE, ERASING),), OWN)
        assert allowed(commit, who).parts == commit.parts
        with pytest.raises(Unauthorized, match="where it erases history; leave that out"):
            allowed(Commit((Part(MINE, ERASING), Part(ORDERS, ERASING)), OWN), who)


def test_the_whole_of_an_asset_is_an_admin_s_to_take_away() -> None:
    whole = state.ForgetAsset("orders", None, LIAR, whole=True)
    with pytest.raises(Unauthorized, match="with its state and history; it takes an admin's"):
        allowed(whole, Who("editor", "ann"))
    assert allowed(whole, Who("admin", "ann")).whole
    assert not allowed(state.ForgetAsset("orders", None, LIAR), Who("editor", "ann")).whole


# --- Who is recorded -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["editor", "admin"])
@pytest.mark.parametrize("name", ["MergeAssets", "ForgetAsset", "CancelRun", "ClearTasks", "MarkTask", "Commit"])
def test_people_are_audited_under_their_own_name(role: Role, name: str) -> None:
    request = without_fence(ON_VICTIM[name])
    assert allowed(request, Who(role, "ann")).writer == Writer("person", name="ann")


@pytest.mark.parametrize("kind", ["task", "trigger", "library", "person"])
def test_an_editor_writes_as_a_person_whatever_the_request_says(kind: Any) -> None:
    commit = Commit((Part(MINE, SET),), None, Writer(kind, 7, "x", MINE))
    assert allowed(commit, Who("editor", "ann")).writer == Writer("person", name="ann")


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        (Writer(), Writer()),
        (Writer("trigger", name="t"), Writer("trigger", name="t")),
        (Writer("task", 7, None, MINE), Writer("person", name="ann")),
        (LIAR, Writer("person", name="ann")),
    ],
)
def test_an_admin_s_program_may_be_one(given: Writer, recorded: Writer) -> None:
    assert allowed(Commit((Part(MINE, SET),), None, given), Who("admin", "ann")).writer == recorded


def test_a_runner_writes_assets_for_its_triggers_and_no_task_s_state() -> None:
    who = Who("runner", "box")
    commit = allowed(Commit((Part(ORDERS, SET),), None, Writer("person", name="boss")), who)
    assert commit.writer == Writer("trigger", name="boss")
    for parts in ((Part(MINE, SET),), (Part(ORDERS, SET), Part(MINE, SET))):
        with pytest.raises(Unauthorized):
            allowed(Commit(parts, None, Writer("trigger")), who)


# --- A fence is believed of an attempt's token only ----------------------------------------------------------------


@pytest.mark.parametrize("request_", [Read(MINE, None, fence=OWN), state.History(MINE, "k", OWN)], ids=named)
@pytest.mark.parametrize(
    "who",
    [
        Who("viewer", "ann"),
        Who("editor", "ann"),
        Who("admin", "ann", ("sales",)),
        Who("runner", "box", ("sales",)),
    ],
    ids=lambda who: who.role,
)
def test_a_fence_would_reach_a_scope_of_another_dag_by_its_id(request_: Any, who: Who) -> None:
    with pytest.raises(Unauthorized, match="use the attempt's own"):
        allowed(request_, who)


def test_a_fenced_commit_stays_in_its_task() -> None:
    with pytest.raises(NotFound):
        allowed(Commit((Part(VICTIM, SET),), OWN), Who("runner", "box"))
    commit = allowed(Commit((Part(MINE, SET), Part(ORDERS, SET)), OWN, LIAR), Who("runner", "box"))
    assert commit.writer == Writer("task", 3, None, MINE)


# --- What an attempt says of itself, and what is due after it ---------------------------------------------------------

AFTER = msgspec.structs.replace(ATTEMPT, over=True)


def test_an_attempt_reports_updates_of_its_own_outlets_only() -> None:
    who = msgspec.structs.replace(ATTEMPT, outlets=(("rows", "s3://rows"),))
    report = runs.Report(OWN, "success", events=(runs.NewEvent("rows", "s3://rows"),))
    assert allowed(report, who) == report
    for event in (runs.NewEvent("orders", None), runs.NewEvent("rows", None), runs.NewEvent("rows", "s3://other")):
        with pytest.raises(NotFound, match="no outlet"):
            allowed(msgspec.structs.replace(report, events=(event,)), who)
    with pytest.raises(NotFound):
        allowed(report, ATTEMPT)
    assert allowed(report, msgspec.structs.replace(ATTEMPT, outlets=None)) == report


def test_what_is_due_after_an_attempt_looks_and_writes_as_long_as_it_is_the_newest() -> None:
    assert allowed(Read(MINE, None), AFTER).fence == OWN
    assert allowed(Read(MINE, None), ATTEMPT).fence == OWN
    assert allowed(Read(MINE, None, fence=HIS), AFTER).fence == OWN
    assert allowed(Commit((Part(MINE, SET),)), AFTER).fence == OWN
    assert allowed(runs.ListAttempts(MINE), AFTER) == runs.ListAttempts(MINE)
    with pytest.raises(Unauthorized, match="while it runs"):
        allowed(runs.ListAttempts(MINE), ATTEMPT)


@pytest.mark.parametrize(
    "request_", [runs.Renew(OWN, 9.0), runs.Report(OWN, "success"), deferral.GetDeferral(OWN)], ids=named
)
def test_what_is_due_after_an_attempt_does_not_speak_for_it(request_: Any) -> None:
    with pytest.raises(Unauthorized, match="due after it"):
        allowed(request_, AFTER)


@pytest.mark.parametrize("who", [ATTEMPT, AFTER], ids=["attempt", "after"])
def test_an_attempt_notes_its_own_aftermath_only(who: Who) -> None:
    assert allowed(runs.NoteAftermath(MINE, 9), who) == runs.NoteAftermath(MINE, 3, assets=(ORDERS, ROWS))
    with pytest.raises(NotFound):
        allowed(runs.NoteAftermath(VICTIM, 3), who)


# --- Attacks from an attempt's token -------------------------------------------------------------------------------

#: Requests that a token's own fence takes the place of another's in.
FORCED = {"Renew", "Report", "GetDeferral", "PushResult"}


@pytest.mark.parametrize("name", sorted(ON_VICTIM))
def test_an_attempt_gets_at_nothing_of_another_scope(name: str) -> None:
    request = ON_VICTIM[name]
    if name in FORCED:
        assert allowed(request, ATTEMPT).fence == OWN
        return
    with pytest.raises((NotFound, Unauthorized)):
        allowed(request, ATTEMPT)
    with pytest.raises((NotFound, Unauthorized)):
        allowed(Once("c", request), ATTEMPT)


@pytest.mark.parametrize("fence", [None, HIS, Fence(MINE, 4, 1), Fence(MINE, 2, 1), Fence(MINE, 3, 2)], ids=str)
@pytest.mark.parametrize(
    "request_",
    [Read(MINE, None), state.History(MINE, "k"), state.Changes(MINE, None), Commit((Part(MINE, SET),))],
    ids=named,
)
def test_the_token_s_attempt_wins_over_the_request_s(request_: Any, fence: Fence | None) -> None:
    assert allowed(msgspec.structs.replace(request_, fence=fence), ATTEMPT).fence == OWN


@pytest.mark.parametrize("writer", [Writer(), LIAR, Writer("task", 9, None, VICTIM), Writer("trigger")], ids=str)
def test_an_attempt_writes_as_itself(writer: Writer) -> None:
    commit = allowed(Commit((Part(MINE, SET), Part(ORDERS, SET)), None, writer), ATTEMPT)
    assert commit.writer == Writer("task", 3, None, MINE)


@pytest.mark.parametrize(
    "asset",
    [
        AssetScope("salaries"),
        AssetScope(uri="s3://salaries"),
        AssetScope(uri="orders"),
        AssetScope("orders", "s3://salaries"),
        AssetScope("rows", "s3://other"),
        AssetScope("other", "s3://rows"),
        AssetScope(),
    ],
    ids=repr,
)
def test_an_attempt_reaches_its_own_assets_only(asset: AssetScope) -> None:
    for request in (Read(asset, None), Commit((Part(MINE, SET), Part(asset, SET)))):
        with pytest.raises(NotFound):
            allowed(request, ATTEMPT)


@pytest.mark.parametrize("asset", [ORDERS, ROWS, AssetScope("rows"), AssetScope(uri="s3://rows")], ids=repr)
def test_an_attempt_reaches_its_inlets_and_outlets_by_any_of_their_names(asset: AssetScope) -> None:
    assert allowed(Read(asset, None), ATTEMPT) == Read(asset, None, fence=OWN)


@pytest.mark.parametrize(
    "scope",
    [
        TaskScope("sales", "r1", "extract", 0),
        TaskScope("sales", "r2", "extract"),
        TaskScope("sales", "r1", "load"),
        TaskScope("sales", "r1", "extract", -1, "eu"),
    ],
    ids=str,
)
def test_an_attempt_does_not_reach_its_neighbours(scope: TaskScope) -> None:
    for request in (Read(scope, None), Commit((Part(scope, SET),)), Commit((Part(MINE, SET), Part(scope, SET)))):
        with pytest.raises(NotFound):
            allowed(request, ATTEMPT)


def test_an_item_s_position_means_the_item_of_the_token() -> None:
    item = TaskScope("sales", "r1", "extract", 4, "eu")
    who = msgspec.structs.replace(ATTEMPT, fence=Fence(item, 3, 1))
    assert allowed(Read(TaskScope("sales", "r1", "extract", 4), None), who).scope == item
    with pytest.raises(NotFound):
        allowed(Read(TaskScope("sales", "r1", "extract", 4, "us"), None), who)


def test_an_attempt_pulls_results_of_its_own_run() -> None:
    own = runs.PullResults("sales", "r1", ("load",), "return_value")
    assert allowed(own, ATTEMPT) == own
    with pytest.raises(NotFound):
        allowed(runs.PullResults("sales", "r2", ("load",), "return_value"), ATTEMPT)


def test_an_attempt_cannot_lease_itself_for_ever() -> None:
    assert allowed(runs.Renew(OWN, 1e18), ATTEMPT).lease == LONGEST_LEASE == 86_400
    assert allowed(runs.Renew(OWN, 30.0), ATTEMPT).lease == 30.0


def test_an_attempt_s_token_without_an_attempt_is_none() -> None:
    with pytest.raises(Unauthorized):
        allowed(Read(MINE, None), Who("attempt", "x"))


@pytest.fixture
def store() -> Iterator[Store]:
    with outlast.connect(":memory:") as store:
        yield store


def test_an_older_attempt_and_another_task_get_nothing_of_a_real_store(store: Store) -> None:
    pay: Opened = store.backend.send(Open(VICTIM, None))
    store.task(VICTIM).set("salary", 100)
    old: Opened = store.backend.send(Open(MINE, None))
    store.backend.send(Open(MINE, None))
    older = Who("attempt", "older", fence=Fence(MINE, old.attempt, old.scope_id))
    lies = (None, Fence(MINE, 2, old.scope_id), Fence(VICTIM, 1, pay.scope_id), Fence(MINE, 1, pay.scope_id))
    for lie in lies:
        for request in (Read(MINE, None, fence=lie), Commit((Part(MINE, SET),), lie)):
            with pytest.raises(outlast.StaleAttempt):
                store.backend.send(allowed(request, older))
    assert store.task(VICTIM).items() == [("salary", 100)]
    assert store.task(MINE).items() == []


# --- Masks and repetitions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation", [Put("db.password", '"***"', None), state.PutDefault("db.password", '"***"', None)]
)
def test_a_mask_is_not_written_over_a_secret(operation: Any) -> None:
    commit = Commit((Part(MINE, (operation,)),))
    for role in ("editor", "admin"):
        with pytest.raises(InvalidValue, match="is the mask of its secret value"):
            allowed(commit, Who(role, "ann"), ("*.password",))
        allowed(commit, Who(role, "ann"), ("other",))
    allowed(commit, ATTEMPT, ("*.password",))  # it has seen the value itself


def test_a_request_sent_once_is_narrowed_like_any_other() -> None:
    once = allowed(Once("c", Read(MINE, None)), ATTEMPT)
    assert once == Once("c", Read(MINE, None, fence=OWN))
    with pytest.raises(Unauthorized):
        allowed(Once("c", Once("d", Read(MINE, None))), Who("admin", "ann"))
