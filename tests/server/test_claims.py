"""Nobody claims anything for ever, nor what is the server's; who is dead is believed of one's own host only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlast import InvalidValue, wire
from outlast.event_requests import HoldWatchers
from outlast.requests import Sweep
from outlast.run_requests import Begin, HoldRun, ProcessRef, Renew, StartRun
from outlast.server.claims import LONGEST_LEASE, MOST_SWEPT
from outlast.server.identity import Who
from outlast.server.maintenance import DUTY, Maintenance
from outlast.server.rights import allowed
from support.asking import MINE, OWN
from support.public import open_door
from support.runs import RUNNER, SUPERVISOR

DIGEST = "0123456789abcdef0123456789abcdef"
BOX = Who("runner", "box", ("sales",))
ELSEWHERE = ProcessRef("elsewhere.test", 7, "tuesday")


@pytest.mark.parametrize(
    "request_",
    [
        StartRun("sales", "r1", (), "{}", "f", "d", 0, RUNNER, 1e9),
        HoldRun("sales", "r1", RUNNER, 1e9),
        Begin(MINE, 0, SUPERVISOR, 1e9),
        Renew(OWN, 1e9),
        HoldWatchers((DIGEST,), RUNNER, 1e9),
    ],
    ids=lambda request: type(request).__name__,
)
@pytest.mark.parametrize("role", ["runner", "admin"])
def test_a_claim_is_for_a_day_at_most(role: Any, request_: Any) -> None:
    assert allowed(request_, Who(role, "ann")).lease == LONGEST_LEASE == 86_400


@pytest.mark.parametrize("role", ["runner", "admin", "triggers"])
@pytest.mark.parametrize("name", [DUTY, "", "A", "../x", DIGEST + "\n", "x" * 65])
def test_what_is_no_watcher_is_claimed_by_nobody(role: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match="is no watcher"):
        allowed(HoldWatchers((DIGEST, name), RUNNER, 30.0), Who(role, "ann"))
    allowed(HoldWatchers((DIGEST,), RUNNER, 30.0), Who(role, "ann"))


def test_a_process_of_another_host_is_not_dead_because_somebody_says_so() -> None:
    here = ProcessRef(RUNNER.host, 7, "tuesday")
    assert allowed(HoldWatchers((DIGEST,), RUNNER, 30.0, (ELSEWHERE, here)), BOX).dead == (here,)


def test_a_batch_of_a_sweep_has_an_end() -> None:
    assert allowed(Sweep(2**60), BOX) == Sweep(MOST_SWEPT)
    assert allowed(Sweep(7, 5, True, (1, "k")), BOX) == Sweep(7, 5, True, (1, "k"))


def test_the_server_s_own_duty_is_not_taken_from_it(tmp_path: Path) -> None:
    with open_door(tmp_path) as door:
        maintenance = Maintenance(door.store)
        runner = door.as_role("runner", "x")
        for dead in ((), (maintenance.me,)):
            request = HoldWatchers((DUTY,), ProcessRef("evil", 1, "x"), 1e9, dead)
            assert runner.post("/execution/call", text=wire.encode_call(request)).status == 422
        asyncio.run(maintenance.round())
        assert maintenance.report.on_duty


def test_a_watcher_is_not_taken_from_another_host_s_runner(tmp_path: Path) -> None:
    with open_door(tmp_path) as door:
        assert door.store.backend.send(HoldWatchers((DIGEST,), ELSEWHERE, 30.0)).held == (DIGEST,)
        taking = wire.encode_call(HoldWatchers((DIGEST,), RUNNER, 30.0, (ELSEWHERE,)))
        answer = door.as_role("runner").post("/execution/call", text=taking).json()
        assert (answer["reply"]["held"], answer["reply"]["others"]) == ([], [["elsewhere.test", 7, "tuesday"]])
