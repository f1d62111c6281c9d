"""Who a context of Airflow's says is running: task instance, try, and which of several runs of one name."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any, Literal, NamedTuple

from ...values import AssetScope, TaskScope, asset_scope, task_scope

__all__ = ["Identity", "asset_of", "assets_of", "identity_of", "identity_of_instance"]

#: What an inlet or outlet is told by, so that nothing of Airflow's need be imported; aliases are none of these.
_NAMED, _BY_URI = {"Asset", "AssetNameRef"}, {"Dataset", "AssetUriRef"}


class Identity(NamedTuple):
    """One try of one task instance; as plain values, since a session of Airflow's database may be closed later.

    `origin` tells runs of one name apart: the row of the run on 2.x, on every try; on 3.x, where a worker does not
    know it, the task instance's id, which is another one at each try, so at the first try only. `started` is when
    the run began, in microseconds: a task instance begins anew when it goes on after a deferral.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    attempt: int
    origin: str | None
    started: int | None

    @property
    def scope(self) -> TaskScope:
        """The scope the state is kept in; InvalidKey for a name that no store of outlast's takes."""
        return task_scope(self.dag_id, self.run_id, self.task_id, self.map_index)


def identity_of(context: Any) -> Identity:
    """Return whose state a context's task is to reach."""
    ti = context["ti"]
    index = -1 if ti.map_index is None else int(ti.map_index)
    attempt = max(1, int(ti.try_number or 1))
    return Identity(ti.dag_id, ti.run_id, ti.task_id, index, attempt, *_origin(context, ti, attempt))


def identity_of_instance(ti: Any) -> Identity:
    """Return whose state a task instance is to reach, as a listener is given one."""
    if hasattr(ti, "dag_run"):  # Airflow's model
        return identity_of({"ti": ti, "dag_run": ti.dag_run})
    return identity_of({"ti": ti, "dag_run": ti.get_template_context().get("dag_run")})


def _origin(context: Any, ti: Any, attempt: int) -> tuple[str | None, int | None]:
    own = getattr(ti, "id", None)
    if own is not None and attempt != 1:
        return None, None
    run = context.get("dag_run")
    started = _micros(getattr(run, "start_date", None))
    if own is not None:
        return f"ti:{own}", started
    row = getattr(run, "id", None)
    return (f"run:{row}", started) if isinstance(row, int) else (None, None)


def _micros(when: Any) -> int | None:
    return int(when.timestamp() * 1_000_000) if isinstance(when, datetime) else None


def assets_of(task: Any) -> tuple[AssetScope, ...]:
    """Return the concrete inlets and outlets of a task, each once."""
    found: list[AssetScope] = []
    for each in [*(getattr(task, "inlets", None) or ()), *(getattr(task, "outlets", None) or ())]:
        scope = asset_of(each)
        if scope is not None and not any(_same(scope, other) for other in found):
            found.append(scope)
    return tuple(found)


def asset_of(thing: Any) -> AssetScope | None:
    """Return the scope of an asset, a dataset or a reference to one; None for anything else.

    On 3.x it has its name and its URI, on 2.x the URI only: what was kept there is found again by it.
    """
    kind: Any = type(thing)
    match _told_by(kind):
        case "name":
            return asset_scope(thing.name, getattr(thing, "uri", None) or None)
        case "uri":
            return asset_scope(None, thing.uri)
    return None


@functools.cache
def _told_by(kind: Any) -> Literal["name", "uri"] | None:
    names = {each.__name__ for each in kind.__mro__}
    return "name" if names & _NAMED else "uri" if names & _BY_URI else None


def _same(one: AssetScope, other: AssetScope) -> bool:
    return (one.name is not None and one.name == other.name) or (one.uri is not None and one.uri == other.uri)
