"""What a backend is asked about attempts that wait for a trigger: what for, and how they go on."""

from __future__ import annotations

import msgspec

from .requests import Asked, Fence
from .values import TaskScope


class Deferral(Asked, frozen=True):
    """What a deferred attempt waits for, and how it goes on: texts are JSON, `timeout` is in seconds."""

    trigger_path: str
    trigger_kwargs: str
    next_method: str
    next_kwargs: str = "{}"
    timeout: float | None = None


class GetDeferral(Asked, frozen=True, tag="get_deferral"):
    """Ask, as the attempt that goes on, what it was deferred for and what came of it; StaleAttempt if it is over."""

    fence: Fence


class Resumption(msgspec.Struct, frozen=True, tag="resumption"):
    """`event` is JSON text: `{"event": …}`, `{"error": "…"}` or `{"timeout": true}`; None after a reschedule."""

    deferral: Deferral | None
    event: str | None


class ListDeferred(Asked, frozen=True, tag="list_deferred"):
    """Ask for the deferred task instances of some runs (their ids).

    With `entrust` a server gives with the reply a token for the process that runs their triggers; other stores have
    none to give.
    """

    runs: tuple[int, ...]
    entrust: bool = False


class DeferredRow(msgspec.Struct, frozen=True):
    """A deferred task instance, and the trigger it waits for; `number` counts the deferrals of the task instance.

    `deadline` is in microseconds since the epoch.
    """

    scope: TaskScope
    scope_id: int
    attempt: int
    deferral: Deferral
    deadline: int | None
    number: int = 1


class DeferredRows(msgspec.Struct, frozen=True, tag="deferred_rows"):
    rows: tuple[DeferredRow, ...]


class Fire(Asked, frozen=True, tag="fire"):
    """Let a deferred attempt go on, with JSON text as in Resumption; nothing happens when it waits no more.

    `number` is the deferral that is meant; None: the one there is. Nothing happens either where `dag_id` is given and
    the task instance is another DAG's.
    """

    scope_id: int
    attempt: int
    event: str
    number: int | None = None
    dag_id: str | None = None
