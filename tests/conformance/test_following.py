"""Who follows the feed knows what is in the store, whatever request has changed it. Contract 4.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from outlast import NotFound, deferral_requests, event_requests, people_requests, requests, run_requests, token_requests
from outlast.requests import Commit, Feed, Find, Happened, Open, Part, Put, Row
from outlast.run_requests import ExpandTask, GetRun, Item, ListRuns, NewEvent, TaskSpec
from outlast.values import AssetScope, Scope, TaskScope
from outlast.wire import WRITES
from support.clock import Clock
from support.runs import ANN, OTHER, RUNNER, SUPERVISOR, Desk, state_of
from support.verbs import Verbs

SCRIPT = TaskScope("script", "r", "t")
URI = "s3://bucket/orders"


class Follower:
    """Knows entries and runs from the feed alone; of a run it hears that it has changed, and looks at that."""

    def __init__(self, backend: Verbs, clock: Clock) -> None:
        self.backend, self.clock = backend, clock
        self.position = backend.send(Feed()).position
        self.entries: dict[tuple[Any, ...], Row] = {}
        self.runs: dict[tuple[str, str], Any] = {}

    def picture(self) -> Any:
        """Return what is known, up to now."""
        more = True
        while more:
            page = self.backend.send(Feed(self.position, 3))
            assert not page.reset
            for happened in page.rows:
                self._take(happened)
            self.position, more = page.position, page.more
        return alive(self.entries, self.clock.now), self.runs

    def _take(self, happened: Happened) -> None:
        if happened.run is not None:
            self.runs.pop(happened.run, None)
            self.runs |= run_of(self.backend, *happened.run)
            return
        assert happened.scope is not None
        assert happened.row is not None
        for place in places(happened.scope):
            self.entries.pop((*place, happened.row.name), None)
            if happened.row.text is not None:
                self.entries[(*place, happened.row.name)] = happened.row


def places(scope: Scope) -> list[tuple[Any, ...]]:
    """Return what a scope is known by: its position and its item, or each of an asset's names."""
    if isinstance(scope, TaskScope):
        known: list[int | str] = [] if scope.item is not None and scope.map_index < 0 else [scope.map_index]
        known += [] if scope.item is None else [scope.item]
        return [(scope.dag_id, scope.run_id, scope.task_id, place) for place in known]
    return [place for place in (("name", scope.name), ("uri", scope.uri)) if place[1] is not None]


def alive(entries: dict[tuple[Any, ...], Row], now: int) -> Any:
    """Return the values there are, with their revisions: expiry is no event."""
    living = {place: row for place, row in entries.items() if row.expires_at is None or row.expires_at > now}
    return {place: (row.text, row.revision) for place, row in living.items()}


def run_of(backend: Verbs, dag_id: str, run_id: str) -> dict[tuple[str, str], Any]:
    """Return a run with its task instances, without leases, and the processes that are told with them."""
    try:
        detail = backend.send(GetRun(dag_id, run_id))
    except NotFound:
        return {}
    tasks = [msgspec.structs.replace(task, lease_until=0, child=None) for task in detail.tasks]
    return {(dag_id, run_id): (msgspec.structs.replace(detail.run, lease_until=0), tasks)}


def stored(backend: Verbs, clock: Clock) -> Any:
    """Return what is in the store."""
    entries: dict[tuple[Any, ...], Row] = {}
    for assets in (False, True):
        for found in backend.send(Find(assets=assets)).rows:
            entries |= {(*place, found.row.name): found.row for place in places(found.scope)}
    runs: dict[tuple[str, str], Any] = {}
    for run, _ in backend.send(ListRuns()).runs:
        runs |= run_of(backend, run.dag_id, run.run_id)
    return alive(entries, clock.now), runs


# --- what each request needs before it ------------------------------------------------------------------------


class Stage:
    """A store with entries, a run, and what one request more needs to change something."""

    def __init__(self, store: Verbs, desk: Desk, clock: Clock) -> None:
        self.store, self.desk, self.clock = store, desk, clock

    def send(self, request: Any) -> Any:
        return self.desk.send(request)

    def put(self, scope: Scope, *names: str, expires_at: int | None = None) -> None:
        self.send(Commit((Part(scope, tuple(Put(name, f'"{name}"', expires_at) for name in names)),)))

    def with_state(self, **more: Any) -> Any:
        """Have an attempt run that has stored something; return what it carries."""
        self.desk.start(TaskSpec("extract", **more), ("load", "extract"))
        self.desk.begin("extract")
        fence = self.desk.fence("extract")
        state_of(self.store, fence).set_many({"page": 1, "rows": 2})
        return fence

    def ended(self) -> None:
        self.with_state()
        self.desk.report(self.desk.fence("extract"), "failed")
        self.send(run_requests.Resolve(self.desk.scope("load"), "upstream_failed"))
        self.desk.release("failed")


