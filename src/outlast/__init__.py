"""outlast: what a task learned outlasts the crash that killed it.

The public names, and nothing else; each is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dags.assets import Asset as Asset
    from .dags.assets import AssetAlias as AssetAlias
    from .dags.assets import AssetAll as AssetAll
    from .dags.assets import AssetAny as AssetAny
    from .dags.assets import AssetNameRef as AssetNameRef
    from .dags.assets import AssetUriRef as AssetUriRef
    from .dags.assets import AssetWatcher as AssetWatcher
    from .dags.assets import Metadata as Metadata
    from .dags.assets import asset as asset
    from .dags.context import get_current_context as get_current_context
    from .dags.graph import DAG as DAG
    from .dags.graph import dag as dag
    from .dags.links import chain as chain
    from .dags.operators import BaseOperator as BaseOperator
    from .dags.outcomes import FailTask as FailTask
    from .dags.outcomes import SensorTimeout as SensorTimeout
    from .dags.outcomes import SkipTask as SkipTask
    from .dags.outcomes import TaskDeferralError as TaskDeferralError
    from .dags.outcomes import TaskDeferralTimeout as TaskDeferralTimeout
    from .dags.outcomes import TaskDeferred as TaskDeferred
    from .dags.outcomes import TaskError as TaskError
    from .dags.outcomes import TaskRescheduled as TaskRescheduled
    from .dags.outcomes import TaskTimeout as TaskTimeout
    from .dags.params import Param as Param
    from .dags.resumable import JobNotFound as JobNotFound
    from .dags.resumable import JobRefused as JobRefused
    from .dags.resumable import ResumableJobMixin as ResumableJobMixin
    from .dags.resumable import ResumeDecision as ResumeDecision
    from .dags.sensors import BaseSensorOperator as BaseSensorOperator
    from .dags.sensors import PokeReturnValue as PokeReturnValue
    from .dags.task_functions import task as task
    from .dags.triggers import BaseEventTrigger as BaseEventTrigger
    from .dags.triggers import BaseTrigger as BaseTrigger
    from .dags.triggers import DateTimeTrigger as DateTimeTrigger
    from .dags.triggers import TimeDeltaTrigger as TimeDeltaTrigger
    from .dags.triggers import TriggerEvent as TriggerEvent
    from .errors import BackendError as BackendError
    from .errors import ConfigError as ConfigError
    from .errors import Conflict as Conflict
    from .errors import DagError as DagError
    from .errors import InvalidKey as InvalidKey
    from .errors import InvalidValue as InvalidValue
    from .errors import NotFound as NotFound
    from .errors import OutlastError as OutlastError
    from .errors import StaleAttempt as StaleAttempt
    from .errors import Unauthorized as Unauthorized
    from .errors import ValueTooLarge as ValueTooLarge
    from .finding import Match as Match
    from .state import AssetState as AssetState
    from .state import TaskState as TaskState
    from .store import Store as Store
    from .store import connect as connect
    from .values import NEVER_EXPIRE as NEVER_EXPIRE
    from .values import AssetScope as AssetScope
    from .values import Change as Change
    from .values import Cursor as Cursor
    from .values import Entry as Entry
    from .values import JsonValue as JsonValue
    from .values import Reset as Reset
    from .values import ScopeInfo as ScopeInfo
    from .values import TaskScope as TaskScope
    from .values import Version as Version
    from .values import Writer as Writer

_HOMES = {
    "dags.assets": "Asset AssetAlias AssetAll AssetAny AssetNameRef AssetUriRef AssetWatcher Metadata asset",
    "dags.context": "get_current_context",
    "dags.graph": "DAG dag",
    "dags.links": "chain",
    "dags.operators": "BaseOperator",
    "dags.outcomes": "FailTask SensorTimeout SkipTask TaskDeferralError TaskDeferralTimeout TaskDeferred "
    "TaskError TaskRescheduled TaskTimeout",
    "dags.params": "Param",
    "dags.resumable": "JobNotFound JobRefused ResumableJobMixin ResumeDecision",
    "dags.sensors": "BaseSensorOperator PokeReturnValue",
    "dags.task_functions": "task",
    "dags.triggers": "BaseEventTrigger BaseTrigger DateTimeTrigger TimeDeltaTrigger TriggerEvent",
    "errors": "BackendError ConfigError Conflict DagError InvalidKey InvalidValue NotFound OutlastError "
    "StaleAttempt Unauthorized ValueTooLarge",
    "finding": "Match",
    "state": "AssetState TaskState",
    "store": "Store connect",
    "values": "NEVER_EXPIRE AssetScope Change Cursor Entry JsonValue Reset ScopeInfo TaskScope Version Writer",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
