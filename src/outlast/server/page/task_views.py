"""One task instance: attempts over state, a key's history, its job, and what a retry would find."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from ..outlast_shapes import Explanation, ScopeShape, TaskDetailShape
from . import chart
from .asking import PREFIX, Refused, path_of
from .commands import command_line, state_commands
from .progress import KEY, progress_of
from .rendering import View, readable, route
from .ribbon import Write, ribbon
from .run_views import ENDED
from .shapes import Entries, Entry, History, RunDetail, Version

__all__ = ["ROUTES", "Step", "histories", "key_page", "warnings_of"]

#: Keys of a page of the state table, and how many of them the ribbon tells the history of.
PAGE, TOLD = 100, 24
JOB: Final = "remote_job_id"
INTENT: Final = f"{JOB}.intent"
#: Characters of two versions up to which their lines are compared.
_COMPARED = 40_000


async def _task(view: View) -> Response:
    places = view.request.path_params
    scope = _scope(places)
    path = path_of("runs", scope.dag_id or "", scope.run_id or "", "tasks", scope.task_id or "")
    which = [("map_index", scope.map_index)]
    key = view.query.get("key")
    if key is not None:
        return await key_page(view, scope, path, which, key, view.href(*_parts(scope)))
    prefix, after = view.query.get("prefix", ""), view.query.get("after")
    asked = [*which, ("prefix", prefix), ("limit", PAGE), *([("after", after)] if after else [])]
    detail, siblings = await _detail(view, scope, path, which)
    page, explained = await asyncio.gather(
        view.api.get(f"{path}/state", Entries, asked), _explained(view, path, which, detail is not None)
    )
    told = sorted(page.entries, key=lambda entry: entry.updated_at, reverse=True)[:TOLD]
    writes = await histories(view, path, which, [entry.key for entry in told])
    at = _whole(view.query.get("at"))
    progress = next((progress_of(entry) for entry in page.entries if entry.key == KEY), None)
    instance = None if detail is None else detail.task_instance
    return await view.page(
        "task.html",
        scope=scope,
        task=instance,
        attempts=[] if detail is None else detail.attempts,
        drawn=ribbon([] if detail is None else detail.attempts, writes, view.now),
        writes=writes,
        told=len(told),
        entries=page.entries,
        revision=page.revision,
        after=page.after,
        prefix=prefix,
        at=at,
        then=None if at is None else _then(writes, at),
        progress=progress,
        is_stalled=progress is not None
        and instance is not None
        and instance.state == "running"
        and progress.is_stalled(view.now),
        explained=explained,
        job=_job(page.entries, instance),
        siblings=siblings,
        ended=ENDED,
        warnings=warnings_of,
        base=_parts(scope),
        state_url=f"{view.root}{path}/state",
        clear=view.root + path_of("runs", scope.dag_id or "", scope.run_id or "", "clear"),
        which=urlencode(which),
        clear_all=view.root + _state_of_all(scope),
        count_all=f"{view.root}{PREFIX}/find?{urlencode({**_named(scope), 'limit': 1000})}",
        commands=state_commands(scope, f"{view.server}{path}/state?{urlencode(which)}", view.server),
        retry=command_line("outlast", "tasks", "clear", scope.address, "--store", view.server),
        export=f"{view.root}{PREFIX}/export?{_as_export(scope)}",
        events=urlencode({"dag": scope.dag_id, "run": scope.run_id}),
    )


def _scope(places: dict[str, str]) -> ScopeShape:
    index = _whole(places.get("index", "-1"))
    if index is None:
        raise Refused(404, f"{places['index'][:40]!r} is no index of a mapped task; it is a whole number")
    dag, run, task = places["dag"], places["run"], places["task"]
    address = f"{dag}/{run}/{task}" + ("" if index < 0 else f"/{index}")
    return ScopeShape("task", address, dag, run, task, index)


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None or len(text) > 18 else int(text)
    except ValueError:
        return None


def _parts(scope: ScopeShape) -> list[str]:
    index = [] if scope.map_index in (None, -1) else [str(scope.map_index)]
    return ["tasks", scope.dag_id or "", scope.run_id or "", scope.task_id or "", *index]


def _state_of_all(scope: ScopeShape) -> str:
    """Return the path at which the state of every index of a mapped task is deleted at once: Airflow's."""
    dag, run, task = (quote(part or "", safe="") for part in (scope.dag_id, scope.run_id, scope.task_id))
    return f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/state-store?all_map_indices=true"


def _named(scope: ScopeShape) -> dict[str, str | None]:
    return {"dag": scope.dag_id, "run": scope.run_id, "task": scope.task_id}


def _as_export(scope: ScopeShape) -> str:
    names = {"dag_id": scope.dag_id, "run_id": scope.run_id, "task_id": scope.task_id, "map_index": scope.map_index}
    return urlencode(names)


async def _detail(view: View, scope: ScopeShape, path: str, which: Any) -> tuple[TaskDetailShape | None, int]:
    """Return the task instance and how many its task has; None where only a script has stored something."""
    try:
        detail = await view.api.get(path, TaskDetailShape, which)
    except Refused as refused:
        if refused.status != 404:
            raise
        return None, 0
    if detail.task_instance.map_index < 0:
        return detail, 1
    run = await view.api.get(path_of("runs", scope.dag_id or "", scope.run_id or ""), RunDetail)
    return detail, sum(instance.task_id == scope.task_id for instance in run.task_instances)


