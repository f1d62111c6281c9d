"""What is left of a task instance that has succeeded: nothing, in one commit, unless a newer try has begun."""

from __future__ import annotations

import logging
from typing import Any

from ...errors import StaleAttempt, Unauthorized
from ...requests import Commit, Fence, Open, Opened, Part, Read, RemoveAll
from ...store import Store
from ...values import TaskScope, Writer
from . import where
from .identity import Identity, identity_of_instance

__all__ = ["clear", "erase"]

logger = logging.getLogger("outlast")

#: Seconds for which a task that has succeeded waits for a store that is away: Airflow 2.x holds a transaction open.
PATIENCE = 5.0


def clear(ti: Any) -> None:
    """Remove the entries of a task instance with their history."""
    with where.make_store(PATIENCE) as store:
        erase(store, identity_of_instance(ti))


def erase(store: Store, who: Identity) -> None:
    """Remove what a try of a task instance may remove, and make no scope for that where it can be seen.

    The try of an earlier run may not, though it has the number of a later one's.
    """
    scope = who.scope
    if not _may_exist(store, scope):
        return
    try:
        _erase(store, who)
    except StaleAttempt as error:
        logger.warning("outlast: the state of %s is not removed: %s", scope, error)
    else:
        logger.info("outlast: %s has succeeded; its state is removed ([state_store] clear_on_success)", scope)


def _may_exist(store: Store, scope: TaskScope) -> bool:
    try:
        return bool(store.backend.send(Read(scope, None, texts=False, limit=1)).scope_id)
    except Unauthorized:  # a worker's token is for what it opens
        return True


def _erase(store: Store, who: Identity) -> None:
    scope = who.scope
    opened: Opened = store.backend.send(Open(scope, who.attempt, (), who.origin, who.started))
    fence = Fence(scope, opened.attempt, opened.scope_id)
    part = Part(scope, (RemoveAll(history=True),))
    store.backend.send(Commit((part,), fence, Writer("task", opened.attempt, None, scope), store.clock()))
