"""Several changes as one commit, across keys, scopes and assets, decided on what was read.

Inside a transaction reads go to the store once and see the transaction's own writes; nothing is
written and no lock is held until the block ends. Then everything is committed if what was read
(absent keys and prefixes included) is still so, and nothing otherwise (contract 4.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast, overload

from . import rules
from .errors import Conflict
from .plans import Plan, arun, run
from .requests import Check, CheckPrefix, Commit, Found, Operation, Part, Put, Read, Receipt, Remove, Row
from .state import AssetState, State, TaskState, as_seen
from .values import AssetScope, TaskScope, address

__all__ = ["AssetTransaction", "TaskTransaction", "Transaction"]

#: What a row written in this transaction shows as its revision until it is committed.
NOT_YET = 0

V = TypeVar("V", bound="View")


class View(State):
    """State of one scope inside a transaction: `_find` reads once, `_apply` only takes note."""

    def begin(self, transaction: Transaction[Any]) -> None:
        self.of_transaction = transaction
        self.seen: dict[str, Row | None] = {}
        self.by_name: set[str] = set()
        self.prefixes: dict[str, tuple[tuple[str, int], ...]] = {}
        self.pending: dict[str, Row] = {}
        self.scope_id, self.is_united = 0, False

    def _find(self, names: tuple[str, ...] | None, prefix: str = "", texts: bool = True) -> Plan[Found]:
        self.of_transaction.refuse_ended()
        yield from self.of_transaction.unite(self)
        yield from self._look_up(set(names) - set(self.pending) if names is not None else set())
        if names is None:
            yield from self._look_through(prefix)
        now = self.clock()
        wanted = sorted(self._known()) if names is None else names
        rows = [row for name in wanted if name.startswith(prefix) and (row := rules.alive(self._row(name), now))]
        return Found(0, NOT_YET, tuple(rows))

    def _apply(self, *operations: Operation) -> Plan[Receipt]:
        self.of_transaction.refuse_ended()
        yield from self.of_transaction.unite(self)
        if not all(_is_blind(operation) for operation in operations):
            names, prefix = rules.touches(operations)
            yield from self._look_up(names - set(self.pending))
            if prefix is not None:
                yield from self._look_through(prefix)
        current = {name: row for name in self._known() if (row := self._row(name)) is not None}
        try:
            decision = rules.decide(operations, current, NOT_YET - 1, self.clock(), self.writer)
        except Conflict as conflict:
            raise as_seen(conflict) from None
        self.pending.update(decision.rows)
        for operation in operations:
            if isinstance(operation, Remove) and operation.name not in self._known():
                self.pending[operation.name] = Row(operation.name, None, NOT_YET, self.clock(), None, self.writer)
        return Receipt((NOT_YET,), (decision.results,))

    def _look_up(self, names: Iterable[str]) -> Plan[None]:
        missing = tuple(sorted(set(names) - self.by_name))
        if missing:
            found: Found = yield Read(self.scope, missing, fence=self.fence)
            rows = {row.name: row for row in found.rows}
            for name in missing:
                self.seen.setdefault(name, rows.get(name))
            self.by_name.update(missing)

    def _look_through(self, prefix: str) -> Plan[None]:
        if prefix not in self.prefixes:
            found: Found = yield Read(self.scope, None, prefix, self.fence)
            for row in found.rows:
                self.seen.setdefault(row.name, row)
            self.prefixes[prefix] = tuple((row.name, row.revision) for row in found.rows)

    def _known(self) -> set[str]:
        return {*self.seen, *self.pending}

    def _row(self, name: str) -> Row | None:
        return self.pending.get(name) or self.seen.get(name)

    def part(self) -> Part | None:
        """Return what to commit: checks of all that was read, then the writes; None if nothing was done."""
        checks: list[Operation] = [
            Check(name, row.revision if (row := self.seen[name]) else None) for name in sorted(self.by_name)
        ]
        checks += [CheckPrefix(prefix, found) for prefix, found in self.prefixes.items()]
        writes: list[Operation] = [
            Remove(row.name) if row.text is None else Put(row.name, row.text, row.expires_at)
            for row in self.pending.values()
        ]
        return Part(self.scope, (*checks, *writes)) if checks or writes else None

    @overload
    def of(self, state: TaskState) -> TaskTransaction: ...
    @overload
    def of(self, state: AssetState) -> AssetTransaction: ...
    def of(self, state: TaskState | AssetState) -> TaskTransaction | AssetTransaction:
        """Return another scope's state in the same transaction: `tx.of(asset_state).set("watermark", 7)`."""
        view: TaskTransaction | AssetTransaction = self.of_transaction.view(state)
        return view

    def transaction(self) -> Transaction[Any]:
        raise RuntimeError("a transaction is already open; use its verbs, and tx.of(state) for another scope")