async def _explained(view: View, path: str, which: Any, is_of_run: bool) -> Explanation | None:
    return await view.api.get(f"{path}/explain", Explanation, which) if is_of_run else None


# --- History ---------------------------------------------------------------------------------------------------


async def histories(view: View, path: str, which: Any, keys: Sequence[str]) -> list[Write]:
    """Return the kept writes of some keys, newest first."""
    found = await asyncio.gather(*(_history(view, path, which, key) for key in keys))
    writes = [Write(history.key, version) for history in found for version in history.versions]
    return sorted(writes, key=lambda write: (write.version.at, write.version.revision), reverse=True)


async def _history(view: View, path: str, which: Any, key: str) -> History:
    return await view.api.get(f"{path}/history/{quote(key, safe='')}", History, which)


def _then(writes: Sequence[Write], at: int) -> list[Write]:
    """Return what each key held after the commit with this revision, as far as its kept history tells."""
    held: dict[str, Write] = {}
    for write in writes:
        if write.version.revision <= at:
            held.setdefault(write.key, write)
    return sorted((write for write in held.values() if not write.version.deleted), key=lambda write: write.key)


class Step(msgspec.Struct, frozen=True):
    """One version of a key, with its difference to the one before: lines with `+`, `-` or a blank before them."""

    version: Version
    difference: list[tuple[str, str]]


async def key_page(view: View, scope: ScopeShape, path: str, which: Any, key: str, back: str) -> Response:
    """Show what a key has held."""
    history = await _history(view, path, which, key)
    entry = await _entry(view, path, which, key)
    of_asset = scope.kind == "asset"
    return await view.page(
        "key.html",
        scope=scope,
        key=key,
        entry=entry,
        back=back,
        steps=_steps(history.versions),
        drawn=chart.chart(history.versions),
        may_write=view.may_write_assets if of_asset else view.may_write,
        restore=f"{view.root}{path}/restore/{quote(key, safe='')}?{urlencode(which)}",
        download=f"{view.root}{path}/state/{quote(key, safe='')}?{urlencode(which)}",
        commands=state_commands(
            scope, f"{view.server}{path}/state/{quote(key, safe='')}?{urlencode(which)}", view.server, key
        ),
        events=_watching(scope),
    )


def _steps(versions: list[Version]) -> list[Step]:
    older = [*versions[1:], None]
    return [Step(version, _difference(version, before)) for version, before in zip(versions, older, strict=False)]


def _watching(scope: ScopeShape) -> str:
    if scope.kind == "asset":
        return urlencode({"asset": scope.name or scope.uri or ""})
    return urlencode({"dag": scope.dag_id, "run": scope.run_id})


async def _entry(view: View, path: str, which: Any, key: str) -> Entry | None:
    try:
        return await view.api.get(f"{path}/state/{quote(key, safe='')}", Entry, which)
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def _difference(version: Version, older: Version | None) -> list[tuple[str, str]]:
    """Return what changed line by line; nothing where there is nothing to compare."""
    if older is None or version.masked or version.deleted or older.masked or older.deleted:
        return []
    if len(bytes(version.value)) + len(bytes(older.value)) > _COMPARED:
        return []
    lines = difflib.ndiff(readable(older.value).splitlines(), readable(version.value).splitlines())
    return [(line[0], line[2:]) for line in lines if line[0] != "?"]


# --- The job, and what deletions break ---------------------------------------------------------------------------


class _Job(msgspec.Struct, frozen=True):
    """A job submitted elsewhere: its id, or the token of a submission whose outcome is not recorded."""

    id: Entry | None
    intent: Entry | None
    reconnects: int | None


def _job(entries: Sequence[Entry], task: Any) -> _Job | None:
    by_key = {entry.key: entry for entry in entries}
    stored, intent = by_key.get(JOB), by_key.get(INTENT)
    if stored is None and intent is None:
        return None
    reconnects = None
    if stored is not None and task is not None and stored.writer.attempt is not None:
        reconnects = max(task.attempt - stored.writer.attempt, 0)
    return _Job(stored, intent, reconnects)


def warnings_of(key: str) -> str:
    """Return what deleting a key breaks, as far as its name tells."""
    if key == JOB:
        return "The next attempt will submit a new job: the one that is there is forgotten, not cancelled."
    if key == INTENT:
        return "A job may have been submitted under this token: without it the next attempt submits another one."
    if key == "last_done" or key.startswith("last_done/"):
        return "This is a checkpoint's mark: without it the next attempt begins with the first item."
    if key == KEY:
        return "This only tells how far the task is; the checkpoint's mark is another key."
    return "An attempt that relies on this key will not find it. Its history stays, so it can be restored."


ROUTES: Final[list[Route]] = [
    route("/tasks/{dag}/{run}/{task}", _task),
    route("/tasks/{dag}/{run}/{task}/{index}", _task),
]
