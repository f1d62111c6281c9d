"""What is an attempt's own, by its token: its fence, its scope and its assets; pure."""

from __future__ import annotations

import msgspec

from ..errors import NotFound, Unauthorized
from ..requests import Fence
from ..values import AssetScope, Scope, TaskScope
from .identity import Who

__all__ = ["own_fence", "own_scope"]


def own_fence(who: Who) -> Fence:
    """Return the attempt that a token names; Unauthorized if it names none."""
    if who.fence is None:
        raise Unauthorized("this token names no attempt")
    return who.fence


def own_scope(scope: Scope, who: Who) -> Scope:
    """Return the token's own scope, or an asset of its own, where that is what a request means."""
    own = own_fence(who).scope
    if isinstance(scope, TaskScope):
        if _is_same_place(scope, own):
            return own
    elif any(_is_same_asset(scope, asset) for asset in who.assets):
        return scope
    raise NotFound(f"there is no {scope} for an attempt of {own}; its inlets and outlets are named when it begins")


def _is_same_place(scope: TaskScope, own: TaskScope) -> bool:
    """The position of the own item means the own scope, too."""
    return scope == own or (scope.item is None and scope == msgspec.structs.replace(own, item=None))


def _is_same_asset(scope: AssetScope, asset: AssetScope) -> bool:
    """A request may say less than the token, but bind no other name or URI to the asset."""
    pairs = ((scope.name, asset.name), (scope.uri, asset.uri))
    return any(asked is not None for asked, _ in pairs) and all(asked in (None, known) for asked, known in pairs)
