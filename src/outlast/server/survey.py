"""What a store holds and how it does, looked at now and then in a thread: for the metrics and for health."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from typing import Final, TypeVar

import msgspec

from ..backends import Backend
from ..errors import OutlastError
from ..requests import Inspect, Inspected, ListScopes, ScopePage, Sweep, Swept
from ..run_requests import GetRun, ListRuns, RunDetail, RunPage
from ..store import Store
from ..values import Clock, Scope, ScopeInfo, TaskScope
from .masking import told_size
from .submissions import Submission, open_submissions

__all__ = ["MOST_DAGS", "OTHER", "Facts", "Held", "Survey"]

logger = logging.getLogger("outlast.server")

#: Seconds for which what was found is taken to hold, and for which somebody waits for what is being found.
FRESH, PATIENCE = 30.0, 5.0
#: DAGs told apart, scopes named, pages of scopes and running runs looked at.
MOST_DAGS, MOST_SCOPES, MOST_PAGES, MOST_RUNS = 50, 10, 200, 200
#: What the DAGs beyond the largest are counted under; no DAG can be called so.
OTHER: Final = "(other)"


class Held(msgspec.Struct, frozen=True):
    """Live entries, and the bytes of their JSON."""

    entries: int
    bytes: int


T = TypeVar("T", Held, ScopeInfo)


class Facts(msgspec.Struct, frozen=True):
    """What was found at a moment (microseconds). Of `by_dag` the largest are told apart, the others are `OTHER`.

    `largest` are the scopes with most bytes, `busiest` those with most commits ever. `lapsed` are task instances
    whose claim nobody has renewed, `left` runs whose runner has gone, `uncertain` submissions of which nobody knows
    whether they have started a job. `whole` is false where there was too much to look at all of it.
    `problems` are what the database says of itself.
    """

    at: int
    by_dag: dict[str, Held]
    assets: Held
    largest: tuple[ScopeInfo, ...]
    busiest: tuple[ScopeInfo, ...]
    expired: int
    expired_since: int | None
    running: int
    lapsed: tuple[TaskScope, ...]
    left: tuple[tuple[str, str], ...]
    uncertain: tuple[Submission, ...]
    schema: str
    whole: bool
    problems: tuple[str, ...] = ()


class Survey:
    """Keeps what was found last, and looks again when somebody asks and it has grown old."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.problem: str | None = None
        self._found: Facts | None = None
        self._asked_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def facts(self) -> Facts | None:
        """Return what was found last, None where nothing is known yet; waits for it a little."""
        loop = asyncio.get_running_loop()
        if self._looking is None and (self._found is None or loop.time() - self._asked_at >= FRESH):
            self._asked_at = loop.time()
            self._looking = asyncio.create_task(self._look())
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=PATIENCE)
        return self._found

    async def close(self) -> None:
        """Wait for a look that is being taken."""
        if self._looking is not None:
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        try:
            found = await asyncio.to_thread(look, self.store.backend, self.store.clock)
            self._found = _as_told(found, self.store.config.state_store.secret_keys)
            self.problem = None
        except OutlastError as error:
            self.problem = error.message
            logger.warning("the store could not be looked at: %s", error.message)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            logger.exception("the store could not be looked at")
        finally:
            self._looking = None


def _as_told(facts: Facts, secret_keys: Sequence[str]) -> Facts:
    """Return what was found without sizes by which the length of a masked value could be told."""
    if not secret_keys:
        return facts
    return msgspec.structs.replace(
        facts,
        by_dag={dag_id: _sized(held, secret_keys) for dag_id, held in facts.by_dag.items()},
        assets=_sized(facts.assets, secret_keys),
        largest=tuple(_sized(info, secret_keys) for info in facts.largest),
        busiest=tuple(_sized(info, secret_keys) for info in facts.busiest),
    )


