"""The state of a task's inlets and outlets, as the task has it in its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..values import AssetScope
from .arguments import did_you_mean
from .asset_definitions import Known, OneAsset, agree, distinct, scope_of

if TYPE_CHECKING:
    from ..state import AssetState, TaskState

__all__ = ["AssetStates", "accessors"]


def accessors(task_state: TaskState, inlets: Iterable[Any], outlets: Iterable[Any]) -> AssetStates | None:
    """Return a task's `asset_state_store`, None when it has neither inlet nor outlet.

    What is written through it is fenced with the task's attempt, and written in its name.
    """
    items = [*inlets, *outlets]
    if not items:
        return None
    return AssetStates(items, lambda scope: task_state.asset(scope.name, uri=scope.uri))


class AssetStates:
    """The state of a task's inlets and outlets: `asset_state_store[asset]` has the verbs of `AssetState`.

    With exactly one asset the verbs also work directly: `asset_state_store.set("watermark", 7)`.
    """

    def __init__(self, items: Iterable[Any], state_of: Callable[[AssetScope], AssetState]) -> None:
        self._assets = [(asset, state_of(scope)) for asset, scope in distinct(items)]

    def __getitem__(self, asset: Known) -> AssetState:
        if not isinstance(asset, OneAsset):
            raise TypeError(f"asset_state_store is subscripted by an Asset or Asset.ref(...), not by {asset!r}")
        for known, state in self._assets:
            if known.matches(asset.name, asset.uri) and agree(state.scope, scope_of(asset)):
                return state
        raise KeyError(f"{asset!r} is neither an inlet nor an outlet of this task; it has {self._names()}")

    def __iter__(self) -> Iterator[Known]:
        return iter([asset for asset, _ in self._assets])

    def __len__(self) -> int:
        return len(self._assets)

    def __contains__(self, asset: object) -> bool:
        try:
            return self[asset] is not None  # type: ignore[index]
        except KeyError:
            return False

    def __getattr__(self, name: str) -> Any:
        """Hand what `AssetState` has on to the only asset there is."""
        if name.startswith("_"):
            raise AttributeError(name)
        if len(self._assets) != 1:
            raise ValueError(
                f"asset_state_store.{name} needs exactly one asset, and this task has {len(self._assets)} "
                f"as inlets and outlets ({self._names()}); {self._instead(name)}"
            )
        state = self._assets[0][1]
        if not hasattr(state, name):
            verbs = [verb for verb in dir(state) if not verb.startswith("_")]
            raise AttributeError(f"asset_state_store has no {name!r}{did_you_mean(name, verbs)}")
        return getattr(state, name)

    def _names(self) -> str:
        return ", ".join(repr(asset) for asset in self) or "no asset; an AssetAlias has no state of its own"

    def _instead(self, name: str) -> str:
        return f"say which: asset_state_store[asset].{name}" if self._assets else "add one, such as outlets=[asset]"

    def __repr__(self) -> str:
        return f"<asset_state_store of {self._names()}>"
