"""One task instance: attempts over state, a key's history, its job, and what a retry would find."""

from __future__ import annotations

import asyncio
import difflib
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from glob import escape
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from ..explaining import INTENT, JOB, STATUS, job_key
from ..outlast_shapes import Explanation, ScopeShape, TaskDetailShape
from . import chart
from .asking import PREFIX, Refused, path_of
from .chart import Chart
from .commands import command_line, python_scope, scope_words, state_commands
from .progress import KEY, progress_of
from .rendering import View, readable, route
from .ribbon import Write, ribbon
from .run_views import ENDED
from .shapes import Entries, Entry, History, RunDetail, Version
from .story import MARK, story

__all__ = ["OF_ASSET", "ROUTES", "Step", "charts", "handles", "histories", "key_page", "warnings_of"]

#: Keys of a page of the state table, and how many of them the ribbon tells the history of.
PAGE, TOLD = 100, 24
#: Characters of two versions up to which their lines are compared.
_COMPARED = 40_000
#: Bytes of a value that is told on one line, with the one before it.
_ONE_LINE = 100


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
    writes = await histories(view, path, which, dict.fromkeys([*(entry.key for entry in told), KEY, MARK]))
    at = _whole(view.query.get("at"))
    kept = {entry.key: entry for entry in page.entries}
    is_whole = not prefix and after is None and page.after is None
    told_of = kept.get(KEY) if is_whole or KEY in kept else await _entry(view, path, which, KEY)
    progress = None if told_of is None else progress_of(told_of)
    instance = None if detail is None else detail.task_instance
    attempts = [] if detail is None else detail.attempts
    chapters = story(attempts, writes)
    return await view.page(
        "task.html",
        scope=scope,
        task=instance,
        attempts=attempts,
        drawn=ribbon(attempts, writes, view.now),
        chapters={chapter.attempt.number: chapter for chapter in chapters},
        newest=chapters[-1] if chapters else None,
        before=chapters[-2] if len(chapters) > 1 else None,
        writes=writes,
        versions=view.store.config.state_store.history_versions,
        is_cut=_is_cut(view, writes),
        charts=charts(writes),
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
        go_on=await _go_on(view, scope, explained),
        job=await _job(view, path, which, kept, None if explained is None else explained.because, instance),
        siblings=siblings,
        ended=ENDED,
        warnings=warnings_of,
        base=_parts(scope),
        state_url=f"{view.root}{path}/state",
        by=handles(scope),
        clear=view.root + path_of("runs", scope.dag_id or "", scope.run_id or "", "clear"),
        which=urlencode(which),
        clear_all=view.root + _state_of_all(scope),
        count_all=f"{view.root}{PREFIX}/find?{urlencode({**_named(scope), 'limit': 1000})}",
        commands=state_commands(scope, f"{view.server}{path}/state?{urlencode(which)}", view.server),
        explain=command_line("tasks explain", scope.address, store=view.server),
        set_one=command_line("state set", scope.address, "page", "41", store=view.server),
        export=f"{view.root}{PREFIX}/export?{_as_export(scope)}",
        events=urlencode({"dag": scope.dag_id, "run": scope.run_id}),
    )


def handles(scope: ScopeShape) -> dict[str, str]:
    """Return how commands and programs are told of a scope: what scripts make texts to copy from."""
    names, options = scope_words(scope)
    return {"names": msgspec.json.encode(names).decode(), "options": shlex.join(options), "handle": python_scope(scope)}


def charts(writes: Sequence[Write]) -> dict[str, Chart]:
    """Return a chart for each key whose kept versions are numbers."""
    by_key: dict[str, list[Version]] = {}
    for write in writes:
        by_key.setdefault(write.key, []).append(write.version)
    drawn = {key: chart.chart(versions) for key, versions in by_key.items()}
    return {key: found for key, found in drawn.items() if found is not None}


def _is_cut(view: View, writes: Sequence[Write]) -> bool:
    """Say whether some key has been written more often than versions of it are kept."""
    most = view.store.config.state_store.history_versions
    return any(count >= most for count in Counter(write.key for write in writes).values())


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


def _named(scope: ScopeShape) -> dict[str, str]:
    """Return a task's names as patterns that fit them and nothing else."""
    names = {"dag": scope.dag_id, "run": scope.run_id, "task": scope.task_id}
    return {name: escape(text or "") for name, text in names.items()}


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


