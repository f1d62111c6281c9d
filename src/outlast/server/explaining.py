"""What the next attempt of a task instance would do, as far as stored facts tell; no code is loaded or asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import codec
from ..requests import Found, Read, Row
from ..run_requests import ENDED, Attempts, RunDetail, TaskRow
from ..runs import Runs
from ..values import TaskScope, moment
from .entries import hides
from .operations import Call
from .outlast_shapes import Explanation

__all__ = ["INTENT", "STATUS", "explain", "job_key"]

#: The key of a job's id, unless its operator has another one, and what its intent's key ends with.
JOB, INTENT, STATUS = "remote_job_id", ".intent", ".status"
_SHOWN = 20
#: How a task instance is that has ended.
_HOW = {"success": "has succeeded", "failed": "has failed for good"}
#: Characters of a job's id that are told.
_JOB_SHOWN = 60


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
    key = job_key(values)
    if key is not None and key in values:
        job = "the job" if values[key] is None else f"job {_short(codec.dump(values[key]).decode())}"
        return f"asks for {job}: waits for it if it runs, takes its result if it is done, else submits another", key
    if key is not None:
        intent = key + INTENT
        return "looks for the job it may have submitted, and submits it with the same token if there is none", intent
    for name, value in values.items():
        match value:
            case {"done": int(done)}:
                return f"goes on after item {done:,}, if it uses the checkpoint", name
    if values:
        keys = "1 key, and does with it" if len(values) == 1 else f"{len(values):,} keys, and does with them"
        return f"finds {keys} what its code says", None
    return "begins from the start: nothing is stored", None


def job_key(keys: Iterable[str]) -> str | None:
    """Return the key a job's id is under, by the names of the keys: that of a resumable operator may be any."""
    known = list(keys)
    under_way = [key.removesuffix(INTENT) for key in known if key.endswith(INTENT) and key != INTENT]
    named = [key for key in known if key == JOB] or [key for key in known if key.endswith("job_id")]
    return next(iter([*under_way, *named]), None)


def _short(text: str) -> str:
    return text if len(text) <= _JOB_SHOWN else text[:_JOB_SHOWN] + "…"


def _when(task: TaskRow, detail: RunDetail, now: int) -> str:
    """Return what there has to be first."""
    if task.state in ENDED:
        return f"none: it {_HOW.get(task.state, f'has ended as {task.state}')}, and runs again only when it is cleared"
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
