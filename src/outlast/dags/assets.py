"""All there is of assets: what DAG files use, and what the runner does with it around an attempt."""

from __future__ import annotations

from .asset_definitions import (
    Asset,
    AssetAlias,
    AssetAll,
    AssetAny,
    AssetNameRef,
    AssetUriRef,
    AssetWatcher,
    BaseAsset,
    condition_of,
)
from .asset_events import (
    AssetEvent,
    Metadata,
    OutletEvents,
    TriggeringEvents,
    events_of,
    provide,
    triggering,
)
from .asset_functions import AssetFunction, MultiAssetFunction, asset
from .asset_states import AssetStates, accessors

__all__ = [
    "Asset",
    "AssetAlias",
    "AssetAll",
    "AssetAny",
    "AssetEvent",
    "AssetFunction",
    "AssetNameRef",
    "AssetStates",
    "AssetUriRef",
    "AssetWatcher",
    "BaseAsset",
    "Metadata",
    "MultiAssetFunction",
    "OutletEvents",
    "TriggeringEvents",
    "accessors",
    "asset",
    "condition_of",
    "events_of",
    "provide",
    "triggering",
]