async def _go_on(view: View, scope: ScopeShape, explained: Explanation | None) -> str | None:
    """Return the command that has the run executed, None where a runner has it, or none would."""
    is_left = explained is not None and "no runner has the run now" in explained.next
    if explained is None or not (is_left or explained.state in ENDED):
        return None
    run = await view.api.get(path_of("runs", scope.dag_id or "", scope.run_id or ""), RunDetail)
    if run.run.state == "running" and not is_left:
        return None
    return command_line("run", run.run.file, store=view.server, options=["--run-id", scope.run_id or ""])


async def _explained(view: View, path: str, which: Any, is_of_run: bool) -> Explanation | None:
    return await view.api.get(f"{path}/explain", Explanation, which) if is_of_run else None


# --- History ---------------------------------------------------------------------------------------------------


async def histories(view: View, path: str, which: Any, keys: Iterable[str]) -> list[Write]:
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
    """One version of a key, with its difference to the one before: lines with `+`, `-` or a blank before them.

    A short one has room on one line; `before` is then the value it replaced.
    """

    version: Version
    difference: list[tuple[str, str]]
    is_short: bool
    before: msgspec.Raw | None


async def key_page(view: View, scope: ScopeShape, path: str, which: Any, key: str, back: str) -> Response:
    """Show what a key has held."""
    history = await _history(view, path, which, key)
    entry = await _entry(view, path, which, key)
    of_asset = scope.kind == "asset"
    return await view.page(
        "key.html",
        scope=scope,
        by=handles(scope),
        key=key,
        entry=entry,
        back=back,
        steps=_steps(history.versions),
        drawn=chart.chart(history.versions),
        may_write=view.may_write_assets if of_asset else view.may_write,
        state_url=f"{view.root}{path}/state",
        which=urlencode(which),
        warning=OF_ASSET if of_asset else warnings_of(key),
        restore=f"{view.root}{path}/restore/{quote(key, safe='')}?{urlencode(which)}",
        download=f"{view.root}{path}/state/{quote(key, safe='')}?{urlencode(which)}",
        commands=state_commands(
            scope, f"{view.server}{path}/state/{quote(key, safe='')}?{urlencode(which)}", view.server, key
        ),
        events=_watching(scope),
    )


def _steps(versions: list[Version]) -> list[Step]:
    older = [*versions[1:], None]
    return [_step(version, before) for version, before in zip(versions, older, strict=False)]


def _step(version: Version, older: Version | None) -> Step:
    before = None if older is None or older.masked or older.deleted else older.value
    is_short = not (version.masked or version.deleted) and _is_short(version.value)
    is_short = is_short and (before is None or _is_short(before))
    return Step(version, _difference(version, older), is_short, before)


def _is_short(value: msgspec.Raw) -> bool:
    return len(bytes(value)) <= _ONE_LINE


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
    """A job submitted elsewhere: its id, or the token of a submission whose outcome is not recorded.

    `token` is that with which it was submitted last, as far as its history is kept.
    """

    key: str
    id: Entry | None
    intent: Entry | None
    token: Version | None
    status: str | None
    asked_at: Any
    reconnects: int | None


class _Noted(msgspec.Struct):
    """What an attempt notes that takes a job up again."""

    status: str
    reconnects: int


async def _job(
    view: View, path: str, which: Any, entries: dict[str, Entry], because: str | None, task: Any
) -> _Job | None:
    """Return the job; what is not on the page of `entries` is asked for."""
    key = job_key([*entries, *([] if because is None else [because])])
    if key is None:
        return None
    names = (key, key + INTENT, key + STATUS)
    stored, intent, told = [entries.get(name) or await _entry(view, path, which, name) for name in names]
    kept = (await _history(view, path, which, key + INTENT)).versions
    token = next((version for version in kept if not version.deleted), None)
    noted = _noted(told)
    if noted is not None and told is not None:
        return _Job(key, stored, intent, token, noted.status, told.updated_at, noted.reconnects)
    reconnects = None
    if stored is not None and task is not None and stored.writer.attempt is not None:
        reconnects = max(task.attempt - stored.writer.attempt, 0)
    return _Job(key, stored, intent, token, None, None, reconnects)


def _noted(entry: Entry | None) -> _Noted | None:
    """Return what the last attempt that took the job up was told; None where nobody has, or it cannot be read."""
    if entry is None or entry.masked:
        return None
    try:
        return msgspec.json.decode(entry.value, type=_Noted)
    except msgspec.MsgspecError:
        return None


#: What deleting a key of an asset breaks.
OF_ASSET: Final = "Tasks of every run that read this key will not find it. Its history stays, so it can be restored."


def warnings_of(key: str) -> str:
    """Return what deleting a key breaks, as far as its name tells."""
    if key == JOB or key.endswith("job_id"):
        return "The next attempt will submit a new job: the one that is there is forgotten, not cancelled."
    if key.endswith(INTENT):
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
