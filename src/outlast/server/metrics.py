"""`GET /metrics`: counts and times of this server process, and what its store holds, as Prometheus reads them.

What is counted costs a request a few microseconds; what has to be looked up is looked up every 30 s at most, and when
that fails the rest is still told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..errors import Unauthorized
from .identity import Who
from .operations import Operation
from .outlast_shapes import ErrorShape
from .survey import Facts
from .traffic import Traffic

__all__ = ["OPERATION", "Metrics", "routes"]

#: Seconds: from a read out of memory to a database that hangs.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Ranks of the keys written most: their names, of which there is no end, are under health.
_RANKS = 10
_DOOR, _UNKNOWN, _EVENTS = "/execution/call", "(none)", "/api/outlast/v1/events"


class Metrics(Collector):
    """Counts the requests of one application, and tells what else there is to tell when it is asked."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.facts: Facts | None = None
        self.answers = False
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "outlast_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "outlast_request_seconds",
            "Time from a request's head to the end of its answer (of an event stream: not counted).",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)
        self._routes: dict[Any, str] = {}
        self._known: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    async def measured(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Have a request answered, and count it."""
        began, status = time.perf_counter(), 0

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, noting)
        finally:
            self._count(scope, status, time.perf_counter() - began)

    def _count(self, scope: Any, status: int, seconds: float) -> None:
        """Count by the route's pattern, never by what somebody sent: there is no end of that."""
        method = scope["method"] if scope["method"] in _METHODS else "other"
        which = method, self._route(scope), status
        if which not in self._known:
            self._known[which] = (
                self._requests.labels(which[0], which[1], str(status)),
                self._seconds.labels(which[1]),
            )
        requests, latency = self._known[which]
        requests.inc()
        if which[1] != _EVENTS:
            latency.observe(seconds)

    def _route(self, scope: Any) -> str:
        endpoint = scope.get("endpoint")
        if endpoint is None:
            return _DOOR if scope["path"].endswith(_DOOR) else _UNKNOWN
        if not self._routes:
            self._routes = {route.endpoint: route.path for route in scope["app"].routes if hasattr(route, "endpoint")}
        return self._routes.get(endpoint, _UNKNOWN)

    async def text(self) -> bytes:
        """Return all there is to tell; of a store that does not answer, what was known last."""
        self.answers = await self.state.checks.seconds() is not None
        if self.answers:
            self.facts = await self.state.survey.facts()
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Tell what is counted elsewhere, and what the store was found to hold."""
        gate, duty = self.state.gate, self.state.maintenance.report
        yield CounterMetricFamily("outlast_commits", "Commits written through this server.", gate.commits)
        yield CounterMetricFamily("outlast_batches", "Transactions those commits shared.", gate.batches)
        yield CounterMetricFamily("outlast_fenced_calls", "Calls of superseded attempts, refused.", gate.fenced)
        yield from _of_traffic(gate.traffic)
        yield GaugeMetricFamily("outlast_event_streams", "Event streams open.", len(self.state.feed_reader.open))
        yield GaugeMetricFamily("outlast_on_duty", "Whether this server sweeps and prunes.", float(duty.on_duty))
        yield CounterMetricFamily("outlast_swept_entries", "Expired entries swept by this server.", duty.swept)
        yield CounterMetricFamily("outlast_pruned_runs", "Old runs removed by this server.", duty.pruned)
        yield GaugeMetricFamily("outlast_survey_up", "Whether the store could be looked at.", self._is_up())
        if self.facts is not None:
            yield from _of_store(self.facts, self.state.store.clock())

    def _is_up(self) -> float:
        return float(self.answers and self.facts is not None and self.state.survey.problem is None)


def _of_traffic(traffic: Traffic) -> Iterator[Metric]:
    yield CounterMetricFamily("outlast_written_entries", "Entries those commits have written.", traffic.writes)
    about = "Submissions of jobs of which an attempt has found that nobody knows their outcome."
    yield CounterMetricFamily("outlast_uncertain_submits", about, traffic.uncertain)
    hottest = GaugeMetricFamily(
        "outlast_hottest_writes_per_second", "How often the keys written most lately are, by rank.", labels=("rank",)
    )
    for rank, hot in enumerate(traffic.hottest(_RANKS), 1):
        hottest.add_metric((str(rank),), hot.per_second)
    yield hottest


def _of_store(facts: Facts, now: int) -> Iterator[Metric]:
    entries = GaugeMetricFamily("outlast_entries", "Live entries of tasks by DAG; the largest DAGs.", labels=("dag",))
    size = GaugeMetricFamily("outlast_bytes", "Bytes of JSON of those entries.", labels=("dag",))
    for dag_id, held in facts.by_dag.items():
        entries.add_metric((dag_id,), held.entries)
        size.add_metric((dag_id,), held.bytes)
    yield from (entries, size)
    yield GaugeMetricFamily("outlast_asset_entries", "Live entries of assets.", facts.assets.entries)
    yield GaugeMetricFamily("outlast_asset_bytes", "Bytes of JSON of those entries.", facts.assets.bytes)
    yield GaugeMetricFamily("outlast_expired_entries", "Expired entries that are not swept yet.", facts.expired)
    lag = 0 if facts.expired_since is None else max(0, now - facts.expired_since) / 1e6
    yield GaugeMetricFamily("outlast_sweep_lag_seconds", "For how long the oldest of them has been expired.", lag)
    yield GaugeMetricFamily("outlast_leases", "Attempts whose claim holds.", facts.running)
    yield GaugeMetricFamily("outlast_leases_lapsed", "Attempts whose claim nobody has renewed.", len(facts.lapsed))
    yield GaugeMetricFamily("outlast_runs_without_runner", "Running runs whose runner has gone.", len(facts.left))
    about = "Submissions of jobs of which nobody knows the outcome now."
    yield GaugeMetricFamily("outlast_uncertain_submits_open", about, len(facts.uncertain))
    yield GaugeMetricFamily("outlast_survey_age_seconds", "Age of what is told of the store.", (now - facts.at) / 1e6)


async def _metrics(request: Request) -> Response:
    """Tell what this server process counts, and what its store holds, as Prometheus reads it.

    It takes a token of a viewer, an editor or an admin for every DAG.
    """
    who: Who = await request.app.state.recognised.who(request)
    if who.role not in ("viewer", "editor", "admin") or not who.sees_all:
        raise Unauthorized("metrics are of every DAG; they take a viewer's token without --dag (or an admin's)")
    return Response(await request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)


OPERATION: Final = Operation(
    "GET",
    "/metrics",
    _metrics,
    "outlast",
    "Operations",
    (),
    None,
    None,
    {200: None, 401: ErrorShape},
    "metrics",
    gives="text/plain",
)


def routes() -> list[BaseRoute]:
    """Return the one route."""
    return [Route(OPERATION.path, _metrics)]