def another_origin(stage: Stage) -> Any:
    stage.send(Open(SCRIPT, 1, (), "run:1", 1_000))
    stage.put(SCRIPT, *(f"k{number}" for number in range(70)))  # more than go together
    return Open(SCRIPT, 1, (), "run:2", 2_000)


def commit_of_all_kinds(stage: Stage) -> Any:
    for name in ("counter", "gone"):
        stage.send(Commit((Part(SCRIPT, (Put(name, "1", None),)),)))
    stage.put(AssetScope("orders"), "a")
    operations = (requests.Increment("counter", 1, None), requests.Remove("gone"), Put("new", "1", None))
    return Commit((Part(SCRIPT, operations), Part(AssetScope("orders", URI), (Put("b", "1", None),))))


def sweep(stage: Stage) -> Any:
    stage.put(SCRIPT, "short", expires_at=stage.clock.now + 1)
    stage.put(SCRIPT, "long")
    stage.clock.move(days=40)
    return requests.Sweep(100)


def merge(stage: Stage) -> Any:
    stage.put(AssetScope("orders"), "a", "both")
    stage.put(AssetScope(None, URI), "b", "both")
    stage.send(Commit((Part(AssetScope("orders"), (Put("both", "1", None),)),)))
    return requests.MergeAssets("orders", URI, ANN, "name")


def unname(stage: Stage) -> Any:
    stage.put(AssetScope("orders", URI), "a", "b")
    return requests.ForgetAsset(None, URI, ANN)


def hold(stage: Stage) -> Any:
    stage.desk.start("extract")
    stage.desk.release("paused")
    return run_requests.HoldRun("nightly", "r1", OTHER, 30.0)


def release(stage: Stage) -> Any:
    stage.desk.start("extract")
    return run_requests.ReleaseRun("nightly", "r1", RUNNER, "paused")


def cancel(stage: Stage) -> Any:
    stage.with_state()
    return people_requests.CancelRun("nightly", "r1", ANN)


def delete(stage: Stage) -> Any:
    stage.ended()
    return run_requests.DeleteRun("nightly", "r1", ANN)


def prune(stage: Stage) -> Any:
    stage.ended()
    stage.clock.move(days=1)
    return run_requests.PruneRuns(stage.clock.now, 100)


def begin(stage: Stage) -> Any:
    stage.desk.start("extract")
    return run_requests.Begin(stage.desk.scope("extract"), 0, SUPERVISOR, 30.0)


def report(stage: Stage) -> Any:
    return run_requests.Report(stage.with_state(), "success", clear_state=True)


def fire(stage: Stage) -> Any:
    fence = stage.with_state()
    stage.desk.report(fence, "deferred", deferral=deferral_requests.Deferral("m.T", "{}", "done"))
    return deferral_requests.Fire(fence.scope_id, fence.attempt, "{}")


def expand_again(stage: Stage) -> Any:
    """Of three items one comes to another position, and one is there no more."""
    desk = stage.desk
    desk.start("extract", TaskSpec("copy", upstream=("extract",), mapped=True))
    desk.ran("extract")
    items = [Item(key, key) for key in ("a", "b", "c")]
    stage.send(ExpandTask("nightly", "r1", "copy", tuple(items)))
    for item in items:
        stage.put(TaskScope("nightly", "r1", "copy", item=item.key), "page")
    stage.send(people_requests.ClearTasks("nightly", "r1", (("extract", None),), ANN, downstream=True))
    desk.ran("extract")
    return ExpandTask("nightly", "r1", "copy", (items[0], items[2]))


def resolve(stage: Stage) -> Any:
    stage.desk.start("extract")
    return run_requests.Resolve(stage.desk.scope("extract"), "skipped")


def note_aftermath(stage: Stage) -> Any:
    stage.ended()
    return run_requests.NoteAftermath(stage.desk.scope("extract"), 1)


def clear(stage: Stage) -> Any:
    stage.ended()
    return people_requests.ClearTasks("nightly", "r1", (("extract", None),), ANN, discard=True)


def mark(stage: Stage) -> Any:
    stage.with_state(clear_on_success=True)
    return people_requests.MarkTask(stage.desk.scope("extract"), "success", ANN)


def revoke(stage: Stage) -> Any:
    made = stage.send(token_requests.CreateToken(b"1" * 32, "viewer", "one", ANN))
    return token_requests.RevokeToken(made.id, ANN)


