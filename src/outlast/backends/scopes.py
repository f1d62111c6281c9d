"""Scopes as portable SQL: found by address, made, locked in one order everywhere, and dropped.

The order of locks is: run, task, the names of assets (where one is given or made), then scopes by id; scopes that
are missing are inserted, by digest, before any is locked. Whoever holds a scope's row holds its entries.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from ..errors import InvalidKey
from ..requests import Fence
from ..values import AssetScope, Scope, TaskScope, address
from .execute import Dialect, Execute, Overtaken
from .feed import FeedSQL
from .rows import marks, padded

__all__ = ["SCOPE_GRACE", "ScopeRow", "ScopesSQL"]

#: Microseconds an empty scope without a run is kept, so that its fence still holds for a slow script.
SCOPE_GRACE = 30 * 24 * 3600 * 1_000_000

#: What whoever gives an asset a name waits for, before any scope is locked.
_NAMES_OF_ASSETS = "names of assets"
_NUMBERS = "id, revision, fence, floor, sweep_at, asset_name, asset_uri, done"


class ScopeRow(msgspec.Struct, gc=False):
    """The numbers of a scope as loaded and locked; `id` 0 stands for one there is not, `made` is it here and now.

    `done` is the attempt that has succeeded, if the newest one has.
    """

    id: int
    revision: int
    fence: int
    floor: int
    sweep_at: int | None
    asset_name: str | None = None
    asset_uri: str | None = None
    done: int = 0
    made: bool = False

    def is_of(self, scope: Scope) -> bool:
        """Say whether an asset's name or URI is still this one's; anything but an asset always is."""
        if not isinstance(scope, AssetScope):
            return True
        return scope.name == self.asset_name is not None or scope.uri == self.asset_uri is not None


class ScopesSQL:
    """Finds and locks scopes through one connection."""

    def __init__(self, execute: Execute, dialect: Dialect) -> None:
        self.execute, self.dialect, self.lock = execute, dialect, dialect.lock
        self.feed = FeedSQL(execute, dialect)

    def stand_alone(self, what: str) -> None:
        """Let nobody else do the same until the end of this transaction, where transactions run side by side."""
        if self.dialect.alone is not None:
            self.execute(self.dialect.alone, (what,))

    def stand_alone_for_names(self) -> None:
        """Let nobody else give an asset a name meanwhile; to be called before any scope is locked."""
        self.stand_alone(_NAMES_OF_ASSETS)

    # --- finding -----------------------------------------------------------------------------------------

    def find_scope(self, scope: Scope, lock: str | None = None) -> ScopeRow | None:
        """Return a scope, locked unless `lock` is "", or None."""
        lock = self.lock if lock is None else lock
        if isinstance(scope, AssetScope):
            return self._find_asset(scope, lock)
        if scope.map_index >= 0 and scope.item is None:
            return self._find_at(scope, lock)
        return self._row("digest = ?", address(scope), lock)

    def _find_at(self, scope: TaskScope, lock: str) -> ScopeRow | None:
        """Return what is at a position: the scope of the item there, also where there is state of that position too.

        It is looked up before it is locked: a row that was waited for and then is elsewhere would stay locked, and
        the one locked after it be out of order.
        """
        placed = self._placed(scope)
        found = self._row("digest = ?", address(scope), lock) if placed is None else self._row("id = ?", placed, lock)
        if lock and self._placed(scope) != placed:
            raise Overtaken
        return found

    def _placed(self, scope: TaskScope) -> int | None:
        """Return the scope of the item that is at a position now, where state follows the item."""
        rows = self.execute(
            "select id from scope where dag_id = ? and run_id = ? and task_id = ?"
            " and map_index = ? and item is not null",
            (scope.dag_id, scope.run_id, scope.task_id, scope.map_index),
        )
        return rows[0][0] if rows else None

    def _row(self, where: str, value: bytes | int, lock: str) -> ScopeRow | None:
        rows = self.execute(f"select {_NUMBERS} from scope where {where}{lock}", (value,))
        return ScopeRow(*rows[0]) if rows else None

    def _find_asset(self, scope: AssetScope, lock: str) -> ScopeRow | None:
        rows = self._rows_of_asset(scope, "and") if self.dialect.alone and scope.name and scope.uri else []
        if not rows:
            if scope.name and scope.uri:
                self.stand_alone_for_names()
            rows = self._rows_of_asset(scope, "or")
        if len(rows) > 1:
            raise InvalidKey(
                f"asset name {scope.name!r} and URI {scope.uri!r} have been used as two assets; "
                f"if they are one, make them one: outlast assets merge {shlex.quote(scope.name or '')} "
                f"{shlex.quote(scope.uri or '')}; else address one of them by its name alone"
            )
        found = ScopeRow(*rows[0]) if rows else None
        if found is not None and lock:  # by its id, as what is at a position is
            found = self._row("id = ?", found.id, lock)
            if found is None or not found.is_of(scope):
                raise Overtaken
        if found is not None:
            _refuse_other_asset(scope, found.asset_name, found.asset_uri)
        return found

    def _rows_of_asset(self, scope: AssetScope, how: str) -> list[Any]:
        where = f"asset_name = ? {how} asset_uri = ?"
        return self.execute(f"select {_NUMBERS} from scope where {where}", (scope.name, scope.uri))

    def find_id(self, scope_id: int) -> ScopeRow | None:
        """Return a scope by its id, which is never used again, locked; a large store's index need not be searched."""
        return self._row("id = ?", scope_id, self.lock)

    # --- locking -----------------------------------------------------------------------------------------

    def lock_scope(self, scope: Scope, now: int) -> ScopeRow:
        """Return one scope, locked, made if it does not exist; an asset's other name is remembered."""
        found, made = self.find_scope(scope), False
        if found is None and isinstance(scope, AssetScope):  # who names one waits for who makes one of that name
            self.stand_alone_for_names()
        while found is None:
            self._insert(scope, now)
            found, made = self.find_scope(scope), True
        found.made = made
        self.name_asset(scope, found, now)
        return found

    def lock_scopes(
        self, scopes: Collection[Scope], make: Collection[Scope] = (), now: int = 0, fences: Iterable[Fence] = ()
    ) -> dict[Scope, ScopeRow]:
        """Return those of some scopes that exist, locked in one order; missing ones of `make` are made first.

        A fence's scope is the one with its id, whatever its address means by now.
        """
        known: dict[Scope, int] = {fence.scope: fence.scope_id for fence in fences}
        found = self._ids([scope for scope in scopes if scope not in known])
        missing = self.make_scopes([scope for scope in make if scope not in known and scope not in found], now)
        if missing:  # and by those that were made, an asset known by one of its names may have become two
            found |= self._ids([scope for scope in scopes if scope in missing or isinstance(scope, AssetScope)])
        ids = found | known
        rows = self.lock_ids(sorted(set(ids.values())))
        stale = [scope for scope, scope_id in found.items() if scope_id not in rows or not rows[scope_id].is_of(scope)]
        if stale or not all(scope in found for scope in missing):
            raise Overtaken  # to make one now, with others locked, could be waiting in a circle
        for scope in missing:
            rows[found[scope]].made = True
        return {scope: rows[scope_id] for scope, scope_id in ids.items() if scope_id in rows}

    def make_scopes(self, scopes: Iterable[Scope], now: int) -> list[Scope]:
        """Make scopes that are missing, everywhere in the same order; return them in it."""
        missing = sorted(scopes, key=address) if self.lock else list(scopes)
        if any(isinstance(scope, AssetScope) for scope in missing):
            self.stand_alone_for_names()
        for scope in missing:
            self._insert(scope, now)
        return missing

    def lock_ids(self, ids: Sequence[int]) -> dict[int, ScopeRow]:
        """Return scopes by id, those that exist, locked in the order all scopes are locked in."""
        found: dict[int, ScopeRow] = {}
        order = " order by id" if self.lock else ""  # ids stay, while an asset that loses a name gets another digest
        for part in padded(sorted(ids) if self.lock else ids):
            rows = self.execute(f"select {_NUMBERS} from scope where id in ({marks(part)}){order}{self.lock}", part)
            found.update((row[0], ScopeRow(*row)) for row in rows)
        return found

    def _ids(self, scopes: Iterable[Scope]) -> dict[Scope, int]:
        """Return the ids of those of some scopes that exist, without locking them."""
        found: dict[Scope, int] = {}
        plain: dict[bytes, Scope] = {}
        for scope in scopes:
            if isinstance(scope, AssetScope) or (scope.map_index >= 0 and scope.item is None):
                row = self.find_scope(scope, lock="")
                if row is not None:
                    found[scope] = row.id
            else:
                plain[address(scope)] = scope
        for part in padded(sorted(plain)):
            rows = self.execute(f"select digest, id from scope where digest in ({marks(part)})", part)
            found.update((plain[bytes(digest)], scope_id) for digest, scope_id in rows)
        return found

    # --- making and dropping -------------------------------------------------------------------------------

    def _insert(self, scope: Scope, now: int) -> None:
        task = scope if isinstance(scope, TaskScope) else None
        asset = scope if isinstance(scope, AssetScope) else AssetScope()
        place: tuple[Any, ...] = (None,) * 5
        if task is not None:
            place = (task.dag_id, task.run_id, task.task_id, task.map_index, task.item)
        self.execute(
            "insert into scope (digest, dag_id, run_id, task_id, map_index, item, asset_name, asset_uri,"
            " changed_at, sweep_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
            (address(scope), *place, asset.name, asset.uri, now, now + SCOPE_GRACE if task else None),
        )

    def name_asset(self, scope: Scope, row: ScopeRow, now: int) -> None:
        """Remember the other name of an asset known so far by one of its two; who follows that is told what it has."""
        if not isinstance(scope, AssetScope) or None in (scope.name, scope.uri):
            return
        if None in (row.asset_name, row.asset_uri):
            # Whoever was not alone when it was found whole, and has lost a name since, may not wait for that now.
            if self.dialect.alone_now and not self.execute(self.dialect.alone_now, (_NAMES_OF_ASSETS,))[0][0]:
                raise Overtaken
            row.asset_name, row.asset_uri = scope.name, scope.uri
            self.execute("update scope set asset_name = ?, asset_uri = ? where id = ?", (scope.name, scope.uri, row.id))
            self.feed.announce(row.id, now)

    def in_use(self, scope_id: int) -> bool:
        """Say whether a run still knows this scope."""
        return bool(self.execute("select 1 from task where scope_id = ?", (scope_id,)))

    def drop_scopes(self, scope_ids: Sequence[int], now: int) -> None:
        """Remove scopes with everything in them, and tell of it; their ids are never used again."""
        self.feed.gone(scope_ids, now)
        for scope_id in scope_ids:
            self.erase_scope(scope_id)

    def erase_scope(self, scope_id: int) -> None:
        """Remove a scope whose entries are told of otherwise. That commits on it were carried out stays known."""
        for table in ("history", "entry", "receipt"):
            self.execute(f"delete from {table} where scope_id = ?", (scope_id,))
        self.execute("delete from scope where id = ?", (scope_id,))


def _refuse_other_asset(scope: AssetScope, name: str | None, uri: str | None) -> None:
    """Refuse a name with a URI that belongs to another name, or the other way round."""
    for what, given, known in (("name", scope.name, name), ("URI", scope.uri, uri)):
        if given is not None and known is not None and given != known:
            raise InvalidKey(f"{scope.name!r} with URI {scope.uri!r}: this asset's {what} is {known!r}, not {given!r}")
