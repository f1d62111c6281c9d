"""Commits as portable SQL, one or a batch in one transaction: lock, fence, load, decide each in turn, save once.

What a commit means is decided in `rules` over a picture of the entries, so that a commit sees what those before
it in its batch have done, and one that is refused fails alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from .. import rules
from ..errors import InvalidKey, NotFound, OutlastError
from ..requests import Commit, Increment, Part, Put, PutDefault, Receipt, RemoveAll, Row
from ..values import AssetScope, Scope, TaskScope, Writer, address
from .receipts import ReceiptsSQL, asked_of
from .rows import COLUMNS, padded, read_row, upsert, writer_text
from .scopes import ScopeRow
from .sql import StateSQL

__all__ = ["CommitsSQL"]

logger = logging.getLogger("outlast")

#: Where a person wrote, what was there before, the row there is now, and who it was.
_Audited: TypeAlias = tuple[Scope, str | None, Row, Writer]

_ENTRY = "value, revision, updated_at, expires_at, writer, version, kept, ring"


class CommitsSQL:
    """Answers commits through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL, receipts: ReceiptsSQL) -> None:
        self.state, self.receipts = state, receipts

    def commit(self, request: Commit, now: int) -> Receipt:
        """Carry out one commit; raises and changes nothing if any part of it fails."""
        if len(request.parts) == 1 and request.commit_id is None and (request.fence is None or _is_own(request)):
            return self._commit_one(request, now)
        reply = self.commit_all((request,), now)[0]
        if isinstance(reply, OutlastError):
            raise reply
        return reply

    def _commit_one(self, request: Commit, now: int) -> Receipt:
        """Carry out a commit on one scope, most of which are, without the ado of a batch."""
        part = request.parts[0]
        scope = self._lock_one(request, part, now)
        if request.fence is not None:
            rules.check_fence(request.fence, scope.id if scope else None, scope.fence if scope else 0)
            rules.check_writer(request.fence, scope.done if scope else 0)
        picture = _Picture(part.scope, scope or ScopeRow(0, 0, 0, 0, None))
        if scope is not None:
            names, prefix = rules.touches(part.operations)
            picture.take(self.state.load(scope.id, names, prefix), self.state.ring.size)
        elif not request.create:
            _refuse_missing((picture,))
        by = rules.local(request.writer, part.scope)
        decision = rules.decide(part.operations, picture.rows, picture.scope.revision, now, by)
        audits = _noted(part.scope, picture, decision, request.writer, now)
        picture.apply(decision)
        if picture.changed:
            self._save((picture,), audits, now)
        elif scope is not None and scope.made:
            self._drop_unused((picture,))
        return Receipt((decision.revision,), (decision.results,))

    def _lock_one(self, request: Commit, part: Part, now: int) -> ScopeRow | None:
        if request.fence is not None:
            return self.state.find_id(request.fence.scope_id)
        if request.create and _writes(part):
            return self.state.lock_scope(part.scope, now)
        return self.state.find_scope(part.scope)

    def commit_all(self, requests: Sequence[Commit], now: int) -> list[Receipt | OutlastError]:
        """Carry out commits in their order, and save all at once; one that was carried out before is not again.

        OutlastError if they cannot be carried out together but one by one.
        """
        asked = asked_of(requests)
        known: dict[str | None, Receipt | OutlastError] = {**self.receipts.find(requests, asked)}
        fresh = [request for request in requests if request.commit_id not in known]
        if len(requests) > 1 and (_disagree(fresh) or _share_names(fresh) or _erase(fresh)):
            raise OutlastError("these commits are carried out one by one")  # each locks in order, but not all in turn
        batch = _Batch(self.state, self._lock(fresh, now), now)
        batch.load(fresh)
        replies: list[Receipt | OutlastError] = []
        for request in requests:
            reply = known.get(request.commit_id) or batch.answer(request)
            if request.commit_id is not None and isinstance(reply, Receipt):
                known[request.commit_id] = reply
            replies.append(reply)
        changed = [picture for picture in batch.pictures.values() if picture.changed]
        if changed:
            self._save(changed, batch.audits, now)
        self._drop_unused(batch.pictures.values())
        found = [(each, known.get(each.commit_id)) for each in fresh]
        done = [(each, reply, batch.homes(each)) for each, reply in found if isinstance(reply, Receipt)]
        self.receipts.keep(done, asked, now)
        return replies

    def _lock(self, requests: Sequence[Commit], now: int) -> dict[Scope, ScopeRow]:
        """Return the scopes of commits and their fences, locked; missing ones are made if something will be saved."""
        fences = [request.fence for request in requests if request.fence is not None]
        scopes = {part.scope for request in requests for part in request.parts}
        make = {part.scope for request in requests if request.create for part in request.parts if _writes(part)}
        return self.state.lock_scopes(scopes | {fence.scope for fence in fences}, make, now, fences)

    def _save(self, pictures: Sequence[_Picture], audits: Iterable[_Audited], now: int) -> None:
        state = self.state
        for picture in pictures:
            if isinstance(picture.place, AssetScope):
                state.name_asset(picture.place, picture.scope, now)
            for name in picture.misplaced.keys() & picture.changed.keys():
                state.ring.lay_out(picture.scope.id, picture.misplaced[name])
            state.ring.forget(picture.scope.id, picture.forget)
            if picture.erased:
                self.receipts.forget(picture.scope.id)
        state.ring.keep([(picture.scope.id, row) for picture in pictures for row in picture.past])
        rows = [
            _columns(picture.scope.id, state.ring.following(picture.scope.id, picture.changed[name]))
            for picture in pictures
            for name in sorted(picture.changed)
        ]
        upsert(state.execute, "entry", "scope_id, name", _ENTRY, rows)
        self._touch(pictures, now)
        state.feed.record([(picture.scope.id, number) for picture in pictures for number in picture.revisions], now)
        for audited in audits:
            self._audit(audited, now)

    def _touch(self, pictures: Sequence[_Picture], now: int) -> None:
        for picture in pictures:
            earliest = picture.scope.sweep_at
            for row in picture.changed.values():
                due = self._due(row)
                if due is not None and (earliest is None or due < earliest):
                    earliest = due
            if earliest != picture.scope.sweep_at:
                self.state.execute("update scope set sweep_at = ? where id = ?", (earliest, picture.scope.id))
        if len(pictures) == 1:  # without sweep_at, whose index would be written as well
            scope = pictures[0].scope
            values: Sequence[Any] = (scope.revision, now, scope.id)
            self.state.execute("update scope set revision = ?, changed_at = ? where id = ?", values)
            return
        for part in padded(pictures):
            places = ", ".join(["(?, ?)"] * len(part))
            values = [now, *chain.from_iterable((picture.scope.id, picture.scope.revision) for picture in part)]
            self.state.execute(
                f"update scope set revision = given.column2, changed_at = ? from (values {places}) as given"
                " where scope.id = given.column1",
                values,
            )

    def _due(self, row: Row) -> int | None:
        """Return when the sweeper may have something to do for a row."""
        if row.text is not None or (self.state.ring.size and row.version > 1):
            return row.expires_at
        return min(row.updated_at + self.state.feed_span, row.expires_at or row.updated_at + self.state.feed_span)

    def _audit(self, audited: _Audited, now: int) -> None:
        scope, before, row, writer = audited
        dag_id = scope.dag_id if isinstance(scope, TaskScope) else None
        action, who = "delete" if row.text is None else "set", writer.name or writer.kind
        self.state.audit.record(
            now, who, action, str(scope), dag_id=dag_id, name=row.name, before=before, after=row.text
        )

    def _drop_unused(self, pictures: Iterable[_Picture]) -> None:
        """Remove scopes made for commits that were then refused, or in the end changed nothing."""
        for picture in pictures:
            if picture.scope.made and not picture.changed:
                self.state.execute(
                    "delete from scope where id = ? and revision = 0 and fence = 0"
                    " and not exists (select 1 from task where scope_id = scope.id)",
                    (picture.scope.id,),
                )


