"""How the server and its store do: one word for whoever watches processes, plain sentences for people with a token."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .. import __version__
from ..errors import OutlastError
from ..requests import Feed
from ..run_requests import ENDED
from ..values import Scope, ScopeInfo, TaskScope, moment
from . import rights
from .identity import Who
from .maintenance import Report
from .nameless import nameless_text
from .operations import JSON, Call, Operation
from .outlast_shapes import ScopeShape
from .outlast_state import OPERATIONS, REFUSALS, scope_shape
from .submissions import Submission
from .survey import OTHER, Facts, Survey
from .traffic import KEPT, Hot

__all__ = ["MONITOR", "Checks", "DagSize", "HealthShape", "HotKey", "MonitorShape", "ScopeSize", "routes"]

#: Seconds after which a database that does not answer counts as failed.
PATIENCE = 3.0
#: Seconds an expired entry may wait to be swept before that is a problem.
LATE = 3600
#: Runs and claims named, of however many there are.
_NAMED = 5
#: Keys told of that are written most.
_HOTTEST = 10


class DagSize(msgspec.Struct):
    """Live entries of a DAG's tasks, and the bytes of their JSON; the smaller DAGs are one, `(other)`."""

    dag_id: str
    entries: int
    bytes: int


class ScopeSize(msgspec.Struct):
    """A scope, its live entries, the bytes of their JSON, and how many commits it has had."""

    scope: ScopeShape
    entries: int
    bytes: int
    commits: int


class HotKey(msgspec.Struct):
    """A key written often lately: how often, at least, in the last minutes, and how often a second. Never its value."""

    scope: ScopeShape
    key: str
    writes: int
    writes_per_second: float


class HealthShape(msgspec.Struct):
    """`problems` are sentences, each with what to do; null is what is not known (yet).

    To a token for some DAGs only, what is counted over all of them is null. What is written is counted by the server
    that is asked, of what has passed through it: `writes_per_second` over the last minute, `hottest` over five to ten.
    """

    status: Literal["healthy", "unhealthy"]
    problems: list[str]
    version: str
    schema_version: str | None
    read_seconds: float | None
    write_seconds: float | None
    on_duty: bool
    next_sweep: datetime | None
    expired_unswept: int | None
    fenced_calls: int | None
    leases: int | None
    leases_lapsed: int | None
    event_streams: int | None
    dags: list[DagSize]
    largest: list[ScopeSize]
    busiest: list[ScopeSize]
    looked_at: datetime | None
    writes_per_second: float | None
    hottest: list[HotKey]
    uncertain_submits: int | None


class DatabaseStatus(msgspec.Struct):
    """Whether the database answers."""

    status: Literal["healthy", "unhealthy"]


class MaintenanceStatus(DatabaseStatus):
    """Whether sweeping and pruning go well, and when that was last looked at."""

    latest_scheduler_heartbeat: datetime | None


class TriggererStatus(msgspec.Struct, frozen=True):
    """Always null: triggers run with the runner, not in a server."""

    status: None = None
    latest_triggerer_heartbeat: None = None


class ProcessorStatus(msgspec.Struct, frozen=True):
    """Always null: DAG files are read by the runner, not by a server."""

    status: None = None
    latest_dag_processor_heartbeat: None = None


class MonitorShape(msgspec.Struct):
    """Airflow's health, with the state of the maintenance where a scheduler's would be."""

    metadatabase: DatabaseStatus
    scheduler: MaintenanceStatus
    triggerer: TriggererStatus = TriggererStatus()
    dag_processor: ProcessorStatus = ProcessorStatus()


# --- For whoever watches processes, as Airflow answers ---------------------------------------------------------


