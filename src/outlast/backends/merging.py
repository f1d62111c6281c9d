"""Making one asset of two that are the same, known by a name and by a URI; and forgetting an asset or its name."""

from __future__ import annotations

import msgspec

from ..errors import Conflict, InvalidKey, NotFound
from ..requests import ForgetAsset, Forgotten, MergeAssets, Merged, Row
from ..values import AssetScope, Scope, address, asset_scope
from .scopes import ScopeRow
from .sql import StateSQL

__all__ = ["MergingSQL"]


class MergingSQL:
    """Answers through the connection of a `StateSQL`."""

    def __init__(self, state: StateSQL) -> None:
        self.state, self.execute = state, state.execute

    def merge(self, request: MergeAssets, now: int) -> Merged:
        """Move what is known by a URI to the asset of a name, history included; the URI is its own from then on."""
        whole = asset_scope(request.name, request.uri)
        named, other = self._pair(whole)
        self._audit(request, now)
        if named is None or other is None or named.id == other.id:
            self.state.lock_scope(whole, now)
            return Merged((), ())
        moved, dropped = self._sorted(request, named, other)
        self._audit_dropped(request, dropped, now)
        revision = max(named.revision, other.revision) + 1
        for name in moved:
            self._move(named.id, other.id, name, revision)
        self.execute("update receipt set scope_id = ? where scope_id = ?", (named.id, other.id))
        self.state.erase_scope(other.id)
        self._unite(named, other, request.uri, revision if moved else named.revision, now)
        self.state.feed.announce(named.id, now)
        return Merged(tuple(moved), tuple(dropped))

    # --- forgetting ------------------------------------------------------------------------------------------

    def forget(self, request: ForgetAsset, now: int) -> Forgotten:
        """Forget a name of an asset, or the whole of one that has no entries any more."""
        asked = asset_scope(request.name, request.uri)
        self.state.stand_alone_for_names()
        row = self.state.find_scope(asked)
        if row is None:
            raise NotFound(f"there is no {asked} that has, or had, state; `outlast assets ls` lists those there are")
        [(name, uri)] = self.execute("select asset_name, asset_uri from scope where id = ?", (row.id,))
        if request.whole:
            self._drop(asked, row, now)
        else:
            self._unname(asked, row, AssetScope(None, uri) if request.uri is None else AssetScope(name), now)
        self._record(request, asked, Forgotten(name, uri), now)
        return Forgotten(name, uri)

    def _drop(self, asked: AssetScope, row: ScopeRow, now: int) -> None:
        live = [entry.name for entry in self.state.load(row.id, (), "") if entry.text is not None]
        if live:
            raise Conflict(f"{asked} has entries ({', '.join(live[:5])}); remove these first: outlast state clear")
        self.state.drop_scopes([row.id], now)

    def _unname(self, asked: AssetScope, row: ScopeRow, left: AssetScope, now: int) -> None:
        if left == AssetScope():
            raise Conflict(f"{asked} has no other name, so nothing would lead to its state; to remove it: assets rm")
        self.state.feed.gone([row.id], now, asked if asked.uri is None else AssetScope(None, asked.uri))
        self.execute(
            "update scope set digest = ?, asset_name = ?, asset_uri = ? where id = ?",
            (address(left), left.name, left.uri, row.id),
        )
        self.state.feed.announce(row.id, now)

    def _record(self, request: ForgetAsset, asked: AssetScope, had: Forgotten, now: int) -> None:
        who, action = request.writer.name or request.writer.kind, "remove asset" if request.whole else "unname asset"
        before = msgspec.json.encode({"name": had.name, "uri": had.uri}).decode()
        self.state.audit.record(now, who, action, str(asked), before=before)

    # --- merging ---------------------------------------------------------------------------------------------

    def _pair(self, whole: AssetScope) -> tuple[ScopeRow | None, ScopeRow | None]:
        """Return the scopes of the name and of the URI, locked in the order all scopes are locked in."""
        self.state.stand_alone_for_names()
        scopes: list[Scope] = [AssetScope(whole.name), AssetScope(None, whole.uri)]
        found = self.state.lock_scopes(scopes)
        named, other = found.get(scopes[0]), found.get(scopes[1])
        if named is None and other is None:
            raise NotFound(
                f"there is neither an asset {whole.name!r} nor one with URI {whole.uri!r}; see outlast assets ls"
            )
        for scope, row in ((whole, named), (whole, other)):
            self._refuse_other(scope, row)
        return named, other

    def _refuse_other(self, whole: AssetScope, row: ScopeRow | None) -> None:
        """Refuse an asset that already has another name or URI."""
        for name, uri in (
            () if row is None else self.execute("select asset_name, asset_uri from scope where id = ?", (row.id,))
        ):
            for what, known, given in (("name", name, whole.name), ("URI", uri, whole.uri)):
                if known is not None and known != given:
                    raise InvalidKey(
                        f"{whole.name!r} with {whole.uri!r}: this asset's {what} is {known!r}, not {given!r}"
                    )

    def _sorted(
        self, request: MergeAssets, named: ScopeRow, other: ScopeRow
    ) -> tuple[list[str], dict[str, tuple[Row, Row]]]:
        """Return the keys to move, and the values that give way, each with the one that stays."""
        mine = {row.name: row for row in self.state.load(named.id, (), "")}
        moved: list[str] = []
        clashes: dict[str, tuple[Row, Row]] = {}
        for row in self.state.load(other.id, (), ""):
            there = mine.get(row.name)
            if there is None or (there.text is None and row.text is not None):
                moved.append(row.name)
            elif row.text is not None and row.text != there.text:
                clashes[row.name] = (row, there)
        if clashes and request.prefer is None:
            raise Conflict(
                f"asset {request.name!r} and the one with URI {request.uri!r} have different values under "
                f"{', '.join(map(repr, clashes))}; say whose stay, with --prefer name or --prefer uri"
            )
        if request.prefer == "uri":
            moved += clashes
            clashes = {name: (there, row) for name, (row, there) in clashes.items()}
        return moved, clashes

    def _move(self, named: int, other: int, name: str, revision: int) -> None:
        for table in ("history", "entry"):
            self.execute(f"delete from {table} where scope_id = ? and name = ?", (named, name))
            self.execute(f"update {table} set scope_id = ? where scope_id = ? and name = ?", (named, other, name))
        self.execute("update entry set revision = ? where scope_id = ? and name = ?", (revision, named, name))

    def _unite(self, named: ScopeRow, other: ScopeRow, uri: str, revision: int, now: int) -> None:
        due = [moment for moment in (named.sweep_at, other.sweep_at) if moment is not None]
        self.execute(
            "update scope set asset_uri = ?, revision = ?, changed_at = ?, sweep_at = ? where id = ?",
            (uri, revision, now, min(due, default=None), named.id),
        )

    def _audit(self, request: MergeAssets, now: int) -> None:
        who, after = request.writer.name or request.writer.kind, msgspec.json.encode(request.uri).decode()
        self.state.audit.record(now, who, "merge assets", f"asset {request.name}", after=after)

    def _audit_dropped(self, request: MergeAssets, dropped: dict[str, tuple[Row, Row]], now: int) -> None:
        who, place = request.writer.name or request.writer.kind, f"asset {request.name}"
        for name, (gone, stays) in dropped.items():
            self.state.audit.record(now, who, "merge", place, name=name, before=gone.text, after=stays.text)