class _Picture(msgspec.Struct):
    """One scope as the commits before have left it: its rows that are known, and what there is to save."""

    place: Scope
    scope: ScopeRow
    rows: dict[str, Row] = {}
    changed: dict[str, Row] = {}
    past: list[Row] = []
    forget: list[str] = []
    revisions: list[int] = []
    misplaced: dict[str, Row] = {}
    erased: bool = False

    def take(self, rows: Iterable[Row], ring: int) -> None:
        """Take rows that were loaded into the picture, noting those whose past is laid out for another ring."""
        for row in rows:
            self.rows[row.name] = row
            if row.ring and row.ring != ring:
                self.misplaced[row.name] = row

    def apply(self, decision: rules.Decision) -> None:
        """Take over what one commit does to this scope."""
        self.erased |= decision.erased
        if decision.forget:
            gone = set(decision.forget)
            self.forget += decision.forget
            self.past = [row for row in self.past if row.name not in gone]
        if decision.rows:
            self.past += decision.past
            self.rows |= decision.rows
            self.changed |= decision.rows
            self.scope.revision = decision.revision
            self.revisions.append(decision.revision)


class _Batch:
    """Commits that are decided one after the other over the same pictures."""

    def __init__(self, state: StateSQL, scopes: Mapping[Scope, ScopeRow], now: int) -> None:
        self.state, self.scopes, self.now = state, scopes, now
        self.pictures: dict[Any, _Picture] = {}
        self.audits: list[_Audited] = []

    def load(self, requests: Sequence[Commit]) -> None:
        """Load the entries that commits touch: by name in as few statements as there can be, then by prefix."""
        wanted: dict[int, set[str]] = {}
        prefixes: set[tuple[int, str]] = set()
        for part in chain.from_iterable(request.parts for request in requests):
            picture = self._picture(part.scope)
            if picture.scope.id:
                names, prefix = rules.touches(part.operations)
                wanted.setdefault(picture.scope.id, set()).update(names)
                if prefix is not None:
                    prefixes.add((picture.scope.id, prefix))
        if len(wanted) == 1:
            [(scope_id, names)] = wanted.items()
            self._take(scope_id, self.state.load(scope_id, names))
        else:
            self._load_across([(scope_id, name) for scope_id in sorted(wanted) for name in sorted(wanted[scope_id])])
        for scope_id, prefix in prefixes:
            self._take(scope_id, self.state.load(scope_id, (), prefix))

    def _load_across(self, places: Sequence[tuple[int, str]]) -> None:
        for part in padded(places):
            found = self.state.execute(
                f"select scope_id, {COLUMNS} from entry where (scope_id, name) in"
                f" (values {', '.join(['(?, ?)'] * len(part))})",
                list(chain.from_iterable(part)),
            )
            for scope_id, *columns in found:
                self._take(scope_id, [read_row(columns)])

    def _take(self, scope_id: int, rows: Iterable[Row]) -> None:
        self.pictures[scope_id].take(rows, self.state.ring.size)

    def _picture(self, place: Scope) -> _Picture:
        scope = self.scopes.get(place) or ScopeRow(0, 0, 0, 0, None)
        key = scope.id or address(place)
        picture = self.pictures.get(key)
        if picture is None:
            picture = self.pictures[key] = _Picture(place, scope)
        return picture

    def homes(self, request: Commit) -> list[int]:
        """Return the ids of the scopes that the values of a commit's receipt go with; 0 where none is to be left."""
        pictures = [self._picture(part.scope) for part in request.parts]
        return [0 if picture.erased else picture.scope.id for picture in pictures]

    def answer(self, request: Commit) -> Receipt | OutlastError:
        """Decide one commit, and take over what it does; return its error if it is refused."""
        try:
            decided = self._decide(request)
        except OutlastError as error:
            return error
        for part, (picture, decision) in zip(request.parts, decided, strict=True):
            self.audits += _noted(part.scope, picture, decision, request.writer, self.now)
            if isinstance(part.scope, AssetScope) and None not in (part.scope.name, part.scope.uri):
                picture.place = part.scope
            picture.apply(decision)
        return Receipt(tuple([d.revision for _, d in decided]), tuple([d.results for _, d in decided]))

    def _decide(self, request: Commit) -> list[tuple[_Picture, rules.Decision]]:
        self._check_fence(request)
        pictures = [self._picture(part.scope) for part in request.parts]
        if len({id(picture) for picture in pictures}) < len(pictures):
            raise InvalidKey(
                "two parts of one commit mean the same task instance or asset; put their operations together"
            )
        if not request.create:
            _refuse_missing(pictures)
        decided: list[tuple[_Picture, rules.Decision]] = []
        answered = 0
        for part, picture in zip(request.parts, pictures, strict=True):
            decision = self._decided(part, picture, request.writer, answered)
            decided.append((picture, decision))
            answered = decision.answered
        return decided

    def _decided(self, part: Part, picture: _Picture, writer: Writer, answered: int) -> rules.Decision:
        by = rules.local(writer, part.scope)
        return rules.decide(part.operations, picture.rows, picture.scope.revision, self.now, by, answered)

    def _check_fence(self, request: Commit) -> None:
        if request.fence is not None:
            found = self.scopes.get(request.fence.scope)
            rules.check_fence(request.fence, found.id if found else None, found.fence if found else 0)
            rules.check_writer(request.fence, found.done if found else 0)


