"""The list of runs, and one run: a row a task, mapped tasks as a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import OutlastError
from .. import browser
from ..identity import identify
from ..outlast_shapes import TaskShape
from ..run_progress import RunProgressShape
from . import grid
from .asking import PREFIX, path_of
from .commands import Command, command_line, curl, python, text
from .jobs import Job, jobs_of
from .progress import Progress, progress_told
from .rendering import View, route
from .shapes import Run, RunDetail, Runs

__all__ = ["ENDED", "ROUTES", "RUN_STATES", "Row"]

RUN_STATES: Final = ("running", "paused", "success", "failed", "cancelled")
#: States a task instance does not leave by itself.
ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "cancelled"})
#: Runs of a page, and task instances that have failed or stand still named above a run's tasks.
PAGE, NAMED = 50, 6
#: Pages of the API that a search by text looks through at most.
_PAGES = 20


# --- All runs --------------------------------------------------------------------------------------------------


async def _runs(view: View) -> Response:
    query = view.query
    dag, part, before = query.get("dag", ""), query.get("q", ""), query.get("before")
    states = [state for state in query.getlist("state") if state in RUN_STATES]
    asked: list[tuple[str, Any]] = [("state", state) for state in states]
    asked += [("dag_id", dag)] if dag else []
    found, following = await _matching(view, asked, part, before)
    commands = [
        curl(f"{view.server}{PREFIX}/runs?{urlencode([*asked, ('limit', PAGE)])}"),
        Command("Command line", command_line("runs ls", store=view.server, options=_as_options(dag, states))),
        python(view.server, f"print(store.runs_as(outlast.Writer()).list({_as_arguments(dag, states)}))"),
    ]
    return await view.page(
        "runs.html",
        runs=found,
        before=following,
        dag=dag,
        states=states,
        text=part,
        all_states=RUN_STATES,
        is_filtered=bool(dag or part or states or before),
        commands=commands,
        events=urlencode([("kinds", "run"), *([("dag", dag)] if dag else [])]),
    )


async def _matching(view: View, asked: list[tuple[str, Any]], part: str, before: Any) -> tuple[list[Run], int | None]:
    """Return runs in whose DAG or id the part occurs, and where the next page begins; it may look at many for few."""
    found: list[Run] = []
    for _ in range(_PAGES if part else 1):
        more = [("before", before)] if before is not None else []
        page = await view.api.get(path_of("runs"), Runs, [*asked, *more, ("limit", PAGE)])
        found += [run for run in page.runs if part.lower() in f"{run.dag_id}/{run.run_id}".lower()]
        before = page.before
        if before is None or len(found) >= PAGE:
            break
    return found, before


def _as_options(dag: str, states: list[str]) -> list[str]:
    return [*(["--dag", dag] if dag else []), *(word for state in states for word in ("--state", state))]


def _as_arguments(dag: str, states: list[str]) -> str:
    named = [f"dag_id={text(dag)}"] if dag else []
    return ", ".join([*named, *([f"states=[{', '.join(map(text, states))}]"] if states else [])])


# --- One run ---------------------------------------------------------------------------------------------------


class Row(msgspec.Struct, frozen=True):
    """One task of a run: a single instance, or all of a mapped one."""

    task_id: str
    instances: list[TaskShape]
    progress: dict[int, Progress]
    now: datetime
    job: Job | None = None

    @property
    def only(self) -> TaskShape | None:
        """The instance, where there is one that is not of a mapped task."""
        first = self.instances[0]
        return first if len(self.instances) == 1 and first.map_index < 0 else None

    @property
    def counts(self) -> dict[str, int]:
        """How many instances are in each state."""
        return dict(Counter(instance.state for instance in self.instances))

    @property
    def ended(self) -> int:
        """How many instances have ended."""
        return sum(instance.state in ENDED for instance in self.instances)

    @property
    def is_expected(self) -> bool:
        """Whether it stands for instances that are not known yet."""
        return self.only is not None and self.only.mapped

    @property
    def parts(self) -> list[grid.Part]:
        """The pages of its grid, none where one has room for all."""
        return grid.parts(self.instances)

    def squares(self, base: str, part: int) -> Markup:
        """Return the grid, or a page of it."""
        start = part * grid.SQUARES if self.parts else 0
        shown = self.instances[start : start + grid.SQUARES]
        stalled = {one.map_index for one in shown if one.map_index in self.progress and self.is_stalled(one)}
        return grid.squares(shown, self.progress, stalled, base)

    def is_stalled(self, instance: TaskShape) -> bool:
        """Say whether an instance that runs has stopped making progress."""
        progress = self.progress.get(instance.map_index)
        return instance.state == "running" and progress is not None and progress.is_stalled(self.now)


class Trouble(msgspec.Struct, frozen=True):
    """A task instance that needs somebody: it has failed, or stands still."""

    instance: TaskShape
    progress: Progress | None


async def _run(view: View) -> Response:
    dag, run = view.request.path_params["dag"], view.request.path_params["run"]
    detail = await view.api.get(path_of("runs", dag, run), RunDetail)
    progress = await _progress(view, detail)
    by_task: dict[str, list[TaskShape]] = {}
    for instance in detail.task_instances:
        by_task.setdefault(instance.task_id, []).append(instance)
    jobs = await _jobs(view, detail)
    rows = [Row(task, by_task[task], progress.get(task, {}), view.now, jobs.get(task)) for task in in_order(by_task)]
    troubles = list(_troubles(rows))
    part = view.query.get("part", "0")
    return await view.page(
        "run.html",
        run=detail.run,
        rows=rows,
        troubles=troubles[:NAMED],
        more_troubles=len(troubles) - NAMED,
        failed=[[one.task_id, one.map_index] if one.map_index >= 0 else one.task_id for one in _failed(rows)],
        task=view.query.get("task"),
        part=int(part) if part.isascii() and part.isdecimal() and len(part) < 9 else 0,
        ended=ENDED,
        commands=_commands(view, dag, run),
        events=urlencode({"dag": dag, "run": run}),
        export=f"{view.root}{PREFIX}/export?{urlencode({'dag_id': dag, 'run_id': run})}",
        api=view.root + path_of("runs", dag, run),
        again=command_line("tasks clear", f"{dag}/{run}", store=view.server, options=["--failed"]),
        cancel=command_line("runs cancel", f"{dag}/{run}", store=view.server),
        go_on=command_line("run", detail.run.file, store=view.server, options=["--run-id", run]),
    )


def in_order(by_task: Mapping[str, Sequence[TaskShape]]) -> list[str]:
    """Return task ids so that each comes after those it waits for, and else as they came."""
    placed: dict[str, None] = {}

    def place(task: str, beneath: frozenset[str]) -> None:
        for above in by_task[task][0].upstream:
            if above in by_task and above not in placed and above not in beneath:
                place(above, beneath | {task})
        placed.setdefault(task)

    for task in by_task:
        place(task, frozenset({task}))
    return list(placed)


def _failed(rows: Sequence[Row]) -> Iterator[TaskShape]:
    return (one for row in rows for one in row.instances if one.state == "failed")


def _troubles(rows: Sequence[Row]) -> Iterator[Trouble]:
    """Return those that stand still, then the first of each task that failed before the second of any."""
    for row in rows:
        for one in row.instances:
            if one.map_index in row.progress and row.is_stalled(one):
                yield Trouble(one, row.progress[one.map_index])
    failed = [[Trouble(one, row.progress.get(one.map_index)) for one in _failed([row])] for row in rows]
    for together in zip_longest(*failed):
        yield from (trouble for trouble in together if trouble is not None)


def _commands(view: View, dag: str, run: str) -> list[Command]:
    return [
        curl(view.server + path_of("runs", dag, run)),
        Command("Command line", command_line("runs show", f"{dag}/{run}", store=view.server)),
        python(view.server, f"print(store.runs_as(outlast.Writer()).get({text(dag)}, {text(run)}))"),
    ]


async def _progress(view: View, detail: RunDetail) -> dict[str, dict[int, Progress]]:
    """Return how far task instances are, by task and index."""
    progress: dict[str, dict[int, Progress]] = {}
    if any(one.attempt for one in detail.task_instances):
        path = path_of("runs", detail.run.dag_id, detail.run.run_id, "progress")
        for told in (await view.api.get(path, RunProgressShape)).progress:
            progress.setdefault(told.task_id, {})[told.map_index] = progress_told(told)
    return progress


async def _jobs(view: View, detail: RunDetail) -> dict[str, Job]:
    """Return the jobs of tasks that have begun and not ended, by task."""
    open_ones = {one.task_id for one in detail.task_instances if one.attempt and one.state not in ENDED}
    found = await jobs_of(view, detail.run.dag_id, detail.run.run_id) if open_ones else {}
    return {task: job for task, job in found.items() if task in open_ones}


# --- Routes ----------------------------------------------------------------------------------------------------

_SHOWN: Final = route("/", _runs)


async def _start(request: Request) -> Response:
    """Show the runs to a browser that is logged in; to others `browser` says what this is."""
    try:
        await identify(request)
    except OutlastError:
        return await browser.start(request)
    if "text/html" not in request.headers.get("accept", ""):
        return await browser.start(request)
    shown: Response = await _SHOWN.endpoint(request)
    return shown


ROUTES: Final = [Route("/", _start, methods=["GET"], include_in_schema=False), route("/runs/{dag}/{run}", _run)]