class TaskTransaction(View, TaskState):
    """A task's state inside a transaction: the verbs of `TaskState`."""

    def asset(self, name: str | None = None, *, uri: str | None = None) -> AssetTransaction:
        """Return an asset's state in the same transaction."""
        return self.of(super().asset(name, uri=uri))


class AssetTransaction(View, AssetState):
    """An asset's state inside a transaction: the verbs of `AssetState`."""


class Transaction(Generic[V]):
    """A `with` or `async with` block whose changes become one commit when it ends without an exception.

    Raises Conflict at the end of the block when something read in it has changed since; nothing is then written.
    """

    def __init__(self, state: State) -> None:
        self.root, self.views, self.ended = state, {}, False  # type: ignore[var-annotated]

    def view(self, state: State) -> Any:
        """Return a state's view in this transaction, one for each scope."""
        if state.backend is not self.root.backend:
            raise ValueError(f"{state!r} is kept in another store; a transaction is one commit in one store")
        if state.fence is not None and state.fence != self.root.fence:
            raise ValueError(f"{state!r} belongs to another attempt than this transaction's {self.root!r}")
        place = address(state.scope)
        if place not in self.views:
            kind = TaskTransaction if isinstance(state, TaskState) else AssetTransaction
            view = kind(state.backend, state.scope, state.config, state.clock, self.root.writer, self.root.fence)
            view.begin(self)
            self.views[place] = view
        return self.views[place]

    def unite(self, view: View) -> Plan[None]:
        """Make one of the views of an asset that is addressed by its name and by its URI."""
        others = [other for other in self.views.values() if isinstance(other.scope, AssetScope) and other is not view]
        if view.is_united or isinstance(view.scope, TaskScope) or not others:
            return
        for asset in (view, *others):
            if not asset.scope_id:
                found: Found = yield Read(asset.scope, (), fence=asset.fence)
                asset.scope_id = found.scope_id
        for other in others:
            if other.scope_id and other.scope_id == view.scope_id:
                view.seen, view.by_name = other.seen, other.by_name
                view.prefixes, view.pending = other.prefixes, other.pending
        view.is_united = True

    def refuse_ended(self) -> None:
        if self.ended:
            raise RuntimeError("this transaction has ended; begin another one with state.transaction()")

    def _commit(self) -> Plan[None]:
        self.ended = True
        distinct = {id(view.pending): view for view in self.views.values()}
        parts = tuple(part for view in distinct.values() if (part := view.part()) is not None)
        if parts:
            try:
                yield Commit(parts, self.root.fence, self.root.writer, self.root.clock())
            except Conflict as conflict:
                raise as_seen(conflict) from None

    def __enter__(self) -> V:
        self.refuse_ended()
        return cast(V, self.view(self.root))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            run(self._commit(), self.root.backend)
        self.ended = True

    async def __aenter__(self) -> V:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await arun(self._commit(), self.root.backend)
        self.ended = True


def _is_blind(operation: Operation) -> bool:
    """Say whether an operation needs no look at what is stored."""
    return isinstance(operation, Remove) or (isinstance(operation, Put) and not operation.keep_expiry)