def _noted(place: Scope, picture: _Picture, decision: rules.Decision, writer: Writer, now: int) -> Sequence[_Audited]:
    """Return what the audit log is to say of a decision: nothing unless a person has made it."""
    if writer.kind != "person":
        return ()
    before = {name: rules.alive(picture.rows.get(name), now) for name in decision.rows}
    texts = {name: row.text if row else None for name, row in before.items()}
    return [(place, texts[name], row, writer) for name, row in decision.rows.items()]


def _is_own(request: Commit) -> bool:
    """Say whether a fenced commit with one part changes the fence's own scope."""
    return request.fence is not None and request.fence.scope == request.parts[0].scope


def _refuse_missing(pictures: Iterable[_Picture]) -> None:
    for picture in pictures:
        if not picture.scope.id or (picture.scope.made and not picture.changed):
            raise NotFound(f"there is no {picture.place}; check the ids, or let a run create it first")


def _disagree(requests: Sequence[Commit]) -> bool:
    """Say whether one address may mean two scopes: that of a fence, and the one that is there now."""
    ids: dict[Scope, int] = {}
    fences = [request.fence for request in requests if request.fence is not None]
    if any(ids.setdefault(fence.scope, fence.scope_id) != fence.scope_id for fence in fences):
        return True
    return any(
        part.scope in ids and (request.fence is None or request.fence.scope != part.scope)
        for request in requests
        for part in request.parts
    )


def _erase(requests: Iterable[Commit]) -> bool:
    """Say whether a commit leaves no past value, so that receipts of those before it have to go as well."""
    parts = chain.from_iterable(request.parts for request in requests)
    return any(
        isinstance(operation, RemoveAll) and operation.history for part in parts for operation in part.operations
    )


def _share_names(requests: Iterable[Commit]) -> bool:
    """Say whether an asset is meant by both its names and by one of them: which, the commits before it may decide."""
    parts = chain.from_iterable(request.parts for request in requests)
    assets = {part.scope for part in parts if isinstance(part.scope, AssetScope)}
    whole = [asset for asset in assets if asset.name is not None and asset.uri is not None]
    return any(
        asset != other and (asset.name == other.name or asset.uri == other.uri) for other in whole for asset in assets
    )


def _writes(part: Part) -> bool:
    """Say whether carrying out a part on an absent scope leaves something to save."""
    return any(isinstance(operation, Put | PutDefault | Increment) for operation in part.operations)


def _columns(scope_id: int, row: Row) -> tuple[Any, ...]:
    by = writer_text(row.writer)
    return (
        *(scope_id, row.name, row.text, row.revision, row.updated_at, row.expires_at),
        *(by, row.version, row.kept, row.ring),
    )
