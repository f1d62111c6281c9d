"""The list of runs, and one run: a row a task, mapped tasks as a grid."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import OutlastError
from .. import browser
from ..identity import identify
from ..outlast_shapes import TaskShape
from .asking import PREFIX, path_of
from .commands import Command, command_line, curl
from .progress import KEY, Progress, progress_of
from .rendering import View, route
from .shapes import Found, Run, RunDetail, Runs

__all__ = ["ENDED", "ROUTES", "RUN_STATES", "Row"]

RUN_STATES: Final = ("running", "paused", "success", "failed", "cancelled")
#: States a task instance does not leave by itself.
ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "cancelled"})
#: Runs of a page, and squares of a grid.
PAGE, SQUARES = 50, 5000
#: Pages of the API that a search by text looks through at most.
_PAGES = 20


# --- All runs --------------------------------------------------------------------------------------------------


async def _runs(view: View) -> Response:
    query = view.query
    dag, text, before = query.get("dag", ""), query.get("q", ""), query.get("before")
    states = [state for state in query.getlist("state") if state in RUN_STATES]
    asked: list[tuple[str, Any]] = [("state", state) for state in states]
    asked += [("dag_id", dag)] if dag else []
    found, following = await _matching(view, asked, text, before)
    commands = [
        curl(f"{view.server}{PREFIX}/runs?{urlencode([*asked, ('limit', PAGE)])}"),
        Command(
            "Command line", command_line("outlast", "runs", "ls", *_as_options(dag, states), "--store", view.server)
        ),
    ]
    return await view.page(
        "runs.html",
        runs=found,
        before=following,
        dag=dag,
        states=states,
        text=text,
        all_states=RUN_STATES,
        is_filtered=bool(dag or text or states or before),
        commands=commands,
        events=urlencode([("dag", dag)] if dag else []),
    )


async def _matching(view: View, asked: list[tuple[str, Any]], text: str, before: Any) -> tuple[list[Run], int | None]:
    """Return runs in whose DAG or id the text occurs, and where the next page begins; it may look at many for few."""
    found: list[Run] = []
    for _ in range(_PAGES if text else 1):
        more = [("before", before)] if before is not None else []
        page = await view.api.get(path_of("runs"), Runs, [*asked, *more, ("limit", PAGE)])
        found += [run for run in page.runs if text.lower() in f"{run.dag_id}/{run.run_id}".lower()]
        before = page.before
        if before is None or len(found) >= PAGE:
            break
    return found, before


def _as_options(dag: str, states: list[str]) -> list[str]:
    return [*(["--dag", dag] if dag else []), *(word for state in states for word in ("--state", state))]


# --- One run ---------------------------------------------------------------------------------------------------


class Row(msgspec.Struct, frozen=True):
    """One task of a run: a single instance, or all of a mapped one."""

    task_id: str
    instances: list[TaskShape]
    progress: dict[int, Progress]
    now: datetime

    @property
    def only(self) -> TaskShape | None:
        """The instance, where there is one that is not of a mapped task."""
        first = self.instances[0]
        return first if len(self.instances) == 1 and first.map_index < 0 else None

    @property
    def counts(self) -> dict[str, int]:
        """How many instances are in each state."""
        counts: dict[str, int] = {}
        for instance in self.instances:
            counts[instance.state] = counts.get(instance.state, 0) + 1
        return counts

    @property
    def is_expected(self) -> bool:
        """Whether it stands for instances that are not known yet."""
        return self.only is not None and self.only.mapped

    def is_stalled(self, instance: TaskShape) -> bool:
        """Say whether an instance that runs has stopped making progress."""
        progress = self.progress.get(instance.map_index)
        return instance.state == "running" and progress is not None and progress.is_stalled(self.now)


async def _run(view: View) -> Response:
    dag, run = view.request.path_params["dag"], view.request.path_params["run"]
    detail = await view.api.get(path_of("runs", dag, run), RunDetail)
    progress, is_cut = await _progress(view, dag, run)
    by_task: dict[str, list[TaskShape]] = {}
    for instance in detail.task_instances:
        by_task.setdefault(instance.task_id, []).append(instance)
    rows = [Row(task, instances, progress.get(task, {}), view.now) for task, instances in by_task.items()]
    commands = [
        curl(view.server + path_of("runs", dag, run)),
        Command("Command line", command_line("outlast", "runs", "show", f"{dag}/{run}", "--store", view.server)),
    ]
    return await view.page(
        "run.html",
        run=detail.run,
        rows=rows,
        is_cut=is_cut,
        squares=SQUARES,
        ended=ENDED,
        commands=commands,
        events=urlencode({"dag": dag, "run": run}),
        export=f"{view.root}{PREFIX}/export?{urlencode({'dag_id': dag, 'run_id': run})}",
        api=view.root + path_of("runs", dag, run),
    )


async def _progress(view: View, dag: str, run: str) -> tuple[dict[str, dict[int, Progress]], bool]:
    """Return how far task instances are, by task and index; of the first thousand that say so, and if that cut it."""
    asked = {"dag": dag, "run": run, "key": KEY, "limit": 1000}
    found = await view.api.get(path_of("find"), Found, asked.items())
    progress: dict[str, dict[int, Progress]] = {}
    for one in found.found:
        scope, known = one.scope, progress_of(one.entry)
        if known is not None and (scope.dag_id, scope.run_id) == (dag, run):  # an id may read as a pattern
            progress.setdefault(scope.task_id or "", {})[-1 if scope.map_index is None else scope.map_index] = known
    return progress, found.more


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