#: A request of every type that writes, after what there has to be before it.
SCENES: dict[type, Callable[[Stage], Any]] = {
    Open: another_origin,
    Commit: commit_of_all_kinds,
    requests.Sweep: sweep,
    requests.MergeAssets: merge,
    requests.ForgetAsset: unname,
    run_requests.StartRun: lambda stage: run_requests.StartRun(
        "nightly", "r1", (TaskSpec("extract"),), "{}", "/dags/nightly.py", "digest", 0, RUNNER, 30.0
    ),
    run_requests.HoldRun: hold,
    run_requests.ReleaseRun: release,
    people_requests.CancelRun: cancel,
    run_requests.DeleteRun: delete,
    run_requests.PruneRuns: prune,
    run_requests.Begin: begin,
    run_requests.Renew: lambda stage: run_requests.Renew(stage.with_state(), 60.0, SUPERVISOR),
    run_requests.Report: report,
    deferral_requests.Fire: fire,
    ExpandTask: expand_again,
    run_requests.Resolve: resolve,
    run_requests.NoteAftermath: note_aftermath,
    people_requests.ClearTasks: clear,
    people_requests.MarkTask: mark,
    run_requests.PushResult: lambda stage: run_requests.PushResult(stage.with_state(), "rows", "1"),
    event_requests.AddEvents: lambda stage: event_requests.AddEvents((NewEvent("orders", URI),)),
    event_requests.ConsumedUntil: lambda stage: event_requests.ConsumedUntil("nightly"),
    event_requests.HoldWatchers: lambda stage: event_requests.HoldWatchers(("digest",), RUNNER, 30.0),
    token_requests.CreateToken: lambda stage: token_requests.CreateToken(b"1" * 32, "viewer", "one", ANN),
    token_requests.RevokeToken: revoke,
    token_requests.MakeSecret: lambda stage: token_requests.MakeSecret(ANN),
}
#: Those after which entries, runs and task instances are as they were before.
UNSEEN = {
    requests.Sweep,
    run_requests.Renew,
    run_requests.PushResult,
    event_requests.AddEvents,
    event_requests.ConsumedUntil,
    event_requests.HoldWatchers,
    token_requests.CreateToken,
    token_requests.RevokeToken,
    token_requests.MakeSecret,
}


@pytest.fixture
def follower(store: Verbs, clock: Clock) -> Follower:
    return Follower(Verbs(store.real.backend, store.runner), clock)


@pytest.mark.parametrize("kind", sorted(WRITES, key=str), ids=lambda kind: str(kind.__name__))
def test_what_a_request_changes_is_told(
    store: Verbs, desk: Desk, clock: Clock, follower: Follower, kind: type[Any]
) -> None:
    stage = Stage(store, desk, clock)
    request = SCENES[kind](stage)
    before = follower.picture()
    assert (type(request), before) == (kind, stored(follower.backend, clock))
    before = tuple(map(dict, before))
    stage.send(request)
    after = stored(follower.backend, clock)
    assert follower.picture() == after
    assert (after == before) is (kind in UNSEEN)


def test_an_asset_that_is_removed_has_nothing_left_to_tell(
    store: Verbs, desk: Desk, clock: Clock, follower: Follower
) -> None:
    stage = Stage(store, desk, clock)
    stage.put(AssetScope("orders", URI), "a")
    store.asset("orders").clear()
    stage.send(requests.ForgetAsset("orders", None, ANN, whole=True))
    assert follower.picture() == stored(follower.backend, clock) == ({}, {})


def test_an_asset_is_told_under_its_other_name_when_it_gets_that(
    store: Verbs, desk: Desk, clock: Clock, follower: Follower
) -> None:
    """Once, whether by a write, by a write on nothing that was there, or by a person."""
    stage = Stage(store, desk, clock)
    for name in ("a", "b", "c"):
        stage.put(AssetScope(name), "x", "y")
    stage.put(AssetScope("a", "a://"), "x")
    stage.send(Commit((Part(AssetScope("b", "b://"), (requests.Remove("none"), Put("z", "1", None))),), commit_id="id"))
    stage.send(requests.MergeAssets("c", "c://", ANN))
    known = follower.picture()
    assert known == stored(follower.backend, clock)
    assert {place[:2] for place in known[0]} == {
        (how, f"{n}{end}") for how, end in (("name", ""), ("uri", "://")) for n in "abc"
    }


def test_who_was_cut_off_among_the_keys_of_a_removed_scope_goes_on_behind_them(store: Verbs, desk: Desk) -> None:
    stage, backend = Stage(store, desk, Clock()), Verbs(store.real.backend, store.runner)
    request = another_origin(stage)
    start = backend.send(Feed()).position
    stage.send(request)
    names = sorted(f"k{number}" for number in range(70))
    page = backend.send(Feed(start))
    assert [(happened.scope, happened.row.name, happened.row.text) for happened in page.rows] == [
        (SCRIPT, name, None) for name in names
    ]
    for number in (0, 63, 64, 69):
        rest = backend.send(Feed(page.rows[number].position))
        assert [happened.row.name for happened in rest.rows] == names[number + 1 :]
