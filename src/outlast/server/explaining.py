"""What the next attempt of a task instance would do, as far as stored facts tell; no code is loaded or asked."""

from __future__ import annotations

from typing import Any

from .. import codec
from ..requests import Found, Read, Row
from ..run_requests import ENDED, Attempts, RunDetail, TaskRow
from ..runs import Runs
from ..values import TaskScope, moment
from .entries import hides
from .operations import Call
from .outlast_shapes import Explanation

__all__ = ["explain"]

#: The key of a job's id, unless its operator has another one.
JOB = "remote_job_id"
_SHOWN = 20


async def explain(call: Call, runs: Runs, scope: TaskScope) -> Explanation:
    """Say what the next attempt would do; NotFound if no run has this task instance."""
    found: Attempts = await runs.aattempts(scope)
    detail: RunDetail = await runs.aget(scope.dag_id, scope.run_id)
    read: Found = await call.ask(Read(found.task.scope, None))
    values = {row.name: None if hides(call, row.name) else _value(row) for row in read.rows}
    would, because = _would(values)
    task = found.task
    return Explanation(
        address=str(scope),
        state=task.state,
        attempt=task.attempt,
        next=_when(task, detail, call.now()),
        would=would if task.state not in ENDED else f"once it is cleared and its state kept: {would}",
        because=because,
        failures=task.failures,
        restarts_left=max(call.config.runner.crash_retries - task.crashes, 0),
        keys=list(values)[:_SHOWN],
        error=task.error,
    )


def _value(row: Row) -> Any:
    return codec.load(row.text or "null")


def _would(values: dict[str, Any]) -> tuple[str, str | None]:
    """Return what an attempt does that finds these entries, and because of which."""
    intent = f"{JOB}.intent"
    if JOB in values:
        job = "the job" if values[JOB] is None else f"job {codec.dump(values[JOB]).decode()}"
        return f"asks for {job}: waits for it if it runs, takes its result if it is done, else submits another", JOB
    if intent in values:
        return "looks for the job it may have submitted, and submits it with the same token if there is none", intent
    for name, value in values.items():
        match value:
            case {"done": int(done)}:
                return f"goes on after item {done:,}, if it uses the checkpoint", name
    if values:
        keys = "1 key" if len(values) == 1 else f"{len(values)} keys"
        return f"finds {keys}, and does with them what its code says", None
    return "begins from the start: nothing is stored", None


def _when(task: TaskRow, detail: RunDetail, now: int) -> str:
    """Return what there has to be first."""
    if task.state in ENDED:
        return f"none: it is {task.state}; it runs again only when it is cleared"
    held = detail.run.holder is not None and detail.run.lease_until > now
    return _begins(task) + ("" if held else "; no runner has the run now")


def _begins(task: TaskRow) -> str:
    due = "" if task.due_at is None else moment(task.due_at).isoformat()
    match task.state:
        case "waiting" if task.upstream:
            return f"attempt {task.attempt + 1} begins once {', '.join(task.upstream)} ended as its rule wants"
        case "running":
            return f"attempt {task.attempt} is running; the next one begins if it fails or dies"
        case "deferred":
            return f"attempt {task.attempt} waits for its trigger, and goes on with {task.next_method}()"
        case "scheduled":
            return f"attempt {task.attempt} goes on with {task.next_method}(): its trigger has fired"
        case "up_for_reschedule":
            return f"attempt {task.attempt} goes on at {due}"
        case "up_for_retry":
            return f"attempt {task.attempt + 1} begins at {due}"
    return f"attempt {task.attempt + 1} begins at once"
