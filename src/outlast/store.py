"""Open a store, and reach the state of a task or an asset in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from . import config as configuration
from .backends import Backend, file_of, open_backend
from .config import Config
from .errors import ConfigError
from .plans import Plan, awaiting, blocking
from .requests import LIBRARY, Fence, FoundRow, Inspect, Inspected, ListScopes, Open, Opened, ScopePage, Sweep, Swept
from .state import AssetState, TaskState
from .values import (
    Clock,
    ScopeInfo,
    TaskScope,
    Writer,
    asset_scope,
    checked_scope,
    item_scope,
    parse_task,
    system_clock,
    task_scope,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from .finding import Match
    from .runs import Runs

__all__ = ["Store", "connect"]

logger = logging.getLogger("outlast")


def connect(
    url: str | os.PathLike[str] | None = None, *, config: Config | None = None, clock: Clock = system_clock
) -> Store:
    """Open a store.

    `url` is a path, `sqlite:///PATH`, or the URL of a database or server. Without one: OUTLAST_URL, else the
    nearest `outlast.toml` upward, else a file in your own state folder. `clock` returns microseconds
    since 1970-01-01 UTC. Raises ConfigError for a wrong URL or setting, BackendError when it cannot be reached.

    >>> with connect("work.db") as store:
    ...     state = store.task("nightly/2026-11-29/ingest", attempt="new")
    ...     state.set("page", 41)
    """
    settings = configuration.load() if config is None else config
    if url is not None and not os.fspath(url):
        raise ConfigError("the store's URL is empty; leave it out to use the configured one, or name a file")
    resolved, origin = configuration.resolve_url(None if url is None else os.fspath(url), settings)
    resolved = file_of(resolved, settings) or resolved  # absolute: programs change their working directory
    if origin == configuration.DEFAULT_ORIGIN:
        with suppress(OSError):  # the backend says what is wrong with a folder that cannot be made
            os.makedirs(os.path.dirname(resolved), mode=0o700, exist_ok=True)
    return Store(open_backend(resolved, settings, clock), resolved, origin, settings, clock)


class Store:
    """A place where state is kept. Safe to share between threads, and to use after a fork."""

    def __init__(self, backend: Backend, url: str, origin: str, config: Config, clock: Clock) -> None:
        self.backend, self.url, self.origin, self.config, self.clock = backend, url, origin, config, clock

    def __repr__(self) -> str:
        return f"<Store {configuration.without_password(self.url)}>"

    # --- reaching state --------------------------------------------------------------------------------------

    def _task(
        self,
        address: str | TaskScope | None = None,
        *,
        dag_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        map_index: int = -1,
        item: str | None = None,
        attempt: int | Literal["new"] | None = None,
        assets: Iterable[AssetState] = (),
        writer: Writer | None = None,
        origin: tuple[str, int | None] | None = None,
    ) -> Plan[TaskState]:
        """Return the state of one task instance, by ids or by one word: `store.task("nightly/2026-11-29/ingest")`.

        `map_index` is the position of an item of a mapped task, whatever item is there now. `item` is the item's
        key where the task has a `map_key`, wherever it is now, also when it is in the list no more.
        `attempt=None` is unfenced, for people and tools. `attempt="new"` opens the next attempt, `attempt=N`
        that one (StaleAttempt if a newer one has begun); every older attempt is from then on refused. `assets` are
        those whose state the attempt is to reach, which matters behind a server. Raises
        InvalidKey for a bad id. `writer` says who is recorded as writing where no attempt is.

        `origin` is for engines that use a run's name again, where an attempt is opened: a text that is another one for
        every task instance of that name, and when that began in microseconds. What an earlier one has left is removed,
        and one that comes after a later one is stale.
        """
        scope = _scope(address, dag_id, run_id, task_id, map_index, item)
        if attempt is None:
            return TaskState(self.backend, scope, self.config, self.clock, writer or LIBRARY)
        reached = tuple(asset.scope for asset in assets)
        opened: Opened = yield Open(scope, _number(attempt), reached, *(origin or (None, None)))
        if opened.anew:
            logger.info("outlast: %s is a new run of that name; the state of the earlier one is removed", scope)
        fence = Fence(scope, opened.attempt, opened.scope_id)
        by = Writer("task", opened.attempt, None, scope)
        return TaskState(self.backend, scope, self.config, self.clock, by, fence)

    task, atask = blocking(_task), awaiting(_task)

    def asset(self, name: str | None = None, *, uri: str | None = None, writer: Writer | None = None) -> AssetState:
        """Return the state of an asset, by name, by URI or by both; unfenced. InvalidKey for a bad name."""
        return AssetState(self.backend, asset_scope(name, uri), self.config, self.clock, writer or LIBRARY)

    def runs_as(self, writer: Writer) -> Runs:
        """Return the runs of this store, to look at and to steer; what is changed is audited under `writer`."""
        from .runs import Runs

        return Runs(self.backend, self.config, self.clock, writer)

    # --- across scopes ---------------------------------------------------------------------------------------

    def _scopes(
        self, *, dag_id: str | None = None, run_id: str | None = None, task_id: str | None = None, assets: bool = False
    ) -> Plan[list[ScopeInfo]]:
        """List scopes with their revision, attempt, live entries and bytes; `assets` lists assets instead of tasks."""
        scopes: list[ScopeInfo] = []
        after: int | None = 0
        while after is not None:
            page: ScopePage = yield ListScopes(dag_id, run_id, task_id, assets, after)
            scopes, after = scopes + list(page.scopes), page.after
        return scopes

    def _find(
        self,
        *,
        dag: str | None = None,
        run: str | None = None,
        task: str | None = None,
        key: str | None = None,
        where: str | None = None,
        older_than: timedelta | None = None,
        newer_than: timedelta | None = None,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        expiring_within: timedelta | None = None,
        assets: bool = False,
        limit: int | None = None,
    ) -> Plan[list[Match]]:
        """Return the entries, across scopes, for which everything asked holds, by scope and key.

        `dag`, `run`, `task` and `key` are names or patterns (`*`, `?`, `[…]`, case counts). `where` is a condition
        on the value: `$.rows > 100`, `$.state == "done"`, `$.items[0].id != null`; a path alone means that there is
        such a place. `older_than` and `newer_than` look at the last write, `expiring_within` at the expiry still to
        come; sizes are bytes of JSON. `assets` searches assets instead of tasks, `limit` ends the search early.
        Raises InvalidValue for a condition that cannot be read, ValueError or TypeError for another criterion.

        >>> store.find(dag="night*", key="progress", where="$.done < 100", older_than=timedelta(hours=1))
        """
        from .finding import find

        return find(
            self.clock,
            dag=dag,
            run=run,
            task=task,
            key=key,
            where=where,
            older_than=older_than,
            newer_than=newer_than,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            expiring_within=expiring_within,
            assets=assets,
            limit=limit,
        )

    def _sweep(self, *, dry_run: bool = False, progress: Callable[[int], None] | None = None) -> Plan[Swept]:
        """Free the space of what has expired, in batches; with `dry_run` only list it. `progress` is told the sum."""
        limit = self.config.state_store.batch_size
        total, more, after = Swept(0, 0, False), True, None
        rows: list[FoundRow] = []
        while more:
            batch: Swept = yield Sweep(limit, dry_run=dry_run, after=after)
            rows += batch.rows
            total = Swept(total.entries + batch.entries, total.scopes + batch.scopes, False, tuple(rows))
            more, after = batch.more, batch.after
            if progress is not None:
                progress(total.entries)
        return total

    def _inspect(self, *, deep: bool = False) -> Plan[Inspected]:
        """Return facts about the store and problems found; `deep` reads everything and may take long."""
        return (yield Inspect(deep))  # type: ignore[no-any-return]

    scopes, ascopes = blocking(_scopes), awaiting(_scopes)
    find, afind = blocking(_find), awaiting(_find)
    sweep, asweep = blocking(_sweep), awaiting(_sweep)
    inspect, ainspect = blocking(_inspect), awaiting(_inspect)

    # --- closing ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release connections and files; states of this store cannot be used afterwards."""
        self.backend.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _scope(
    address: str | TaskScope | None,
    dag_id: str | None,
    run_id: str | None,
    task_id: str | None,
    map_index: int,
    item: str | None,
) -> TaskScope:
    match address:
        case None:
            return item_scope(task_scope(dag_id, run_id, task_id, map_index), item)
        case TaskScope():
            if (dag_id, run_id, task_id, map_index, item) == (None, None, None, -1, None):
                return checked_scope(address)
    if dag_id is not None or run_id is not None or task_id is not None or not isinstance(address, str):
        raise TypeError("give one address, or dag_id, run_id and task_id, not both")
    scope = parse_task(address)
    if map_index != -1:
        scope = task_scope(scope.dag_id, scope.run_id, scope.task_id, map_index)
    return item_scope(scope, item)


def _number(attempt: int | str) -> int | None:
    if attempt == "new":
        return None
    if isinstance(attempt, bool) or not isinstance(attempt, int) or not 1 <= attempt < 2**31:
        raise TypeError(f'attempt is {attempt!r}; use "new", a number from 1 to 2**31 - 1, or None for no fence')
    return attempt