async def _monitor(request: Request) -> Response:
    """Say whether the database answers, and nothing more, as Airflow does: 200 either way, and without a token."""
    state = request.app.state
    ok = await _answers(state) is not None
    report: Report = state.maintenance.report
    fine = ok and report.problem is None
    beat = None if report.last_at is None else moment(report.last_at)
    shape = MonitorShape(DatabaseStatus(_word(ok)), MaintenanceStatus(_word(fine), beat))
    return Response(msgspec.json.encode(shape), 200, media_type=JSON)


MONITOR: Final = Operation(
    "GET",
    "/api/v2/monitor/health",
    _monitor,
    "airflow",
    "Operations",
    (),
    None,
    None,
    {200: MonitorShape},
    "get_health",
    is_open=True,
)


def _word(ok: bool) -> Literal["healthy", "unhealthy"]:
    return "healthy" if ok else "unhealthy"


async def _answers(state: Any) -> float | None:
    """Return how many seconds a read took, None if it failed; asked often, it reads once a second."""
    checks: Checks = state.checks
    return await checks.seconds()


class Checks:
    """Times a read, at most once a second however many ask."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask
        self.problem: str | None = None
        self._at = float("-inf")
        self._found: float | None = None
        self._running: asyncio.Task[float | None] | None = None

    async def seconds(self) -> float | None:
        if self._running is None:
            if time.monotonic() - self._at < 1.0:
                return self._found
            self._running = asyncio.create_task(self._timed())
            self._running.add_done_callback(self._done)
        done, _ = await asyncio.wait([self._running], timeout=PATIENCE)
        if not done:
            self.problem = f"no answer within {PATIENCE:g} s"
            return None
        return next(iter(done)).result()

    async def _timed(self) -> float | None:
        began = time.perf_counter()
        try:
            await self.ask(Feed())
        except OutlastError as error:
            self.problem = error.message
            return None
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            return None
        self.problem = None
        return time.perf_counter() - began

    def _done(self, task: asyncio.Task[float | None]) -> None:
        self._running = None
        if not task.cancelled():
            self._at, self._found = time.monotonic(), task.result()


# --- For people ------------------------------------------------------------------------------------------------


@OPERATIONS.declare(
    "GET", "/health", tag="Operations", answers={200: HealthShape, **REFUSALS, 503: HealthShape}, while_away=True
)
async def health(call: Call) -> Response:
    """Say what is wrong, in plain words, and how large and how busy the store is. 503 while its database fails."""
    rights.allowed(Feed(), call.who)
    state = call.request.app.state
    read_seconds = await _answers(state)
    facts = await state.survey.facts() if read_seconds is not None else None
    told = [*_of_database(state.checks, read_seconds), *_of_writes(state), *_of_duty(state.maintenance.report)]
    told += facts.problems if facts is not None and call.who.sees_all else ()
    problems = [nameless_text(problem, state.store) for problem in told]
    if facts is not None:
        problems += _of_store(facts, call.who, call.now())
    elif read_seconds is not None:
        problems += _unknown(state.survey)
    shape = _shape(state, facts, call.who, read_seconds, problems)
    return Response(msgspec.json.encode(shape), 503 if read_seconds is None else 200, media_type=JSON)


def _of_database(checks: Checks, read_seconds: float | None) -> list[str]:
    if read_seconds is None:
        return [f"the database cannot be read: {checks.problem}; look whether it runs, and whether its disk is full"]
    if read_seconds > 1:
        return [f"a small read took {read_seconds:.1f} s; the database, or this machine, has too much to do"]
    return []


def _of_writes(state: Any) -> list[str]:
    """Say why the last write failed, unless maintenance could write since."""
    failed, wrote_at = state.gate.write_problem, state.maintenance.report.last_at
    if failed is None or (wrote_at is not None and wrote_at > failed[0]):
        return []
    return [f"the last write failed: {failed[1]}; until one succeeds again, nothing that is sent may be kept"]


def _of_duty(report: Report) -> list[str]:
    if report.problem is None:
        return []
    return [f"sweeping and pruning failed: {report.problem}; it is tried again, and the server's log has more"]


def _unknown(survey: Survey) -> list[str]:
    if survey.problem is None:
        return []
    return [f"the store could not be looked at: {survey.problem}; the server's log has more"]


def _of_store(facts: Facts, who: Who, now: int) -> list[str]:
    problems = []
    if who.sees_all and facts.expired_since is not None and now - facts.expired_since > LATE * 1_000_000:
        problems.append(
            f"{facts.expired:,} expired entries are not swept, the oldest since {moment(facts.expired_since)}; "
            "`outlast state-store clean` sweeps them now, and the log of the server on duty says why it did not"
        )
    left = [f"{dag_id}/{run_id}" for dag_id, run_id in facts.left if who.may_see(dag_id)]
    if left:
        problems.append(
            f"the runner of {_named(left)} has gone; `outlast run` with the DAG's file goes on with a run, "
            "`outlast runs cancel` ends it"
        )
    open_for_good = [str(each.scope) for each in facts.uncertain if _needs_a_person(each, who)]
    if open_for_good:
        problems.append(
            f"nobody knows whether a job was started for {_named(open_for_good)}, and no attempt will find out; "
            "`outlast tasks explain` says what to look for, and what the next attempt would do"
        )
    lapsed = [str(scope) for scope in facts.lapsed if who.may_see(scope.dag_id)]
    if lapsed:
        problems.append(
            f"nobody renews the claim of {_named(lapsed)}: its worker has died, or cannot reach its store; "
            "the runner of its run begins the next attempt"
        )
    return problems


def _needs_a_person(submission: Submission, who: Who) -> bool:
    return who.may_see(submission.scope.dag_id) and submission.state in ENDED


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _shape(state: Any, facts: Facts | None, who: Who, read_seconds: float | None, problems: list[str]) -> HealthShape:
    report: Report = state.maintenance.report
    return HealthShape(
        _word(not problems),
        problems,
        __version__,
        facts.schema if facts else None,
        read_seconds,
        report.write_seconds,
        report.on_duty,
        None if report.next_at is None else moment(report.next_at),
        facts.expired if facts and who.sees_all else None,
        state.gate.fenced if who.sees_all else None,
        facts.running if facts and who.sees_all else None,
        sum(who.may_see(scope.dag_id) for scope in facts.lapsed) if facts else None,
        len(state.feed_reader.open) if who.sees_all else None,
        [DagSize(dag, held.entries, held.bytes) for dag, held in facts.by_dag.items() if _sees(who, dag)]
        if facts
        else [],
        _sizes(facts.largest, who) if facts else [],
        _sizes(facts.busiest, who) if facts else [],
        moment(facts.at) if facts else None,
        state.gate.traffic.per_second() if who.sees_all else None,
        _hottest(state.gate.traffic.hottest(KEPT), who),
        sum(who.may_see(each.scope.dag_id) for each in facts.uncertain) if facts else None,
    )


def _sees(who: Who, dag_id: str) -> bool:
    return who.sees_all or (dag_id != OTHER and who.may_see(dag_id))


def _sizes(infos: tuple[ScopeInfo, ...], who: Who) -> list[ScopeSize]:
    return [
        ScopeSize(scope_shape(info.scope), info.entries, info.bytes, info.revision)
        for info in infos
        if _is_seen(info.scope, who)
    ]


def _hottest(found: list[Hot], who: Who) -> list[HotKey]:
    seen = [hot for hot in found if _is_seen(hot.scope, who)]
    return [HotKey(scope_shape(hot.scope), hot.key, hot.writes, hot.per_second) for hot in seen[:_HOTTEST]]


def _is_seen(scope: Scope, who: Who) -> bool:
    return not isinstance(scope, TaskScope) or who.may_see(scope.dag_id)


def routes() -> list[BaseRoute]:
    """Return the route that needs no token."""
    return [Route(MONITOR.path, _monitor)]