def _sized(found: T, secret_keys: Sequence[str]) -> T:
    return msgspec.structs.replace(found, bytes=told_size(found.bytes, secret_keys))


def look(backend: Backend, clock: Clock) -> Facts:
    """Look at a store, a page at a time."""
    now = clock()
    inspected: Inspected = backend.send(Inspect())
    told = dict(inspected.facts)
    expired = int(told.get("expired, not yet swept", 0))
    tasks, assets = _Sum(), _Sum()
    whole = _add_scopes(backend, False, tasks) and _add_scopes(backend, True, assets)
    running, lapsed, left = _claims(backend, now)
    uncertain, all_uncertain = open_submissions(backend, now)
    infos = [*tasks.infos, *assets.infos]
    return Facts(
        now,
        tasks.by_dag(),
        Held(sum(assets.entries.values()), sum(assets.bytes.values())),
        tuple(nlargest(MOST_SCOPES, infos, key=lambda info: info.bytes)),
        tuple(nlargest(MOST_SCOPES, infos, key=lambda info: info.revision)),
        expired,
        _oldest_expired(backend) if expired else None,
        running,
        tuple(lapsed),
        tuple(left),
        tuple(uncertain),
        told.get("schema version", ""),
        whole and all_uncertain,
        inspected.problems,
    )


class _Sum:
    """Adds up scopes, and remembers those that stand out."""

    def __init__(self) -> None:
        self.entries: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.infos: list[ScopeInfo] = []

    def add(self, page: tuple[ScopeInfo, ...]) -> None:
        for info in page:
            dag_id = _dag(info.scope)
            self.entries[dag_id] += info.entries
            self.bytes[dag_id] += info.bytes
        known = [*self.infos, *page]
        largest = nlargest(MOST_SCOPES, known, key=lambda info: info.bytes)
        self.infos = largest + [
            info for info in nlargest(MOST_SCOPES, known, key=lambda info: info.revision) if info not in largest
        ]

    def by_dag(self) -> dict[str, Held]:
        chosen = [dag_id for dag_id, _ in self.bytes.most_common(MOST_DAGS)]
        held = {dag_id: Held(self.entries[dag_id], self.bytes[dag_id]) for dag_id in chosen}
        others = self.bytes.keys() - held.keys()
        if others:
            held[OTHER] = Held(sum(self.entries[each] for each in others), sum(self.bytes[each] for each in others))
        return held


def _dag(scope: Scope) -> str:
    return scope.dag_id if isinstance(scope, TaskScope) else ""


def _add_scopes(backend: Backend, assets: bool, total: _Sum) -> bool:
    after: int | None = 0
    for _ in range(MOST_PAGES):
        page: ScopePage = backend.send(ListScopes(assets=assets, after=after or 0))
        total.add(page.scopes)
        after = page.after
        if after is None:
            return True
    return False


def _oldest_expired(backend: Backend) -> int | None:
    """Return when the earliest of the expired entries did (of the first thousand that are found)."""
    swept: Swept = backend.send(Sweep(1000, dry_run=True))
    return min((found.row.expires_at for found in swept.rows if found.row.expires_at is not None), default=None)


def _claims(backend: Backend, now: int) -> tuple[int, list[TaskScope], list[tuple[str, str]]]:
    """Return how many attempts have a claim that holds, whose has lapsed, and which runs nobody holds."""
    running, lapsed, left = 0, list[TaskScope](), list[tuple[str, str]]()
    page: RunPage = backend.send(ListRuns(states=("running",), limit=MOST_RUNS))
    for run, _ in page.runs:
        if run.lease_until < now:
            left.append((run.dag_id, run.run_id))
        detail: RunDetail = backend.send(GetRun(run.dag_id, run.run_id))
        for task in detail.tasks:
            if task.state == "running" and task.lease_until < now:
                lapsed.append(task.scope)
            running += task.state == "running" and task.lease_until >= now
    return running, lapsed, left
