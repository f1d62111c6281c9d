"""What is left of a task instance that has succeeded: nothing, in one commit, unless a newer try has begun."""

from __future__ import annotations

import logging
from typing import Any

from ...errors import StaleAttempt, Unauthorized
from ...requests import Commit, Fence, Open, Opened, Part, Read, RemoveAll
from ...store import Store
from ...values import TaskScope, Writer, task_scope
from . import where

__all__ = ["clear"]

logger = logging.getLogger("outlast")

#: Seconds for which a task that has succeeded waits for a store that is away: Airflow 2.x holds a transaction open.
PATIENCE = 5.0


def clear(ti: Any) -> None:
    """Remove the entries of a task instance with their history, and make no scope for that where it can be seen."""
    store = where.open_store(PATIENCE)
    index = -1 if ti.map_index is None else int(ti.map_index)
    scope = task_scope(ti.dag_id, ti.run_id, ti.task_id, index)
    if not _may_exist(store, scope):
        return
    try:
        _erase(store, scope, max(1, int(ti.try_number or 1)))
    except StaleAttempt as error:
        logger.warning("outlast: the state of %s is not removed: %s", scope, error)
    else:
        logger.info("outlast: %s has succeeded; its state is removed ([state_store] clear_on_success)", scope)


def _may_exist(store: Store, scope: TaskScope) -> bool:
    try:
        return bool(store.backend.send(Read(scope, None, texts=False, limit=1)).scope_id)
    except Unauthorized:  # a worker's token is for what it opens
        return True


def _erase(store: Store, scope: TaskScope, attempt: int) -> None:
    opened: Opened = store.backend.send(Open(scope, attempt))
    fence = Fence(scope, opened.attempt, opened.scope_id)
    part = Part(scope, (RemoveAll(history=True),))
    store.backend.send(Commit((part,), fence, Writer("task", opened.attempt, None, scope), store.clock()))
