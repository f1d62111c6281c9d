"""What comes over the wire is held to what it means: numbers, moments and names that would harm others are refused."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlast import InvalidKey, InvalidValue, wire
from outlast import deferral_requests as deferral
from outlast import event_requests as events
from outlast import requests as state
from outlast import run_requests as runs
from outlast import token_requests as access
from outlast.people_requests import ListAudit
from outlast.requests import Check, Commit, Fence, Increment, Open, Part, Put, PutDefault, Read, Sweep
from outlast.server.checking import checked
from outlast.values import LAST_MOMENT, AssetScope, TaskScope, Writer
from support.public import V1, V2, Door, open_door
from support.runs import ANN, RUNNER, SUPERVISOR

SCOPE = TaskScope("etl", "r1", "load")
FENCE = Fence(SCOPE, 1, 1)
ORDERS = AssetScope("orders")
START = runs.StartRun("etl", "r1", (runs.TaskSpec("t"),), "{}", "f", "d", 0, RUNNER, 30.0)
WAIT = deferral.Deferral("m.T", "{}", "done", timeout=30.0)

#: Numbers below nothing: each would turn a limit, an age or a claim into its opposite, or mean nothing.
BELOW_NOTHING: list[Any] = [
    Sweep(100, older_than=-1),
    Sweep(-1),
    Read(SCOPE, None, limit=-1),
    Read(SCOPE, None, offset=-1),
    state.Find(limit=-1),
    state.ListScopes(limit=-1),
    state.Feed(limit=-1),
    runs.ListRuns(limit=-1),
    runs.ListRuns(offset=-1),
    runs.ListRuns(due=-1),
    runs.ListDags(limit=-1),
    events.ListEvents(limit=-1),
    access.ListTokens(limit=-1),
    ListAudit(limit=-1),
    runs.PruneRuns(0, -1),
    events.ConsumedUntil("etl", passed_over=-1),
    Open(SCOPE, -5),
    msgspec.structs.replace(START, lease=-0.5),
    msgspec.structs.replace(START, holder=runs.ProcessRef("here", -1, "monday")),
    runs.HoldRun("etl", "r1", RUNNER, -1.0),
    runs.Begin(SCOPE, 0, SUPERVISOR, -1.0),
    runs.Renew(FENCE, -1.0),
    runs.Renew(msgspec.structs.replace(FENCE, attempt=-1), 30.0),
    events.HoldWatchers(("w",), RUNNER, -1.0),
    runs.Report(FENCE, "failed", retries=-1),
    runs.Report(FENCE, "failed", crash_retries=-1),
    runs.Report(FENCE, "deferred", deferral=msgspec.structs.replace(WAIT, timeout=-1.0)),
    runs.NoteAftermath(SCOPE, -1),
    deferral.Fire(1, -1, "{}"),
    deferral.Fire(1, 1, "{}", number=-1),
]

#: Moments nobody could be shown, which would be kept for every list to fail over.
NEVER: list[Any] = [
    msgspec.structs.replace(START, logical_date=LAST_MOMENT + 1),
    runs.Report(FENCE, "failed", retries=1, retry_at=2**62),
    Open(SCOPE, None, (), "try", 2**62),
    Commit((), None, sent_at=2**62),
    access.CreateToken(bytes(32), "viewer", "ann", ANN, expires_at=2**62),
]


@pytest.mark.parametrize("request_", BELOW_NOTHING, ids=str)
def test_a_number_below_nothing_is_refused(request_: Any) -> None:
    with pytest.raises(InvalidValue, match="it is 0 or more"):
        checked(request_)


@pytest.mark.parametrize("request_", NEVER, ids=str)
def test_a_moment_that_cannot_be_shown_is_refused(request_: Any) -> None:
    with pytest.raises(InvalidValue, match="is not a moment in years 1 to 9999"):
        checked(request_)


@pytest.mark.parametrize("seconds", [1e11, 1e300, float("inf"), float("nan")])
def test_nobody_waits_for_ever(seconds: float) -> None:
    late = msgspec.structs.replace(WAIT, timeout=seconds)
    with pytest.raises(InvalidValue, match="timeout is"):
        checked(runs.Report(FENCE, "deferred", deferral=late))
    checked(runs.Report(FENCE, "deferred", deferral=WAIT))


#: Numbers that may be anything: places in lists and ids, which are found or not, and what is added.
ANY = {"after", "before", "id", "scope_id", "revision", "by", "runs", "map_indexes", "tasks", "found", "ended_before"}


def test_every_number_that_can_be_sent_has_its_bounds() -> None:
    from outlast.server.checking import _MOMENTS, _NOT_NEGATIVE

    found = {name for kind in wire.REPLIES for name in numbers_of(kind)}
    assert found - _NOT_NEGATIVE - _MOMENTS == ANY | {"map_index", "events"}
    assert found >= _NOT_NEGATIVE | _MOMENTS


def numbers_of(kind: Any) -> Iterator[str]:
    """Yield the names of the fields with numbers in them, of a request and of all that it is made of."""
    for field in msgspec.structs.fields(kind):
        for part in parts_of(field.type):
            if part in (int, float):
                yield field.name
            elif isinstance(part, type) and issubclass(part, msgspec.Struct) and part is not Fence:
                yield from numbers_of(part)
            elif part is Fence:
                yield from ("attempt", "scope_id")


def parts_of(kind: Any) -> Iterator[Any]:
    inside = typing.get_args(kind)
    if not inside or typing.get_origin(kind) is typing.Literal:
        yield kind
    for each in inside if typing.get_origin(kind) is not typing.Literal else ():
        yield from parts_of(each)


# --- Texts -------------------------------------------------------------------------------------------------------

FORGED = "x\n2026-11-30 05:00:00 INFO serving everything"


@pytest.mark.parametrize(
    "request_",
    [
        Commit((), None, Writer("trigger", name=FORGED)),
        runs.PruneRuns(0, 1, writer=Writer("person", name=FORGED)),
        events.AddEvents((runs.NewEvent(FORGED, None),)),
        events.AddEvents((runs.NewEvent(None, FORGED),)),
        runs.Report(FENCE, "success", events=(runs.NewEvent(FORGED, None),)),
        state.MergeAssets("orders", FORGED, ANN),
        state.ForgetAsset(FORGED, None, ANN),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_name_is_one_line(request_: Any) -> None:
    with pytest.raises(InvalidKey, match=r"control character U\+000A"):
        checked(request_)


@pytest.mark.parametrize(
    "operation", [Put("k", "1", 2**50), PutDefault("k", "1", 2**50), Increment("k", 1, 2**50)], ids=str
)
def test_an_asset_s_entry_gets_no_expiry(operation: Any) -> None:
    with pytest.raises(InvalidValue, match="an asset's entries do not expire"):
        checked(Commit((Part(SCOPE, (operation,)), Part(ORDERS, (operation,)))))
    checked(Commit((Part(SCOPE, (operation,)), Part(ORDERS, (Put("k", "1", None), Check("k", 1))))))


# --- Through the door --------------------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(tmp_path) as door:
        door.task()
        yield door


def call(door: Door, request: Any) -> int:
    return door.post("/execution/call", text=wire.encode_call(request)).status


@pytest.mark.parametrize("request_", [BELOW_NOTHING[0], NEVER[0], NEVER[1]], ids=str)
def test_the_door_refuses_it(door: Door, request_: Any) -> None:
    assert call(door, request_) == 422


def test_a_runner_of_one_dag_frees_nothing_that_lives(door: Door) -> None:
    door.store.task(SCOPE).set("page", 7)
    runner = door.as_role("runner", "x")
    assert call(runner, Sweep(1000, older_than=-400 * 86_400_000_000)) == 422
    assert call(runner, Sweep(1000)) == 200
    assert door.store.task(SCOPE).items() == [("page", 7)]
    assert len(door.store.task(SCOPE).history("page")) == 1


def test_a_run_of_no_possible_date_does_not_make_every_list_of_runs_fail(door: Door) -> None:
    runner = door.as_role("runner", "x")
    assert call(runner, msgspec.structs.replace(START, dag_id="x", logical_date=2**62)) == 422
    assert call(runner, msgspec.structs.replace(START, dag_id="x", lease=1e18)) == 200
    assert door.get(V1 + "/runs").status == door.get(V2 + "/dags/x/dagRuns").status == 200
    [run] = door.store.backend.send(runs.ListRuns()).runs
    assert run[0].lease_until == door.clock() + 86_400 * 1_000_000


@pytest.mark.parametrize("sent_at", [1, -(10**15)])
def test_a_clock_from_another_age_writes_nothing_that_cannot_be_read(door: Door, sent_at: int) -> None:
    assert call(door, Commit((Part(SCOPE, (Put("page", "7", LAST_MOMENT),)),), sent_at=sent_at)) == 200
    entries = door.get(V1 + "/runs/etl/r1/tasks/load/state").json()["entries"]
    assert [entry["expires_at"] for entry in entries] == ["9999-12-31T23:59:59.999999Z"]


def test_a_dry_sweep_of_nothing_finds_nothing(door: Door) -> None:
    assert call(door, Sweep(0, dry_run=True)) == 200
